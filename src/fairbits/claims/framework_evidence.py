"""Document 000, sections 2.1 to 3.4: what was observed, how it was read, and the redundancy story."""

import numpy as np

from fairbits.claims.claim import Finding, claim, judged, needs_model
from fairbits.claims.evidence import best_alpha, families, random_patterns
from fairbits.reference import founding_statistics
from fairbits.stats import pearson
from fairbits.theory.redundancy import unique_information

ROWS = ("eng", "fra", "hin", "ara")
"""The four languages that document 000 lists."""


@claim(
    "000-09",
    statement="A 2023 study measured a perplexity increase of 0.005 for English and 0.025 for Arabic, five "
    "times as much.",
    derivation="The study is Marchisio et al. 2024 (arXiv 2407.03211), on Command R, R+ and Aya 23; the two "
    "numbers were read off its figures, are not perplexities, and belong to other models than the "
    "activation patterns they are compared with.",
)
def fivefold_gap() -> Finding:
    table = founding_statistics()
    english, arabic = (table.degradation[row] for row in table.rows("eng", "ara"))
    return needs_model(
        "arithmetic on numbers read off another study's figures; damage must be measured on the model itself",
        command="fairbits compare MODEL",
        ratio=arabic / english,
    )


@claim(
    "000-10",
    statement="a_l(λ) = E‖h_l‖ measures how much language λ uses layer l.",
    derivation="A definition, but not the only one in use: the documents also write ‖h_l(λ)‖ and a_l ∈ [0, 1]. A"
    " weight error E enters the output as E·h, whose energy grows with E‖h‖², not with (E‖h‖)²; the "
    "two give different fractions.",
)
def activation_magnitude() -> Finding:
    rng = np.random.default_rng(0)
    steady, bursty = np.ones(100_000), rng.lognormal(0, 1, 100_000)
    norm = bursty.mean() / (steady.mean() + bursty.mean())
    energy = (bursty**2).mean() / ((steady**2).mean() + (bursty**2).mean())
    return judged(
        True,
        "a definition; by energy, which is what an error scales with, a bursty layer weighs more than by its mean norm",
        condition=abs(energy - norm) > 0.01,
        fraction_by_norm=norm,
        fraction_by_energy=energy,
    )


@claim(
    "000-11",
    statement="ā_l(λ) = a_l(λ)/Σ a_l(λ) is the fraction of activation in layer l.",
    derivation="A definition (with the summation index used twice). It makes every language a probability vector"
    " over layers.",
)
def activation_fraction() -> Finding:
    patterns = random_patterns(np.random.default_rng(0), 14, 24)
    off = float(np.max(np.abs(patterns.sum(axis=1) - 1)))
    return judged(off < 1e-12, "a definition", largest_deviation_of_the_sum=off)


@claim(
    "000-13",
    statement="A language with higher effective kurtosis needs a larger clip threshold.",
    derivation="Only where one threshold is shared by layers (with one per layer every language wants the same),"
    " and only along families in which α* rises with κ.",
)
def higher_kurtosis_needs_wider_clip() -> Finding:
    spread = {}
    for kappa in (3.0, 20.0, 100.0):
        alphas = [best_alpha(law, 4) for law in families(kappa).values()]
        spread[f"alpha_least_at_kappa_{kappa:g}"] = min(alphas)
        spread[f"alpha_most_at_kappa_{kappa:g}"] = max(alphas)
    sure = spread["alpha_most_at_kappa_3"] < spread["alpha_least_at_kappa_100"]
    return judged(
        True,
        "the thresholds of laws with κ = 3 and with κ = 100 overlap: which is larger depends on the family",
        condition=not sure,
        **spread,
    )


@claim(
    "000-14",
    statement="English and French spend 20 % of their activation in outlier layers and have κ_eff = 43; Hindi "
    "and Arabic less.",
    derivation="The four rows agree with the public table, whose patterns come from one sentence of 7 to 36 "
    "tokens per language.",
)
def listed_rows() -> Finding:
    table = founding_statistics()
    rows = table.rows(*ROWS)
    listed = np.array([[0.205, 43.0], [0.202, 43.0], [0.172, 37.5], [0.177, 38.8]])
    off = np.max(np.abs(np.column_stack([table.outlier_activation[rows], table.kappa_weighted[rows]]) - listed), axis=0)
    return needs_model(
        "the listed values repeat the public table to rounding; a single sentence per language supports none of them",
        command="fairbits audit MODEL",
        largest_difference_in_activation=off[0],
        largest_difference_in_kappa=off[1],
        fewest_tokens=table.tokens.min(),
        most_tokens=table.tokens.max(),
    )


@claim(
    "000-15",
    statement="κ_eff and damage correlate with r = −0.838, p < 0.001.",
    derivation="Recomputed: the four rows of the document give another r with p above 0.05, the public table of "
    "fourteen a weaker one. The published figure matches neither.",
)
def kurtosis_correlation() -> Finding:
    table = founding_statistics()
    rows = table.rows(*ROWS)
    four = pearson(table.kappa_weighted[rows], table.degradation[rows])
    all_rows = pearson(table.kappa_weighted, table.degradation)
    matches = any(abs(found.estimate.value + 0.838) < 0.0005 for found in (four, all_rows))
    return judged(
        matches,
        "neither the four rows nor all fourteen give the published correlation",
        r_four_rows=four.estimate.value,
        p_four_rows=four.p,
        r_fourteen=all_rows.estimate.value,
        p_fourteen=all_rows.p,
    )


@claim(
    "000-16",
    statement="The negative correlation calls for a reinterpretation of the effective-kurtosis hypothesis.",
    derivation="The hypothesis says high κ_eff means more damage. On the documents' own table the interval of r "
    "lies entirely below 0: the data refute the hypothesis rather than refine it.",
)
def reinterpretation() -> Finding:
    table = founding_statistics()
    found = pearson(table.kappa_weighted, table.degradation).estimate
    return judged(
        found.high < 0,
        "the sign contradicts the hypothesis; its data refute it",
        r=found.value,
        interval_low=found.low,
        interval_high=found.high,
    )


@claim(
    "000-17",
    statement="Well-represented languages survive quantization because outlier layers give them redundant "
    "representations.",
    derivation="A story told after seeing the sign. Training share and script explain the same ordering and were"
    " not separated.",
)
def redundancy_story() -> Finding:
    table = founding_statistics()
    script = pearson(table.latin, table.degradation).estimate
    return needs_model(
        "not separated from script or training share, which order the languages alike; needs an intervention",
        command="fairbits research redundancy",
        r_latin_script_with_damage=script.value,
        r_latin_script_with_activation=pearson(table.latin, table.outlier_activation).estimate.value,
    )


@claim(
    "000-18",
    statement="R(λ) = I(h_outlier; y | h_generic)/I(h_all; y) measures representational redundancy.",
    derivation="Each outlier layer is a deterministic function of the generic layer before it, so given "
    "h_generic it adds nothing: the numerator is 0 for every language. And what outlier layers add "
    "beyond the rest is unique information, not redundancy.",
)
def redundancy_definition() -> Finding:
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(50):
        generic_and_target = rng.dirichlet(np.ones(4 * 3)).reshape(4, 3)
        layer = rng.integers(0, 3, size=4)
        joint = np.zeros((3, 4, 3))
        joint[layer, np.arange(4)] = generic_and_target
        largest = max(largest, abs(unique_information(joint)))
    return judged(
        largest > 1e-9,
        "0 for every language in a network whose outlier layers are functions of the layers before them",
        largest_value_in_50_random_networks=largest,
    )


@claim(
    "000-19",
    statement="High R(λ) makes a language robust to quantization.",
    derivation="R as defined measures what only the outlier layers know. A language whose information sits there"
    " alone loses it when those layers are damaged: high unique information is fragility.",
)
def unique_information_is_fragile() -> Finding:
    outlier, generic, target = np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")
    only_outlier = np.where(outlier == target, 0.25, 0.0)
    copied = np.where((outlier == target) & (generic == target), 0.5, 0.0)
    unique, redundant = unique_information(only_outlier), unique_information(copied)
    kept_unique = _information_without_outlier(only_outlier)
    kept_redundant = _information_without_outlier(copied)
    return judged(
        unique > redundant and kept_unique > kept_redundant,
        "with the outlier layer destroyed, the language of the higher R loses all it knew, that of R = 0 nothing",
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
    derivation="The correlation is reproduced on the public table; that the fraction measures redundancy was "
    "never tested. It moves with κ_eff almost one to one: the same variable counted twice.",
)
def activation_proxy() -> Finding:
    table = founding_statistics()
    found = pearson(table.outlier_activation, table.degradation)
    twin = pearson(table.outlier_activation, table.kappa_weighted).estimate.value
    return needs_model(
        "the arithmetic holds on the public table; whether the fraction measures redundancy is open",
        command="fairbits research redundancy",
        r=found.estimate.value,
        p=found.p,
        r_with_kappa_eff=twin,
    )
