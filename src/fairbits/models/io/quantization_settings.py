"""What config.json says of quantized weights, activations and caches, whichever tool has written it.

All methods are told in the words of compressed-tensors: groups of modules, each with a scheme for its weights, inputs
and outputs; modules that are kept; a scheme for keys and values. A field that is not understood is refused.
"""

import copy
import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from compressed_tensors.quantization import (  # type: ignore[import-untyped]
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
)
from pydantic import ValidationError

from fairbits.core.errors import InputError
from fairbits.core.records import read_object
from fairbits.models.io.file_names import MODELOPT_FILE

LINEAR = "Linear"
BITSANDBYTES = "bitsandbytes"
Layout = Literal["scaled", "gptq", "awq", "mxfp4", "bitsandbytes"]
PARTS: Mapping[str, str] = MappingProxyType(  # of a weight X.weight with scales: what follows its name, and what it is
    {
        "_packed": "codes",
        "": "codes",
        "_scale": "scale",
        "_shape": "shape",
        "_zero_point": "zero_point",
        "_global_scale": "global_scale",
        "_g_idx": "g_idx",
    }
)
SIDE_PARTS: Mapping[str, str] = MappingProxyType(  # beside X.weight, for the inputs and outputs of X, keys and values
    {
        name: name
        for name in (
            *("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point"),
            *("k_scale", "v_scale"),
        )
    }
)
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
NVFP4_INPUTS = {**FLOAT4, "dynamic": "local", "scale_dtype": "torch.float8_e4m3fn"}
PER_TOKEN = {**FLOAT8, "strategy": "token", "dynamic": True}
PER_TENSOR = {**FLOAT8, "strategy": "tensor"}


@dataclass(frozen=True)
class QuantizationSettings:
    """How a checkpoint is quantized.

    `exact`       the modules that the groups name are the quantized ones; else the tensors show which these are
    `varies`      bits may differ from layer to layer
    `parts`       what follows the name of a weight in the names of the tensors that hold it, and what these are
    `side_parts`    the same for what belongs to its module: static scales of inputs, outputs, keys and values
    `inverted`    which of these are stored as reciprocals
    `zero_added`  what GPTQ's layout has subtracted from zero points
    `round_up`    scales of inputs are powers of two, the next ones above
    """

    method: str
    groups: tuple[Any, ...]
    ignore: tuple[str, ...] = ()
    keys_and_values: Any = None
    layout: Layout = "scaled"
    format: str | None = None
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    side_parts: Mapping[str, str] = field(default_factory=lambda: SIDE_PARTS)
    inverted: frozenset[str] = frozenset()
    zero_added: int = 0
    exact: bool = True
    varies: bool = False
    round_up: bool = False


def find_settings(raw_config: Mapping[str, Any], directory: Path) -> tuple[Mapping[str, Any], str] | None:
    """Returns what a model says of its quantization, and where; None if it says nothing."""
    entry, file = raw_config.get("quantization_config"), directory / MODELOPT_FILE
    if isinstance(entry, Mapping):
        return entry, f"quantization_config of {directory / 'config.json'}"
    if entry is not None:
        raise InputError(f"{directory / 'config.json'} has quantization_config = {entry!r:.60}; it must be an object")
    if not file.is_file():
        return None
    content = read_object(file, finite=False)
    stated = content.get("quantization")
    if not isinstance(stated, Mapping):
        raise InputError(f"{file} has quantization = {stated!r:.60}; it must be an object: fetch the file again")
    return {"quant_method": "modelopt", **stated}, str(file)


def is_readable(entry: Mapping[str, Any]) -> bool:
    """Returns whether weights are read here, without the package that wrote them."""
    method = entry.get("quant_method")
    return isinstance(method, str) and method in READERS and not (method == BITSANDBYTES and entry.get("load_in_8bit"))


def read_settings(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    """Returns the settings in `entry`, which stand `where`; raises if they are not understood."""
    try:
        return READERS[entry["quant_method"]](entry, where)
    except InputError:
        raise
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(step) for step in first["loc"] if "[" not in str(step))
        raise InputError(f"{where} has {place} = {first['input']!r:.80}: {first['msg']:.200}; correct it") from None
    except (ValueError, NotImplementedError, TypeError, AttributeError, LookupError) as problem:
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split()):.300}"
        raise InputError(f"{where} is not valid ({reason}); correct it") from None


def _known(
    entry: Mapping[str, Any],
    where: str,
    *,
    used: str,
    unused: str = "",
    values: Mapping[str, tuple[Any, ...]] | None = None,
) -> None:
    """Raises if a field has a value and is not known, or one that is not among its `values`."""
    names = {"quant_method", *used.split(), *unused.split()}
    for name, value in entry.items():
        empty = value is None or value is False or value in ("", [], {})
        if name not in names and not empty:
            raise InputError(f"{where} has {name} = {value!r:.80}, which is not understood; nothing was read")
        allowed = (values or {}).get(name)
        if allowed is not None and value not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise InputError(f"{where} has {name} = {value!r:.80}; only {listed} can be read")


def _scheme(
    weights: Mapping[str, Any] | None, inputs: Mapping[str, Any] | None = None, targets: Any = (LINEAR,)
) -> Any:
    return QuantizationScheme(
        targets=list(targets),
        weights=None if weights is None else QuantizationArgs(**weights),
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
    )


def _compressed_tensors(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    _known(
        entry,
        where,
        used="format quantization_status config_groups ignore kv_cache_scheme",
        unused="version provider global_compression_ratio run_compressed dequantize sparsity_config transform_config",
        values={
            "quantization_status": ("compressed", "frozen"),
            "sparsity_config": (None, {}, {"format": "dense"}),
            "transform_config": (None, {}),
        },
    )
    plain = copy.deepcopy(dict(entry))  # as it is changed by what reads it
    plain.pop("sparsity_config", None)
    plain.pop("transform_config", None)
    for group in (plain.get("config_groups") or {}).values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):  # the order of columns in calibration; `weight_g_idx` tells the one of the file
            weights.pop("actorder", None)
    config = QuantizationConfig.model_validate(plain)
    bare = next((name for name, group in config.config_groups.items() if group.weights is None), None)
    if bare is not None:
        raise InputError(f"{where} has {bare}, which rounds activations of layers whose weights are plain; not read")
    schemes = [how for group in config.config_groups.values() for how in _parts(group)]
    odd = next((how.num_bits for how in [*schemes, config.kv_cache_scheme] if how and not 1 < how.num_bits <= 8), None)
    if odd is not None:
        raise InputError(f"{where} has num_bits = {odd!s:.20}; only 2 to 8 can be read")
    for how in schemes:  # versions before 0.13 say nothing of the type of scales of 4-bit floats
        if how is not None and how.type == "float" and how.num_bits == 4 and how.scale_dtype is None:
            how.scale_dtype = {16: torch.float8_e4m3fn, 32: torch.uint8}.get(how.group_size)
    cached = config.kv_cache_scheme
    if cached is not None and (
        cached.dynamic or not cached.symmetric or cached.strategy not in ("tensor", "attn_head")
    ):
        raise InputError(f"{where} rounds keys and values by {cached.strategy}, which is not known; nothing was read")
    formats = [group.format for group in config.config_groups.values()]
    wanted = "dense" if not formats else formats[0] if len(set(formats)) == 1 else "mixed-precision"
    if None not in formats and config.format not in (wanted, "fakequant"):
        raise InputError(f"{where} has the format {config.format!s:.40}, and its groups have {wanted}; correct one")
    return QuantizationSettings(
        "compressed-tensors",
        tuple(config.config_groups.values()),
        tuple(config.ignore or ()),
        config.kv_cache_scheme,
        format=config.format,
    )


def _names(entry: Mapping[str, Any], where: str, *fields: str) -> list[str]:
    """Returns the modules that some fields list."""
    names = [name for field in fields for name in entry.get(field) or ()]
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{where} has {fields[0]} = {names!r:.80}; it must list names of modules")
    return names


def _parts(group: Any) -> tuple[Any, ...]:
    return group.weights, group.input_activations, group.output_activations


def _fp8(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    _known(
        entry,
        where,
        used="activation_scheme weight_block_size modules_to_not_convert ignored_layers fmt scale_fmt kv_cache_scheme",
        unused="dequantize",
        values={
            "activation_scheme": ("dynamic", "static"),
            "fmt": (None, "e4m3"),
            "scale_fmt": (None, "float", "ue8m0"),
            "kv_cache_scheme": (None,),
        },
    )
    block, static = entry.get("weight_block_size"), entry.get("activation_scheme") == "static"
    weights = {**FLOAT8, "strategy": "block", "block_structure": block} if block else PER_TENSOR
    group = {**FLOAT8, "strategy": "group", "group_size": block[1], "dynamic": True} if block else PER_TOKEN
    kept = _names(entry, where, "modules_to_not_convert", "ignored_layers")
    return QuantizationSettings(
        "fp8",
        (_scheme(weights, PER_TENSOR if static else group),),
        tuple(f"re:(.*\\.)?{name.replace('.', '[.]')}(\\..*)?$" for name in kept),
        parts={"": "codes", "_scale_inv": "scale", "_scale": "scale"},
        side_parts={"input_scale": "input_scale", "activation_scale": "input_scale"},
        exact=False,  # embeddings, routers and heads are kept without a word
        round_up=entry.get("scale_fmt") == "ue8m0",
    )


MODELOPT_SCHEMES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]] = {
    "FP8": (PER_TENSOR, PER_TENSOR),
    "FP8_PER_CHANNEL_PER_TOKEN": ({**FLOAT8, "strategy": "channel"}, PER_TOKEN),
    "FP8_PB_WO": ({**FLOAT8, "strategy": "block", "block_structure": [128, 128]}, None),
    "NVFP4": (FLOAT4, NVFP4_INPUTS),
    "W4A16_NVFP4": (FLOAT4, None),
}


def _modelopt(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    _known(
        entry,
        where,
        used="quant_algo kv_cache_quant_algo group_size exclude_modules ignore quantized_layers config_groups "
        "kv_cache_scheme",
        unused="producer",
        values={"kv_cache_quant_algo": (None, "FP8")},
    )

    def group(algorithm: object, targets: Any = (LINEAR,)) -> Any:
        name = str(algorithm).upper()
        if name not in MODELOPT_SCHEMES:
            listed = ", ".join(MODELOPT_SCHEMES)
            raise InputError(f"{where} has quant_algo = {algorithm!r:.40}; only {listed} can be read")
        return _scheme(*MODELOPT_SCHEMES[name], targets)

    algorithm, layers = entry.get("quant_algo"), entry.get("quantized_layers") or {}
    if layers:
        algorithms = {layer.get("quant_algo") for layer in layers.values()}
        groups = [
            group(kind, [name for name, layer in layers.items() if layer.get("quant_algo") == kind])
            for kind in sorted(map(str, algorithms))
        ]
    else:
        groups = [] if algorithm is None else [group(algorithm)]
    if entry.get("group_size") not in (None, 0, *(args.weights.group_size for args in groups)):
        raise InputError(f"{where} has group_size = {entry['group_size']!r:.40}, which {algorithm} does not have")
    kept = _names(entry, where, "exclude_modules", "ignore")
    cached = entry.get("kv_cache_quant_algo") or entry.get("kv_cache_scheme")
    four_bits = any(args.weights.num_bits == 4 for args in groups)
    return QuantizationSettings(
        "modelopt",
        tuple(groups),
        tuple(f"re:{fnmatch.translate(name)}" if "*" in name else name for name in kept),
        QuantizationArgs(**PER_TENSOR) if cached else None,
        parts={"": "codes", "_scale": "scale", "_scale_2": "global_scale"},
        side_parts={
            "input_scale": "input_global_scale" if four_bits else "input_scale",
            "k_proj.k_scale": "k_scale",
            "v_proj.v_scale": "v_scale",
        },
        inverted=frozenset({"global_scale", "input_global_scale"}),
    )


IN_CALIBRATION = (  # fields that say how GPTQ and its like were computed, or how a program loads them
    "act_group_aware backend batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent "
    "dataset desc_act disable_exllama exllama_config false_sequential format gptaq hessian hyb_act iters lm_head "
    "low_gpu_mem_usage lr max_input_length meta minmax_lr model_file_base_name model_name_or_path model_seqlen "
    "module_name_preceding_first_block modules_in_block_to_quantize mse nsamples offload_to_disk offload_to_disk_path "
    "pad_token_id quantizer seqlen static_groups to_quant_block_names tokenizer true_sequential use_cuda_fp16 "
    "use_exllama autoround_version version dynamic extra_config modules_to_not_convert supported_types amp "
    "provider zero_point method"
)


def _integers(entry: Mapping[str, Any]) -> Any:
    size = entry.get("group_size", 128)
    grouped = {"strategy": "group", "group_size": size} if size > 0 else {"strategy": "channel"}
    return _scheme({"num_bits": entry["bits"], "type": "int", "symmetric": entry.get("sym", False) is True, **grouped})


def _gptq(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    _known(
        entry,
        where,
        used="bits group_size sym checkpoint_format pack_dtype data_type",
        unused=IN_CALIBRATION,
        values={
            "bits": (2, 3, 4, 8),
            "data_type": (None, "int"),
            "checkpoint_format": (None, "gptq", "gptq_v2"),
            "format": (None, "gptq", "gptq_v2"),
            "pack_dtype": (None, "int32"),
        },
    )
    newer = "gptq_v2" in (entry.get("checkpoint_format"), entry.get("format"))
    return QuantizationSettings(
        "gptq",
        (_integers(entry),),
        layout="gptq",
        zero_added=0 if newer else 1,
        exact=False,
        varies=bool(entry.get("dynamic")),
    )


def _awq(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    _known(
        entry,
        where,
        used="bits w_bit group_size q_group_size sym checkpoint_format pack_dtype version format data_type",
        unused=IN_CALIBRATION.replace(" version ", " ").replace(" format ", " "),
        values={
            "bits": (4,),
            "data_type": (None, "int"),
            "w_bit": (4,),
            "version": (None, "gemm", "GEMM"),
            "checkpoint_format": (None, "gemm"),
            "format": (None, "gemm"),
            "pack_dtype": (None, "int32"),
        },
    )
    size = entry.get("group_size", entry.get("q_group_size", 128))
    return QuantizationSettings("awq", (_integers({"bits": 4, "group_size": size}),), layout="awq", exact=False)


AUTOROUND_LAYOUTS: Mapping[str, tuple[Layout, int]] = {  # and what zero points lack
    "auto_round": ("gptq", 0),
    "auto_round:auto_gptq": ("gptq", 1),
    "auto_round:auto_awq": ("awq", 0),
    "auto_round:llm_compressor": ("scaled", 0),
    "auto_round:fp8_static": ("scaled", 0),
}


def _autoround(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    _known(
        entry,
        where,
        used="bits group_size sym data_type packing_format act_bits act_data_type act_dynamic act_group_size act_sym",
        unused=f"{IN_CALIBRATION} enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input fmt "
        "gradient_accumulate_steps scale_dtype low_cpu_mem_usage activation_scheme",
        values={"packing_format": tuple(AUTOROUND_LAYOUTS), "fmt": (None, "e4m3"), "act_sym": (None, True)},
    )
    layout, zero_added = AUTOROUND_LAYOUTS[str(entry.get("packing_format"))]
    return QuantizationSettings(
        "auto-round",
        (_integers(entry) if layout != "scaled" else _autoround_floats(entry, where),),
        layout=layout,
        zero_added=zero_added,
        exact=False,
        varies=bool(entry.get("extra_config")),
    )


def _autoround_floats(entry: Mapping[str, Any], where: str) -> Any:
    """Returns the scheme of AutoRound's exports in floating point."""
    kinds = {**FLOAT8, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    schemes: Mapping[tuple[Any, ...], tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        ("mx_fp", 4, 32): ({**kinds, "num_bits": 4}, {**kinds, "num_bits": 4, "dynamic": True}),
        ("mx_fp", 8, 32): (kinds, {**kinds, "dynamic": True}),
        ("nv_fp", 4, 16): (FLOAT4, NVFP4_INPUTS),
        ("fp", 8, -1): ({**FLOAT8, "strategy": "channel"}, PER_TENSOR),
        ("fp", 8, 0): (PER_TENSOR, PER_TENSOR),
    }
    stated = tuple(entry.get(name) for name in ("data_type", "bits", "group_size"))
    bits, data = entry.get("act_bits", 16), str(entry.get("act_data_type") or entry.get("data_type"))
    static = entry.get("data_type") == "fp"
    if (
        stated not in schemes
        or bits not in (16, 32, entry["bits"])
        or (bits == entry["bits"] and not data.startswith(str(entry.get("data_type"))))
        or (bits == entry["bits"] and entry.get("act_dynamic", True) is static)
    ):
        raise InputError(f"{where} describes {stated} with inputs of {data}, {bits} bits, which is not known")
    weights, inputs = schemes[stated]
    return _scheme(weights, inputs if bits == entry["bits"] else None)


def _bitsandbytes(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    _known(
        entry,
        where,
        used="load_in_4bit bnb_4bit_quant_type bnb_4bit_quant_storage",
        unused="_load_in_4bit _load_in_8bit load_in_8bit bnb_4bit_compute_dtype bnb_4bit_use_double_quant "
        "llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight llm_int8_skip_modules llm_int8_threshold",
        values={"bnb_4bit_quant_type": ("nf4", "fp4"), "bnb_4bit_quant_storage": (None, "uint8")},
    )
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 64}
    return QuantizationSettings(BITSANDBYTES, (_scheme(weights),), layout="bitsandbytes", exact=False)


def _mxfp4(entry: Mapping[str, Any], where: str) -> QuantizationSettings:
    _known(entry, where, used="modules_to_not_convert", unused="dequantize")
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    return QuantizationSettings("mxfp4", (_scheme(weights),), layout="mxfp4", exact=False)


READERS: Mapping[str, Callable[[Mapping[str, Any], str], QuantizationSettings]] = {
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "modelopt": _modelopt,
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _autoround,
    "intel/auto-round": _autoround,
    "mxfp4": _mxfp4,
    BITSANDBYTES: _bitsandbytes,
}
