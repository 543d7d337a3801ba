"""fairbits: quantize multilingual language models so that no language is left behind.

>>> import fairbits as fb
>>> fb.Checkpoint("embedded:tiny").architecture.n_blocks
12
"""

from importlib import import_module

from fairbits.core.version import __version__

TYPE_CHECKING = False  # true for type checkers, who know the name; importing `typing` would take most of the time
if TYPE_CHECKING:
    from typing import Any

    from fairbits.api.audit import audit as audit
    from fairbits.api.calibration_mix import mix as mix
    from fairbits.api.compare import compare as compare
    from fairbits.api.evaluate import evaluate as evaluate
    from fairbits.api.evaluate_tasks import evaluate_tasks as evaluate_tasks
    from fairbits.api.fairbits_config import FairbitsConfig as FairbitsConfig
    from fairbits.api.imatrix import imatrix as imatrix
    from fairbits.api.laaciq import laaciq as laaciq
    from fairbits.api.lm_eval_tasks import write_tasks as write_tasks
    from fairbits.api.make_plan import plan as plan
    from fairbits.api.overlay import overlay as overlay
    from fairbits.api.power import power as power
    from fairbits.api.quantize import quantize as quantize
    from fairbits.api.release import release as release
    from fairbits.api.report import report as report
    from fairbits.api.run import run as run
    from fairbits.api.screen import screen as screen
    from fairbits.api.sweep import sweep as sweep
    from fairbits.auditing.record import Audit as Audit
    from fairbits.evaluation.gate import gate as gate
    from fairbits.evaluation.lm_eval.gate_samples import gate_samples as gate_samples
    from fairbits.evaluation.scores import Scores as Scores
    from fairbits.kurtosis.diff import diff as diff
    from fairbits.models.checkpoint import Checkpoint as Checkpoint
    from fairbits.models.scales.scheme import Scheme as Scheme
    from fairbits.quantization.plan import Plan as Plan
    from fairbits.serve.overlays.adaptive_model import AdaptiveModel as AdaptiveModel
    from fairbits.text.corpus import Corpus as Corpus
    from fairbits.text.included_texts import help_text as help_text
    from fairbits.text.included_texts import udhr as udhr
    from fairbits.text.reading import read_corpus as read_corpus

_HOMES = {
    "AdaptiveModel": "fairbits.serve.overlays.adaptive_model",
    "Audit": "fairbits.auditing.record",
    "Checkpoint": "fairbits.models.checkpoint",
    "Corpus": "fairbits.text.corpus",
    "FairbitsConfig": "fairbits.api.fairbits_config",
    "Plan": "fairbits.quantization.plan",
    "Scheme": "fairbits.models.scales.scheme",
    "Scores": "fairbits.evaluation.scores",
    "audit": "fairbits.api.audit",
    "compare": "fairbits.api.compare",
    "diff": "fairbits.kurtosis.diff",
    "evaluate": "fairbits.api.evaluate",
    "evaluate_tasks": "fairbits.api.evaluate_tasks",
    "gate": "fairbits.evaluation.gate",
    "gate_samples": "fairbits.evaluation.lm_eval.gate_samples",
    "help_text": "fairbits.text.included_texts",
    "imatrix": "fairbits.api.imatrix",
    "laaciq": "fairbits.api.laaciq",
    "mix": "fairbits.api.calibration_mix",
    "overlay": "fairbits.api.overlay",
    "plan": "fairbits.api.make_plan",
    "power": "fairbits.api.power",
    "quantize": "fairbits.api.quantize",
    "read_corpus": "fairbits.text.reading",
    "release": "fairbits.api.release",
    "report": "fairbits.api.report",
    "run": "fairbits.api.run",
    "screen": "fairbits.api.screen",
    "sweep": "fairbits.api.sweep",
    "udhr": "fairbits.text.included_texts",
    "write_tasks": "fairbits.api.lm_eval_tasks",
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
    return __all__
