"""The table of what vLLM serves: a row for every case, what was loaded only is said to be, and the page around it."""

import json
from pathlib import Path
from typing import Any

from vllm_table import BEGIN, END, lines, row, write_table

SERVED: dict[str, Any] = {
    "family": "llama",
    "bits": 4,
    "group": 64,
    "embeddings": "keep",
    "policy": "gptq",
    "dtype": "float16",
    "damaged": False,
    "kernels": ["CPUWNA16LinearKernel"],
    "prompts": 12,
    "equal": 11,
    "logits": {"mean": 0.001, "most": 0.0042, "spread": 2.0},
    "losses": {"eng_Latn": 5.0, "fra_Latn": 4.0},
    "loss_differences": {"eng_Latn": 0.00002, "fra_Latn": -0.0003},
}
FAILED = {key: SERVED[key] for key in ("family", "bits", "group", "policy", "dtype", "damaged")} | {
    "embeddings": 8,
    "error": "AssertionError: a long story",
}
SETTINGS = {
    "vllm": "0.32.0",
    "machine": "x86_64",
    "transformers": "5.22.2",
    "compressed_tensors": "0.20.0",
    "new_tokens": 8,
    "texts_per_language": 4,
    "tokens_per_text": 64,
}


def test_what_vllm_computed_and_what_it_only_loaded() -> None:
    assert row(SERVED)[6:] == ["serves", "11 of 12", "0.0042", "0.0003", "loads"]
    assert row(SERVED | {"kernels": ["PlainKernel"]})[6] == "loads; stand-in kernel"
    assert row(SERVED | {"bits": None, "kernels": []})[1:7] == ["–", "–", "–", "–", "float16", "serves"]
    assert row(FAILED)[3:8] == ["`--embeddings 8`", "`gptq`", "float16", "fails: AssertionError", ""]


def test_the_page_keeps_what_is_around_the_table(tmp_path: Path) -> None:
    results, page = tmp_path / "results.json", tmp_path / "page.md"
    results.write_text(json.dumps({"settings": SETTINGS, "cases": [SERVED, FAILED, SERVED | {"damaged": True}]}))
    page.write_text(f"before\n\n{BEGIN}\n\nold\n\n{END}\n\nafter\n")
    for _ in range(2):  # the second time it replaces what the first has written
        write_table(results, page)
    text = page.read_text("utf-8")
    assert text.startswith(f"before\n\n{BEGIN}\n\nvLLM 0.32.0 (CPU build, x86_64) and transformers 5.22.2")
    assert text.endswith(
        f"logits then differ by up to 0.0042, and the loss of a language by up to 0.0003.\n\n{END}\n\nafter\n"
    )
    assert "old" not in text
    earlier = {"settings": {key: SETTINGS[key] for key in SETTINGS if key != "machine"}, "cases": [SERVED]}
    assert "(CPU build, processor not recorded)" in next(lines(earlier))
    assert sum(line.startswith("| Llama |") for line in text.splitlines()) == 2
