"""The claims as JSON and as the page docs/research/theory.md, which also lists the corrected constants."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fairbits.models.scales.clip_formulas import banner_gaussian, banner_laplace
from fairbits.models.scales.grid import GridKind
from fairbits_research.claims.claim import DOCUMENTS, RECORDS, Claim, Finding, Verdict
from fairbits_research.claims.claim_evidence import GAUSSIAN, best_alpha, optimum
from fairbits_research.claims.statements import commands_by_claim
from fairbits_research.theory.distributions import (
    Distribution,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    StudentT,
    Uniform,
)
from fairbits_research.theory.threshold_formulas import REFITTED_CONSTANTS

Results = Mapping[Claim, Finding]


MARKS = {Verdict.HOLDS: "✓", Verdict.CONDITIONAL: "~", Verdict.FAILS: "✗", Verdict.UNDECIDED: "?"}

PLURALS = {
    Verdict.HOLDS: "hold",
    Verdict.CONDITIONAL: "hold under a condition",
    Verdict.FAILS: "do not hold",
    Verdict.UNDECIDED: "are undecided",
}


def brief_number(value: float) -> str:
    """Returns a whole number in full, and any other to four significant digits.

    >>> brief_number(0.83412), brief_number(100000.0), brief_number(2.1e-05)
    ('0.8341', '100000', '2.1e-05')
    """
    return f"{value + 0.0:.0f}" if value.is_integer() and abs(value) < 1e9 else f"{value:.4g}"


def as_data(results: Results) -> dict[str, Any]:
    """Returns the claims and their findings for JSON."""
    return {
        "counts": {verdict.value: count for verdict, count in _count_verdicts(results.values()).items()},
        "claims": [
            {
                "id": claim.id,
                "document": DOCUMENTS[claim.document],
                "statement": claim.statement,
                "verdict": finding.verdict.value,
                "summary": finding.summary,
                "numbers": dict(finding.numbers),
                "derivation": claim.derivation,
                "command": finding.command,
            }
            for claim, finding in results.items()
        ],
    }


def as_markdown(results: Results) -> str:
    """Returns the page docs/research/theory.md."""
    page = (
        (RECORDS / "theory-page.md")
        .read_text(encoding="utf-8")
        .replace("COUNTS", f"**{count_words(results.values())}**")
    )
    lines = [*page.splitlines(), "", *constants_markdown()]
    document = None
    for claim, finding in results.items():
        if claim.document != document:
            document = claim.document
            lines += [f"## Document {document}: {DOCUMENTS[document].lower()}", ""]
        lines += _entry(claim, finding)
    return "\n".join(lines).rstrip() + "\n"


def count_words(findings: Iterable[Finding]) -> str:
    """Returns the number of claims per verdict, in words."""
    tally = _count_verdicts(findings)
    parts = [f"{count} {verdict.value if count == 1 else PLURALS[verdict]}" for verdict, count in tally.items()]
    total = sum(tally.values())
    return f"{total} claim{'s' if total != 1 else ''}: {', '.join(parts)}"


def number_words(name: str) -> str:
    """Returns a number's name as words."""
    return name.replace("_", " ")


def _count_verdicts(findings: Iterable[Finding]) -> dict[Verdict, int]:
    tally = Counter(finding.verdict for finding in findings)
    return {verdict: tally[verdict] for verdict in Verdict if tally[verdict]}


def _sentence(text: str) -> str:
    """Capitalises a Latin first letter; a symbol such as κ stays as it is."""
    return text[0].upper() + text[1:] if text[0].isascii() else text


def _entry(claim: Claim, finding: Finding) -> list[str]:
    lines = [
        f"### {claim.id} {MARKS[finding.verdict]} {finding.verdict.value} {{ #{claim.id} }}",
        "",
        f"> {claim.statement}",
        "",
        f"{_sentence(finding.summary)}.",
    ]
    if finding.command:
        lines += ["", f"Measured by `{finding.command}`."]
    if commands := commands_by_claim().get(claim.id):
        lines += ["", f"On your model: {', '.join(f'`{command}`' for command in commands)}."]
    if finding.numbers:
        lines += ["", *(f"- {number_words(name)}: {brief_number(value)}" for name, value in finding.numbers.items())]
    return [*lines, "", claim.derivation, ""]


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
        "Banner's constants under his own noise model, and the research notes' form refitted (heuristic):",
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
            "| distribution | " + " | ".join(f"{bits} bit" for bits in BITS) + " |",
        ]
        lines.append("|---" * (len(BITS) + 1) + "|")
        for name, law in constant_laws().items():
            lines.append(f"| {name} | " + " | ".join(_cell(law, bits, kind) for bits in BITS) + " |")
    return [*lines, ""]


def _cell(law: Distribution, bits: int, kind: GridKind) -> str:
    return f"{best_alpha(law, bits, kind):.3f} ({optimum(law, bits, kind).value:.3g})"
