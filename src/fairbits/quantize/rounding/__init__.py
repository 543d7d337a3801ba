"""From a plan to codes: steps, rounding, and the walk through a model block by block."""
