"""Grids, distributions, moments, noise, bounds, language-aware thresholds and the refitted constants."""

import numpy as np

from fairbits.science.theory import bounds, thresholds
from fairbits.theory import moments
from fairbits.theory.distributions import (
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    Mixture,
    StudentT,
    Uniform,
)
from fairbits.theory.grid import Grid
from fairbits.theory.moments import Moments
from fairbits.theory.noise import additive_mse, mse, noise, sample_error

LAW, GRID = Gaussian(), Grid(4)
SYMMETRIC = {"sigma": (1.0, "positive"), "mean": (0.5, "number")}
W, H = np.array([0.5, -1.0, 0.25, 0.75]), np.array([1.0, 2.0, 0.5, 1.0])
PATTERN, OTHER = np.array([0.2, 0.8]), np.array([0.6, 0.4])
PARTS = [Moments.of([1.0, 2.0, 4.0]), Moments.of([0.0, 1.0])]
LAWS = [Gaussian(), Laplace(2.0)]
CURVES = thresholds.loss_curves(2)

SAMPLE = (W, "array", "required")
WEIGHTS = (H, "array", "shaped", "nonnegative", "not all zero")
POINTS = (np.array([0.5, 2.0]), "array", "required")
STEPS = (np.array([0.25, 0.5, 0.25, 0.5]), "array", "required", "shaped", {"negative": -1.0})
CODES = (np.array([-7, 0, 3, 7]), "array", "required", {"too large": [8], "too small": [-8], "between": [0.5]})
SHARES = (PATTERN, "array", "required", "shaped", "flat", "nonnegative", "not all zero")
STEP = (0.3, "number", {"zero": 0.0, "negative": -0.3})
SOURCE, A_GRID = (LAW, "object"), (GRID, "object")

ROWS = {
    "Grid": (Grid, {"bits": (4, "bits"), "kind": ("twos", "choice")}),
    "Grid.step": (GRID.step, {"alpha": (*POINTS, "nonnegative")}),
    "Grid.alpha": (GRID.alpha, {"step": POINTS}),
    "Grid.codes": (GRID.codes, {"x": SAMPLE, "step": STEPS}),
    "Grid.values": (GRID.values, {"codes": CODES, "step": STEPS}),
    "Grid.quantize": (GRID.quantize, {"x": SAMPLE, "step": STEPS}),
    "Distribution.beyond": (LAW.beyond, {"x": (*POINTS, "nonnegative")}),
    "Symmetric.upper": (LAW.upper, {"x": POINTS}),
    "Symmetric.lower": (LAW.lower, {"x": POINTS}),
    "Gaussian": (Gaussian, SYMMETRIC),
    "Uniform": (Uniform, SYMMETRIC),
    "Laplace": (Laplace, SYMMETRIC),
    "StudentT": (StudentT, SYMMETRIC | {"dof": (5.0, "positive", {"two": 2.0})}),
    "StudentT.with_kappa": (StudentT.with_kappa, {"kappa": (3.0, "positive"), "sigma": (1.0, "positive")}),
    "GeneralisedGaussian": (GeneralisedGaussian, SYMMETRIC | {"shape": (1.5, "positive")}),
    "GeneralisedGaussian.with_kappa": (
        GeneralisedGaussian.with_kappa,
        {"kappa": (3.0, "number", {"uniform": -1.2, "less": -2.0}), "sigma": (1.0, "positive")},
    ),
    "GaussianScaleMixture": (
        GaussianScaleMixture,
        SYMMETRIC | {"epsilon": (0.1, "share"), "spread": (3.0, "positive", {"below 1": 0.9})},
    ),
    "GaussianScaleMixture.with_kappa": (
        GaussianScaleMixture.with_kappa,
        {"kappa": (3.0, "at least 0", {"too large": 27.0}), "epsilon": (0.1, "share"), "sigma": (1.0, "positive")},
    ),
    "Mixture": (Mixture, {"parts": (LAWS, "objects"), "weights": SHARES}),
    "Mixture.upper": (Mixture(LAWS, PATTERN).upper, {"x": POINTS}),
    "Mixture.lower": (Mixture(LAWS, PATTERN).lower, {"x": POINTS}),
    "Moments": (
        Moments,
        {
            "n": (4, {"nan": np.nan, "zero": 0, "negative": -1, "string": "4", "none": None, "array": np.ones(2)}),
            "mean": (0.5, "number"),
            "variance": (2.0, "at least 0"),
            "skewness": (0.1, "number"),
            "kappa": (1.0, {"nan": np.nan, "string": "1", "none": None, "less": -2.1, "array": np.ones(2)}),
        },
    ),
    "Moments.of": (Moments.of, {"sample": SAMPLE, "weights": WEIGHTS}),
    "Moments.__add__": (PARTS[0].__add__, {"other": (PARTS[1], "object", {"a law's": LAW.moments})}),
    "mixture_moments": (
        moments.mixture_moments,
        {"parts": (PARTS, "objects"), "weights": SHARES, "n": (2.0, {"nan": np.nan, "zero": 0.0, "none": None})},
    ),
    "kappa_weighted": (
        moments.kappa_weighted,
        {"activation": SHARES, "kappa": (np.array([3.0, 9.0]), "array", "required", "shaped", "flat")},
    ),
    "kappa_mixture": (moments.kappa_mixture, {"activation": SHARES, "parts": (PARTS, "objects")}),
    "mse": (mse, {"source": SOURCE, "grid": A_GRID, "step": (*STEPS[:3], {"negative": -1.0, "zero": 0.0})}),
    "noise": (noise, {"source": SOURCE, "grid": A_GRID, "step": STEP}),
    "additive_mse": (
        additive_mse,
        {"source": SOURCE, "alpha": (*POINTS, "nonnegative"), "c": (0.01, "positive")},
    ),
    "sample_error": (
        sample_error,
        {
            "w": SAMPLE,
            "grid": A_GRID,
            "step": (0.3, "number", {"negative": -0.3}),
            "importance": (H, "array", "shaped", "nonnegative"),
        },
    ),
    "disparity": (bounds.disparity, {"damage": (H, "array", "required", "flat")}),
    "conjecture_bound": (
        bounds.conjecture_bound,
        {"kappa_eff": (H, "array", "required", "flat"), "C": (0.009, "positive")},
    ),
    "variance_bound": (
        bounds.variance_bound,
        {
            "slope": (PATTERN, "array", "required", "shaped"),
            "activations": (np.array([[0.2, 0.8], [0.6, 0.4]]), "array", "required", "shaped", {"flat": [0.2, 0.8]}),
            "variance": (OTHER, "array", "required", "shaped", "nonnegative"),
        },
    ),
    "revised_estimate": (
        bounds.revised_estimate,
        {
            "r": (-0.8, "number", {"above 1": 1.1}),
            "activation_range": (0.03, "positive"),
            "kappa_range": (160.0, "positive"),
            "C": (0.01, "positive"),
        },
    ),
    "total_variation": (bounds.total_variation, {"p": SHARES, "q": SHARES}),
    "tv_bound": (bounds.tv_bound, {"p": SHARES, "q": SHARES, "errors": SHARES[:-1]}),
    "own_optimum_bound": (
        bounds.own_optimum_bound,
        {"p": SHARES, "q": SHARES, "errors_p": SHARES[:-1], "errors_q": SHARES[:-1]},
    ),
    "excess_bounds": (bounds.excess_bounds, {"source": SOURCE, "alpha": (3.0, "positive"), "c": (0.01, "positive")}),
    "alpha_limit": (bounds.alpha_limit, {"kappa": (1.0, "number", {"less": -2.5}), "c": (0.01, "positive")}),
    "alpha_by_kappa": (
        thresholds.alpha_by_kappa,
        {
            "sigma": (1.0, "positive"),
            "activation": SHARES,
            "kappa": (np.array([3.0, 9.0]), "array", "required", "shaped", "flat", {"less": [-2.0, -1.5]}),
            "constants": ((2.5, 0.3), {"one": (2.5,), "nan": (np.nan, 1.0), "none": None, "strings": ("a", "b")}),
        },
    ),
    "alpha_by_mixture": (
        thresholds.alpha_by_mixture,
        {"parts": (LAWS, "objects"), "activation": SHARES, "grid": A_GRID},
    ),
    "alpha_by_product": (
        thresholds.alpha_by_product,
        {"w": SAMPLE, "activation": (H, "array", "required", "shaped", "nonnegative"), "grid": A_GRID},
    ),
    "alpha_by_importance": (thresholds.alpha_by_importance, {"w": SAMPLE, "importance": WEIGHTS, "grid": A_GRID}),
    "separable": (
        thresholds.separable,
        {
            "parts": (LAWS, "objects"),
            "activations": (
                np.array([PATTERN, OTHER]),
                *("array", "required", "shaped", "nonnegative", "not all zero"),
                {"flat": PATTERN, "one zero row": [[0.0, 0.0], [0.5, 0.5]]},
            ),
            "grid": A_GRID,
        },
    ),
    "families": (thresholds.families, {"kappa": (20.0, "at least 0")}),
    "loss_curves": (thresholds.loss_curves, {"bits": (2, "bits")}),
    "refit": (thresholds.refit, {"curves": (CURVES, "object")}),
    "LossCurves.losses": (CURVES.losses, {"c": (2.0, "number"), "d": (0.3, "number")}),
}
