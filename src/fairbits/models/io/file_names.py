"""The names of the files of a model, what is wrong with a directory that lacks them, and the packages that read them.

Nothing here needs torch.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.version import Version

from fairbits.core.errors import InputError

SINGLE = "model.safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
INDEX = f"model{INDEX_SUFFIX}"
CONFIG = "config.json"
MODELOPT_FILE = "hf_quant_config.json"  # where NVIDIA's ModelOpt says how it has quantized a model
FOR_GGUF = "5.22"
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
PACKAGES: Mapping[str, Mapping[str, str]] = {  # that transformers needs: modules and how pip calls them, by method
    "aqlm": {"aqlm": "aqlm"},
    "bitsandbytes": {"bitsandbytes": "bitsandbytes"},
    "hqq": {"hqq": "hqq"},
    "quanto": {"optimum": "optimum-quanto"},
    "quark": {"quark": "amd-quark"},
    "spqr": {"spqr_quant": "spqr_quant"},
    "torchao": {"torchao": "torchao"},
    "vptq": {"vptq": "vptq"},
}


def check_packages(model: str | Path, config: Mapping[str, Any]) -> None:
    """Raises if a package is missing that reads the weights of a model as its config.json says they are quantized."""
    settings = config.get("quantization_config")
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    needed = PACKAGES.get(method, {}) if isinstance(method, str) else {}
    missing = [package for module, package in needed.items() if find_spec(module) is None]
    if missing:
        raise InputError(
            f"{model} was quantized by {method} (as its config.json says), and {' and '.join(missing)}, which reads "
            f"its weights, is not installed; install it: pip install {' '.join(missing)}"
        )


def check_transformers(path: str | Path) -> None:
    """Raises if transformers is too old to read a GGUF file: 5.17 misreads the tokenizer of Gemma."""
    installed = version("transformers")
    if Version(installed) < Version(FOR_GGUF):
        raise InputError(
            f"{path} is a GGUF file, which needs transformers {FOR_GGUF} or newer; {installed} is installed, which "
            "reads the tokenizers of some GGUF files wrongly: pip install --upgrade transformers"
        )


def no_weights(directory: Path) -> InputError:
    """Returns the error for a directory without weights."""
    names = sorted(path.name for path in directory.iterdir())
    listing = (", ".join(names[:8]) + (" …" if len(names) > 8 else "")) or "nothing"
    return InputError(f"{directory} holds neither {SINGLE} nor {INDEX}; found: {listing}")


def find_pickle(names: Iterable[str]) -> str | None:
    """Returns the first of these files that holds pickled weights."""
    unrelated = ("training_args", "optimizer", "scheduler")
    return next((name for name in names if Path(name).suffix in PICKLES and not name.startswith(unrelated)), None)


def pickle_advice(directory: Path, name: str) -> str:
    """Returns why a pickle is not read, and how to convert it."""
    return (
        f"{directory / name} is a pickle, and reading one can run any code in it; weights must be in safetensors. "
        f'If you trust it, convert it: python -c "from transformers import AutoModelForCausalLM as M, AutoTokenizer '
        f"as T; [C.from_pretrained({str(directory)!r}).save_pretrained('converted') for C in (M, T)]\""
    )
