"""Imatrix: what llama-quantize needs to know of the languages, measured on text: the importance of input channels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from fairbits.core.checks import one_of, sequence
from fairbits.core.errors import InputError, count_of
from fairbits.core.files import check_writable, write_files
from fairbits.core.progress import Progress
from fairbits.forward.tokenize import open_corpus_for, short_text_notes, tokenize_corpus
from fairbits.models.checkpoint import QUANTIZED, Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.io.gguf_file import gguf_names
from fairbits.models.io.imatrix_file import Imatrix, Importance, merge_imatrices, read_imatrix
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.quantization.channel_importance import ChannelImportance, channel_importance
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.mix import Weights, weights_by_code

EXAMPLE = "imatrix.gguf"
UNKNOWN = "llama.cpp's names do not include it"
NAMED = 2  # layers that a note names, at most


@dataclass(frozen=True, eq=False)
class LanguageImatrices:
    """The imatrix of each language, and that of their mix."""

    languages: Mapping[str, Imatrix]
    mix: Imatrix
    notes: tuple[str, ...] = ()

    def save(self, out: str | Path | None = None, *, per_language: str | Path | None = None) -> tuple[Path, ...]:
        targets = imatrix_targets(out, per_language, self.languages)
        every = [self.mix, *self.languages.values()] if out is not None else list(self.languages.values())
        contents = {path: matrix.to_bytes() for path, matrix in zip(targets, every, strict=False)}
        for path in contents:
            path.parent.mkdir(exist_ok=True)
        write_files(contents)
        return tuple(contents)


def imatrix_targets(out: str | Path | None, per_language: str | Path | None, codes: Iterable[str]) -> list[Path]:
    """Returns the paths to write, that of the mix first; raises if one of them cannot be written."""
    if out is None and per_language is None:
        raise InputError("no file to write is named; name that of the mix (--out) or a directory (--per-language)")
    targets = [] if out is None else [check_writable(out, example=EXAMPLE)]
    if per_language is not None:
        directory = Path(per_language).absolute()
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{directory} is not a directory; the files of the languages need one")
        check_writable((directory if directory.is_dir() else directory.parent) / EXAMPLE, example=EXAMPLE)
        targets += [directory / f"{code}.gguf" for code in codes]
    return targets


def imatrix(
    model: Model,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    weights: Weights = "equal",
    tokens: int = 4096,
    sequence: int = 512,
    seed: int = 0,
    device: str = AUTO,
    progress: Progress | None = None,
) -> LanguageImatrices:
    """Returns the importance of every input channel in each language and in their mix, for llama-quantize --imatrix.

    The mix is the weighted mean of E[x²] of the languages, "equal" or by a number per language, however many tokens
    each has. `text` is a corpus or its path; without it the embedded declaration is used. `tokens` is the budget per
    language. One block of the model is in memory at a time. `tokenizer` is that of a model in memory.
    """
    request = TextRequest("calibration", tokens, sequence, seed)
    device = resolve_device(device)
    checkpoint = open_checkpoint(model, tokenizer)
    names = _names(checkpoint)  # before anything that takes time
    corpus = open_corpus_for(checkpoint, text, languages)
    if isinstance(weights, Mapping):
        shares = weights_by_code(weights, list(corpus.calibration))
    else:
        shares = dict.fromkeys(corpus.calibration, 1.0)
        one_of("weights", weights, ("equal",))
    words = tokenize_corpus(checkpoint, corpus, request=request, least=1)
    importance = channel_importance(checkpoint, words, device=device, progress=progress)
    matrices = {
        code: Imatrix(
            _entries(importance, names, i), (f"{corpus.name}: {code}",), sequence, {code: 1.0}, checkpoint.fingerprint
        )
        for i, code in enumerate(importance.languages)
    }
    mix = merge_imatrices([(code, matrix, shares[code]) for code, matrix in matrices.items()])
    short = short_text_notes(words, request, parallel=corpus.parallel)
    notes = (*checkpoint.notes, *corpus.notes, *short, *_notes_on_layers(importance, names))
    # one name for all of the text, because llama-quantize copies only the first
    mix = replace(mix, datasets=(f"{corpus.name}: {' '.join(mix.languages)}",))
    return LanguageImatrices(matrices, mix, notes)


def merge(files: Sequence[tuple[str | Path, float]]) -> Imatrix:
    """Returns the weighted mean of imatrix files, each given with its weight."""
    return merge_imatrices([(str(path), read_imatrix(path), weight) for path, weight in sequence("files", files)])


def _names(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns llama.cpp's names of the linear layers in the blocks; raises if the model has no place in llama.cpp."""
    packed = next((note for note in checkpoint.notes if note.startswith(QUANTIZED)), None)
    if packed is not None:
        raise InputError(
            f"{checkpoint.target} cannot get an imatrix: {packed}; give the model that it was made from, which "
            "llama.cpp will quantize"
        )
    blocks = checkpoint.architecture.blocks
    linears = [name for block in blocks for name in block.linears]
    family = checkpoint.config.get_text_config().model_type
    names = gguf_names(family, linears, blocks=len(blocks))
    _ = checkpoint.task  # raises if it predicts no tokens
    if not names:
        raise InputError(f"no layer of {checkpoint.target} has a name in llama.cpp; are its tensors named as usual?")
    return names


def _entries(importance: ChannelImportance, names: Mapping[str, str], index: int) -> dict[str, Importance]:
    counts = np.array([importance.positions[index]], dtype=np.int64)
    return {
        names[name]: Importance(squares[index : index + 1], counts)
        for name, squares in importance.squares.items()
        if name in names
    }


def _notes_on_layers(importance: ChannelImportance, names: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a note for every reason why layers have no importance; routers are not quantized and need none."""
    missing = {name: why for name, why in importance.left_out.items() if "router" not in why}
    missing |= {name: UNKNOWN for name in importance.squares if name not in names}
    notes = []
    for reason in dict.fromkeys(missing.values()):
        layers = [name for name, why in missing.items() if why == reason]
        more = f" and {len(layers) - NAMED:,} more" if len(layers) > NAMED else ""
        notes.append(
            f"no importance for {count_of(len(layers), 'layer')} ({', '.join(layers[:NAMED])}{more}): {reason}. "
            "llama-quantize rounds them without it, and refuses types that need it, such as IQ3_XXS"
        )
    return tuple(notes)
