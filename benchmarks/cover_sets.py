"""Sets of languages to calibrate on: random ones, and the largest languages."""

from collections.abc import Sequence

import numpy as np

from fairbits.models.embedded import TRAINING_TOKENS

BY_WEB_PAGES = (
    *("eng_Latn", "rus_Cyrl", "deu_Latn", "jpn_Jpan", "zho_Hans", "fra_Latn", "spa_Latn", "ita_Latn", "por_Latn"),
    *("nld_Latn", "pol_Latn", "tur_Latn", "ces_Latn", "vie_Latn", "ind_Latn", "kor_Hang", "pes_Arab", "arb_Arab"),
    *("ukr_Cyrl", "hun_Latn", "swe_Latn", "ron_Latn", "ell_Grek", "dan_Latn", "fin_Latn", "slk_Latn", "tha_Thai"),
    *("heb_Hebr", "nob_Latn", "bul_Cyrl", "hin_Deva", "cat_Latn", "hrv_Latn", "lit_Latn", "slv_Latn", "est_Latn"),
)
"""Languages by their share of pages on the web, about the order in Common Crawl."""


def random_sets(languages: Sequence[str], size: int, *, draws: int, seed: int) -> list[tuple[str, ...]]:
    """Returns random sets of `size` languages; over a whole round, each language is in equally many of them.

    A round goes through a random order of the languages in steps of `size`, until it comes back to the beginning. Each
    set on its own is a uniformly random one.

    >>> random_sets("abcd", 2, draws=2, seed=0)
    [('b', 'c'), ('a', 'd')]
    """
    rng = np.random.default_rng([seed, size])
    found: list[tuple[str, ...]] = []
    while len(found) < draws:
        order = rng.permutation(len(languages))
        for start in range(0, np.lcm(size, len(languages)), size):
            chosen = {int(order[i % len(languages)]) for i in range(start, start + size)}
            found.append(tuple(languages[i] for i in sorted(chosen)))
    return found[:draws]


def largest(languages: Sequence[str], size: int, *, model: str) -> tuple[str, ...]:
    """Returns the largest languages: by training text for an embedded model, else by pages on the web."""
    if model.startswith("embedded:"):
        tokens = TRAINING_TOKENS[model.partition(":")[2].partition("?")[0]]
        ranked = sorted(languages, key=lambda code: -tokens[code])
    else:
        ranked = [code for code in BY_WEB_PAGES if code in languages]
    return tuple(ranked[:size])
