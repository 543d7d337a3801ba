"""The opening of a model: configurations, read by transformers after our checks, and tokenizers, in a child process."""

import json
import os
import random
import tempfile
import warnings
from functools import cache
from pathlib import Path

import transformers
from foreign_targets import target
from harness import Files, Refused, Target
from mutations import mutated_json
from truth import rule

from fairbits.errors import InputError
from fairbits.model import Checkpoint
from fairbits.model.foreign.trial import try_tokenizer

SIZE = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 64}
BLOCKS = 2
OUTLIERS = b'{"schema": 1, "source": {"target": "x", "notes": ["a note"]}, "requested": {"0": 60.0, "1": 5}}'


@cache
def small_model() -> Files:
    """Returns the files of a small Llama of random weights."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE))
        model.save_pretrained(place)
        return {path.name: path.read_bytes() for path in Path(place).iterdir()}


def config_target() -> Target:
    """Returns the target of the configurations of a model whose weights are as they should be."""

    def make(rng: random.Random) -> Files:
        if rng.random() < 0.1:
            return small_model() | {"outliers.json": mutated_json(rng, OUTLIERS)}
        name = "config.json" if rng.random() < 0.8 else "generation_config.json"
        return small_model() | {name: mutated_json(rng, small_model()[name])}

    def read(place: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transformers, on what it corrects by itself
            opened = Checkpoint(place)
            found = opened.architecture
        rule(0 < len(found.blocks) <= BLOCKS, f"{len(found.blocks)} blocks are found")
        rule(all(name in opened.tensors for name in found.weights), "a map has no tensor")

    def try_read(place: Path) -> str:
        try:
            read(place)
        except InputError as problem:
            known = any(each in str(problem) for each in (str(place), "configuration", "config.json"))
            rule(known, f"its refusal does not name the configuration: {problem!s:.200}")
            raise Refused(str(problem)) from None
        return "accepted"

    return Target("model configuration", make, try_read, share=0.1)


def tokenizer_target() -> Target:
    """Returns the target of tokenizer.json, which the tokenizers library parses in a child process."""
    words = {word: i for i, word in enumerate(("<unk>", "a", "b", "ab", "c"))}
    model = {"type": "BPE", "vocab": words, "merges": [["a", "b"]], "unk_token": "<unk>", "byte_fallback": False}
    added = [{"id": 0, "content": "<unk>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}]
    content = {"version": "1.0", "added_tokens": [added[0] | {"special": True}], "normalizer": {"type": "NFC"}}
    content |= {"pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None, "model": model}
    seed = json.dumps(content | {"truncation": None, "padding": None}).encode()
    cache_place = tempfile.mkdtemp()

    def read(place: Path) -> None:
        earlier = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = cache_place  # verdicts on what was tried
        try:
            try_tokenizer(place)
        finally:
            os.environ.pop("XDG_CACHE_HOME") if earlier is None else os.environ.update(XDG_CACHE_HOME=earlier)

    return target(
        "tokenizer.json", lambda rng: {"tokenizer.json": mutated_json(rng, seed)}, read, files=("",), share=0.02
    )


def opening_targets() -> list[Target]:
    """Returns the targets of opening a model."""
    return [config_target(), tokenizer_target()]
