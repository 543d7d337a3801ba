"""Document 000, sections 2.1 to 3.4: what was observed, how it was interpreted, and the redundancy hypothesis."""

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import published_statistics
from fairbits.models.scales.distributions import Distribution, Mixture
from fairbits.stats.correlation import pearson
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge
from fairbits_research.claims.claim_evidence import LISTED, best_alpha, outlier_correlation
from fairbits_research.theory.redundancy_theorem import unique_information
from fairbits_research.theory.thresholds import families


@claim(
    "000-09",
    statement="A 2023 study measured a perplexity increase of 0.005 for English and 0.025 for Arabic, five times as "
    "much.",
    derivation="The study is Marchisio et al. 2024 (arXiv 2407.03211), on Command R, R+ and Aya 23; the two numbers "
    "were read off its figures, are not perplexities, and belong to models other than BLOOM-560M, whose "
    "activation patterns they are compared with.",
)
def fivefold_gap() -> Finding:
    table = published_statistics()
    english, arabic = (table.degradation[row] for row in table.rows("eng", "ara"))
    return from_experiments(
        "000-09",
        "the ratio is arithmetic on numbers read off the figures of a study that cannot be repeated here",
        about=("Command R", "Command R+", "Aya 23"),
        ratio=arabic / english,
    )


@claim(
    "000-10",
    statement="a_l(λ) = E‖h_l‖ measures how much language λ uses layer l.",
    derivation="A definition, but not the only one in use: the documents also write ‖h_l(λ)‖ and a_l ∈ [0, 1]. A "
    "weight error E enters the output as E·h, whose energy grows with E‖h‖², not with (E‖h‖)². Both rank "
    "layers alike if their norms vary alike; a layer with few large states ranks lower by E‖h‖ than by the energy of "
    "its error.",
)
def activation_magnitude() -> Finding:
    norm = np.random.default_rng(0).lognormal(0, 1, 100_000)
    steady, louder, bursty = np.ones(norm.size), np.full(norm.size, 1.5), 0.8 * norm / norm.mean()

    def share(power: int, layer: Floats) -> float:
        """Returns the share of E‖h‖^power against the steady layer."""
        return float(np.mean(layer**power) / (np.mean(layer**power) + np.mean(steady**power)))

    return judge(
        share(1, louder) > 0.5 and share(2, louder) > 0.5,
        "ranks layers as the energy of their errors does only if their norms vary alike",
        condition=(share(1, bursty) > 0.5) != (share(2, bursty) > 0.5),
        share_of_louder_layer_by_norm=share(1, louder),
        share_of_louder_layer_by_energy=share(2, louder),
        share_of_bursty_layer_by_norm=share(1, bursty),
        share_of_bursty_layer_by_energy=share(2, bursty),
    )


@claim(
    "000-11",
    statement="ā_l(λ) = a_l(λ)/Σ a_l(λ) is the fraction of activation in layer l.",
    derivation="A definition (with the summation index used twice). It makes every language a probability vector "
    "over layers, whatever its loudness.",
)
def activation_fraction() -> Finding:
    raw = np.random.default_rng(0).lognormal(0, 1, (14, 24))
    loudness = np.geomspace(0.1, 10, 14)[:, None]
    quiet, loud = (a / a.sum(axis=1, keepdims=True) for a in (raw, loudness * raw))
    sums = int(np.isclose(loud.sum(axis=1), 1).sum())
    same = int(np.isclose(loud, quiet).all(axis=1).sum())
    return judge(
        sums == same == len(raw),
        "a definition; every pattern sums to 1 and does not depend on loudness",
        languages=len(raw),
        patterns_that_sum_to_1=sums,
        patterns_unchanged_by_loudness=same,
    )


@claim(
    "000-13",
    statement="A language with higher effective kurtosis needs a larger clip threshold.",
    derivation="Only where layers share one threshold (with one per layer every language has the same optimum), and "
    "only if the layers' tails are of one kind. Here a language moves from a tenth to nine tenths of its activation in "
    "a layer of κ = 100, next to a generalised Gaussian one of κ = 3 and equal σ: the best α rises if the first layer "
    "is a generalised Gaussian too and falls if its κ comes from one outlier in ten thousand weights.",
)
def higher_kurtosis_needs_wider_clip() -> Finding:
    def alphas(heavy: Distribution) -> list[float]:
        """Returns α* of a language with a tenth and with nine tenths of its activation in the heavy layer."""
        light = families(3.0)["ggd"]
        return [best_alpha(Mixture([heavy, light], [share, 1 - share]), 4) for share in (0.1, 0.9)]

    alike, rare = alphas(families(100.0)["ggd"]), alphas(families(100.0)["gsm 0.0001"])
    return judge(
        alike[1] > alike[0],
        "true of layers whose tails are of one kind and which share a threshold, reversed by a few extreme weights",
        condition=rare[1] < rare[0],
        kappa_eff_low=0.1 * 100 + 0.9 * 3,
        kappa_eff_high=0.9 * 100 + 0.1 * 3,
        alpha_low_kappa_eff_same_kind=alike[0],
        alpha_high_kappa_eff_same_kind=alike[1],
        alpha_low_kappa_eff_rare_outliers=rare[0],
        alpha_high_kappa_eff_rare_outliers=rare[1],
    )


@claim(
    "000-14",
    statement="English and French spend 20 % of their activation in outlier layers and have κ_eff = 43; Hindi and "
    "Arabic less.",
    derivation="The four rows agree with the public table, whose patterns come from one sentence of 7 to 36 tokens "
    "per language.",
)
def listed_rows() -> Finding:
    table = published_statistics()
    rows = table.rows(*LISTED)
    listed = np.array([[0.205, 43.0], [0.202, 43.0], [0.172, 37.5], [0.177, 38.8]])
    off = np.max(np.abs(np.column_stack([table.outlier_activation[rows], table.kappa_weighted[rows]]) - listed), axis=0)
    return from_experiments(
        "000-14",
        "the listed values are those of the public table, from one sentence per language",
        about=("BLOOM-560M",),
        largest_difference_in_activation=off[0],
        largest_difference_in_kappa=off[1],
        fewest_tokens=table.tokens.min(),
        most_tokens=table.tokens.max(),
    )


@claim(
    "000-15",
    statement="κ_eff and damage correlate with r = −0.838, p < 0.001.",
    derivation="The four rows that the document lists give a stronger r, with p above 0.05; the public table of all "
    "14 languages gives a weaker one, with p above 0.001. The stated figures match neither.",
)
def kurtosis_correlation() -> Finding:
    table = published_statistics()
    rows = table.rows(*LISTED)
    four = pearson(table.kappa_weighted[rows], table.degradation[rows])
    all_rows = pearson(table.kappa_weighted, table.degradation)
    matches = any(abs(found.estimate.value + 0.838) < 0.0005 and found.p < 0.001 for found in (four, all_rows))
    return judge(
        matches,
        "neither the four rows nor all 14 languages give the stated correlation",
        r_four_rows=four.estimate.value,
        p_four_rows=four.p,
        r_14_languages=all_rows.estimate.value,
        p_14_languages=all_rows.p,
    )


@claim(
    "000-16",
    statement="The negative correlation calls for a reinterpretation of the effective-kurtosis hypothesis.",
    derivation="The hypothesis was that a high κ_eff means more damage. In the documents' own table the interval of "
    "r lies entirely below 0, so the data refute the hypothesis instead of refining it.",
)
def reinterpretation() -> Finding:
    table = published_statistics()
    found = pearson(table.kappa_weighted, table.degradation).estimate
    return judge(
        found.high < 0,
        "the correlation has the sign opposite to the hypothesis, beyond chance",
        r=found.value,
        interval_low=found.low,
        interval_high=found.high,
    )


@claim(
    "000-17",
    statement="Well-represented languages survive quantization because outlier layers give them redundant "
    "representations.",
    derivation="An explanation given after the sign was known. Script orders the languages almost as activation does, "
    "training share may too, and neither was held fixed.",
)
def redundancy_story() -> Finding:
    table = published_statistics()
    script = pearson(table.latin, table.degradation).estimate
    return from_experiments(
        "000-17",
        "in the public table it cannot be separated from script, which orders the languages similarly",
        r_latin_script_with_damage=script.value,
        r_latin_script_with_activation=pearson(table.latin, table.outlier_activation).estimate.value,
    )


@claim(
    "000-18",
    statement="R(λ) = I(h_outlier; y | h_generic)/I(h_all; y) measures representational redundancy.",
    derivation="Each outlier layer is a deterministic function of the generic layer before it, so given h_generic it "
    "adds nothing: the numerator is 0 for every language. And what outlier layers add to the others is unique "
    "information, not redundancy.",
)
def redundancy_definition() -> Finding:
    rng = np.random.default_rng(0)
    above = 0
    for _ in range(50):
        generic_and_target = rng.dirichlet(np.ones(4 * 3)).reshape(4, 3)
        layer = rng.integers(0, 3, size=4)
        joint = np.zeros((3, 4, 3))
        joint[layer, np.arange(4)] = generic_and_target
        above += abs(unique_information(joint)) > 1e-9
    return judge(
        above > 0,
        "0 for every language, because an outlier layer is a function of the layer before it",
        random_networks=50,
        networks_with_R_above_0=above,
    )


@claim(
    "000-19",
    statement="High R(λ) makes a language robust to quantization.",
    derivation="R as defined measures what only the outlier layers know. A language whose information is stored "
    "there alone loses it when those layers are damaged: high unique information means fragility.",
)
def unique_information_is_fragile() -> Finding:
    outlier, generic, target = np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")
    only_outlier = np.where(outlier == target, 0.25, 0.0)
    copied = np.where((outlier == target) & (generic == target), 0.5, 0.0)
    unique, redundant = unique_information(only_outlier), unique_information(copied)
    kept_unique = _information_without_outlier(only_outlier)
    kept_redundant = _information_without_outlier(copied)
    return judge(
        unique > redundant and kept_unique > kept_redundant,
        "with the outlier layer destroyed, the language with the higher R loses everything, that with R = 0 nothing",
        R_of_the_language_known_to_outliers_only=unique,
        R_of_the_language_known_twice=redundant,
        bits_left_to_the_first=kept_unique,
        bits_left_to_the_second=kept_redundant,
    )


def _information_without_outlier(joint: np.ndarray) -> float:
    pair = joint.sum(axis=0)
    product = pair.sum(axis=1, keepdims=True) * pair.sum(axis=0, keepdims=True)
    used = pair > 0
    return float(np.sum(pair[used] * np.log2(pair[used] / product[used])))


@claim(
    "000-20",
    statement="The outlier activation fraction R̂(λ) stands in for redundancy and correlates with damage, r = −0.834.",
    derivation="The correlation is reproduced on the public table; that the fraction measures redundancy was never "
    "tested. It is almost perfectly correlated with κ_eff, so the two correlations are one finding.",
)
def activation_proxy() -> Finding:
    table = published_statistics()
    found, _ = outlier_correlation()
    twin = pearson(table.outlier_activation, table.kappa_weighted).estimate.value
    return from_experiments(
        "000-20",
        "the arithmetic holds for the public table, which does not measure redundancy",
        r=found.estimate.value,
        p=found.p,
        r_with_kappa_eff=twin,
    )
