"""fairbits: quantize multilingual language models so that no language is left behind.

>>> import fairbits as fb
>>> fb.Checkpoint("embedded:tiny").architecture.n_blocks
12
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fairbits.adaptive.model import AdaptiveModel as AdaptiveModel
    from fairbits.evaluation.scores import Scores as Scores
    from fairbits.language import Corpus as Corpus
    from fairbits.language import read_corpus as read_corpus
    from fairbits.language import udhr as udhr
    from fairbits.model import Checkpoint as Checkpoint
    from fairbits.model.scheme import Scheme as Scheme
    from fairbits.plans import Plan as Plan
    from fairbits.risk.audit import Audit as Audit
    from fairbits.steps.audit import audit as audit
    from fairbits.steps.compare import compare as compare
    from fairbits.steps.diff import diff as diff
    from fairbits.steps.evaluate import evaluate as evaluate
    from fairbits.steps.gate import gate as gate
    from fairbits.steps.overlay import overlay as overlay
    from fairbits.steps.plan import plan as plan
    from fairbits.steps.quantize import quantize as quantize
    from fairbits.steps.report import report as report
    from fairbits.steps.run import run as run
    from fairbits.steps.screen import screen as screen
    from fairbits.steps.sweep import sweep as sweep

_HOMES = {
    "AdaptiveModel": "fairbits.adaptive.model",
    "Audit": "fairbits.risk.audit",
    "Checkpoint": "fairbits.model",
    "Corpus": "fairbits.language",
    "Plan": "fairbits.plans",
    "Scheme": "fairbits.model.scheme",
    "Scores": "fairbits.evaluation.scores",
    "audit": "fairbits.steps.audit",
    "compare": "fairbits.steps.compare",
    "diff": "fairbits.steps.diff",
    "evaluate": "fairbits.steps.evaluate",
    "gate": "fairbits.steps.gate",
    "overlay": "fairbits.steps.overlay",
    "plan": "fairbits.steps.plan",
    "quantize": "fairbits.steps.quantize",
    "read_corpus": "fairbits.language",
    "report": "fairbits.steps.report",
    "run": "fairbits.steps.run",
    "screen": "fairbits.steps.screen",
    "sweep": "fairbits.steps.sweep",
    "udhr": "fairbits.language",
}
"""Where the names of the package live: they are imported when they are asked for, as torch takes seconds."""

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    """Returns a public name, imported now."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fairbits' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return sorted({*globals(), *_HOMES})
