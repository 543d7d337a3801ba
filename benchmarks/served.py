"""What `evaluate` says of a running vLLM, against what it says of the same checkpoint; and how fast.

    python benchmarks/served.py offline REFERENCE CANDIDATE   what the most probable tokens show of KL, coverage
    python benchmarks/served.py serve REFERENCE CANDIDATE …   starts vLLM for every candidate, and compares
    python benchmarks/served.py speed MODEL                   tokens per second, of a model against itself
    python benchmarks/served.py table                         prints what was measured

`--vllm` is the command that starts a server, to which the model and options are added. Results go to `--out` at once.
"""

import argparse
import json
import shlex
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairbits import Checkpoint, Scores, evaluate
from fairbits.core.table import Table
from fairbits.evaluation.divergence import compare_logits
from fairbits.evaluation.hidden_states import WholeModel
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.saved_reference import open_reference
from fairbits.evaluation.servers.address import ServerOptions
from fairbits.evaluation.servers.partial_kl import partial_comparison
from fairbits.evaluation.servers.text_of_reference import text_of_reference
from fairbits.evaluation.setting import Identity
from fairbits.forward.tokenize import open_corpus_for
from fairbits.models.device import resolve_device
from fairbits.stats.frame import LanguageFrame
from fairbits.text.corpus import TextRequest
from fairbits.text.language_codes import short_name

TOPS = (1, 20, 100, 1000)
DRAWS, SHARE_DRAWN = 1000, 8  # how often one document of so many is drawn
LONGEST = 2048
READY_SECONDS = 600
PLAIN = "--enforce-eager --no-enable-prefix-caching --max-logprobs 1000"
STATES = (
    """--speculative_config '{"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": """
    """{"hf_config": {"eagle_aux_hidden_state_layer_ids": [BLOCKS]}}}' --kv_transfer_config '{"kv_connector": """
    """"ExampleHiddenStatesConnector", "kv_role": "kv_producer", "kv_connector_extra_config": """
    """{"shared_storage_path": "DIR"}}' --enforce-eager --no-enable-prefix-caching --no-enable-chunked-prefill"""
)
Row = dict[str, Any]


def offline(options: argparse.Namespace) -> None:
    """Measures how much of KL the most probable tokens show, and whether intervals on written text cover."""
    reference, candidate = Checkpoint(options.reference), Checkpoint(options.models[0])
    corpus = open_corpus_for(reference, options.text, options.languages)
    request = TextRequest("evaluation", options.tokens, 512)
    rows: list[Row] = []
    with ReferenceModel.on_corpus(reference, corpus, request=request, device=options.device) as answers:
        exact, bounds = per_document(answers, candidate, options.device)
        for code in answers.text.languages:
            mask = torch.from_numpy(answers.text.lang == code)
            shares = {f"top {top}": float(bound[mask].sum() / exact[mask].sum()) for top, bound in bounds.items()}
            rows.append({"language": code, "kl": float(exact[mask].sum()), **shares})
    save(options, f"share-{candidate.directory.name}", rows)
    written, setting = text_of_reference(
        reference, corpus, replace(request, tokens=options.written_tokens), device=options.device
    )
    with ReferenceModel.on_text(reference, written, device=options.device) as answers:
        exact, estimates = per_document(replace(answers, setting=setting), candidate, options.device, written=True)
    tokens = np.bincount(
        [w.document for w in written.windows], [sum(x >= 0 for x in w.main.labels) for w in written.windows]
    )
    rows = [
        {"language": code, "top": top, **coverage(written.lang == code, exact.numpy(), estimate.numpy(), tokens)}
        for top, estimate in estimates.items()
        for code in written.languages
    ]
    save(options, f"coverage-{candidate.directory.name}", rows)


@torch.no_grad()
def per_document(
    answers: ReferenceModel, candidate: Checkpoint, device: str, *, written: bool = False
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """Returns Σ KL of every document, and Σ of what the most probable tokens of the candidate show, by their number."""
    text = answers.text
    model = WholeModel((candidate.plain or candidate).load(torch.float32, device=device), text, device=device)
    exact = torch.zeros(len(text.lang), dtype=torch.float64)
    shown = {top: torch.zeros_like(exact) for top in TOPS}
    done = 0
    for states in model.features("", None):
        for part in states.split(model.logit_positions):
            a = answers.logits(slice(done, done + len(part.labels)), device=device).float()
            b, labels = model.head(part.features).float(), part.labels.to(device)
            exact.index_add_(0, part.documents.cpu(), compare_logits(a, b, labels)[2].cpu())
            log_q = b.log_softmax(1)
            top, ids = log_q.topk(max(TOPS), 1)
            own = log_q.gather(1, labels[:, None])[:, 0]
            for count, sums in shown.items():
                known = partial_comparison(a, labels, own, ids[:, :count], top[:, :count])
                sums.index_add_(0, part.documents.cpu(), (known.estimate if written else known.bound).cpu())
            done += len(labels)
    return exact, shown


def coverage(of: np.ndarray, exact: np.ndarray, estimate: np.ndarray, tokens: np.ndarray) -> Row:
    """Returns how often the interval of an estimate from some documents covers the KL of all documents."""
    places = np.flatnonzero(of)
    truth = exact[places].sum() / tokens[places].sum()
    rng, covered, values, count = np.random.default_rng(0), 0, [], len(places) // SHARE_DRAWN
    for _ in range(DRAWS):
        drawn = rng.choice(places, count, replace=False)  # few enough to be as good as written anew
        frame = LanguageFrame(
            np.full(count, "eng_Latn"),
            np.arange(count),
            values=estimate[drawn],
            weights=tokens[drawn],
            unit="nats_per_token",
            least=-np.inf,
        )
        interval = frame.by_language()["eng_Latn"]
        covered += interval.low <= truth <= interval.high
        values.append(interval.value)
    return {
        "documents": count,
        "kl": float(truth),
        "estimate": float(estimate[places].sum() / tokens[places].sum()),
        "deviation": float(np.std(values)),
        "coverage": covered / DRAWS,
    }


def serve(options: argparse.Namespace) -> None:
    """Evaluates every candidate in vLLM and here, on the same text."""
    with tempfile.TemporaryDirectory() as directory:
        saved = Path(directory, "reference")
        for number, model in enumerate(options.models):
            name, port = Path(model).name, options.port + 2 * number
            common: dict[str, Any] = {"languages": options.languages, "text": options.text, "tokens": options.tokens}
            asked = {"device": options.device, "progress": None}
            source = (
                {"reference": saved} if saved.exists() else {"reference": options.reference, "save_reference": saved}
            )
            source |= {} if saved.exists() else common
            with server(options, model, PLAIN, port) as url:
                for top in options.tops:
                    scores = evaluate(url, server=ServerOptions(top=top), **source, **asked)
                    scores.save(options.out / f"{name}.top-{top}.json")
                    source = {"reference": saved}
                own = ServerOptions(own_text=True)
                evaluate(url, server=own, reference=options.reference, **common, **asked).save(
                    options.out / f"{name}.own.json"
                )
            local = {"reference": options.reference, **common, **asked}
            evaluate(model, **local).save(options.out / f"{name}.float32.json")
            if not options.float32:
                rounded(Checkpoint(model), saved, options.device).save(options.out / f"{name}.bfloat16.json")
            if options.states:
                states = Path(directory, f"states-{number}")
                states.mkdir()
                blocks = Checkpoint(model).config.get_text_config().num_hidden_layers
                switch = STATES.replace("BLOCKS", str(blocks)).replace("DIR", str(states))
                with server(options, model, switch, port + 1) as url:
                    known = ServerOptions(hidden_states=states)
                    evaluate(url, server=known, reference=saved, **asked).save(options.out / f"{name}.states.json")
            print(f"{name}: served and evaluated", flush=True)


def rounded(candidate: Checkpoint, saved: Path, device: str) -> Scores:
    """Returns the scores of a model that computes in bfloat16, as servers do, but with the operations of torch."""
    with open_reference(saved) as answers:
        assert answers.setting is not None
        assert answers.identity is not None
        loaded = (candidate.plain or candidate).load(torch.bfloat16, device=device)
        sums = answers.compare(WholeModel(loaded, answers.text, device=device), device=device)
        return Scores.of(
            *(sums, answers.text),
            quantized=Identity.of(candidate),
            reference=answers.identity,
            setting=answers.setting,
        )


@contextmanager
def server(options: argparse.Namespace, model: str, switches: str, port: int, longest: int = LONGEST) -> Iterator[str]:
    """Yields the address of vLLM with a model."""
    words = [*shlex.split(options.vllm), "--model", model, "--port", str(port), "--max-model-len", str(longest)]
    with (options.out / f"{Path(model).name}.{port}.log").open("wb") as log:
        process = subprocess.Popen([*words, *shlex.split(switches)], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"vLLM did not start with {model}: see {log.name}")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


def answers(port: int) -> bool:
    """Returns whether a server on this machine is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def speed(options: argparse.Namespace) -> None:
    """Measures tokens per second of a model against itself: the reference, the answers, and the comparison."""
    with tempfile.TemporaryDirectory() as directory:
        saved, states = Path(directory, "reference"), Path(directory, "states")
        states.mkdir()
        blocks = Checkpoint(options.reference).config.get_text_config().num_hidden_layers
        switch = STATES.replace("BLOCKS", str(blocks)).replace("DIR", str(states))
        common: dict[str, Any] = {"languages": options.languages, "text": options.text, "tokens": options.tokens}
        rows: list[Row] = []
        for kind, switches, settings in (
            ("top 20", PLAIN, ServerOptions(concurrency=64)),
            ("hidden states", switch, ServerOptions(concurrency=64, hidden_states=states)),
        ):
            with server(options, options.reference, switches, options.port) as url:
                for attempt in ("with the reference", "saved reference"):
                    clock = Stopwatch()
                    source = (
                        {"reference": saved}
                        if saved.exists()
                        else {"reference": options.reference, "save_reference": saved, **common}
                    )
                    scores = evaluate(url, server=settings, device=options.device, progress=clock, **source)
                    tokens = float(scores.documents.tokens.sum())
                    rows.append({"kind": kind, "run": attempt, "tokens": tokens, **clock.finish(tokens)})
                    save(options, f"speed-{Path(options.reference).name}", rows)


class Stopwatch:
    """Progress that notes how long every stage took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage, self._began = "", time.monotonic()

    def __call__(self, stage: str, *_amounts: float) -> None:
        name = str(stage).rpartition(": ")[2]
        if name != self._stage:
            self._end()
            self._stage = name

    def finish(self, tokens: float) -> Row:
        """Returns seconds by stage, and tokens per second of all."""
        self._end()
        total = sum(self.seconds.values())
        return {"seconds": total, "tokens_per_second": tokens / total, "stages": self.seconds}

    def _end(self) -> None:
        now = time.monotonic()
        self.seconds[self._stage or "opening"] = self.seconds.get(self._stage or "opening", 0.0) + now - self._began
        self._began = now


def table(options: argparse.Namespace) -> None:
    """Prints what was measured."""
    paths = sorted(options.out.glob("*.float32.json"))
    rows = [row for path in paths for row in agreement(options.out, path.name.removesuffix(".float32.json"))]
    headers = ("model", "KL", "compared with", "mean", "median, absolute", "largest", "KL, server ÷ here")
    print_table("added loss of the server less that of `evaluate`, nats per token", headers, rows, left=3)
    for kind, columns in (("share", [f"top {top}" for top in TOPS]), ("coverage", ["deviation", "coverage"])):
        for path in sorted(options.out.glob(f"{kind}-*.json")):
            parts = json.loads(path.read_text("utf-8"))
            tops = list(dict.fromkeys(row.get("top") for row in parts))
            rows = [
                (
                    "" if top is None else str(top),
                    *(spread([r[name] for r in parts if r.get("top") == top]) for name in columns),
                )
                for top in tops
            ]
            print_table(
                f"{path.stem}: mean (least to most) of {len(parts) // len(tops)} languages", ("top", *columns), rows
            )
    for path in sorted(options.out.glob("speed-*.json")):
        parts = json.loads(path.read_text("utf-8"))
        rows = [(*(part[name] for name in ("kind", "run")), *map(shown, list(part.values())[2:])) for part in parts]
        print_table(path.stem, tuple(parts[0]), rows, left=2)


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Prints rows, of which the first columns are text."""
    if rows:
        print(Table(title, tuple(headers), tuple(map(tuple, rows)), left=tuple(range(left))).markdown() + "\n")


def agreement(out: Path, name: str) -> Iterator[tuple[str, ...]]:
    """Yields how far the scores of one served model are from those here: in float32, and in the type of the server."""
    scores = {path.name.removeprefix(f"{name}.")[:-5]: Scores.load(path) for path in sorted(out.glob(f"{name}.*.json"))}
    here = {kind: scores[kind] for kind in ("bfloat16", "float32") if kind in scores}
    for kind, served in scores.items():
        for local_kind, local in here.items():
            if kind not in here and kind != "own":  # which is other text
                losses = [s.frame("nats_per_token", measure="loss").by_language() for s in (served, local)]
                apart = {code: losses[0][code].value - losses[1][code].value for code in served.languages}
                worst = max(apart, key=lambda code: abs(apart[code]))
                kl = [np.mean([s.kl[code].value for code in served.languages]) for s in (served, local)]
                numbers = (np.mean([*apart.values()]), np.median(np.abs([*apart.values()])))
                ratio = f"{kl[0] / kl[1]:.4f}" if kl[1] else "–"
                largest = f"{apart[worst]:+.5f} {short_name(worst)}"
                yield name, kind, local_kind, f"{numbers[0]:+.5f}", f"{numbers[1]:.5f}", largest, ratio


def spread(values: Sequence[float]) -> str:
    """Returns the mean of values, the least and the largest."""
    return f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def shown(value: object) -> str:
    """Returns a value of a row in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part:.1f} s" for name, part in value.items())
    return f"{value:,.0f}" if isinstance(value, float) else str(value)


def save(options: argparse.Namespace, name: str, rows: list[Row]) -> None:
    """Keeps rows in a file."""
    (options.out / f"{name}.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(json.dumps(rows[-1]), flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("offline", "serve", "speed", "table"))
    parser.add_argument("reference", nargs="?", default="")
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("build/served"))
    parser.add_argument("--text", default="help")
    parser.add_argument("--languages", nargs="+", default=None)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--written-tokens", type=int, default=65_536, help="of every language, for coverage")
    parser.add_argument("--tops", nargs="+", type=int, default=(1, 20, 100), help="that the server returns")
    parser.add_argument("--states", action="store_true", help="serve also with hidden states; not every class can")
    parser.add_argument("--float32", action="store_true", help="vLLM computes in float32, not in bfloat16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--vllm", default="python3 -m vllm.entrypoints.openai.api_server")
    options = parser.parse_args()
    options.device = resolve_device(options.device)
    options.out.mkdir(parents=True, exist_ok=True)
    {"offline": offline, "serve": serve, "speed": speed, "table": table}[options.stage](options)


if __name__ == "__main__":
    main()
