"""Languages that calibration has not seen: what they lose, and which small set of languages protects the others.

    python benchmarks/cover.py run --model embedded:tiny --setting 3:64 --sizes 6 12 18 --out DIR
    python benchmarks/cover.py tables DIR/*.json

Text is the declaration in the languages that the model knows (`language_trial.known_languages`). GPTQ is calibrated on
all calibration text of a set of languages, with equal weights, and evaluated on evaluation text of all languages. The
sets: random ones, in which all languages are equally often; the languages with most training text; and those that
`mix --cover` chooses from an audit. What is measured goes to DIR, one file for each
model, setting and size of sets; what is there already is not measured again.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fairbits.auditing.cover import choose_facilities, moment_distances, transfer_costs
from fairbits.forward.statistics import collect_statistics
from fairbits.models.device import resolve_device
from fairbits.models.embedded import training_shares
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr
from language_trial import ALL_TOKENS, Results, Trial, known_languages
from measured import number


def sets_of(languages: Sequence[str], size: int, options: argparse.Namespace, moments: Path) -> Iterator[tuple]:
    """Yields the names and languages of the sets of a size, the most important first."""
    audited = np.load(moments)
    cover = choose_facilities(transfer_costs(audited["distances"], audited["damage"]), size)
    yield "cover", tuple(languages[i] for i in cover.chosen)
    shares = training_shares(options.model)
    if shares is not None:
        yield "largest", tuple(sorted(languages, key=lambda code: -shares[code])[:size])
    for i, chosen in enumerate(random_sets(languages, size, draws=options.draws, seed=options.seed)):
        yield f"random {i}", chosen


def random_sets(languages: Sequence[str], size: int, *, draws: int, seed: int) -> list[tuple[str, ...]]:
    """Returns random sets of `size` languages; over a whole round, each language is in equally many of them.

    A round goes through a random order of the languages in steps of `size`, until it comes back to the beginning.

    >>> random_sets("abcd", 2, draws=2, seed=0)
    [('b', 'c'), ('a', 'd')]
    """
    rng = np.random.default_rng([seed, size])
    sets: list[tuple[str, ...]] = []
    while len(sets) < draws:
        order = rng.permutation(len(languages))
        for start in range(0, np.lcm(size, len(languages)), size):
            chosen = {int(order[i % len(languages)]) for i in range(start, start + size)}
            sets.append(tuple(languages[i] for i in sorted(chosen)))
    return sets[:draws]


def measure_moments(trial: Trial, options: argparse.Namespace, path: Path) -> None:
    """Writes the distances of languages and their predicted damage, as an audit of the calibration text has them."""
    scheme = Scheme(trial.setting.bits, trial.setting.group, "absmax")
    request = TextRequest("calibration", options.audit_tokens, 512)
    settings = {"request": request, "schemes": (scheme,), "device": trial.device}
    statistics = collect_statistics(trial.bench.checkpoint, trial.corpus, **settings)
    language_rows = [statistics.lang == code for code in statistics.languages]
    nats = statistics.damage[scheme]["kronecker"].sum(axis=1)
    inputs = [point.name for point in statistics.points if point.kind == "input"]
    np.savez(
        path,
        languages=np.array(statistics.languages),
        distances=moment_distances([statistics.channels[name] for name in inputs]),
        damage=np.array([nats[rows].sum() / statistics.predicted[rows].sum() for rows in language_rows]),
        **{name: statistics.channels[name].astype(np.float32) for name in inputs},
    )


def run(options: argparse.Namespace) -> None:
    """Measures what is not there yet, as far as the budget of time goes."""
    start = time.perf_counter()
    options.device = resolve_device(options.device)
    name = options.model.replace(":", "-") + "_" + options.setting.replace(":", "-")
    files = {size: options.out / f"{name}_{size}.json" for size in options.sizes}
    done = [Results.load(file) for file in files.values() if file.exists()]
    trained_on = done[0].known if done else known_languages(options.model)
    report(f"{options.model}: {len(trained_on)} languages; {time.perf_counter() - start:.0f} s")
    languages = list(trained_on)
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
        results = Results.load(file) if file.exists() else Results(options.model, options.setting, trained_on)
        for label, chosen in sets_of(languages, size, options, moments):
            if label in results.sets or time.perf_counter() - start > options.budget:
                continue
            trial.run(results, label, trial.corpus.restrict(chosen), size=size)
            results.save(file)
            report(f"{name}, {size} languages, {label}: {results.sets[label]['seconds']:.0f} s")
    trial.close()


def table(sizes: Sequence[Results]) -> Iterator[str]:
    """Yields a row for every size of sets: the KL of languages in and outside of random sets, and of chosen sets."""
    heads = ("set", "KL, in the set", "outside", "ratio", "all languages, random sets", "`mix --cover`", "largest")
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for results in sizes:
        lang, tokens = np.array(results.lang), np.array(results.tokens)
        languages = tuple(dict.fromkeys(results.lang))
        kl = {
            name: np.array(
                [np.array(chosen["kl"])[lang == code].sum() / tokens[lang == code].sum() for code in languages]
            )
            for name, chosen in results.sets.items()
        }
        random = [name for name in kl if name.startswith("random ")]
        inside = np.array([np.isin(languages, results.sets[name]["languages"]) for name in random])
        values = np.array([kl[name] for name in random])
        seen, unseen = (np.ma.array(values, mask=mask).mean(axis=0).mean() for mask in (~inside, inside))
        means = values.mean(axis=1)
        cells = [f"{next(iter(results.sets.values()))['size']} of {len(languages)}", number(seen), number(unseen)]
        cells += [number(unseen / seen, 2), f"{number(means.mean())} [{number(means.min())}, {number(means.max())}]"]
        cells += [number(kl[name].mean()) if name in kl else "" for name in ("cover", "largest")]
        yield f"| {' | '.join(cells)} |"


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
        print("\n".join(table([Results.load(file) for file in options.files])))


if __name__ == "__main__":
    main(sys.argv[1:])
