"""config.json and generation_config.json of a model, and weights that other tools have quantized.

transformers checks most fields of a family itself, and its errors are reported as they are. The rules here are for what
it believes: fields that fail with an error of Python long after they were read, and numbers that make it build lists,
modules or tables of that size. Fields without a rule are left to transformers, which also passes over methods of
quantization that it does not know and drops their scales: such models are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from fairbits.core.errors import InputError
from fairbits.core.records import read_object
from fairbits.models.io.quantization_settings import READERS
from fairbits.models.io.safetensors_files import TensorInfo


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


DEPTHS = _names(  # what configurations call their numbers of layers
    "num_hidden_layers num_layers n_layer n_layers num_decoder_layers num_encoder_layers encoder_layers decoder_layers "
    "num_nextn_predict_layers mtp_num_hidden_layers"
)
EXPERTS = _names(  # and of experts
    "num_experts num_local_experts n_routed_experts n_shared_experts moe_num_experts num_experts_per_tok "
    "num_experts_per_token moe_top_k"
)
POSITIONS = _names(  # and of positions
    "max_position_embeddings n_positions n_ctx seq_length max_seq_len max_sequence_length max_source_positions "
    "max_target_positions original_max_position_embeddings"
)
MOST_POSITIONS = 2**27  # positions that a configuration may state: more than ten times the 10 million of Llama 4 Scout
MOST_EXPERTS = 1024  # whatever the files have: some store all experts of a block in one tensor
MOST_LABELS = 100_000  # labels of a classifier: transformers makes a name for each. ImageNet-21k has 21,843
NESTING = 8  # levels of objects within each other: a configuration with parts has three
ADVICE = "correct it, or fetch the file again"


class Rule(NamedTuple):
    """What must hold of a field: a test, and the words that complete "it must be …"."""

    holds: Callable[[Any], bool]
    words: str


def _whole(value: Any, least: int, most: int = 2**31 - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _all(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _token(value: Any) -> bool:
    return _whole(value, -1)  # −1 stands for none in old configurations


def _words(value: Any) -> bool:
    return bool(value) and _all(value, lambda word: bool(word) and _all(word, lambda token: _whole(token, 0)))


def _fields(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(_names(names), rule)


TOKEN = Rule(lambda value: _token(value) or _all(value, _token), "a token id or a list of them")
COUNT = Rule(lambda value: _whole(value, 0), "a whole number, 0 or more")
SWITCH = Rule(lambda value: isinstance(value, bool), "true or false")
OBJECT = Rule(lambda value: isinstance(value, dict), "an object")
NAMED = Rule(lambda value: isinstance(value, str | dict), "a string or an object")

CONFIG_RULES: Mapping[str, Rule] = {  # of values that are not null
    "num_labels": Rule(lambda value: _whole(value, 0, MOST_LABELS), f"a whole number from 0 to {MOST_LABELS:,}"),
    "architectures": Rule(lambda value: _all(value, _text), "a list of names of classes"),
    "sliding_window": Rule(lambda value: value is False or _whole(value, 0), "a whole number, 0 or more, or null"),
    "vocab_size": COUNT,
    **_fields(OBJECT, "id2label label2id auto_map"),
    **_fields(NAMED, "attn_implementation _attn_implementation experts_implementation"),
    **_fields(TOKEN, "bos_token_id eos_token_id pad_token_id decoder_start_token_id"),
}

GENERATION_RULES: Mapping[str, Rule] = {  # of values that are not null
    **_fields(TOKEN, "bos_token_id eos_token_id pad_token_id decoder_start_token_id"),
    **_fields(TOKEN, "forced_bos_token_id forced_eos_token_id"),
    **_fields(Rule(lambda value: _all(value, _token), "a list of token ids"), "suppress_tokens begin_suppress_tokens"),
    **_fields(COUNT, "max_length max_new_tokens min_length min_new_tokens top_k no_repeat_ngram_size max_cache_len"),
    **_fields(COUNT, "encoder_no_repeat_ngram_size prompt_lookup_num_tokens num_assistant_tokens"),
    **_fields(
        Rule(_number, "a number"),
        "temperature top_p min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty encoder_repetition_penalty "
        "length_penalty guidance_scale max_time",
    ),
    **_fields(SWITCH, "do_sample use_cache renormalize_logits remove_invalid_values token_healing"),
    **_fields(
        Rule(lambda value: _whole(value, 1, 1024), "a whole number from 1 to 1,024"),
        "num_beams num_beam_groups num_return_sequences",
    ),
    **_fields(OBJECT, "watermarking_config compile_config cache_config"),
    **_fields(Rule(_text, "a string"), "cache_implementation transformers_version"),
    "bad_words_ids": Rule(_words, "a list of lists of token ids, none of them empty"),
    "stop_strings": Rule(lambda value: _text(value) or _all(value, _text), "a string or a list of strings"),
}


def check_config(raw: Mapping[str, Any], file: Path, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raises if a field of config.json (`raw`) has the wrong type, or a size that the tensors refute."""
    tensors, sides = len(shapes), {side for shape in shapes for side in shape}
    longest = max(sides, default=0)
    for place, part in _objects(raw, file):
        _check_rules(part, CONFIG_RULES, f"{file} has {place}")
        _check_window(part, f"{file} has {place}")
        for name, value in part.items():
            if not isinstance(value, int):
                continue
            stated = f"{file} has {place}{name} = {value:,}"
            if name in DEPTHS and value > tensors:
                raise InputError(f"{stated}, and the files have {tensors:,} tensors; they must agree: {ADVICE}")
            if name in EXPERTS and value > max(tensors, MOST_EXPERTS) and value not in sides:
                raise InputError(f"{stated}, and no tensor in the files has that many rows; {ADVICE}")
            if name in POSITIONS and value > MOST_POSITIONS:
                raise InputError(f"{stated}; it must be at most {MOST_POSITIONS:,}: {ADVICE}")
    rows = raw.get("vocab_size")
    if isinstance(rows, int) and shapes and rows > longest:
        raise InputError(
            f"{file} has vocab_size = {rows:,}, and no tensor in the files is longer than {longest:,}; "
            f"they must agree: {ADVICE}"
        )
    for name in ("id2label", "label2id"):
        if len(raw.get(name) or ()) > MOST_LABELS:
            raise InputError(f"{file} has more than {MOST_LABELS:,} entries in {name}; {ADVICE}")


def check_generation_config(directory: Path) -> None:
    """Raises if generation_config.json is there and cannot be used."""
    file = directory / "generation_config.json"
    if not file.exists():
        return
    for place, part in _objects(read_object(file, finite=False), file):
        if not place:
            _check_rules(part, GENERATION_RULES, f"{file} has ")


def _check_rules(part: Mapping[str, Any], rules: Mapping[str, Rule], start: str) -> None:
    for name, rule in rules.items():
        value = part.get(name)
        if value is not None and not rule.holds(value):
            raise InputError(f"{start}{name} = {value!r:.60}; it must be {rule.words}: {ADVICE}")


def _check_window(part: Mapping[str, Any], start: str) -> None:
    """Raises if attention has a window of no token; some classes write 0 for none, and say so in another field."""
    window, kinds = part.get("sliding_window"), part.get("layer_types")
    unused = part.get("use_sliding_window") is False or (isinstance(kinds, list) and "sliding_attention" not in kinds)
    if window is not None and not window and not unused:
        raise InputError(f"{start}sliding_window = {window}; it must be 1 or more, or null for no window: {ADVICE}")


def _objects(raw: Mapping[str, Any], file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    waiting: list[tuple[str, int, Any]] = [("", 0, raw)]
    while waiting:
        place, depth, value = waiting.pop()
        if depth > NESTING and isinstance(value, dict | list):
            raise InputError(f"{file} has objects nested more than {NESTING} levels deep; {ADVICE}")
        if isinstance(value, dict):
            yield place, value
            waiting += [(f"{place}{key:.60}.", depth + 1, member) for key, member in value.items()]
        elif isinstance(value, list):
            waiting += [(place, depth + 1, member) for member in value]
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise InputError(f"{file} has {place.rstrip('.')} = {value!s:.20}…; it must fit into 64 bits: {ADVICE}")


ANOTHER = "give the model before it was quantized, or a checkpoint in another format"


def check_quantization(directory: Path, method: object, tensors: Mapping[str, TensorInfo]) -> None:
    """Raises if weights are codes, and neither fairbits nor transformers knows how they are scaled."""
    if method is None:
        for info in tensors.values():
            if info.dtype.is_floating_point and info.dtype.itemsize == 1:
                raise InputError(
                    f"{info.name} of {directory} is stored as {info.dtype}, and config.json has no quantization_config "
                    f"that says how it is scaled; {ANOTHER}"
                )
    elif not isinstance(method, str) or method not in (*AUTO_QUANTIZATION_CONFIG_MAPPING, *READERS, "bitsandbytes"):
        raise InputError(
            f"{directory} was quantized by {method!s:.40} (as its config.json says), which neither fairbits nor "
            f"transformers knows; {ANOTHER}"
        )
