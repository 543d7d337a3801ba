"""What one code for all languages and codes of their own cost every language, input by input (for `price_of_sharing`).

Codes are made from the calibration text and their costs are those on the evaluation text, as `theory.sharing` predicts
them for GPTQ. The bounds on what any one code costs are computed on the evaluation text itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.progress import Progress
from fairbits.core.units import bits_per_byte
from fairbits.forward.statistics import ActivationStatistics
from fairbits_research.theory.sharing import LeastFavourable, feedback_costs, least_favourable, mixture_of, sphere_costs

DAMP = 0.01
"""The damping of GPTQ, as a share of the mean diagonal of H."""
FLOOR = 1e-4
"""The share that is added to H of the evaluation text, so that it is positive definite."""


@dataclass(frozen=True, eq=False)
class SharedInput:
    """An input of linear layers: E_λ[x xᵀ] (languages, n, n) on both texts, and the damage for a cost of 1 on both."""

    name: str
    calibration: Floats
    evaluation: Floats
    damage: tuple[Floats, Floats]

    @property
    def columns(self) -> int:
        """The number of columns n."""
        return int(self.evaluation.shape[1])

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The order of the columns in which GPTQ rounds for the equal mix."""
        return np.argsort(-np.diag(self.mixture(np.ones(len(self.calibration)))), kind="stable")

    def mixture(self, weights: Floats) -> Floats:
        """Returns the mixture of the calibration text that GPTQ rounds for, with its damping."""
        found = mixture_of(self.calibration, weights)
        found[np.diag_indices(len(found))] += DAMP * np.trace(found) / len(found)
        return found

    def costs(self, weights: Floats) -> Floats:
        """Returns what the code for a mixture of the calibration text costs every language on the evaluation text."""
        return feedback_costs(self.evaluation, self.mixture(weights))

    def own_costs(self) -> Floats:
        """Returns what a code of its own costs every language."""
        alone = np.eye(len(self.evaluation))
        return np.concatenate(
            [feedback_costs(self.evaluation[i : i + 1], self.mixture(pi)) for i, pi in enumerate(alone)]
        )

    def least_costs(self, weights: Floats) -> Floats:
        """Returns what the best feedback for a mixture of the evaluation text itself costs every language."""
        return feedback_costs(self.evaluation, mixture_of(self.evaluation, weights), order=self.order)

    def calibration_costs(self, weights: Floats) -> Floats:
        """Returns what the code for a mixture costs every language on the calibration text, with its damping."""
        M = self.mixture(weights)
        costs = feedback_costs(self.calibration, M, order=self.order)
        # the damping of a language is a multiple of the identity, so it adds a multiple of the mean squared error
        squared = feedback_costs(np.eye(len(M))[None], M, order=self.order)[0]
        added: Floats = DAMP * squared * np.trace(self.calibration, axis1=1, axis2=2) / len(M)
        return costs + added


@dataclass(frozen=True, eq=False)
class InputCosts:
    """The costs of one input: of codes of their own, of the code for the equal mix, and the price of sharing.

    `price` and `any_code` bound the largest ratio, over languages, of the cost of one code to that of an own code: for
    codes of GPTQ's kind, and for any codes.
    """

    name: str
    columns: int
    own: Floats
    equal: Floats
    price: LeastFavourable
    any_code: LeastFavourable

    @property
    def ratio(self) -> Floats:
        """What the code for the equal mix costs every language, in units of a code of its own."""
        return self.equal / self.own


@dataclass(frozen=True, eq=False)
class ModelCosts:
    """The predicted damage of every language, in bits per byte, summed over all inputs.

    `bound` limits the damage of the worst language from below, for one code of GPTQ's kind for all languages.
    `mix` are the weights of the languages for the worst one, found on the calibration text; `worst` is its damage.
    `price` bounds the largest ratio of a language's damage to that with codes of its own.
    """

    own: Floats
    equal: Floats
    worst: Floats
    mix: Floats
    bound: LeastFavourable
    price: LeastFavourable

    @property
    def room(self) -> float:
        """By which share the damage of the worst language can fall at most, compared with the equal mix."""
        return max(0.0, 1 - self.bound.bound / float(self.equal.max()))


def shared_inputs(
    calibration: ActivationStatistics, evaluation: ActivationStatistics, steps: Mapping[str, Floats]
) -> list[SharedInput]:
    """Returns every input with its second moments; `steps` are the squared steps (out,) of every linear layer.

    A row i with error e costs language λ about ½ E[g_i²] e H_λ eᵀ nats per token, g being the Fisher gradient of its
    output, so a cost of 1 in units of step² is a damage of ½ Σ_i E[g_i²] step_i², summed over the maps of the input. It
    is given in bits per byte.
    """
    linears: dict[str, list[str]] = {}
    for name in steps:
        linears.setdefault(evaluation.seen_by[name], []).append(name)
    found = []
    for point in filter(linears.__contains__, evaluation.inputs):  # in the order of the model
        names = linears[point]
        first, second = (
            0.5 * _bits_per_nat(each) * _total(each.gradients[name] @ steps[name] for name in names)
            for each in (calibration, evaluation)
        )
        found.append(SharedInput(point, calibration.inputs[point], _raised(evaluation.inputs[point]), (first, second)))
    return found


def input_costs(one: SharedInput) -> InputCosts:
    """Returns the costs of one input, and the bounds on the price of sharing it."""
    languages = len(one.evaluation)
    own = one.own_costs()

    def relative(costs_of: Callable[[Floats], Floats]) -> LeastFavourable:
        return least_favourable(lambda pi: costs_of(pi / own) / own, languages)

    return InputCosts(
        one.name,
        one.columns,
        own,
        one.costs(np.full(languages, 1 / languages)),
        relative(one.least_costs),
        relative(lambda weights: sphere_costs(one.evaluation, mixture_of(one.evaluation, weights))),
    )


def model_costs(inputs: Sequence[SharedInput], costs: Sequence[InputCosts], report: Progress) -> ModelCosts:
    """Returns the damage that the costs of all inputs add up to, and its bounds."""
    languages = len(costs[0].own)
    own, equal = (
        _total(one.damage[1] * paid for one, paid in zip(inputs, each, strict=True))
        for each in ([each.own for each in costs], [each.equal for each in costs])
    )

    def least(per_damage: Floats, what: str) -> LeastFavourable:
        """Returns the mixture that is the least favourable on the evaluation text, damage in the given units."""

        def costs_of(pi: Floats) -> Floats:
            report(what, 0, 1)
            factors = [one.damage[1] / per_damage for one in inputs]
            return _total(factor * one.least_costs(pi * factor) for one, factor in zip(inputs, factors, strict=True))

        return least_favourable(costs_of, languages)

    def on_calibration(pi: Floats) -> Floats:
        report("weights for the worst language", 0, 1)
        return _total(one.damage[0] * one.calibration_costs(pi * one.damage[0]) for one in inputs)

    # GPTQ takes one mix for all inputs: the weights of an input are replaced by their geometric mean
    typical = np.exp(np.mean([np.log(one.damage[0] / one.damage[0].mean()) for one in inputs], axis=0))
    mix = least_favourable(on_calibration, languages).pi * typical
    mix /= mix.sum()
    worst = _total(one.damage[1] * one.costs(mix) for one in inputs)
    bound = least(np.ones(languages), "bound on the worst language")
    return ModelCosts(own, equal, worst, mix, bound, least(own, "price of sharing"))


def _bits_per_nat(measured: ActivationStatistics) -> Floats:
    """Returns what one nat per token is in bits per byte, for every language."""
    rows = [measured.lang == code for code in measured.languages]
    sums = [(measured.predicted[own].sum(), measured.size_bytes[own].sum()) for own in rows]
    return np.array([float(bits_per_byte(tokens, size)) for tokens, size in sums])


def _total(damages: Iterable[Floats]) -> Floats:
    """Returns the damage of every language, summed over inputs or linear layers."""
    found: Floats = np.sum(list(damages), axis=0)
    return found


def _raised(H: Floats) -> Floats:
    """Returns H (languages, n, n) with FLOOR added to its diagonals, relative to their mean."""
    found = H.copy()
    n = H.shape[1]
    found[:, np.arange(n), np.arange(n)] += FLOOR * np.trace(H, axis1=1, axis2=2)[:, None] / n
    return found
