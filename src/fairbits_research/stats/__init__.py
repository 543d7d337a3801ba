"""Statistics that only the experiments need: tests of correlations, mediation, sensitivity to unmeasured causes."""
