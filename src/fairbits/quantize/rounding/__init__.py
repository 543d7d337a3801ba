"""From a plan to codes: scales, rounding, and the walk through a model block by block."""
