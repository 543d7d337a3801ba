"""Tables of what own_samples.py and starvation.py have measured: KL after each calibration, next to one of them."""

import numpy as np

from fairbits.stats.frame import LanguageFrame
from language_trial import Results
from measured import number, shown


def table(results: Results, base: str | None = None) -> str:
    """Returns a table for every text that was evaluated; `base` is the calibration that others are compared with."""
    texts = dict.fromkeys(results.text)
    return "\n".join(line for text in texts for line in of_text(results, text, text if base is None else base))


def of_text(results: Results, text: str, first: str) -> list[str]:
    """Returns one table: a row for every calibration, and its ratio to the one that is named `first`."""
    kinds = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in results.sets))
    frames = {kind: frame(results, text, kind) for kind in kinds}
    base = frames[first]
    seeds = {kind: sum(name.rsplit(" ", 1)[0] == kind for name in results.sets) for kind in kinds}
    rows = [
        f"**{results.model}, W{results.setting}, evaluated on the {text}, {len(base.languages)} languages, "
        f"{len(base.lang)} documents**",
        "",
        "| calibrated on | seeds | tokens | KL worst | ratio | KL mean | ratio | difference | lower | higher |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, own in frames.items():
        tokens = np.mean([each["calibration_tokens"] for name, each in results.sets.items() if name.startswith(kind)])
        worst, before = own.worst(), base.worst()
        difference = own.contrast(base)
        mean = LanguageFrame(
            own.lang, own.document, values=own.values - base.values, weights=own.weights, unit=own.unit
        ).mean()
        sure = [each.value for each in difference.significant().values()]
        rows.append(
            f"| {kind} | {seeds[kind]} | {tokens:,.0f} | {shown(worst[1])} {worst[0][:3]} | "
            f"{number(worst[1].value / before[1].value, 2)} | {number(own.mean().value)} | "
            f"{number(own.mean().value / base.mean().value, 2)} | {shown(mean)} | "
            f"{sum(value < 0 for value in sure)} | {sum(value > 0 for value in sure)} |"
        )
    return [*rows, ""]


def frame(results: Results, text: str, kind: str) -> LanguageFrame:
    """Returns the KL of every document, the mean over seeds, in nats per token."""
    rows = np.array(results.text) == text
    runs = [np.array(each["kl"]) for name, each in results.sets.items() if name.rsplit(" ", 1)[0] == kind]
    return LanguageFrame(
        np.array(results.lang)[rows],
        np.array(results.document)[rows],
        values=np.mean(runs, axis=0)[rows],
        weights=np.array(results.tokens)[rows],
        unit="nats_per_token",
    )
