"""How well `fairbits power` predicts what the gate does with releases that are not simulated.

python benchmarks/power.py --work DIRECTORY

A model is quantized to 6 bits and evaluated on every sentence of the LibreOffice help (12 languages of embedded:tiny,
some 600 sentences each); these are the population. A pilot is PILOT sentences per language. Releases are drawn from the
other sentences, with replacement, so that their true damage is known. Each is judged twice by the gate: with the truth
of the worst language as the limit, where a pass is false, and with TIMES the truth, where anything else is a miss. The
prediction has as many releases, simulated from the pilots. Evaluating takes minutes, the rest some minutes more.
"""

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import fairbits as fb
from fairbits.evaluation.gate import Check, changes_check, limit_check
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.simulated_releases import PilotDocuments
from fairbits.models.embedded import LANGUAGES
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.outcomes import share_estimate
from fairbits.text.included_texts import help_text

MODEL, BITS = "embedded:tiny", 6
SENTENCE = re.compile(r"(?<=[.!?;:。！？।])\s+|(?<=[。！？])|\n")
LEAST_BYTES = 20  # of a sentence
PILOT, AMOUNTS = 40, (20, 40, 80)  # sentences per language
PILOTS, EACH = 40, 10  # pilots, and releases of each kind for each pilot
RESAMPLES = 1999  # of an observed release: the gate's 10,000 take five times as long for the same order statistics
TIMES = 2.0  # how many times the truth the limit is that a release should keep

Judge = Callable[[LanguageFrame, float], Check]


def population(work: Path) -> Scores:
    """Returns the scores of all sentences, measured now unless they are in the directory."""
    path = work / "population.json"
    if path.exists():
        return Scores.load(path)
    text = work / "text"
    corpus = help_text()
    for code in sorted({language.code for language in corpus.languages} & set(LANGUAGES["tiny"])):
        paragraphs = {split: corpus.split(split)[code] for split in ("calibration", "evaluation")}
        parts = [part.strip() for texts in paragraphs.values() for long in texts for part in SENTENCE.split(long)]
        sentences = [part for part in dict.fromkeys(parts) if len(part.encode()) >= LEAST_BYTES]
        for split, rows in (("evaluation", sentences), ("calibration", paragraphs["calibration"][:20])):
            (text / split).mkdir(parents=True, exist_ok=True)
            lines = [" ".join(row.split()) for row in rows]
            (text / split / f"{code}.txt").write_text("\n".join(lines), encoding="utf-8")
    fb.quantize(MODEL, fb.plan(MODEL, policy="rtn", bits=BITS, group=32), out=work / "quantized")
    scores = fb.evaluate(work / "quantized", reference=MODEL, text=text, tokens=40_000, sequence=128)
    scores.save(path)
    return scores


def chosen(frame: LanguageFrame, rows: np.ndarray) -> LanguageFrame:
    """Returns a frame of some records, each a document of its own even where one is chosen twice."""
    columns = {name: getattr(frame, name)[rows] for name in ("lang", "values", "weights")}
    return replace(frame, document=np.arange(len(rows)), **columns)


def truth(frame: LanguageFrame, rows: np.ndarray) -> float:
    """Returns the damage of the worst language of some records."""
    lang = frame.lang[rows]
    return max(
        float(frame.values[rows][lang == code].sum() / frame.weights[rows][lang == code].sum())
        for code in frame.languages
    )


def compare(frame: LanguageFrame, judge: Judge, *, counts: bool, seed: int) -> list[str]:
    """Returns the rows of a Markdown table: what was predicted and what happened with every amount."""
    rng = np.random.default_rng(seed)
    tally = {(amount, kind): np.zeros(2, dtype=int) for amount in AMOUNTS for kind in ("predicted", "observed")}
    rows_of = [np.flatnonzero(frame.lang == code) for code in frame.languages]
    for _ in range(PILOTS):
        orders = [rng.permutation(rows) for rows in rows_of]
        rest = [order[PILOT:] for order in orders]
        worst = truth(frame, np.concatenate(rest))
        pilot = PilotDocuments(chosen(frame, np.concatenate([order[:PILOT] for order in orders])), counts)
        simulated = pilot.rescaled(worst)
        for amount in AMOUNTS:
            for _ in range(EACH):
                release = chosen(frame, np.concatenate([rng.choice(rows, amount) for rows in rest]))
                release = replace(release, resamples=RESAMPLES, seed=int(rng.integers(2**31)))
                drawn = {"predicted": simulated.draw(amount / PILOT, rng), "observed": release}
                for kind, scores in drawn.items():
                    wrong = judge(scores, worst).outcome == "pass", judge(scores, TIMES * worst).outcome != "pass"
                    tally[amount, kind] += wrong
    lines = []
    for amount in AMOUNTS:
        cells = [
            f"{100 * share.value:.1f} % ({100 * share.low:.1f}–{100 * share.high:.1f})"
            for i in range(2)
            for kind in ("predicted", "observed")
            for share in (share_estimate(int(tally[amount, kind][i]), PILOTS * EACH),)
        ]
        tokens = round(amount * frame.weights.sum() / len(frame.weights)) if counts else None
        lines.append(f"| {amount}{'' if tokens is None else f' ({tokens:,} tokens)'} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Prints a table for each measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory for the model and its scores")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    scores = population(arguments.work)
    print(f"{PILOTS} pilots of {PILOT} sentences per language, {PILOTS * EACH} releases, seed {arguments.seed}")

    def changes(frame: LanguageFrame, limit: float) -> Check:
        return changes_check(frame, 100 * limit, what="tokens", uncertain={})

    def worst(frame: LanguageFrame, limit: float) -> Check:
        return limit_check(frame, "worst language", limit)

    for title, frame, judge, counts in (
        ("changed tokens", scores.changed_frame, changes, True),
        ("KL divergence", scores.frame(), worst, False),
    ):
        print(
            f"\n| {title}: sentences per language | false passes predicted | observed | misses predicted | observed |"
        )
        print("|---|---|---|---|---|", *compare(frame, judge, counts=counts, seed=arguments.seed), sep="\n", flush=True)


if __name__ == "__main__":
    main()
