"""LA-ACIQ as the research notes write it, put on a model at 4 bits: does it narrow the gap that ACIQ leaves?

Everything is rounded to nearest on the symmetric grid, one scale per tensor. With own copies every language is
evaluated with the weights that are clipped for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.forward.statistics import document_losses
from fairbits.kurtosis.clipping_record import LanguageClipping
from fairbits.kurtosis.language_clipping import language_clipping
from fairbits.models.scales.scheme import Clip, Scheme
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import LanguageGap
from fairbits_research.experiments.laboratory import UNIT, ModelLab
from fairbits_research.experiments.result import (
    Answer,
    Judgement,
    ResultTable,
    estimate_numbers,
    estimate_text,
    is_below,
)

BITS = 4
ACIQ = "ACIQ: one α, σ·f(κ) of all weights"
PROPOSITION = "Prop. 1: σ·f(κ_eff), own copies"
MEAN = "one α, mean of those"
MIXTURE = "one α, exact for all languages"
PER_TENSOR = "σ·f(κ) of each tensor"
THEOREM = "theorem 2: α of w ⊙ a, own copies"
WORDS = {
    Answer.SUPPORTED: "Disparity(LA-ACIQ) < Disparity(ACIQ) holds",
    Answer.NOT_SUPPORTED: "Disparity(LA-ACIQ) < Disparity(ACIQ) fails",
    Answer.UNDECIDED: "Disparity(LA-ACIQ) < Disparity(ACIQ) is undecided",
}
AlphaOf = Callable[[str], Clip]
"""The threshold of a layer, by its name."""


@dataclass(frozen=True, eq=False)
class WrittenClipping:
    """The thresholds of a model, and the damage to every language with each kind of them."""

    clipping: LanguageClipping
    frames: Mapping[str, LanguageFrame]

    def gap_minus_aciq(self, name: str = PROPOSITION) -> Estimate:
        """Returns how much wider the gap is than with ACIQ, paired by document."""
        return LanguageGap.of(self.frames[name]).minus(LanguageGap.of(self.frames[ACIQ]))

    @property
    def sentence(self) -> str:
        """The verdict on the research notes' first prediction."""
        change, aciq = self.gap_minus_aciq(), self.frames[ACIQ].gap()
        alphas = [one.alpha_written.value / self.clipping.sigma for one in self.clipping.languages.values()]
        return (
            f"LA-ACIQ as written, {BITS} bits: Prop. 1 gives the languages {min(alphas):.4f} to {max(alphas):.4f} σ "
            f"and ACIQ all of them {self.clipping.alpha_shared / self.clipping.sigma:.4f} σ; it changes the gap by "
            f"{estimate_text(change)} bits per byte, from {estimate_text(aciq)}. {WORDS[is_below(change, 0.0)]}."
        )

    @property
    def judgement(self) -> Judgement:
        """The judgement on 002-13: own thresholds narrow the gap."""
        change = self.gap_minus_aciq()
        because = f"Prop. 1 instead of ACIQ changes the gap by {estimate_text(change)} bits per byte at {BITS} bits"
        return Judgement("002-13", is_below(change, 0.0), because, estimate_numbers("change", change))

    @property
    def tables(self) -> tuple[ResultTable, ResultTable]:
        """The damage with every kind of threshold, and the differences from ACIQ."""
        rows, differences = [], []
        for name, frame in self.frames.items():
            (code, worst), (_, best) = frame.worst(), frame.best()
            cells = map(estimate_text, (worst, frame.mean(), best, frame.gap()))
            rows.append((name, self._alphas(name), code, *cells))
            if name != ACIQ:
                change = frame.minus(self.frames[ACIQ]).mean()
                worst_change = frame.worst_minus(self.frames[ACIQ])
                differences.append((name, *map(estimate_text, (worst_change, change, self.gap_minus_aciq(name)))))
        columns = ("thresholds", "α/σ", "worst language", "worst", "mean", "best", "gap")
        title = f"LA-ACIQ as the research notes write it, {BITS} bits: added bits per byte"
        return (
            ResultTable(title, columns, tuple(rows)),
            ResultTable("Minus ACIQ, paired by document", ("thresholds", "worst", "mean", "gap"), tuple(differences)),
        )

    def _alphas(self, name: str) -> str:
        clipping = self.clipping
        written = [one.alpha_written.value for one in clipping.languages.values()]
        alphas = {
            ACIQ: [clipping.alpha_shared],
            PROPOSITION: written,
            MEAN: [float(np.mean(written))],
            MIXTURE: [clipping.alpha_mixture],
        }.get(name)
        if alphas is None:
            return "by tensor"
        ends = dict.fromkeys(f"{alpha / clipping.sigma:.4f}" for alpha in (min(alphas), max(alphas)))
        return " to ".join(ends)


def written_clipping(lab: ModelLab) -> WrittenClipping:
    """Returns the damage of ACIQ, of Prop. 1 and theorem 2 with own copies, and of single thresholds."""
    clipping = language_clipping(
        lab.checkpoint,
        lab.corpus,
        measured=lab.measurements,
        moments=lab.moments,
        request=lab.setting.calibration_text,
        bits=BITS,
        device=lab.setting.device,
        progress=lab.report,
    )
    written = {code: clipping.languages[code].alpha_written.value for code in lab.languages}
    products = {layer.name: layer.product_alpha for layer in clipping.layers}
    frames = {
        ACIQ: _damage(lab, _always(clipping.alpha_shared)),
        PROPOSITION: _own_damage(lab, {code: _always(alpha) for code, alpha in written.items()}),
        MEAN: _damage(lab, _always(float(np.mean(list(written.values()))))),
        MIXTURE: _damage(lab, _always(clipping.alpha_mixture)),
        PER_TENSOR: _damage(lab, _always("kappa")),
        THEOREM: _own_damage(lab, {code: _of_layer(products, code) for code in lab.languages}),
    }
    return WrittenClipping(clipping, frames)


def _always(alpha: Clip) -> AlphaOf:
    return lambda _: alpha


def _of_layer(products: Mapping[str, Mapping[str, float]], code: str) -> AlphaOf:
    """Returns the thresholds of a language; a layer that has none is not clipped."""
    return lambda name: products.get(name, {}).get(code) or "absmax"


def _damage(lab: ModelLab, alpha_of: AlphaOf) -> LanguageFrame:
    with lab.trial.swapped:
        _replace(lab, alpha_of)
        return lab.damage()


def _own_damage(lab: ModelLab, alpha_of: Mapping[str, AlphaOf]) -> LanguageFrame:
    """Returns the damage of every language with its own copy; only its own text is evaluated with it."""
    text, reference = lab.text, lab.trial.reference_nll
    nats: Floats = np.zeros_like(reference)
    for i, (code, alphas) in enumerate(alpha_of.items()):
        lab.report("own copies, thresholds as written", i, len(alpha_of))
        windows = tuple(window for window in text.windows if text.lang[window.document] == code)
        with lab.trial.swapped as swapped:
            _replace(lab, alphas)
            losses = document_losses(swapped.model, replace(text, windows=windows))[0]
        rows = text.lang == code
        nats[rows] = losses[rows] - reference[rows]
    return LanguageFrame.from_nats(
        text.lang,
        text.document,
        nats=nats,
        tokens=lab.trial.predicted,
        size_bytes=text.size_bytes,
        unit=UNIT,
        seed=lab.setting.seed,
    )


def _replace(lab: ModelLab, alpha_of: AlphaOf) -> None:
    for weights in lab.linear_layers:
        for weight in weights:
            lab.trial.replace_rounded([weight], Scheme(BITS, "tensor", alpha_of(weight.name), "symmetric"))
