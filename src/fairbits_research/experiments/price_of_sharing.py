"""The price of sharing: what one code for all languages must cost, and whether following the worst one helps it.

Codes are made from the calibration text, and their costs on the evaluation text are predicted for GPTQ by
`theory.sharing`. The bounds on what any one code costs are computed on the evaluation text itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.progress import Progress
from fairbits.core.units import bits_per_byte
from fairbits.forward.statistics import ActivationStatistics, collect_statistics
from fairbits.models.scales.groups import choose_scales, scheme_grid
from fairbits.models.scales.scheme import Scheme, within_rows
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.quantization.gptq.columns import gptq
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import documents_needed
from fairbits_research.experiments.laboratory import Laboratory, ModelLab
from fairbits_research.experiments.own_calibration import RELEVANT, is_reduced
from fairbits_research.experiments.result import (
    Answer,
    Cell,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    describe,
    estimate_text,
)
from fairbits_research.theory.sharing import (
    LeastFavourable,
    diagonal_bound,
    feedback_costs,
    least_favourable,
    mix_moments,
    sphere_costs,
)

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
        mixed = mix_moments(self.calibration, weights)
        mixed[np.diag_indices(len(mixed))] += DAMP * np.trace(mixed) / len(mixed)
        return mixed

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
        return feedback_costs(self.evaluation, mix_moments(self.evaluation, weights), order=self.order)

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
    alone: Floats
    equal: Floats
    price: LeastFavourable
    any_code: LeastFavourable

    @property
    def ratio(self) -> Floats:
        """What the code for the equal mix costs every language, in units of a code of its own."""
        return self.equal / self.alone


@dataclass(frozen=True, eq=False)
class ModelCosts:
    """The predicted damage of every language, in bits per byte, summed over all inputs.

    `bound` limits the damage of the worst language from below, for one code of GPTQ's kind for all languages.
    `mix` are the weights of the languages for the worst one, found on the calibration text; `worst` is its damage.
    `price` bounds the largest ratio of a language's damage to that with codes of its own.
    """

    alone: Floats
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
    inputs = []
    for point in filter(linears.__contains__, evaluation.inputs):  # in the order of the model
        names = linears[point]
        first, second = (
            0.5 * _bits_per_nat(measured) * _total(measured.gradients[name] @ steps[name] for name in names)
            for measured in (calibration, evaluation)
        )
        inputs.append(SharedInput(point, calibration.inputs[point], _raised(evaluation.inputs[point]), (first, second)))
    return inputs


def input_costs(one: SharedInput) -> InputCosts:
    """Returns the costs of one input, and the bounds on the price of sharing it."""
    languages = len(one.evaluation)
    alone = one.own_costs()

    def relative(costs_of: Callable[[Floats], Floats]) -> LeastFavourable:
        return least_favourable(lambda pi: costs_of(pi / alone) / alone, languages)

    return InputCosts(
        one.name,
        one.columns,
        alone,
        one.costs(np.full(languages, 1 / languages)),
        relative(one.least_costs),
        relative(lambda weights: sphere_costs(one.evaluation, mix_moments(one.evaluation, weights))),
    )


def model_costs(inputs: Sequence[SharedInput], costs: Sequence[InputCosts], report: Progress) -> ModelCosts:
    """Returns the damage that the costs of all inputs add up to, and its bounds."""
    languages = len(costs[0].alone)
    alone = _total(one.damage[1] * paid.alone for one, paid in zip(inputs, costs, strict=True))
    equal = _total(one.damage[1] * paid.equal for one, paid in zip(inputs, costs, strict=True))

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
    return ModelCosts(alone, equal, worst, mix, bound, least(alone, "price of sharing"))


def _bits_per_nat(measured: ActivationStatistics) -> Floats:
    """Returns what one nat per token is in bits per byte, for every language."""
    masks = [measured.lang == code for code in measured.languages]
    sums = [(measured.predicted[rows].sum(), measured.size_bytes[rows].sum()) for rows in masks]
    return np.array([float(bits_per_byte(tokens, size)) for tokens, size in sums])


def _total(damages: Iterable[Floats]) -> Floats:
    """Returns the damage of every language, summed over inputs or linear layers."""
    total: Floats = np.sum(list(damages), axis=0)
    return total


def _raised(H: Floats) -> Floats:
    """Returns H (languages, n, n) with FLOOR added to its diagonals, relative to their mean."""
    raised = H.copy()
    n = H.shape[1]
    raised[:, np.arange(n), np.arange(n)] += FLOOR * np.trace(H, axis1=1, axis2=2)[:, None] / n
    return raised


BITS = 3
EQUAL, WORST = "equal mix", "mix for the worst language"


@dataclass(frozen=True, eq=False)
class Followed:
    """The damage with GPTQ on the equal mix and on the mix for the worst language, and what was predicted."""

    equal: LanguageFrame
    worst: LanguageFrame
    predicted: ModelCosts

    @property
    def change(self) -> Estimate:
        """The worst damage with the mix for the worst language, minus that with the equal mix."""
        return self.worst.worst_minus(self.equal)

    @property
    def answer(self) -> Answer:
        """Whether following the worst language lowers its damage; not supported if no code can lower it enough."""
        if self.predicted.room < RELEVANT:
            return Answer.NOT_SUPPORTED
        return is_reduced(self.change, self.equal.worst()[1].value)


def price_of_sharing(laboratory: Laboratory) -> Result:
    """Returns the result: what must one code for all languages cost, and does following the worst language help it?"""
    lab = laboratory.lab()
    inputs, steps = _inputs(lab)
    costs = []
    for i, one in enumerate(inputs):
        lab.report("costs of one code and of own codes", i, len(inputs))
        costs.append(input_costs(one))
    model = model_costs(inputs, costs, lab.report)
    mix = dict(zip(lab.languages, model.mix.tolist(), strict=True))
    followed = Followed(lab.policy_damage("gptq", BITS), lab.policy_damage("gptq", BITS, mix=mix), model)
    return describe(
        "price-of-sharing",
        design=(
            "For every input of linear layers, E[x xᵀ] of each language on the calibration text (codes) and on the "
            "evaluation text (costs). The costs are the mean output errors of GPTQ, which follow from E[x xᵀ] for "
            "weights that are uniform modulo the grid. Bounds: the least favourable mixture of languages, for one code "
            "of GPTQ's kind (rounding with linear feedback) and for any code (sphere bound). Own codes are those that "
            "the calibration text of a language gives, so the bounds on the price are on the safe side. Damage is "
            f"predicted from E[g²] of the Fisher gradient at {BITS} bits and summed over inputs. Measured: GPTQ with "
            "the equal mix and with the mix for the worst language, found on the calibration text; paired by document. "
            "Supported if the interval of the change of the worst damage lies below 0; not supported if it lies above "
            f"0 or excludes a reduction by {RELEVANT:.0%}, or if the bound does."
        ),
        subject=laboratory.subject(bits=[BITS]),
        answer=followed.answer,
        verdict=(
            f"The mix for the worst language instead of the equal mix changes the damage of the worst language by "
            f"{estimate_text(followed.change)} bits per byte, from {estimate_text(followed.equal.worst()[1])}; "
            f"predicted is {model.worst.max() / model.equal.max() - 1:+.0%}, and no code of GPTQ's kind can lower it "
            f"by more than {model.room:.0%}: {SAYING[followed.answer]}."
        ),
        meaning=_meaning(lab, model),
        tables=(
            _worst_table(lab, followed),
            _language_table(lab, model),
            _input_table(lab, costs),
            _check_table(lab, inputs, costs),
        ),
        figure=_figure(costs),
        power=documents_needed({"worst language": followed.change}) if followed.answer is Answer.UNDECIDED else "",
        notes=(
            "The bounds hold on average over weights that are uniform modulo the grid. Without an average, for the "
            "weights as they are, the diagonal bound guarantees only "
            f"{_guaranteed(lab, inputs, costs, steps):.1%} of what GPTQ costs on the equal mix (median over inputs).",
        ),
    )


SAYING = {
    Answer.SUPPORTED: "following the worst language helps it",
    Answer.NOT_SUPPORTED: "following the worst language does not help it by a relevant amount",
    Answer.UNDECIDED: "whether following the worst language helps it is undecided",
}


def _inputs(lab: ModelLab) -> tuple[list[SharedInput], dict[str, Floats]]:
    """Returns the inputs of all linear layers that are rounded, and the steps of every row of each."""
    setting = lab.setting
    calibration, evaluation = (
        collect_statistics(
            lab.checkpoint, lab.corpus, request=request, second_moments=True, device=setting.device, progress=lab.report
        )
        for request in (setting.calibration_text, setting.evaluation_text)
    )
    weights = lab.checkpoint.architecture.weights
    rounded = {weight.name for block in lab.linear_layers for weight in block}
    steps = {}
    for name in evaluation.linears:
        if name not in rounded or name not in calibration.gradients:
            continue
        W = matrix(lab.checkpoint, weights[name])
        importance = calibration.channels[calibration.seen_by[name]].mean(0)[None]
        scales, _ = choose_scales(W, _scheme(lab), importance=importance, dtype=lab.checkpoint.scale_dtype)
        steps[name] = np.sqrt(scales.double().square().mean(1).numpy())
    squared = {name: np.square(step) for name, step in steps.items()}
    return shared_inputs(calibration, evaluation, squared), steps


def _scheme(lab: ModelLab) -> Scheme:
    return Scheme(BITS, within_rows(lab.setting.group), "exact", "twos", objective="mean", rounding="gptq")


def _meaning(lab: ModelLab, model: ModelCosts) -> str:
    ratio = model.equal / model.alone
    most = int(ratio.argmax())
    least = model.price.bound
    price = (
        f"Any one code of GPTQ's kind costs some language at least {least:.2f} times what codes of its own cost it"
        if least > 1
        else "With so little text, codes of their own are not better for all languages: no price is proved"
    )
    return (
        f"{price}; the equal mix costs {lab.languages[most]} {ratio[most]:.2f} times as much, and the mean language "
        f"{ratio.mean():.2f} times. The mix for the worst language is predicted to change the mean damage by "
        f"{model.worst.mean() / model.equal.mean() - 1:+.0%}. What remains can be won back only by codes for each "
        "language, or by more bits."
    )


def _worst_table(lab: ModelLab, followed: Followed) -> ResultTable:
    model = followed.predicted
    rows: list[tuple[Cell, ...]] = []
    measured = {EQUAL: followed.equal, WORST: followed.worst}
    for what, damage in (("own codes", model.alone), (EQUAL, model.equal), (WORST, model.worst)):
        frame = measured.get(what)
        code, worst = ("", None) if frame is None else frame.worst()
        rows.append(
            (
                what,
                lab.languages[int(damage.argmax())],
                float(damage.max()),
                float(damage.max() / model.equal.max()),
                float(damage.mean()),
                code,
                "" if worst is None else estimate_text(worst),
                "" if frame is None else estimate_text(frame.mean()),
            )
        )
    least = model.bound.bound
    rows.append(("bound for one code", "", least, least / float(model.equal.max()), "", "", "", ""))
    columns = ("codes", "worst", "predicted", "relative", "mean", "worst", "measured", "mean, measured")
    title = "The worst language in added bits per byte, predicted and measured"
    return ResultTable(title, columns, tuple(rows))


def _language_table(lab: ModelLab, model: ModelCosts) -> ResultTable:
    numbers = (model.alone, model.equal, model.worst, model.equal / model.alone, model.mix)
    rows = tuple((code, *map(float, values)) for code, *values in zip(lab.languages, *numbers, strict=True))
    columns = ("language", "own codes", EQUAL, WORST, "equal / own", "weight")
    return ResultTable(
        "Predicted added bits per byte, and the weights of the mix for the worst language", columns, rows
    )


def _input_table(lab: ModelLab, costs: Sequence[InputCosts]) -> ResultTable:
    rows = tuple(
        (
            paid.name.removesuffix(".input"),
            paid.columns,
            paid.any_code.bound,
            paid.price.bound,
            float(paid.ratio.mean()),
            float(paid.ratio.max()),
            lab.languages[int(paid.ratio.argmax())],
        )
        for paid in costs
    )
    columns = ("input", "columns", "any code", "GPTQ's kind", "equal mix, mean", "equal mix, worst", "language")
    title = "Cost of one code in units of own codes: bounds for the worst language, and the equal mix"
    return ResultTable(title, columns, rows)


def _check_table(lab: ModelLab, inputs: Sequence[SharedInput], costs: Sequence[InputCosts]) -> ResultTable:
    """Returns the predicted cost of the equal mix relative to own codes next to GPTQ's, in a block in the middle."""
    linears: Mapping[str, str] = {
        f"{weight.sees}.input": weight.name for weight in reversed(lab.linear_layers[lab.n_blocks // 2])
    }
    rows: list[tuple[Cell, ...]] = []
    for one, paid in zip(inputs, costs, strict=True):
        if one.name not in linears:
            continue
        lab.report("GPTQ on every language", len(rows), len(linears))
        measured = _measured_ratio(lab, linears[one.name], one)
        off = np.abs(np.log(measured / paid.ratio))
        rows.append(
            (
                one.name.removesuffix(".input"),
                float(paid.ratio.mean()),
                float(measured.mean()),
                float(paid.ratio.max()),
                float(measured.max()),
                float(np.exp(off.max()) - 1),
            )
        )
    columns = ("input", "predicted mean", "GPTQ mean", "predicted worst", "GPTQ worst", "largest deviation")
    return ResultTable(
        f"The same ratio measured: codes of GPTQ at {BITS} bits, with their own scales", columns, tuple(rows)
    )


def _measured_ratio(lab: ModelLab, linear: str, one: SharedInput) -> Floats:
    """Returns what GPTQ's code for the equal mix costs every language, relative to GPTQ's code for it alone."""
    W, scheme = matrix(lab.checkpoint, lab.checkpoint.architecture.weights[linear]), _scheme(lab)

    def costs(weights: Floats, languages: Sequence[int]) -> list[float]:
        H = mix_moments(one.calibration, weights)
        scales, _ = choose_scales(W, scheme, importance=np.diag(H)[None], dtype=lab.checkpoint.scale_dtype)
        codes = gptq(W, torch.from_numpy(H).float(), scales, grid=scheme_grid(scheme)).codes
        E = (codes.dequantized.double() - W.double()).numpy()
        return [float(np.vdot(E @ one.evaluation[i].astype(np.float64), E)) for i in languages]

    count = len(one.calibration)
    alone = [costs(pi, [i])[0] for i, pi in enumerate(np.eye(count))]
    return np.array(costs(np.full(count, 1 / count), range(count))) / alone


def _guaranteed(
    lab: ModelLab, inputs: Sequence[SharedInput], costs: Sequence[InputCosts], steps: Mapping[str, Floats]
) -> float:
    """Returns the median of the diagonal bound, relative to GPTQ's cost on the equal mix, over inputs."""
    first = {f"{lab.checkpoint.architecture.weights[name].sees}.input": name for name in reversed(list(steps))}
    shares = []
    for one, paid in zip(inputs, costs, strict=True):
        name = first[one.name]
        W = matrix(lab.checkpoint, lab.checkpoint.architecture.weights[name]).numpy()
        H = mix_moments(one.evaluation, np.full(len(paid.alone), 1 / len(paid.alone)))
        least = diagonal_bound(W, H, step=np.where(steps[name] > 0, steps[name], 1.0))
        shares.append(least / float(paid.equal.mean() * np.square(steps[name]).sum()))
    return float(np.median(shares))


def _figure(costs: Sequence[InputCosts]) -> ResultFigure:
    x = tuple(range(1, len(costs) + 1))
    lines = {
        "equal mix, worst language": [float(paid.ratio.max()) for paid in costs],
        "equal mix, mean": [float(paid.ratio.mean()) for paid in costs],
        "bound, GPTQ's kind": [paid.price.bound for paid in costs],
        "bound, any code": [paid.any_code.bound for paid in costs],
    }
    series = tuple(Series(name, x, tuple(y)) for name, y in lines.items())
    return ResultFigure("Cost of one code in units of own codes", "input", "times", series, lines=True, log="y")
