"""The mathematics that only the research notes need: bounds, thresholds, redundancy, mediation."""
