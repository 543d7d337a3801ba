"""Controlled outliers: the same function with high-kurtosis weights, by exact rescaling."""
