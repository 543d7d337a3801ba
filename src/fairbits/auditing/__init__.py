"""Which languages are at risk, from weight moments and activation sums alone. Needs NumPy and SciPy, but no torch.

`founding_view` applies the research notes as written; `certificate` is the rigorous bound that replaces them.
"""
