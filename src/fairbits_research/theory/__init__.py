"""The mathematics that only the founding documents need: bounds, thresholds, redundancy, mediation."""
