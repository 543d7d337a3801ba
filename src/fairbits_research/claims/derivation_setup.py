"""Document 003, sections 1 to 4: notation, the quantization operator, the objectives and the effective distribution."""

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits_research.claims.claim import Finding, claim, judge
from fairbits_research.claims.claim_evidence import GAUSSIAN, PAIR, PAIR_PATTERNS, optimum
from fairbits_research.theory.clip_distribution import clip_distribution
from fairbits_research.theory.distributions import Gaussian, GaussianScaleMixture, Laplace, Mixture, Uniform
from fairbits_research.theory.effective_kurtosis import sample_moments
from fairbits_research.theory.noise import mse
from fairbits_research.theory.thresholds import alpha_by_mixture, families, separable

BITS = (2, 3, 4, 8)


@claim(
    "003-01",
    statement="Excess kurtosis is at least −2, and the activation of a layer lies in [0, 1].",
    derivation="E(W − μ)⁴ ≥ σ⁴ gives κ ≥ −2, with equality for a fair ±1 coin. A norm of hidden states is not "
    "bounded by 1; only the normalised share ā_l is. (The notation also uses L both for the number of languages and "
    "for the number of layers.)",
)
def notation() -> Finding:
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


@claim(
    "003-02",
    statement="Q_α clips to [−α, α] and rounds to the nearest of the levels kα/n, n = 2^(B−1) − 1.",
    derivation="A definition. It is idempotent, keeps ±α as levels, and moves no weight within [−α, α] by more than "
    "half a step, α/(2n).",
)
def quantization_operator() -> Finding:
    x = np.random.default_rng(0).normal(0, 1.5, 100_000)
    other = moved = 0
    largest = 0.0
    for bits in BITS:
        n = 2 ** (bits - 1) - 1
        step = 2.0 / n
        written = np.round(np.clip(x, -2.0, 2.0) / 2.0 * n) * step
        ours = Grid(bits).quantize(x, step)
        other += int(np.sum(np.abs(written - ours) > 1e-9))
        moved += int(np.sum(np.abs(Grid(bits).quantize(ours, step) - ours) > 1e-9))
        largest = max(largest, float(np.max(np.abs(x - ours)[np.abs(x) <= 2.0])) / step)
    return judge(
        other == moved == 0 and largest <= 0.5 + 1e-9,
        "the operator as written is the symmetric grid",
        samples_at_each_of_four_widths=x.size,
        samples_on_another_level_than_written=other,
        samples_moved_by_quantizing_twice=moved,
        largest_error_inside_in_steps=largest,
    )


@claim(
    "003-03",
    statement="Q_α maps [−α, α] onto 2^B levels.",
    derivation="The levels are kα/n for |k| ≤ n = 2^(B−1) − 1, which makes 2n + 1 = 2^B − 1 of them. One code of the "
    "B bits stays unused.",
)
def number_of_levels() -> Finding:
    x = np.linspace(-1.1, 1.1, 100_001)
    levels = {bits: len(np.unique(Grid(bits).codes(x, 1 / Grid(bits).highest))) for bits in BITS}
    return judge(
        all(count == 2**bits for bits, count in levels.items()),
        "one level fewer at every width",
        **{f"levels_{bits}_bits": count for bits, count in levels.items()},
    )


@claim(
    "003-04",
    statement="The step of Q_α is 2α/(2^B − 1).",
    derivation="2n + 1 levels on [−α, α] leave 2n gaps, so the step is 2α/(2n) = α/(2^(B−1) − 1) = 2α/(2^B − 2). "
    "Counting levels instead of gaps makes it too small, and its square, which sets the rounding error, more so.",
)
def step_size() -> Finding:
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


@claim(
    "003-05",
    statement="Q_α is symmetric about 0.",
    derivation="Clipping and rounding to the nearest multiple are odd functions, so Q_α(−x) = −Q_α(x). The two's "
    "complement grid, which INT4 kernels store, is not symmetric: its one extra code lies on the negative side.",
)
def symmetry() -> Finding:
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


@claim(
    "003-06",
    statement="α* is the threshold that minimises the expected squared error E(X − Q_α(X))².",
    derivation="The minimum is attained, and branch and bound certifies it. It need not be unique, and there may be "
    "other local minima: X = ±1 is represented without error at α = n/k for every k = 1 … n, and a law with 1 % of "
    "wide weights has two local minima at 2 bits, of which a search from the bulk finds the worse.",
)
def blind_objective() -> Finding:
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


@claim(
    "003-07",
    statement="Each language has its own optimal threshold, the minimiser of the expected squared error under P_λ.",
    derivation="Well posed for one threshold shared by several layers: the optimum moves with the language (here on "
    "two Gaussian layers, one three times as wide). With a threshold per layer, D(λ) = Σ ā_l f_l(α_l) with ā ≥ 0 is "
    "least at argmin f_l, the same for every language. Languages then differ only if the importance of single "
    "weights inside a block, E_λ[x_j²], does.",
)
def language_objective() -> Finding:
    alphas = [alpha_by_mixture(PAIR, pattern, grid=Grid(4)) for pattern in PAIR_PATTERNS]
    own, shared = separable(PAIR, PAIR_PATTERNS, grid=Grid(4))
    return judge(
        abs(alphas[0] / alphas[1] - 1) > 0.01,
        "languages differ in α* only where layers share one threshold",
        condition=bool((own < shared).all()),
        shared_alpha_best_for_first_language=alphas[0],
        shared_alpha_best_for_second_language=alphas[1],
        error_of_shared_over_separate_alphas_first_language=shared[0] / own[0],
        error_of_shared_over_separate_alphas_second_language=shared[1] / own[1],
    )


@claim(
    "003-08",
    statement="A language experiences the mixture of the layers' weight distributions, weighted by normalised "
    "activation.",
    derivation="With uncorrelated inputs x the error of a layer's output is Σ_ij E[x_j²](w_ij − Q(w_ij))², so a "
    "layer counts by its squared activation times its number of weights. With those shares the mixture gives the "
    "right threshold, with shares of norms it does not unless all layers are alike. Document 004 uses another model, "
    "the products w ⊙ a, for the same quantity.",
)
def effective_distribution() -> Finding:
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
