"""Codes, scales and errors of a rounded model, and what is refused."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as t
from safetensors.torch import save_file

from fairbits.core.errors import InputError
from fairbits.forward.batches import batches
from fairbits.forward.experts import ExpertCall
from fairbits.forward.statistics import collect_statistics
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import choose_scales, round_to_nearest
from fairbits.quantization.gptq.block_rounding import UNREACHED, UNSEEN
from fairbits.quantization.gptq.columns import gptq
from fairbits.quantization.gptq.engine import round_model
from fairbits.text.corpus import TextRequest

LANGUAGES = ("eng_Latn", "heb_Hebr")
TINY = ("eng_Latn", "fra_Latn", "heb_Hebr", "zho_Hans")


def mean_error(blocks):
    return np.mean([list(result.error.values()) for block in blocks for result in block.results])


def test_without_text_weights_are_rounded_one_by_one(llama, plan_of):
    plan = plan_of(llama, clip="absmax", group=16, outside=True)
    ticks = []
    blocks = list(round_model(llama, plan, progress=lambda _, done, total: ticks.append((done, total))))
    assert [block.index for block in blocks] == [0, 1, None]
    assert len(ticks) == 1 + 16
    assert ticks == sorted(ticks)
    assert (ticks[0], ticks[-1]) == ((0, 0), (2, 2))  # blocks
    assert [len(block.layers) for block in blocks] == [7, 7, 2]
    for block in blocks:
        for name, codes in block.layers.items():
            W = llama.read(name)
            expected = round_to_nearest(
                W, choose_scales(W, plan.schemes[name], dtype=torch.float32)[0], grid=Grid(3, "twos")
            )
            assert torch.equal(codes.codes, expected.codes)
        for result in block.results:
            W, codes = llama.read(result.name), block.layers[result.name]
            assert result.error == {}
            assert result.weight_error == pytest.approx(
                float((codes.dequantized - W).square().sum() / W.square().sum())
            )
            assert result.alpha[0] == pytest.approx(float(codes.scales.min()) * 4)
            assert result.alpha[0] <= result.alpha[1] <= result.alpha[2]


def test_text_does_not_change_what_needs_none_and_tells_the_errors(llama, plan_of, weather, same):
    plan = plan_of(llama, clip="absmax")
    for plain, walked in zip(round_model(llama, plan), round_model(llama, plan, text=weather(llama)), strict=True):
        same(plain, replace(walked, results=tuple(replace(result, error={}) for result in walked.results)))
        assert all(set(result.error) == set(LANGUAGES) for result in walked.results)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mt5"])
def test_errors_are_those_of_the_quantized_model(reading_model, plan_of, weather, family):
    """Of the quantized model as a whole: what its maps see there, with the definition of the error."""
    checkpoint = reading_model(family)
    text, plan = weather(checkpoint), plan_of(checkpoint, clip="absmax")
    blocks = list(round_model(checkpoint, plan, text=text))
    model, weights = checkpoint.load(), checkpoint.architecture.weights
    originals = {}
    for name, codes in ((n, c) for block in blocks for n, c in block.layers.items()):
        parameter = model.get_submodule(weights[name].module).weight
        originals[name] = parameter.detach().clone()
        parameter.data = codes.dequantized.T if weights[name].transposed else codes.dequantized
    sums = {name: torch.zeros(2, 2, dtype=torch.float64) for name in originals}
    languages = torch.from_numpy(text.language_of)
    for batch in batches(text, positions=10_000):
        for name, weight in ((n, weights[n]) for n in originals):
            stack = "encoder" if weight.sees == "encoder_output" else weight.stack
            counts = batch.positions(stack).text

            def hook(module, args, _output, name=name, weight=weight, counts=counts, batch=batch):
                old, new = (W.T if weight.transposed else W for W in (originals[name], module.weight))
                for row, change in zip(sums[name], (new - old, old), strict=True):
                    squares = (args[0] @ change.T).square().sum(-1) * counts
                    row.index_add_(0, languages[batch.document], squares.sum(1).double().detach())

            model.get_submodule(weight.module).register_forward_hook(hook)
        with torch.no_grad():
            model(**batch.inputs)
    for result in (result for block in blocks for result in block.results):
        damage, energy = sums[result.name]
        assert list(result.error.values()) == pytest.approx((damage / energy).tolist(), rel=1e-4)


@pytest.mark.parametrize("objective", ["mean", "worst", "regret"])
def test_the_first_block_is_weighed_by_what_the_probe_measures(llama, plan_of, weather, corpus, objective):
    """It sees the model as it is."""
    measured = collect_statistics(llama, corpus, request=TextRequest(tokens=64))
    plan = plan_of(llama, languages=LANGUAGES, objective=objective, group=16)
    first = next(round_model(llama, plan, text=weather(llama)))
    for layer in plan.layers[:7]:
        h = measured.channels[measured.seen_by[layer.name]]
        expected, _ = choose_scales(llama.read(layer.name), layer.scheme, importance=h, dtype=torch.float32)
        torch.testing.assert_close(first.layers[layer.name].scales, expected, rtol=1e-4, atol=0)


def test_gptq_has_the_hessian_of_the_mixture(llama, plan_of, weather, corpus):
    measured = collect_statistics(llama, corpus, request=TextRequest(tokens=64), second_moments=True)
    plan = replace(plan_of(llama, rounding="gptq"), languages={"heb_Hebr": 0.8, "eng_Latn": 0.2})
    first = next(round_model(llama, plan, text=weather(llama)))
    for layer in plan.layers[:7]:
        W = llama.read(layer.name)
        H = torch.from_numpy(np.tensordot([0.2, 0.8], measured.inputs[measured.seen_by[layer.name]], axes=1))
        h = H.diagonal()[None].numpy()
        scales, _ = choose_scales(W, layer.scheme, importance=h, dtype=torch.float32)
        codes = first.layers[layer.name]
        torch.testing.assert_close(codes.scales, scales, rtol=1e-4, atol=0)
        expected = gptq(W, H.float(), codes.scales, grid=Grid(3, "twos"))
        assert (codes.codes == expected.codes.codes).float().mean() > 0.99


def test_gptq_halves_the_error_of_nearest_and_importance_lowers_it(tiny, plan_of, of_block):
    checkpoint, text = tiny
    errors = {
        how: mean_error(
            round_model(checkpoint, of_block(plan_of(checkpoint, languages=TINY, **dict(how)), 0, 1), text=text)
        )
        for how in ((), (("objective", "mean"),), (("rounding", "gptq"),))
    }
    plain, weighted, ours = errors.values()
    assert weighted < 0.98 * plain
    assert ours < 0.7 * weighted


def test_thresholds_are_the_steps_of_each_language_alone(llama, plan_of, weather, corpus):
    measured = collect_statistics(llama, corpus, request=TextRequest(tokens=64))
    plan = plan_of(llama, clip="absmax", languages=LANGUAGES[::-1], thresholds=True, roles=("mlp_down",))
    first = next(round_model(llama, plan, text=weather(llama)))
    (name,) = first.layers
    h = measured.channels[measured.seen_by[name]]
    exact = replace(plan.layers[0].scheme, clip="exact", objective="mean")
    for i, code in enumerate(plan.languages):
        importance = h[measured.languages.index(code)][None]
        expected, _ = choose_scales(llama.read(name), exact, importance=importance, dtype=torch.float32)
        torch.testing.assert_close(first.thresholds[name][i], expected, rtol=1e-4, atol=0)


def expert_inputs(checkpoint, text):
    """Returns what reaches the experts of the first block, the chosen ones, the language of each; and the experts."""
    inputs = []

    def note(_module, args):
        inputs.append([tensor.detach().clone() for tensor in args[:2]])

    model, languages = checkpoint.load(), []
    experts = model.model.layers[0].mlp.experts
    handle = experts.register_forward_pre_hook(note)
    with torch.no_grad():
        for batch in batches(text, positions=256):
            model(**batch.inputs)
            at = batch.positions("decoder").text.nonzero()
            keep = batch.positions("decoder").text.flatten().bool()
            inputs[-1] = [tensor[keep] for tensor in inputs[-1]]
            languages.append(torch.from_numpy(text.language_of)[batch.document[at[:, 0]]])
    handle.remove()
    return torch.cat([x for x, _ in inputs]), torch.cat([chosen for _, chosen in inputs]), torch.cat(languages), experts


def test_experts_have_the_hessian_of_the_text_that_reaches_them(reading_model, plan_of, weather):
    mixtral = reading_model("mixtral")
    plan = plan_of(mixtral, rounding="gptq", languages=LANGUAGES)
    text = weather(mixtral)
    first = next(round_model(mixtral, plan, text=text))
    x, chosen, language, experts = expert_inputs(mixtral, text)
    shares = torch.tensor([0.5 / int((language == index).sum()) for index in range(2)])[language].sqrt()
    weights = mixtral.architecture.weights
    names = [name for name in first.layers if weights[name].expert is not None]
    assert len(names) == 9
    for name in names:
        at = (chosen == weights[name].expert).any(1)
        seen = x[at]
        if weights[name].role == "mlp_down":
            gate, up = (seen @ experts.gate_up_proj[weights[name].expert].T).chunk(2, -1)
            seen = experts.act_fn(gate) * up
        seen = seen.detach() * shares[at, None]
        codes = first.layers[name]
        expected = gptq(mixtral.read(name), seen.T @ seen, codes.scales, grid=Grid(3, "twos"))
        assert (codes.codes == expected.codes.codes).float().mean() > 0.99


def test_experts_of_llama_4_have_the_hessian_of_their_scaled_inputs(reading_model, plan_of, weather):
    """Its router scales what goes into an expert, and sends zeros to the experts that it does not choose."""
    llama4, inputs, languages = reading_model("llama4"), [], []
    text, model = weather(llama4), llama4.load()
    moe = model.model.layers[0].feed_forward
    moe.register_forward_pre_hook(lambda _module, args: inputs.append(args[0].detach()))
    for batch in batches(text, positions=256):
        keep = batch.positions("decoder").text
        model(**batch.inputs)
        inputs[-1] = inputs[-1][keep.bool()]
        languages.append(torch.from_numpy(text.language_of)[batch.document[keep.nonzero()[:, 0]]])
    x, language = torch.cat(inputs), torch.cat(languages)
    shares = torch.tensor([0.5 / int((language == index).sum()) for index in range(2)])[language].sqrt()
    routed = x @ moe.router.weight.detach().T
    first = next(round_model(llama4, plan_of(llama4, rounding="gptq", languages=LANGUAGES), text=text))
    weights = llama4.architecture.weights
    names = [name for name in first.layers if weights[name].expert is not None]
    assert len(names) == 9
    for name in names:
        expert = weights[name].expert
        at = (routed.topk(2).indices == expert).any(1)
        assert 0 < int(at.sum()) < len(x)
        seen = x[at] * routed[at, expert, None].sigmoid()
        if weights[name].role == "mlp_down":
            gate, up = (seen @ moe.experts.gate_up_proj[expert].detach()).chunk(2, -1)
            seen = torch.nn.functional.silu(gate) * up
        seen = seen * shares[at, None]
        codes = first.layers[name]
        expected = gptq(llama4.read(name), seen.T @ seen, codes.scales, grid=Grid(3, "twos"))
        assert (codes.codes == expected.codes.codes).float().mean() > 0.99


def test_an_expert_that_no_text_reaches_is_rounded_to_nearest(reading_model, plan_of, weather, monkeypatch):
    mixtral = reading_model("mixtral")
    reaches = ExpertCall.reaches
    monkeypatch.setattr(ExpertCall, "reaches", lambda self, expert: reaches(self, expert) & (expert != 1))
    first = next(round_model(mixtral, plan_of(mixtral, rounding="gptq", languages=LANGUAGES), text=weather(mixtral)))
    weights = mixtral.architecture.weights
    for result in first.results:
        assert (UNREACHED in result.notes) == (weights[result.name].expert == 1)
        assert UNSEEN not in result.notes


@pytest.mark.parametrize("family", ["qwen2", "gemma3", "gpt2", "mt5", "xlmr"])
def test_every_family_is_rounded_by_gptq(reading_model, plan_of, weather, family):
    checkpoint = reading_model(family)
    plan = plan_of(checkpoint, rounding="gptq", bits=4, languages=LANGUAGES)
    text = weather(checkpoint)
    blocks, nearest_blocks = (
        list(round_model(checkpoint, variant, text=text))
        for variant in (
            plan,
            replace(
                plan,
                layers=tuple(replace(layer, scheme=replace(layer.scheme, rounding="nearest")) for layer in plan.layers),
            ),
        )
    )
    assert sum(len(block.layers) for block in blocks) == len(plan.layers)
    for block in blocks[:-1]:
        for name, codes in block.layers.items():
            assert codes.codes.shape == checkpoint.architecture.weights[name].shape
    assert mean_error(blocks) < mean_error(nearest_blocks)


def test_steps_have_the_type_that_loaders_use(saved, plan_of, weather):
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48}
    config = t.LlamaConfig(**size, vocab_size=1024, bos_token_id=1, eos_token_id=2, pad_token_id=3)
    checkpoint = saved(t.LlamaForCausalLM(config).bfloat16())
    plan = plan_of(checkpoint, rounding="gptq", languages=LANGUAGES)
    first = next(round_model(checkpoint, plan, text=weather(checkpoint)))
    assert all(codes.scales.dtype == torch.bfloat16 for codes in first.layers.values())
    assert all(codes.dequantized.dtype == torch.bfloat16 for codes in first.layers.values())


def test_refusals(llama, plan_of, weather):
    text = weather(llama)
    with pytest.raises(InputError, match="reads text; give its"):
        round_model(llama, plan_of(llama, rounding="gptq", languages=LANGUAGES))
    with pytest.raises(InputError, match="gives weight to deu_Latn, which the text does not have"):
        round_model(llama, plan_of(llama, rounding="gptq", languages=("eng_Latn", "deu_Latn")), text=text)
    with pytest.raises(InputError, match="no language a weight above 0"):
        round_model(llama, plan_of(llama, rounding="gptq"), text=text)
    with pytest.raises(InputError, match="refining codes needs text"):
        round_model(llama, plan_of(llama), refine=lambda context: context.start)
    foreign = replace(plan_of(llama).layers[0], name="elsewhere.weight")
    with pytest.raises(InputError, match=r"names elsewhere\.weight"):
        round_model(llama, replace(plan_of(llama), layers=(foreign,)))


def test_a_layer_that_cannot_be_rounded_is_named(llama, plan_of, weather, monkeypatch):
    monkeypatch.setattr("fairbits.models.scales.groups.MINIMAX_TABLE_NUMBERS", 500)
    plan = plan_of(llama, group="tensor", objective="worst", languages=LANGUAGES)
    with pytest.raises(InputError, match=r"^model\.layers\.0\.\S+\.weight: [\d,]+ weights share one scale"):
        next(round_model(llama, plan, text=weather(llama)))


def test_broken_weights_are_named(llama, plan_of, weather, saved):
    model = llama.load()
    model.model.layers[1].mlp.up_proj.weight.data[0, 0] = torch.nan
    broken = saved(model)
    for text in (None, weather(llama)):
        blocks = round_model(broken, plan_of(broken, clip="absmax"), text=text)
        next(blocks)
        with pytest.raises(InputError, match=r"layers\.1\.mlp\.up_proj\.weight contains NaN"):
            next(blocks)


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
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
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
        assert all(torch.equal(tensor, other.thresholds[name]) for name, tensor in one.thresholds.items())
    assert ticks == sorted(ticks)
    assert ticks[-1][0] == ticks[-1][1]
    everything = list(round_model(checkpoint, plan, text=text, finished=lambda i: whole[-1 if i is None else i]))
    assert all(one is other for one, other in zip(whole, everything, strict=True))


def test_the_blocks_see_the_embedding_as_it_will_be(llama, plan_of, weather, of_block):
    plan = plan_of(llama, bits=2, objective=None, rounding="gptq", languages=LANGUAGES, outside=True)
    treated = list(round_model(llama, plan, text=weather(llama)))
    kept = list(round_model(llama, of_block(plan, 0, 1), text=weather(llama)))
    assert any(not torch.equal(c.codes, kept[0].layers[n].codes) for n, c in treated[0].layers.items())
    assert [result.notes[0][:24] for result in treated[-1].results] == ["its input cannot be obse"] * 2
    assert treated[-1].results[0].error == {}


def test_a_walk_that_is_left_ends_its_threads(llama, plan_of, weather):
    others = set(threading.enumerate())  # of tests before this one
    walk = round_model(llama, plan_of(llama, rounding="gptq", languages=LANGUAGES), text=weather(llama))
    next(walk)
    assert any(type(thread).__name__ == "BatchThread" for thread in set(threading.enumerate()) - others)
    walk.close()
    assert not any(type(thread).__name__ == "BatchThread" for thread in set(threading.enumerate()) - others)


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
    options = {"progress": lambda _, done, total: ticks.append((done, total))}
    blocks = list(round_model(checkpoint, plan, text=weather(checkpoint), refine=Watching(), **options))
    assert ticks[-1][0] == ticks[-1][1]
    model = checkpoint.load()
    for context in contexts[:2]:  # the decoder of mt5 also sees its quantized encoder
        assert context.start.keys() == blocks[context.index].layers.keys()
        outputs = []
        path = checkpoint.architecture.blocks[context.index].module
        handle = model.get_submodule(path).register_forward_hook(lambda _m, _a, y, outputs=outputs: outputs.append(y))
        for paused in context.batches:
            assert len({document in Watching.held_out for document in paused.batch.document.tolist()}) == 1
            with torch.no_grad():
                model(**paused.batch.inputs)
        handle.remove()
        for target, y in zip(context.targets, outputs, strict=True):
            torch.testing.assert_close(target, y[0] if isinstance(y, tuple) else y)
    assert len(contexts) == len(checkpoint.architecture.blocks)
