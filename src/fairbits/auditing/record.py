"""Audit: everything measured before quantization, as one record that is saved in two files.

Reading the second file of an audit, which holds its large arrays.

How an audit is shown: as a table, a pandas DataFrame and a figure.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save as to_safetensors

from fairbits.auditing.audit_file import AUDIT, FORM, AuditedModel
from fairbits.auditing.damage import PredictedDamage
from fairbits.auditing.expert_use import ExpertUse
from fairbits.core.array_checks import Floats
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits.core.figure import Figure, heatmap
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import to_json
from fairbits.core.table import Shown, Table, data_frame
from fairbits.forward.recorder import PointKind
from fairbits.forward.statistics import ActivationStatistics, Measure
from fairbits.kurtosis.certificate import Certificate, WeightedError
from fairbits.kurtosis.checklist import OutlierBlocks, RiskAssessment
from fairbits.kurtosis.patterns import Pattern
from fairbits.kurtosis.redundancy import Redundancy
from fairbits.models.scales.scheme import Scheme
from fairbits.models.weight_moments import ModelMoments
from fairbits.stats.frame import cells, estimate_columns, figure_of_series, worst_first
from fairbits.stats.intervals import Estimate
from fairbits.text.language_codes import language_from_code
from fairbits.text.tokenization import Tokenization

if TYPE_CHECKING:
    import pandas


HEADLINE: tuple[PointKind, Measure] = ("block", "norm")
"""The pattern from which κ_eff and R̂ are computed: the research notes define a_l = E‖h_l‖ (000-10)."""


@dataclass(frozen=True, eq=False, repr=False)
class Audit(Shown):
    """Which languages a scheme will damage, and why.

    `damage` maps each form to D̂(λ); `patterns` maps (kind of point, measure) to an activation pattern. `experts` says
    which of a model's experts get little text of a language; None if it has none.
    """

    subject: AuditedModel
    scheme: Scheme
    measured: ActivationStatistics
    moments: ModelMoments
    robust: OutlierBlocks
    patterns: Mapping[tuple[PointKind, Measure], Pattern]
    founders: RiskAssessment
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
        """The codes of the languages."""
        return self.measured.languages

    @cached_property
    def predicted(self) -> PredictedDamage:
        """D̂(λ) in its default form."""
        return self.damage[FORM]

    @property
    def trusted(self) -> tuple[str, ...]:
        """The languages whose predicted damage can be trusted, because their text is not foreign to the model."""
        return tuple(code for code in self.languages if not self.redundancy[code].foreign)

    @cached_property
    def ranked(self) -> PredictedDamage:
        """D̂(λ) of the trusted languages; of all languages if none is trusted."""
        return self.predicted.restrict(self.trusted or self.languages)

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a table with a row for every language, the largest predicted damage first."""
        return pandas_of(self)

    def plot(self, what: str = "languages") -> Figure:
        """Returns a figure for a notebook: predicted damage of "languages", or how much of it comes from "blocks".

        "experts" is the share of experts that get little text of a language, by block.
        """
        return figure_of(self, what)

    def _table(self) -> Table:
        return table_of(self)

    def as_data(self) -> dict[str, Any]:
        """Returns everything except the large arrays, for JSON."""
        measured = self.measured
        content = {
            "model": asdict(self.subject),
            "scheme": _scheme_data(self.scheme),
            "task": measured.task,
            "languages": {code: self._language(code) for code in self.languages},
            "blocks": [self._block(index) for index in range(len(self.moments.blocks))],
            "outliers": {"founders": self.founders.outliers.as_data(), "robust": self.robust.as_data()},
            "founders": self.founders.as_data(),
            "patterns": {
                f"{kind} {measure}": {"blocks": measured.blocks(kind)} | each.as_data()
                for (kind, measure), each in self.patterns.items()
            },
            "damage": {form: each.as_data() for form, each in self.damage.items()},
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
        path, beside = check_audit_target(path)
        arrays = to_safetensors(self.arrays())
        data = self.as_data() | {"arrays": {"file": beside.name, "sha256": hashlib.sha256(arrays).hexdigest()}}
        write_files({beside: arrays, path: to_json(round_floats(data))})

    def arrays(self) -> dict[str, Any]:
        """Returns what is too large for JSON: document sums, channel mean squares, experts, second moments."""
        measured = self.measured
        groups: dict[str, Mapping[str, Floats]] = {
            "channels": measured.channels,
            "gradients": measured.gradients,
            "inputs": measured.inputs,
        }
        named = {f"{group}/{name}": each for group, arrays in groups.items() for name, each in arrays.items()}
        documents = {
            "documents/language": np.array([self.languages.index(code) for code in measured.lang.tolist()]),
            "documents/id": measured.document,
            **{f"documents/{name}": getattr(measured, name) for name in ("size_bytes", "predicted", "nll", "entropy")},
            **{f"documents/{name}": getattr(measured, name) for name in ("positions", "norm", "square")},
            **{f"documents/damage {form}": each.sums for form, each in self.damage.items()},
        }
        counts = {} if self.experts is None else self.experts.arrays()
        return {name: np.ascontiguousarray(each) for name, each in (named | documents | counts).items()}

    def _language(self, code: str) -> dict[str, Any]:
        own = self.measured.lang == code
        return {
            "documents": int(own.sum()),
            "trusted": not self.redundancy[code].foreign,
            "predicted_tokens": int(self.measured.predicted[own].sum()),
            "bits_per_byte": self.bits_per_byte[code].to_dict(),
            "kappa_weighted": self.kappa_weighted[code].to_dict(),
            "kappa_mixture": self.kappa_mixture[code].to_dict(),
            "outlier_share": self.outlier_share[code].to_dict(),
            "tokenization": self.tokenization[code].as_data(),
            "redundancy": self.redundancy[code].as_data(),
        }

    def _block(self, index: int) -> dict[str, Any]:
        found = self.moments.blocks[index]
        names = ("n", "mean", "sigma", "skewness", "kappa", "largest", "beyond_3", "beyond_6")
        return {"block": index, "stack": self.subject.stacks[index]} | {name: getattr(found, name) for name in names}


def _scheme_data(scheme: Scheme) -> dict[str, Any]:
    """Returns a scheme for JSON. As in files of 0.1.0, the group is null if it is the whole row."""
    group = None if scheme.group == "channel" else scheme.group
    return {"bits": scheme.bits, "group": group, "clip": scheme.clip, "grid": scheme.grid, "name": scheme.name}


def check_audit_target(path: str | Path) -> tuple[Path, Path]:
    """Returns the paths of the two files of an audit; raises if they cannot be written."""
    target = check_writable(path, example="audit.json")
    if target.suffix != ".json":
        raise InputError(
            f"{target} does not end in .json; the arrays are written to a second file next to it: rename it"
        )
    beside = check_writable(target.with_suffix(".safetensors"), example="audit.json")
    if beside.exists() and not _is_audit_with(target, beside.name):
        raise InputError(f"{beside} exists and does not belong to an audit; it would be overwritten: give another name")
    return target, beside


def _is_audit_with(path: Path, arrays: str) -> bool:
    """Returns whether `path` is an audit whose arrays are in that file."""
    try:
        return AUDIT.read(path).arrays.file == arrays
    except InputError:
        return False


def round_floats(data: Any) -> Any:
    """Returns the data with floats rounded to 9 significant digits, the accuracy of float32 sums."""
    if isinstance(data, float):
        return float(f"{data:.9g}")
    if isinstance(data, dict):
        return {key: round_floats(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [round_floats(value) for value in data]
    return data


def table_of(audit: "Audit") -> Table:
    """Returns the predicted damage of every language in bits per byte; "?" marks those that are not to be trusted."""
    damage = audit.predicted.bits_per_byte.by_language()
    rows = tuple(
        (
            code if code in audit.trusted else f"{code} ?",
            language_from_code(code).name,
            *cells(damage[code]),
            cells(audit.bits_per_byte[code])[0],
            str(damage[code].n),
        )
        for code in _order(audit)
    )
    unsure = ("? the model was probably not trained on such text: do not trust its predicted damage",)
    return Table(
        f"{audit.subject.target}: predicted damage of {audit.scheme.name} in bits per byte, 95% intervals",
        ("language", "name", "damage", "low", "high", "loss before", "documents"),
        rows,
        () if set(audit.trusted) == set(audit.languages) else unsure,
    )


def pandas_of(audit: "Audit") -> "pandas.DataFrame":
    """Returns one row per language, the largest predicted damage first."""
    order = _order(audit)
    columns: dict[str, list[Any]] = {
        "language": order,
        "name": [language_from_code(code).name for code in order],
        "trusted": [code in audit.trusted for code in order],
        "documents": [int((audit.measured.lang == code).sum()) for code in order],
    }
    columns["tokens"] = [int(audit.measured.predicted[audit.measured.lang == code].sum()) for code in order]
    predicted = audit.predicted
    for name, found in (
        ("predicted_bits_per_byte", predicted.bits_per_byte.by_language()),
        ("predicted_nats_per_token", predicted.nats_per_token.by_language()),
        ("bits_per_byte", audit.bits_per_byte),
        ("kappa_weighted", audit.kappa_weighted),
        ("kappa_mixture", audit.kappa_mixture),
        ("outlier_share", audit.outlier_share),
        ("bytes_per_token", {code: each.bytes_per_token for code, each in audit.tokenization.items()}),
    ):
        columns |= estimate_columns(name, (found[code] for code in order))
    return data_frame(columns, index="language")


def figure_of(audit: "Audit", what: str) -> Figure:
    """Returns the predicted damage of every language, or of every language by the block that causes it; or experts."""
    scheme = audit.scheme.name
    if one_of("what", what, ("languages", "blocks", "experts")) == "experts":
        if audit.experts is None:
            raise InputError(f"{audit.subject.target} has no experts whose text was counted; plot languages or blocks")
        return audit.experts.plot()
    if what == "languages":
        damage = audit.predicted.bits_per_byte.by_language()
        return figure_of_series({"predicted": damage}, title=f"Predicted damage of {scheme}", unit="bits_per_byte")
    order, own = _order(audit), audit.predicted
    rows = dict(zip(own.languages, own.by_block.tolist(), strict=True))
    return heatmap(
        f"Predicted damage of {scheme} in nats per token, by block",
        [rows[code] for code in order],
        rows=order,
        columns=[str(block) for block in range(own.by_block.shape[1])],
        axis="block",
    )


def _order(audit: "Audit") -> list[str]:
    return worst_first(audit.predicted.bits_per_byte.by_language())
