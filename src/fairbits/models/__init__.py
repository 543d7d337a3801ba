"""Models: checkpoints that are read tensor by tensor, their architecture, scales, files."""
