import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from scipy.optimize import brentq

from fairbits.api import trial_tasks
from fairbits.api.make_plan import plan
from fairbits.api.sweep import Sweep, sweep
from fairbits.comparison.critical_bits import needs_sentence, notes_sentence
from fairbits.comparison.plan_trial import PlanTrial
from fairbits.core.errors import InputError
from fairbits.core.table import render_tables
from fairbits.stats.crossing import CriticalBits, crossing
from fairbits.stats.frame import LanguageFrame
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr

BITS = (2, 3, 4, 5, 6)
LEVEL = {"eng_Latn": 0.4, "heb_Hebr": 3.2}
DOCUMENTS = 30


def damage_frame(bits: int, *, noise: float = 0.3, level: dict[str, float] = LEVEL) -> LanguageFrame:
    """Damage a_λ · 4^−B of every language; documents deviate by the same factors at every width."""
    rng = np.random.default_rng(0)
    lang, document = np.repeat(list(level), DOCUMENTS), np.tile(np.arange(DOCUMENTS), len(level))
    factor = 1 + noise * rng.uniform(-1, 1, lang.size)
    values = np.repeat(list(level.values()), DOCUMENTS) * 4.0**-bits * factor * 100
    return LanguageFrame(lang, document, values=values, weights=np.full(lang.size, 100.0), resamples=2000)


def swept(**changes) -> Sweep:
    default_sweep = Sweep(
        model="./model",
        fingerprint="0" * 64,
        policy="mse",
        settings={"group": 128, "text": "udhr"},
        measure="divergence",
        frames={bits: damage_frame(bits) for bits in BITS},
        sizes={bits: bits * 1_000_000 for bits in BITS},
        threshold=0.01,
        max_kappa=8.0,
        notes=("a note",),
    )
    return replace(default_sweep, **changes)


def test_crossing_of_a_line_in_log_damage_is_exact() -> None:
    a = np.array([0.4, 3.2, 0.7])
    damage = a[:, None] * 4.0 ** -np.array(BITS)
    assert crossing(BITS, damage, 0.01) == pytest.approx(np.log(a / 0.01) / np.log(4))


def test_crossing_is_the_root_of_the_interpolated_curve() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        logs = np.sort(rng.normal(-4, 2, len(BITS)))[::-1]
        level = float(np.exp(rng.uniform(logs[-1], logs[0])))
        if level / 100 > np.exp(logs[-1]):
            continue  # clipped, see below
        root = brentq(lambda b, y=logs, t=level: np.interp(b, BITS, y) - np.log(t), BITS[0], BITS[-1])
        assert crossing(BITS, np.exp(logs), level).item() == pytest.approx(root)


@pytest.mark.parametrize(
    ("damage", "width"),
    [
        ([0.001, 0.0005, -0.001], 2.0),  # never too much
        ([0.9, 0.5, 0.02], 4.0),  # always too much
        ([0.9, 0.001, 0.1], 4.0),  # passed twice: the larger one, here beyond the widths
        ([0.1, 0.1, -5.0], 3 + np.log(10) / np.log(10 * 100)),  # what is negative counts as a hundredth
        ([0.01, 0.01, 0.01], 2.0),  # as much as allowed is not too much
    ],
)
def test_crossing_at_the_ends(damage, width) -> None:
    assert crossing((2, 3, 4), damage, 0.01).item() == pytest.approx(width)


def test_intervals_resample_the_same_documents_at_every_width() -> None:
    sweep_result = swept()
    replicates = sweep_result.frames[4].replicates
    # factors of documents are the same at every width, so that B* of a resample follows from any one of them
    drawn = np.log((replicates.value + replicates.deviation) * 4**4 / 0.01) / np.log(4)
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    for i, code in enumerate(replicates.languages):
        width = sweep_result.widths[code]
        assert (width.low, width.high) == pytest.approx((low[i], high[i]), rel=1e-9)
        assert width.low < np.log(LEVEL[code] / 0.01) / np.log(4) < width.high


def test_curves_and_the_width_of_the_gap() -> None:
    sweep_result = swept()
    assert sweep_result.curves["heb_Hebr"][3].value == pytest.approx(3.2 / 64, rel=0.1)
    assert sweep_result.gap_width.low < np.log(2.8 / 0.01) / np.log(4) < sweep_result.gap_width.high


@pytest.mark.parametrize(
    ("max_kappa", "expected"),
    [(2.0, "too low by 1.1 bits"), (9.6, "their width is within its interval"), (164.0, "too high by 1.9 bits")],
)
def test_the_verdict_says_where_the_founding_documents_are_wrong(max_kappa, expected) -> None:
    needs, research_notes, _ = swept(max_kappa=max_kappa).verdict
    assert "Damage exceeds 0.01 bits per byte for Hebrew below 4.2" in needs
    assert "Hebrew needs 1.5 bits more" in needs
    assert expected in research_notes


def test_the_verdict_asks_for_other_widths_where_none_passes() -> None:
    assert "No language exceeds 9 bits per byte at 2 bits or more" in swept(threshold=9.0).verdict[0]
    assert "Every language exceeds 1e-09 bits per byte even at 6 bits" in swept(threshold=1e-9).verdict[0]


def test_one_width_may_do_for_languages_alike() -> None:
    frames = {bits: damage_frame(bits, level={"eng_Latn": 1.0, "heb_Hebr": 1.02}) for bits in BITS}
    assert (
        "intervals of English and Hebrew overlap, so one width may be enough for all" in swept(frames=frames).verdict[0]
    )


def test_no_number_is_said_of_what_lies_outside_the_sweep() -> None:
    inside, above, below = CriticalBits(4.0, 3.9, 4.1), CriticalBits(6.0, 6.0, 6.0), CriticalBits(2.0, 2.0, 2.0)
    sentence = needs_sentence({"eng": inside, "heb": above, "fin": above}, bits=BITS, limit="L")
    assert sentence == (
        "Damage exceeds L for heb, fin even at 6 bits, and for eng only below 4.0 [3.9, 4.1] bits: heb needs more bits "
        "than eng; how many more is outside this sweep."
    )
    sentence = needs_sentence({"eng": below, "heb": inside}, bits=BITS, limit="L")
    assert "and for eng not even at 2 bits: heb needs more bits than eng; how many more is outside" in sentence
    sentence = needs_sentence(
        {"eng": CriticalBits(5.0, 4.0, 6.0), "heb": CriticalBits(6.0, 5.5, 6.0)}, bits=BITS, limit="L"
    )
    assert "overlap, so no width of this sweep is enough for all" in sentence
    truncated = swept(frames={bits: damage_frame(bits) for bits in (2, 3)}).verdict[0]
    assert "Hebrew even at 3 bits" in truncated
    assert "bits more," not in truncated


@pytest.mark.parametrize(
    ("measured", "max_kappa", "expected"),
    [
        (CriticalBits(2.0, 2.0, 2.0), 164.0, "below 2 bits if at all: their width is too high and"),  # 6.0
        (CriticalBits(2.0, 2.0, 6.0), 164.0, "below 2 bits if at all: this sweep cannot decide"),
        (CriticalBits(6.0, 6.0, 6.0), 2.0, "above 6 bits: their width is too low and"),  # 3.0
        (CriticalBits(6.0, 6.0, 6.0), 1000.0, "above 6 bits: this sweep cannot decide"),  # 7.2
        (CriticalBits(6.0, 2.0, 6.0), 2.0, "above 6 bits: this sweep cannot decide"),
        (CriticalBits(5.0, 4.0, 6.0), 1000.0, "at 5.0 [4.0, >6] bits: their width is within its interval"),
        (CriticalBits(5.0, 4.0, 5.5), 1000.0, "at 5.0 [4.0, 5.5] bits: their width is too high by 2."),
    ],
)
def test_the_ends_of_a_sweep_are_open_for_the_founding_documents_too(measured, max_kappa, expected) -> None:
    assert expected in notes_sentence(measured, max_kappa, bits=BITS, limit="L")


def test_a_width_below_the_sweep_is_not_judged_by_it() -> None:
    sentence = notes_sentence(CriticalBits(4.0, 4.0, 4.0), 2.0, bits=(4, 5), limit="L")  # theirs is 3.0
    assert "below 4 bits if at all: this sweep cannot decide whether their width is right" in sentence


def test_text_goes_only_to_policies_that_read_it(monkeypatch) -> None:
    asked = []

    class PlannedError(Exception):
        pass

    def planned(*_, **options):
        asked.append((options["policy"], options["text"] is not None))
        raise PlannedError

    monkeypatch.setattr(trial_tasks, "make_plan", planned)
    options = {"languages": list(LEVEL), "tokens": 64, "evaluation_tokens": 64, "sequence": 64, "group": "channel"}
    for policy in ({"policy": "mse"}, {}):  # the default last
        with pytest.raises(PlannedError):
            sweep("embedded:tiny", bits=[3, 4], **options, **policy)
    assert asked == [("mse", False), ("gptq", True)]


def test_widths_beyond_the_sweep_are_written_as_such() -> None:
    assert CriticalBits(2.0, 2.0, 4.25).text(BITS) == "<2 [<2, 4.2]"
    assert CriticalBits(6.0, 5.0, 6.0).text(BITS) == ">6 [5.0, >6]"


def test_saved_and_shown(tmp_path) -> None:
    sweep_result = swept()
    sweep_result.save(tmp_path / "sweep.json")
    data = json.loads((tmp_path / "sweep.json").read_text())
    assert (data["schema"], data["measure"]) == ("fairbits.sweep/2", "divergence")
    assert data["damage"]["eng_Latn"]["2"]["value"] == sweep_result.curves["eng_Latn"][2].value
    assert data["critical_width"]["heb_Hebr"]["low"] == sweep_result.widths["heb_Hebr"].low
    assert data["critical_width"]["heb_Hebr"]["text"].startswith("4.2 [")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_tables(sweep_result.tables()))
    lines = console.export_text().splitlines()
    assert max(map(cell_len, lines)) <= 80
    rows = [line.split()[0] for line in lines if line.startswith((*LEVEL, "gap", "MB"))]
    assert rows == ["heb_Hebr", "eng_Latn", "gap", "MB"]  # who needs most bits comes first
    assert "Divergence in bits per byte by bits per weight; B* for 0.01" in lines
    console.print(render_tables(swept(measure="loss").tables()))
    assert "Added loss in bits per byte by bits per weight; B* for 0.01" in console.export_text()


def test_the_added_loss_is_swept_if_it_is_the_measure(outer_blocks) -> None:
    options = {"bits": [3, 4], "policy": "rtn", "group": "channel", "languages": list(LEVEL)}
    model, amounts = outer_blocks(2), {"evaluation_tokens": 64, "sequence": 64}
    divergence = sweep(model, **options, **amounts)
    loss = sweep(model, measure="loss", **options, **amounts)
    assert (divergence.measure, loss.measure) == ("divergence", "loss")
    assert all((frame.values > 0).all() for frame in divergence.frames.values())
    with PlanTrial.of(model, udhr(list(LEVEL)), request=TextRequest("evaluation", 64, 64)) as trial:
        scores = trial.run(plan(model, policy="rtn", bits=3, group="channel"), name="rtn").scores
    assert loss.frames[3].values == pytest.approx(scores.frame(measure="loss").values)
    assert divergence.frames[3].values == pytest.approx(scores.frame().values)


def test_refusals() -> None:
    for options, message in (
        ({"bits": [4]}, "two widths or more"),
        ({"bits": [4, 9]}, "bits"),
        ({"unit": "ratio"}, "unit"),
        ({"measure": "perplexity"}, "measure is 'perplexity'"),
        ({"threshold": 0.0}, "threshold"),
        ({"policy": "best"}, "policy"),
        ({"device": "foo"}, "device is 'foo'"),
        ({"bits": [4, 8], "policy": "mixed"}, "mixed at 8 bits: bits is 8"),
        ({"group": 100}, "groups of 100 do not divide"),
    ):
        with pytest.raises(InputError, match=message):
            sweep("embedded:tiny", progress=no_pass, **options)


def no_pass(what: str, *_: int) -> None:
    raise AssertionError(f"{what}: nothing may be run")
