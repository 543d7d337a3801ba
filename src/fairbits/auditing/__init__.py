"""Which languages are at risk, from weight moments and activation sums alone. Needs NumPy and SciPy, but no torch.

`founding_view` applies the founding documents as written; `certificate` is the rigorous bound that replaces them.
"""
