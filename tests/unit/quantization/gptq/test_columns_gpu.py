"""The Triton kernel of GPTQ's columns, in Triton's interpreter, against the CPU loop; on a GPU see tests/gpu."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
PROGRAM = Path(__file__).with_name("interpreted_columns.py")


@pytest.mark.long
def test_the_kernel_rounds_as_the_cpu_does():
    """In a process of its own, as Triton decides when it is imported whether it interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["equal"] * 5
