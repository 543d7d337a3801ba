"""The readers of the files that fairbits writes itself."""

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import Files, Refused, Target
from mutations import mutated_json
from record_truth import CHECKS, check_mix
from truth import read_json, rule

from fairbits.auditing.audit_file import AUDIT
from fairbits.comparison.comparison import COMPARE
from fairbits.comparison.stored_trials import TRIAL, TrialFile
from fairbits.core.errors import InputError
from fairbits.core.records import Kind, to_json
from fairbits.evaluation.scores import Scores
from fairbits.quantization.plan import Plan
from fairbits.reports.sources import RUN, SWEEP
from fairbits.serve.overlays.overlay_files import OVERLAYS
from fairbits.text.mix import Mix, manifest_path
from fairbits_research.experiments.result import Result

ROOT = Path(__file__).parents[2]
SAVED = ROOT / "tests/data/records"
RESEARCH = ROOT / "src/fairbits_research/assets"


def refused(problem: InputError, *names: Path) -> Refused:
    """Returns a refusal, if its sentence names one of the files."""
    sentence = str(problem)
    rule(any(str(name) in sentence for name in names), f"its refusal names no file: {sentence:.200}")
    return Refused(sentence)


def record_target(
    name: str,
    seeds: list[bytes],
    load: Callable[[Path], Any],
    written: Callable[[Any], bytes],
    *,
    same: bool = True,
    share: float = 1.0,
) -> Target:
    """Returns the target of one kind of record; what is read must be what is written again, if `same` in all keys."""

    def make(rng: random.Random) -> Files:
        return {f"{name}.json": mutated_json(rng, rng.choice(seeds))}

    def read(place: Path) -> str:
        file = place / f"{name}.json"
        try:
            record = load(file)
        except InputError as problem:
            raise refused(problem, file) from None
        document = read_json(file.read_bytes())
        CHECKS[name](document)
        first = written(record)
        file.write_bytes(first)
        rule(written(load(file)) == first, "it changes when it is written and read again")
        now = json.loads(first)
        if same and now["schema"] == document["schema"]:
            rule(held({key: entry for key, entry in document.items() if key != "fairbits"}, now), "content is lost")
        return "accepted"

    return Target(name, make, read, share)


def held(one: Any, other: Any) -> bool:
    """Returns whether all of a document is in another, which may have keys of later versions, and lack what is null."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(held(entry, other.get(key)) for key, entry in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(held, one, other))
    if type(one) in (int, float) and type(other) in (int, float):
        return float(one) == float(other)  # where a float is expected, 10^30 is 1e30
    return bool(one == other)


def kind_written(kind: Kind[Any]) -> Callable[[Any], bytes]:
    """Returns what writes a record whose fields are the file's."""
    return lambda record: to_json(kind.stamp({k: v for k, v in plain(asdict(record)).items() if k != "fairbits"}))


def plain(value: Any) -> Any:
    """Returns data without intervals that are infinite, which are null in files."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and value in (float("inf"), -float("inf")) else value


def mix_target() -> Target:
    """Returns the target of mixes: two files, the second of which has the hash of the first."""
    samples, manifest = ((SAVED / name).read_bytes() for name in ("calib.jsonl", "calib.jsonl.manifest.json"))

    def make(rng: random.Random) -> Files:
        mutable = samples.splitlines()
        if rng.random() < 0.5:
            i = rng.randrange(len(mutable))
            mutable[i] = mutated_json(rng, mutable[i])
            if rng.random() < 0.1:
                mutable.insert(i, rng.choice(mutable))
            content, changed_manifest = b"".join(line + b"\n" for line in mutable), manifest
            changed_manifest = changed_manifest.replace(
                hashlib.sha256(samples).hexdigest().encode(), hashlib.sha256(content).hexdigest().encode()
            )
            if rng.random() < 0.7:
                changed_manifest = _counted(content, changed_manifest)
            return {"calib.jsonl": content, "calib.jsonl.manifest.json": changed_manifest}
        return {"calib.jsonl": samples, "calib.jsonl.manifest.json": mutated_json(rng, manifest)}

    def read(place: Path) -> str:
        file = place / "calib.jsonl"
        try:
            mix = Mix.load(file)
        except InputError as problem:
            raise refused(problem, file, manifest_path(file)) from None
        rows = [read_json(line) for line in file.read_bytes().split(b"\n") if line]
        check_mix(read_json(manifest_path(file).read_bytes()), rows)
        mix.save(file)
        rule(Mix.load(file) == mix, "it changes when it is written and read again")
        return "accepted"

    return Target("mix", make, read, share=2.0)


def _counted(content: bytes, manifest: bytes) -> bytes:
    """Returns the manifest with the counts of the samples, as far as they can be counted."""
    data = json.loads(manifest)
    try:
        rows = [json.loads(line) for line in content.splitlines()]
        for code, part in data["languages"].items():
            samples = [row for row in rows if row["lang"] == code]
            part["samples"], part["tokens"] = len(samples), sum(row["tokens"] for row in samples)
            part["bytes"] = sum(len(row["text"].encode()) for row in samples)
            part["bytes_per_token"] = round(part["bytes"] / part["tokens"], 4)
        data["short_samples"] = sum(row["tokens"] < data["sequence"] for row in rows)
        return json.dumps(data).encode()
    except (ValueError, TypeError, KeyError, ZeroDivisionError, AttributeError, RecursionError):
        return manifest


def current_scores() -> bytes:
    """Returns a file of scores of the present version, with all percentiles."""
    data = json.loads(Scores.load(SAVED / "scores.json").as_bytes())
    for percentiles in data["percentiles"].values():
        percentiles |= {"kl_p50": 0.001, "kl_p95": 0.005, "kl_p99_9": 0.02, "margin_p50": 0.0, "margin_p1": -0.3}
    data["question"]["source"] = "text"
    return to_json(data)


def record_targets() -> list[Target]:
    """Returns the targets of all kinds of records."""
    saved = {path.name: path.read_bytes() for path in SAVED.glob("*.json")}
    trial = to_json(TRIAL.stamp(asdict(TrialFile("gptq", {"bits": 4, "text": {"tokens": 64}}, 1.5))))
    results = [path.read_bytes() for path in sorted(RESEARCH.glob("*/*.json"))]
    results = sorted(results, key=len)[: max(3, len(results) // 3)]
    return [
        record_target("scores", [saved["scores.json"], current_scores()], Scores.load, Scores.as_bytes, share=2.0),
        record_target("plan", [saved["plan.json"], saved["plan-learned.json"]], Plan.load, Plan.as_bytes, share=2.0),
        mix_target(),
        record_target("audit", [saved["audit.json"]], AUDIT.read, kind_written(AUDIT)),
        record_target("sweep", [saved["sweep.json"]], SWEEP.read, kind_written(SWEEP)),
        record_target("comparison", [saved["compare.json"]], COMPARE.read, kind_written(COMPARE)),
        record_target("run", [saved["run.json"]], RUN.read, kind_written(RUN)),
        record_target(
            "overlays", [(SAVED / "overlays/overlays.json").read_bytes()], OVERLAYS.read, kind_written(OVERLAYS)
        ),
        record_target("trial", [trial], TRIAL.read, kind_written(TRIAL), share=0.5),
        record_target("result", results, Result.load, Result.as_bytes, same=False, share=0.5),
    ]
