"""What is known of a model without running it."""

from fairbits.api.inspect import inspect
from fairbits.models.checkpoint import Checkpoint


def test_an_inspection_has_the_blocks_and_their_moments() -> None:
    seen = []
    inspection = inspect("embedded:tiny", progress=lambda _, done, total: seen.append((done, total)))
    data = inspection.as_data()
    assert data["schema"] == "fairbits.inspection/1"
    assert data["fingerprint"] == Checkpoint("embedded:tiny").fingerprint
    assert len(inspection.moments.blocks) == inspection.checkpoint.architecture.n_blocks == 12
    assert seen[-1][0] == seen[-1][1]
