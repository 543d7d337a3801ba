"""fairbits: quantize multilingual language models so that no language is left behind.

>>> import fairbits as fb
>>> fb.Checkpoint("embedded:tiny").architecture.n_blocks
12
"""

from importlib import import_module

from fairbits.version import __version__

TYPE_CHECKING = False  # true for type checkers, who know the name; importing `typing` would take most of the time
if TYPE_CHECKING:
    from typing import Any

    from fairbits.language import Corpus as Corpus
    from fairbits.language import help_text as help_text
    from fairbits.language import read_corpus as read_corpus
    from fairbits.language import udhr as udhr
    from fairbits.measure.audit.audit import Audit as Audit
    from fairbits.measure.scores.scores import Scores as Scores
    from fairbits.model import Checkpoint as Checkpoint
    from fairbits.model.scheme import Scheme as Scheme
    from fairbits.overlays.model import AdaptiveModel as AdaptiveModel
    from fairbits.quantization.plan import Plan as Plan
    from fairbits.verbs.audit import audit as audit
    from fairbits.verbs.compare import compare as compare
    from fairbits.verbs.diff import diff as diff
    from fairbits.verbs.evaluate import evaluate as evaluate
    from fairbits.verbs.fairbits_config import FairbitsConfig as FairbitsConfig
    from fairbits.verbs.gate import gate as gate
    from fairbits.verbs.gate_samples import gate_samples as gate_samples
    from fairbits.verbs.imatrix import imatrix as imatrix
    from fairbits.verbs.overlay import overlay as overlay
    from fairbits.verbs.plan import plan as plan
    from fairbits.verbs.quantize import quantize as quantize
    from fairbits.verbs.report import report as report
    from fairbits.verbs.run import run as run
    from fairbits.verbs.screen import screen as screen
    from fairbits.verbs.sweep import sweep as sweep
    from fairbits.verbs.tasks import write_tasks as write_tasks

_HOMES = {
    "AdaptiveModel": "fairbits.overlays.model",
    "Audit": "fairbits.measure.audit.audit",
    "Checkpoint": "fairbits.model",
    "Corpus": "fairbits.language",
    "FairbitsConfig": "fairbits.verbs.fairbits_config",
    "Plan": "fairbits.quantization.plan",
    "Scheme": "fairbits.model.scheme",
    "Scores": "fairbits.measure.scores.scores",
    "audit": "fairbits.verbs.audit",
    "compare": "fairbits.verbs.compare",
    "diff": "fairbits.verbs.diff",
    "evaluate": "fairbits.verbs.evaluate",
    "gate": "fairbits.verbs.gate",
    "gate_samples": "fairbits.verbs.gate_samples",
    "help_text": "fairbits.language",
    "imatrix": "fairbits.verbs.imatrix",
    "overlay": "fairbits.verbs.overlay",
    "plan": "fairbits.verbs.plan",
    "quantize": "fairbits.verbs.quantize",
    "read_corpus": "fairbits.language",
    "report": "fairbits.verbs.report",
    "run": "fairbits.verbs.run",
    "screen": "fairbits.verbs.screen",
    "sweep": "fairbits.verbs.sweep",
    "udhr": "fairbits.language",
    "write_tasks": "fairbits.verbs.tasks",
}
"""Where the names of the package live: they are imported when they are asked for, as torch takes seconds."""

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> "Any":
    """Returns a public name, imported now."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fairbits' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Returns the public names."""
    return sorted({*globals(), *_HOMES})
