"""Every claim of the research notes, with a verdict that can be recomputed; one module per part of a document."""

from collections.abc import Iterator
from importlib import import_module

from fairbits.core.errors import InputError
from fairbits_research.claims.claim import DOCUMENTS, Claim, Finding, Verdict

__all__ = ["DOCUMENTS", "Claim", "Finding", "Verdict", "all_claims", "find_claim"]

_MODULES = (
    "framework_clipping",
    "framework_evidence",
    "framework_options",
    "framework_proposals",
    "refined_causes",
    "refined_bounds",
    "refined_predictions",
    "summary_definitions",
    "summary_results",
    "derivation_setup",
    "derivation_results",
    "proofs_redundancy",
    "proofs_clipping",
    "proofs_effective_weights",
    "proofs_gateway",
    "proofs_mediation",
)


def all_claims() -> list[Claim]:
    """Returns every claim, by id."""
    return sorted(_claims(), key=lambda claim: claim.id)


def find_claim(id: str) -> Claim:
    """Returns the claim with this id, such as `004-13`."""
    claims = {claim.id: claim for claim in _claims()}
    if id not in claims:
        near = [known for known in sorted(claims) if known.startswith(id[:3])] or list(DOCUMENTS)
        raise InputError(f"there is no claim {id!r}; ids look like 004-13. Known here: {', '.join(near)}")
    return claims[id]


def _claims() -> Iterator[Claim]:
    for name in _MODULES:
        for value in vars(import_module(f"fairbits_research.claims.{name}")).values():
            if isinstance(value, Claim):
                yield value
