"""Scales: the grids, the groups that share a scale, and the exact clip."""
