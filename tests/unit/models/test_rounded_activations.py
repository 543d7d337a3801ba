"""Rounded inputs of experts, whose weights are in one tensor: each is rounded before each of its projections."""

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from torch import nn
from transformers import GptOssConfig, MixtralConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from fairbits.core.errors import InputError
from fairbits.models.rounded_activations import Rounding, round_experts

SIZE = {"hidden_size": 16, "intermediate_size": 24, "num_local_experts": 4}
FP8 = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)


def make(kind: str) -> nn.Module:
    """Returns experts with random weights."""
    torch.manual_seed(0)
    config = MixtralConfig(**SIZE) if kind == "mixtral" else GptOssConfig(**SIZE)
    config._experts_implementation = "eager"
    experts = (MixtralExperts if kind == "mixtral" else GptOssExperts)(config)
    for parameter in experts.parameters():
        parameter.data.normal_(std=0.3)
    return experts.eval()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_without_rounding_they_compute_as_before(kind: str) -> None:
    experts = make(kind)
    x, chosen = torch.randn(7, 16), torch.tensor([[0, 1], [1, 3], [3, 0], [0, 1], [2, 0], [1, 0], [3, 2]])
    shares = torch.rand(7, 2)
    before = experts(x, chosen, shares)
    round_experts(experts, {})
    torch.testing.assert_close(experts(x, chosen, shares), before)


@torch.no_grad()
def test_every_projection_rounds_its_input() -> None:
    experts, rounding = make("mixtral"), Rounding(FP8)
    x, shares = torch.randn(3, 16), torch.tensor([[1.0], [0.5], [2.0]])
    chosen = torch.tensor([[0], [2], [2]])
    wanted = []
    for token, expert, share in zip(x, chosen[:, 0], shares[:, 0], strict=True):
        up = (
            rounding.rounded(token[None], "input") if expert == 2 else token[None]
        )  # only the third expert's is rounded
        gate, value = nn.functional.linear(up, experts.gate_up_proj[expert]).chunk(2, dim=-1)
        inner = rounding.rounded(experts.act_fn(gate) * value, "input")
        wanted.append(share * nn.functional.linear(inner, experts.down_proj[expert]))
    plain = experts(x, chosen, shares)
    round_experts(experts, {("up", 2): rounding, ("down", None): rounding})
    torch.testing.assert_close(experts(x, chosen, shares), torch.cat(wanted))
    assert not torch.allclose(plain, torch.cat(wanted), atol=1e-3)


def test_experts_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match="not known for ModuleList"):
        round_experts(nn.ModuleList(), {})
