"""LanguageClipping: the thresholds of LA-ACIQ on a model, as a file, tables and a figure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy  # its modules are loaded when they are used

from fairbits.core.errors import count_of
from fairbits.core.figure import Figure, dots
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import BlockIndex, Code, Count, Digest, Kind, Name, NonNegative, Number, Positive, to_json
from fairbits.core.records import StoredBits as Bits
from fairbits.core.table import Cell, NumberFormat, Shown, Table, data_frame, dim, notes_table
from fairbits.stats.correlation import fisher_interval
from fairbits.stats.frame import estimate_columns
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import short_name

if TYPE_CHECKING:
    import pandas

Verdict = Literal["agrees", "fails", "undecided", "cannot be tested"]
FEWEST = 4  # languages from which a slope has an interval
LEAST_RATIO = 1.1
"""Largest over smallest |κ_eff − κ_global|: below it the law moves Δε by less than 21 %, and agreement means little."""
LEGEND = (
    "α in units of σ, the standard deviation of all weights. Prop. 1: f(κ_eff), as the research notes write it. exact: "
    "least squared error under P_λ = Σ ā P of the blocks. Δε: how much larger the error is than with the exact α, "
    "with the shared α (95 % interval over documents) and with the α of Prop. 1."
)
PRODUCTS = (
    "w ⊙ a: weights times the RMS of their input channel, its largest set to 1; smallest and largest over languages. "
    "α(w ⊙ a): exact for the product, as theorem 2 has it, over the exact α of w. The theorem uses it as a threshold "
    "on w, which it is only for a channel with a = 1; below 1 it clips weights that the product would keep."
)


@dataclass(frozen=True)
class ClippedLanguage:
    """α*(λ) by Prop. 1 and exactly, and the errors under P_λ with them and with the shared α."""

    kappa_weighted: Estimate  # κ_eff = Σ ā_l κ_l
    kappa_mixture: Estimate
    sigma: NonNegative  # of P_λ
    alpha_written: Estimate  # σ_global · f(κ_eff)
    alpha_exact: NonNegative
    error_shared: NonNegative
    error_written: NonNegative
    error_exact: NonNegative
    excess: Estimate  # Δε = error_shared − error_exact
    excess_relative: Estimate  # Δε / error_exact

    @property
    def written_relative(self) -> float:
        """How much larger the error is with the α of Prop. 1 than with the exact one."""
        return self.error_written / self.error_exact - 1 if self.error_exact > 0 else 0.0


@dataclass(frozen=True)
class ClippedLayer:
    """A linear layer: σ, κ and exact α of its weights, and of w ⊙ a for every language (theorem 2)."""

    name: Name
    block: BlockIndex
    role: str
    sigma: NonNegative
    kappa: Number
    alpha: NonNegative
    product_sigma: Mapping[Code, NonNegative]
    product_kappa: Mapping[Code, Number]
    product_alpha: Mapping[Code, NonNegative]  # on w_ij·a_j, whose largest a_j is 1


@dataclass(frozen=True)
class SquareLaw:
    """Δε ∝ (κ_eff − κ_global)² over the languages: the slope of ln Δε on ln |κ_eff − κ_global| should be 2."""

    verdict: Verdict
    languages: Count
    nearest: NonNegative  # the smallest |κ_eff − κ_global|
    farthest: NonNegative
    excess_ratio: NonNegative | None  # largest over smallest Δε
    slope: Estimate | None
    correlation: Estimate | None  # of Δε with the square

    @property
    def sentence(self) -> str:
        """The result in words."""
        law = "Δε ∝ (κ_eff − κ_global)²"
        if self.slope is None or self.excess_ratio is None:
            few = f"it takes {FEWEST} languages with Δε above 0 and different κ_eff, and there are {self.languages}"
            return f"{law} cannot be tested: {few}."
        result = {
            "agrees": f"{law} agrees with this model",
            "fails": f"{law} fails on this model",
            "undecided": f"Whether {law} holds on this model is undecided",
            "cannot be tested": f"{law} cannot be tested on this model, whose languages are too alike",
        }[self.verdict]
        expected = (self.farthest / self.nearest) ** 2
        slope, r = self.slope, self.correlation
        fit = f"The slope of ln Δε is {slope.value:.2g} ({slope.low:.2g} to {slope.high:.2g}) and should be 2"
        with_r = "" if r is None else f"; r of Δε with the square is {r.value:.2g} ({r.low:.2g} to {r.high:.2g})"
        return (
            f"{result}: |κ_eff − κ_global| is {self.nearest:.3g} to {self.farthest:.3g}, so Δε should differ by a "
            f"factor of {expected:.3g}; it differs by {self.excess_ratio:.3g}. {fit}{with_r}."
        )


def square_law(languages: Mapping[str, ClippedLanguage], kappa_global: float) -> SquareLaw:
    """Returns whether Δε grows as the square of κ_eff − κ_global (002-08, 004-18), from least squares over languages.

    Δε and κ_eff of a language are functions of the same ā(λ), so the sampling error of ā is not an error of the law:
    the interval is of the scatter about the line, by Student's t.
    """
    distance = np.array([abs(one.kappa_weighted.value - kappa_global) for one in languages.values()])
    excess = np.array([one.excess.value for one in languages.values()])
    usable = (distance > 0) & (excess > 0)
    n, ends = int(usable.sum()), (float(distance.min()), float(distance.max()))
    x, y = np.log(distance[usable]), np.log(excess[usable])
    if n < FEWEST or np.ptp(x) <= 1e-12:
        return SquareLaw("cannot be tested", n, *ends, None, None, None)
    ends = float(distance[usable].min()), float(distance[usable].max())
    fit = scipy.stats.linregress(x, y)
    reach = float(scipy.stats.t.ppf(0.975, n - 2) * fit.stderr)
    slope = Estimate(float(fit.slope), float(fit.slope) - reach, float(fit.slope) + reach, n)
    correlation = None
    if np.ptp(excess[usable]) > 1e-12 * excess[usable].max():
        r = float(np.corrcoef(distance[usable] ** 2, excess[usable])[0, 1])
        correlation = Estimate(r, *fisher_interval(r, 1 / np.sqrt(n - 3), 0.95), n)
    verdict: Verdict = "undecided"
    if not slope.low <= 2 <= slope.high:
        verdict = "fails"
    elif np.exp(np.ptp(x)) < LEAST_RATIO:
        verdict = "cannot be tested"
    elif slope.low > 0:
        verdict = "agrees"
    return SquareLaw(verdict, n, *ends, float(np.exp(np.ptp(y))), slope, correlation)


@dataclass(frozen=True, eq=False, repr=False)
class LanguageClipping(Shown):
    """The thresholds of LA-ACIQ on a model: one for all, Prop. 1 and exact ones of every language, those of w ⊙ a."""

    target: str
    fingerprint: Digest
    corpus: str
    hashes: Mapping[Code, Digest]
    tokens: Positive
    sequence: Positive
    seed: Count
    bits: Bits
    weights: Positive  # how many, in the linear layers of all blocks
    sigma: NonNegative  # σ_global and κ_global of all these weights together
    kappa: Number
    alpha_shared: NonNegative  # σ_global · f(κ_global): ACIQ
    alpha_mixture: NonNegative  # exact for the mean of all P_λ
    languages: Mapping[Code, ClippedLanguage]
    law: SquareLaw
    layers: tuple[ClippedLayer, ...] = ()
    notes: tuple[str, ...] = ()

    def tables(self, *, details: bool = False) -> list[Table]:
        """Returns the thresholds of the languages and a verdict; `details` adds every layer."""
        layers = [self._layer_table()] if details and self.layers else []
        verdict = Table("What it means", below=tuple(self._verdict()))
        return [self._language_table(), verdict, *layers, *notes_table(self.notes)]

    def _language_table(self) -> Table:
        ends = [value for one in self.languages.values() for value in _ends(one.kappa_weighted)]
        kappa = NumberFormat(max(map(abs, ends)), factor=1.0)
        relative = NumberFormat(1.0, factor=100.0, decimals=2)
        rows: list[tuple[Cell, ...]] = [
            (
                short_name(code),
                dim(code),
                kappa.estimate(one.kappa_weighted),
                f"{one.kappa_mixture.value:.1f}",
                f"{one.alpha_written.value / self.sigma:.4f}",
                f"{one.alpha_exact / self.sigma:.4f}",
                relative.estimate(one.excess_relative),
                f"{100 * one.written_relative:.2f}",
            )
            for code, one in self.languages.items()
        ]
        headers = ("\nlanguage", "\ncode", "\nκ_eff", "\nκ mix", "α/σ,\nProp. 1", "\nexact")
        above = (
            dim(f"{self.bits} bits, symmetric grid, {self.weights:,} weights in the linear layers of the blocks"),
            dim(f"text of {self.corpus}: {count_of(len(self.languages), 'language')}, {self.tokens:,} tokens each"),
            "",
            f"All weights: σ {self.sigma:.4g}, κ {self.kappa:.1f}. One α for all languages, σ·f(κ): "
            f"{self.alpha_shared / self.sigma:.4f} σ.",
            "",
        )
        title: Cell = [(self.target, "bold cyan"), "  ", ("LA-ACIQ", "bold")]
        columns = (*headers, "Δε %,\nshared α", "Δε %,\nProp. 1")
        return Table(title, columns, tuple(rows), (dim(LEGEND),), above, left=(1, 2, 6))

    def _verdict(self) -> Iterator[str]:
        written, exact = (
            [value / self.sigma for value in values]
            for values in (
                [one.alpha_written.value for one in self.languages.values()],
                [one.alpha_exact for one in self.languages.values()],
            )
        )
        yield (
            f"The languages' α differ by {_spread(written):.2%} by Prop. 1 ({min(written):.4f} to {max(written):.4f} "
            f"σ) and by {_spread(exact):.2%} exactly ({min(exact):.4f} to {max(exact):.4f} σ)."
        )
        count = sum(one.error_written < one.error_shared for one in self.languages.values())
        n = len(self.languages)
        yield f"The α of Prop. 1 has a smaller error than the shared α in {count} of {count_of(n, 'language')}."
        yield self.law.sentence

    def _layer_table(self) -> Table:
        rows = []
        names = [layer.name.split(".") for layer in self.layers]
        alike = next((i for i, parts in enumerate(zip(*names, strict=False)) if len(set(parts)) > 1), 0)
        for layer in self.layers:
            alpha = [value / layer.alpha for value in layer.product_alpha.values()] if layer.alpha > 0 else [0.0]
            sigma = [value / layer.sigma for value in layer.product_sigma.values()] if layer.sigma > 0 else [0.0]
            rows.append(
                (
                    ".".join(layer.name.split(".")[alike:]).removesuffix(".weight"),
                    f"{layer.kappa:.1f}",
                    f"{layer.alpha / layer.sigma:.2f}" if layer.sigma > 0 else "–",
                    _span(sigma, ".3f"),
                    _span(layer.product_kappa.values(), ".1f"),
                    _span(alpha, ".3f"),
                )
            )
        headers = ("layer", "κ", "α/σ", "σ(w ⊙ a)/σ", "κ(w ⊙ a)", "α(w ⊙ a)/α")
        return Table("Layers", headers, tuple(rows), (dim(PRODUCTS),))

    def plot(self) -> Figure:
        """Returns a figure for a notebook: α of every language by Prop. 1 and exact, and the shared one."""
        sigma = self.sigma
        written = {code: _ends(one.alpha_written, sigma) for code, one in self.languages.items()}
        exact = {code: (one.alpha_exact / sigma,) * 3 for code, one in self.languages.items()}
        shared = dict.fromkeys(self.languages, (self.alpha_shared / sigma,) * 3)
        series = {"Prop. 1": written, "exact": exact, "shared": shared}
        return dots(f"Clip thresholds of {self.target}", series, axis="α / σ", order=list(self.languages))

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns one row per language."""
        columns: dict[str, list[Any]] = {"language": list(self.languages)}
        for field in fields(ClippedLanguage):
            values = [getattr(one, field.name) for one in self.languages.values()]
            columns |= estimate_columns(field.name, values) if isinstance(values[0], Estimate) else {field.name: values}
        return data_frame(columns, index="language")

    def as_data(self) -> dict[str, Any]:
        return LAACIQ.stamp({field.name: _plain(getattr(self, field.name)) for field in fields(self)})

    def save(self, path: str | Path) -> None:
        write_files({check_writable(path, example="laaciq.json"): to_json(self.as_data())})

    @classmethod
    def load(cls, path: str | Path) -> "LanguageClipping":
        """Returns the record of a file; every key must be known."""
        return LAACIQ.read(path)


def _plain(value: Any) -> Any:
    """Returns a part of the record for JSON, with null for a limit at infinity."""
    if isinstance(value, Estimate):
        return value.to_dict()
    if isinstance(value, ClippedLanguage | ClippedLayer | SquareLaw):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def _ends(estimate: Estimate, unit: float = 1.0) -> tuple[float, float, float]:
    """Returns value, low and high; the value three times if there is no interval."""
    low, high = (estimate.low, estimate.high) if estimate.bounded else (estimate.value, estimate.value)
    return estimate.value / unit, low / unit, high / unit


def _spread(values: list[float]) -> float:
    return max(values) / min(values) - 1


def _span(values: Any, form: str) -> str:
    low, high = (f"{end:{form}}" for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


LAACIQ = Kind("fairbits.laaciq/1", "thresholds of LA-ACIQ", "fairbits laaciq --out", LanguageClipping)
