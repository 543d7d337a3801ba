"""Mix: calibration text with a fixed share for every language, which any quantization tool can read."""

from collections.abc import Iterable
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from fairbits.auditing.cover import audited_languages, cover_languages
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.models.loaded_checkpoint import Model, open_checkpoint
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits.text.mix import Mix, Weights, build_mix
from fairbits.text.reading import open_corpus


def mix(
    model: Model,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    weights: Weights = "equal",
    tokens: int | None = None,
    sequence: int = 512,
    seed: int = 0,
    repeat: bool = False,
    cover: int | None = None,
    audit: str | Path | None = None,
    progress: Progress | None = None,
) -> Mix:
    """Returns samples of text for calibration, in which every language has its share; `save(path)` writes them.

    `fb.mix("./model", languages=["eng", "fra", "heb"]).save("calib.jsonl")` is the command `fairbits mix`. `model` may
    be a loaded model of transformers, with its `tokenizer`. `text` is a corpus or its path; without it the declaration
    is used, in all its languages unless some are named. `weights`, `tokens`, `sequence`, `seed` and `repeat` are those
    of `build_mix`. With `cover`, only this number of languages is kept: those that protect best all languages of an
    `audit` of the model (a file that `fairbits audit` wrote).
    """
    if (cover is None) != (audit is None):
        flag, missing = ("cover", "audit") if audit is None else ("audit", "cover")
        raise InputError(f"{flag} was given without {missing}; give both, or neither: fairbits audit writes an audit")
    if audit is not None and languages is None and text is None:
        languages = audited_languages(audit)
    corpus = udhr() if text is None and languages is None else open_corpus(text, languages)
    checkpoint = open_checkpoint(model, tokenizer)
    chosen: tuple[str, ...] = ()
    if cover is not None and audit is not None:
        cover_set = cover_languages(audit, cover, candidates=corpus.calibration, fingerprint=checkpoint.fingerprint)
        corpus, chosen = corpus.restrict(cover_set.languages), cover_set.notes
    return build_mix(
        corpus,
        checkpoint.tokenizer(),
        weights=weights,
        tokens=tokens,
        sequence=sequence,
        seed=seed,
        repeat=repeat,
        model=checkpoint.target,
        notes=(*checkpoint.notes, *chosen),
        progress=progress,
    )
