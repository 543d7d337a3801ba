"""The command line, run in this process."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairbits.cli import main


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Returns a function that runs a verb on 80 columns: exit code, stdout, and stderr less its lines of progress."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fairbits", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        errors = re.sub(r"^.* …\n", "", captured.err, flags=re.MULTILINE)
        return int(ended.value.code or 0), captured.out, errors

    return run
