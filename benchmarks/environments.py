"""Virtual environments of other programs, each with versions of its own."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

TORCH = "torch==2.13.0"
QUANTIZERS = {
    "llm_compressor": ("llmcompressor==0.14.0.1", "compressed-tensors==0.19.0", "transformers==5.17.0"),
    "auto_round": ("auto-round==0.16.1", "compressed-tensors==0.19.0", "transformers==5.22.2"),
    "gptqmodel": ("gptqmodel==7.6.0", "transformers==5.23.0"),
    "modelopt": ("nvidia-modelopt==0.47.0", "transformers==5.22.2", "accelerate==1.15.0", "datasets", "requests"),
}
PACKAGES = ("bitsandbytes==0.50.2", "torchao==0.18.0", "transformers==5.22.2")
"""What transformers itself reads some formats with."""


def python_of(home: Path, wanted: Sequence[str], *, without: Sequence[str] = ()) -> Path:
    """Returns the python of the environment `home`, which is made anew if it is missing or was made otherwise.

    torch is installed first and alone, so that no program chooses another build of it. `without` are packages that are
    removed at the end.
    """
    home = home.resolve()
    python, complete = home / "bin/python", home / "pins.txt"
    pins = "\n".join((TORCH, *wanted, *(f"without {package}" for package in without))) + "\n"
    if not complete.exists() or complete.read_text(encoding="utf-8") != pins:
        print(f"making {home}", file=sys.stderr)
        venv.create(home, clear=True, with_pip=True)
        for packages in ((), wanted):
            subprocess.run([python, "-m", "pip", "install", "--quiet", TORCH, *packages], check=True)
        if without:
            subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *without], check=True)
        complete.write_text(pins, encoding="utf-8")
    return python
