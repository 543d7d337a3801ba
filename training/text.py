"""Documents, tokenizer and token arrays for the embedded model.

The corpus directory holds `train/LANG.txt.xz`: UTF-8, one paragraph per line. It is not part of the project.
"""

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

Settings = dict[str, Any]


def languages(corpus: Path) -> list[str]:
    """Returns the languages of the corpus, by file name."""
    return sorted(path.name.removesuffix(".txt.xz") for path in (corpus / "train").glob("*.txt.xz"))


def documents(corpus: Path, lang: str, settings: Settings) -> list[str]:
    """Returns the documents of one language: runs of consecutive lines."""
    with lzma.open(corpus / "train" / f"{lang}.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    step = settings["lines_per_document"]
    return ["\n".join(lines[start : start + step]) for start in range(0, len(lines), step)]


def train_tokenizer(corpus: Path, settings: dict[str, Settings]) -> Tokenizer:
    """Returns a byte-level BPE tokenizer trained on the whole mix as it is."""

    def texts() -> Iterator[str]:
        for lang in languages(corpus):
            yield from documents(corpus, lang, settings["text"])

    choice = settings["tokenizer"]
    tokenizer = Tokenizer(models.BPE(unk_token=None, byte_fallback=False))
    pattern = pre_tokenizers.Split(Regex(choice["pattern"]), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=choice["vocabulary"],
        special_tokens=choice["special"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def encode(
    corpus: Path, tokenizer: Tokenizer, settings: Settings
) -> dict[str, tuple[list[NDArray[np.int32]], list[NDArray[np.int32]]]]:
    """Returns, per language, the token arrays `<s> text </s>` of the documents to train on and of those held out."""
    start, end = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    split = {}
    for index, lang in enumerate(languages(corpus)):
        coded = tokenizer.encode_batch_fast(documents(corpus, lang, settings), add_special_tokens=False)
        arrays = [np.array([start, *encoding.ids, end], dtype=np.int32) for encoding in coded]
        generator = np.random.default_rng([settings["seed"], index])
        apart = generator.random(len(arrays)) < settings["held_out"]
        kept = [array for array, held in zip(arrays, apart, strict=True) if not held]
        split[lang] = (
            within(kept, settings.get("most_tokens")),
            [array for array, held in zip(arrays, apart, strict=True) if held],
        )
    return split


def within(arrays: list[NDArray[np.int32]], most: int | None) -> list[NDArray[np.int32]]:
    """Returns the first documents of a language, up to so many tokens; all of them if there is no limit."""
    if most is None:
        return arrays
    ends = np.cumsum([len(array) for array in arrays])
    return arrays[: int(np.searchsorted(ends, most, side="right"))]
