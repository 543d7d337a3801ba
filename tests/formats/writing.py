"""What the writers share: text to calibrate on, and the loop over formats. It runs in every environment."""

import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

SAMPLES = [f"On day {i} the wind came from the {way} and brought {i} mm of rain." for i in range(8) for way in "NESW"]


def write_all(prefix: str, recipes: Mapping[str, Any], write: Callable[[Path, Any, Path], None], package: str) -> None:
    """Writes what is missing of the formats, for `python WRITER BASE OUT`; prints the name and the writer of each."""
    base, home = map(Path, sys.argv[1:])
    for name, recipe in recipes.items():
        out = home / f"{prefix}{name}"
        if not out.exists():
            try:
                write(base.with_name("base-moe") if "moe" in name else base, recipe, out)
                print(f"{out.name}: {package} {version(package)}", flush=True)
            except Exception:
                print(f"not written: {out.name}", file=sys.stderr)
                traceback.print_exc()
