"""Loading configuration, tokenizer and model from a directory by transformers. Nothing is downloaded."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from torch.nn import Parameter
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from fairbits.core.errors import InputError
from fairbits.models.architecture.meta_model import check_values, meta_model, model_class
from fairbits.models.architecture.parameter_mapping import explain_unused
from fairbits.models.device import is_gpu
from fairbits.models.untrusted.config_check import check_config, check_generation_config

LOADING_ERRORS = (  # of transformers and compressed-tensors with files and settings that do not fit
    *(ImportError, OSError, RuntimeError, TypeError, ValueError, AttributeError, LookupError),
    *(ArithmeticError, AssertionError),
)
PANIC = "PanicException"  # what a panic of Rust becomes; it is not an Exception, and cannot be imported


def load_config(
    directory: Path, raw: Mapping[str, Any], *, shapes: Sequence[tuple[int, ...]], trust_remote_code: bool
) -> PretrainedConfig:
    """Returns the configuration; `raw` is the content of config.json, `shapes` are of the tensors in the files."""
    check_config(raw, directory / "config.json", shapes)
    model_type = raw.get("model_type")
    mapped = isinstance(model_type, str) and model_type in transformers.CONFIG_MAPPING
    if not mapped and not (trust_remote_code and "auto_map" in raw):
        what = f"{directory / 'config.json'} has the model_type {model_type!r:.80}"
        if "auto_map" in raw:
            raise InputError(
                f"{what}, which needs the Python code that comes with the model; "
                "read that code and, if you trust it, set trust_remote_code (--trust-remote-code)"
            )
        raise InputError(
            f"{what}, which transformers {transformers.__version__} does not know; update it, or correct it"
        )
    try:
        config: PretrainedConfig = transformers.AutoConfig.from_pretrained(
            directory, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as problem:  # every family checks its own fields in its own way
        raise InputError(f"{directory / 'config.json'} is not usable: {_reason(problem)}") from problem
    return config


def load_tokenizer(directory: Path, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Returns the tokenizer in `directory`."""
    advice = "tokenizer.json and tokenizer_config.json must be next to the weights"
    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=trust_remote_code, local_files_only=True)
        back = str(tokenizer.decode(tokenizer("a")["input_ids"], skip_special_tokens=True))
    except BaseException as problem:  # missing and damaged files fail in many ways, depending on the tokenizer
        if not isinstance(problem, Exception) and type(problem).__name__ != PANIC:
            raise
        raise InputError(f"{directory} has no usable tokenizer ({_reason(problem)}); {advice}") from problem
    if not back.strip():  # without a vocabulary file, some families get a tokenizer with an empty vocabulary
        raise InputError(
            f"{directory} has no usable tokenizer (the default of its family has an empty vocabulary); {advice}"
        )
    return tokenizer


def load_model(
    directory: Path,
    config: PretrainedConfig,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    stored: int,
    dtype: torch.dtype,
    device: str = "cpu",
    trust_remote_code: bool,
) -> PreTrainedModel:
    """Returns the model in eval mode, of the class that its configuration names; every weight comes from the files.

    A tensor of `shapes` that the model should use, and does not, is an error; so is a model of many more than `stored`
    weights. Weights for a GPU are copied and unpacked there one by one, before a pass through a part of the model.
    """
    check_generation_config(directory)
    cls: Any = model_class(config, trust_remote_code=trust_remote_code)
    check_values(meta_model(config, cls), stored)
    try:
        with no_progress_bars():
            model, report = cls.from_pretrained(
                directory,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=trust_remote_code,
                output_loading_info=True,
                **({"device_map": {"": torch.device(device)}} if is_gpu(device) else {}),
            )
    except LOADING_ERRORS as problem:
        raise InputError(
            f"transformers cannot load {directory}: {_reason(problem)}; config.json and generation_config.json must "
            "belong to the model and be valid for the installed transformers"
        ) from problem
    # buffers that are not saved are computed, even if the loader of a quantized model reports them missing
    missing = sorted(set(report["missing_keys"]) & {*model.state_dict(), *dict(model.named_parameters())})
    if missing:
        raise InputError(
            f"{directory} lacks {len(missing)} weights that {type(model).__name__} needs ({', '.join(missing[:3])} …); "
            "transformers would initialise them at random: download the files again, or correct config.json"
        )
    unused = {name: name for name in sorted(report["unexpected_keys"])}
    explain_unused(model, unused, {**dict.fromkeys(unused, ()), **shapes})  # which raises if one of them matters
    result: PreTrainedModel = _in_one_type(model, dtype).eval()
    for name, parameter in result.named_parameters():
        coded = name.endswith(".weight") and parameter.ndim > 1 and parameter.dtype.itemsize == 1
        if type(parameter) is Parameter and coded:
            raise InputError(
                f"transformers loads {name} of {directory} as codes and does not unpack them; correct the "
                "quantization_config in config.json"
            )
    return result


def _in_one_type(model: Any, dtype: torch.dtype) -> Any:
    """Returns the model with the weights that a loader has unpacked to 16 bits in float32, if that is asked for."""
    for tensor in (*model.parameters(), *model.buffers()):
        plain = type(tensor.data) is torch.Tensor  # not one of torchao's, which unpack themselves
        if plain and dtype == torch.float32 and tensor.dtype in (torch.bfloat16, torch.float16):
            tensor.data = tensor.data.to(dtype)
    return model


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hides the progress bars of transformers and compressed-tensors, and restores the user's settings afterwards."""
    shown, hub_shows_none = logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    with warnings.catch_warnings(action="ignore"):  # the Hub's part may be fixed by HF_HUB_DISABLE_PROGRESS_BARS
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with redirect_stderr(io.StringIO()):  # the bars of compressed-tensors cannot be turned off
            yield
    finally:
        with warnings.catch_warnings(action="ignore"):
            if shown:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # of the Hub too
            if hub_shows_none:
                disable_progress_bars()


def _reason(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split()):.400}"
