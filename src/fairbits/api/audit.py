"""Audit: predicts the damage of every language from the weights and one pass over text."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from fairbits.api.fit import text_workload, within_memory
from fairbits.auditing.audit_file import FORM, AuditedModel
from fairbits.auditing.damage import RESAMPLES, predicted_damage
from fairbits.auditing.record import HEADLINE, Audit
from fairbits.core.checks import instance
from fairbits.core.progress import Progress
from fairbits.core.units import bits
from fairbits.forward.points import Measure, PointKind
from fairbits.forward.recorder import FORMS
from fairbits.forward.statistics import ActivationStatistics, collect_statistics, column_errors
from fairbits.forward.tokenize import estimated_size_notes, open_corpus_for
from fairbits.kurtosis.certificate import activation_weighted, certificate
from fairbits.kurtosis.checklist import OutlierBlocks, outlier_blocks, risk_assessment, robust_outliers
from fairbits.kurtosis.patterns import Pattern
from fairbits.kurtosis.redundancy import FOREIGN, Redundancy, redundancy
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.models.weight_moments import ModelMoments, weight_moments
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.tokenization import tokenization

DEFAULT_SCHEME = Scheme()
MEASURES: tuple[Measure, ...] = ("norm", "square")
PATTERNS: tuple[PointKind, ...] = ("block", "mlp", "attention")


def audit(
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    scheme: Scheme = DEFAULT_SCHEME,
    tokens: int = 4096,
    sequence: int = 512,
    second_moments: bool = False,
    outlier_layers: Sequence[int] | None = None,
    outlier_kappa: float | None = None,
    seed: int = 0,
    device: str = AUTO,
    progress: Progress | None = None,
) -> Audit:
    """Returns the damage that `scheme` is predicted to do to every language, and why, measured on calibration text.

    `model` may be a loaded model of transformers, with its `tokenizer`; it is not changed. `text` is a corpus or its
    path; without it the embedded declaration is used, for the embedded model in its own languages unless others are
    named. `tokens` is the budget per language. `second_moments` keeps E[x xᵀ] of every
    input. R̂ and C2 count the blocks `outlier_layers`, or those with κ above `outlier_kappa`; without either, the blocks
    with κ > 100, or those that stand out from the others if there are none.
    """
    request = TextRequest("calibration", tokens, sequence, seed)
    device = resolve_device(device)
    checkpoint = open_checkpoint(model, tokenizer)
    corpus = open_corpus_for(checkpoint, text, languages)
    instance("scheme", scheme, Scheme)
    n_blocks = len(checkpoint.architecture.blocks)
    outlier_blocks(np.zeros(n_blocks), layers=outlier_layers, threshold=outlier_kappa)  # before it takes time
    workload = text_workload("audit", checkpoint, corpus, request, device=device)
    with within_memory(workload, device=device, progress=progress) as show, _hash_meanwhile(checkpoint) as hashing:
        measured = collect_statistics(
            checkpoint,
            corpus,
            request=request,
            schemes=(scheme,),
            second_moments=second_moments,
            least=1,
            device=device,
            progress=show,
        )
        moments = weight_moments(checkpoint, progress=show)
        show("computing results", 0, 1)
        hashing.join()
        kappa = [block.kappa for block in moments.blocks]
        return build_audit(
            checkpoint,
            corpus,
            measured=measured,
            moments=moments,
            scheme=scheme,
            request=request,
            outliers=outlier_blocks(kappa, layers=outlier_layers, threshold=outlier_kappa),
            device=device,
        )


@contextmanager
def _hash_meanwhile(checkpoint: Checkpoint) -> Iterator[threading.Thread]:
    """Gives a thread that computes the fingerprint of a checkpoint, which takes a minute for 16 GB on some machines.

    If it fails there, it will be computed again where it is needed, and fail there. After an error it is waited for: it
    reads weights that may be the caller's.
    """

    def compute() -> None:
        with suppress(Exception):
            checkpoint.fingerprint  # noqa: B018  # the checkpoint keeps it

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    try:
        yield thread
    except Exception:
        thread.join()
        raise


def build_audit(
    checkpoint: Checkpoint,
    corpus: Corpus,
    *,
    measured: ActivationStatistics,
    moments: ModelMoments,
    scheme: Scheme,
    request: TextRequest,
    outliers: OutlierBlocks | None = None,
    device: str = "cpu",
) -> Audit:
    """Returns the audit of one of the measured schemes; only the weights are read again, for their errors."""
    kappa = np.array([block.kappa for block in moments.blocks])
    outliers = outlier_blocks(kappa) if outliers is None else outliers
    patterns = {
        (kind, measure): Pattern(
            measured.lang,
            measured.document,
            sums=measured.sums(kind, measure),
            tokens=measured.sums(kind, "positions"),
            resamples=RESAMPLES,
        )
        for kind in PATTERNS
        for measure in MEASURES
        if measured.blocks(kind)
    }
    headline = patterns[HEADLINE]
    share = headline.fraction(outliers.blocks or ())
    weights = checkpoint.architecture.weights
    block_of = {name: block for name in measured.linears if (block := weights[name].block) is not None}
    h = {name: measured.channels[point] for name, point in measured.seen_by.items()}
    errors = column_errors(checkpoint, measured.linears, scheme=scheme, device=device)
    proxies = language_redundancy(measured)
    damage = {form: predicted_damage(measured, scheme, form=form, block_of=block_of) for form in FORMS}
    notes = (*_notes_on_foreign_text(proxies), *damage[FORM].interval_notes)
    return Audit(
        model=_audited_model(checkpoint, corpus, measured, request, notes),
        scheme=scheme,
        measured=measured,
        moments=moments,
        robust=robust_outliers(kappa),
        patterns=patterns,
        research_notes=risk_assessment(
            kappa,
            outlier_share={code: estimate.value for code, estimate in share.items()},
            bits=scheme.bits,
            outliers=outliers,
        ),
        kappa_weighted=headline.kappa_weighted(kappa),
        kappa_mixture=headline.kappa_mixture(moments.blocks),
        outlier_share=share,
        tokenization=tokenization(corpus.calibration, checkpoint.tokenizer(), parallel=corpus.parallel),
        redundancy=proxies,
        bits_per_byte=_bits_per_byte(measured),
        weighted_error=activation_weighted(h, errors, block_of=block_of, languages=measured.languages),
        certificate=certificate(h, errors, languages=measured.languages),
        damage=damage,
    )


def _bits_per_byte(measured: ActivationStatistics) -> dict[str, Estimate]:
    frame = LanguageFrame(
        measured.lang, measured.document, values=bits(measured.nll), weights=measured.size_bytes, resamples=RESAMPLES
    )
    estimates = frame.by_language()
    return {code: estimates[code] for code in measured.languages}


def language_redundancy(measured: ActivationStatistics) -> dict[str, Redundancy]:
    """Returns proxies of each language's redundancy from the measurements of one pass over text."""
    return redundancy(
        measured.languages,
        lang=measured.lang,
        document=measured.document,
        tokens=measured.predicted,
        nll=measured.nll,
        entropy=measured.entropy,
        unigrams=measured.unigrams,
        mean_squares={p.name: measured.channels[p.name] for p in measured.points if p.kind == "block"},
        second_moments=measured.inputs or None,
        resamples=RESAMPLES,
    )


def _audited_model(
    checkpoint: Checkpoint, corpus: Corpus, measured: ActivationStatistics, request: TextRequest, notes: Iterable[str]
) -> AuditedModel:
    sizes = estimated_size_notes(measured.estimated, len(measured.lang))
    notes = [*checkpoint.notes, *corpus.notes, *sizes, *measured.notes, *notes]
    reasons = dict.fromkeys(measured.left_out.values())
    notes += [f"{sum(v == r for v in measured.left_out.values())} linear layers are left out: {r}" for r in reasons]
    return AuditedModel(
        target=checkpoint.target,
        fingerprint=checkpoint.fingerprint,
        family=checkpoint.architecture.family,
        class_name=checkpoint.architecture.class_name,
        stacks=tuple(block.stack for block in checkpoint.architecture.blocks),
        corpus=corpus.name,
        split=request.split,
        hashes=dict(corpus.hashes[request.split]),
        dtype=measured.dtype,
        notes=tuple(notes),
        **request.settings,
    )


def _notes_on_foreign_text(proxies: Mapping[str, Redundancy]) -> list[str]:
    foreign = [code for code, proxy in proxies.items() if proxy.foreign]
    if not foreign:
        return []
    return [
        f"do not trust the predicted damage of {', '.join(foreign)}: the model was probably not trained on text like "
        f"this (its loss is over {FOREIGN:g} times the entropy of its predictions); use text like that to be served"
    ]
