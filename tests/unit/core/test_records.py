"""Records: what a file must be, what its error says, and that a file that is read and written again stays the same."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.records import (
    Column,
    Count,
    Kind,
    NonNegative,
    Number,
    check_once,
    check_ordered,
    check_record,
    check_same_keys,
    check_square,
    check_sum,
    check_within,
    parse_object,
    read_object,
    to_json,
)


@dataclass(frozen=True)
class Part:
    name: str
    group: int | Literal["channel", "tensor"] = "channel"

    def __post_init__(self) -> None:
        if self.group == 1:
            raise InputError("group is 1; it must be 2 or more")


@dataclass(frozen=True)
class Thing:
    title: str
    count: Count
    weights: Mapping[str, Number]
    limits: tuple[float, float]
    parts: tuple[Part, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    note: str | None = None


THING = Kind("fairbits.thing/1", "a thing", "fairbits thing --out", Thing, optional=("note",))
GIVEN = Thing("שלום", 3, {"eng": 1, "heb": 0.5}, (0.0, 1.5), (Part("a"), Part("b", 128)), {"x": [1, None, {"y": 2.5}]})


def written(tmp_path: Path, data: Any) -> Path:
    file = tmp_path / "thing.json"
    file.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return file


def test_a_record_comes_back_and_keeps_its_bytes(tmp_path: Path) -> None:
    content = to_json(THING.stamp(asdict(GIVEN)))
    back = THING.read(written(tmp_path, content))
    assert back == GIVEN
    assert to_json(THING.stamp(asdict(back))) == content  # 1 has not become 1.0


def test_a_key_of_later_versions_may_be_missing(tmp_path: Path) -> None:
    data = THING.stamp(asdict(GIVEN))
    del data["note"]
    assert THING.read(written(tmp_path, data)) == GIVEN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speed": 1}, "the key speed is unknown"),
        ({"title": 5}, "title is 5; it must be a valid string"),
        ({"count": True}, "count is True; it must be a valid integer"),
        ({"count": 2.0}, "count is 2.0; it must be a valid integer"),
        ({"count": "3"}, "count is '3'; it must be a valid integer"),
        ({"count": -1}, "count is -1; it must be greater than or equal to 0"),
        ({"weights": {"eng": "1"}}, "weights.eng is '1'; it must be a valid integer or a valid number"),
        ({"weights": []}, "weights is []; it must be an object"),
        ({"limits": [1.0]}, "limits.1 is missing"),
        ({"limits": [1.0, None]}, "limits.1 is None; it must be a valid number"),
        ({"parts": [{"name": "a"}, {}]}, "parts.1.name is missing"),
        ({"parts": [{"name": "a", "size": 1}]}, "the key parts.0.size is unknown"),
        ({"parts": [{"name": "a", "group": "row"}]}, "parts.0.group is 'row'; it must be a valid integer or 'channel'"),
        ({"parts": [{"name": "a", "group": 1}]}, "parts.0: group is 1; it must be 2 or more"),
        ({"parts": {}}, "parts is {}; it must be a valid array"),
        ({"settings": 3}, "settings is 3; it must be an object"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = written(tmp_path, THING.stamp(asdict(GIVEN)) | changes)
    with pytest.raises(InputError) as refused:
        THING.read(file)
    assert str(refused.value).startswith(f"{file} is damaged: {message}")
    assert str(refused.value).endswith("; write it again with fairbits thing --out")


@pytest.mark.parametrize("key", ["fairbits", "title", "parts"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    data = THING.stamp(asdict(GIVEN))
    del data[key]
    with pytest.raises(InputError, match=f"is damaged: {key} is missing; write it again with fairbits thing --out"):
        THING.read(written(tmp_path, data))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            "fairbits.plan/1",
            "has the schema 'fairbits.plan/1'; it must be fairbits.thing/1: write it with fairbits thing",
        ),
        ("fairbits.thing/2", "it must be fairbits.thing/1: update fairbits, or write it with fairbits thing"),
        (None, "has the schema None"),
        (["fairbits.thing/1"], "has the schema \\['fairbits.thing/1'\\]"),
    ],
)
def test_another_schema_is_refused(tmp_path: Path, schema: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        THING.read(written(tmp_path, THING.stamp(asdict(GIVEN)) | {"schema": schema}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b'{"\xff": 1}', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b'{"a": 1' + b"0" * 400 + b"}", "is not a finite number"),
        (b'{"a": -1e999}', "-1e999 is not a finite number"),
        (b'{"a": 1, "a": 2}', "the key 'a' is there twice"),
        (b"[]", "holds a JSON list, not an object"),
        (b"1", "holds a JSON int, not an object"),
    ],
)
def test_what_is_no_object_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        THING.read(written(tmp_path, content))
    assert str(refused.value).endswith("; it must be a thing: write one with fairbits thing --out")


def test_what_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(InputError, match="nested more than 40 levels deep"):
        THING.read(written(tmp_path, THING.stamp(asdict(GIVEN)) | {"settings": {"a": deep}}))


@pytest.mark.parametrize("name", ["none.json", "", "none/none.json", "x" * 5000, "\0"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot be read .*fairbits thing --out"):
        THING.read(f"{tmp_path}/{name}")


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbits.core.records.JSON_BYTES", 1000)
    with pytest.raises(InputError, match="is larger than 1,000 bytes"):
        read_object(written(tmp_path, {"a": "b" * 1000}))


def test_a_configuration_may_hold_infinity() -> None:
    assert parse_object(b'{"limit": [0.0, Infinity]}', "config.json", finite=False)["limit"][1] == float("inf")


@dataclass(frozen=True, eq=False)
class Table:
    names: Annotated[np.ndarray, Column(str)]
    numbers: Annotated[Floats, Column(NonNegative)]


def test_a_column_becomes_an_array() -> None:
    table = check_record(Table, {"names": ["a", "b"], "numbers": [1, 2.5]})
    assert (table.names.tolist(), table.numbers.tolist(), table.numbers.dtype) == (["a", "b"], [1.0, 2.5], np.float64)
    for odd, message in (
        ([1, -1], "numbers.1 is -1"),
        ([[1]], "numbers.0 is"),
        (3, "numbers is 3"),
        (["1"], "0 is '1'"),
    ):
        with pytest.raises(InputError, match=message):
            check_record(Table, {"names": ["a", "b"], "numbers": odd})


def test_numbers_come_back_as_they_were() -> None:
    numbers = [
        float(number)
        for number in np.random.default_rng(0).standard_normal(10_000)
        * 10.0 ** np.arange(-150, 150).repeat(34)[:10_000]
    ]
    assert list(check_record(tuple[float, ...], numbers)) == numbers


def test_nothing_that_steers_a_terminal_is_written() -> None:
    content = to_json({"name": "m\x1b[2J\u202e\x9b"})
    assert not {"\x1b", "\u202e", "\x9b"} & set(content.decode())
    assert json.loads(content)["name"] == "m\x1b[2J\u202e\x9b"
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"x": float("nan")})


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (
            check_same_keys,
            ("shares", ["eng", "fra"], "hashes", ["eng"]),
            "shares and hashes differ in 'fra'",
        ),
        (check_once, ("languages", ["eng", "eng"]), "languages names 'eng' twice; it must name each once"),
        (check_within, ("rounds", ["fra"], "shares", ["eng"]), "rounds names 'fra', which is not in shares"),
        (check_ordered, ("kl_p50, kl_p95", [2.0, None, 1.0]), "kl_p50, kl_p95 are 2 and 1; they must not fall"),
        (check_sum, ("shares", {"eng": 0.5, "fra": 0.4}), "shares sum to 0.9; they must sum to 1"),
        (check_square, ("bound", [[1, 2], [3]], 2), "bound has rows of 2, 1 entries; it must have 2 rows of 2"),
    ],
)
def test_parts_of_a_record_that_contradict_each_other_are_named(
    check: Callable[..., None], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check(*arguments)
