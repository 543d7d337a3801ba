"""The map of every family, on the real class: random weights, saved, opened again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors import safe_open
from torch.overrides import TorchFunctionMode

from fairbits.model.architecture import Architecture, Weight, architecture

VOCAB = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **VOCAB}
GROUPED = {**SIZE, "num_key_value_heads": 2}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, **VOCAB}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, **VOCAB}
MOE = {**GROUPED, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
VISION = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48}

# name in the block | role | input (self: blocks.0.*) | group; norms and biases follow from `norms` and `biased`
SEPARATE = """
    {attention}q_proj q attention attention.qkv
    {attention}k_proj k attention attention.qkv
    {attention}v_proj v attention attention.qkv
    {attention}{out} attention_out attention_out -
"""
GATED = """
    mlp.gate_proj mlp_gate mlp mlp.gate_up
    mlp.up_proj mlp_up mlp mlp.gate_up
    mlp.down_proj mlp_down mlp_down -
"""
TWO_LAYERS = """
    fc1 mlp_up mlp -
    fc2 mlp_down mlp_down -
"""
LLAMA = SEPARATE.format(attention="self_attn.", out="o_proj") + GATED
OPT = SEPARATE.format(attention="self_attn.", out="out_proj") + TWO_LAYERS
BLOOM_MLP = """
    mlp.dense_h_to_4h mlp_up mlp -
    mlp.dense_4h_to_h mlp_down mlp_down -
"""
T5_ATTENTION = """
    layer.0.SelfAttention.q q attention attention.qkv
    layer.0.SelfAttention.k k attention attention.qkv
    layer.0.SelfAttention.v v attention attention.qkv
    layer.0.SelfAttention.o attention_out attention_out -
    layer.0.SelfAttention.relative_attention_bias position - -
"""
T5_MLP = """
    layer.{n}.DenseReluDense.wi_0 mlp_gate mlp mlp.gate_up
    layer.{n}.DenseReluDense.wi_1 mlp_up mlp mlp.gate_up
    layer.{n}.DenseReluDense.wo mlp_down mlp_down -
"""
T5_CROSS = """
    layer.1.EncDecAttention.q q cross_attention -
    layer.1.EncDecAttention.k k encoder_output cross_attention.kv
    layer.1.EncDecAttention.v v encoder_output cross_attention.kv
    layer.1.EncDecAttention.o attention_out cross_attention_out -
"""


def _experts(path: str, gate: str, up: str, down: str) -> str:
    return "".join(
        f"""
    {path}.{e}.{gate} mlp_gate experts.{e}.mlp experts.{e}.gate_up
    {path}.{e}.{up} mlp_up experts.{e}.mlp experts.{e}.gate_up
    {path}.{e}.{down} mlp_down experts.{e}.mlp_down -
"""
        for e in range(3)
    )


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


def _decoder(prefix: str = "model.", *, head: bool = False) -> dict[str, str]:
    roles = {f"{prefix}embed_tokens.weight": "embedding", f"{prefix}norm.weight": "norm"}
    return roles | ({"lm_head.weight": "head"} if head else {})


def _norm(*paths: str) -> dict[str, str]:
    return {f"{path}.{leaf}": "norm" for path in paths for leaf in ("weight", "bias")}


def _bloom(prefix: str) -> dict[str, str]:
    norms = _norm(f"{prefix}ln_f", f"{prefix}word_embeddings_layernorm")
    return {f"{prefix}word_embeddings.weight": "embedding", **norms}


def _bloom_family(cls: Any, prefix: str, **options: Any) -> Family:
    table = (
        "self_attention.query_key_value qkv attention -\n self_attention.dense attention_out attention_out -"
        + BLOOM_MLP
    )
    return Family(
        cls=cls,
        config=t.BloomConfig(**BLOOM),
        block=f"{prefix}h.0.",
        table=table,
        norms="input_layernorm post_attention_layernorm",
        outside=_bloom(prefix),
        shifted=True,
        biased=("self_attention.query_key_value", "self_attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        **options,
    )


def _gpt2_family(cls: Any, prefix: str, **options: Any) -> Family:
    return Family(
        cls=cls,
        config=t.GPT2Config(**GPT2),
        block=f"{prefix}h.0.",
        table="""
            attn.c_attn qkv attention -
            attn.c_proj attention_out attention_out -
            mlp.c_fc mlp_up mlp -
            mlp.c_proj mlp_down mlp_down -
        """,
        norms="ln_1 ln_2",
        outside={f"{prefix}wte.weight": "embedding", f"{prefix}wpe.weight": "position", **_norm(f"{prefix}ln_f")},
        shifted=True,
        biased=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        **options,
    )


QKV_OUT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")
PRE_POST = "input_layernorm post_attention_layernorm"
GEMMA_NORMS = f"{PRE_POST} pre_feedforward_layernorm post_feedforward_layernorm"
QK_NORMS = "self_attn.q_norm self_attn.k_norm"
TIED = (("lm_head.weight", "model.embed_tokens.weight"),)

FAMILIES = {
    "bloom": _bloom_family(
        t.BloomForCausalLM, "transformer.", tied=(("lm_head.weight", "transformer.word_embeddings.weight"),)
    ),
    "bloom_base": _bloom_family(t.BloomModel, ""),
    "xglm": Family(
        t.XGLMForCausalLM,
        t.XGLMConfig(d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, max_position_embeddings=32, **VOCAB),
        "model.layers.0.",
        OPT,
        "self_attn_layer_norm final_layer_norm",
        {"model.embed_tokens.weight": "embedding", **_norm("model.layer_norm")},
        shifted=True,
        biased=(*QKV_OUT, "fc1", "fc2"),
        tied=TIED,
    ),
    "mt5": Family(
        t.MT5ForConditionalGeneration,
        t.MT5Config(
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            **VOCAB,
            decoder_start_token_id=0,
        ),
        "encoder.block.0.",
        T5_ATTENTION + T5_MLP.format(n=1),
        "layer.0.layer_norm layer.1.layer_norm",
        {
            "shared.weight": "embedding",
            "encoder.final_layer_norm.weight": "norm",
            "decoder.final_layer_norm.weight": "norm",
        },
        tied=tuple(
            (f"{name}.weight", "shared.weight") for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
        ),
        stack="encoder",
        n_blocks=4,
    ),
    "xlmr": Family(
        t.XLMRobertaForMaskedLM,
        t.XLMRobertaConfig(max_position_embeddings=40, **SIZE),
        "roberta.encoder.layer.0.",
        """
            attention.self.query q attention attention.qkv
            attention.self.key k attention attention.qkv
            attention.self.value v attention attention.qkv
            attention.output.dense attention_out attention_out -
            intermediate.dense mlp_up mlp -
            output.dense mlp_down mlp_down -
        """,
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
        biased=(
            *(f"attention.self.{name}" for name in ("query", "key", "value")),
            *("attention.output.dense", "intermediate.dense", "output.dense"),
        ),
        tied=(
            ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
            ("lm_head.decoder.bias", "lm_head.bias"),
        ),
        stack="encoder",
    ),
    "gpt2": _gpt2_family(t.GPT2LMHeadModel, "transformer.", tied=(("lm_head.weight", "transformer.wte.weight"),)),
    "gpt2_base": _gpt2_family(t.GPT2Model, ""),
    "opt": Family(
        t.OPTForCausalLM,
        t.OPTConfig(
            **{k: v for k, v in SIZE.items() if k != "intermediate_size"},
            ffn_dim=48,
            max_position_embeddings=32,
            word_embed_proj_dim=32,
        ),
        "model.decoder.layers.0.",
        OPT,
        "self_attn_layer_norm final_layer_norm",
        {
            "model.decoder.embed_tokens.weight": "embedding",
            "model.decoder.embed_positions.weight": "position",
            **_norm("model.decoder.final_layer_norm"),
        },
        shifted=True,
        biased=(*QKV_OUT, "fc1", "fc2"),
        tied=(("lm_head.weight", "model.decoder.embed_tokens.weight"),),
    ),
    "gpt_neox": Family(
        t.GPTNeoXForCausalLM,
        t.GPTNeoXConfig(**SIZE),
        "gpt_neox.layers.0.",
        "attention.query_key_value qkv attention -\n attention.dense attention_out attention_out -" + BLOOM_MLP,
        PRE_POST,
        {"gpt_neox.embed_in.weight": "embedding", "embed_out.weight": "head", **_norm("gpt_neox.final_layer_norm")},
        shifted=True,
        biased=("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    ),
    "llama": Family(
        t.LlamaForCausalLM, t.LlamaConfig(**GROUPED), "model.layers.0.", LLAMA, PRE_POST, _decoder(head=True)
    ),
    "llama_tied": Family(
        t.LlamaForCausalLM,
        t.LlamaConfig(**GROUPED, tie_word_embeddings=True),
        "model.layers.0.",
        LLAMA,
        PRE_POST,
        _decoder(),
        tied=TIED,
    ),
    "mistral": Family(
        t.MistralForCausalLM, t.MistralConfig(**GROUPED), "model.layers.0.", LLAMA, PRE_POST, _decoder(head=True)
    ),
    "qwen2": Family(
        t.Qwen2ForCausalLM,
        t.Qwen2Config(**GROUPED),
        "model.layers.0.",
        LLAMA,
        PRE_POST,
        _decoder(head=True),
        biased=QKV_OUT[:3],
    ),
    "qwen3": Family(
        t.Qwen3ForCausalLM,
        t.Qwen3Config(**GROUPED, head_dim=16),
        "model.layers.0.",
        LLAMA,
        f"{PRE_POST} {QK_NORMS}",
        _decoder(head=True),
    ),
    "gemma2": Family(
        t.Gemma2ForCausalLM,
        t.Gemma2Config(**GROUPED, head_dim=16),
        "model.layers.0.",
        LLAMA,
        GEMMA_NORMS,
        _decoder(),
        tied=TIED,
    ),
    "gemma3": Family(
        t.Gemma3ForCausalLM,
        t.Gemma3TextConfig(**GROUPED, head_dim=16),
        "model.layers.0.",
        LLAMA,
        f"{GEMMA_NORMS} {QK_NORMS}",
        _decoder(),
        tied=TIED,
    ),
    "phi3": Family(
        t.Phi3ForCausalLM,
        t.Phi3Config(**GROUPED),
        "model.layers.0.",
        """
            self_attn.qkv_proj qkv attention -
            self_attn.o_proj attention_out attention_out -
            mlp.gate_up_proj mlp_gate_up mlp -
            mlp.down_proj mlp_down mlp_down -
        """,
        PRE_POST,
        _decoder(head=True),
    ),
    "mixtral": Family(
        t.MixtralForCausalLM,
        t.MixtralConfig(**GROUPED, num_local_experts=3),
        "model.layers.0.",
        SEPARATE.format(attention="self_attn.", out="o_proj")
        + "block_sparse_moe.gate router mlp -"
        + _experts("block_sparse_moe.experts", "w1", "w3", "w2"),
        PRE_POST,
        _decoder(head=True),
    ),
    "qwen2_moe": Family(
        t.Qwen2MoeForCausalLM,
        t.Qwen2MoeConfig(**MOE, shared_expert_intermediate_size=40),
        "model.layers.0.",
        SEPARATE.format(attention="self_attn.", out="o_proj")
        + "mlp.gate router mlp -\n mlp.shared_expert_gate router mlp -"
        + GATED.replace("mlp.gate_proj", "mlp.shared_expert.gate_proj")
        .replace("mlp.up_proj", "mlp.shared_expert.up_proj")
        .replace("mlp.down_proj", "mlp.shared_expert.down_proj")
        + _experts("mlp.experts", "gate_proj", "up_proj", "down_proj"),
        PRE_POST,
        _decoder(head=True),
        biased=QKV_OUT[:3],
    ),
    "qwen3_moe": Family(
        t.Qwen3MoeForCausalLM,
        t.Qwen3MoeConfig(**MOE, head_dim=16),
        "model.layers.0.",
        SEPARATE.format(attention="self_attn.", out="o_proj")
        + "mlp.gate router mlp -"
        + _experts("mlp.experts", "gate_proj", "up_proj", "down_proj"),
        f"{PRE_POST} {QK_NORMS}",
        _decoder(head=True),
    ),
}


@dataclass(frozen=True)
class Opened:
    """A family's random model, saved and opened again."""

    family: Family
    directory: Path
    config: Any
    shapes: dict[str, tuple[int, ...]]
    map: Architecture

    def model(self) -> t.PreTrainedModel:
        cls = self.family.cls
        eager = {"experts_implementation": "eager"} if cls._can_set_experts_implementation() else {}
        return cls.from_pretrained(self.directory, attn_implementation="eager", dtype=torch.float32, **eager).eval()


def save(cls: Any, config: Any, directory: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Returns the configuration and the shapes of a random model, as read back from its files."""
    t.logging.disable_progress_bar()
    torch.manual_seed(0)
    model = cls(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms are all alike at first
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    with safe_open(directory / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    return t.AutoConfig.from_pretrained(directory), shapes


@pytest.fixture(scope="module", params=list(FAMILIES))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    family = FAMILIES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    config, shapes = save(family.cls, family.config, directory)
    return Opened(family, directory, config, shapes, architecture(config, shapes))


def expected_block(prefix: str, table: str, *, index: int) -> dict[str, tuple[str, str | None, str | None]]:
    """Returns role, input and group of every weight in a hand-written table."""
    rows = [line.split() for line in table.splitlines() if line.strip()]

    def full(name: str) -> str | None:
        return None if name == "-" else name if name == "encoder_output" else f"blocks.{index}.{name}"

    return {f"{prefix}{name}.weight": (role, full(sees), full(group)) for name, role, sees, group in rows}


def test_every_tensor_of_the_file_is_in_the_map_in_its_order(opened: Opened) -> None:
    assert list(opened.map.weights) == list(opened.shapes)
    assert opened.map.ignored == ()
    assert opened.map.class_name == opened.family.cls.__name__
    assert opened.map.n_blocks == opened.family.n_blocks == len(opened.map.blocks)


def test_roles_inputs_and_groups_of_the_first_block(opened: Opened) -> None:
    family = opened.family
    weights = {n: (w.role, w.sees, w.fused) for n, w in opened.map.blocks[0].weights.items()}
    leaves = ("weight", "bias") if family.shifted else ("weight",)
    plain = {f"{family.block}{norm}.{leaf}": "norm" for norm in family.norms.split() for leaf in leaves}
    plain |= {f"{family.block}{name}.bias": "bias" for name in family.biased}
    expected = expected_block(family.block, family.table, index=0)
    assert weights == expected | {name: (role, None, None) for name, role in plain.items()}
    assert {w.stack for w in opened.map.blocks[0].weights.values()} == {family.stack}


def test_roles_outside_the_blocks(opened: Opened) -> None:
    assert {n: w.role for n, w in opened.map.weights.items() if w.block is None} == opened.family.outside


def test_linear_maps_and_their_orientation(opened: Opened) -> None:
    not_linear = {"norm", "bias", "embedding", "position", "token_type"}
    for name, weight in opened.map.weights.items():
        assert weight.linear == (weight.role not in not_linear) == (weight.sees is not None), name
        assert weight.transposed == (weight.linear and "gpt2" in opened.config.model_type), name
        assert weight.shape == (opened.shapes[name][::-1] if weight.transposed else opened.shapes[name]), name


def test_what_the_file_leaves_out_is_tied(opened: Opened) -> None:
    family = opened.family
    assert opened.map.tied == dict(family.tied)
    assert not set(opened.map.tied) & set(opened.shapes)
    assert all(weight.tied_to is None for weight in opened.map.weights.values())
    heads = [source for target, source in family.tied if "bias" not in target] or [
        name for name, role in family.outside.items() if role == "head"
    ]
    assert (opened.map.head.name if opened.map.head else None) == next(iter(heads), None)


def test_equal_names_of_inputs_mean_equal_inputs_and_others_differ(opened: Opened) -> None:
    inputs = _real_inputs(opened)
    seen: dict[str, bytes] = {}
    for name, weight in opened.map.linears.items():
        value = inputs[name].contiguous().numpy().tobytes()
        assert seen.setdefault(str(weight.sees), value) == value, name
    assert len(set(seen.values())) == len(seen)


def _real_inputs(opened: Opened) -> dict[str, torch.Tensor]:
    """Returns what every linear map of the file receives in a forward pass with real numbers."""
    model = opened.model()
    inputs: dict[str, torch.Tensor] = {}
    by_address: dict[int, list[str]] = {}
    for name, weight in opened.map.linears.items():
        if weight.expert is None:
            module = model.get_submodule(weight.module)
            module.register_forward_pre_hook(lambda _m, args, name=name: inputs.__setitem__(name, args[0]))
        else:
            stacked = "down_proj" if weight.role == "mlp_down" else "gate_up_proj"
            address = model.get_parameter(f"{weight.module}.{stacked}")[weight.expert].data_ptr()
            by_address.setdefault(address, []).append(name)

    class Experts(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.nn.functional.linear:
                inputs.update(dict.fromkeys(by_address.get(args[1].data_ptr(), ()), args[0]))
            return func(*args, **(kwargs or {}))

    ids = torch.randint(3, 96, (2, 16), generator=torch.Generator().manual_seed(1))
    extra = {"decoder_input_ids": ids.flip(1)} if model.config.is_encoder_decoder else {}
    with torch.no_grad(), Experts():
        model(input_ids=ids, **extra, use_cache=False)
    return inputs


def test_fused_tensors_say_which_rows_are_q_k_and_v(opened: Opened) -> None:
    fused = [w for w in opened.map.weights.values() if w.role == "qkv"]
    known = {"bloom": True, "gpt_neox": True, "gpt2": False, "phi3": False}  # interleaved by head?
    if opened.config.model_type not in known:
        assert not fused
        return
    for weight in fused:
        n_k = 16 if opened.config.model_type == "phi3" else 32
        if known[opened.config.model_type]:
            spans = [(role, range(s, s + 8)) for s, role in zip(range(0, 96, 8), "qkv" * 4, strict=True)]
        else:
            spans = [("q", range(32)), ("k", range(32, 32 + n_k)), ("v", range(32 + n_k, 32 + 2 * n_k))]
        assert [(part.role, range(part.start, part.stop)) for part in weight.layout] == spans
    _check_layout_by_zeroing(opened, opened.map.blocks[0].weights)


def _check_layout_by_zeroing(opened: Opened, weights: Any) -> None:
    """Without v nothing comes out; without q or without k every token gets the same attention: the same comes out."""
    (fused,) = (w for w in weights.values() if w.role == "qkv")
    (out,) = (w for w in weights.values() if w.role == "attention_out")
    contexts = {role: _context_without(opened, fused, out=out, role=role) for role in ("q", "k", "v", "")}
    assert contexts["v"].abs().max() == 0
    torch.testing.assert_close(contexts["q"], contexts["k"])
    assert (contexts["q"] - contexts[""]).abs().max() > 1e-3


def _context_without(opened: Opened, fused: Weight, *, out: Weight, role: Any) -> torch.Tensor:
    model, caught = opened.model(), []
    module = model.get_submodule(fused.module)
    matrix = module.weight.data.T if fused.transposed else module.weight.data
    for rows in fused.rows(role):
        matrix[rows.start : rows.stop] = 0
        if module.bias is not None:
            module.bias.data[rows.start : rows.stop] = 0
    model.get_submodule(out.module).register_forward_pre_hook(lambda _m, args: caught.append(args[0]))
    with torch.no_grad():
        model(input_ids=torch.arange(3, 11)[None], use_cache=False)
    return caught[0]


def test_gate_and_up_of_phi3_are_stacked(tmp_path: Path) -> None:
    family = FAMILIES["phi3"]
    weights = architecture(*save(family.cls, family.config, tmp_path)).weights
    fused = weights["model.layers.1.mlp.gate_up_proj.weight"]
    assert (fused.rows("mlp_gate"), fused.rows("mlp_up")) == ((range(48),), (range(48, 96),))


def test_decoder_of_mt5_sees_the_encoder(tmp_path: Path) -> None:
    family = FAMILIES["mt5"]
    block = architecture(*save(family.cls, family.config, tmp_path)).blocks[2]
    expected = expected_block("decoder.block.0.", T5_ATTENTION + T5_CROSS + T5_MLP.format(n=2), index=2)
    assert (block.stack, block.module) == ("decoder", "decoder.block.0")
    assert {n: (w.role, w.sees, w.fused) for n, w in block.weights.items() if w.role != "norm"} == expected
    assert sum(w.role == "norm" for w in block.weights.values()) == 3


def test_images_of_gemma3_are_left_aside(tmp_path: Path) -> None:
    config = t.Gemma3Config(
        text_config={**GROUPED, "head_dim": 16},
        vision_config={**VISION, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_index=90,
    )
    found = architecture(*save(t.Gemma3ForConditionalGeneration, config, tmp_path))
    table = {n: (w.role, w.sees, w.fused) for n, w in found.blocks[0].linears.items()}
    assert found.n_blocks == 2
    assert table == expected_block("language_model.model.layers.0.", LLAMA, index=0)
    aside = {n for n, w in found.weights.items() if w.role == "other"}
    assert aside == {n for n in found.weights if n.startswith(("vision_tower.", "multi_modal_projector."))}
    assert {found.weights[n].stack for n in aside} == {"other"}
    assert found.tied == {"lm_head.weight": "language_model.model.embed_tokens.weight"}
