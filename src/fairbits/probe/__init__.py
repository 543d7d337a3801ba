"""One pass over text: what every language does inside a model, and how much each linear map matters to its loss."""

from fairbits.probe.measurements import Measurements
from fairbits.probe.run import probe

__all__ = ["Measurements", "probe"]
