"""Every claim of the research notes, with a verdict that can be recomputed; one module per part of a document."""

from collections.abc import Iterator

from fairbits.core.errors import InputError
from fairbits_research.claims import (
    derivation,
    framework_definitions,
    framework_proposals,
    mathematical_summary,
    proofs_error_bounds,
    proofs_gateway_mediation,
    refined_causes,
    refined_predictions,
)
from fairbits_research.claims.claim import DOCUMENTS, Claim

MODULES = (
    derivation,
    framework_definitions,
    framework_proposals,
    mathematical_summary,
    proofs_error_bounds,
    proofs_gateway_mediation,
    refined_causes,
    refined_predictions,
)


def all_claims() -> list[Claim]:
    """Returns every claim, by id."""
    return sorted(_claims(), key=lambda claim: claim.id)


def find_claim(id: str) -> Claim:
    """Returns the claim with this id, such as `004-13`."""
    claims = {claim.id: claim for claim in _claims()}
    if id not in claims:
        near = [known_id for known_id in sorted(claims) if known_id.startswith(id[:3])] or list(DOCUMENTS)
        raise InputError(f"there is no claim {id!r}; ids look like 004-13. Known here: {', '.join(near)}")
    return claims[id]


def _claims() -> Iterator[Claim]:
    for module in MODULES:
        for value in vars(module).values():
            if isinstance(value, Claim):
                yield value
