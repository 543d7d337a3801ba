"""Text that the reference model writes at temperature 1, on which log p − log q of every token has the mean KL."""

import hashlib
import json
from dataclasses import replace

import numpy as np

from fairbits.core.progress import Progress
from fairbits.evaluation.setting import EvaluationSetting
from fairbits.evaluation.writer import write_text
from fairbits.forward.generation import continued_text
from fairbits.forward.tokenize import check_documents
from fairbits.forward.windows import AMPLE, NO_LABEL, TokenizedText, Window, WindowPart, document_encoder
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.documents import seeded_hash
from fairbits.text.reading import DECLARATION

BEGINNING = 16  # tokens of a document, which the model continues
LEAST = 4  # documents of a language


def text_of_reference(
    checkpoint: Checkpoint,
    corpus: Corpus,
    request: TextRequest,
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> tuple[TokenizedText, EvaluationSetting]:
    """Returns continuations of documents of every language, of which only the new tokens are predicted.

    Each has about `AMPLE` tokens, as many short texts tell more than few long ones; with few documents they are longer.
    """
    check_documents(corpus, request.split, least=LEAST)
    tokenizer = checkpoint.tokenizer()
    first = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    room = min(request.sequence, checkpoint.longest_input) - len(first) - BEGINNING
    prompts: list[list[int]] = []
    lang: list[str] = []
    lengths: list[int] = []
    for code, documents in corpus.split(request.split).items():
        wanted = -(-request.tokens // AMPLE)
        order = sorted(range(len(documents)), key=lambda i: seeded_hash(request.seed, i))[:wanted]
        encoded = document_encoder(tokenizer)([documents[i] for i in order])
        begun = [first + document.ids[:BEGINNING] for document in encoded if document.ids]
        prompts += begun
        lang += [code] * len(begun)
        lengths += [min(-(-request.tokens // len(begun)), room)] * len(begun)
    written = write_text(
        checkpoint, prompts, new_tokens=max(lengths), seed=request.seed, device=device, progress=progress
    )
    written = [new[:length] for new, length in zip(written, lengths, strict=True)]
    parts = [_part(prompt, new) for prompt, new in zip(prompts, written, strict=True)]
    texts = [continued_text(tokenizer, prompt, new) for prompt, new in zip(prompts, written, strict=True)]
    text = TokenizedText(
        tuple(corpus.split(request.split)),
        np.array(lang),
        np.arange(len(lang)),
        np.array([float(len(text.encode())) for text in texts]),
        tuple(Window(number, part) for number, part in enumerate(parts)),
        padding=next(token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if token is not None),
    )
    setting = EvaluationSetting.of(checkpoint, corpus, request)
    hashes = {
        code: _hash([part.ids for part, named in zip(parts, lang, strict=True) if named == code])
        for code in text.languages
    }
    name = f"text that {checkpoint.target} wrote from beginnings of {corpus.name}"
    source = setting.source or (DECLARATION if corpus.name == "udhr" else corpus.name)
    return text, replace(setting, corpus=name, parallel=False, hashes=hashes, source=source)


def _part(prompt: list[int], new: list[int]) -> WindowPart:
    ids = [*prompt, *new]
    labels = [NO_LABEL] * (len(prompt) - 1) + new + [NO_LABEL]
    return WindowPart(ids, [True] * len(ids), labels)


def _hash(ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()
