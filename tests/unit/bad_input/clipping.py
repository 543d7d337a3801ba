"""Exact thresholds of laws, samples and blocks, and thresholds by formula."""

import numpy as np

from fairbits.theory.clipping import blocks, exact, formulas
from fairbits.theory.distributions import Distribution, Gaussian, Laplace
from fairbits.theory.grid import Grid
from fairbits.theory.moments import Moments

LAW, GRID = Gaussian(), Grid(3)
W = np.array([[0.5, -1.0, 0.25, 0.75], [0.1, 0.2, -0.3, 0.9]])
H = np.array([[1.0, 2.0, 0.5, 1.0], [0.1, 0.1, 3.0, 1.0]])

SAMPLE = (W[0], "array", "required")
MATRIX = (W, "array", "required", {"flat": W[0], "three axes": W[None], "scalar": 1.0, "bools": W > 0})
GROUP = (2, {"not a divisor": 3, "longer than a row": 8, "zero": 0, "half": 2.5, "string": "2", "true": True})
SOURCE, A_GRID = (LAW, "object"), (GRID, "object")
TOLERANCE = (1e-6, "positive")
ONE_LANGUAGE = (H[0], "array", "shaped", "nonnegative")
LANGUAGES = (H, "array", "required", "shaped", "nonnegative", "not all zero", {"a dead language": H * [[1.0], [0.0]]})


class Point(Distribution):
    """A law whose values all equal `value`, and which a grid can therefore represent without error."""

    def __init__(self, value):
        self.value, self.moments = value, Moments(np.inf, value, 0.0, 0.0, 0.0)

    moments = None

    def upper(self, x):
        """Returns the moments of order 0, 1, 2 above x."""
        return tuple(np.where(self.value > x, self.value**k, 0.0) for k in range(3))

    def lower(self, x):
        """Returns the moments of order 0, 1, 2 below −x."""
        return tuple(np.where(-self.value > x, abs(self.value) ** k, 0.0) for k in range(3))


ROWS = {
    "clip_law": (exact.clip_law, {"source": SOURCE, "grid": A_GRID, "tolerance": TOLERANCE}),
    "clip_sample": (
        exact.clip_sample,
        {"w": SAMPLE, "grid": A_GRID, "importance": (*ONE_LANGUAGE, "not all zero"), "tolerance": TOLERANCE},
    ),
    "minimax_law": (exact.minimax_law, {"laws": ([LAW, Laplace()], "objects"), "grid": A_GRID}),
    "minimax_law, relative": (
        lambda laws: exact.minimax_law(laws, GRID, relative=True),
        {"laws": ([LAW, Laplace()], "objects", {"without error": [LAW, Point(1.0)]})},
    ),
    "minimax_sample": (
        exact.minimax_sample,
        {"w": (*SAMPLE, "not all zero"), "grid": A_GRID, "importance": (*LANGUAGES, {"one language": H[0]})},
    ),
    "minimax_sample, relative": (
        lambda w, importance: exact.minimax_sample(w, GRID, importance=importance, relative=True),
        {"w": (*SAMPLE, {"without error": [0.5, 1.0, -0.5, 0.0]}), "importance": LANGUAGES},
    ),
    "check_signed": (
        lambda grid: exact.check_signed(grid, True),
        {"grid": (Grid(3, "twos"), "object", {"symmetric": GRID, "midrise": Grid(3, "midrise")})},
    ),
    "clip_blocks": (
        blocks.clip_blocks,
        {"W": MATRIX, "grid": A_GRID, "group": GROUP, "importance": (*ONE_LANGUAGE, {"one row": H[:1]})},
    ),
    "clip_blocks, signed": (
        lambda grid: blocks.clip_blocks(W, grid, signed=True),
        {"grid": (Grid(3, "twos"), {"symmetric": GRID, "midrise": Grid(3, "midrise")})},
    ),
    "minimax_blocks": (
        blocks.minimax_blocks,
        {
            "W": MATRIX,
            "grid": A_GRID,
            "importance": (*LANGUAGES, {"one language": H[0]}),
            "group": GROUP,
            "objective": ("worst", "choice"),
        },
    ),
    "minimax_blocks, regret": (
        lambda W, importance: blocks.minimax_blocks(W, GRID, importance=importance, objective="regret"),
        {"W": MATRIX, "importance": LANGUAGES},
    ),
    "noise_constant": (formulas.noise_constant, {"bits": (4, "bits"), "model": ("seed", "choice")}),
    "additive_alpha": (
        formulas.additive_alpha,
        {"source": (LAW, "object", {"a point at 0": Point(0.0)}), "c": (0.01, "positive")},
    ),
    "banner_gaussian": (formulas.banner_gaussian, {"sigma": (1.0, "positive"), "bits": (4, "bits")}),
    "banner_laplace": (formulas.banner_laplace, {"laplace_b": (1.0, "positive"), "bits": (4, "bits")}),
    "kappa_alpha": (
        formulas.kappa_alpha,
        {
            "sigma": (1.0, "positive"),
            "kappa": (3.0, "number", {"minus 1": -1.0}),
            "constants": (
                (2.5, 0.3),
                {"one": (2.5,), "three": (1, 2, 3), "nan": (np.nan, 1.0), "none": None, "strings": ("a", "b"), "no": 3},
            ),
        },
    ),
}
