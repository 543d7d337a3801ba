"""Predicted against measured divergence: does the audit rank the languages that plain rounding hurts?

    python benchmarks/predict.py embedded:tiny --text declaration --text help --text PATH
    python benchmarks/predict.py gemma-3-270m --text declaration --scores build/real

The audit reads the calibration split and predicts the KL of every language, in nats per token, for rounding to nearest.
The KL is measured on the evaluation split; with `--scores` it is read from what `real.py run` has measured, as real
models take long on a CPU. Nothing is fitted. Languages that the audit says it should not be trusted for have their own
row: the model hardly knows them. A row has the Spearman correlation over languages with its 95 % interval, the
geometric mean of KL over prediction, and its range over languages.
"""

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

import published
from bench import Setting
from fairbits import Audit, Checkpoint, Scheme
from fairbits.api.audit import audit
from fairbits.api.make_plan import plan
from fairbits.comparison.plan_trial import PlanTrial
from fairbits.evaluation.scores import Scores
from fairbits.models.device import resolve_device
from fairbits.models.embedded import embedded_languages
from fairbits.models.scales.scheme import within_rows
from fairbits.stats.correlation import spearman
from fairbits.text.corpus import Corpus, TextRequest
from measured import frame_of, number
from real_texts import LANGUAGES, open_text

FEWEST = 4
"""Languages that a correlation needs."""
HEADS = ("model", "text", "setting", "languages", "KL, nats per token", "Spearman", "KL / predicted", "by language")


def measured_scores(checkpoint: Checkpoint, corpus: Corpus, setting: Setting, options: argparse.Namespace) -> Scores:
    """Returns the scores of rounding to nearest, measured now."""
    request = TextRequest("evaluation", options.evaluation_tokens, options.sequence)
    with PlanTrial.of(checkpoint, corpus, request=request, device=options.device) as trial:
        rtn_plan = plan(checkpoint, policy="rtn", bits=setting.bits, group=setting.group, device=options.device)
        return trial.run(rtn_plan, name="rtn").scores


def rows(audited: Audit, scores: Scores) -> Iterator[tuple[str, ...]]:
    """Yields the numbers of the languages that the audit trusts, and of the others."""
    kl = {code: score.value for code, score in frame_of(scores, "divergence", "nats_per_token").by_language().items()}
    predicted = {code: estimate.value for code, estimate in audited.predicted.estimates().items()}
    common = [code for code in audited.languages if code in kl]
    for name, codes in (
        ("known", [code for code in common if code in audited.trusted]),
        ("unknown", [code for code in common if code not in audited.trusted]),
    ):
        if codes:
            yield (f"{len(codes)} {name}", *_numbers([predicted[code] for code in codes], [kl[code] for code in codes]))


def _numbers(predicted: Collection[float], measured: Collection[float]) -> Iterator[str]:
    x, y = np.array(predicted), np.array(measured)
    yield f"{number(y.min())} to {number(y.max())}"
    if len(x) < FEWEST:
        yield "too few"
    else:
        rho = spearman(x, y).estimate
        yield f"{number(rho.value, 2)} [{number(rho.low, 2)}, {number(rho.high, 2)}]"
    ratio = y / x
    yield number(float(np.exp(np.log(ratio).mean())), 2)
    yield f"{number(ratio.min(), 2)} to {number(ratio.max(), 2)}"


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"of {', '.join(published.MODELS)}, or whatever names a model")
    parser.add_argument("--text", action="append", required=True, help="help, declaration or a path; may be repeated")
    parser.add_argument("--settings", nargs="+", default=["4:128", "3:128"], help="bits and group, such as 4:channel")
    parser.add_argument("--scores", type=Path, help="the directory of `real.py run`, whose scores of rtn are read")
    parser.add_argument("--tokens", type=int, default=1024, help="of every language, to predict from")
    parser.add_argument("--evaluation-tokens", type=int, default=8192, help="of every language, to measure on")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.device = resolve_device(options.device)
    published_model = published.MODELS.get(options.model)
    checkpoint = Checkpoint(options.model if published_model is None else published_model.path)
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|", flush=True)
    for text in options.text:
        corpus = open_text(text, embedded_languages(checkpoint.target) or LANGUAGES)
        for word in options.settings:
            setting = Setting.of(word)
            scheme = Scheme(setting.bits, within_rows(setting.group))
            audited = audit(checkpoint, text=corpus, tokens=options.tokens, sequence=options.sequence, scheme=scheme)
            if options.scores is None:
                scores = measured_scores(checkpoint, corpus, setting, options)
            else:
                place = options.scores / options.model / word.replace(":", "_") / "rtn/0"
                scores = Scores.load(place / f"{Path(text).name}.json")
            for row in rows(audited, scores):
                print("| " + " | ".join((options.model, Path(text).name, str(setting), *row)) + " |", flush=True)


if __name__ == "__main__":
    main()
