"""Trials: a loaded model whose weights are swapped for those of a plan, and the resulting scores."""
