"""Intervention: what a worse tokenization of the same text moves."""

from dataclasses import dataclass

import numpy as np

from fairbits.checks import Floats
from fairbits.science.experiments.laboratory import Laboratory
from fairbits.science.experiments.measured_traits import measure, outlier_blocks
from fairbits.science.experiments.result import Table, brief, written
from fairbits.science.experiments.retokenised import retokenised
from fairbits.science.experiments.traits_of_languages import OWN, Traits
from fairbits.stats import Estimate, LanguageFrame
from fairbits.verbs.audit import FOREIGN

BITS = "nearest, 3 bits"


@dataclass(frozen=True, eq=False)
class Moved:
    """What a worse tokenization of the same text moves, mean over languages.

    `damage` and `dropout` are frames of paired differences in bits per byte; R is 1/dropout, so that it falls where
    `dropout` rises. `activation` is the change of ā_outlier, `tokens` by how much the number of tokens grows, `base`
    how many times the loss of the model as it is. A model that was never trained on such cuts may find the text
    foreign, and then more than T has changed.
    """

    damage: LanguageFrame
    dropout: LanguageFrame
    activation: Estimate
    tokens: float
    base: float

    @property
    def counts(self) -> bool:
        """Whether the text is still of a kind that the model knows."""
        return self.base <= FOREIGN

    @property
    def agrees(self) -> bool:
        """Whether all of it moved as the chain says, beyond doubt: A and R down, D up."""
        moved = self.damage.mean().low > 0 and self.dropout.mean().low > 0 and self.activation.high < 0
        return self.counts and moved

    @property
    def contradicts(self) -> bool:
        """Whether D moved beyond doubt while it, or R, or A, moved the wrong way beyond doubt."""
        damage, lost = self.damage.mean(), self.dropout.mean()
        wrong = damage.high < 0 or lost.high < 0 or self.activation.low > 0
        return self.counts and damage.excludes(0.0) and wrong


def intervention(laboratory: Laboratory) -> tuple[Traits, Traits, Moved]:
    """Returns the traits of the own languages, those with the same text cut finer, and what that moved."""
    model = laboratory.with_outliers(outlier_blocks(laboratory.lab().n_blocks))
    lab = laboratory.lab(model)
    own = measure(lab, OWN, dropout=True, treatments=[BITS])
    finer = retokenised(lab)
    before = lab.trial.predicted.sum()
    laboratory.lab()  # lets go of the model before the next one comes
    del lab
    worse = measure(finer, f"{OWN}, cut finer,", dropout=True, treatments=[BITS])
    assert own.dropout is not None
    assert worse.dropout is not None
    moved = Moved(
        damage=worse.damage[BITS].minus(own.damage[BITS]),
        dropout=worse.dropout.minus(own.dropout),
        activation=over_languages(worse.a - own.a),
        tokens=float(finer.trial.predicted.sum() / before - 1),
        base=float(np.mean(worse.base_bits / own.base_bits)),
    )
    return own, worse, moved


def over_languages(change: Floats) -> Estimate:
    """Returns the mean of one number per language, with its bootstrap-t interval over languages."""
    n = len(change)
    frame = LanguageFrame(np.full(n, "all"), np.arange(n), values=change, weights=np.ones(n), unit="ratio")
    return frame.by_language()["all"]


def moved_table(own: Traits, worse: Traits, moved: Moved) -> Table:
    """Returns what moved in every language."""
    paired = worse.damage[BITS].contrast(own.damage[BITS])
    lost = moved.dropout.by_language()
    times = worse.base_bits / own.base_bits
    rows = tuple(
        (code, written(paired.differences[code]), brief(paired.p_holm[code]), written(lost[code]), *map(brief, other))
        for code, *other in zip(own.languages, (worse.a - own.a).tolist(), times.tolist(), strict=True)
    )
    columns = ("language", "change of D", "p, Holm", "change of 1/R", "change of A", "base loss, times")
    return Table(f"The same text in {moved.tokens:.0%} more tokens, bits per byte", columns, rows)
