import io
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from fairbits.api.compare import compare
from fairbits.api.make_plan import plan
from fairbits.comparison.comparison import COMPARE, Comparison, PolicyEntry
from fairbits.comparison.plan_trial import PlanTrial
from fairbits.core.errors import InputError
from fairbits.core.table import render_tables
from fairbits.forward.statistics import document_losses
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.groups import dequantize_in_float32
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.gptq.engine import round_model
from fairbits.quantization.plan import LayerPlan, LayerResult, Plan
from fairbits.quantization.policies.variants import variant
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import holm
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import udhr

CODES = ("eng_Latn", "heb_Hebr")
SENTENCES = tuple(f"The wind of day {i} came from the north." for i in range(8))
APART = Corpus("weather", *[dict.fromkeys(CODES, SENTENCES)] * 2, parallel=False)
SMALL = {"tokens": 64, "evaluation_tokens": 256, "sequence": 64}


def entry(policy: str, damage: tuple[float, ...], *, bits: int = 4, size: int = 1000, seeds: int = 1) -> PolicyEntry:
    """Damages of 40 documents per language around the given means; every seed adds a tenth of the first damage."""
    rng = np.random.default_rng(0)
    lang, document = np.repeat(CODES, 40), np.tile(np.arange(40), 2)
    values = np.repeat(damage, 40) + rng.normal(0, 0.002, 80)
    frames = tuple(
        LanguageFrame(lang, document, values=values + 0.1 * damage[0] * i, weights=np.ones(80), resamples=1000)
        for i in range(seeds)
    )
    outcome = LayerResult("layer", bits, size, (0.1, 0.2, 0.3), 0.01, notes=("rounded to nearest",))
    notes, results = (f"{policy[:3]} is dangerous",), (outcome,) * (policy == "gptq")
    layers = (LayerPlan("layer", 0, "q", Scheme(bits)),)
    policy_plan = Plan(policy, {}, "./model", "0" * 64, "llama", layers, size, notes=notes, results=results)
    return PolicyEntry(policy, bits, (policy_plan,) * seeds, frames, (1.0,) * seeds)


def comparison(*entries: PolicyEntry, measure: str = "divergence") -> Comparison:
    settings = {"group": 128, "text": "udhr"}
    return Comparison("./model", "0" * 64, settings, measure, entries, entries[0].policy, ("a note",))


def shown(policy_comparison: Comparison) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_tables(policy_comparison.tables()))
    return console.export_text()


def test_it_shows_its_entries_and_gives_them_to_pandas() -> None:
    policy_comparison = comparison(entry("rtn", (0.1, 0.3)), entry("gptq", (0.09, 0.2), seeds=2))
    lines = repr(policy_comparison).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("rtn", "gptq"))] == ["rtn", "gptq"]
    assert "heb_Hebr" in next(line for line in lines if line.startswith("rtn"))
    assert "a note" in policy_comparison._repr_html_()
    table = policy_comparison.to_pandas()
    assert table[["policy", "language"]].to_numpy().tolist() == [
        [policy, code] for policy in ("rtn", "gptq") for code in CODES
    ]
    by_language = [
        policy_entry.frame.by_language()[code].value for policy_entry in policy_comparison.entries for code in CODES
    ]
    assert table["damage"].tolist() == by_language
    figure = policy_comparison.plot().to_dict()
    assert [trace["name"] for trace in figure["data"]] == ["rtn, 4 bits", "gptq, 4 bits"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["heb_Hebr", "eng_Latn"]


def test_seeds_are_averaged_document_by_document() -> None:
    gptq_entry = entry("gptq", (0.1, 0.3), seeds=3)
    assert gptq_entry.frame.values == pytest.approx(gptq_entry.frames[1].values)
    assert gptq_entry.statistics["mean"].value == pytest.approx(0.21, abs=0.001)
    low, high = gptq_entry.ranges["mean"]
    assert high - low == pytest.approx(0.02)
    assert gptq_entry.statistics["worst"].value == pytest.approx(gptq_entry.frames[1].worst()[1].value)


def test_contrasts_are_paired_and_hold_policies_to_the_baseline_of_their_width() -> None:
    policy_comparison = comparison(
        entry("rtn", (0.1, 0.3)),
        entry("gptq", (0.09, 0.31)),
        entry("rtn", (0.2, 0.5), bits=3),
        entry("gptq", (0.2, 0.4), bits=3),
    )
    four, three = policy_comparison.contrasts
    assert (four.better, four.worse) == (("eng_Latn",), ("heb_Hebr",))
    assert four.mean.value == pytest.approx(0, abs=1e-9)
    assert (three.bits, three.better, three.worse) == (3, ("heb_Hebr",), ())
    assert three.mean.value == pytest.approx(-0.05)
    assert three.worst.value == pytest.approx(-0.1, abs=1e-3)
    # the noise of documents is the same with both policies: pairing takes it out
    assert three.mean.high - three.mean.low < 1e-6
    assert max(four.contrast.p_holm.values()) < 0.05


def test_p_of_the_mean_is_corrected_over_all_contrasts_of_the_table() -> None:
    rng = np.random.default_rng(8)
    base = entry("rtn", (0.1, 0.3))
    entries = [base]
    for shift in (0.0, 0.0011, 0.1):
        frame = base.frames[0]
        values = frame.values + rng.normal(shift, 0.003, frame.values.size)
        entries.append(replace(base, policy=f"shift{shift}", frames=(replace(frame, values=values),)))
    contrasts = comparison(*entries).contrasts
    raw = [contrast.p for contrast in contrasts]
    assert raw == [e.frame.minus(base.frame).mean_p() for e in entries[1:]]
    assert raw[0] > 0.05 > raw[1] > raw[2]
    assert [contrast.p_holm for contrast in contrasts] == pytest.approx(holm(raw).tolist())
    assert contrasts[1].p_holm > raw[1]
    assert contrasts[1].as_data()["mean"]["p_holm"] == contrasts[1].p_holm
    rows = [line.split() for line in shown(comparison(*entries)).splitlines() if line.strip().startswith("shift")]
    assert all(any(f"{contrast.p_holm:.3f}" in row for row in rows) for contrast in contrasts)
    assert "over all contrasts of this table" in " ".join(shown(comparison(*entries)).split())


def test_a_table_shows_sizes_seeds_and_who_is_worse() -> None:
    policy_comparison = comparison(
        entry("rtn", (0.1, 0.3), seeds=2),
        entry("gptq:mix=english", (0.09, 0.31), size=1100, seeds=2),
        entry("gptq", (0.09, 0.2), seeds=2),
    )
    text = shown(policy_comparison)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert any(line.startswith("gptq:mix=english ") for line in text.splitlines())  # names are not broken
    words = " ".join(text.split())
    assert "≠ gptq:mix=english takes 10.00% more bytes than rtn at 4 bits" in words
    assert "gptq:mix=english at 4 bits is significantly worse for heb_Hebr" in words
    assert "Below them: the least and the largest over the seeds" in words
    assert "gptq:mix=english, gptq: gpt is dangerous" in words  # said once
    assert "gptq at 4 bits: 1 fall-back, such as layer: rounded to nearest" in words
    assert "a note" in words


def test_the_table_names_the_measure() -> None:
    entries = entry("rtn", (0.1, 0.3)), entry("gptq", (0.09, 0.2))
    divergence, loss = (shown(comparison(*entries, measure=measure)) for measure in ("divergence", "loss"))
    assert "group 128, divergence" in divergence
    assert "Divergence, difference from rtn" in divergence
    assert "group 128, added loss" in loss
    assert "Added loss, difference from rtn" in loss


def test_saved_as_json(tmp_path) -> None:
    policy_comparison = comparison(entry("rtn", (0.1, 0.3)), entry("gptq", (0.05, 0.2)))
    policy_comparison.save(tmp_path / "compare.json")
    data = json.loads((tmp_path / "compare.json").read_text())
    assert (data["schema"], data["baseline"], data["measure"]) == ("fairbits.compare/2", "rtn", "divergence")
    assert data["entries"][1]["worst_language"] == "heb_Hebr"
    assert data["entries"][1]["damage"]["heb_Hebr"]["value"] == pytest.approx(0.2, abs=0.002)
    assert data["contrasts"][0]["better"] == list(CODES)


def test_groups_of_languages_are_shown_and_saved(tmp_path) -> None:
    plain = comparison(entry("rtn", (0.1, 0.3)), entry("gptq", (0.05, 0.2)))
    assert "Groups of languages" not in shown(plain)
    grouped = replace(plain, settings={**plain.settings, "groups": {"high": ["eng_Latn"], "low": ["heb_Hebr"]}})
    lines = shown(grouped).split("Groups of languages")[1].split("Mean of")[0].splitlines()
    by_policy = {line.split()[0]: line.split()[2:5] for line in lines if line.split()[:1] in (["rtn"], ["gptq"])}
    assert [float(number) for number in by_policy["gptq"]] == pytest.approx([0.05, 0.2, 4], rel=0.02)
    grouped.save(tmp_path / "compare.json")
    plain.save(tmp_path / "plain.json")
    saved, without = (COMPARE.read(tmp_path / name).entries[1].groups for name in ("compare.json", "plain.json"))
    assert without is None
    assert saved.ratios["low"].value == saved.means["low"].value / saved.means["high"].value


def test_variants() -> None:
    aciq = variant("aciq:distribution=laplace:group=64")
    assert (aciq.policy, aciq.at(3)) == ("aciq", {"bits": 3, "distribution": "laplace", "group": 64})
    assert variant("allocate:objective=mean").at(4) == {"avg_bits": 4, "objective": "mean"}
    assert variant("allocate:widths=4+8").at(5) == {"avg_bits": 5, "widths": [4, 8]}
    assert variant("gptq:mix=eng=2+heb=1").options == {"mix": {"eng": 2.0, "heb": 1.0}}
    assert variant("laaciq:language=nan").options == {"language": "nan"}  # Min Nan
    for text, message in (
        ("best", "policy"),
        ("rtn:distribution=laplace", "where the options are (scheme, )?group"),
        ("rtn:bits=3", "where the options are (scheme, )?group"),
        ("allocate:avg_bits=4.25", "where the options are (scheme, )?group"),
        ("gptq:mix=eng=2+heb", "weights are"),
        ("gptq:mix", "name:option=value"),
    ):
        with pytest.raises(InputError, match=message):
            variant(text)


def test_refusals() -> None:
    for options, message in (
        ({"policies": []}, "policies is empty"),
        ({"policies": ["rtn"], "bits": []}, "bits is empty"),
        ({"policies": ["rtn"], "bits": [1]}, "bits"),
        ({"policies": ["rtn"], "seeds": [-1]}, "seed"),
        ({"policies": ["rtn"], "unit": "ratio"}, "unit"),
        ({"policies": ["rtn"], "measure": "perplexity"}, "measure is 'perplexity'"),
        ({"policies": ["rtn"], "baseline": "gptq"}, "baseline"),
        ({"policies": ["rtn"], "device": "foo"}, "device is 'foo'"),
        ({"policies": ["rtn", "gateway"], "bits": [4, 8]}, "gateway at 8 bits: bits is 8"),
        ({"policies": ["rtn", "protect"], "bits": [8]}, "protect at 8 bits: bits is 8"),
        ({"policies": ["rtn", "allocate"], "bits": [2]}, "allocate at 2 bits: avg_bits is 2"),
        ({"policies": ["rtn", "mixed:tau=high"]}, "tau in 'mixed:tau=high' is 'high'; it must be a number"),
        ({"policies": ["rtn", "gptq:mix=zul=1"]}, "zul_Latn is not one of the languages"),
        ({"policies": ["rtn", "mse:group=100"]}, "groups of 100 do not divide"),
        ({"policies": ["rtn"], "groups": "high=eng;low=fra", "languages": CODES}, "fra_Latn.*not measured"),
        ({"policies": ["rtn"], "text": APART, "unit": "nats_per_section"}, "is not parallel"),
    ):
        with pytest.raises(InputError, match=message):
            compare("embedded:tiny", progress=no_pass, **options)


def no_pass(what: str, *_: int) -> None:
    raise AssertionError(f"{what}: nothing may be run")


@pytest.fixture(scope="module")
def real() -> Comparison:
    return compare(
        "embedded:tiny",
        policies=["rtn", "mse"],
        bits=[3],
        group="channel",
        languages=CODES,
        seeds=[0, 1],
        unit="nats_per_token",
        **SMALL,
    )


@pytest.mark.long
def test_a_real_comparison(real) -> None:
    rtn, mse = real.entries
    assert rtn.size_bytes == mse.size_bytes
    assert rtn.statistics["mean"].value > mse.statistics["mean"].value > 0
    assert rtn.frames[0].values.tolist() == rtn.frames[1].values.tolist()  # no text is read: one run serves all seeds
    assert rtn.frame.languages == CODES
    assert "even though the weight error gets smaller" in " ".join(shown(real).split())
    assert real.measure == "divergence"
    assert all((frame.values > 0).all() for policy_entry in real.entries for frame in policy_entry.frames)


@pytest.mark.long
def test_damage_is_that_of_a_model_with_these_weights(real) -> None:
    checkpoint, corpus = Checkpoint("embedded:tiny"), udhr(CODES)
    with PlanTrial.of(checkpoint, corpus, request=TextRequest("evaluation", 256, 64)) as trial:
        model, text = checkpoint.load(), trial.reference.text
        before, _ = document_losses(model, text)
        mse_plan = plan(checkpoint, policy="mse", bits=3, group="channel")
        with torch.no_grad():
            for block in round_model(checkpoint, mse_plan):
                for name, codes in block.layers.items():
                    module = checkpoint.architecture.weights[name].module
                    model.get_submodule(module).weight.copy_(dequantize_in_float32(codes))
        after, _ = document_losses(model, text)
        original = {name: tensor.clone() for name, tensor in trial.swapped.model.state_dict().items()}
        scores = trial.run(mse_plan, name="mse").scores
        assert all(torch.equal(tensor, original[name]) for name, tensor in trial.swapped.model.state_dict().items())
    assert scores.frame("nats_per_token", measure="loss").values == pytest.approx(after - before, abs=1e-3)
    assert real.entries[1].frame.values == pytest.approx(scores.frame("nats_per_token").values)
    settings = {"policies": ["mse"], "bits": [3], "group": "channel", "languages": CODES, "unit": "nats_per_token"}
    loss = compare("embedded:tiny", measure="loss", **settings, **SMALL)
    assert loss.measure == "loss"
    assert loss.entries[0].frame.values == pytest.approx(after - before, abs=1e-3)


@pytest.fixture(scope="module")
def trial(outer_blocks) -> Iterator[PlanTrial]:
    with PlanTrial.of(outer_blocks(2), udhr(CODES), request=TextRequest("evaluation", 64, 64)) as plan_trial:
        yield plan_trial


def test_the_reference_keeps_its_head_when_a_tied_embedding_is_rounded(trial) -> None:
    kept, rounded = (
        trial.run(
            plan(trial.checkpoint, policy="rtn", bits=4, group="channel", embeddings=embeddings), name="rtn"
        ).scores.documents
        for embeddings in ("keep", 8)
    )
    assert rounded.nll_reference.tolist() == kept.nll_reference.tolist()
    assert rounded.kl.tolist() != kept.kl.tolist()


def test_a_given_mix_reaches_the_plan(outer_blocks) -> None:
    policy_comparison = compare(
        outer_blocks(2), policies=["gptq:mix=eng=2+heb=1"], group="channel", languages=CODES, **SMALL | {"tokens": 16}
    )
    assert policy_comparison.entries[0].plans[0].languages == pytest.approx({"eng_Latn": 2 / 3, "heb_Hebr": 1 / 3})


def test_a_trial_restores_the_model_after_a_failure(trial) -> None:
    original = {name: tensor.clone() for name, tensor in trial.swapped.model.state_dict().items()}
    rtn_plan = plan(trial.checkpoint, policy="rtn", bits=4, group="channel")

    def stop(what: str, *_: int) -> None:
        if "evaluating" in what:
            assert not all(
                torch.equal(tensor, original[name]) for name, tensor in trial.swapped.model.state_dict().items()
            )
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial.run(rtn_plan, name="rtn", progress=stop)
    assert all(torch.equal(tensor, original[name]) for name, tensor in trial.swapped.model.state_dict().items())
