"""A text request checks its own values, whoever makes it."""

import json

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.text.corpus import TextRequest


@pytest.mark.parametrize(
    ("setting", "value"),
    [("tokens", 15), ("tokens", 100.0), ("tokens", True), ("sequence", 3), ("seed", -1), ("split", "training")],
)
def test_settings_are_checked(setting, value):
    with pytest.raises(InputError, match=f"^{setting} is "):
        TextRequest(**{setting: value})


def test_its_settings_are_what_files_hold():
    request = TextRequest("evaluation", np.int64(64), 32, np.int32(7))
    assert json.dumps(request.settings) == '{"tokens": 64, "sequence": 32, "seed": 7}'
    assert request == TextRequest("evaluation", **request.settings)
