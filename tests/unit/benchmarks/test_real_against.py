"""`fair` against AutoRound: paired ratios, and a table that copes with what is missing."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from bench import Setting
from fairbits.stats.frame import LanguageFrame
from measured import paired_ratios
from real_against import against_lines
from real_groups import Group, name_of, rank

LANGUAGES = ("deu_Latn", "eng_Latn", "fra_Latn")
DOCUMENTS = 40


def frame_of(levels: tuple[float, ...], *, seed: int = 0) -> LanguageFrame:
    """Returns documents whose damage spreads around a level for each language; the same documents for one seed."""
    spread = np.random.default_rng(seed).lognormal(0, 0.3, (len(levels), DOCUMENTS))
    return LanguageFrame(
        np.repeat(LANGUAGES, DOCUMENTS),
        np.tile(np.arange(DOCUMENTS), len(levels)),
        values=(np.array(levels)[:, None] * spread).ravel() * 100,
        weights=np.full(len(levels) * DOCUMENTS, 100),
    )


def test_ratios_of_frames_that_differ_by_a_factor_are_exact() -> None:
    worst, mean = paired_ratios(frame_of((0.3, 0.1, 0.2)), frame_of((0.6, 0.2, 0.4)))
    np.testing.assert_allclose([worst.value, worst.low, worst.high], 0.5, rtol=1e-6)
    np.testing.assert_allclose([mean.value, mean.low, mean.high], 0.5, rtol=1e-6)


def test_ratios_of_independent_noise_cover_the_truth_and_swap_to_their_inverse() -> None:
    mine, base = frame_of((0.30, 0.1, 0.1), seed=1), frame_of((0.1, 0.2, 0.1), seed=2)
    worst, mean = paired_ratios(mine, base)
    assert worst.low < 1.5 < worst.high
    assert mean.low < 0.5 / 0.4 < mean.high
    back, inverse = paired_ratios(base, mine)
    np.testing.assert_allclose(back.value, 1 / worst.value)
    np.testing.assert_allclose([inverse.low, inverse.high], [1 / mean.high, 1 / mean.low], rtol=0.02)


def group_of(**levels: tuple[float, ...]) -> Group:
    """Returns a group with one frame and one seed for each policy; two of three languages are calibrated."""

    def policy(values: tuple[float, ...]) -> Any:
        def frame(_measure: str, _unit: str, languages: list[str]) -> LanguageFrame:
            whole = frame_of(values)
            kept = np.isin(whole.lang, languages)
            return LanguageFrame(
                whole.lang[kept], whole.document[kept], values=whole.values[kept], weights=whole.weights[kept]
            )

        return SimpleNamespace(frame=frame, scores=(SimpleNamespace(languages=LANGUAGES),))

    names = {name.replace("_all", "@all"): values for name, values in levels.items()}
    facts = {name: ({"seconds": 60.0, "settings": {"languages": LANGUAGES[:2]}},) for name in names}
    return Group("a", Setting(4, 128), "help", {name: policy(values) for name, values in names.items()}, facts)


def test_the_table_has_a_row_for_each_recipe_and_set_of_languages() -> None:
    group = group_of(gptq=(1.0, 1.0, 1.0), fair_all=(0.3, 0.1, 0.2), autoround_all=(0.6, 0.2, 0.4))
    rows = [line for line in against_lines([group]) if line.startswith("| a |")]
    assert len(rows) == 2
    assert "| 2 calibrated | AutoRound, 200 iterations, all text |" in rows[0]
    assert "| 1 others |" in rows[1]
    assert all("| 0.50 [0.50, 0.50] |" in row for row in rows)
    assert rows[0].endswith("| 2 | 0 | 60 | 60 | 1, 1 |")


def test_without_autoround_or_without_fair_there_is_no_section() -> None:
    level = (0.1, 0.2, 0.3)
    assert not list(against_lines([group_of(gptq=level, fair_all=level), group_of(gptq=level, autoround_all=level)]))


def test_autoround_comes_after_fair_by_the_amount_of_work() -> None:
    policies = ["autoround:iterations=1000:alg_ext@all", "autoround:float32@all", "autoround@all", "fair@all"]
    assert sorted(policies, key=rank) == ["fair@all", "autoround@all", policies[0], policies[1]]
    assert name_of("autoround:float32@all") == "AutoRound, 200 iterations, float32, all text"
