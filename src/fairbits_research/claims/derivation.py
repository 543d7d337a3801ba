"""Document 003: the quantization operator, objectives, the effective distribution, and derivations it leaves open."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from fairbits.core.array_checks import Floats
from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits_research.claims.claim import Finding, claim, judge
from fairbits_research.claims.claim_evidence import (
    GAUSSIAN,
    PAIR,
    PAIR_PATTERNS,
    layer_errors,
    loss,
    optima_at_kappa,
    optimum,
    random_patterns,
)
from fairbits_research.theory.bounds import alpha_limit, disparity, own_optimum_bound, tv_bound
from fairbits_research.theory.clip_distribution import SharedStep, clip_distribution, minimax_distribution
from fairbits_research.theory.distributions import (
    Distribution,
    Gaussian,
    GaussianScaleMixture,
    Laplace,
    Mixture,
    Uniform,
)
from fairbits_research.theory.effective_kurtosis import sample_moments
from fairbits_research.theory.noise import additive_mse, mse
from fairbits_research.theory.threshold_formulas import additive_alpha, kappa_alpha, noise_constant
from fairbits_research.theory.thresholds import alpha_by_mixture, families, separable

BITS = (2, 3, 4, 8)


@claim("003-01")
def notation() -> Finding:
    """Excess kurtosis is at least −2, and the activation of a layer lies in [0, 1]."""
    rng = np.random.default_rng(0)
    lowest = min(sample_moments(rng.beta(0.05 + i / 20, 0.05 + i / 20, 1000)).kappa for i in range(200))
    norms = np.linalg.norm(rng.standard_normal((24, 1024)), axis=1)
    shares = norms / norms.sum()
    coin = sample_moments([-1.0, 1.0]).kappa
    return judge(
        min(coin, lowest) >= -2 - 1e-9 and float(shares.max()) <= 1,
        "the limit on κ is right and attained; only the normalised activation stays within [0, 1]",
        condition=bool(norms.max() > 1),
        kappa_of_a_coin=coin,
        lowest_kappa_of_200_samples=lowest,
        largest_norm_of_1024_unit_activations=norms.max(),
        largest_normalised_share=shares.max(),
    )


@claim("003-02")
def quantization_operator() -> Finding:
    """Q_α clips to [−α, α] and rounds to the nearest of the levels kα/n, n = 2^(B−1) − 1."""
    x = np.random.default_rng(0).normal(0, 1.5, 100_000)
    differ = moved = 0
    largest = 0.0
    for bits in BITS:
        n = 2 ** (bits - 1) - 1
        step = 2.0 / n
        written = np.round(np.clip(x, -2.0, 2.0) / 2.0 * n) * step
        ours = Grid(bits).quantize(x, step)
        differ += int(np.sum(np.abs(written - ours) > 1e-9))
        moved += int(np.sum(np.abs(Grid(bits).quantize(ours, step) - ours) > 1e-9))
        largest = max(largest, float(np.max(np.abs(x - ours)[np.abs(x) <= 2.0])) / step)
    return judge(
        differ == moved == 0 and largest <= 0.5 + 1e-9,
        "the operator as written is the symmetric grid",
        samples_at_each_of_four_widths=x.size,
        samples_on_another_level_than_written=differ,
        samples_moved_by_quantizing_twice=moved,
        largest_error_inside_in_steps=largest,
    )


@claim("003-03")
def number_of_levels() -> Finding:
    """Q_α maps [−α, α] onto 2^B levels."""
    x = np.linspace(-1.1, 1.1, 100_001)
    levels = {bits: len(np.unique(Grid(bits).codes(x, 1 / Grid(bits).highest))) for bits in BITS}
    return judge(
        all(count == 2**bits for bits, count in levels.items()),
        "one level fewer at every width",
        **{f"levels_{bits}_bits": count for bits, count in levels.items()},
    )


@claim("003-04")
def step_size() -> Finding:
    """The step of Q_α is 2α/(2^B − 1)."""
    x = np.linspace(-1.1, 1.1, 100_001)
    ratios = {}
    for bits in BITS:
        gaps = np.diff(np.unique(Grid(bits).quantize(x, Grid(bits).step(1.0))))
        ratios[f"claimed_over_measured_{bits}_bits"] = 2 / (2**bits - 1) / float(gaps.mean())
    return judge(
        max(abs(ratio - 1) for ratio in ratios.values()) < 1e-3,
        "too small at every width, by a third at 2 bits",
        **ratios,
    )


@claim("003-05")
def symmetry() -> Finding:
    """Q_α is symmetric about 0."""
    x = np.random.default_rng(0).normal(0, 1.5, 100_000)
    off, twos = (
        float(np.max(np.abs(grid.quantize(-x, 0.25) + grid.quantize(x, 0.25)))) for grid in (Grid(4), Grid(4, "twos"))
    )
    return judge(
        off == 0,
        "exactly odd, unlike the two's complement grid",
        largest_asymmetry=off,
        largest_asymmetry_of_twos_complement=twos,
    )


@claim("003-06")
def blind_objective() -> Finding:
    """α* is the threshold that minimises the expected squared error E(X − Q_α(X))²."""
    laws = [GAUSSIAN, Laplace(), Uniform(), *families(20.0).values()]
    gaps = [optimum(law, bits).gap for law in laws for bits in BITS]
    n = Grid(4).highest
    coin = [float(np.abs(Grid(4).quantize([1.0], 1 / k) - 1.0).max()) for k in range(1, n + 1)]
    alphas = np.geomspace(0.3, 20.0, 2000)
    errors = mse(GaussianScaleMixture.with_kappa(100.0, epsilon=0.01), Grid(2), Grid(2).step(alphas))
    low = np.flatnonzero((errors[1:-1] < errors[:-2]) & (errors[1:-1] < errors[2:])) + 1
    return judge(
        max(gaps) < 1e-8,
        "well posed as a minimum, though more than one threshold may attain it",
        searches=len(gaps),
        searches_certified_to_eight_digits=sum(gap < 1e-8 for gap in gaps),
        thresholds_without_error_for_a_coin=sum(error < 1e-12 for error in coin),
        local_minima_of_a_wide_tailed_law=low.size,
        alpha_of_its_first_minimum=alphas[low[0]],
        error_of_its_first_minimum=errors[low[0]],
        alpha_of_its_last_minimum=alphas[low[-1]],
        error_of_its_last_minimum=errors[low[-1]],
    )


@claim("003-07")
def language_objective() -> Finding:
    """Each language has its own optimal threshold, the minimiser of the expected squared error under P_λ."""
    alphas = [alpha_by_mixture(PAIR, pattern, grid=Grid(4)) for pattern in PAIR_PATTERNS]
    separate, shared = separable(PAIR, PAIR_PATTERNS, grid=Grid(4))
    return judge(
        abs(alphas[0] / alphas[1] - 1) > 0.01,
        "languages differ in α* only where layers share one threshold",
        condition=bool((separate < shared).all()),
        shared_alpha_best_for_first_language=alphas[0],
        shared_alpha_best_for_second_language=alphas[1],
        error_of_shared_over_separate_alphas_first_language=shared[0] / separate[0],
        error_of_shared_over_separate_alphas_second_language=shared[1] / separate[1],
    )


@claim("003-08")
def effective_distribution() -> Finding:
    """A language experiences the mixture of the layers' weight distributions, weighted by normalised activation."""
    rng = np.random.default_rng(0)
    sigma, rows, rms = np.array([1.0, 0.3]), np.array([64, 512]), np.array([1.0, 4.0])
    weights = [s * rng.standard_normal((r, 256)) for s, r in zip(sigma, rows, strict=True)]
    inputs = [scale * rng.standard_normal((256, 2000)) for scale in rms]
    energy = [np.tile((x**2).mean(axis=1), len(w)) for w, x in zip(weights, inputs, strict=True)]
    flat = np.concatenate([w.ravel() for w in weights])
    best = _output_error(weights, inputs, clip_sample(flat, Grid(4), importance=np.concatenate(energy)).step)
    loss, share = {}, {}
    for name, pattern in {"norms": rms, "energy_and_size": rms**2 * rows}.items():
        step = clip_distribution(Mixture([Gaussian(float(s)) for s in sigma], pattern), Grid(4)).step
        loss[name] = _output_error(weights, inputs, step) / best - 1
        share[name] = float(pattern[1] / pattern.sum())
    return judge(
        loss["energy_and_size"] < 0.01,
        "right with shares of squared activation times size, not with shares of norms",
        condition=loss["norms"] > 0.05,
        loss_of_the_threshold_by_norms=loss["norms"],
        loss_of_the_threshold_by_energy_and_size=loss["energy_and_size"],
        share_of_the_second_layer_by_norms=share["norms"],
        share_of_the_second_layer_by_energy_and_size=share["energy_and_size"],
    )


def _output_error(weights: list[Floats], inputs: list[Floats], step: float) -> float:
    """Returns the squared error of the layers' outputs, measured on the inputs."""
    return float(sum(np.sum(((w - Grid(4).quantize(w, step)) @ x) ** 2) for w, x in zip(weights, inputs, strict=True)))


@claim("003-09")
def closed_form() -> Finding:
    """The optimal threshold has a closed form in the parameters of the distribution."""
    law = Laplace(sigma=float(np.sqrt(2)))
    constants = {bits: noise_constant(bits, "banner") for bits in (2, 3, 4, 5, 6, 8)}
    forms = {bits: law.laplace_b * float(lambertw(1 / c).real) for bits, c in constants.items()}
    agree = sum(abs(forms[bits] / additive_alpha(law, c) - 1) < 1e-9 for bits, c in constants.items())
    mixture = Mixture([Laplace(1.0), Laplace(3.0)], [0.5, 0.5])
    root = additive_alpha(mixture, constants[4])
    formula = banner_laplace(Laplace(2.0).laplace_b, 4)
    return judge(
        agree == len(forms) and abs(_mean_excess(mixture, root) / (constants[4] * root) - 1) < 1e-9,
        "closed for a Laplace law; a mixture needs a root, which Newton finds",
        condition=abs(formula / root - 1) > 0.01,
        widths_tried=len(forms),
        widths_at_which_the_form_is_the_root=agree,
        **{f"alpha_in_b_{bits}_bits": form for bits, form in forms.items()},
        alpha_of_a_mixture_of_two_laplace_laws=root,
        laplace_form_at_their_mean_b=formula,
    )


@claim("003-10")
def kappa_is_key() -> Finding:
    """κ_eff is the statistic on which a language's optimal threshold depends."""
    numbers, spread = {}, []
    for kappa in (3.0, 20.0, 100.0):
        alphas, errors = optima_at_kappa(kappa)
        spread.append(max(alphas) / min(alphas))
        numbers[f"smallest_alpha_kappa_{kappa:g}"], numbers[f"largest_alpha_kappa_{kappa:g}"] = min(alphas), max(alphas)
        numbers[f"upper_limit_of_alpha_kappa_{kappa:g}"] = alpha_limit(kappa, noise_constant(4))
        numbers[f"largest_over_smallest_error_kappa_{kappa:g}"] = max(errors) / min(errors)
    return judge(
        max(spread) < 1.05,
        "laws of equal σ and equal kurtosis have very different optimal thresholds and errors",
        **numbers,
    )


@claim("003-11")
def disparity_bound() -> Finding:
    """The gap between the worst and the best language has an upper bound that can be derived."""
    rng = np.random.default_rng(0)
    _, errors = layer_errors()
    broken, tightness = 0, []
    for _ in range(2000):
        table = errors[rng.choice(len(errors), int(rng.integers(2, 9)), replace=False)]
        p, q = random_patterns(rng, 2, len(table))
        damage = np.array([p, q]) @ table
        at_p, at_q = damage.argmin(axis=1)
        common = table[:, rng.integers(table.shape[1])]
        bound, gap = tv_bound(p, q, errors=common), disparity([p @ common, q @ common])
        separate = own_optimum_bound(p, q, errors_p=table[:, at_p], errors_q=table[:, at_q])
        broken += gap > bound * (1 + 1e-9) or disparity(damage.min(axis=1)) > separate * (1 + 1e-9)
        tightness.append(gap / bound)
    return judge(
        broken == 0 and max(tightness) > 1 - 1e-9,
        "the total variation bound follows in one line, holds in every random case and is attained",
        random_cases=len(tightness),
        violations=broken,
        median_gap_over_bound=float(np.median(tightness)),
        largest_gap_over_bound=max(tightness),
    )


@claim("003-12")
def optimality_conditions() -> Finding:
    """The problem of one threshold for all languages has optimality conditions of the Karush–Kuhn–Tucker kind."""
    rng = np.random.default_rng(0)
    cases = [_random_languages(rng) for _ in range(20)]
    additive = [_minimax_twice(languages, relative=i % 2 == 0) for i, languages in enumerate(cases)]
    exact = [minimax_distribution(languages, Grid(4), relative=True) for languages in cases[:3]]
    better = sum(_scan_beats(languages, shared) for languages, shared in zip(cases, exact, strict=False))
    agree = sum(abs(mixed / direct - 1) < 1e-5 for direct, mixed, _ in additive)
    stationary = sum(shared.stationarity < 1e-4 and shared.gap < 1e-8 for shared in exact)
    return judge(
        agree == len(additive) and stationary == len(exact) and better == 0,
        "multipliers of at most two languages reproduce every optimum, and no other threshold is better",
        cases_additive_model=len(additive),
        cases_where_search_and_multipliers_agree=agree,
        cases_with_one_active_language=sum(active == 1 for *_, active in additive),
        cases_with_two_active_languages=sum(active == 2 for *_, active in additive),
        cases_exact_grid=len(exact),
        cases_exact_grid_stationary_and_certified=stationary,
        cases_exact_grid_where_a_scan_found_better=better,
    )


def _minimax_twice(languages: list[Distribution], *, relative: bool) -> tuple[float, float, int]:
    """Returns the additive model's minimax α by search and by mixture of its multipliers, and how many are active."""
    c = noise_constant(4)
    separate = [additive_alpha(law, c) for law in languages]
    best = np.array([float(additive_mse(law, a, c)) for law, a in zip(languages, separate, strict=True)])
    scale = 1 / best if relative else np.ones(len(languages))

    def damages(alpha: float) -> Floats:
        values: Floats = scale * np.array([float(additive_mse(law, alpha, c)) for law in languages])
        return values

    def worst(alpha: float) -> float:
        return float(damages(alpha).max())

    least = minimize_scalar(worst, bounds=(min(separate), max(separate)), method="bounded", options={"xatol": 1e-9})
    alpha = float(least.x)
    second, first = np.argsort(damages(alpha))[-2:]
    if damages(alpha)[second] < damages(alpha)[first] * (1 - 1e-7):
        return alpha, separate[first], 1
    slope = scale * [c * alpha - _mean_excess(law, alpha) for law in languages]
    weights = np.zeros(len(languages))
    weights[[first, second]] = np.abs(slope[[second, first]]) * scale[[first, second]]
    return alpha, additive_alpha(Mixture(languages, weights), c), 2


def _mean_excess(law: Distribution, alpha: float) -> float:
    """Returns E(|X| − α)₊."""
    p, first, _ = (float(tail) for tail in law.beyond(alpha))
    return first - alpha * p


def _scan_beats(languages: list[Distribution], shared: SharedStep) -> bool:
    """Returns whether a step of a fine scan is better for the worst language, on the exact grid."""
    steps = shared.step * np.geomspace(0.2, 5.0, 400)
    worst = np.max([mse(law, Grid(4), steps) / optimum(law, 4).value for law in languages], axis=0)
    return bool(worst.min() < shared.worst * (1 - 1e-7))


def _random_languages(rng: np.random.Generator) -> list[Distribution]:
    """Returns four languages as mixtures of a Gaussian, a Laplace and an outlier layer of random σ."""
    sigma = rng.lognormal(0.0, 0.7, 3)
    outliers = GaussianScaleMixture.with_kappa(20.0, epsilon=0.01, sigma=sigma[2])
    layers = [Gaussian(sigma[0]), Laplace(sigma[1]), outliers]
    return [Mixture(layers, pattern) for pattern in random_patterns(rng, 4, 3)]


@claim("003-13")
def attributed_theorem() -> Finding:
    """Banner et al. (2019) prove that a Gaussian's optimal INT4 threshold is 2.5 + 0.3·ln(1 + max(0, κ)) in units of
    σ."""
    law = Laplace()
    formula, paper = kappa_alpha(1.0, law.kappa), banner_laplace(law.laplace_b, 4)
    return judge(
        abs(formula / paper - 1) < 0.05,
        "not Banner's result: the paper has no κ, and its Laplace constant contradicts the formula",
        formula_gaussian=kappa_alpha(1.0, 0.0),
        **{f"banner_gaussian_{bits}_bits": banner_gaussian(1.0, bits) for bits in (2, 3, 4)},
        formula_laplace=formula,
        banner_laplace_in_sigma=paper,
        loss_of_the_formula_laplace=loss(law, 4, formula),
    )
