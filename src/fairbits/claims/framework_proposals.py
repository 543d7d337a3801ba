"""Document 000, sections 4 to 8: per-language thresholds, the options, the disparity conjecture, the advice."""

import numpy as np
from scipy.interpolate import CubicSpline

from fairbits.checks import Floats
from fairbits.claims.claim import Finding, claim, judged, needs_model
from fairbits.claims.evidence import GAUSSIAN, best_alpha, families, loss, optimum, random_patterns
from fairbits.reference import founding_statistics
from fairbits.theory.allocation import block_bytes
from fairbits.theory.bounds import conjecture_bound, disparity
from fairbits.theory.clipping.blocks import clip_blocks
from fairbits.theory.clipping.exact import clip_law
from fairbits.theory.clipping.formulas import banner_gaussian, kappa_alpha
from fairbits.theory.distributions import Gaussian, GeneralisedGaussian, Mixture, StudentT
from fairbits.theory.grid import Grid
from fairbits.theory.language import alpha_by_kappa
from fairbits.theory.moments import kappa_weighted
from fairbits.theory.noise import mse
from fairbits.theory.refit import loss_curves, refit


@claim(
    "000-21",
    statement="Banner's result is α* = σ·(c_B + d_B·log(1 + κ)), with c_4 = 2.5 and d_4 = 0.3.",
    derivation="Banner treats Gaussian and Laplace laws and never uses κ. Over t, generalised Gaussian and "
    "scale-mixture laws with κ from 0 to 200 the constants lose 17 % of error on average at 4 bits "
    "and far more elsewhere; at one κ the best α differs severalfold between families, so no "
    "constants can be right. The formula is undefined for κ ≤ −1 (a uniform law has −1.2).",
)
def kappa_formula() -> Finding:
    numbers = {}
    for bits in (3, 4, 6):
        curves = loss_curves(bits)
        losses, refitted = curves.losses(2.5, 0.3), curves.losses(*refit(curves))
        numbers[f"mean_loss_{bits}_bits"] = np.exp(np.log(losses).mean()) - 1
        numbers[f"mean_loss_refitted_{bits}_bits"] = np.exp(np.log(refitted).mean()) - 1
        if bits == 4:
            numbers["worst_ratio_4_bits"] = losses.max()
    return judged(
        numbers["mean_loss_4_bits"] < 0.02,
        "not Banner's, tolerable at 4 bits only; refitted constants still lose",
        **numbers,
    )


@claim(
    "000-22",
    statement="The best threshold of language λ is σ_global·f(κ_eff(λ)).",
    derivation="The right scale is the σ of the language's own mixture, the right shape is the whole mixture, "
    "and what a language feels is Σ h_j(w_j − Q(w_j))² with its own importance h. Over random layers "
    "the formula's threshold loses error that an exact search does not.",
)
def proposition_one() -> Finding:
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(60):
        kappas = rng.choice([0.5, 1.0, 3.0, 20.0, 100.0], size=4)
        parts = [
            GeneralisedGaussian.with_kappa(kappa, sigma=sigma)
            for kappa, sigma in zip(kappas, rng.lognormal(0, 0.5, 4), strict=True)
        ]
        pattern = random_patterns(rng, 1, 4)[0]
        everyone = Mixture(parts, np.ones(4)).moments.sigma
        alpha = alpha_by_kappa(everyone, pattern, kappa=kappas)
        law = Mixture(parts, pattern)
        best = clip_law(law, Grid(4), tolerance=1e-6).value
        losses.append(float(mse(law, Grid(4), alpha / 7)) / best)
    ratio = np.array(losses)
    return judged(
        float(np.exp(np.log(ratio).mean())) < 1.02,
        "neither the scale nor the shape is right; the exact optimum of the mixture is cheap to compute",
        mean_loss=np.exp(np.log(ratio).mean()) - 1,
        worst_ratio=ratio.max(),
        cases=len(losses),
    )


@claim(
    "000-23",
    statement="Calibrating for each language (option A) costs O(|Λ|) calibration passes.",
    derivation="True of the passes. But every language then needs its own codes: |Λ| copies of the quantized "
    "weights, or one compromise.",
)
def option_a() -> Finding:
    languages = len(founding_statistics().languages)
    one = block_bytes([2**20], [2**13], bits=[4])[0, 0]
    full = block_bytes([2**20], [0], bits=[16])[0, 0]
    return judged(
        True,
        "the passes are linear in the languages, but so is the memory: the copies outgrow the unquantized model",
        condition=languages * one > full,
        copies_over_one_copy=languages,
        copies_over_16_bit_model=languages * one / full,
    )


@claim(
    "000-24",
    statement="Giving outlier layers more bits (option B) costs nothing at run time.",
    derivation="Decoding is bound by bytes read. Three of 24 equal layers at 8 bits instead of 4 make the "
    "weights 12.5 % larger and the memory-bound part of decoding as much slower.",
)
def option_b() -> Finding:
    layers = np.full(24, 2**20)
    sizes = block_bytes(layers, layers // 128, bits=[4, 8])
    mixed = sizes[:21, 0].sum() + sizes[21:, 1].sum()
    return judged(
        mixed <= sizes[:, 0].sum(),
        "more bytes are read for every token",
        mean_bits=(21 * 4 + 3 * 8) / 24,
        bytes_added=float(mixed / sizes[:, 0].sum() - 1),
    )


@claim(
    "000-25",
    statement="The threshold can be switched per request by language detection and a table lookup (option C).",
    derivation="Stored codes embed the threshold: for fixed codes k only the scale may change, best at s_λ = "
    "⟨w,k⟩_λ/⟨k,k⟩_λ. Where importance differs extremely between languages (independent log-normal, "
    "groups of 128), that recovers about a quarter of what own codes would.",
)
def option_c() -> Finding:
    rng, grid = np.random.default_rng(0), Grid(4)
    W, H = rng.standard_normal((500, 128)), rng.lognormal(0, 1.5, (4, 128))
    shared = clip_blocks(W, grid, importance=(H / H.sum(axis=1, keepdims=True)).sum(axis=0)).step
    codes = grid.codes(W, shared)
    switched, own = [], []
    for h in H:
        base = (W - codes * shared) ** 2 @ h
        scale = (W * codes) @ h / ((codes * codes) @ h)
        switched.append(np.mean((W - codes * scale[:, None]) ** 2 @ h / base))
        own.append(np.mean(clip_blocks(W, grid, importance=h).error[:, 0] / base))
    return judged(
        np.mean(switched) <= np.mean(own) * 1.01,
        "a lookup can switch the scale but not the codes, and so wins only a fraction of the gain",
        gain_of_switching_the_scale=1 - np.mean(switched),
        gain_of_own_codes=1 - np.mean(own),
    )


@claim(
    "000-26",
    statement="Disparity is the largest minus the smallest damage over languages.",
    derivation="A definition. Noise alone makes it positive: the range of 14 independent estimates is biased "
    "upward by 3.41 standard errors.",
)
def disparity_definition() -> Finding:
    table = founding_statistics()
    noise = np.random.default_rng(0).standard_normal((200_000, 14))
    return judged(
        True,
        "a definition; a biased one, to be corrected for noise",
        disparity_of_the_table=disparity(table.degradation),
        range_of_14_equal_languages_in_standard_errors=float(np.ptp(noise, axis=1).mean()),
    )


@claim(
    "000-27",
    statement="Conjecture 1: disparity is at most C times the standard deviation of κ_eff over languages.",
    derivation="Two Gaussian layers of different variance have κ_eff = 0 for every language, so the bound is 0 "
    "for any C, yet languages that lean on different layers suffer different errors. The valid bound "
    "is TV(ā, ā')·(max_l m_l − min_l m_l).",
)
def conjecture_one() -> Finding:
    layers, patterns = [Gaussian(0.01), Gaussian(0.03)], np.array([[0.9, 0.1], [0.1, 0.9]])
    bound = conjecture_bound([kappa_weighted(pattern, [0.0, 0.0]) for pattern in patterns], 1e6)
    step = clip_law(Mixture(layers, patterns[0]), Grid(4)).step
    shared = patterns @ np.array([float(mse(layer, Grid(4), step)) for layer in layers])
    own = np.array([clip_law(Mixture(layers, pattern), Grid(4)).value for pattern in patterns])
    return judged(
        disparity(shared) <= bound,
        "a counterexample has no kurtosis at all and yet a disparity",
        bound_with_C_of_a_million=bound,
        disparity_with_the_first_languages_threshold=disparity(shared),
        disparity_with_own_thresholds=disparity(own),
    )


@claim(
    "000-28",
    statement="With Var[κ_eff] = 5.1 and C = 0.009 the conjecture predicts the observed disparity of 0.020.",
    derivation="One constant fitted to one number always fits. And the variance is not 5.1 on either version of "
    "the data.",
)
def conjecture_check() -> Finding:
    table = founding_statistics()
    four = table.kappa_weighted[table.rows("eng", "fra", "hin", "ara")]
    variances = {
        "variance_four_rows": float(np.var(four)),
        "variance_four_rows_unbiased": float(np.var(four, ddof=1)),
        "variance_fourteen": float(np.var(table.kappa_weighted)),
        "variance_fourteen_unbiased": float(np.var(table.kappa_weighted, ddof=1)),
    }
    return judged(
        any(abs(value - 5.1) < 0.05 for value in variances.values()),
        "circular, and its variance is found in no version of the table",
        condition=False,
        **variances,
    )


@claim(
    "000-29",
    statement="Penalising uneven layer use during training lowers the disparity after quantization.",
    derivation="A proposal for an experiment; nothing in the documents tests it.",
)
def uniform_training() -> Finding:
    return needs_model("a training experiment decides it", command="fairbits research training-data")


@claim(
    "000-30",
    statement="Per-language thresholds lower the disparity.",
    derivation="They lower every language's error, but not equally: where the better-off language gains more, "
    "max − min grows. Random layers and patterns show both.",
)
def own_thresholds_lower_disparity() -> Finding:
    before, after = disparity_before_and_after(cases=2000)
    return judged(
        bool((after <= before * (1 + 1e-9)).all()),
        "every language improves, the gap often grows",
        share_of_cases_where_disparity_grows=float(np.mean(after > before * (1 + 1e-9))),
        cases=len(before),
    )


def disparity_before_and_after(cases: int) -> tuple[Floats, Floats]:
    """Returns disparity with one shared threshold and with one per language, for random Gaussian layers at 4 bits."""
    rng = np.random.default_rng(0)
    ratios = np.geomspace(0.05, 60, 400)
    unit = CubicSpline(np.log(ratios), np.log(mse(GAUSSIAN, Grid(4), ratios / 7)))
    alphas = np.geomspace(0.1, 60, 400)
    before, after = np.empty(cases), np.empty(cases)
    for case in range(cases):
        sigma = rng.lognormal(0, 0.7, size=4)
        errors = sigma[:, None] ** 2 * np.exp(unit(np.log(np.clip(alphas / sigma[:, None], 0.05, 60))))
        damage = random_patterns(rng, 3, 4) @ errors
        before[case] = disparity(damage[:, np.argmin(damage.mean(axis=0))])
        after[case] = disparity(damage.min(axis=1))
    return before, after


@claim(
    "000-31",
    statement="A language's risk can be assessed from κ_eff before quantizing.",
    derivation="At one κ the optimal error differs severalfold between laws, and the threshold shift between the"
    " documents' extreme languages (κ_eff 43 and 37.5) changes the error by a quarter of a percent at"
    " most: nothing like a fivefold damage.",
)
def risk_by_kurtosis() -> Finding:
    at_20 = [optimum(law, 4).value for law in families(20.0).values()]
    shift = kappa_alpha(1.0, 43.0) - kappa_alpha(1.0, 37.5)
    excess = []
    for make in (StudentT.with_kappa, GeneralisedGaussian.with_kappa):
        law = make(37.5)
        excess.append(loss(law, 4, best_alpha(make(43.0), 4)))
    return judged(
        max(excess) > 0.5 or max(at_20) / min(at_20) < 1.05,
        "κ fixes neither the error nor, through the threshold, any visible part of a fivefold gap",
        error_spread_at_kappa_20=max(at_20) / min(at_20),
        threshold_shift_in_sigma=shift,
        excess_t=excess[0],
        excess_ggd=excess[1],
    )


@claim(
    "000-32",
    statement="In short, α* = f(κ) for standard and α*(λ) = f(κ_eff) for language-aware clipping.",
    derivation="σ is missing: thresholds scale with the weights, α*(t·w) = t·α*(w). With σ restored, 000-21 and "
    "000-22 apply.",
)
def summary_formula() -> Finding:
    one, two = best_alpha(Gaussian(1.0), 4), best_alpha(Gaussian(2.0), 4)
    return judged(
        abs(two - one) < 1e-9,
        "two laws of the same κ, one twice as wide, need thresholds twice apart",
        alpha_sigma_1=one,
        alpha_sigma_2=two,
    )


CITATIONS = {
    "Banner 2019": ("Banner, Nahshan, Soudry, NeurIPS 2019, arXiv 1810.05723", True),
    "Chmiel 2025": ("Fishman, Chmiel, Banner, Soudry, ICLR 2025: the first author is Fishman", False),
    "Marchisio 2023": (
        "Marchisio et al., Findings of EMNLP 2024, arXiv 2407.03211; the title given is MiniCPM-V's",
        False,
    ),
    "Soudry 2018": (
        "Soudry et al., JMLR 2018: exists, on the implicit bias of gradient descent, unrelated to clipping",
        False,
    ),
}
"""Each reference of document 000, what it should say, and whether it is right and to the point."""


@claim(
    "000-33",
    statement="The four references support the framework.",
    derivation="Banner, Nahshan, Soudry (NeurIPS 2019, arXiv 1810.05723) covers Gaussian and Laplace laws only. "
    "The FP8 paper's first author is Fishman (ICLR 2025). The disparity study is Marchisio et al., "
    "Findings of EMNLP 2024, arXiv 2407.03211; the title given belongs to MiniCPM-V (arXiv "
    "2408.01800). The fourth exists and is about something else.",
)
def references() -> Finding:
    right = sum(correct for _, correct in CITATIONS.values())
    return judged(
        right == len(CITATIONS),
        "one of the four is right and relevant, and its 4-bit Gaussian constant is the only one it gives",
        references=len(CITATIONS),
        right_and_relevant=right,
        banner_gaussian_4_bits=banner_gaussian(1.0, 4),
    )
