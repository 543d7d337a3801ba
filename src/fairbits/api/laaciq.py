"""LA-ACIQ on a model: the thresholds that the research notes give every language, and the exact ones."""

from collections.abc import Iterable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from fairbits.api.fit import text_workload, within_memory
from fairbits.core.checks import whole
from fairbits.core.progress import Progress
from fairbits.forward.statistics import collect_statistics
from fairbits.forward.tokenize import open_corpus_for
from fairbits.kurtosis.clipping_record import LanguageClipping
from fairbits.kurtosis.language_clipping import language_clipping
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.models.weight_moments import weight_moments
from fairbits.text.corpus import Corpus, TextRequest


def laaciq(
    model: Model,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    bits: int = 4,
    tokens: int = 4096,
    sequence: int = 512,
    seed: int = 0,
    device: str = AUTO,
    progress: Progress | None = None,
) -> LanguageClipping:
    """Returns the clip thresholds α*(λ) of LA-ACIQ: as the research notes write them, and exact.

    `model` may be a loaded model of transformers, with its `tokenizer`; it is not changed. `text` is a corpus or its
    path; without it the embedded declaration is used. `tokens` is the budget per language.
    """
    whole("bits", bits, least=2, most=8)
    request = TextRequest("calibration", tokens, sequence, seed)
    device = resolve_device(device)
    checkpoint = open_checkpoint(model, tokenizer)
    corpus = open_corpus_for(checkpoint, text, languages)
    workload = text_workload("audit", checkpoint, corpus, request, device=device)
    with within_memory(workload, device=device, progress=progress) as show:
        return measure_clipping(checkpoint, corpus, request, bits=bits, device=device, progress=show)


def measure_clipping(
    checkpoint: Checkpoint,
    corpus: Corpus,
    request: TextRequest,
    *,
    bits: int,
    products: bool = True,
    device: str = "cpu",
    progress: Progress | None = None,
) -> LanguageClipping:
    """Returns the thresholds of a checkpoint, after one pass over the text and two over the weights."""
    measured = collect_statistics(checkpoint, corpus, request=request, least=1, device=device, progress=progress)
    moments = weight_moments(checkpoint, progress=progress)
    return language_clipping(
        checkpoint,
        corpus,
        measured=measured,
        moments=moments,
        request=request,
        bits=bits,
        products=products,
        device=device,
        progress=progress,
    )
