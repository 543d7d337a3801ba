"""Document 004, theorem 1 and its corollary: redundancy of a language as a bound on quantization error."""

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.scales.clip_formulas import banner_gaussian
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.noise import noise
from fairbits_research.claims.claim import Finding, claim, judge
from fairbits_research.claims.claim_evidence import GAUSSIAN, best_alpha, loss, optimum
from fairbits_research.theory.redundancy_theorem import (
    clipping_constant,
    delta_needed,
    disparity_ratio,
    effective_distortion,
    holds_up_to,
    rate_distortion,
    redundancy,
    redundancy_bound,
    taylor_step_holds,
    taylor_step_limit,
    unique_information,
)

_R_HIGH, _R_LOW, _DELTA = 3.8, 1.5, 0.1
"""The redundancies in bits and the δ with which document 004 validates its corollary."""


@claim("004-01")
def redundancy_definition() -> Finding:
    """The redundancy of a language is R = I(X; Y) − H(Y | X, context), from input representation X to output Y."""
    once = redundancy(np.eye(2) / 2)
    twice = redundancy(np.array([[0.5, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.5]]))  # X = (Y, Y)
    channel = np.array([[0.4, 0.1], [0.1, 0.4]])
    copied = np.zeros((2, 2, 2))
    copied[0, 0], copied[1, 1] = channel
    tables = np.random.default_rng(0).dirichlet(np.ones(16), size=1000).reshape(-1, 4, 4)
    values = np.array([redundancy(table) for table in tables])
    return judge(
        bool(twice > once and values.min() >= 0),
        "storing the input twice does not raise it, and it is negative for noisy outputs",
        stored_once=once,
        stored_twice=twice,
        share_of_random_tables_below_zero=float(np.mean(values < 0)),
        least_for_two_outputs=redundancy(np.full((2, 2), 0.25)),
        noisy_channel=redundancy(channel),
        noisy_channel_by_document_000=unique_information(copied),
    )


@claim("004-02")
def redundancy_theorem() -> Finding:
    """Theorem 1: the squared error of quantized weights, for a language of redundancy R, is at most C_b/(R + δ)."""
    error = optimum(GAUSSIAN, 4, "midrise").value
    bounds = [redundancy_bound(R, 4, delta=_DELTA) for R in (_R_HIGH, _R_LOW)]
    limits = {
        f"largest_R_plus_delta_{bits}_bits": holds_up_to(bits, optimum(GAUSSIAN, bits, "midrise").value)
        for bits in (2, 3, 4, 5, 6, 8)
    }
    return judge(
        min(bounds) >= error,
        "the document's own redundancies put the bound below the error of the best 4-bit grid",
        error_of_16_levels=error,
        error_of_15_levels=optimum(GAUSSIAN, 4).value,
        bound_high_resource=bounds[0],
        bound_low_resource=bounds[1],
        **limits,
    )


@claim("004-03")
def gaussian_rate_distortion() -> Finding:
    """The least distortion of a Gaussian at a rate of R bits is D(R) = σ²·2^(−2R)."""
    rate, distortion = _blahut_arimoto(0.25)
    ratios = {
        f"best_grid_over_limit_{bits}_bits": optimum(GAUSSIAN, bits, "midrise").value / rate_distortion(bits)
        for bits in (2, 4, 8)
    }
    agrees = abs(distortion / rate_distortion(rate) - 1) < 0.01
    return judge(
        agrees and min(ratios.values()) >= 1,
        "agrees with the numerical optimum over all channels; it is a lower limit, which no grid of 2^b levels reaches",
        numerical_rate=rate,
        numerical_distortion=distortion,
        formula_at_that_rate=rate_distortion(rate),
        **ratios,
    )


def _blahut_arimoto(target: float) -> tuple[float, float]:
    """Returns rate in bits and distortion of the best channel of a unit Gaussian at slope −1/(2·target)."""
    x: Floats = np.linspace(-5, 5, 201)
    source = np.exp(-(x**2) / 2)
    source /= source.sum()
    squares = (x[:, None] - x) ** 2
    kernel = np.exp(-squares / (2 * target))
    output = np.full(x.size, 1 / x.size)
    for _ in range(500):
        output = output * (source / (kernel @ output) @ kernel)
    channel = kernel * output / (kernel @ output)[:, None]
    joint = source[:, None] * channel
    used = joint > 1e-300
    rate = float((joint[used] * np.log2((channel / joint.sum(axis=0))[used])).sum())
    return rate, float((joint * squares).sum())


@claim("004-04")
def third_step_size() -> Finding:
    """A b-bit quantizer has step 2α/2^b, and at the optimal ACIQ threshold of about 3σ that is 6σ/2^b."""
    alpha = best_alpha(GAUSSIAN, 4, "midrise")
    cost = loss(GAUSSIAN, 4, 3.0, "midrise")
    return judge(
        cost < 0.01 and abs(banner_gaussian(1.0, 4) / 3 - 1) < 0.05,
        "the step fits a grid of 2^b levels, but 3σ is neither the best threshold there nor Banner's",
        step_over_alpha_document_004=2 / 2**4,
        step_over_alpha_document_000=2 / (2**4 - 1),
        step_over_alpha_of_their_quantizer=float(Grid(4).step(1.0)),
        alpha_banner=banner_gaussian(1.0, 4),
        alpha_16_levels=alpha,
        loss_of_3_sigma_16_levels=cost,
        loss_of_3_sigma_15_levels=loss(GAUSSIAN, 4, 3.0),
    )


@claim("004-05")
def constant_of_the_bound() -> Finding:
    """The constant of the bound is C_b = 3σ²·2^(−2b)."""
    same = all(abs((6 / 2**bits) ** 2 / 12 / clipping_constant(bits) - 1) < 1e-12 for bits in range(2, 9))
    ratios = {bits: optimum(GAUSSIAN, bits, "midrise").value / clipping_constant(bits) for bits in (2, 3, 4, 5, 6, 8)}
    at_three = noise(GAUSSIAN, Grid(8, "midrise"), float(Grid(8, "midrise").step(3.0)))
    return judge(
        same,
        "the arithmetic is right; an error that small can be reached at up to 4 bits only",
        condition=max(ratios.values()) > 1,
        **{f"best_error_over_constant_{bits}_bits": ratio for bits, ratio in ratios.items()},
        error_at_3_sigma_over_constant_8_bits=at_three.total / clipping_constant(8),
    )


@claim("004-06")
def redundancy_absorbs_noise() -> Finding:
    """R extra bits divide the distortion D(b) of a b-bit quantizer by 1 + R/b."""
    bits, copies = 4, 3
    grid, step = Grid(bits), optimum(GAUSSIAN, bits).step
    rng = np.random.default_rng(0)
    x = rng.uniform(-6.5, 6.5, 100_000) * step  # inside the range: rounding noise alone
    dither = rng.uniform(-0.5, 0.5, (copies, x.size)) * step
    plain = float(np.mean((grid.quantize(x, step) - x) ** 2))
    dithered = float(np.mean(((grid.quantize(x + dither, step) - dither).mean(axis=0) - x) ** 2))
    equal = float(np.mean((np.tile(grid.quantize(x, step), (copies, 1)).mean(axis=0) - x) ** 2))
    R = float((copies - 1) * bits)
    claimed = effective_distortion(R, bits) / rate_distortion(bits)
    return judge(
        abs(dithered / plain / claimed - 1) < 0.1,
        "true for copies with independent rounding errors, not for equal copies nor for bits spent on precision",
        condition=abs(equal / plain / claimed - 1) > 0.1,
        extra_bits=R,
        claimed_factor=claimed,
        factor_dithered_copies=dithered / plain,
        factor_equal_copies=equal / plain,
        factor_finer_grid=rate_distortion(bits + R) / rate_distortion(bits),
    )


@claim("004-07")
def taylor_step() -> Finding:
    """A Taylor expansion for small R gives 1/(1 + R/b) ≈ b/(b + R) ≤ C_b/(R + δ) with δ = b."""
    widths, values = range(2, 9), (0.0, _R_LOW, _R_HIGH)
    holds = {b: all(taylor_step_holds(R, b, delta=b) for R in values) for b in widths}
    limits = {
        f"largest_R_with_delta_one_tenth_{bits}_bits": taylor_step_limit(bits, delta=_DELTA) for bits in (4, 5, 6, 8)
    }
    return judge(
        all(holds.values()),
        "with δ = b it fails above 3 bits, whatever R is",
        largest_width_with_delta_b=max(b for b in widths if holds[b]),
        left_side_as_written_4_bits=4 / (4 + _R_LOW),
        right_side_as_written_4_bits=redundancy_bound(_R_LOW, 4, delta=4.0),
        **limits,
    )


@claim("004-08")
def disparity_corollary() -> Finding:
    """Corollary: the error of the less redundant language is at least (R₁ + δ)/(R₂ + δ) times the other's."""
    r_high, r_low = 0.8, 0.3
    errors = [optimum(GAUSSIAN, 4, "midrise").value] * 2  # the same weights serve both languages
    bounds = [redundancy_bound(R, 4, delta=_DELTA) for R in (r_high, r_low)]
    claimed = disparity_ratio(r_high, r_low, delta=_DELTA)
    premise = all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    return judge(
        not premise or errors[1] / errors[0] >= claimed,
        "a case in which theorem 1 holds and the corollary does not",
        claimed_least_ratio=claimed,
        true_ratio=errors[1] / errors[0],
        error_of_both=errors[0],
        bound_high_resource=bounds[0],
        bound_low_resource=bounds[1],
    )


@claim("004-09")
def ratio_validation() -> Finding:
    """Validation: redundancies of 3.8 and 1.5 bits predict an error ratio of 2.4, and additional factors explain the
    observed ratio of 4.24."""
    table = published_statistics()
    english, arabic = table.degradation[table.rows("eng", "ara")]
    of_the_proof = disparity_ratio(_R_HIGH, _R_LOW, delta=4.0)
    needed = delta_needed(4.24, _R_HIGH, r_low=_R_LOW)
    return judge(
        abs(of_the_proof / 2.4 - 1) < 0.05 and needed >= 0,
        "the δ of the proof gives 1.4, and no admissible δ gives the observed ratio",
        ratio_with_delta_one_tenth=disparity_ratio(_R_HIGH, _R_LOW, delta=_DELTA),
        ratio_with_delta_of_the_proof=of_the_proof,
        largest_ratio_of_any_delta=disparity_ratio(_R_HIGH, _R_LOW, delta=0.0),
        observed_ratio=4.24,
        delta_needed=needed,
        ratio_in_document_000=float(arabic / english),
    )
