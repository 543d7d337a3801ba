"""Writes the model card beside the weights: `python training/card.py CORPUS`.

CORPUS holds `train/LANG.txt.xz` and the parallel sets `eval/SET/LANG.txt`. Only numbers and continuations of the
Universal Declaration go into the card, no line of the corpus.
"""

import json
import math
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from fairbits.text.catalog import Language
from fairbits.text.included_texts import udhr
from fairbits.text.language_codes import find_language
from text import documents

HERE = Path(__file__).parent
PROMPTED_ARTICLE = 7  # of the evaluation split
BATCH = 32
LINES = 200  # of each parallel set
SHOWN = ("eng", "fra", "deu", "spa", "rus", "zho", "jpn", "kor", "ara", "heb", "hin", "tha", "swa", "vie")


def losses(head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the loss of every position; logits are made for few at a time, for they fill the memory otherwise."""
    parts = zip(hidden.split(256), targets.split(256), strict=True)
    return torch.cat([torch.nn.functional.cross_entropy(head(h), t, reduction="none") for h, t in parts])


@torch.no_grad()
def nats(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> torch.Tensor:
    """Returns the summed loss of every document after `<s>`, its tokens and its bytes, as rows of a matrix."""
    result = torch.zeros(len(texts), 3, dtype=torch.float64)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for chosen in (order[start : start + BATCH] for start in range(0, len(order), BATCH)):
        batch = tokenizer([tokenizer.bos_token + texts[i] for i in chosen], padding=True, return_tensors="pt")
        hidden, seen = model.transformer(**batch).last_hidden_state[:, :-1], batch.attention_mask[:, 1:].bool()
        loss = torch.zeros(seen.shape)
        loss[seen] = losses(model.lm_head, hidden[seen], batch.input_ids[:, 1:][seen])
        sizes = torch.tensor([len(texts[i].encode()) for i in chosen])
        result[chosen] = torch.stack([loss.double().sum(1), seen.sum(1).double(), sizes.double()], dim=1)
    return result


def bits_per_byte(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> tuple[str, float]:
    """Returns total bits over total bytes with a 95 % interval, and nats per token (1,000 resamples of documents)."""
    loss, tokens, size = nats(model, tokenizer, texts).numpy().T
    draws = np.random.default_rng(0).integers(len(texts), size=(1000, len(texts)))
    low, high = np.percentile(loss[draws].sum(1) / size[draws].sum(1) / math.log(2), [2.5, 97.5])
    return f"{loss.sum() / size.sum() / math.log(2):.3f} ({low:.2f}–{high:.2f})", loss.sum() / tokens.sum()


def continuation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, document: str) -> str:
    """Returns the beginning of a document and, in bold, the model's greedy continuation in one line."""
    words = document.split()
    prompt = " ".join(words[:8]) if len(words) > 8 else document[:16]
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(prompt).input_ids]])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    text = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).rstrip("\ufffd")
    return f"{prompt} **→** {' / '.join(line.strip() for line in text.splitlines() if line.strip())}"


def rows(corpus: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[str]]:
    """Returns the table of languages and the continuations, as lines of Markdown."""
    history = json.loads((HERE / "history.json").read_text(encoding="utf-8"))
    held_out, tokens = history["history"][-1]["held_out"], history["tokens"]
    sets = sorted(path for path in (corpus / "eval").iterdir() if path.is_dir())
    table, continued = [], []
    for short in sorted(tokens, key=tokens.__getitem__, reverse=True):
        language = find_language(short)
        size = sum(len(document.encode()) for document in documents(corpus, short, history["settings"]["text"]))
        declaration = udhr([language.code]).evaluation[language.code]
        measured, per_token = bits_per_byte(model, tokenizer, declaration)
        cells = [
            f"{language.name} `{language.code}`",
            f"{size / 1e6:.2f}",
            f"{100 * tokens[short] / sum(tokens.values()):.1f} %",
            f"{held_out[short]:.2f}",
            measured,
            f"{per_token:.2f}",
        ]
        for directory in sets:
            file = directory / f"{short}.txt"
            lines = file.read_text(encoding="utf-8").splitlines()[:LINES] if file.exists() else []
            cells.append(bits_per_byte(model, tokenizer, lines)[0] if lines else "–")
        table.append(f"| {' | '.join(cells)} |")
        print(table[-1], file=sys.stderr, flush=True)
        if short in SHOWN:
            continued.append(line_of(language, continuation(model, tokenizer, declaration[PROMPTED_ARTICLE])))
    return table, continued


def line_of(language: Language, text: str) -> str:
    """Returns one continuation as a list item."""
    return f"- {language.name}: {text}"


def settings(history: dict[str, Any]) -> str:
    """Returns the training settings in words."""
    choice, last = history["settings"]["training"], history["history"][-1]
    return (
        f"{choice['epochs']} passes over {sum(history['tokens'].values()) / 1e6:.1f} M tokens, {last['step'] + 1:,} "
        f"steps of {choice['batch']} × {choice['sequence']} tokens, AdamW, peak rate {choice['learning_rate']}, "
        f"weight decay {choice['weight_decay']}, dropout {choice['dropout']}, seed {choice['seed']}; "
        f"{last['seconds']:.0f} s on one H200 (torch {history['torch']})"
    )


def main() -> None:
    """Measures and writes the card."""
    directory = Path(str(files("fairbits") / "assets" / "tiny"))
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="right")
    table, continued = rows(Path(sys.argv[1]), model, tokenizer)
    history = json.loads((HERE / "history.json").read_text(encoding="utf-8"))
    card = Template((HERE / "card.md").read_text(encoding="utf-8")).substitute(
        parameters=f"{model.num_parameters() / 1e6:.1f}",
        training=settings(history),
        languages="\n".join(table),
        continuations="\n".join(continued),
    )
    (directory / "README.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
