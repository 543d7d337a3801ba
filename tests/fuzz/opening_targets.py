"""The opening of a model: configurations, read by transformers after our checks, and tokenizers, in a child process."""

import json
import random
import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest
import transformers
from harness import Files, Refused, Target
from mutations import mutated_json
from tokenizer_children import CHILDREN
from truth import rule
from untrusted_targets import target

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.untrusted import tokenizer_sandbox

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
            architecture = opened.architecture
        rule(0 < len(architecture.blocks) <= BLOCKS, f"{len(architecture.blocks)} blocks are found")
        rule(all(name in opened.tensors for name in architecture.weights), "a map has no tensor")

    def try_read(place: Path) -> str:
        try:
            read(place)
        except InputError as problem:
            named = any(word in str(problem) for word in (str(place), "configuration", "config.json"))
            rule(named, f"its refusal does not name the configuration: {problem!s:.200}")
            raise Refused(str(problem)) from None
        return "accepted"

    return Target("model configuration", make, try_read, share=0.1)


@cache
def tokenizers() -> list[bytes]:
    """Returns tokenizers of every kind of model, with normalizers, splits, templates and decoders of many kinds."""
    words = {word: i for i, word in enumerate(("<unk>", "a", "b", "ab", "c", "##b", "▁"))}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": 0, "content": "<unk>", **flags}, {"id": 7, "content": "<s>", **flags}]
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}
    bpe = {"type": "BPE", "vocab": words, "merges": [["a", "b"]], "unk_token": "<unk>", "byte_fallback": False}
    pieces = [[word, -float(i)] for i, word in enumerate(words)]
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|\s"}, "behavior": "Isolated", "invert": False}
    sequence, start = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [start, sequence], "pair": [sequence, sequence]}
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    documents = [
        base | {"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Whitespace"}, "decoder": None, "model": bpe},
        base
        | {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [replaced, {"type": "Strip", "strip_left": True, "strip_right": False}],
            },
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    split,
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
                ],
            },
            "post_processor": template | {"special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            "padding": {
                "strategy": "BatchLongest",
                "direction": "Right",
                "pad_to_multiple_of": 8,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "<unk>",
            },
            "truncation": {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 4},
            "model": bpe,
        },
        base
        | {
            "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": metaspace,
            "decoder": metaspace,
            "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
        },
        base
        | {
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": True,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": "<unk>",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": words,
            },
        },
        base
        | {
            "normalizer": None,
            "pre_tokenizer": {"type": "Digits", "individual_digits": True},
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
        },
    ]
    return [json.dumps(document).encode() for document in documents]


def tokenizer_target() -> Target:
    """Returns the target of tokenizer.json, which the tokenizers library parses in a child process."""
    cache_place = tempfile.mkdtemp()

    def read(place: Path) -> None:
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv("XDG_CACHE_HOME", cache_place)  # verdicts on what was tried
            changed.setattr(tokenizer_sandbox, "run_child", CHILDREN.try_file)
            tokenizer_sandbox.check_tokenizer(place)

    return target(
        "tokenizer.json",
        lambda rng: {"tokenizer.json": mutated_json(rng, rng.choice(tokenizers()))},
        read,
        files=("",),
        share=0.5,
    )


def opening_targets() -> list[Target]:
    """Returns the targets of opening a model."""
    return [config_target(), tokenizer_target()]
