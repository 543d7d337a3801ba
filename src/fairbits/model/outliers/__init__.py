"""Controlled outliers: the same function with high-kurtosis weights, by exact rescaling (see docs/outliers.md)."""

from fairbits.model.outliers.couplings import Coupling, Route, Slice
from fairbits.model.outliers.plan import OutlierPlan, Rescaling, plan_outliers
from fairbits.model.outliers.write import write_with_outliers

__all__ = [
    "Coupling",
    "OutlierPlan",
    "Rescaling",
    "Route",
    "Slice",
    "plan_outliers",
    "write_with_outliers",
]
