"""Who is at risk, from weight moments and activation sums alone: NumPy and SciPy, no deep-learning framework.

`founding_view` is the founding documents' reading, as written; `certificate` is the rigorous bound that replaces it.
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
