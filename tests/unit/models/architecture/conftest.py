"""Small random models of many families, and what their first blocks must be."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

from fairbits.models.architecture.architecture import Architecture
from fairbits.models.architecture.assemble import map_architecture

Shapes = dict[str, tuple[int, ...]]

VOCAB = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **VOCAB}
GROUPED = {**SIZE, "num_key_value_heads": 2}
OPT_SIZE = {k: v for k, v in SIZE.items() if k != "intermediate_size"} | {"ffn_dim": 48, "word_embed_proj_dim": 32}
XGLM_SIZE = {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, **VOCAB}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, **VOCAB}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, **VOCAB}
MT5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, **VOCAB}
MOE = {**GROUPED, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

# name in the block | role | input (self: blocks.0.*) | group; norms and biases follow from `norms` and `biased`
SEPARATE = """
    {attention}q_proj q attention attention.qkv
    {attention}k_proj k attention attention.qkv
    {attention}v_proj v attention attention.qkv
    {attention}{out} attention_out attention_out -
"""
GATED = """
    {mlp}gate_proj mlp_gate mlp mlp.gate_up
    {mlp}up_proj mlp_up mlp mlp.gate_up
    {mlp}down_proj mlp_down mlp_down -
"""
ATTENTION = SEPARATE.format(attention="self_attn.", out="o_proj")
LLAMA = ATTENTION + GATED.format(mlp="mlp.")
OPT = (
    SEPARATE.format(attention="self_attn.", out="out_proj")
    + """
    fc1 mlp_up mlp -
    fc2 mlp_down mlp_down -
"""
)
BLOOM_BLOCK = """
    {attention}query_key_value qkv attention -
    {attention}dense attention_out attention_out -
    mlp.dense_h_to_4h mlp_up mlp -
    mlp.dense_4h_to_h mlp_down mlp_down -
"""
GPT2_BLOCK = """
    attn.c_attn qkv attention -
    attn.c_proj attention_out attention_out -
    mlp.c_fc mlp_up mlp -
    mlp.c_proj mlp_down mlp_down -
"""
PHI3_BLOCK = """
    self_attn.qkv_proj qkv attention -
    self_attn.o_proj attention_out attention_out -
    mlp.gate_up_proj mlp_gate_up mlp -
    mlp.down_proj mlp_down mlp_down -
"""
XLMR_BLOCK = """
    attention.self.query q attention attention.qkv
    attention.self.key k attention attention.qkv
    attention.self.value v attention attention.qkv
    attention.output.dense attention_out attention_out -
    intermediate.dense mlp_up mlp -
    output.dense mlp_down mlp_down -
"""
MT5_BLOCK = """
    layer.0.SelfAttention.q q attention attention.qkv
    layer.0.SelfAttention.k k attention attention.qkv
    layer.0.SelfAttention.v v attention attention.qkv
    layer.0.SelfAttention.o attention_out attention_out -
    layer.0.SelfAttention.relative_attention_bias position - -
    layer.1.DenseReluDense.wi_0 mlp_gate mlp mlp.gate_up
    layer.1.DenseReluDense.wi_1 mlp_up mlp mlp.gate_up
    layer.1.DenseReluDense.wo mlp_down mlp_down -
"""


def _experts(path: str, gate: str, up: str, down: str) -> str:
    table = """
    {path}.{e}.{gate} mlp_gate experts.{e}.mlp experts.{e}.gate_up
    {path}.{e}.{up} mlp_up experts.{e}.mlp experts.{e}.gate_up
    {path}.{e}.{down} mlp_down experts.{e}.mlp_down -
"""
    return "".join(table.format(path=path, e=e, gate=gate, up=up, down=down) for e in range(3))


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
PRE_POST = "input_layernorm post_attention_layernorm"
GEMMA_NORMS = f"{PRE_POST} pre_feedforward_layernorm post_feedforward_layernorm"
OPT_NORMS = "self_attn_layer_norm final_layer_norm"
QK_NORMS = "self_attn.q_norm self_attn.k_norm"
EXPERTS = _experts("mlp.experts", "gate_proj", "up_proj", "down_proj")
SHARED_EXPERT = "mlp.shared_expert_gate router mlp -" + GATED.format(mlp="mlp.shared_expert.")


@dataclass(frozen=True)
class Family:
    """A class, its small configuration, and what its first block must be."""

    cls: Any
    config: Any
    block: str  # where block 0 lies in the file
    table: str
    norms: str  # of the block; with a shift as well if `shifted`
    outside: dict[str, str]  # role of every tensor outside the blocks
    shifted: bool = False
    biased: tuple[str, ...] = ()
    tied: tuple[tuple[str, str], ...] = ()
    stack: str = "decoder"
    n_blocks: int = 2

    def first_block(self) -> dict[str, tuple[str, str | None, str | None]]:
        """Returns role, input and group of every tensor of the first block."""
        leaves = ("weight", "bias") if self.shifted else ("weight",)
        plain = {f"{self.block}{norm}.{leaf}": "norm" for norm in self.norms.split() for leaf in leaves}
        plain |= {f"{self.block}{name}.bias": "bias" for name in self.biased}
        return read_table(self.block, self.table) | {name: (role, None, None) for name, role in plain.items()}


def read_table(prefix: str, table: str, *, index: int = 0) -> dict[str, tuple[str, str | None, str | None]]:
    """Returns role, input and group of every weight in a hand-written table."""

    def full(name: str) -> str | None:
        return None if name == "-" else name if name == "encoder_output" else f"blocks.{index}.{name}"

    rows = [line.split() for line in table.splitlines() if line.strip()]
    return {f"{prefix}{name}.weight": (role, full(sees), full(group)) for name, role, sees, group in rows}


def _norm(*paths: str) -> dict[str, str]:
    return {f"{path}.{leaf}": "norm" for path in paths for leaf in ("weight", "bias")}


def _tied(source: str, *targets: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{target}.weight", f"{source}.weight") for target in targets or ("lm_head",))


def _llama(cls: Any, config: Any, *, table: str = LLAMA, norms: str = PRE_POST, biased: tuple[str, ...] = ()) -> Family:
    """Returns a family with the names of Llama; the head is tied if the configuration says so."""
    outside = {"model.embed_tokens.weight": "embedding", "model.norm.weight": "norm"}
    tied = _tied("model.embed_tokens") if config.tie_word_embeddings else ()
    if not tied:
        outside["lm_head.weight"] = "head"
    return Family(cls, config, "model.layers.0.", table, norms, outside, biased=biased, tied=tied)


def _bloom(cls: Any, prefix: str, **options: Any) -> Family:
    table = BLOOM_BLOCK.format(attention="self_attention.")
    norms = _norm(f"{prefix}ln_f", f"{prefix}word_embeddings_layernorm")
    outside = {f"{prefix}word_embeddings.weight": "embedding", **norms}
    biased = ("self_attention.query_key_value", "self_attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    options |= {"shifted": True, "biased": biased}
    return Family(cls, t.BloomConfig(**BLOOM), f"{prefix}h.0.", table, PRE_POST, outside, **options)


def _gpt2(cls: Any, prefix: str, **options: Any) -> Family:
    outside = {f"{prefix}wte.weight": "embedding", f"{prefix}wpe.weight": "position", **_norm(f"{prefix}ln_f")}
    options |= {"shifted": True, "biased": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}
    return Family(cls, t.GPT2Config(**GPT2), f"{prefix}h.0.", GPT2_BLOCK, "ln_1 ln_2", outside, **options)


def _opt(cls: Any, config: Any, prefix: str, *, outside: dict[str, str]) -> Family:
    return Family(
        cls,
        config,
        f"{prefix}layers.0.",
        OPT,
        OPT_NORMS,
        {f"{prefix}embed_tokens.weight": "embedding", **outside},
        shifted=True,
        biased=(*QKV, "self_attn.out_proj", "fc1", "fc2"),
        tied=_tied(f"{prefix}embed_tokens"),
    )


FAMILIES = {
    "bloom": _bloom(
        t.BloomForCausalLM, "transformer.", tied=(("lm_head.weight", "transformer.word_embeddings.weight"),)
    ),
    "bloom_base": _bloom(t.BloomModel, ""),
    "xglm": _opt(t.XGLMForCausalLM, t.XGLMConfig(**XGLM_SIZE), "model.", outside=_norm("model.layer_norm")),
    "mt5": Family(
        t.MT5ForConditionalGeneration,
        t.MT5Config(**MT5, decoder_start_token_id=0),
        "encoder.block.0.",
        MT5_BLOCK,
        "layer.0.layer_norm layer.1.layer_norm",
        {
            "shared.weight": "embedding",
            **{f"{side}.final_layer_norm.weight": "norm" for side in ("encoder", "decoder")},
        },
        tied=tuple(
            (f"{x}.weight", "shared.weight") for x in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
        ),
        stack="encoder",
        n_blocks=4,
    ),
    "xlmr": Family(
        t.XLMRobertaForMaskedLM,
        t.XLMRobertaConfig(max_position_embeddings=40, **SIZE),
        "roberta.encoder.layer.0.",
        XLMR_BLOCK,
        "attention.output.LayerNorm output.LayerNorm",
        {
            "roberta.embeddings.word_embeddings.weight": "embedding",
            "roberta.embeddings.position_embeddings.weight": "position",
            "roberta.embeddings.token_type_embeddings.weight": "token_type",
            "lm_head.dense.weight": "projection",
            "lm_head.dense.bias": "bias",
            "lm_head.bias": "bias",
            **_norm("roberta.embeddings.LayerNorm", "lm_head.layer_norm"),
        },
        shifted=True,
        biased=tuple(line.split()[0] for line in XLMR_BLOCK.splitlines() if line.strip()),
        tied=(
            ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
            ("lm_head.decoder.bias", "lm_head.bias"),
        ),
        stack="encoder",
    ),
    "gpt2": _gpt2(t.GPT2LMHeadModel, "transformer.", tied=_tied("transformer.wte")),
    "gpt2_base": _gpt2(t.GPT2Model, ""),
    "opt": _opt(
        t.OPTForCausalLM,
        t.OPTConfig(**OPT_SIZE, max_position_embeddings=32),
        "model.decoder.",
        outside={"model.decoder.embed_positions.weight": "position", **_norm("model.decoder.final_layer_norm")},
    ),
    "gpt_neox": Family(
        t.GPTNeoXForCausalLM,
        t.GPTNeoXConfig(**SIZE),
        "gpt_neox.layers.0.",
        BLOOM_BLOCK.format(attention="attention."),
        PRE_POST,
        {"gpt_neox.embed_in.weight": "embedding", "embed_out.weight": "head", **_norm("gpt_neox.final_layer_norm")},
        shifted=True,
        biased=("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    ),
    "llama": _llama(t.LlamaForCausalLM, t.LlamaConfig(**GROUPED)),
    "llama_tied": _llama(t.LlamaForCausalLM, t.LlamaConfig(**GROUPED, tie_word_embeddings=True)),
    "mistral": _llama(t.MistralForCausalLM, t.MistralConfig(**GROUPED)),
    "qwen2": _llama(t.Qwen2ForCausalLM, t.Qwen2Config(**GROUPED), biased=QKV),
    "qwen3": _llama(t.Qwen3ForCausalLM, t.Qwen3Config(**GROUPED, head_dim=16), norms=f"{PRE_POST} {QK_NORMS}"),
    "gemma2": _llama(t.Gemma2ForCausalLM, t.Gemma2Config(**GROUPED, head_dim=16), norms=GEMMA_NORMS),
    "gemma3": _llama(
        t.Gemma3ForCausalLM, t.Gemma3TextConfig(**GROUPED, head_dim=16), norms=f"{GEMMA_NORMS} {QK_NORMS}"
    ),
    "phi3": _llama(t.Phi3ForCausalLM, t.Phi3Config(**GROUPED), table=PHI3_BLOCK),
    "mixtral": _llama(
        t.MixtralForCausalLM,
        t.MixtralConfig(**GROUPED, num_local_experts=3),
        table=f"{ATTENTION} block_sparse_moe.gate router mlp -{_experts('block_sparse_moe.experts', 'w1', 'w3', 'w2')}",
    ),
    "qwen2_moe": _llama(
        t.Qwen2MoeForCausalLM,
        t.Qwen2MoeConfig(**MOE, shared_expert_intermediate_size=40),
        table=f"{ATTENTION} mlp.gate router mlp -\n{SHARED_EXPERT}{EXPERTS}",
        biased=QKV,
    ),
    "qwen3_moe": _llama(
        t.Qwen3MoeForCausalLM,
        t.Qwen3MoeConfig(**MOE, head_dim=16),
        table=f"{ATTENTION} mlp.gate router mlp -{EXPERTS}",
        norms=f"{PRE_POST} {QK_NORMS}",
    ),
}


@dataclass(frozen=True)
class Opened:
    """A family's random model, saved and opened again."""

    family: Family
    directory: Path
    config: Any
    shapes: Shapes
    map: Architecture

    def model(self) -> t.PreTrainedModel:
        cls = self.family.cls
        eager = {"experts_implementation": "eager"} if cls._can_set_experts_implementation() else {}
        return cls.from_pretrained(self.directory, attn_implementation="eager", dtype=torch.float32, **eager).eval()


@pytest.fixture(scope="session", params=list(FAMILIES))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, save: Any) -> Opened:
    """Returns each family in turn."""
    directory = tmp_path_factory.mktemp(request.param)
    family = FAMILIES[request.param]
    config, shapes = save(family.cls, family.config, directory)
    return Opened(family, directory, config, shapes, map_architecture(config, shapes))
