"""Document 002, first half: definitions, the ACIQ framework and its language-aware extension."""

from collections.abc import Iterable

import numpy as np

from fairbits.checks import Floats
from fairbits.claims.claim import Finding, claim, judged
from fairbits.claims.evidence import GAUSSIAN, best_alpha, families, loss, optimum
from fairbits.reference import founding_statistics
from fairbits.theory.clipping.exact import minimax_law
from fairbits.theory.clipping.formulas import kappa_alpha
from fairbits.theory.distributions import Gaussian, GeneralisedGaussian, Mixture, StudentT, Symmetric, Uniform
from fairbits.theory.grid import Grid
from fairbits.theory.language import alpha_by_kappa, separable
from fairbits.theory.moments import Moments, kappa_mixture, kappa_weighted
from fairbits.theory.noise import noise

KAPPA_GLOBAL = 43.0
"""The κ_eff of English and French in the founding table."""

LAYERS = {0: "fixed_direction", 2: "rare_large_state"}
"""Two of the three kinds of layer in 002-02."""


@claim(
    "002-01",
    statement="The kurtosis of a layer's weights is the fourth central moment over σ⁴, less 3.",
    derivation="A definition: κ = E(W − μ)⁴/σ⁴ − 3. It ignores location and scale and is 0 for a Gaussian, 3 for a "
    "Laplace law.",
)
def summary_kurtosis() -> Finding:
    sample = np.random.default_rng(0).laplace(size=2_000_000)
    kappa, moved = Moments.of(sample).kappa, Moments.of(0.02 * sample - 5).kappa
    return judged(
        abs(kappa - 3) < 0.1 and abs(moved - kappa) < 1e-6,
        "a definition; a Laplace sample has κ ≈ 3, whatever its mean and scale",
        kappa_laplace_sample=kappa,
        kappa_after_shift_and_scaling=moved,
    )


@claim(
    "002-02",
    statement="The share of layer l in language λ is the norm ‖h_l(λ)‖ over the sum of the norms of all layers.",
    derivation="A language has many hidden states, so ‖h_l(λ)‖ needs an average, and the documents differ: document "
    "000 takes E‖h‖, this one may be read as ‖E h‖, and error energy follows E‖h‖². On three layers of equal E‖h‖ "
    "(one with a fixed direction, one centred, one with rare large states) the readings give different shares.",
)
def summary_activation_share() -> Finding:
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((3, 4096, 64))
    raw[0] = 0.1 * raw[0] + 1
    raw[2, ::64] *= 30
    states = raw / np.linalg.norm(raw, axis=2).mean(axis=1)[:, None, None]
    norms = np.linalg.norm(states, axis=2)
    shares = {
        "mean_norm": norms.mean(axis=1),
        "norm_of_mean": np.linalg.norm(states.mean(axis=1), axis=1),
        "mean_squared_norm": (norms**2).mean(axis=1),
    }
    shares = {name: value / value.sum() for name, value in shares.items()}
    apart = max(float(np.max(np.abs(share - shares["mean_norm"]))) for share in shares.values())
    return judged(
        apart < 0.02,
        "three readings of one symbol give the same states different shares; each is well defined by itself",
        **{f"share_of_{layer}_layer_by_{name}": s[i] for name, s in shares.items() for i, layer in LAYERS.items()},
    )


@claim(
    "002-03",
    statement="The kurtosis that a language experiences is the activation-weighted mean of the layers' kurtoses.",
    derivation="The kurtosis of Σ ā_l P_l is κ_mix = Σ ā(σ_l⁴/V²)κ_l + 3·Var_ā(σ²)/V² for zero means, V = Σ ā σ_l². "
    "The plain mean is the case of equal σ_l; how wide the three outlier layers of BLOOM-560M are decides what κ_mix "
    "is.",
)
def summary_effective_kurtosis() -> Finding:
    table = founding_statistics()
    kappas = table.kurtosis["BLOOM-560M"]
    share = _english_pattern()
    mixed = {}
    for name, ratio in (("half", 0.5), ("one", 1.0), ("two", 2.0)):
        sigma = np.where(np.isin(np.arange(kappas.size), table.outlier_layers), ratio, 1.0)
        parts = [Moments(1, 0, s**2, 0, kappa) for s, kappa in zip(sigma, kappas, strict=True)]
        mixed[f"kappa_mixture_outlier_layer_sigma_ratio_{name}"] = kappa_mixture(share, parts)
    weighted = kappa_weighted(share, kappas)
    return judged(
        all(abs(value / weighted - 1) < 0.01 for value in mixed.values()),
        "only for layers of equal width; a factor of two in σ changes the mixture's kurtosis severalfold",
        condition=False,
        kappa_weighted=weighted,
        **mixed,
    )


def _english_pattern() -> Floats:
    """Activation over BLOOM-560M's layers: English's share spread over the outlier layers, the rest over the others."""
    table = founding_statistics()
    inside = np.isin(np.arange(table.kurtosis["BLOOM-560M"].size), table.outlier_layers)
    outlier = float(table.outlier_activation[table.rows("eng")[0]])
    pattern: Floats = np.where(inside, outlier / inside.sum(), (1 - outlier) / (~inside).sum())
    return pattern


@claim(
    "002-04",
    statement="The rounding error of the B-bit quantizer is (2α)²/(12(2^B − 1)²).",
    derivation="The quantizer has n = 2^(B−1) − 1 steps per α, so the rounding error is α²/(12n²). A uniform law on "
    "[−α, α] shows it without any approximation: nothing is clipped and the density is flat, so α²/(12n²) is exact "
    "at every width.",
)
def summary_rounding_error() -> Finding:
    law = Uniform()
    alpha = float(np.sqrt(3.0))
    numbers = {}
    for bits in (2, 3, 4, 8):
        exact = noise(law, Grid(bits), float(Grid(bits).step(alpha))).round
        numbers[f"claimed_over_exact_{bits}_bits"] = (2 * alpha) ** 2 / (12 * (2**bits - 1) ** 2) / exact
        numbers[f"corrected_over_exact_{bits}_bits"] = alpha**2 / (12 * Grid(bits).highest ** 2) / exact
    claimed = [value for name, value in numbers.items() if name.startswith("claimed")]
    return judged(
        max(abs(value - 1) for value in claimed) < 1e-6,
        "too small at every width; with the quantizer's own step the formula is exact on a uniform law",
        condition=False,
        **numbers,
    )


@claim(
    "002-05",
    statement="A Gaussian's optimal 4-bit threshold is α*/σ ≈ 2.5 + 0.3·ln(1 + κ).",
    derivation="A Gaussian has κ = 0, where the formula is the constant 2.5 (the optimum is 2.474). With κ ≠ 0 the "
    "law is not a Gaussian, and its optimum depends on its shape: the formula loses little on a t law and much where "
    "the tail is fat but not far.",
)
def summary_gaussian_formula() -> Finding:
    losses = {
        (kappa, name): loss(law, 4, kappa_alpha(1.0, kappa))
        for kappa in (3.0, 20.0, 100.0)
        for name, law in families(kappa).items()
    }
    worst = max(losses.values())
    return judged(
        worst < 0.05,
        "the κ term never acts on a Gaussian, and on laws that have a κ it is no optimum",
        loss_gaussian=loss(GAUSSIAN, 4, kappa_alpha(1.0, 0.0)),
        loss_t_kappa_100=losses[100.0, "t"],
        loss_generalised_gaussian_kappa_100=losses[100.0, "ggd"],
        geometric_mean_loss=np.exp(np.mean(np.log1p(list(losses.values())))) - 1,
        largest_loss=worst,
    )


@claim(
    "002-06",
    statement="Without regard to language, α* is σ times a function of the global kurtosis and the bit width.",
    derivation="Laws of equal σ and equal κ have different optima, so no function f(κ, B) yields α*. Even the best "
    "single answer at κ = 43, chosen to minimise the worst relative error over the families, costs its worst family "
    "two fifths more error. The right answer is the minimiser of the error of the weights themselves.",
)
def summary_blind_threshold() -> Finding:
    laws = list(families(KAPPA_GLOBAL).values())
    alphas = [best_alpha(law, 4) for law in laws]
    shared = minimax_law(laws, Grid(4), relative=True)
    return judged(
        shared.worst - 1 < 0.05,
        "no function of σ and κ, whatever its form, is close to optimal for all laws of one σ and one κ",
        smallest_alpha=min(alphas),
        largest_alpha=max(alphas),
        alpha_of_least_worst_loss=float(Grid(4).alpha(shared.step)),
        least_worst_loss=shared.worst - 1,
        loss_of_the_formula=max(loss(law, 4, kappa_alpha(1.0, KAPPA_GLOBAL)) for law in laws),
    )


@claim(
    "002-07",
    statement="A language's optimal threshold is σ·f(κ_eff(λ), B).",
    derivation="Where layers share a threshold, the optimum is that of the mixture Σ ā_l P_l, which neither a global "
    "σ nor κ_eff determines: two Gaussian layers have κ_eff = 0 for every language, yet the languages' optima "
    "differ. Where each layer has its own threshold, D(λ) = Σ ā_l f_l(α_l) is least at argmin f_l for every language "
    "at once. What can differ is the importance of single weights inside a block, E_λ[x_j²], and κ_eff plays no part "
    "in that.",
)
def summary_language_threshold() -> Finding:
    layers, patterns = [Gaussian(1.0), Gaussian(3.0)], ([0.9, 0.1], [0.1, 0.9])
    sigma = Mixture(layers, [0.5, 0.5]).moments.sigma
    numbers = {}
    for name, pattern in zip(("first", "second"), patterns, strict=True):
        law = Mixture(layers, pattern)
        formula = alpha_by_kappa(sigma, pattern, kappa=[0.0, 0.0])
        own_sigma = alpha_by_kappa(law.moments.sigma, pattern, kappa=[0.0, 0.0])
        numbers[f"alpha_formula_{name}_language"] = formula
        numbers[f"alpha_exact_{name}_language"] = best_alpha(law, 4)
        numbers[f"loss_{name}_language"] = loss(law, 4, formula)
        numbers[f"loss_with_its_own_sigma_{name}_language"] = loss(law, 4, own_sigma)
    own, shared = separable(layers, patterns, grid=Grid(4))
    losses = [value for key, value in numbers.items() if key.startswith("loss")]
    return judged(
        max(losses) < 0.05,
        "languages of equal κ_eff need different thresholds; with a threshold per layer the language does not matter",
        condition=False,
        **numbers,
        error_with_own_thresholds_per_layer=float(np.mean(own)),
        error_with_best_shared_threshold=float(np.mean(shared)),
    )


@claim(
    "002-08",
    statement="What a foreign threshold costs a language grows as (κ_eff(λ) − κ_global)².",
    derivation="Within one smooth family the excess is ½f″(α*)σ²g′(κ)²(Δκ)² for small Δκ, because α* = σg(κ) is a "
    "minimum. Since g flattens like ln(1 + κ), the constant falls by orders of magnitude away from κ_global = 43; "
    "the square of ln((1 + κ)/(1 + κ_global)) follows the excess better. Between families κ does not determine it at "
    "all.",
)
def summary_quadratic_excess() -> Finding:
    near, far = (42.0, 44.0), (1.0, 3.0, 10.0, 20.0, 30.0, 60.0, 100.0, 160.0)
    laws: dict[str, type[StudentT] | type[GeneralisedGaussian]] = {
        "t": StudentT,
        "generalised_gaussian": GeneralisedGaussian,
    }
    numbers = {}
    for name, family in laws.items():
        alpha = best_alpha(family.with_kappa(KAPPA_GLOBAL), 4)
        excess = {kappa: _excess(family.with_kappa(kappa), alpha) for kappa in near + far}
        square = {kappa: value / (kappa - KAPPA_GLOBAL) ** 2 for kappa, value in excess.items()}
        log = {kappa: value / np.log((1 + kappa) / (1 + KAPPA_GLOBAL)) ** 2 for kappa, value in excess.items()}
        numbers[f"constant_varies_near_43_{name}"] = _fold(square[kappa] for kappa in near)
        numbers[f"constant_varies_from_1_to_160_{name}"] = _fold(square[kappa] for kappa in far)
        numbers[f"log_constant_varies_from_1_to_160_{name}"] = _fold(log[kappa] for kappa in far)
    local = max(value for key, value in numbers.items() if "near" in key)
    wide = max(value for key, value in numbers.items() if key.startswith("constant_varies_from"))
    return judged(
        local < 1.2, "true for small differences inside one family of laws only", condition=wide > 2, **numbers
    )


def _excess(law: Symmetric, alpha: float) -> float:
    return loss(law, 4, alpha) * optimum(law, 4).value


def _fold(values: Iterable[float]) -> float:
    """Largest over smallest."""
    numbers = list(values)
    return max(numbers) / min(numbers)
