"""The files of an audit: every key of audit.json and its type; the large arrays are in a second file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fairbits.core.errors import InputError
from fairbits.core.files import check_writable
from fairbits.core.records import (
    BlockIndex,
    Code,
    Count,
    Digest,
    FileName,
    Kind,
    Number,
    Positive,
    Split,
    TriedBits,
    check_once,
    check_same_keys,
    check_square,
    check_within,
)
from fairbits.forward.points import Point
from fairbits.kurtosis.certificate import Gap
from fairbits.kurtosis.checklist import OutlierBlocks, RiskAssessment
from fairbits.kurtosis.redundancy import Redundancy
from fairbits.stats.intervals import Estimate
from fairbits.text.tokenization import Tokenization

Row = tuple[Number, ...]
ByLanguage = Mapping[Code, Row]
Matrix = tuple[Row, ...]
PATTERN, FORM = "block norm", "kronecker"
"""The pattern and the form of predicted damage that are shown where there is room for only one."""


@dataclass(frozen=True)
class AuditedModel:
    """The audited model, and the text and settings of the audit."""

    target: str
    fingerprint: Digest
    family: str
    class_name: str
    stacks: tuple[str, ...]  # one per block
    corpus: str
    split: Split
    hashes: Mapping[Code, Digest]
    tokens: Positive
    sequence: Positive
    seed: Count
    dtype: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class AuditedScheme:
    """The scheme whose damage the audit predicts; `name` is its name for readers."""

    bits: TriedBits
    group: Positive | None
    clip: str
    grid: str
    name: str


@dataclass(frozen=True)
class SavedTokenization(Tokenization):
    """A tokenization with its quality, which the file also stores."""

    quality: Estimate | None = None


@dataclass(frozen=True)
class AuditedLanguage:
    """All measurements of one language; `trusted` follows from `redundancy`."""

    documents: Count
    trusted: bool
    predicted_tokens: Count
    bits_per_byte: Estimate
    kappa_weighted: Estimate
    kappa_mixture: Estimate
    outlier_share: Estimate
    tokenization: SavedTokenization
    redundancy: Redundancy


@dataclass(frozen=True)
class AuditedBlock:
    """Moments of the weights of one block."""

    block: BlockIndex
    stack: str
    n: Positive
    mean: Number
    sigma: Number
    skewness: Number
    kappa: Number
    largest: Number
    beyond_3: Number
    beyond_6: Number


@dataclass(frozen=True)
class OutlierRules:
    """The blocks that stand out, by two rules."""

    research_notes: OutlierBlocks
    robust: OutlierBlocks


@dataclass(frozen=True)
class SavedPattern:
    """Activation of every language in `blocks`."""

    blocks: tuple[BlockIndex, ...]
    languages: tuple[Code, ...]
    activation: Mapping[Code, tuple[Estimate, ...]]
    share: Mapping[Code, tuple[Estimate, ...]]
    distances: Matrix

    def __post_init__(self) -> None:
        check_once("languages", self.languages)
        check_once("blocks", [str(block) for block in self.blocks])
        for name in ("activation", "share"):
            check_same_keys(name, getattr(self, name), "languages", self.languages)
            _check_rows(name, getattr(self, name), len(self.blocks))
        check_square("distances", self.distances, len(self.languages))


@dataclass(frozen=True)
class SavedDamage:
    """Predicted damage in one form; rows of `by_linear` are in the order of the file's `linears`."""

    form: str
    nats_per_token: Mapping[Code, Estimate]
    bits_per_byte: Mapping[Code, Estimate]
    by_block: ByLanguage
    by_linear: ByLanguage


@dataclass(frozen=True)
class SavedError:
    """Weight error, weighted by the activations of each language."""

    blocks: tuple[BlockIndex, ...]
    linears: tuple[str, ...]
    by_block: ByLanguage
    by_linear: ByLanguage
    damage: Mapping[Code, Number]

    def __post_init__(self) -> None:
        for name in ("by_block", "by_linear"):
            check_same_keys(name, getattr(self, name), "damage", self.damage)
        _check_rows("by_block", self.by_block, len(self.blocks))
        _check_rows("by_linear", self.by_linear, len(self.linears), item="linear layer")


@dataclass(frozen=True)
class SavedCertificate:
    """The damage differences of all pairs of languages, and their bounds."""

    languages: tuple[Code, ...]
    damage: Row
    distance: Matrix
    actual: Matrix
    bound: Matrix
    bound_by_linear: Matrix
    worst: Gap
    certified: Number

    def __post_init__(self) -> None:
        check_once("languages", self.languages)
        if len(self.damage) != len(self.languages):
            raise InputError(f"damage has {len(self.damage)} entries; it must have one per language")
        for name in ("distance", "actual", "bound", "bound_by_linear"):
            check_square(name, getattr(self, name), len(self.languages))
        check_within("worst", (self.worst.worse, self.worst.better), "languages", self.languages)


@dataclass(frozen=True)
class SavedBlockExperts:
    """The experts of a block, and by language how many positions were `routed` and how many experts get few or none."""

    block: BlockIndex
    experts: Positive
    per_position: Positive
    unreached: Count
    routed: Mapping[Code, Count]
    few: Mapping[Code, Count]
    empty: Mapping[Code, Count]

    def __post_init__(self) -> None:
        for name, counts in (("few", self.few), ("empty", self.empty), ("unreached", {"": self.unreached})):
            odd = next((code for code, number in counts.items() if number > self.experts), None)
            if odd is not None:
                raise InputError(f"{name} {odd} is {counts[odd]}; it must be at most the experts, {self.experts}")


@dataclass(frozen=True)
class SavedExperts:
    """The blocks that have experts; fewer than `least` positions of a language are `few`."""

    least: Count
    blocks: tuple[SavedBlockExperts, ...]


@dataclass(frozen=True)
class ArraysFile:
    """The file next to the audit that holds the large arrays, and its SHA-256."""

    file: FileName
    sha256: Digest


@dataclass(frozen=True)
class AuditFile:
    """The content of audit.json; `experts` is None if the model has none."""

    model: AuditedModel
    scheme: AuditedScheme
    task: str
    languages: Mapping[Code, AuditedLanguage]
    blocks: tuple[AuditedBlock, ...]
    outliers: OutlierRules
    research_notes: RiskAssessment
    patterns: Mapping[str, SavedPattern]
    damage: Mapping[str, SavedDamage]
    points: tuple[Point, ...]
    linears: tuple[str, ...]
    seen_by: Mapping[str, str]
    left_out: Mapping[str, str]
    weighted_error: SavedError
    certificate: SavedCertificate
    arrays: ArraysFile
    experts: SavedExperts | None

    def __post_init__(self) -> None:
        for name, present in (("patterns", PATTERN in self.patterns), ("damage", FORM in self.damage)):
            if not present:
                raise InputError(f"{name} lacks {PATTERN if name == 'patterns' else FORM!r}, which every audit has")
        if [block.block for block in self.blocks] != list(range(len(self.model.stacks))):
            raise InputError(
                f"blocks must be 0 … {len(self.model.stacks) - 1}, in this order, one for each of model.stacks"
            )
        self._check_languages()
        for form, damage in self.damage.items():
            _check_rows(f"damage.{form}.by_block", damage.by_block, len(self.blocks))
            _check_rows(f"damage.{form}.by_linear", damage.by_linear, len(self.linears), item="linear layer")
        for name, pattern in self.patterns.items():
            numbers = map(str, range(len(self.blocks)))
            check_within(f"patterns.{name}.blocks", map(str, pattern.blocks), "blocks", numbers)

    def _check_languages(self) -> None:
        parts: dict[str, Iterable[str]] = {"model.hashes": self.model.hashes}
        parts |= {f"patterns.{name}": pattern.languages for name, pattern in self.patterns.items()}
        for form, damage in self.damage.items():
            for name in ("nats_per_token", "bits_per_byte", "by_block", "by_linear"):
                parts[f"damage.{form}.{name}"] = getattr(damage, name)
        parts |= {"weighted_error.damage": self.weighted_error.damage, "certificate": self.certificate.languages}
        for block in () if self.experts is None else self.experts.blocks:
            for name in ("routed", "few", "empty"):
                parts[f"experts of block {block.block}, {name}"] = getattr(block, name)
        for name, codes in parts.items():
            check_same_keys(name, codes, "languages", self.languages)

    @property
    def trusted(self) -> frozenset[str]:
        """The languages whose predicted damage can be trusted, because their text is not foreign to the model."""
        return frozenset(code for code, language in self.languages.items() if language.trusted)

    @property
    def pattern(self) -> SavedPattern:
        """The activation pattern of the research notes, a_l = E‖h_l‖."""
        return self.patterns[PATTERN]

    @property
    def predicted(self) -> SavedDamage:
        return self.damage[FORM]


def _check_rows(name: str, rows: Mapping[str, tuple[Any, ...]], size: int, *, item: str = "block") -> None:
    odd = next((code for code, row in rows.items() if len(row) != size), None)
    if odd is not None:
        raise InputError(f"{name} of {odd:.40} has {len(rows[odd])} entries; it must have {size}, one per {item}")


AUDIT = Kind("fairbits.audit/1", "an audit", "fairbits audit --out", AuditFile)


def stored_arrays(path: Path, audit: AuditFile, names: Sequence[str]) -> list[NDArray[Any]]:
    """Returns arrays of an audit by name; `path` is the path of audit.json, `audit` its content."""
    arrays_path = path.with_name(audit.arrays.file)
    try:
        with safe_open(arrays_path, framework="numpy") as arrays:
            return [arrays.get_tensor(name) for name in names]
    except (OSError, SafetensorError) as problem:
        raise InputError(
            f"{arrays_path}, the second file of {path}, cannot be read ({problem}); keep both files together, or audit "
            "again"
        ) from None


def check_audit_target(path: str | Path) -> tuple[Path, Path]:
    """Returns the paths of the two files of an audit; raises if they cannot be written."""
    target = check_writable(path, example="audit.json")
    if target.suffix != ".json":
        raise InputError(
            f"{target} does not end in .json; the arrays are written to a second file next to it: rename it"
        )
    arrays_path = check_writable(target.with_suffix(".safetensors"), example="audit.json")
    if arrays_path.exists() and not _is_audit_with(target, arrays_path.name):
        raise InputError(
            f"{arrays_path} exists and does not belong to an audit; it would be overwritten: give another name"
        )
    return target, arrays_path


def _is_audit_with(path: Path, arrays: str) -> bool:
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
