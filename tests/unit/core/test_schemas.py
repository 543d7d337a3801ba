"""Files of ours that are damaged or forged are refused, with the path to the field, before a gate reads them."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairbits.auditing.audit_file import AUDIT
from fairbits.comparison.comparison import COMPARE
from fairbits.core.errors import InputError
from fairbits.core.records import parse_object
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.signature import Signature
from fairbits.quantization.plan import Plan
from fairbits.reports.sources import RUN
from fairbits.serve.overlays.overlay_files import OVERLAYS
from fairbits.text.mix import Mix, manifest_path

SAVED = Path(__file__).parents[2] / "data" / "records"


def refusal(tmp_path: Path, name: str, load: Callable[[Path], Any], place: str, value: Any) -> str:
    """Returns the sentence that refuses a saved file in which one field is changed; the file itself is accepted."""
    file = tmp_path / Path(name).name
    shutil.copy(SAVED / name, file)
    load(file)
    data = json.loads(file.read_bytes())
    *path, last = [int(key) if key.isdecimal() else key for key in place.split("/")]
    held = data
    for key in path:
        held = held[key]
    held[last] = value
    file.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        load(file)
    assert str(file) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("languages", ["eng_Latn", "heb_Hebr", "heb_Hebr"], "languages names 'heb_Hebr' twice"),
        (
            "languages",
            ["eng_Latn", "../../etc/passwd"],
            "languages.1 is '../../etc/passwd'; it must be the code of a lang",
        ),
        ("documents/flips/0", 31.0, "flips.0 is 31; it must be at most its tokens, 30"),
        ("documents/tokens/0", 0.0, "flips.0 is|nll_reference.0 is .* of no token"),
        ("documents/tokens/0", 30.5, "tokens.0 is 30.5; it must be a whole number"),
        ("documents/kl/0", 1e300, "documents.kl.0 is 1e[+]300"),
        ("documents/document/1", 1, "document 1 of eng_Latn occurs twice"),
        ("documents/document/1", 2**63, "documents.document.1 is 9223372036854775808"),
        ("question/sequence", 0, "question.sequence is 0; it must be greater than or equal to 1"),
        ("question/tokens", -1, "question.tokens is -1"),
        ("question/split", "test", "question.split is 'test'; it must be calibration or evaluation"),
        ("question/hashes/eng_Latn", "abc", "question.hashes.eng_Latn is 'abc'; it must be a SHA-256"),
        ("quantized/size_bytes", 0, "quantized.size_bytes is 0"),
    ],
)
def test_scores(tmp_path: Path, place: str, value: Any, message: str) -> None:
    assert re.search(message, refusal(tmp_path, "scores.json", Scores.load, place, value))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("layers/1/block", 10**300, "layers.1.block is 1000"),
        ("layers/1/block", -1, "layers.1.block is -1"),
        ("layers/1/name", "model.embed_tokens.weight", "layers names 'model.embed_tokens.weight' twice"),
        ("results/0/bits", 5, "results has 5 bits for"),
        ("results/0/alpha", [2.0, 1.0, 3.0], "results.0: alpha are 2 and 1; they must not fall"),
        ("results/0/weight_error", -1.0, "results.0.weight_error is -1.0"),
        ("calibration/sequence", 0, "calibration.sequence is 0"),
        (
            "languages",
            {"eng_Latn": 0.5, "fra_Latn": 0.5},
            "languages names 'fra_Latn', which is not in calibration.hashes",
        ),
        ("fingerprint", "", "fingerprint is ''; it must be a SHA-256"),
    ],
)
def test_plans(tmp_path: Path, place: str, value: Any, message: str) -> None:
    assert re.search(message, refusal(tmp_path, "plan.json", Plan.load, place, value))


@pytest.mark.parametrize(
    ("name", "load", "place", "value", "message"),
    [
        ("run.json", RUN.read, "baselines/0/scores", "../../secret.json", "baselines.0.scores is '../../secret.json'"),
        ("run.json", RUN.read, "baselines/1/name", "rtn", "baselines names 'rtn' twice"),
        ("audit.json", AUDIT.read, "arrays/file", "/etc/passwd", "arrays.file is '/etc/passwd'"),
        ("audit.json", AUDIT.read, "certificate/bound/0", [1.0], "certificate: bound has rows of 1, 2 entries"),
        ("audit.json", AUDIT.read, "blocks/1/block", 7, "blocks must be 0 … 1, in this order"),
        ("audit.json", AUDIT.read, "model/hashes", {}, "model.hashes and languages differ in 'eng_Latn'"),
        (
            "compare.json",
            COMPARE.read,
            "entries/0/worst_language",
            "fra_Latn",
            "entries.0: worst_language names 'fra_Latn'",
        ),
        ("compare.json", COMPARE.read, "entries/0/size_bytes", 0, "entries.0.size_bytes is 0"),
        ("overlays/overlays.json", OVERLAYS.read, "overlays/0/file", "../x", "overlays.0.file is '../x'"),
        (
            "overlays/overlays.json",
            OVERLAYS.read,
            "languages/heb_Hebr",
            "x",
            "the overlay 'x' serves a language but is missing",
        ),
    ],
)
def test_other_records(
    tmp_path: Path, name: str, load: Callable[[Path], Any], place: str, value: Any, message: str
) -> None:
    assert message in refusal(tmp_path, name, load, place, value)


def changed_mix(tmp_path: Path, sample: dict[str, Any], manifest: dict[str, Any]) -> Path:
    """Returns a saved mix with changes in its first sample and its manifest, which has the right hash."""
    rows = [json.loads(line) for line in (SAVED / "calib.jsonl").read_bytes().splitlines()]
    rows[0] |= sample
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    changed_manifest = json.loads((SAVED / "calib.jsonl.manifest.json").read_bytes()) | manifest
    file = tmp_path / "calib.jsonl"
    file.write_bytes(content)
    manifest_path(file).write_text(json.dumps(changed_manifest | {"sha256": hashlib.sha256(content).hexdigest()}))
    return file


@pytest.mark.parametrize(
    ("sample", "manifest", "message"),
    [
        ({"lang": "fra_Latn"}, {}, "a sample names 'fra_Latn', which is not in shares"),
        ({"lang": "../../etc/passwd"}, {}, "0.lang is '../../etc/passwd'; it must be the code of a language"),
        ({"lang": "eng_Latn"}, {}, "languages.eng_Latn.samples is 2; the samples have 3"),
        ({"tokens": 32.0}, {}, "0.tokens is 32.0; it must be a valid integer"),
        ({"tokens": 0}, {}, "0.tokens is 0"),
        ({"tokens": 65}, {}, "languages.heb_Hebr.tokens is 128; the samples have 129"),
        ({"text": ""}, {}, "0.text is ''"),
        ({}, {"shares": {"eng_Latn": 0.5, "heb_Hebr": 0.4}}, "shares sum to 0.9; they must sum to 1"),
        ({}, {"shares": {"eng_Latn": 1.5, "heb_Hebr": -0.5}}, "shares.eng_Latn is 1.5"),
        ({}, {"shares": {"eng_Latn": 1}}, "shares and languages differ in 'heb_Hebr'"),
        ({}, {"rounds": {"eng_Latn": 1}}, "rounds.eng_Latn is 1"),
        ({}, {"short_samples": 3}, "short_samples is 3; the samples have 0"),
        ({}, {"weights": "x"}, "weights is 'x'; it must be equal, proportional or given"),
        ({}, {"sequence": 0}, "sequence is 0"),
    ],
)
def test_mixes(tmp_path: Path, sample: dict[str, Any], manifest: dict[str, Any], message: str) -> None:
    Mix.load(changed_mix(tmp_path, {}, {}))
    file = changed_mix(tmp_path, sample, manifest)
    with pytest.raises(InputError) as caught:
        Mix.load(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("tokens:" + "9" * 5000, "the signature has tokens '999"),
        ("tokens:0", "the signature: tokens is 0"),
        ("languages:../x", "the signature: languages.0 is '../x'"),
        ("languages:eng_Latn+eng_Latn", "languages of the signature names 'eng_Latn' twice"),
        ("split:test", "the signature: split is 'test'"),
        ("text:\x1b[2J", "contains control characters"),
    ],
)
def test_signatures(part: str, message: str) -> None:
    pairs = (
        "model:1|reference:2|text:help|hash:3|split:evaluation|languages:eng_Latn|tokens:9|window:9|seed:0|measure:loss"
    )
    fields = dict(pair.split(":") for pair in pairs.split("|"))
    Signature.parse(pairs)
    fields |= dict([part.split(":", 1)])
    with pytest.raises(InputError) as caught:
        Signature.parse("|".join(f"{name}:{value}" for name, value in fields.items()))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": ' + b"[" * 41 + b"]" * 41 + b"}", "nested more than 40 levels deep"),
        (b'{"a": "' + b"[" * 100 + b'"}', None),
        (b'{"a": "\\"' + b"[" * 100 + b'"}', None),
        (b'{"a": "' + b'\\"' * 1_000_000, "Unterminated string"),
        (b'{"a": {"b": ["\\ud800"]}}', 'half of a surrogate pair, after \'{"a": {"b": ["\''),
        (b'{"a\\udfff": 1}', "half of a surrogate pair, after '{\"a'"),
        (b'{"a": "\\ud83d\\ude00"}', None),
        (b'{"a": ' + b"9" * 401 + b"}", "is not a finite number"),
    ],
)
def test_json_that_would_fill_the_stack_or_is_no_text(data: bytes, message: str | None) -> None:
    if message is None:
        parse_object(data, "x.json")
        return
    with pytest.raises(InputError) as caught:
        parse_object(data, "x.json")
    assert message in str(caught.value)


def test_json_of_too_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairbits.core.records.JSON_CONTAINERS", 3)
    parse_object(b'{"a": [[]]}', "x.json")
    with pytest.raises(InputError, match="more than 3 lists and objects"):
        parse_object(b'{"a": [[], []]}', "x.json")
