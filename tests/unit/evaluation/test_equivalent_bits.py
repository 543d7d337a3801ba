"""At how many bits plain quantization costs a language as much as a model does."""

from dataclasses import replace

import numpy as np
import pytest

from fairbits.api.sweep import Sweep
from fairbits.core.errors import InputError
from fairbits.evaluation.scores import Scores
from fairbits.reports.sources import SWEEP
from fairbits.stats.crossing import CriticalBits

LEVEL = {"eng_Latn": 4.0, "fin_Latn": 16.0, "heb_Hebr": 8.0}
BITS = (2, 3, 4, 6, 8)


def scaled(scores: Scores, factor: float) -> Scores:
    return replace(scores, documents=replace(scores.documents, kl=factor * scores.documents.kl))


def swept(scores: Scores, **changes) -> Sweep:
    """Returns a sweep in which every bit divides the divergence of the scores, which are those of 4 bits, by 4."""
    default = Sweep(
        model=scores.reference.target,
        fingerprint=scores.reference.fingerprint,
        policy="gptq",
        settings={"group": 128, "text": "drawn"},
        measure="divergence",
        frames={bits: scaled(scores, 4.0 ** (4 - bits)).frame() for bits in BITS},
        sizes={bits: bits * 1000 for bits in BITS},
        threshold=0.01,
        max_kappa=8.0,
        setting=scores.setting,
    )
    return replace(default, **changes)


@pytest.mark.parametrize(("factor", "bits"), [(1.0, 4.0), (2.0, 3.5), (4.0**-1.5, 5.5), (1e9, 2.0), (0.0, 8.0)])
def test_a_file_of_a_sweep_tells_where_the_divergence_lies(draw, tmp_path, factor, bits) -> None:
    scores = draw(LEVEL)
    swept(scores).save(tmp_path / "sweep.json")
    found = SWEEP.read(tmp_path / "sweep.json").equivalent_bits(scaled(scores, factor))
    assert found.policy == "gptq"
    for width in found.languages.values():  # the same documents are drawn for both, so that no noise is left
        assert (width.value, width.low, width.high) == pytest.approx((bits, bits, bits))


def test_the_interval_has_the_noise_of_the_model_and_that_of_the_sweep(draw) -> None:
    scores, other = draw(LEVEL), draw({code: 2 * level for code, level in LEVEL.items()}, seed=5)
    sweep = swept(scores)
    found = replace(scores, documents=replace(scores.documents, kl=other.documents.kl))
    rng = np.random.default_rng(0)
    width = SWEEP.parse(sweep.file_content(), source="sweep").equivalent_bits(found).languages["fin_Latn"]
    rows = np.flatnonzero(scores.documents.lang == "fin_Latn")
    drawn = rng.choice(rows, (4000, len(rows)))
    ratio = other.documents.kl[drawn].sum(1) / scores.documents.kl[drawn].sum(1)
    expected = 4 - np.log(np.percentile(ratio, [97.5, 2.5])) / np.log(4)
    assert (width.low, width.high) == pytest.approx(expected.tolist(), abs=0.02)
    assert width.low < 3.5 < width.high


def test_scores_keep_and_show_it(draw, tmp_path) -> None:
    scores = draw(LEVEL)
    found = replace(
        scores, equivalent_bits=SWEEP.parse(swept(scores).file_content(), source="sweep").equivalent_bits(scores)
    )
    found.save(tmp_path / "scores.json")
    loaded = Scores.load(tmp_path / "scores.json")
    assert loaded.equivalent_bits == found.equivalent_bits
    text = "\n".join(str(table.below) for table in loaded.tables())
    assert "loses as much as it would under gptq at 4.0 [4.0, 4.0] bits" in text
    assert loaded.to_pandas()["equivalent_bits"].tolist() == pytest.approx([4.0] * 3)
    assert loaded.summary()["equivalent_bits"]["languages"]["eng_Latn"]["value"] == pytest.approx(4.0)
    missing = replace(found.equivalent_bits, languages={"eng_Latn": CriticalBits(4.0, 4.0, 4.0)})
    with pytest.raises(InputError, match=r"equivalent_bits and languages differ in 'fin_Latn'"):
        replace(found, equivalent_bits=missing)


def test_other_models_texts_and_kinds_are_refused(draw) -> None:
    scores = draw(LEVEL)
    sweep = SWEEP.parse(swept(scores).file_content(), source="sweep")
    with pytest.raises(InputError, match="the sweep is of another model"):
        replace(sweep, fingerprint="1" * 64).equivalent_bits(scores)
    with pytest.raises(InputError, match=r"other text \(tokens differs\)"):
        sweep.equivalent_bits(replace(scores, setting=replace(scores.setting, tokens=99)))
    with pytest.raises(InputError, match="no divergence of every document"):
        replace(sweep, documents=None).equivalent_bits(scores)
    with pytest.raises(InputError, match="no divergence of every document"):
        replace(sweep, measure="loss").equivalent_bits(scores)
    fewer = replace(scores, documents=replace(scores.documents, bytes=scores.documents.bytes + 1))
    with pytest.raises(InputError, match="on other documents"):
        sweep.equivalent_bits(fewer)
