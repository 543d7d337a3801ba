"""Document 004, theorem 3: which layers to keep in high precision."""

import math

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.models.scales.block_clip import clip_blocks
from fairbits.models.scales.grid import Grid
from fairbits.quantization.protection import amplification_sensitivity, gateway_misses, gateway_set, protect
from fairbits_research.claims.claim import Finding, claim, from_experiments, judge
from fairbits_research.theory.bounds import disparity

_LAYERS, _PROTECTED = 12, 3
_GATEWAYS = [0, _LAYERS - 1]


@claim("004-21")
def gateway_assumptions() -> Finding:
    """If the end layers are language-specific, the middle is a bottleneck and low-resource languages are less
    redundant, then protecting both ends minimises disparity."""
    middle = [_LAYERS // 2 <= layer <= 3 * _LAYERS // 4 for layer in range(_LAYERS)]
    high_resource, low_resource = np.where(middle, 1.5, 1.0), np.where(middle, 3.0, 2.0)
    high_resource[_GATEWAYS], low_resource[_GATEWAYS] = 4.0, 4.1
    damage = np.array([high_resource, low_resource])
    best = protect(damage, np.zeros_like(damage), k=_PROTECTED, objective="gap")
    rule = gateway_set(_LAYERS, _PROTECTED)
    return judge(
        set(_GATEWAYS) <= set(best.blocks),
        "a case that meets every assumption, with the most sensitive layers at the ends, whose best set has neither",
        disparity_unprotected=disparity(damage.sum(axis=1)),
        disparity_both_ends=disparity(damage.sum(axis=1) - damage[:, rule].sum(axis=1)),
        disparity_best_set=best.value,
        first_layer_of_best_set=best.blocks[0],
        last_layer_of_best_set=best.blocks[-1],
    )


@claim("004-22")
def gateway_theorem() -> Finding:
    """Theorem 3: every disparity-minimising set of three or more protected layers contains the first and the last
    layer."""
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


@claim("004-23")
def error_amplification() -> Finding:
    """Perplexity grows with Σ_i ε_i·Π_{j>i}‖W_j‖, so errors of the first layer are amplified by all later ones."""
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


@claim("004-24")
def logit_error() -> Finding:
    """The error of the logits is ΔW·h + W·Δh."""
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


@claim("004-25")
def fill_by_sensitivity() -> Finding:
    """Given both end layers, the other slots belong to the layers with the largest summed sensitivity of low-resource
    languages."""
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


@claim("004-26")
def gpt2_gateways() -> Finding:
    """On GPT-2 small the best three layers to protect are {0, 9, 11}, and the four best sets all contain {0, 11}."""
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
