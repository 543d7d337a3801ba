"""What a report is made from: scores and other saved results, and the files of a run that only a report reads."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from fairbits.auditing.audit_file import AuditFile
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits.core.records import (
    Code,
    Digest,
    Kind,
    Matching,
    Name,
    Number,
    Positive,
    Split,
    check_once,
    check_same_keys,
)
from fairbits.core.units import MEASURES, UNITS
from fairbits.evaluation.equivalent_bits import EquivalentBits, SweptDamage, WidthText
from fairbits.evaluation.gate import GateResult
from fairbits.evaluation.measurement import WHOLE
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting
from fairbits.quantization.plan import Plan
from fairbits.stats.frame import Contrast
from fairbits.stats.intervals import Estimate

RunPath = Annotated[str, Matching(r"([\w-][\w.+-]*/)?[\w-][\w.+-]*", "the name of a file in the directory of the run")]


@dataclass(frozen=True)
class Baseline:
    """A policy that a run compares with, and the file of its scores in the directory."""

    name: Name
    scores: RunPath


@dataclass(frozen=True)
class RunFile:
    """The content of run.json; `written` is the fingerprint of the quantized model, once it has been written."""

    fairbits: str
    versions: Mapping[str, str]
    model: str
    fingerprint: Digest
    policy: Name
    settings: Mapping[str, Any]
    hashes: Mapping[Split, Mapping[Code, Digest]]
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...]
    written: Digest | None = None

    def __post_init__(self) -> None:
        check_once("baselines", [baseline.name for baseline in self.baselines])


@dataclass(frozen=True)
class SavedWidth:
    """A critical width; its text shows where an end is open."""

    value: Number
    low: Number
    high: Number
    text: str


@dataclass(frozen=True)
class NotesWidth:
    """The largest excess kurtosis of a block, and the width that the research notes derive from it."""

    max_kappa: Number
    critical_width: Number


@dataclass(frozen=True)
class SweepFile:
    """The content of sweep.json; widths are keys and therefore text, as JSON requires."""

    model: str
    fingerprint: Digest
    policy: Name
    settings: Mapping[str, Any]
    measure: str
    unit: str
    threshold: Number
    sizes: Mapping[WidthText, Positive]
    damage: Mapping[Code, Mapping[WidthText, Estimate]]
    gap: Mapping[WidthText, Estimate]
    critical_width: Mapping[Code, SavedWidth]
    critical_width_of_gap: SavedWidth
    research_notes: NotesWidth
    verdict: tuple[str, ...]
    notes: tuple[str, ...]
    documents: SweptDamage | None = None

    def __post_init__(self) -> None:
        one_of("measure", self.measure, MEASURES)
        one_of("unit", self.unit, UNITS)
        if not self.sizes or not self.damage:
            raise InputError("sizes or damage is empty; a sweep has at least one width and one language")
        check_same_keys("gap", self.gap, "sizes", self.sizes)
        check_same_keys("critical_width", self.critical_width, "damage", self.damage)
        for code, curve in self.damage.items():
            check_same_keys(f"damage.{code}", curve, "sizes", self.sizes)
        if self.documents is not None:
            check_same_keys("documents.values", self.documents.values, "sizes", self.sizes)

    def check(self, fingerprint: str, setting: EvaluationSetting) -> SweptDamage:
        """Returns the damage of documents; raises unless it can be compared with that on this reference and text."""
        if self.documents is None or self.measure != "divergence":
            raise InputError("the sweep has no divergence of every document; write it again with fairbits sweep --out")
        if self.fingerprint != fingerprint:
            raise InputError(f"the sweep is of another model than the reference, {self.model}; sweep the reference")
        self.documents.check(setting)
        return self.documents

    def equivalent_bits(self, scores: Scores) -> EquivalentBits:
        """Returns at which widths of the sweep every language has the divergence of the scores."""
        documents = self.check(scores.reference.fingerprint, scores.setting)
        if scores.kl_kind != WHOLE:
            raise InputError("equivalent bits need the KL divergence over the whole vocabulary; leave the sweep out")
        return EquivalentBits.of(scores.frame(self.unit), self.policy, documents.frames(self.unit))


RUN = Kind("fairbits.run/1", "the record of a run", "fairbits run in a new directory", RunFile, optional=("written",))
SWEEP = Kind("fairbits.sweep/2", "a sweep", "fairbits sweep --out", SweepFile, optional=("documents",))


@dataclass(frozen=True, eq=False)
class Method:
    """One way to quantize the model: its name, and its cost for every language."""

    name: str
    scores: Scores


@dataclass(frozen=True, eq=False)
class Sources:
    """Everything that a report may show; missing parts are left out, and the report says so.

    `methods` begin with the model that the report is about; the second, if there is one, is the baseline. `verdict` is
    that of a release.
    `audit`, `sweep` and `run` are the content of their files. `files` has the SHA-256 of each. `config` is the content
    of the model's config.json where there is no plan, or empty.
    """

    methods: tuple[Method, ...]
    plan: Plan | None = None
    audit: AuditFile | None = None
    sweep: SweepFile | None = None
    run: RunFile | None = None
    verdict: GateResult | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fingerprints = {}
        for method in self.methods[1:]:
            self.after.check_comparable(method.scores, measure="divergence")
            fingerprints[method.name] = method.scores.reference.fingerprint
        parts = {
            "the plan": self.plan,
            "the audit": None if self.audit is None else self.audit.model,
            "the sweep": self.sweep,
        }
        fingerprints |= {name: part.fingerprint for name, part in parts.items() if part is not None}
        for name, fingerprint in fingerprints.items():
            if fingerprint != self.after.reference.fingerprint:
                raise InputError(
                    f"{name} is about a different model from the scores, which are about {self.after.reference.target};"
                    f" a report is about one model: {self._remedy(name)}"
                )

    def _remedy(self, part: str) -> str:
        """Returns how to make the part of a report from the model of the scores."""
        command = {"the audit": "audit", "the sweep": "sweep"}.get(part)
        if command is None:
            return "give files of the same model"
        setting = self.after.setting
        text = [] if setting.corpus == "udhr" else ["--text", setting.source or setting.corpus]
        words = ["fairbits", command, self.after.reference.target, "--languages", ",".join(self.after.languages)]
        return f"make {part.removeprefix('the ')}.json with {shlex.join([*words, *text, '--out', f'{command}.json'])}"

    @property
    def after(self) -> Scores:
        return self.methods[0].scores

    @property
    def before(self) -> Scores | None:
        return self.methods[1].scores if len(self.methods) > 1 else None

    @cached_property
    def contrast(self) -> Contrast | None:
        return None if self.before is None else self.after.contrast(self.before)
