"""The price of sharing: what one code for all languages must cost, and whether following the worst one helps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fairbits.core.array_checks import Floats
from fairbits.forward.collect import collect_statistics
from fairbits.models.io.stored_weights import scale_dtype
from fairbits.models.scales.groups import choose_scales, scheme_grid
from fairbits.models.scales.scheme import Scheme, within_rows
from fairbits.quantization.gptq.block_rounding import matrix
from fairbits.quantization.gptq.columns import gptq
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import documents_needed
from fairbits_research.experiments.laboratory import Laboratory, ModelLab
from fairbits_research.experiments.own_thresholds import RELEVANT, is_reduced
from fairbits_research.experiments.result import Answer, Cell, Figure, Result, Series, Table, estimate_text
from fairbits_research.experiments.sharing_costs import (
    InputCosts,
    ModelCosts,
    SharedInput,
    input_costs,
    model_costs,
    shared_inputs,
)
from fairbits_research.theory.sharing import diagonal_bound, mixture_of

NAME = "price-of-sharing"
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
    found = Followed(lab.policy_damage("gptq", BITS), lab.policy_damage("gptq", BITS, mix=mix), model)
    return Result(
        name=NAME,
        title="The price of sharing",
        question="Does one code for all languages serve the worst language better if it follows that language?",
        predicted="Yes: each language has its own best rounding, and what all languages share favours some of them.",
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
        answer=found.answer,
        verdict=(
            f"The mix for the worst language instead of the equal mix changes the damage of the worst language by "
            f"{estimate_text(found.change)} bits per byte, from {estimate_text(found.equal.worst()[1])}; predicted is "
            f"{model.worst.max() / model.equal.max() - 1:+.0%}, and no code of GPTQ's kind can lower it by more than "
            f"{model.room:.0%}: {SAYING[found.answer]}."
        ),
        meaning=_meaning(lab, model),
        tables=(
            _worst_table(lab, found),
            _language_table(lab, model),
            _input_table(lab, costs),
            _check_table(lab, inputs, costs),
        ),
        figure=_figure(costs),
        power=documents_needed({"worst language": found.change}) if found.answer is Answer.UNDECIDED else "",
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
    own = lab.setting
    calibration, evaluation = (
        collect_statistics(
            lab.checkpoint,
            lab.corpus,
            request=request,
            second_moments=True,
            device=own.device,
            progress=lab.report,
        )
        for request in (own.calibration_text, own.evaluation_text)
    )
    weights = lab.checkpoint.architecture.weights
    rounded = {weight.name for block in lab.linear_maps for weight in block}
    steps = {}
    for name in evaluation.linears:
        if name not in rounded or name not in calibration.gradients:
            continue
        W = matrix(lab.checkpoint, weights[name])
        importance = calibration.channels[calibration.seen_by[name]].mean(0)[None]
        scales, _ = choose_scales(W, _scheme(lab), importance=importance, dtype=scale_dtype(lab.checkpoint))
        steps[name] = np.sqrt(scales.double().square().mean(1).numpy())
    squared = {name: np.square(step) for name, step in steps.items()}
    return shared_inputs(calibration, evaluation, squared), steps


def _scheme(lab: ModelLab) -> Scheme:
    return Scheme(BITS, within_rows(lab.setting.group), "exact", "twos", objective="mean", rounding="gptq")


def _meaning(lab: ModelLab, model: ModelCosts) -> str:
    ratio = model.equal / model.own
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


def _worst_table(lab: ModelLab, found: Followed) -> Table:
    model = found.predicted
    rows: list[tuple[Cell, ...]] = []
    measured = {EQUAL: found.equal, WORST: found.worst}
    for what, damage in (("own codes", model.own), (EQUAL, model.equal), (WORST, model.worst)):
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
    return Table(title, columns, tuple(rows))


def _language_table(lab: ModelLab, model: ModelCosts) -> Table:
    numbers = (model.own, model.equal, model.worst, model.equal / model.own, model.mix)
    rows = tuple((code, *map(float, each)) for code, *each in zip(lab.languages, *numbers, strict=True))
    columns = ("language", "own codes", EQUAL, WORST, "equal / own", "weight")
    return Table("Predicted added bits per byte, and the weights of the mix for the worst language", columns, rows)


def _input_table(lab: ModelLab, costs: Sequence[InputCosts]) -> Table:
    rows = tuple(
        (
            each.name.removesuffix(".input"),
            each.columns,
            each.any_code.bound,
            each.price.bound,
            float(each.ratio.mean()),
            float(each.ratio.max()),
            lab.languages[int(each.ratio.argmax())],
        )
        for each in costs
    )
    columns = ("input", "columns", "any code", "GPTQ's kind", "equal mix, mean", "equal mix, worst", "language")
    title = "Cost of one code in units of own codes: bounds for the worst language, and the equal mix"
    return Table(title, columns, rows)


def _check_table(lab: ModelLab, inputs: Sequence[SharedInput], costs: Sequence[InputCosts]) -> Table:
    """Returns the predicted cost of the equal mix relative to own codes next to GPTQ's, in a block in the middle."""
    linears: Mapping[str, str] = {
        f"{weight.sees}.input": weight.name for weight in reversed(lab.linear_maps[lab.n_blocks // 2])
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
    return Table(f"The same ratio measured: codes of GPTQ at {BITS} bits, with their own scales", columns, tuple(rows))


def _measured_ratio(lab: ModelLab, linear: str, one: SharedInput) -> Floats:
    """Returns what GPTQ's code for the equal mix costs every language, relative to GPTQ's code for it alone."""
    W, scheme = matrix(lab.checkpoint, lab.checkpoint.architecture.weights[linear]), _scheme(lab)

    def costs(weights: Floats, languages: Sequence[int]) -> list[float]:
        H = mixture_of(one.calibration, weights)
        scales, _ = choose_scales(W, scheme, importance=np.diag(H)[None], dtype=scale_dtype(lab.checkpoint))
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
        H = mixture_of(one.evaluation, np.full(len(paid.own), 1 / len(paid.own)))
        least = diagonal_bound(W, H, step=np.where(steps[name] > 0, steps[name], 1.0))
        shares.append(least / float(paid.equal.mean() * np.square(steps[name]).sum()))
    return float(np.median(shares))


def _figure(costs: Sequence[InputCosts]) -> Figure:
    x = tuple(range(1, len(costs) + 1))
    lines = {
        "equal mix, worst language": [float(each.ratio.max()) for each in costs],
        "equal mix, mean": [float(each.ratio.mean()) for each in costs],
        "bound, GPTQ's kind": [each.price.bound for each in costs],
        "bound, any code": [each.any_code.bound for each in costs],
    }
    series = tuple(Series(name, x, tuple(y)) for name, y in lines.items())
    return Figure("Cost of one code in units of own codes", "input", "times", series, lines=True, log="y")
