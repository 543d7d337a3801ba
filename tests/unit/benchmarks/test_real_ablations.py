import pytest
import torch

import real_ablations
from fairbits.models.scales.groups import round_to_nearest, scheme_grid
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization import execute as execution
from fairbits.quantization.learned import learn as distillation
from fairbits.quantization.learned import output_importance as output_gradients
from fairbits.quantization.learned.learn_block import BlockBatch
from fairbits.quantization.learned.learnable_codes import LearnableCodes
from real_items import Item


def patched():
    inside = BlockBatch.squared_error, BlockBatch.energy, execution.output_importance, distillation.CodeOptimizer
    return *inside, BlockBatch.__dict__["_sizes"], output_gradients.squared_sizes


@pytest.mark.parametrize(
    ("name", "changed"), [("", []), ("squared", [0, 1]), ("relative", [2]), ("adam", [3]), ("weighted", [4, 5])]
)
def test_an_ingredient_is_left_out_and_comes_back(name, changed):
    before = patched()
    with real_ablations.left_out(name):
        replaced = [i for i, (one, other) in enumerate(zip(before, patched(), strict=True)) if one is not other]
    assert replaced == changed
    assert patched() == before


def test_an_unknown_ingredient_is_refused():
    with pytest.raises(ValueError, match=r"salt cannot be left out; choose from squared, relative, weighted, adam"):
        real_ablations.left_out("salt").__enter__()


def test_an_item_reads_the_text_of_its_policy():
    item = Item("model", "4:128", "fair:model_steps=0@all#squared", 0)
    assert (item.variant.policy, item.variant.options) == ("fair", {"model_steps": 0})
    assert item.has_seeds
    assert item.tokens(5) > 10**6
    assert item.recipe is None


def test_adam_in_float32_moves_offsets_by_the_rate():
    W, scheme = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), Scheme(4, 4, grid="twos")
    start = round_to_nearest(W, torch.full((6, 2), 0.25), grid=scheme_grid(scheme))
    codes = LearnableCodes(W, start, scheme=scheme, transposed=False)
    optimizer = real_ablations.FloatAdam({"a": codes}, rate=0.01)
    before = codes.offsets.detach().clone()
    optimizer.begin_step(0.5)
    codes(torch.empty(0)).square().sum().backward()
    assert optimizer.end_step()
    moved = (codes.offsets - before).abs()
    assert moved.max().item() == pytest.approx(0.005, rel=0.01)
    assert codes.offsets.grad is None
