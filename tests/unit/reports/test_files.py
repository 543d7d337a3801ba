"""run.json and sweep.json: what is damaged is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairbits.core.errors import InputError
from fairbits.reports.sources import RUN, SWEEP

SAVED = Path(__file__).parents[2] / "data" / "records"


def changed(name: str, *keys: str, by: Any) -> dict[str, Any]:
    data = json.loads((SAVED / name).read_text())
    target = data
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = by
    return data


@pytest.mark.parametrize(
    ("keys", "by", "message"),
    [
        (("baselines",), [{"name": "rtn"}], "baselines.0.scores is missing"),
        (("settings",), ["<b>"], "settings is"),
        (("notes",), "none", "notes is 'none'; it must be a valid array"),
        (("versions", "numpy"), 2, "versions.numpy is 2"),
        (("written",), 3, "written is 3"),
    ],
)
def test_a_damaged_record_of_a_run_is_refused(keys: tuple[str, ...], by: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^run.json is damaged: {message}"):
        RUN.parse(changed("run.json", *keys, by=by), source="run.json")


@pytest.mark.parametrize(
    ("keys", "by", "message"),
    [
        (("sizes", "<b>"), 3, "the key sizes.<b> must be a width in bits, 2 to 16"),
        (("sizes", "8"), 3, "gap and sizes differ in '8'"),
        (("critical_width",), {}, "critical_width and damage differ in 'eng_Latn'"),
        (("damage", "eng_Latn", "3", "low"), "<b>", "damage.eng_Latn.3.low is '<b>'; it must be a valid number"),
        (("damage", "eng_Latn", "3", "low"), 1e9, "damage.eng_Latn.3: low is"),
        (("threshold",), "0.01", "threshold is '0.01'"),
        (("fingerprint",), None, "fingerprint is None"),
    ],
)
def test_a_damaged_sweep_is_refused(keys: tuple[str, ...], by: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^sweep.json is damaged: {message}.*fairbits sweep --out"):
        SWEEP.parse(changed("sweep.json", *keys, by=by), source="sweep.json")
