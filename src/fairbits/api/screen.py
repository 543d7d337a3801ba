"""Screen: many models, one row each: outlier blocks, and what the research notes predict for the model.

Their risk class depends on max κ alone (3.1 of the second document). It is shown so that it can be tested, not because
it holds: a model with max κ < 5 can have a gap too (001-09), and no data support the thresholds (001-23).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairbits.api.audit import audit
from fairbits.core.checks import sequence, whole
from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.progress import Progress, within
from fairbits.core.records import read_object
from fairbits.core.version import __version__
from fairbits.kurtosis.checklist import (
    OutlierBlocks,
    RiskAssessment,
    outlier_blocks,
    published_statistics,
    risk_assessment,
    robust_outliers,
)
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.hub_checkpoint import open_to_read, split_revision
from fairbits.models.scales.scheme import Scheme
from fairbits.models.weight_moments import weight_moments
from fairbits.stats.correlation import pearson_fisher
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import Corpus

SCHEMA = "fairbits.screen/1"
PUBLISHED_MODELS = {
    "bigscience/bloom-560m": "BLOOM-560M",
    "facebook/xglm-564M": "XGLM-564M",
    "google/mt5-small": "mT5-small",
    "FacebookAI/xlm-roberta-base": "XLM-R-base",
    "openai-community/gpt2": "GPT-2-small",
    "facebook/opt-125m": "OPT-125M",
    "EleutherAI/pythia-70m": "Pythia-70M",
    "EleutherAI/pythia-160m": "Pythia-160M",
    "EleutherAI/pythia-410m": "Pythia-410M",
    "prajjwal1/bert-tiny": "BERT-Tiny",
    "distilbert/distilbert-base-multilingual-cased": "DistilmBERT",
    "sshleifer/tiny-gpt2": "Tiny-GPT2",
}
"""The models of the published census: id on the Hub -> name in `published_statistics().max_kurtosis`."""
PUBLISHED_SHAPES = {
    **dict.fromkeys(("BLOOM-560M", "XGLM-564M", "Pythia-410M"), (24, 1024)),
    **dict.fromkeys(("GPT-2-small", "OPT-125M", "XLM-R-base", "Pythia-160M"), (12, 768)),
    "mT5-small": (8, 512),
    "Pythia-70M": (6, 512),
    "DistilmBERT": (6, 768),
    "BERT-Tiny": (2, 128),
    "Tiny-GPT2": (2, 2),
}
"""Their blocks (of the encoder, where there are two stacks) and hidden size, as in config.json."""
SHAPE_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers"), ("hidden_size", "n_embd", "d_model", "dim")

CAVEAT = (
    "class, C1, C2: the research notes' thresholds, which no data support (001-22, 001-23); LOW does not mean that "
    "no language suffers (001-09). max κ is that of all linear layers of a block together, tensor κ that of the worst "
    "one alone. D̂: predicted nats per token, one scale per channel, no clipping."
)
R_CAVEAT = (
    "r(R̂, D̂): correlation over languages of the activation in the outlier blocks and the predicted, not measured, "
    "damage, with its 95 % interval; fairbits research correlations measures the damage."
)
LEAST_CORRELATED = 4  # languages; with fewer a correlation has no interval


@dataclass(frozen=True)
class Published:
    """The published κ of a model, and whether it was recognized by its own name or by its stated origin."""

    name: str
    kappa: float
    by_origin: bool  # `_name_or_path` in config.json: the model may have been trained further


@dataclass(frozen=True)
class FromText:
    """Results that need text: share of activation in outlier blocks and predicted damage, by language."""

    outlier_share: Mapping[str, float]
    damage: Mapping[str, float]  # D̂(λ) in nats per token

    @property
    def r(self) -> Estimate | None:
        """Pearson's r of R̂ and D̂ over languages; None where they are few, or one of the two does not vary."""
        share, damage = (np.array(list(values.values())) for values in (self.outlier_share, self.damage))
        if len(share) < LEAST_CORRELATED or min(np.ptp(share), np.ptp(damage)) == 0:
            return None
        return pearson_fisher(share, damage).estimate


@dataclass(frozen=True)
class FromWeights:
    """Results that need only the weights."""

    fingerprint: str
    notes: tuple[str, ...]
    kappa: tuple[float, ...]  # of every block
    tensor: str  # the linear layer with the largest κ
    tensor_kappa: float
    robust: OutlierBlocks
    published: Published | None


@dataclass(frozen=True)
class Row:
    """One model; `problem` says why it could not be opened, or why results from text are missing."""

    target: str
    weights: FromWeights | None = None
    text: FromText | None = None
    view: RiskAssessment | None = None
    problem: str | None = None

    def as_data(self) -> dict[str, Any]:
        w = self.weights
        return {
            "target": self.target,
            "problem": self.problem,
            "fingerprint": w and w.fingerprint,
            "notes": [] if w is None else list(w.notes),
            "kappa": w and list(w.kappa),
            "max_tensor": w and w.tensor,
            "max_tensor_kappa": w and w.tensor_kappa,
            "robust_outliers": w and asdict(w.robust),
            "published": w and w.published and vars(w.published),
            "research_notes": self.view and asdict(self.view),
            "outlier_share": self.text and dict(self.text.outlier_share),
            "predicted_damage": self.text and dict(self.text.damage),
            "r_of_share_and_predicted_damage": self.text and self.text.r and self.text.r.to_dict(),
        }


@dataclass(frozen=True)
class Screening:
    """The rows in the order in which the models were named."""

    rows: tuple[Row, ...]
    bits: int
    with_text: bool

    @property
    def with_r(self) -> bool:
        return any(row.text is not None and row.text.r is not None for row in self.rows)

    @property
    def complete(self) -> bool:
        return all(row.problem is None for row in self.rows)

    def as_data(self) -> dict[str, Any]:
        models = [row.as_data() for row in self.rows]
        notes = [CAVEAT, *([R_CAVEAT] if self.with_r else [])]
        return {"schema": SCHEMA, "fairbits": __version__, "bits": self.bits, "notes": notes, "models": models}


def _measure_with_text(
    checkpoint: Checkpoint, corpus: Corpus, bits: int, *, outlier_kappa: float | None = None
) -> FromText:
    audited = audit(checkpoint, text=corpus, scheme=Scheme(bits, "channel"), outlier_kappa=outlier_kappa)
    both = (audited.outlier_share, audited.predicted.estimates())
    return FromText(*({code: estimate.value for code, estimate in estimates.items()} for estimates in both))


def screen(
    targets: Iterable[str | Path],
    *,
    corpus: Corpus | None = None,
    bits: int = 4,
    outlier_kappa: float | None = None,
    trust_remote_code: bool = False,
    measure: Callable[[Checkpoint, Corpus, int], FromText] | None = None,
    progress: Progress | None = None,
) -> Screening:
    """Returns one row per model; a model that cannot be opened has a row that says why, and does not stop the others.

    C2 and the predicted damage need text. Without text, a model on the Hub (an id, or ID@REVISION) is read there, one
    tensor after the other; with text it is downloaded. Blocks with κ above `outlier_kappa` are outlier blocks; without
    it those with κ > 100, or those that stand out. Stages reported to `progress` begin with the target.
    """
    named = sequence("targets", targets)
    if not named:
        raise InputError("targets is empty; give at least one model")
    whole("bits", bits, least=2, most=8)
    measured = partial(_measure_with_text, outlier_kappa=outlier_kappa) if measure is None else measure
    rows = []
    for target in named:
        row = Row(str(target))
        try:
            name, revision = split_revision(target)
            opened = open_to_read if corpus is None else Checkpoint  # text needs the whole model
            checkpoint = opened(name, trust_remote_code=trust_remote_code, revision=revision)
            weights = _read_weights(checkpoint, progress)
            outliers = outlier_blocks(weights.kappa, threshold=outlier_kappa)
            row = Row(
                row.target,
                weights,
                view=risk_assessment(weights.kappa, outlier_share=None, bits=bits, outliers=outliers),
            )
            if corpus is not None:
                text = measured(checkpoint, corpus, bits)
                view = risk_assessment(weights.kappa, outlier_share=text.outlier_share, bits=bits, outliers=outliers)
                row = Row(row.target, weights, text, view)
        except (FairbitsError, OSError) as problem:
            row = Row(row.target, row.weights, view=row.view, problem=str(problem))
        rows.append(row)
    return Screening(tuple(rows), bits, corpus is not None)


def published_kappa(checkpoint: Checkpoint) -> Published | None:
    """Returns the published maximum κ of a model in the research notes; None for any other.

    A model is recognized by its full id on the Hub, by the name of its directory, or by the origin in config.json, if
    it has the blocks and the hidden size of the published one. A GGUF file or an embedded model never is: its weights
    are different.
    """
    if checkpoint.kind not in ("hub", "directory"):
        return None
    census = published_statistics().max_kurtosis
    by_id = {key.casefold(): name for key, name in PUBLISHED_MODELS.items()}
    by_name = {key.partition("/")[2]: name for key, name in by_id.items()}
    named = checkpoint.target if checkpoint.kind == "hub" else checkpoint.directory.resolve().name
    config = read_object(checkpoint.directory / "config.json", finite=False)
    shape = tuple(next((config[key] for key in keys if key in config), None) for keys in SHAPE_KEYS)
    for name, by_origin in ((named, False), (config.get("_name_or_path"), True)):
        folded = name.casefold() if isinstance(name, str) else ""
        name = (by_id if "/" in folded else by_name).get(folded)  # old ids have no owner
        if name is not None and shape == PUBLISHED_SHAPES[name]:
            return Published(name, float(census[name]), by_origin)
    return None


def _read_weights(checkpoint: Checkpoint, progress: Progress | None) -> FromWeights:
    moments = weight_moments(checkpoint, progress=within(progress, checkpoint.target))
    kappa = tuple(block.kappa for block in moments.blocks)
    linears = [name for block in checkpoint.architecture.blocks for name in block.linears]
    tensor = max(linears, key=lambda name: moments.tensors[name].kappa)
    largest, robust, published = moments.tensors[tensor].kappa, robust_outliers(kappa), published_kappa(checkpoint)
    return FromWeights(checkpoint.fingerprint, checkpoint.notes, kappa, tensor, largest, robust, published)
