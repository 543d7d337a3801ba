"""Groups of weights that a search for the best scale may stumble over."""

import numpy as np

SIZE = 32

MISSED = [
    (0, 2, "twos", False, 2014, 10), (0, 4, "twos", True, 624, 25), (0, 6, "twos", False, 2326, 0),
    (0, 6, "twos", True, 780, 19), (0, 6, "twos", True, 2890, 6), (0, 8, "twos", False, 1326, 30),
    (0, 8, "twos", False, 2362, 18), (0, 8, "twos", True, 1613, 13), (0, 8, "twos", True, 1647, 0),
    (0, 8, "twos", True, 2029, 22), (0, 8, "twos", True, 2328, 19), (0, 8, "twos", True, 2517, 25),
    (0, 8, "twos", True, 2873, 30), (5, 3, "symmetric", False, 2579, 30), (5, 3, "symmetric", True, 96, 18),
    (5, 3, "twos", False, 1115, 21),
]  # fmt: skip
"""Groups of 128 whose optimum an earlier kernel missed on an H200: seed, bits, grid, whether weighted, row, group.

They are groups of `heavy_tailed(3125, 4096, seed)` in bfloat16, with the importance `lognormal(4096)`.
"""


def heavy_tailed(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Returns weights in float32 whose tails are those of Student's t with 5 degrees of freedom."""
    return (0.02 * np.random.default_rng(seed).standard_t(5, (rows, columns))).astype(np.float32)


def lognormal(columns: int, seed: int = 1) -> np.ndarray:
    """Returns an importance of every column that spans a factor of about 400."""
    return np.exp(1.5 * np.random.default_rng(seed).standard_normal(columns))


def adversarial(size: int = SIZE) -> dict[str, np.ndarray]:
    """Returns rows of float32 weights by name: zeros, outliers, ties, tiny and huge numbers, wide ranges."""
    rng = np.random.default_rng(7)
    normal = rng.standard_normal(size)
    levels = rng.integers(-7, 8, size)
    one = np.zeros(size)
    one[size // 3] = -0.4
    outlier = normal.copy()
    outlier[1] = 300.0
    rows = {
        "zeros": np.zeros(size),
        "one weight": one,
        "one outlier": outlier,
        "all equal": np.full(size, 0.3),
        "two magnitudes": np.where(np.arange(size) % 2, 0.5, -0.25),
        "exactly representable": 0.0371 * levels,
        "halves": 0.5 * levels,
        "subnormal": 1e-41 * normal,
        "huge": 1e37 * normal,
        "tiny": 1e-30 * normal,
        "wide range": normal * 10.0 ** rng.uniform(-12, 0, size),
        "negative only": -np.abs(normal),
        "heavy tails": rng.standard_t(2, size),
        "uniform": rng.uniform(-1, 1, size),
        "nearly levels": 0.1 * levels + 1e-7 * normal,
    }
    return {name: row.astype(np.float32) for name, row in rows.items()}


def importances(size: int = SIZE) -> dict[str, np.ndarray]:
    """Returns importances of the weights of a group by name."""
    rng = np.random.default_rng(8)
    some = np.exp(rng.standard_normal(size))
    gaps = np.where(np.arange(size) % 3 == 0, 0.0, some)
    single = np.zeros(size)
    single[size // 3] = 2.5
    return {
        "lognormal": some,
        "with zeros": gaps,
        "one only": single,
        "wide range": 10.0 ** rng.uniform(-30, 5, size),
        "large": 1e200 * some,
    }
