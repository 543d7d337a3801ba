"""A slice of `make faults`, and what it judges with."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fault_cases import Case
from fault_disk import built_layer, content, visible

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the layer is for Linux and needs a C compiler"
)
SUITE = Path(__file__).with_name("fault_suite.py")
LAYER = """
import os, sys
from pathlib import Path
from fault_disk import KINDS, arm, disarm
place = Path(sys.argv[1])
arm(place, KINDS[sys.argv[2]], int(sys.argv[3]))
said = []
for name in ("a", "b"):
    try:
        with (place / "draft").open("xb", buffering=0) as file:
            done = file.write(b"0123456789")
            os.fsync(file.fileno())
        (place / "draft").replace(place / name)
        said.append(done)
    except OSError as problem:
        said.append(problem.errno)
        try:
            (place / "draft").unlink()
        except OSError as problem:
            said.append(problem.errno)
print(said, disarm())
"""
EIO, ENOSPC, EROFS = 5, 28, 30


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_layer(tmp_path_factory.mktemp("layer"))


@pytest.mark.parametrize(
    ("kind", "point", "output", "left"),
    [
        ("EIO once", 99, "[10, 10] cwfrcwfr", {"a": 10, "b": 10}),
        ("EIO once", 3, f"[{EIO}, 10] cwfucwfr", {"b": 10}),
        ("ENOSPC from then on", 2, f"[{ENOSPC}, {ENOSPC}, 2] cwfucu", {}),  # half of it was written
        ("ENOSPC from then on", 8, f"[10, {ENOSPC}] cwfrcwfru", {"a": 10}),
        ("read-only from then on", 3, f"[{EROFS}, {EROFS}, {EROFS}, {EROFS}] cwfucu", {"draft": 10}),
        ("SIGKILL", 2, "", {"draft": 5}),
        ("SIGKILL", 4, "", {"draft": 10}),
    ],
)
def test_the_layer_fails_where_it_is_told_to(
    layer: Path, tmp_path: Path, kind: str, point: int, output: str, left: dict[str, int]
) -> None:
    environment = os.environ | {"LD_PRELOAD": str(layer), "PYTHONPATH": str(SUITE.parent)}
    place = tmp_path / "place"
    place.mkdir()
    process = subprocess.run(
        [sys.executable, "-c", LAYER, str(place), kind, str(point)], env=environment, capture_output=True, text=True
    )
    assert (process.stdout.strip(), process.stderr) == (output, "")
    assert {name: len(data) for name, data in content(place).items()} == left


def test_what_is_seen_too_early_is_noticed() -> None:
    case = Case("a case", (), changing=("run.json",))
    whole, old = {"a": b"new", "b": b"new"}, {"a": b"old"}
    assert case.half_written({"a": b"old", "b": b"new"}, whole=whole, old=old) == ""
    assert case.half_written({"a": b"ne"}, whole=whole, old=old) == "a is seen before it is complete"
    assert case.half_written({"c": b""}, whole=whole, old=old) == "c is seen before it is complete"
    assert case.half_written({"run.json": b"{}"}, whole=whole, old=old) == ""
    assert "run.json is seen" in case.half_written({"run.json": b"{"}, whole=whole, old=old)
    manifest = json.dumps({"overlays": [{"file": "x.safetensors"}], "activations": None}).encode()
    files = {"out/overlays.json": manifest}
    assert "x.safetensors, which is not there" in case.half_written(files, whole=files, old={})
    assert visible({"a/.b": b"", ".a/b": b"", "a/b": b""}) == {"a/b": b""}


@pytest.mark.parametrize(("case", "every", "least"), [("quantize rtn", 23, 28), ("evaluate over older", 3, 14)])
def test_a_slice_of_all_faults(tmp_path: Path, case: str, every: int, least: int) -> None:
    kinds = ("SIGKILL", "SIGINT", "SIGTERM", "beside", "EIO once", "ENOSPC from then on", "read-only from then on")
    asked = [argument for kind in kinds for argument in ("--kind", kind)]
    command = [sys.executable, str(SUITE), "--case", case, "--every", str(every), "--keep", str(tmp_path), *asked]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    total = re.search(r"\| all \|  \| (\d+) .* (\d+) \|$", process.stdout, re.MULTILINE)
    assert total is not None
    assert (int(total[1]) >= least, total[2]) == (True, "0")
