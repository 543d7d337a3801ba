"""The file of an audit: every key of audit.json and its type. The large arrays are in a second file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.errors import InputError
from fairbits.language.tokenization import Tokenization
from fairbits.measure.audit.certificate import Gap
from fairbits.measure.audit.founding_documents import FoundingView
from fairbits.measure.audit.outliers import OutlierBlocks
from fairbits.measure.audit.redundancy import Redundancy
from fairbits.measure.passes.point import Point
from fairbits.records import Count, Kind, Number
from fairbits.stats import Estimate

Row = tuple[Number, ...]
ByLanguage = Mapping[str, Row]
PATTERN, FORM = "block norm", "kronecker"
"""The pattern and the form of predicted damage that are shown where there is room for only one."""


@dataclass(frozen=True)
class AuditedModel:
    """The audited model, and the text and settings of the audit."""

    target: str
    fingerprint: str
    family: str
    class_name: str
    stacks: tuple[str, ...]  # one per block
    corpus: str
    split: str
    hashes: Mapping[str, str]
    tokens: int
    sequence: int
    seed: int
    dtype: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class AuditedScheme:
    """The scheme whose damage the audit predicts; `name` is its name for readers."""

    bits: int
    group: int | None
    clip: str
    grid: str
    name: str


@dataclass(frozen=True)
class SavedTokenization(Tokenization):
    """A tokenization with its quality, which the file also stores."""

    quality: Estimate | None = None


@dataclass(frozen=True)
class AuditedLanguage:
    """All measurements of one language; `trusted` is not in files of 0.1.0, and follows from `redundancy`."""

    documents: Count
    predicted_tokens: Count
    bits_per_byte: Estimate
    kappa_weighted: Estimate
    kappa_mixture: Estimate
    outlier_share: Estimate
    tokenization: SavedTokenization
    redundancy: Redundancy
    trusted: bool | None = None


@dataclass(frozen=True)
class AuditedBlock:
    """Moments of the weights of one block."""

    block: Count
    stack: str
    n: Count
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

    founders: OutlierBlocks
    robust: OutlierBlocks


@dataclass(frozen=True)
class SavedPattern:
    """Activation of every language in `blocks`."""

    blocks: tuple[Count, ...]
    languages: tuple[str, ...]
    activation: Mapping[str, tuple[Estimate, ...]]
    share: Mapping[str, tuple[Estimate, ...]]
    distances: tuple[Row, ...]

    def __post_init__(self) -> None:
        """Checks that every row has an entry for every block."""
        for name in ("activation", "share"):
            _check_rows(name, getattr(self, name), len(self.blocks))


@dataclass(frozen=True)
class SavedDamage:
    """Predicted damage in one form; rows of `by_linear` are in the order of the file's `linears`."""

    form: str
    nats_per_token: Mapping[str, Estimate]
    bits_per_byte: Mapping[str, Estimate]
    by_block: ByLanguage
    by_linear: ByLanguage


@dataclass(frozen=True)
class SavedError:
    """Weight error, weighted by the activations of each language."""

    blocks: tuple[Count, ...]
    linears: tuple[str, ...]
    by_block: ByLanguage
    by_linear: ByLanguage
    damage: Mapping[str, Number]


@dataclass(frozen=True)
class SavedCertificate:
    """The damage differences of all pairs of languages, and their bounds."""

    languages: tuple[str, ...]
    damage: Row
    distance: tuple[Row, ...]
    actual: tuple[Row, ...]
    bound: tuple[Row, ...]
    bound_by_linear: tuple[Row, ...]
    worst: Gap
    certified: Number


@dataclass(frozen=True)
class SavedBlockExperts:
    """The experts of a block, and by language how many positions were `routed` and how many experts get few or none.

    A position counts once for each of its experts. `unreached` are the experts that no text reaches.
    """

    block: Count
    experts: Count
    per_position: Count
    unreached: Count
    routed: Mapping[str, Count]
    starved: Mapping[str, Count]
    empty: Mapping[str, Count]


@dataclass(frozen=True)
class SavedExperts:
    """The blocks that have experts; those with fewer than `least` positions of a language are starved of it."""

    least: Count
    blocks: tuple[SavedBlockExperts, ...]


@dataclass(frozen=True)
class ArraysFile:
    """The file next to the audit that holds the large arrays, and its SHA-256."""

    file: str
    sha256: str


@dataclass(frozen=True)
class AuditFile:
    """The content of audit.json; `experts` is not in files of 0.1.0, and None if the model has none."""

    model: AuditedModel
    scheme: AuditedScheme
    task: str
    languages: Mapping[str, AuditedLanguage]
    blocks: tuple[AuditedBlock, ...]
    outliers: OutlierRules
    founders: FoundingView
    patterns: Mapping[str, SavedPattern]
    damage: Mapping[str, SavedDamage]
    points: tuple[Point, ...]
    linears: tuple[str, ...]
    seen_by: Mapping[str, str]
    left_out: Mapping[str, str]
    weighted_error: SavedError
    certificate: SavedCertificate
    arrays: ArraysFile
    experts: SavedExperts | None = None

    def __post_init__(self) -> None:
        """Checks that the parts shown in reports are present for every language and block."""
        for name, held in (("patterns", PATTERN in self.patterns), ("damage", FORM in self.damage)):
            if not held:
                raise InputError(f"{name} lacks {PATTERN if name == 'patterns' else FORM!r}, which every audit has")
        for form, each in self.damage.items():
            _check_rows(f"damage.{form}.by_block", each.by_block, len(self.blocks))
            if each.nats_per_token.keys() != self.languages.keys() or each.by_block.keys() != self.languages.keys():
                raise InputError(f"damage.{form} and languages must name the same languages")
        for block in () if self.experts is None else self.experts.blocks:
            if any(each.keys() != self.languages.keys() for each in (block.routed, block.starved, block.empty)):
                raise InputError(f"experts of block {block.block} and languages must name the same languages")

    @property
    def trusted(self) -> frozenset[str]:
        """The languages whose predicted damage can be trusted, because their text is not foreign to the model."""
        return frozenset(code for code, each in self.languages.items() if not each.redundancy.foreign)

    @property
    def pattern(self) -> SavedPattern:
        """The activation pattern of the founding documents, a_l = E‖h_l‖."""
        return self.patterns[PATTERN]

    @property
    def predicted(self) -> SavedDamage:
        """The predicted damage in its default form."""
        return self.damage[FORM]


def _check_rows(name: str, rows: Mapping[str, tuple[Any, ...]], size: int) -> None:
    odd = next((code for code, row in rows.items() if len(row) != size), None)
    if odd is not None:
        raise InputError(f"{name} of {odd:.40} has {len(rows[odd])} entries; it must have {size}, one per block")


AUDIT = Kind("fairbits.audit/1", "an audit", "fairbits audit --out", AuditFile, optional=("experts",))
