"""The readers of text: a corpus, samples of lm-eval, signatures."""

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
from harness import Files, Refused, Target
from mutations import broken, dumped, mutated_json, parsed
from record_targets import ROOT
from truth import check_codes, rule
from untrusted_targets import target

from fairbits.core.errors import InputError
from fairbits.evaluation.lm_eval.paired_samples import pair_samples
from fairbits.evaluation.signature import Signature
from fairbits.text.reading import read_corpus

LM_EVAL = ROOT / "tests/data/lm_eval"


def corpus_target() -> Target:
    """Returns the target of text: a directory of two languages, or one file of JSON lines."""
    lines = [f"sentence {i} of this text" for i in range(12)]
    rows = [{"lang": code, "text": f"{text} {code}"} for code in ("fra", "deu_Latn") for text in lines]

    def make(rng: random.Random) -> Files:
        if rng.random() < 0.5:
            changed = [json.dumps(row).encode() for row in rows]
            i = rng.randrange(len(changed))
            changed[i] = mutated_json(rng, changed[i])
            return {"text.jsonl": b"\n".join(changed)}
        plain = "\n".join(lines).encode()
        json_lines = b"\n".join(json.dumps({"text": text}).encode() for text in lines)
        if rng.random() < 0.5:
            return {"text/eng.txt": broken(rng, plain), "text/heb.jsonl": json_lines}
        changed = json_lines.split(b"\n")
        changed[3] = mutated_json(rng, changed[3])
        return {"text/eng.txt": plain, "text/heb.jsonl": b"\n".join(changed)}

    def read(place: Path) -> None:
        path = place / "text.jsonl" if (place / "text.jsonl").exists() else place / "text"
        corpus = read_corpus(path)
        for split in (corpus.calibration, corpus.evaluation):
            check_codes(split)
            for texts in split.values():
                rule(all(text.strip() and "\0" not in text for text in texts), "a document is empty or has a NUL")
                for text in texts:
                    text.encode("utf-8")
        for code, texts in corpus.calibration.items():
            rule(not set(texts) & set(corpus.evaluation[code]), "a document is in both splits")

    return target("corpus text", make, read, files=("text.jsonl", "text"))


@cache
def run_files() -> tuple[Files, Files]:
    """Returns the files of two runs of lm-eval, two tasks each, cut to a few items."""
    runs: list[Files] = []
    for side in ("before", "after"):
        (home,) = (LM_EVAL / side).iterdir()
        files: Files = {}
        for path in sorted(home.iterdir()):
            if path.suffix == ".json":
                files[path.name] = path.read_bytes()
            elif "cloze_eng" in path.name or "cloze_heb" in path.name:
                files[path.name] = b"".join(path.read_bytes().splitlines(keepends=True)[:25])
        runs.append(files)
    return runs[0], runs[1]


def samples_target() -> Target:
    """Returns the target of samples of lm-eval: two runs, one line or the results of which are changed."""

    def make(rng: random.Random) -> Files:
        before, after = run_files()
        files = {f"before/{name}": data for name, data in before.items()}
        files |= {f"after/{name}": data for name, data in after.items()}
        name = rng.choice(sorted(files))
        if name.endswith(".json"):
            return files | {name: mutated_json(rng, files[name])}
        lines = files[name].splitlines()
        i = rng.randrange(len(lines))
        lines[i] = mutated_json(rng, lines[i]) if rng.random() < 0.5 else mutated_end(rng, lines[i])
        return files | {name: b"\n".join(lines) + b"\n"}

    def read(place: Path) -> None:
        pairs = pair_samples(place / "before", place / "after")
        rule(
            len(set(zip(pairs.lang.tolist(), pairs.item.tolist(), strict=True))) == len(pairs.lang),
            "an item is there twice",
        )
        for column in (pairs.before, pairs.after, pairs.weights):
            rule(bool(np.isfinite(column).all()), "a score is infinite")
        rule(bool((pairs.weights > 0).all()), "a weight is not positive")
        check_codes(set(pairs.lang.tolist()))

    tasks = ("fairbits_cloze_eng_Latn", "fairbits_cloze_heb_Hebr")
    base_target = target("lm-eval samples", make, read, files=("before", "after"))

    def try_read(place: Path) -> str:
        try:
            read(place)
        except InputError as problem:
            sentence = str(problem)
            named = any(word in sentence for word in (str(place), *tasks, "the tasks", "--metric", "metric"))
            rule(named, f"its refusal names neither file nor task: {sentence:.200}")
            raise Refused(sentence) from None
        return "accepted"

    return Target(base_target.name, make, try_read, base_target.share)


def mutated_end(rng: random.Random, line: bytes) -> bytes:
    """Returns a line with a change in what follows its text, in the order that lm-eval writes."""
    document = parsed(line)
    names = [key for key, _ in document]
    first = names.index("filter") if "filter" in names else 0
    tail = type(document)(document[first:])
    changed = mutated_json(rng, dumped(tail).encode())
    return dumped(type(document)(document[:first]))[:-1].encode() + b", " + changed.removeprefix(b"{")


def signature_target() -> Target:
    """Returns the target of signatures, which users copy from papers and mails."""
    seed = (
        "model:0123456789abcdef|reference:fedcba9876543210|text:help|hash:3|split:evaluation|languages:deu_Latn+eng_Latn|"
        "tokens:512|window:64|seed:0|measure:divergence|fairbits:0.2.0|torch:2.13.0"
    )

    def make(rng: random.Random) -> Files:
        parts = seed.split("|")
        i = rng.randrange(len(parts))
        name, _, value = parts[i].partition(":")
        kind = rng.randrange(5)
        odd = rng.choice(
            ("", "-1", "1.5", "²", "٣", "9" * 5000, "../x", "a:b", "+", "eng_Latn+eng_Latn", "\x1b[2J", value + "0")
        )
        parts[i] = f"{name}:{odd}" if kind < 3 else parts[rng.randrange(len(parts))] if kind == 3 else name
        data = "|".join(parts).encode()
        return {"signature.txt": broken(rng, data) if rng.random() < 0.2 else data}

    def read(place: Path) -> str:
        line = (place / "signature.txt").read_bytes().decode("utf-8", "surrogateescape")
        try:
            signature = Signature.parse(line)
        except InputError as problem:
            rule(
                "signature" in str(problem) or "measure" in str(problem),
                f"its refusal does not say what it is of: {problem!s:.200}",
            )
            raise Refused(str(problem)) from None
        rule(Signature.parse(str(signature)) == signature, "it changes when it is written and read again")
        check_codes(signature.languages)
        rule(signature.tokens >= 1 and signature.window >= 1 and signature.tokens < 2**63, "it is of no token")
        rule(signature.split in ("calibration", "evaluation"), "the split is unknown")
        return "accepted"

    return Target("signature", make, read, share=0.5)


def text_targets() -> list[Target]:
    """Returns the targets of text."""
    return [corpus_target(), samples_target(), signature_target()]
