"""Which languages are at risk, from weight moments and activation sums alone. Needs NumPy and SciPy, but no torch.

`founding_view` applies the founding documents as written; `certificate` is the rigorous bound that replaces them.
"""

from fairbits.measure.audit.certificate import Certificate, Gap, WeightedError, activation_weighted, certificate
from fairbits.measure.audit.founding_documents import ChecklistItem, Condition, FoundingView, Strategy, founding_view
from fairbits.measure.audit.outliers import OutlierBlocks, founding_outliers, robust_outliers
from fairbits.measure.audit.patterns import Pattern
from fairbits.measure.audit.redundancy import Redundancy, redundancy

__all__ = [
    "Certificate",
    "ChecklistItem",
    "Condition",
    "FoundingView",
    "Gap",
    "OutlierBlocks",
    "Pattern",
    "Redundancy",
    "Strategy",
    "WeightedError",
    "activation_weighted",
    "certificate",
    "founding_outliers",
    "founding_view",
    "redundancy",
    "robust_outliers",
]
