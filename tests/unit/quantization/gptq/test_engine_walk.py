"""The walk through the blocks of a model: what each one sees, resuming, leaving early, refining."""

import threading

import pytest
import torch
from safetensors.torch import save_file

from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.gptq.engine import round_model

LANGUAGES = ("eng_Latn", "heb_Hebr")
TINY = ("eng_Latn", "fra_Latn", "heb_Hebr", "zho_Hans")


def test_later_blocks_see_the_quantized_ones_before(llama, plan_of, weather, saved, of_block, same):
    """Rounding block 1 alone of a model whose block 0 is already rounded gives the same."""
    plan = plan_of(llama, rounding="gptq", languages=LANGUAGES)
    both = list(round_model(llama, plan, text=weather(llama)))
    model = llama.load()
    weights = llama.architecture.weights
    for name, codes in both[0].layers.items():
        model.get_submodule(weights[name].module).weight.data = codes.dequantized
    checkpoint = _exactly(saved, model)
    alone = list(round_model(checkpoint, of_block(plan, 1), text=weather(llama)))
    assert alone[0].layers == {}
    same(alone[1], both[1])
    other = list(round_model(llama, of_block(plan, 1), text=weather(llama)))
    assert any(not torch.equal(c.codes, both[1].layers[n].codes) for n, c in other[1].layers.items())


def _exactly(saved, model):
    """Returns the checkpoint of a model as it is: the fixture adds noise."""
    state = {name: each.clone() for name, each in model.state_dict().items()}
    checkpoint = saved(model)
    save_file(state, checkpoint.directory / "model.safetensors", metadata={"format": "pt"})
    return Checkpoint(checkpoint.directory)


def test_two_runs_give_the_same(llama, plan_of, weather, same):
    plan = plan_of(llama, rounding="gptq", languages=LANGUAGES)
    for one, other in zip(*(round_model(llama, plan, text=weather(llama)) for _ in range(2)), strict=True):
        same(one, other)


def test_what_is_finished_is_passed_through_to_the_same_bytes(tiny, plan_of, of_block, same):
    checkpoint, text = tiny
    plan = of_block(plan_of(checkpoint, rounding="gptq", languages=TINY, thresholds=True), 0, 1, 2)
    whole = list(round_model(checkpoint, plan, text=text))
    ticks = []
    resumed = list(
        round_model(
            checkpoint,
            plan,
            text=text,
            finished=lambda i: whole[i] if i in (0, 1) else None,
            progress=lambda _, done, total: ticks.append((done, total)),
        )
    )
    assert resumed[1] is whole[1]
    assert [block.index for block in resumed] == [*range(3), None]
    for one, other in zip(whole, resumed, strict=True):
        same(one, other)
        assert one.thresholds.keys() == one.layers.keys()
        assert all(torch.equal(each, other.thresholds[name]) for name, each in one.thresholds.items())
    assert ticks == sorted(ticks)
    assert ticks[-1][0] == ticks[-1][1]
    everything = list(round_model(checkpoint, plan, text=text, finished=lambda i: whole[-1 if i is None else i]))
    assert all(one is other for one, other in zip(whole, everything, strict=True))


def test_the_blocks_see_the_embedding_as_it_will_be(llama, plan_of, weather, of_block):
    plan = plan_of(llama, bits=2, objective=None, rounding="gptq", languages=LANGUAGES, outside=True)
    treated = list(round_model(llama, plan, text=weather(llama)))
    kept = list(round_model(llama, of_block(plan, 0, 1), text=weather(llama)))
    assert any(not torch.equal(c.codes, kept[0].layers[n].codes) for n, c in treated[0].layers.items())
    assert [each.notes[0][:24] for each in treated[-1].results] == ["its input cannot be obse"] * 2
    assert treated[-1].results[0].error == {}


def test_a_walk_that_is_left_ends_its_threads(llama, plan_of, weather):
    others = set(threading.enumerate())  # of tests before this one
    walk = round_model(llama, plan_of(llama, rounding="gptq", languages=LANGUAGES), text=weather(llama))
    next(walk)
    assert any(type(each).__name__ == "BatchThread" for each in set(threading.enumerate()) - others)
    walk.close()
    assert not any(type(each).__name__ == "BatchThread" for each in set(threading.enumerate()) - others)


@pytest.mark.parametrize("family", ["llama", "mt5"])
def test_who_refines_a_block_has_what_the_full_model_gives_there(reading_model, plan_of, weather, family):
    checkpoint = reading_model(family)
    contexts = []

    class Watching:
        held_out, ticks = (0, 3), 2

        def __call__(self, context):
            contexts.append(context)
            context.tick(2)
            # but for the first of a stack, what it sees has the codes of the block before in it, and its target not
            first = context.index in (0, 2)
            with torch.no_grad():
                assert torch.equal(context.batches[0].output(), context.targets[0]) == first
            return {name: codes for name, (codes, _) in context.start.items()}

    plan, ticks = plan_of(checkpoint, rounding="gptq", languages=LANGUAGES), []
    told = {"progress": lambda _, done, total: ticks.append((done, total))}
    blocks = list(round_model(checkpoint, plan, text=weather(checkpoint), refine=Watching(), **told))
    assert ticks[-1][0] == ticks[-1][1]
    model = checkpoint.load()
    for context in contexts[:2]:  # the decoder of mt5 also sees its quantized encoder
        assert context.start.keys() == blocks[context.index].layers.keys()
        found = []
        path = checkpoint.architecture.blocks[context.index].module
        handle = model.get_submodule(path).register_forward_hook(lambda _m, _a, y, found=found: found.append(y))
        for paused in context.batches:
            assert len({document in Watching.held_out for document in paused.batch.document.tolist()}) == 1
            with torch.no_grad():
                model(**paused.batch.inputs)
        handle.remove()
        for target, y in zip(context.targets, found, strict=True):
            torch.testing.assert_close(target, y[0] if isinstance(y, tuple) else y)
    assert len(contexts) == len(checkpoint.architecture.blocks)
