"""Audit: everything measured before quantization, saved in two files and shown as tables, DataFrame and figures."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save as to_safetensors

from fairbits.auditing.audit_file import AUDIT, FORM, AuditedModel, check_audit_target, round_floats
from fairbits.auditing.damage import PredictedDamage
from fairbits.auditing.expert_use import ExpertUse
from fairbits.core.array_checks import Floats
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError, count_of
from fairbits.core.figure import Figure, heatmap
from fairbits.core.files import write_files
from fairbits.core.records import to_json
from fairbits.core.table import Cell, NumberFormat, Shown, Table, bar, data_frame, dim, notes_table, short_unit
from fairbits.forward.points import Measure, PointKind
from fairbits.forward.statistics import ActivationStatistics
from fairbits.kurtosis.certificate import Certificate, WeightedError
from fairbits.kurtosis.checklist import OutlierBlocks, RiskAssessment, outliers_above_threshold
from fairbits.kurtosis.patterns import Pattern
from fairbits.kurtosis.redundancy import FOREIGN, Redundancy
from fairbits.models.scales.scheme import Scheme
from fairbits.models.weight_moments import ModelMoments
from fairbits.stats.frame import estimate_columns, figure_of_series, worst_first
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code, short_name
from fairbits.text.tokenization import Tokenization

if TYPE_CHECKING:
    import pandas


TOP = 5  # blocks and tensors that are listed with their share of the damage
LEGEND = (
    "D̂: predicted increase of the loss, with 95 % intervals over documents. bits/B: bits per byte, the unit to "
    "compare languages in. loss: before quantization. tokens/eng: tokens for the same content, English = 1."
)
MARK = "? "  # precedes the name of a language whose prediction should not be trusted
UNTRUSTED = f"text not known to the model: do not trust (loss over {FOREIGN:g} times the entropy of its predictions)"
SCOPE = "The bound holds for this text and for any model output; it bounds errors of weights, not the loss."
PATTERNS = (
    "κ_eff: Σ ā κ over blocks, as the research notes define it. κ mix: excess kurtosis of the mixture of the "
    "blocks' weights. R̂: share of the activation in the outlier blocks. Activation: the mean norm of a block's output."
)
TOKENS = (
    "T: tokens of English divided by tokens, for the same content. cut: tokens that are part of a character. unknown: "
    "tokens for text that is not in the vocabulary."
)
PROXIES = (
    "In bits per token, which cannot be compared between languages. R: H(Y) − 2·loss, the research notes' "
    "redundancy. H(Y): entropy of single tokens. entropy: of the predictions. gap: loss − entropy. dim.: effective "
    "number of channels of the residual stream. None of them is known to predict damage."
)
BLOCKS = (
    "ā: share of the activation, smallest and largest over languages. error: Σ h·m, the error of the weights weighted "
    "by the inputs, mean over languages. share of D̂: mean over the languages whose prediction can be trusted."
)
SUMS = ("size_bytes", "predicted", "nll", "entropy", "positions", "norm", "square")  # of documents
HEADLINE: tuple[PointKind, Measure] = ("block", "norm")
"""The pattern from which κ_eff and R̂ are computed: the research notes define a_l = E‖h_l‖ (000-10)."""


@dataclass(frozen=True, eq=False, repr=False)
class Audit(Shown):
    """Which languages a scheme will damage, and why; `damage` by form, `patterns` by kind of point and measure."""

    model: AuditedModel
    scheme: Scheme
    measured: ActivationStatistics
    moments: ModelMoments
    robust: OutlierBlocks
    patterns: Mapping[tuple[PointKind, Measure], Pattern]
    research_notes: RiskAssessment
    kappa_weighted: Mapping[str, Estimate]
    kappa_mixture: Mapping[str, Estimate]
    outlier_share: Mapping[str, Estimate]
    tokenization: Mapping[str, Tokenization]
    redundancy: Mapping[str, Redundancy]
    bits_per_byte: Mapping[str, Estimate]
    weighted_error: WeightedError
    certificate: Certificate
    damage: Mapping[str, PredictedDamage]

    @cached_property
    def experts(self) -> ExpertUse | None:
        """How much text of every language reaches each expert; None if the model has none that can be observed."""
        return ExpertUse(self.languages, self.measured.experts) if self.measured.experts else None

    @property
    def languages(self) -> tuple[str, ...]:
        return self.measured.languages

    @cached_property
    def predicted(self) -> PredictedDamage:
        return self.damage[FORM]

    @property
    def trusted(self) -> tuple[str, ...]:
        """The languages whose predicted damage can be trusted, because their text is not foreign to the model."""
        return tuple(code for code in self.languages if not self.redundancy[code].foreign)

    @cached_property
    def ranked(self) -> PredictedDamage:
        """D̂(λ) of the trusted languages; of all languages if none is trusted."""
        return self.predicted.restrict(self.trusted or self.languages)

    @property
    def order(self) -> list[str]:
        """The languages by predicted damage, the largest first; those that cannot be trusted come last."""
        return sorted(worst_first(self.predicted.estimates()), key=lambda code: code not in self.trusted)

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a table with a row for every language, the largest predicted damage first."""
        order = worst_first(self.predicted.bits_per_byte.by_language())
        rows = [self.measured.lang == code for code in order]
        columns: dict[str, list[Any]] = {
            "language": order,
            "name": [language_from_code(code).name for code in order],
            "trusted": [code in self.trusted for code in order],
            "documents": [int(mask.sum()) for mask in rows],
            "tokens": [int(self.measured.predicted[mask].sum()) for mask in rows],
        }
        for name, estimates in (
            ("predicted_bits_per_byte", self.predicted.bits_per_byte.by_language()),
            ("predicted_nats_per_token", self.predicted.nats_per_token.by_language()),
            ("bits_per_byte", self.bits_per_byte),
            ("kappa_weighted", self.kappa_weighted),
            ("kappa_mixture", self.kappa_mixture),
            ("outlier_share", self.outlier_share),
            ("bytes_per_token", {code: part.bytes_per_token for code, part in self.tokenization.items()}),
        ):
            columns |= estimate_columns(name, (estimates[code] for code in order))
        return data_frame(columns, index="language")

    def plot(self, what: str = "languages") -> Figure:
        """Returns a figure for a notebook: predicted damage of "languages", or how much of it comes from "blocks".

        "experts" is the share of experts that get little text of a language, by block.
        """
        scheme, damage = self.scheme.name, self.predicted.bits_per_byte.by_language()
        if one_of("what", what, ("languages", "blocks", "experts")) == "experts":
            if self.experts is None:
                raise InputError(f"{self.model.target} has no experts whose text was counted; plot languages or blocks")
            return self.experts.plot()
        if what == "languages":
            return figure_of_series({"predicted": damage}, title=f"Predicted damage of {scheme}", unit="bits_per_byte")
        order = worst_first(damage)
        rows = dict(zip(self.predicted.languages, self.predicted.by_block.tolist(), strict=True))
        return heatmap(
            f"Predicted damage of {scheme} in nats per token, by block",
            [rows[code] for code in order],
            rows=order,
            columns=[str(block) for block in range(self.predicted.by_block.shape[1])],
            axis="block",
        )

    def tables(self, *, details: bool = False) -> list[Table]:
        """Returns the predicted damage of every language and where it comes from; `details` adds all measurements."""
        return audit_tables(self) + (detail_tables(self) if details else [])

    def as_data(self) -> dict[str, Any]:
        measured = self.measured
        scheme = {name: getattr(self.scheme, name) for name in ("bits", "group", "clip", "grid", "name")}
        content = {
            "model": asdict(self.model),
            "scheme": scheme | {"group": None if self.scheme.group == "channel" else self.scheme.group},
            "task": measured.task,
            "languages": {code: self._language(code) for code in self.languages},
            "blocks": [self._block(index) for index in range(len(self.moments.blocks))],
            "outliers": {"research_notes": asdict(self._above_threshold), "robust": asdict(self.robust)},
            "research_notes": asdict(self.research_notes),
            "patterns": {
                f"{kind} {measure}": {"blocks": measured.blocks(kind)} | pattern.as_data()
                for (kind, measure), pattern in self.patterns.items()
            },
            "damage": {form: damage.as_data() for form, damage in self.damage.items()},
            "points": [asdict(point) for point in measured.points],
            "linears": list(measured.linears),
            "seen_by": dict(measured.seen_by),
            "left_out": dict(measured.left_out),
            "weighted_error": self.weighted_error.as_data(),
            "certificate": self.certificate.as_data(),
            "experts": None if self.experts is None else self.experts.as_data(),
        }
        return AUDIT.stamp(content)

    def save(self, path: str | Path) -> None:
        """Writes `path` (JSON) and, next to it, the large arrays (safetensors). The same audit gives the same bytes."""
        path, arrays_path = check_audit_target(path)
        arrays = to_safetensors(self.arrays())
        data = self.as_data() | {"arrays": {"file": arrays_path.name, "sha256": hashlib.sha256(arrays).hexdigest()}}
        write_files({arrays_path: arrays, path: to_json(round_floats(data))})

    def arrays(self) -> dict[str, Any]:
        """Returns what is too large for JSON: document sums, channel mean squares, experts, second moments."""
        measured = self.measured
        groups = ("channels", "gradients", "inputs")
        named = {f"{group}/{name}": array for group in groups for name, array in getattr(measured, group).items()}
        documents = {
            "documents/language": np.array([self.languages.index(code) for code in measured.lang.tolist()]),
            "documents/id": measured.document,
            **{f"documents/{name}": getattr(measured, name) for name in SUMS},
            **{f"documents/damage {form}": damage.sums for form, damage in self.damage.items()},
        }
        counts = {} if self.experts is None else self.experts.arrays()
        return {name: np.ascontiguousarray(array) for name, array in (named | documents | counts).items()}

    @property
    def _above_threshold(self) -> OutlierBlocks:
        return outliers_above_threshold([block.kappa for block in self.moments.blocks])

    def _language(self, code: str) -> dict[str, Any]:
        mask = self.measured.lang == code
        names = ("bits_per_byte", "kappa_weighted", "kappa_mixture", "outlier_share")
        return {
            "documents": int(mask.sum()),
            "trusted": not self.redundancy[code].foreign,
            "predicted_tokens": int(self.measured.predicted[mask].sum()),
            **{name: getattr(self, name)[code].to_dict() for name in names},
            "tokenization": self.tokenization[code].as_data(),
            "redundancy": self.redundancy[code].as_data(),
        }

    def _block(self, index: int) -> dict[str, Any]:
        moments = self.moments.blocks[index]
        names = ("n", "mean", "sigma", "skewness", "kappa", "largest", "beyond_3", "beyond_6")
        return {"block": index, "stack": self.model.stacks[index]} | {name: getattr(moments, name) for name in names}


def audit_tables(audit: Audit) -> list[Table]:
    """Returns the main results; `detail_tables` returns the rest."""
    ranges = f"κ_eff {_value_range(audit.kappa_weighted)}; R̂ {_value_range(audit.outlier_share)}."
    experts = () if audit.experts is None else audit.experts.sentences()
    parts = (
        Table("Experts", below=tuple(experts)),
        *audit.research_notes.tables(ranges),
        Table("What is proven", below=tuple(_certificate(audit))),
    )
    return [
        _language_table(audit),
        _carriers(audit),
        *(table for table in parts if table.rows or table.below),
        *notes_table(audit.model.notes),
    ]


def _language_table(audit: Audit) -> Table:
    """Returns one row per language, worst first; languages that cannot be trusted come last, marked."""
    damage, by_byte = audit.predicted.estimates(), audit.predicted.bits_per_byte.by_language()
    longest = max(estimate.value for estimate in audit.ranked.estimates().values())
    number, per_byte = (
        NumberFormat(max(estimate.value for estimate in column.values())) for column in (damage, by_byte)
    )
    rows: list[tuple[Cell, ...]] = []
    for code in audit.order:
        trusted, ratio = code in audit.trusted, audit.tokenization[code].tokens_per_sentence_ratio
        rows.append(
            (
                short_name(code) if trusted else [(MARK, "yellow"), short_name(code)],
                dim(code),
                number.estimate(damage[code]),
                bar(damage[code].value, longest) if trusted else "",
                per_byte(by_byte[code].value),
                f"{audit.bits_per_byte[code].value:.2f}",
                f"{audit.tokenization[code].bytes_per_token.value:.2f}",
                "–" if ratio is None else f"{ratio.value:.2f}",
            )
        )
    headers = (
        *("\nlanguage", "\ncode", f"D̂, {number.prefix}nats per token\n(95 % interval)", ""),
        *(f"D̂, {per_byte.prefix}\nbits/B", "loss,\nbits/B", "bytes\n/token", "tokens\n/eng"),
    )
    untrusted: list[Cell] = [[(f"{MARK}{UNTRUSTED}", "yellow")]] if set(audit.trusted) != set(audit.languages) else []
    below = (*untrusted, dim(LEGEND), *_gaps(audit))
    title: Cell = [(audit.model.target, "bold cyan"), "  ", (audit.scheme.name, "bold")]
    return Table(title, headers, tuple(rows), below, tuple(_about(audit)), left=(1, 2, 3))


def _about(audit: Audit) -> Iterator[Cell]:
    amounts = (
        count_of(len(audit.languages), "language"),
        count_of(len(audit.measured.document), "document"),
        count_of(int(audit.measured.predicted.sum()), "predicted token"),
    )
    yield dim(f"{audit.model.class_name}, {count_of(len(audit.moments.blocks), 'block')}")
    yield dim(f"{audit.model.split} text of {audit.model.corpus}: {', '.join(amounts)}")
    yield ""


def _gaps(audit: Audit) -> Iterator[Cell]:
    if not audit.trusted:
        yield from ("", "The model knows the text of none of these languages: the prediction does not rank them.")
    if len(audit.trusted) < 2:
        return
    damage = audit.ranked.estimates()
    worst, *_, best = worst_first(damage)
    per_token, per_byte = audit.ranked.nats_per_token.gap(), audit.ranked.bits_per_byte.gap()
    names = language_from_code(worst).name, language_from_code(best).name
    yield ""
    if per_token.low > 0 and damage[best].value > 0:
        ratio = damage[worst].value / damage[best].value
        yield f"{names[0]} has {ratio:.2g} times the predicted damage of {names[1]}, per token."
    else:
        yield f"Per token {names[0]} is worst and {names[1]} best, but the difference may be noise."
    gaps = (
        f"{gap.value:.3g} {unit} ({f'{gap.low:.2g} to {gap.high:.2g}' if gap.bounded else 'no interval'})"
        for gap, unit in ((per_token, "nats/token"), (per_byte, "bits/byte"))
    )
    yield f"Gap between worst and best, corrected for noise: {', '.join(gaps)}."


def _shares(damage: Floats) -> Floats:
    """Returns each row divided by its sum; 0 where that is 0."""
    total = damage.sum(axis=1, keepdims=True)
    share: Floats = np.divide(damage, total, out=np.zeros_like(damage), where=total > 0)
    return share


def _carriers(audit: Audit) -> Table:
    damage = audit.ranked
    worst = worst_first(damage.estimates())[0]
    row, several = damage.languages.index(worst), len(damage.languages) > 1
    blocks, tensors = _shares(damage.by_block), _shares(damage.by_linear)
    top = float(max(blocks.mean(0).max(), tensors.mean(0).max()))
    headers = ("share of D̂", "mean", "", *([language_from_code(worst).name] if several else []))
    rows: list[tuple[Cell, ...]] = []
    for names, shares in (([f"block {i}" for i in range(blocks.shape[1])], blocks), (damage.linears, tensors)):
        mean = shares.mean(0)
        for i in np.argsort(-mean, kind="stable")[:TOP]:
            of_worst = [f"{shares[row, i]:.1%}"] if several else []
            rows.append((names[i], f"{mean[i]:.1%}", bar(mean[i], top), *of_worst))
        if names is not damage.linears:
            rows.append(("",) * len(headers))
    outliers = f"Outlier blocks: {audit.research_notes.outliers}. {audit.research_notes.outliers.remark}"
    return Table("Where the damage comes from", headers, tuple(rows), ("", outliers), left=(2,))


def _value_range(estimates: Mapping[str, Estimate]) -> str:
    least, most = (choose(estimates, key=lambda code: estimates[code].value) for choose in (min, max))
    low, high = (f"{estimates[code].value:.3g}" for code in (least, most))
    return (
        low if low == high else f"{low} ({language_from_code(least).name}) to {high} ({language_from_code(most).name})"
    )


def _certificate(audit: Audit) -> Iterator[Cell]:
    """Yields the actual gap of the weighted errors, and its bound; nothing for one language."""
    certificate, worst = audit.certificate, audit.certificate.worst
    if len(certificate.languages) > 1:
        used = worst.actual / certificate.certified if certificate.certified > 0 else 1.0
        yield [
            "The errors of the weights, weighted by the inputs of each language, differ by ",
            (f"{worst.actual:.3g}", "bold"),
            f" ({short_name(worst.worse)}, {short_name(worst.better)}); no two languages can differ by more than ",
            (f"{certificate.certified:.3g}", "bold"),
            f" (tightness {used:.0%}). ",
            (SCOPE, "dim"),
        ]


def detail_tables(audit: Audit) -> list[Table]:
    """Returns every measurement of languages and blocks; tables by tensor and the patterns are only in the JSON."""
    experts = (
        [] if audit.experts is None else [replace(audit.experts.tables()[0], title="Experts by language", below=())]
    )
    remarks: list[Cell] = [[(f"{item.name} ", "bold"), item.remark] for item in audit.research_notes.conditions]
    return [
        _patterns(audit),
        _tokenization(audit),
        _redundancy(audit),
        _forms(audit),
        _blocks(audit),
        *experts,
        Table("Remarks on the research notes' conditions", below=tuple(remarks)),
    ]


def _estimates(audit: Audit, estimates: Mapping[str, Estimate]) -> dict[str, Cell]:
    ends = [end for e in estimates.values() for end in (e.low, e.value, e.high) if np.isfinite(end)]
    number = NumberFormat(max(map(abs, ends)), factor=1.0)
    return {code: number.estimate(estimates[code]) for code in audit.order}


def _patterns(audit: Audit) -> Table:
    kappa, share = _estimates(audit, audit.kappa_weighted), _estimates(audit, audit.outlier_share)
    rows = tuple(
        (language_from_code(code).name, kappa[code], f"{audit.kappa_mixture[code].value:.3g}", share[code])
        for code in audit.order
    )
    below: list[Cell] = [dim(PATTERNS)]
    for (kind, measure), pattern in audit.patterns.items() if len(audit.languages) > 1 else ():
        if measure == HEADLINE[1]:
            distances = pattern.distances()
            pair = np.unravel_index(int(np.argmax(distances)), distances.shape)
            names = " and ".join(language_from_code(pattern.languages[i]).name for i in pair)
            below.append(f"largest TV distance between patterns of {kind} outputs: {distances[pair]:.3g}, {names}")
    return Table("Activation patterns", ("language", "κ_eff", "κ mix", "R̂"), rows, tuple(below), left=(1, 3))


def _tokenization(audit: Audit) -> Table:
    sizes = _estimates(audit, {code: part.bytes_per_token for code, part in audit.tokenization.items()})
    rows = tuple(
        (
            language_from_code(code).name,
            f"{part.documents:,}",
            f"{part.tokens:,}",
            sizes[code],
            "–" if part.quality is None else f"{part.quality.value:.2f}",
            f"{part.fallback_share.value:.1%}",
            f"{part.unknown_share.value:.1%}",
        )
        for code, part in ((code, audit.tokenization[code]) for code in audit.order)
    )
    headers = ("language", "documents", "tokens", "bytes/token", "T", "cut", "unknown")
    return Table("Tokenization", headers, rows, (dim(TOKENS),), left=(3,))


def _redundancy(audit: Audit) -> Table:
    as_written = _estimates(audit, {code: part.as_written for code, part in audit.redundancy.items()})
    rows = tuple(
        (
            language_from_code(code).name,
            as_written[code],
            f"{part.unigram_entropy:.2f}",
            f"{part.loss.value:.2f}",
            f"{part.predictive_entropy.value:.2f}",
            f"{part.calibration_gap.value:.2f}",
            f"{part.effective_dimension:.1f}",
        )
        for code, part in ((code, audit.redundancy[code]) for code in audit.order)
    )
    headers = ("language", "R", "H(Y)", "loss", "entropy", "gap", "dim.")
    return Table("Redundancy proxies", headers, rows, (dim(PROXIES),), left=(1,))


def _forms(audit: Audit) -> Table:
    values = {form: damage.estimates() for form, damage in audit.damage.items()}
    factor, prefix = short_unit(max(estimate.value for form in values.values() for estimate in form.values()))
    rows = []
    for code in audit.order:
        number = NumberFormat(max(form[code].value for form in values.values()), factor=factor)
        rows.append((language_from_code(code).name, *(number(form[code].value) for form in values.values())))
    headers = ("language", *(f"{form}{f', {prefix.strip()}' if prefix else ''}" for form in values))
    shown = f"In nats per token; the table above shows the form {audit.predicted.form}."
    return Table("Predicted damage by form", headers, tuple(rows), (dim(shown),))


def _blocks(audit: Audit) -> Table:
    share, damage = audit.patterns[HEADLINE].share, _shares(audit.ranked.by_block).mean(0)
    error = dict(zip(audit.weighted_error.blocks, audit.weighted_error.by_block.mean(0), strict=True))
    rows = tuple(
        (
            str(i),
            f"{block.kappa:.2f}",
            f"{block.sigma:.4f}",
            f"{block.largest / block.sigma:.1f}" if block.sigma else "–",
            f"{block.beyond_6:.2g}",
            f"{share[:, i].min():.3f} to {share[:, i].max():.3f}",
            f"{error[i]:.3g}" if i in error else "–",
            f"{damage[i]:.1%}" if i < len(damage) else "–",
        )
        for i, block in enumerate(audit.moments.blocks)
    )
    headers = ("block", "κ", "σ", "max|w|/σ", "beyond 6σ", "ā", "error", "share of D̂")
    return Table("Blocks", headers, rows, (dim(BLOCKS),))
