"""Measured traits: from a lab to the traits of its languages, on a variant of the model with outlier blocks."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.language.tokenization import tokenization
from fairbits.measure.audit.patterns import Pattern
from fairbits.measure.audit.redundancy import Redundancy
from fairbits.measure.passes import Measurements
from fairbits.measure.passes.measurements import Measure
from fairbits.measure.passes.recorder import PointKind
from fairbits.model.scheme import Clip
from fairbits.science.experiments.dropout import dropped
from fairbits.science.experiments.laboratory import Laboratory, ModelLab
from fairbits.science.experiments.many_languages import many
from fairbits.science.experiments.traits_of_languages import ACTIVATION, KNOWN, MANY, OWN, Traits
from fairbits.stats import LanguageFrame
from fairbits.verbs.audit import MEASURES, PATTERNS, redundancy_of

KAPPA = 125.0, 148.0
"""The excess kurtosis that the founding documents found in the two outlier layers of BLOOM-560M."""
TREATMENTS: Mapping[str, tuple[int, Clip]] = {
    "nearest, 3 bits": (3, "absmax"),
    "nearest, 4 bits": (4, "absmax"),
    "exact clip, 4 bits": (4, "exact"),
}


def outlier_blocks(n: int) -> dict[int, float]:
    """Returns which of n blocks get outliers, and their κ.

    >>> outlier_blocks(12)
    {3: 125.0, 7: 148.0}
    """
    return dict(zip((n // 4, (7 * n) // 12), KAPPA, strict=True))


def of_all(
    laboratory: Laboratory, *, dropout: bool = False, treatments: Iterable[str] = TREATMENTS
) -> tuple[list[Traits], tuple[str, ...]]:
    """Returns the traits of own, many and known languages, and notes; own ones alone where text or languages are given.

    They are measured on the variant with outlier blocks, which computes what the model computes.
    """
    model = laboratory.with_outliers(outlier_blocks(laboratory.lab().n_blocks))
    asked = [*treatments]
    own = measure(laboratory.lab(model), OWN, dropout=dropout, treatments=asked, shares=known_shares(laboratory))
    laboratory.lab()  # lets go of the variant
    others, notes = of_others(laboratory, model, dropout=dropout, treatments=asked)
    return [own, *others], notes


def of_others(
    laboratory: Laboratory, model: str, *, dropout: bool, treatments: Sequence[str]
) -> tuple[list[Traits], tuple[str, ...]]:
    """Returns the traits of known languages, after those of many where known ones are few, and how they were found."""
    found = many(laboratory)
    if found is None:
        return [], ()
    other, screening = found
    traits = measure(other.lab(model), MANY, dropout=dropout, treatments=treatments)
    known = [code for code in traits.languages if code in screening.known]
    enough = len(known) == len(traits.languages)
    return [*([] if enough else [traits]), traits.only(known, KNOWN)], (screening.said(),)


def measure(
    lab: ModelLab, among: str, *, dropout: bool, treatments: Sequence[str], shares: Mapping[str, float] | None = None
) -> Traits:
    """Returns the traits of the languages of a lab: one pass for the base loss, one for activations, one per damage."""
    codes, measured = lab.languages, lab.measured
    damage = {}
    for i, name in enumerate(treatments):
        lab.tell(f"rounding, {among} languages", i, len(treatments))
        bits, clip = TREATMENTS[name]
        damage[name] = lab.rounded(bits, clip=clip)
    lost = dropped(lab) if dropout else None
    pieces = tokenization(lab.corpus.calibration, lab.checkpoint.tokenizer(), parallel=lab.corpus.parallel)
    per_token = np.array([pieces[code].bytes_per_token.value for code in codes])
    found = [pieces[code].quality for code in codes]
    quality = np.array([each.value for each in found if each is not None])
    patterns = {(kind, way): _share(measured, kind, way) for kind in PATTERNS for way in MEASURES}
    patterns = {key: table for key, table in patterns.items() if table.size}
    outliers = outlier_blocks(lab.n_blocks)
    rows = np.array([measured.languages.index(code) for code in codes])
    bits_per_byte = lab.reference_bits()
    return Traits(
        among=among,
        languages=codes,
        damage=damage,
        dropout=lost,
        outlier_share=outlier_share(measured, outliers, seed=lab.setting.seed),
        activation={k: v[rows][:, _places(measured, k[0], outliers)].sum(axis=1) for k, v in patterns.items()},
        kappa={k: v[rows] @ lab.kappa[measured.blocks(k[0])] for k, v in patterns.items()},
        base_bits=np.array([bits_per_byte[code] for code in codes]),
        bytes_per_token=per_token,
        quality=quality if len(quality) == len(codes) else per_token / per_token.max(),
        proxies=_proxies(measured, codes),
        shares=None if shares is None else np.array([shares[code] for code in codes]),
    )


def outlier_share(measured: Measurements, outliers: Iterable[int], *, seed: int) -> LanguageFrame:
    """Returns the frame of ā_outlier: Σ activation in the outlier blocks / Σ activation, per document and language."""
    kind, way = ACTIVATION
    sums = measured.sums(kind, way)
    inside = sums[:, _places(measured, kind, outliers)].sum(axis=1)
    return LanguageFrame(
        measured.lang, measured.document, values=inside, weights=sums.sum(axis=1), unit="ratio", seed=seed
    )


def known_shares(laboratory: Laboratory) -> dict[str, float] | None:
    """Returns the training shares; None where they are not known."""
    try:
        return laboratory.shares
    except InputError:
        return None


def _share(measured: Measurements, kind: PointKind, way: Measure) -> Floats:
    """Returns ā of every language and block at the points of a kind; empty if there are none."""
    if not measured.blocks(kind):
        return np.empty(0)
    sums, tokens = measured.sums(kind, way), measured.sums(kind, "positions")
    pattern = Pattern(measured.lang, measured.document, sums=sums, tokens=tokens)
    rows = [pattern.languages.index(code) for code in measured.languages]
    return pattern.share[rows]


def _places(measured: Measurements, kind: PointKind, blocks: Iterable[int]) -> NDArray[np.intp]:
    """Returns where the blocks are among those that have a point of this kind."""
    wanted = set(blocks)
    return np.array([at for at, block in enumerate(measured.blocks(kind)) if block in wanted], dtype=np.intp)


def _proxies(measured: Measurements, codes: Sequence[str]) -> dict[str, Floats]:
    found = redundancy_of(measured)
    ways: dict[str, Callable[[Redundancy], float]] = {
        "R, as written": lambda each: each.as_written.value,
        "R, effective dimension": lambda each: each.effective_dimension,
        "R, predictive entropy": lambda each: each.predictive_entropy.value,
    }
    return {name: np.array([read(found[code]) for code in codes]) for name, read in ways.items()}
