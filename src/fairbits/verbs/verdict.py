"""Verdict: the requirements of a gate, whether they are met, and the same as JUnit XML."""

import re
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

from fairbits.display.table import Shown, Table
from fairbits.errors import printable
from fairbits.stats import Estimate
from fairbits.units import MEASURE_LABELS
from fairbits.version import __version__

Outcome = Literal["pass", "fail", "undecided"]
NOT_IN_XML = re.compile("[\ufffe\uffff]")
"""Characters that `printable` keeps and XML forbids."""


@dataclass(frozen=True)
class Check:
    """One requirement, whether it is met, and the reason."""

    name: str
    outcome: Outcome
    reason: str
    limit: float | None = None
    estimate: Estimate | None = None


@dataclass(frozen=True, repr=False)
class Verdict(Shown):
    """All requirements of a gate; `improved` are the languages with significantly less damage than the baseline."""

    target: str
    measure: str
    unit: str
    checks: tuple[Check, ...]
    improved: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    signature: str = ""

    @property
    def passed(self) -> bool:
        """Whether every requirement is met; an undecided one is not."""
        return all(check.outcome == "pass" for check in self.checks)

    def __bool__(self) -> bool:
        """The same as `passed`, so that `if fairbits.gate(…):` releases nothing that fails."""
        return self.passed

    def _table(self) -> Table:
        """Returns the requirements, and whether each of them is met."""
        return Table(
            f"{'PASS' if self.passed else 'FAIL'}: {self.target}, {MEASURE_LABELS[self.measure]} in "
            f"{self.unit.replace('_', ' ')}",
            ("requirement", "outcome", "reason"),
            tuple((each.name, each.outcome, each.reason) for each in self.checks),
            self.notes,
        )

    @property
    def exit_code(self) -> int:
        """0 if every requirement is met, else 1."""
        return 0 if self.passed else 1

    @property
    def reason(self) -> str:
        """One line: what failed and what is undecided, or that everything passed; then the measure."""
        missed = [check for outcome in ("fail", "undecided") for check in self.checks if check.outcome == outcome]
        if not missed:
            said = f"pass: {'; '.join(check.reason for check in self.checks)}"
        else:
            said = "; ".join(f"{check.outcome}: {check.reason}" for check in missed)
        return f"{said} (measured by {MEASURE_LABELS.get(self.measure, self.measure)})"

    def as_data(self) -> dict[str, Any]:
        """Returns the verdict for JSON."""
        return {
            "schema": "fairbits.verdict/2",
            "fairbits": __version__,
            "target": self.target,
            "passed": self.passed,
            "reason": self.reason,
            "measure": self.measure,
            "unit": self.unit,
            "checks": [vars(each) | {"estimate": each.estimate and each.estimate.to_dict()} for each in self.checks],
            "improved": list(self.improved),
            "notes": list(self.notes),
            "signature": self.signature,
        }


def junit(verdict: Verdict) -> bytes:
    """Returns the verdict as JUnit XML: one test case per requirement; an undecided one counts as a failure."""
    missed = [check for check in verdict.checks if check.outcome != "pass"]
    counts = {"tests": str(len(verdict.checks)), "failures": str(len(missed)), "errors": "0", "skipped": "0"}
    suite = ElementTree.Element("testsuite", {"name": "fairbits gate", **counts, "time": "0"})
    for check in verdict.checks:
        names = {"classname": _xml(verdict.target), "name": _xml(check.name), "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", names)
        if check.outcome == "pass":
            ElementTree.SubElement(case, "system-out").text = _xml(check.reason)
        else:
            message = {"type": check.outcome, "message": _xml(check.reason)}
            ElementTree.SubElement(case, "failure", message).text = _xml(check.reason)
    found: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return found + b"\n"


def _xml(text: str) -> str:
    return NOT_IN_XML.sub("\ufffd", printable(text))
