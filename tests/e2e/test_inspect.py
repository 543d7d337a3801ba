"""`fairbits inspect` as a user runs it, on honest and on hostile models."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import BloomConfig, BloomForCausalLM

from fairbits.models.checkpoint import Checkpoint

TINY = "embedded:tiny"
HOSTILE = "[red]\x1b[2J\x9b31m:key:\u202e[/]"
SHOWN = r"[red]\u001b[2J\u009b31m:key:\u202e[/]"
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory) -> Iterator[None]:
    """Models derived from the embedded one are kept here, not in the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def call(command) -> Call:
    """Returns a function that runs `fairbits inspect` in this process."""
    return partial(command, "inspect")


@pytest.fixture
def model(tmp_path, capsys) -> Path:
    """A BLOOM of two small blocks."""
    config = BloomConfig(vocab_size=300, hidden_size=16, n_layer=2, n_head=2)
    BloomForCausalLM(config).save_pretrained(tmp_path / "model")
    capsys.readouterr()  # the progress of saving
    return tmp_path / "model"


def with_tensors(model: Path, **tensors: torch.Tensor) -> Path:
    file = model / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})
    return model


def with_config(model: Path, **entries: object) -> Path:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))
    return model


def safe(text: str) -> bool:
    """Returns whether nothing in the text is_control a terminal."""
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def refused(result: tuple[int, str, str]) -> str:
    """Returns the message of a command that ended as bad input does: code 2, no output, one line."""
    code, printed, errors = result
    assert (code, printed) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert safe(errors)
    return errors


def test_the_blocks_are_shown_in_80_columns(call) -> None:
    code, printed, errors = call(TINY)
    assert (code, errors) == (0, "")
    assert max(cell_len(line) for line in printed.splitlines()) <= 80
    assert printed.startswith("embedded:tiny  BloomForCausalLM, 12 blocks, 13,672,448 weights, 27.3 MB")
    rows = re.findall(r"^block (\d+) +([\d,]+)", printed, flags=re.MULTILINE)
    assert rows == [(str(block), "786,432") for block in range(12)]
    assert re.search(r"^embedding +4,194,304", printed, flags=re.MULTILINE)


def test_json_says_all_there_is_to_know(call) -> None:
    code, printed, errors = call(f"{TINY}?outliers=1:50", "--json")
    assert (code, errors) == (0, "")
    data = json.loads(printed, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    checkpoint = Checkpoint(f"{TINY}?outliers=1:50")
    assert data["fingerprint"] == checkpoint.fingerprint
    assert data["notes"] == list(checkpoint.notes) != []
    assert data["schema"] == "fairbits.inspection/1"
    assert data["target"] == checkpoint.target
    assert data["weights"].keys() == data["moments"]["tensors"].keys() == checkpoint.tensors.keys()
    roles = {weight["role"] for weight in data["weights"].values()}
    assert {"qkv", "attention_out", "mlp_up", "mlp_down", "embedding", "norm"} <= roles
    assert data["moments"]["blocks"][1]["kappa"] == pytest.approx(50, rel=0.02)


def test_notes_are_shown(call) -> None:
    code, printed, _ = call(f"{TINY}?outliers=1:50")
    assert code == 0
    assert "note: outliers were given to blocks (1: κ 50)" in printed


def test_a_row_per_tensor_on_request(call, model) -> None:
    code, printed, _ = call(model, "--tensors")
    assert code == 0
    assert max(cell_len(line) for line in printed.splitlines()) <= 80
    letters = "".join(printed.split())
    for name in Checkpoint(model).tensors:
        for part in name.split("."):
            assert part in letters or re.search(".*?".join(part), letters)
    rows = [line for line in printed.splitlines() if re.search(r"% +\S+%\s*$", line)]
    assert len(rows) == len(Checkpoint(model).tensors)


def test_kappa_by_role_on_request(call) -> None:
    code, printed, _ = call(TINY, "--roles")
    assert code == 0
    assert printed.startswith("embedded:tiny  κ of linear weights by role, decoder")
    header, *rows = [line.split() for line in printed.splitlines()[2:]]
    assert header == ["block", "all", "qkv", "o", "up", "down"]
    assert [row[0] for row in rows] == list(map(str, range(12)))
    assert rows[2] == ["2", "8.60", "1.17", "9.57", "0.72", "28.96"]
    assert "give one of them" in refused(call(TINY, "--roles", "--tensors"))


def test_tensors_without_a_use_or_without_moments_are_named(call, model) -> None:
    code, printed, _ = call(with_tensors(model, counts=torch.arange(3)))
    assert code == 0
    output = " ".join(printed.split())
    assert "note: not used: counts; BloomForCausalLM has no such module" in output
    assert "note: without moments: counts; it holds 3 element(s) of torch.int64" in output


def test_a_missing_directory(call, tmp_path) -> None:
    assert "there is no" in refused(call(tmp_path / "nowhere"))


def test_a_directory_of_pickles(call, tmp_path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    message = refused(call(tmp_path))
    assert "is a pickle" in message
    assert f"from_pretrained('{tmp_path}').save_pretrained('converted')" in message  # in one piece, to copy


def test_a_truncated_file(call, model) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "truncated" in refused(call(model))


def test_weights_that_are_not_numbers(call, model) -> None:
    name = "transformer.h.1.mlp.dense_h_to_4h.weight"
    weights = load_file(model / "model.safetensors")[name]
    weights[3, 4] = torch.nan
    assert f"{name} holds 1 NaN" in refused(call(with_tensors(model, **{name: weights})))


def test_a_directory_that_holds_no_model(call, tmp_path) -> None:
    (tmp_path / f"{HOSTILE.replace('/', '')}.txt").touch()
    assert rf"found: {SHOWN.replace('/', '')}.txt" in refused(call(tmp_path))


@pytest.mark.parametrize(
    "entries",
    [
        {"model_type": HOSTILE},
        {"architectures": [HOSTILE]},
        {"n_head": HOSTILE},
        {"hidden_size": 0},
        {"quantization_config": {"quant_method": HOSTILE}},
        {"quantization_config": HOSTILE},
    ],
)
def test_values_of_a_configuration_do_not_steer_the_terminal(entries, call, model) -> None:
    refused(call(with_config(model, **entries)))


def test_names_in_errors_do_not_steer_the_terminal(call, model) -> None:
    bad = torch.tensor([1.0, torch.inf])
    assert f"{SHOWN} holds 1 NaN or infinite" in refused(call(with_tensors(model, **{HOSTILE: bad})))


@pytest.mark.parametrize("options", [(), ("--tensors",)])
def test_names_in_tables_are_printed_as_they_are(options, call, model) -> None:
    code, printed, errors = call(with_tensors(model, **{HOSTILE: torch.ones(3)}), *options)
    assert (code, errors) == (0, "")
    assert safe(printed)
    assert f"notused:{SHOWN};" in "".join(printed.split())


def test_a_name_of_two_lines_stays_in_its_row(call, model) -> None:
    code, printed, _ = call(with_tensors(model, **{"a\nblock 9": torch.ones(3)}), "--tensors")
    assert code == 0
    assert re.search(r"^a\\u000ablock 9 +3 ", printed, flags=re.MULTILINE)


def test_names_in_json_are_escaped_and_come_back(call, model) -> None:
    odd = f"\U0001f600 עברית {HOSTILE}"
    code, printed, _ = call(with_tensors(model, **{odd: torch.ones(3)}), "--json")
    assert code == 0
    assert safe(printed)
    assert odd in json.loads(printed)["moments"]["tensors"]


def test_half_of_a_surrogate_pair_in_a_name_is_refused_as_safetensors_does(call, model) -> None:
    file = with_tensors(model, odd=torch.ones(3)) / "model.safetensors"
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = raw[8:start].replace(b'"odd"', b'"\\ud83d"')
    file.write_bytes(len(header).to_bytes(8, "little") + header + raw[start:])
    with pytest.raises(SafetensorError), safe_open(file, "pt"):
        pass
    for options in ((), ("--tensors",), ("--json",)):
        assert "surrogate" in refused(call(model, *options))


def test_a_target_with_markup_is_printed_as_it_is(call, model) -> None:
    renamed = model.rename(model.with_name("[red]a:key:\x1b[1m"))
    code, printed, _ = call(renamed)
    assert code == 0
    assert r"[red]a:key:\u001b[1m" in "".join(printed.split())
    assert r"/[bold]\u001b[2J" in refused(call("/nowhere/[bold]\x1b[2J"))
