"""What must hold of every kind of record that is accepted: else a gate, a table or a report would make nonsense of it.

Each function gets a document as `json` reads it.
"""

import re
from collections.abc import Callable
from typing import Any

from truth import check_codes, check_estimates, check_hashes, count, plain, rule


def check_scores(data: dict[str, Any]) -> None:
    """Checks scores: every number that a gate adds up or divides by."""
    check_codes(data["languages"])
    rule(bool(data["languages"]), "no language is there")
    columns, question = data["documents"], data["question"]
    lang, tokens, flips, size = (columns[name] for name in ("lang", "tokens", "flips", "bytes"))
    rule(len({len(column) for column in columns.values()}) == 1, "columns differ in length")
    rule(set(lang) == set(data["languages"]) == set(question["hashes"]), "languages differ")
    rule(len(set(zip(lang, columns["document"], strict=True))) == len(lang), "a document is there twice")
    rule(all(0 <= few <= all_of for few, all_of in zip(flips, tokens, strict=True)), "more tokens flip than there are")
    rule(all(number == int(number) for column in (tokens, flips) for number in column), "half a token is counted")
    rule(
        all(0 <= number < 1e300 for name in columns if name != "lang" for number in columns[name]),
        "a sum is negative or infinite",
    )
    for code in data["languages"]:
        indices = [i for i, language in enumerate(lang) if language == code]
        rule(sum(tokens[i] for i in indices) > 0 and sum(size[i] for i in indices) > 0, f"{code} has no text")
        rule(
            all(
                tokens[i] > 0 or columns[name][i] == 0
                for i in indices
                for name in ("kl", "nll_reference", "nll_quantized")
            ),
            "a loss of no token",
        )
    for model in (data["quantized"], data["reference"]):
        count(model["size_bytes"], least=1)
        check_hashes(model["fingerprint"])
    check_hashes(*question["hashes"].values())
    rule(question["split"] in ("calibration", "evaluation"), "the split is unknown")
    rule(question["task"] in ("causal", "masked", "completion", "transcription"), "the task is unknown")
    for name, least in (("tokens", 1), ("sequence", 1), ("seed", 0)):
        count(question[name], least=least)
    for percentiles in data.get("percentiles", {}).values():
        values = [
            percentiles[name]
            for name in ("kl_p50", "kl_p95", "kl_p99", "kl_p99_9")
            if percentiles.get(name) is not None
        ]
        rule(values == sorted(values) and all(value >= 0 for value in values), f"percentiles are {values}")


def check_plan(data: dict[str, Any]) -> None:
    """Checks a plan: every map once, blocks that can be, weights of languages that are those of the text."""
    layers = data["layers"]
    names = [layer["name"] for layer in layers]
    rule(len(set(names)) == len(names) and all(names) and bool(names), "a layer is there twice or has no name")
    bits = {layer["name"]: layer["bits"] for layer in layers}
    for layer in layers:
        if layer["block"] is not None:
            count(layer["block"], most=10**6)
        if layer["bits"] is not None:
            count(layer["bits"], least=2, most=8)
        group = layer.get("group", "channel")
        rule(
            group in ("channel", "tensor", None) or (type(group) is int and 2 <= group < 2**63),
            f"a group is {group!r:.40}",
        )
    count(data["size_bytes"], least=1)
    check_hashes(data["fingerprint"])
    languages = data.get("languages", {})
    check_codes(languages)
    rule(not languages or abs(sum(languages.values()) - 1) < 1e-3, "weights do not sum to 1")
    rule(all(0 <= weight <= 1 for weight in languages.values()), "a weight is negative")
    if data["calibration"] is not None:
        check_hashes(*data["calibration"]["hashes"].values())
        rule(languages.keys() <= data["calibration"]["hashes"].keys(), "a weight is of a language without text")
        for name, least in (("tokens", 1), ("sequence", 1), ("seed", 0)):
            count(data["calibration"][name], least=least)
    for result in data["results"]:
        rule(result["name"] in bits and bits[result["name"]] == result["bits"], "a result is of no layer")
        count(result["size_bytes"], least=1)
        rule(
            result["alpha"] == sorted(result["alpha"]) and result["weight_error"] >= 0,
            "a threshold or an error cannot be",
        )
        rule(all(value >= 0 for value in result.get("error", {}).values()), "an error is negative")
    learned = data.get("learned")
    if learned is not None:
        count(learned["step"])
        rule(learned["start"].keys() == learned["damage"].keys(), "languages of the learned differ")


def check_mix(data: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Checks a mix: its samples are those that the manifest counts, of languages that have a share."""
    shares = data["shares"]
    check_codes(shares)
    rule(
        bool(shares) and all(0 < share <= 1 for share in shares.values()) and abs(sum(shares.values()) - 1) < 1e-6,
        "shares are none",
    )
    rule(data["languages"].keys() == shares.keys() == data["hashes"].keys(), "languages differ")
    for row in rows:
        rule(row.keys() == {"text", "lang", "tokens"} and row["lang"] in shares, f"a sample has no share: {row!r:.80}")
        rule(isinstance(row["text"], str) and bool(row["text"]), "a sample has no text")
        count(row["tokens"], least=1)
    for code, part in data["languages"].items():
        samples = [row for row in rows if row["lang"] == code]
        counts = (
            len(samples),
            sum(row["tokens"] for row in samples),
            sum(len(row["text"].encode()) for row in samples),
        )
        rule(counts == tuple(part[name] for name in ("samples", "tokens", "bytes")), f"{code} has {counts}")
        rule(all(type(part[name]) is int for name in ("samples", "tokens", "bytes")), f"{code} has half a sample")
        rule(part["samples"] > 0, f"{code} has no sample")
    rule(data["short_samples"] == sum(row["tokens"] < data["sequence"] for row in rows), "short samples are others")
    count(data["sequence"], least=1)
    count(data["seed"])
    if data["budget"] is not None:
        count(data["budget"], least=1)
    rule(
        all(code in shares and type(number) is int and number > 1 for code, number in data["rounds"].items()),
        "rounds cannot be",
    )
    rule(data["weights"] in ("equal", "proportional", "given"), "weights are unknown")
    check_hashes(data["sha256"], data["tokenizer"], *data["hashes"].values())


def check_audit(data: dict[str, Any]) -> None:
    """Checks an audit: every table has a row for every language, block and layer that it is about."""
    codes, blocks, linears = set(data["languages"]), len(data["blocks"]), len(data["linears"])
    check_codes(data["languages"])
    check_estimates(data)
    rule(bool(codes) and set(data["model"]["hashes"]) == codes, "languages differ")
    rule(
        [block["block"] for block in data["blocks"]] == list(range(blocks)) and blocks == len(data["model"]["stacks"]),
        "blocks differ",
    )
    for pattern in data["patterns"].values():
        rule(
            set(pattern["languages"]) == codes == set(pattern["activation"]) == set(pattern["share"]),
            "languages of a pattern differ",
        )
        square = [len(row) for row in pattern["distances"]]
        rule(square == [len(codes)] * len(codes), "distances are no square")
        rule(
            len(set(pattern["blocks"])) == len(pattern["blocks"]) and all(b < blocks for b in pattern["blocks"]),
            "a pattern has other blocks",
        )
    for damage in data["damage"].values():
        rule(
            codes
            == set(damage["nats_per_token"])
            == set(damage["bits_per_byte"])
            == set(damage["by_block"])
            == set(damage["by_linear"]),
            "languages of damage differ",
        )
        rule(all(len(row) == linears for row in damage["by_linear"].values()), "layers of damage differ")
    certificate = data["certificate"]
    rule(
        set(certificate["languages"]) == codes and len(certificate["damage"]) == len(codes),
        "languages of the certificate differ",
    )
    for name in ("distance", "actual", "bound", "bound_by_linear"):
        rule([len(row) for row in certificate[name]] == [len(codes)] * len(codes), f"{name} is no square")
    rule(
        {certificate["worst"]["worse"], certificate["worst"]["better"]} <= codes, "the worst pair is of other languages"
    )
    plain(data["arrays"]["file"])
    check_hashes(data["arrays"]["sha256"], data["model"]["fingerprint"], *data["model"]["hashes"].values())
    count(data["scheme"]["bits"], least=2, most=16)
    for name, least in (("tokens", 1), ("sequence", 1), ("seed", 0)):
        count(data["model"][name], least=least)


def check_sweep(data: dict[str, Any]) -> None:
    """Checks a sweep: a size, a damage and a gap at every width."""
    check_codes(data["damage"])
    check_estimates(data)
    check_hashes(data["fingerprint"])
    rule(bool(data["sizes"]) and bool(data["damage"]), "no width or no language is there")
    for width, size in data["sizes"].items():
        rule(re.fullmatch("[2-9]|1[0-6]", width) is not None, f"a width is {width!r:.40}")
        count(size, least=1)
    rule(data["gap"].keys() == data["sizes"].keys(), "the gap has other widths")
    rule(data["critical_width"].keys() == data["damage"].keys(), "languages differ")
    rule(all(curve.keys() == data["sizes"].keys() for curve in data["damage"].values()), "a curve has other widths")


def check_comparison(data: dict[str, Any]) -> None:
    """Checks a comparison: each policy once at a width, the same languages in all."""
    check_estimates(data)
    check_hashes(data["fingerprint"])
    kinds = [(entry["policy"], entry["bits"]) for entry in data["entries"]]
    rule(bool(kinds) and len(set(kinds)) == len(kinds), "a policy is there twice")
    codes = set(data["entries"][0]["damage"])
    check_codes(codes)
    for entry in data["entries"]:
        count(entry["bits"], least=2, most=16)
        count(entry["size_bytes"], least=1)
        rule(
            set(entry["damage"]) == codes and {entry["worst_language"], entry["best_language"]} <= codes,
            "languages differ",
        )
        rule(
            len(entry["seconds"]) == len(entry["plans"]) > 0 and all(number >= 0 for number in entry["seconds"]),
            "seeds differ",
        )
        rule(all(low <= high for low, high in entry["range_over_seeds"].values()), "a range is none")
    for contrast in data["contrasts"]:
        rule(
            {(contrast["policy"], contrast["bits"]), (contrast["against"], contrast["bits"])} <= set(kinds),
            "a contrast is of no entry",
        )
        rule(
            set(contrast["languages"]) == codes >= {*contrast["better"], *contrast["worse"]},
            "languages of a contrast differ",
        )
        rule(contrast["size_ratio"] > 0, "a ratio is not positive")
        rule(
            all(
                0 <= estimate[p] <= 1
                for estimate in (contrast["mean"], *contrast["languages"].values())
                for p in ("p", "p_holm")
                if p in estimate
            ),
            "a p value is none",
        )


def check_run(data: dict[str, Any]) -> None:
    """Checks the record of a run: its files are in its directory."""
    check_hashes(data["fingerprint"], *(digest for split in data["hashes"].values() for digest in split.values()))
    rule(set(data["hashes"]) <= {"calibration", "evaluation"}, "splits are others")
    for split in data["hashes"].values():
        check_codes(split)
    names = [baseline["name"] for baseline in data["baselines"]]
    rule(len(set(names)) == len(names), "a baseline is there twice")
    for baseline in data["baselines"]:
        parts = baseline["scores"].split("/")
        rule(len(parts) <= 2, f"a file is {baseline['scores']!r:.60}")
        for part in parts:
            plain(part)
    if data.get("written") is not None:
        check_hashes(data["written"])


def check_overlays(data: dict[str, Any]) -> None:
    """Checks a manifest of overlays: names that are safe in a path, each once, and each language with its overlay."""
    check_codes(data["languages"])
    names = [overlay["name"] for overlay in data["overlays"]]
    rule(len({name.casefold() for name in names}) == len(names), "an overlay is there twice")
    rule(all(re.fullmatch(r"\w[\w-]*", name) and name != "base" for name in names), f"an overlay is {names!r:.80}")
    rule(set(data["languages"].values()) <= {"base", *names}, "an overlay is missing")
    check_hashes(data["base"])
    for overlay in data["overlays"]:
        plain(overlay["file"])
        check_hashes(overlay["sha256"])
        count(overlay["size_bytes"])
        tensors = [patch["tensor"] for patch in overlay["patches"]]
        rule(len(set(tensors)) == len(tensors), "a tensor is patched twice")
        rule(set(overlay["languages"]) <= set(data["languages"]), "an overlay is of a language that is not served")
        for patch in overlay["patches"]:
            count(patch["rows"], least=1)
    table = data["activations"]
    if table is not None:
        plain(table["file"])
        check_hashes(table["sha256"])
        count(table["bits"], least=2, most=16)
        check_codes(table["languages"])


def check_trial(data: dict[str, Any]) -> None:
    """Checks a finished trial."""
    rule(0 <= data["seconds"] < 1e300 and bool(data["name"]), "the time of a trial cannot be")


def check_result(data: dict[str, Any]) -> None:
    """Checks a result of research: tables and series that are whole."""
    for table in data["tables"]:
        rule(all(len(row) == len(table["columns"]) for row in table["rows"]), "a row has other columns")
    for series in data["figure"]["series"]:
        sizes = {len(series[name]) for name in ("x", "y")} | {
            len(series[name]) for name in ("low", "high", "labels") if series.get(name)
        }
        rule(len(sizes) == 1, "points of a series differ")
    rule(data["figure"].get("log", "") in ("", "x", "y", "xy"), "axes are unknown")
    rule(data["answer"] in ("supported", "not supported", "undecided"), "the answer is unknown")
    for name in ("languages", "documents", "tokens"):
        count(data["subject"][name])
    check_hashes(data["subject"]["fingerprint"])


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "scores": check_scores,
    "plan": check_plan,
    "audit": check_audit,
    "sweep": check_sweep,
    "comparison": check_comparison,
    "run": check_run,
    "overlays": check_overlays,
    "trial": check_trial,
    "result": check_result,
}
