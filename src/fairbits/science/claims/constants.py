"""The corrected constants: the exact α*/σ of many laws, on both integer grids, at all useful bit widths."""

from fairbits.science.claims.evidence import GAUSSIAN, best_alpha, optimum
from fairbits.theory.clipping.formulas import REFITTED_CONSTANTS, banner_gaussian, banner_laplace
from fairbits.theory.distributions import (
    Distribution,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    StudentT,
    Uniform,
)
from fairbits.theory.grid import GridKind

BITS = (2, 3, 4, 5, 6, 8)
KAPPAS = (1.0, 3.0, 6.0, 20.0, 100.0, 200.0)


def constant_laws() -> dict[str, Distribution]:
    """Returns the unit-variance laws of the table, by name."""
    laws: dict[str, Distribution] = {"uniform": Uniform(), "Gaussian": GAUSSIAN, "Laplace": Laplace()}
    for kappa in KAPPAS:
        laws[f"t, κ = {kappa:g}"] = StudentT.with_kappa(kappa)
        laws[f"generalised Gaussian, κ = {kappa:g}"] = GeneralisedGaussian.with_kappa(kappa)
        for epsilon in (0.001, 0.01):
            laws[f"scale mixture ε = {epsilon:g}, κ = {kappa:g}"] = GaussianScaleMixture.with_kappa(
                kappa, epsilon=epsilon
            )
    return laws


def constants_markdown() -> list[str]:
    """Returns the tables of constants as lines of Markdown."""
    lines = [
        "## Constants",
        "",
        "Banner's constants under his own noise model, and the founding documents' form refitted (heuristic):",
        "",
    ]
    lines += ["| bits | Gaussian α/σ | Laplace α/b | refitted c_B | refitted d_B |", "|---|---|---|---|---|"]
    for bits, (c, d) in REFITTED_CONSTANTS.items():
        lines.append(
            f"| {bits} | {banner_gaussian(1.0, bits):.3f} | {banner_laplace(1.0, bits):.3f} | {c:.3f} | {d:.3f} |"
        )
    grids: dict[GridKind, str] = {"symmetric": "symmetric grid", "twos": "two's complement, α = 2^(B−1) steps"}
    for kind, title in grids.items():
        lines += [
            "",
            f"Exact α*/σ (MSE*/σ²), {title}:",
            "",
            "| law | " + " | ".join(f"{bits} bit" for bits in BITS) + " |",
        ]
        lines.append("|---" * (len(BITS) + 1) + "|")
        for name, law in constant_laws().items():
            lines.append(f"| {name} | " + " | ".join(_cell(law, bits, kind) for bits in BITS) + " |")
    return [*lines, ""]


def _cell(law: Distribution, bits: int, kind: GridKind) -> str:
    return f"{best_alpha(law, bits, kind):.3f} ({optimum(law, bits, kind).value:.3g})"
