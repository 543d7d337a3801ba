"""Every claim of the research notes, with a verdict that can be recomputed; one module per part of a document."""

from fairbits.core.errors import InputError
from fairbits_research.claims import (  # noqa: F401 - importing a module enters its claims in CLAIMS
    derivation,
    framework_definitions,
    framework_proposals,
    mathematical_summary,
    proofs_error_bounds,
    proofs_gateway_mediation,
    refined_causes,
    refined_predictions,
)
from fairbits_research.claims.claim import CLAIMS, DOCUMENTS, Claim


def all_claims() -> list[Claim]:
    """Returns every claim, by id."""
    return [CLAIMS[id] for id in sorted(CLAIMS)]


def find_claim(id: str) -> Claim:
    """Returns the claim with this id, such as `004-13`."""
    if id not in CLAIMS:
        near = [known_id for known_id in sorted(CLAIMS) if known_id.startswith(id[:3])] or list(DOCUMENTS)
        raise InputError(f"there is no claim {id!r}; ids look like 004-13. Known here: {', '.join(near)}")
    return CLAIMS[id]
