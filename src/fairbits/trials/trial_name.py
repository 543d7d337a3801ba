"""Which variant and width the scores of a trial are of; needs no model."""

import re

from fairbits.measure.scores.scores import Scores

TRIAL_NAME = re.compile(r"(.+), (\d) bits")
"""How trials are named: a variant and its width."""


def method_of(scores: Scores) -> tuple[str, int] | None:
    """Returns the variant and width of a trial's scores; None if they are the scores of a checkpoint."""
    start = f"{scores.reference.target}, "
    found = TRIAL_NAME.fullmatch(scores.quantized.target.removeprefix(start))
    own = scores.quantized.target.startswith(start)
    return (found[1], int(found[2])) if own and found is not None else None
