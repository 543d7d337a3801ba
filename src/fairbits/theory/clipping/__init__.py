"""Clip thresholds: formulas, certified optima, many blocks at once, streams."""
