"""Allocation of widths, protection of blocks, the redundancy theorem and the structural model."""

import dataclasses

import numpy as np

from fairbits.science.theory import mediation, redundancy
from fairbits.theory import allocation
from fairbits.theory.allocation import Problem

SIZES = np.array([[4, 8], [4, 8], [2, 6]])
DAMAGE = np.array([[[2.0, 0.0], [1.0, 0.0], [3.0, 1.0]], [[1.0, 0.0], [4.0, 0.0], [1.0, 1.0]]])
PROBLEM = Problem(bits=(4, 8), sizes=SIZES, damage=DAMAGE)
MODEL = dataclasses.replace(mediation.SEED_MODEL, sd_r=0.1)
RNG = np.random.default_rng(0)
LOW, HIGH = DAMAGE[..., 0], DAMAGE[..., 1]

HALVES = {"halves": [[4.5, 8.0], [4.0, 8.0], [2.0, 6.0]], "beyond 2^53": 1e17 * SIZES}
THREE_AXES = ("array", "required", "shaped", {"two axes": DAMAGE[0], "scalar": 1.0})
TWO_AXES = ("array", "required", "shaped", {"flat": LOW[0], "three axes": DAMAGE, "scalar": 1.0})
WIDTHS = ((4, 8), {"falling": (8, 4), "equal": (4, 4), "empty": (), "zero": (0, 4), "floats": (4.0, 8.0), "none": None})
NAMES = {"one": ("a",), "a string": "ab", "numbers": (1, 2, 3), "a number": 3, "none": None}
A_PROBLEM, BUDGET = (PROBLEM, "object"), (16, "whole", {"too small": 9})
PI = (np.array([0.5, 0.5]), "array", "shaped", "flat", "nonnegative", "not all zero")
PER_LANGUAGE = (np.array([9.0, 9.0]), "array", "shaped", "flat")
OPTIONS = (np.array([0, 1, 1]), "array", "required", "shaped", "flat", "nonnegative", {"too large": [0, 1, 2]})
COUNTS = (np.array([4096, 64]), "array", "required", "shaped", "flat", "nonnegative", {"half": [4096.5, 64]})
VECTOR = (np.array([0.5, 2.0, 1.0]), "array", "required", "shaped", "flat", "nonnegative")
SIGMA, WIDTH = (1.0, "positive"), (4, "count", {"above 64": 65})
T, ORDER = (1.0, "number", {"below r_min": 0.01, "negative": -1.0}), (2, "count", {"three": 3})
SPREADS = dict.fromkeys(("sd_a", "sd_r", "sd_d"), (0.1, "at least 0"))
JOINT = np.array([[0.4, 0.1], [0.1, 0.4]])
THREE = np.array([0.3, 0.2, 0.1, 0.05, 0.05, 0.1, 0.05, 0.15]).reshape(2, 2, 2)
TABLE = ("array", "required", "nonnegative", "not all zero", {"counts": [[4, 1], [1, 4]], "scalar": 1.0})

ROWS = {
    "Problem": (
        Problem,
        {
            "bits": WIDTHS,
            "sizes": (SIZES, "array", "required", "shaped", "nonnegative", HALVES, {"flat": SIZES[0]}),
            "damage": (DAMAGE, *THREE_AXES),
            "fixed_bytes": (10, "whole"),
            "languages": (("a", "b"), NAMES),
            "blocks": (("a", "b", "c"), NAMES | {"numbers": (1, 2, 3, 4)}),
        },
    ),
    "Problem.capacity": (PROBLEM.capacity, {"budget": BUDGET}),
    "Problem.total_damage": (PROBLEM.total_damage, {"options": OPTIONS}),
    "Problem.total_bytes": (PROBLEM.total_bytes, {"options": OPTIONS}),
    "Problem.mean_damage": (PROBLEM.mean_damage, {"pi": PI}),
    "block_bytes": (
        allocation.block_bytes,
        {
            "n_weights": COUNTS,
            "n_scales": COUNTS,
            "bits": WIDTHS,
            "scale_bits": (16, "whole"),
            "float_bits": (16, "count"),
        },
    ),
    "allocate_mean": (
        allocation.allocate_mean,
        {"problem": A_PROBLEM, "budget": BUDGET, "pi": PI, "solver": ("highs", "choice")},
    ),
    "allocate_worst": (
        allocation.allocate_worst,
        {
            "problem": A_PROBLEM,
            "budget": BUDGET,
            "relative_gap": (0.01, "at least 0", {"one": 1.0}),
            "baseline": (*PER_LANGUAGE, {"out of reach": [-1.0, -1.0]}),
            "floor": PER_LANGUAGE,
            "time_limit": (10.0, {"nan": np.nan, "inf": np.inf, "zero": 0.0, "string": "1"}),
        },
    ),
    "protect": (
        allocation.protect,
        {
            "damage_low": (LOW, *TWO_AXES),
            "damage_high": (HIGH, *TWO_AXES),
            "k": (2, "count", {"too large": 4}),
            "objective": ("gap", "choice"),
            "method": ("milp", "choice"),
        },
    ),
    "gateway_set": (allocation.gateway_set, {"n_blocks": (12, "count"), "k": (3, "count", {"too large": 13})}),
    "gateway_misses": (
        allocation.gateway_misses,
        {
            "n_cases": (2, "count"),
            "rng": (RNG, {"none": None, "seed": 0, "string": "0"}),
            "objective": ("gap", "choice"),
            "n_languages": (2, "count"),
            "n_blocks": (4, "count", {"two": 2}),
            "k": (3, "count", {"too large": 5}),
            "gateway_factor": (2.0, "positive"),
        },
    ),
    "amplification_sensitivity": (allocation.amplification_sensitivity, {"errors": VECTOR, "norms": VECTOR}),
    "rate_distortion": (redundancy.rate_distortion, {"rate": (2.0, "at least 0"), "sigma": SIGMA}),
    "clipping_constant": (redundancy.clipping_constant, {"bits": WIDTH, "sigma": SIGMA}),
    "redundancy_bound": (
        redundancy.redundancy_bound,
        {"redundancy": (3.8, "number", {"sum below 0": -1.0}), "bits": WIDTH, "delta": (0.1, "number"), "sigma": SIGMA},
    ),
    "holds_up_to": (redundancy.holds_up_to, {"bits": WIDTH, "mse": (0.01, "positive"), "sigma": SIGMA}),
    "effective_distortion": (
        redundancy.effective_distortion,
        {"redundancy": (3.8, "number", {"below -bits": -4.0}), "bits": WIDTH, "sigma": SIGMA},
    ),
    "taylor_step_holds": (
        redundancy.taylor_step_holds,
        {"redundancy": (3.8, "at least 0"), "bits": WIDTH, "delta": (0.1, "number"), "sigma": SIGMA},
    ),
    "taylor_step_limit": (redundancy.taylor_step_limit, {"bits": WIDTH, "delta": (0.1, "number")}),
    "disparity_ratio": (
        redundancy.disparity_ratio,
        {"r_high": (3.8, "number"), "r_low": (1.5, "number", {"sum 0": -0.1}), "delta": (0.1, "number")},
    ),
    "delta_needed": (
        redundancy.delta_needed,
        {"ratio": (4.24, "positive", {"one": 1.0}), "r_high": (3.8, "number"), "r_low": (1.5, "number")},
    ),
    "redundancy": (redundancy.redundancy, {"joint": (JOINT, *TABLE, {"three axes": JOINT[None]})}),
    "unique_information": (
        redundancy.unique_information,
        {"joint": (THREE, *TABLE, {"two axes": JOINT})},
    ),
    "StructuralModel": (
        mediation.StructuralModel,
        dict.fromkeys(("beta_ta", "beta_ar", "gamma"), (0.9, "number")) | SPREADS | {"r_min": (0.05, "positive")},
    ),
    "StructuralModel.mean_r": (MODEL.mean_r, {"t": T}),
    "StructuralModel.expected_damage": (MODEL.expected_damage, {"t": T, "order": ORDER}),
    "StructuralModel.effect": (MODEL.effect, {"t": T, "order": ORDER}),
    "StructuralModel.exact_damage": (MODEL.exact_damage, {"t": T}),
    "StructuralModel.exact_effect": (MODEL.exact_effect, {"t": T}),
    "StructuralModel.decompose": (MODEL.decompose, {"t": T, "order": ORDER}),
    "StructuralModel.simulate": (
        MODEL.simulate,
        {
            "t": (np.full(4, 1.0), "array", "required", "shaped", {"negative": -1.0, "one axis more": np.ones((1, 4))}),
            "n": (4, "count"),
            "rng": (RNG, {"none": None, "seed": 0, "string": "0"}),
            "spread": (0.01, "at least 0"),
            "confounding": (0.5, "at least 0", {"above 1": 1.1}),
        },
    ),
}
