"""llama.cpp's names of tensors, written out by hand."""

import pytest

from fairbits.core.errors import InputError
from fairbits.models.io.gguf_file import ARCHITECTURES, gguf_names

LLAMA = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
BLOOM = {
    "self_attention.query_key_value": "attn_qkv",
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}
PHI3 = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def expected(family: str) -> dict[str, str]:
    """Returns the names of the second block's linear layers."""
    table = {"bloom": BLOOM, "phi3": PHI3}.get(family, LLAMA)
    before = "transformer.h.1" if family == "bloom" else "model.layers.1"
    return {f"{before}.{ours}.weight": f"blk.1.{theirs}.weight" for ours, theirs in table.items()}


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_names(family: str) -> None:
    wanted = expected(family)
    assert gguf_names(family, wanted, blocks=2) == wanted


def test_a_model_that_also_sees_and_a_tensor_that_is_unknown() -> None:
    names = ["model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.sideways.weight"]
    assert gguf_names("gemma3", names, blocks=1) == {names[0]: "blk.0.ffn_up.weight"}


def test_an_unknown_family() -> None:
    with pytest.raises(InputError, match=r"family 'gpt2'.*known for bloom, .*llama-imatrix"):
        gguf_names("gpt2", [], blocks=1)
