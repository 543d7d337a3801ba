"""Whether llama.cpp's own logits of a GGUF file are those of the dequantized model that fairbits evaluates.

    python benchmarks/llama_logits.py ids MODEL.gguf WORK        token ids of one document per language, by fairbits
    LLAMA_PYTHON benchmarks/llama_logits.py llama MODEL.gguf WORK   logits, in an environment with llama-cpp-python
    python benchmarks/llama_logits.py compare MODEL.gguf WORK    the divergence between the two

llama.cpp rounds activations too where it multiplies quantized weights, so that the two differ a little. For a float32
file, only by the order of sums.
"""

import json
import sys
from pathlib import Path

import numpy as np

LANGUAGES = ("eng", "fra", "ell", "fin", "jpn")
LONGEST = 48
"""Tokens of each document."""


def write_ids(model: str, work: Path) -> None:
    """Writes the token ids of the first evaluation document of each language, after the start token if there is one."""
    import fairbits as fb
    from fairbits.text.included_texts import help_text

    tokenizer = fb.Checkpoint(model).tokenizer()
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    found = {}
    for code, texts in help_text(LANGUAGES).evaluation.items():
        found[code] = start + tokenizer(texts[0], add_special_tokens=False)["input_ids"][:LONGEST]
    (work / "ids.json").write_text(json.dumps(found))


def write_logits(model: str, work: Path) -> None:
    """Writes llama.cpp's logits of every position of these ids."""
    from llama_cpp import Llama

    llama = Llama(model, n_ctx=LONGEST + 8, n_batch=LONGEST + 8, logits_all=True, verbose=False)
    found = {}
    for code, ids in json.loads((work / "ids.json").read_text()).items():
        llama.reset()
        llama.eval(ids)
        found[code] = np.array(llama.scores[: len(ids)])
    np.savez(work / "llama.npz", **found)


def compare(model: str, work: Path) -> None:
    """Prints, per language, the mean divergence of llama.cpp's predictions from those of the dequantized model."""
    import torch

    import fairbits as fb

    loaded, theirs = fb.Checkpoint(model).load(), np.load(work / "llama.npz")
    for code, ids in json.loads((work / "ids.json").read_text()).items():
        with torch.no_grad():
            mine = loaded(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        other = torch.from_numpy(theirs[code]).double().log_softmax(-1)
        kl = (mine.exp() * (mine - other)).sum(-1)
        same = (mine.argmax(-1) == other.argmax(-1)).double().mean()
        print(
            f"{code}: {len(ids)} tokens, KL {kl.mean():.2e} nats per token, largest {kl.max():.2e}, "
            f"same choice {same:.3f}"
        )


if __name__ == "__main__":
    stage, file, directory = sys.argv[1:]
    {"ids": write_ids, "llama": write_logits, "compare": compare}[stage](file, Path(directory))
