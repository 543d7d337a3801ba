"""Document 004, theorem 3: which layers to keep in high precision."""

import math

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.models.scales.exact_clip import clip_blocks
from fairbits.models.scales.grid import Grid
from fairbits.quantization.allocation import gateway_set
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge
from fairbits_research.theory.bounds import disparity
from fairbits_research.theory.gateway_theorem import amplification_sensitivity, best_protected_set, gateway_misses

_LAYERS, _PROTECTED = 12, 3
_GATEWAYS = [0, _LAYERS - 1]


@claim(
    "004-21",
    statement="If the end layers are language-specific, the middle is a bottleneck and low-resource languages are "
    "less redundant, then protecting both ends minimises disparity.",
    derivation="The proof states the assumptions in words and uses none in a formula. Disparity depends on how "
    "differently a layer damages two languages: where the end layers damage both alike, however much, protecting "
    "layers that damage one of them does more, and the worst language's damage is another objective with another "
    "answer.",
)
def gateway_assumptions() -> Finding:
    middle = [_LAYERS // 2 <= layer <= 3 * _LAYERS // 4 for layer in range(_LAYERS)]
    high_resource, low_resource = np.where(middle, 1.5, 1.0), np.where(middle, 3.0, 2.0)
    high_resource[_GATEWAYS], low_resource[_GATEWAYS] = 4.0, 4.1
    damage = np.array([high_resource, low_resource])
    best, value = best_protected_set(damage, k=_PROTECTED, objective="gap")
    rule = gateway_set(_LAYERS, _PROTECTED)
    return judge(
        set(_GATEWAYS) <= set(best),
        "a case that meets every assumption, with the most sensitive layers at the ends, whose best set has neither",
        disparity_unprotected=disparity(damage.sum(axis=1)),
        disparity_both_ends=disparity(damage.sum(axis=1) - damage[:, rule].sum(axis=1)),
        disparity_best_set=value,
        first_layer_of_best_set=best[0],
        last_layer_of_best_set=best[-1],
    )


@claim(
    "004-22",
    statement="Theorem 3: every disparity-minimising set of three or more protected layers contains the first and "
    "the last layer.",
    derivation="Not a theorem. With additive random sensitivities, those of both end layers doubled, most best sets "
    "lack one of them, for the disparity more often than for the worst language's damage. Which layers to protect "
    "follows from measured damages per layer and language; the shares refute a law and estimate nothing about real "
    "models.",
)
def gateway_theorem() -> Finding:
    misses = {
        f"share_of_best_sets_lacking_an_end_{name}_{k}_of_12": gateway_misses(
            cases, rng=np.random.default_rng(0), objective=objective, k=k
        )
        for name, objective, k, cases in (
            ("disparity", "gap", 3, 500),
            ("disparity", "gap", 4, 500),
            ("worst_language", "worst", 3, 500),
        )
    }
    strong = gateway_misses(500, rng=np.random.default_rng(0), objective="gap", gateway_factor=10.0)
    return judge(
        max(misses.values()) < 0.01,
        "most random cases have a best set that lacks an end layer, even if the ends are ten times as sensitive",
        **misses,
        share_lacking_an_end_if_ends_are_ten_times_as_sensitive=strong,
    )


@claim(
    "004-23",
    statement="Perplexity grows with Σ_i ε_i·Π_{j>i}‖W_j‖, so errors of the first layer are amplified by all later "
    "ones.",
    derivation="Nothing follows the last layer, so its factor is 1. With equal errors the formula protects the first "
    "layers if ‖W‖ > 1 and the last ones if ‖W‖ < 1, never both ends, so it refutes the theorem it is meant to "
    "support. In a residual network h ← h + W·LN(h) (LN normalises h) errors travel along the identity path, and the "
    "norms of the blocks do not multiply: through 12 random blocks an error grows 1.3-fold at norm ½ and 3.7-fold at "
    "norm 2.",
)
def error_amplification() -> Finding:
    norms = (0.5, 0.8, 1.25, 2.0)
    terms = {norm: amplification_sensitivity(np.ones(_LAYERS), np.full(_LAYERS, norm)) for norm in norms}
    claimed = {norm: float(term[0] / term[-1]) for norm, term in terms.items()}
    measured = {norm: _residual_amplification(norm) for norm in norms}
    return judge(
        all(0.5 < claimed[norm] / measured[norm] < 2 for norm in norms),
        "a residual network does not follow it, and the formula itself never protects both ends",
        first_over_last_layer_claimed_norm_one_half=claimed[0.5],
        first_over_last_layer_measured_norm_one_half=measured[0.5],
        first_over_last_layer_claimed_norm_two=claimed[2.0],
        first_over_last_layer_measured_norm_two=measured[2.0],
        norms_tried=len(norms),
        norms_at_which_it_protects_both_ends=sum(set(_GATEWAYS) <= set(_top(term)) for term in terms.values()),
    )


def _top(sensitivity: Floats) -> list[int]:
    return [int(layer) for layer in np.argsort(sensitivity)[-_PROTECTED:]]


def _residual_amplification(norm: float, width: int = 64) -> float:
    """Returns how much a small error after the first of 12 pre-LN residual blocks has grown after the last (rms)."""
    rng = np.random.default_rng(0)
    blocks = rng.standard_normal((_LAYERS, width, width))
    blocks *= norm / np.linalg.norm(blocks, ord=2, axis=(1, 2))[:, None, None]
    h = rng.standard_normal((width, 200))
    noise = 1e-4 * rng.standard_normal(h.shape)
    clean, noisy = h, h + noise
    for block in blocks[1:]:
        clean, noisy = (x + block @ ((x - x.mean(axis=0)) / x.std(axis=0)) for x in (clean, noisy))
    return float(np.linalg.norm(noisy - clean) / np.linalg.norm(noise))


@claim(
    "004-24",
    statement="The error of the logits is ΔW·h + W·Δh.",
    derivation="First order: the exact error has the further term ΔW·Δh, negligible at 8 bits and not at 2. The "
    "formula is that of the output projection; the theorem applies it to the last block, which is another tensor, "
    "just as it takes the first block for the embedding.",
)
def logit_error() -> Finding:
    shares = {bits: _second_order_share(bits) for bits in (2, 3, 4, 8)}
    return judge(
        shares[8] < 0.02,
        "right to first order; the dropped product matters at few bits",
        condition=shares[2] > 0.05,
        **{f"dropped_term_over_whole_error_{bits}_bits": share for bits, share in shares.items()},
    )


def _second_order_share(bits: int) -> float:
    """Returns ‖ΔW·Δh‖/‖Δlogits‖ for two random layers quantized per row."""
    rng = np.random.default_rng(0)
    below, above = rng.standard_normal((2, 256, 256)) / 16
    x = rng.standard_normal((256, 64))
    grid = Grid(bits)
    d_below, d_above = (grid.quantize(W, clip_blocks(W, grid).step) - W for W in (below, above))
    h, dh = below @ x, d_below @ x
    exact = (above + d_above) @ (h + dh) - above @ h
    return float(np.linalg.norm(exact - (d_above @ h + above @ dh)) / np.linalg.norm(exact))


@claim(
    "004-25",
    statement="Given both end layers, the other slots belong to the layers with the largest summed sensitivity of "
    "low-resource languages.",
    derivation="That lowers the damage of low-resource languages; disparity also depends on what the same layer does "
    "to the others. The exact choice minimises max_λ D_λ − min_λ D_λ over sets; the rule serves another objective. "
    "Random cases: four languages, the last two 1.5 times as sensitive, both ends and one more layer protected.",
)
def fill_by_sensitivity() -> Finding:
    rng = np.random.default_rng(0)
    damage = rng.gamma(2.0, size=(4000, 4, _LAYERS))  # case, language (the last two low-resource), layer
    damage[:, 2:] *= 1.5
    inner = damage[:, :, 1:-1]
    left = inner.sum(axis=2, keepdims=True) - inner  # both ends and one inner layer protected
    gaps = np.ptp(left, axis=1)
    chosen = np.take_along_axis(gaps, inner[:, 2:].sum(axis=1).argmax(axis=1)[:, None], axis=1)[:, 0]
    best = gaps.min(axis=1)
    unfilled = np.ptp(inner.sum(axis=2), axis=1)
    return judge(
        float(np.mean(chosen > best)) < 0.01,
        "the rule misses the set of least disparity in half of the random cases",
        share_of_cases_where_another_layer_is_better=float(np.mean(chosen > best)),
        mean_disparity_of_rule=float(chosen.mean()),
        mean_disparity_of_best=float(best.mean()),
        share_where_filling_raises_disparity=float(np.mean(chosen > unfilled)),
    )


@claim(
    "004-26",
    statement="On GPT-2 small the best three layers to protect are {0, 9, 11}, and the four best sets all contain "
    "{0, 11}.",
    derivation="Ten of the 220 sets of three contain both ends, so four such sets at the top would be unlikely if "
    "sets were exchangeable; overlapping sets are not. Protection need not lower disparity: with additive damages it "
    "raises it whenever it helps the best language more.",
)
def gpt2_gateways() -> Finding:
    sets, both = math.comb(_LAYERS, _PROTECTED), _LAYERS - 2
    rng = np.random.default_rng(0)
    damage = rng.gamma(2.0, size=(4000, 2, _LAYERS))
    damage[:, :, _GATEWAYS] *= 2
    before = np.ptp(damage.sum(axis=2), axis=1)
    rule = list(gateway_set(_LAYERS, _PROTECTED))
    after = np.ptp(np.delete(damage, rule, axis=2).sum(axis=2), axis=1)
    return from_experiments(
        "004-26",
        "chance alone would rarely put both ends into the four best sets",
        about=("GPT-2",),
        sets_of_three=sets,
        sets_with_both_ends=both,
        chance_of_the_top_four=math.comb(both, 4) / math.comb(sets, 4),
        share_of_random_cases_in_which_the_rule_raises_disparity=float(np.mean(after > before)),
    )
