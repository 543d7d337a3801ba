"""Languages that calibration has not seen: what they lose, and which small set of languages protects the others.

    python benchmarks/cover.py run --model embedded:tiny --setting 3:64 --sizes 6 12 18 --out DIR
    python benchmarks/cover.py tables DIR/*.json

Text is the declaration in the languages that the model knows (`language_trial.known_languages`). GPTQ is calibrated on
all calibration text of a set of languages, with equal weights, and evaluated on evaluation text of all languages. The
sets: random ones, in which all languages are equally often; the largest languages; and those that the second moments
of an audit choose. What is measured goes to DIR, one file for each model, setting and size of sets; what is there
already is not measured again.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import cover_tables
from cover_sets import largest, random_sets
from fairbits.auditing.cover import choose_facilities, moment_distances, transfer_costs
from fairbits.forward.statistics import collect_statistics
from fairbits.models.device import resolve_device
from fairbits.models.scales.scheme import Scheme
from fairbits.text.included_texts import udhr
from fairbits.text.text_request import TextRequest
from language_trial import ALL_TOKENS, Results, Trial, known_languages

COSTS = ("damage", "distance")
"""What a language loses: its distance to the nearest calibrated language, alone or times its predicted damage."""
OBJECTIVES = ("mean", "worst")


def sets_of(languages: Sequence[str], size: int, options: argparse.Namespace, moments: Path) -> Iterator[tuple]:
    """Yields the names and languages of the sets of a size, the most important first."""
    held = np.load(moments)
    for cost in COSTS:
        damage = held["damage"] if cost == "damage" else np.ones(len(languages))
        for objective in OBJECTIVES:
            found = choose_facilities(transfer_costs(held["distances"], damage), size, objective=objective)
            yield f"cover {cost} {objective}", tuple(languages[i] for i in found.chosen)
    yield "largest", largest(languages, size, model=options.model)
    for i, each in enumerate(random_sets(languages, size, draws=options.draws, seed=options.seed)):
        yield f"random {i}", each


def measure_moments(trial: Trial, options: argparse.Namespace, path: Path) -> None:
    """Writes the distances of languages and their predicted damage, as an audit of the calibration text has them."""
    scheme = Scheme(trial.setting.bits, trial.setting.group, "absmax")
    request = TextRequest("calibration", options.audit_tokens, 512)
    given = {"request": request, "schemes": (scheme,), "device": trial.device}
    found = collect_statistics(trial.bench.checkpoint, trial.corpus, **given)
    own = [found.lang == code for code in found.languages]
    nats = found.damage[scheme]["kronecker"].sum(axis=1)
    inputs = [point.name for point in found.points if point.kind == "input"]
    np.savez(
        path,
        languages=np.array(found.languages),
        distances=moment_distances([found.channels[name] for name in inputs]),
        damage=np.array([nats[rows].sum() / found.predicted[rows].sum() for rows in own]),
        **{name: found.channels[name].astype(np.float32) for name in inputs},
    )


def run(options: argparse.Namespace) -> None:
    """Measures what is not there yet, as far as the budget of time goes."""
    start = time.perf_counter()
    options.device = resolve_device(options.device)
    name = options.model.replace(":", "-") + "_" + options.setting.replace(":", "-")
    files = {size: options.out / f"{name}_{size}.json" for size in options.sizes}
    done = [Results.load(file) for file in files.values() if file.exists()]
    known = done[0].known if done else known_languages(options.model, most=options.most, device=options.device)
    report(f"{options.model}: {len(known)} languages; {time.perf_counter() - start:.0f} s")
    languages = list(known)
    trial = Trial(
        options.model,
        options.setting,
        {"declaration": udhr(languages)},
        tokens=options.evaluation_tokens,
        device=options.device,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    moments = options.out / f"{name}_{'-'.join(map(str, options.sizes))}.npz"
    if not moments.exists():
        measure_moments(trial, options, moments)
    report(f"{options.model}: reference and moments; {time.perf_counter() - start:.0f} s")
    for size, file in files.items():
        results = Results.load(file) if file.exists() else Results(options.model, options.setting, known)
        for label, chosen in sets_of(languages, size, options, moments):
            if label in results.sets or time.perf_counter() - start > options.budget:
                continue
            trial.run(results, label, trial.corpus.restrict(chosen), size=size)
            results.save(file)
            report(f"{name}, {size} languages, {label}: {results.sets[label]['seconds']:.0f} s")
    trial.close()


def report(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)


def main(arguments: Sequence[str]) -> None:
    """Measures, or prints tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    running, printing = stages.add_parser("run"), stages.add_parser("tables")
    running.add_argument("--model", default="embedded:tiny")
    running.add_argument("--setting", default="3:64", help="bits and group")
    running.add_argument("--sizes", nargs="+", type=int, default=[6, 12, 18])
    running.add_argument("--draws", type=int, default=10, help="random sets of each size")
    running.add_argument("--most", type=int, default=60, help="languages at most, the best known")
    running.add_argument("--evaluation-tokens", type=int, default=700, help="of each language")
    running.add_argument("--audit-tokens", type=int, default=ALL_TOKENS, help="of each language, for second moments")
    running.add_argument("--seed", type=int, default=0, help="of the random sets")
    running.add_argument("--device", default="auto")
    running.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no set is begun")
    running.add_argument("--out", type=Path, required=True)
    printing.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.stage == "run":
        run(options)
    else:
        for file in options.files:
            print(cover_tables.table(Results.load(file)))


if __name__ == "__main__":
    main(sys.argv[1:])
