"""One pass over text: what every language does inside a model, and how much each linear map matters to its loss."""

from fairbits.measure.passes.measurements import Measurements
from fairbits.measure.passes.run import probe

__all__ = ["Measurements", "probe"]
