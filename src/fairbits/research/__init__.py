"""READ FIRST. The predictions of the founding documents, tested: one experiment per module, each a function of the
same name from a Laboratory to a Result.

| module       | holds                                                                   |
|--------------|-------------------------------------------------------------------------|
| `laboratory` | a model and its text: what every language loses by what is done to it   |
| `result`     | question, prediction, design, tables, figure, verdict, what it means    |
| `records`    | the results that come with the package                                  |
| `render`     | results in the terminal                                                 |
| `page`       | all results as the page docs/results.md                                 |
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from fairbits.checks import one_of
from fairbits.errors import InputError
from fairbits.research.laboratory import Laboratory, Setting
from fairbits.research.result import Answer, Result

__all__ = ["EXPERIMENTS", "Answer", "Laboratory", "Result", "Setting", "conduct", "named"]

EVERY = "all"
TRAINED = "training-choices"
"""The experiment that compares models which were trained for it."""
EXPERIMENTS: Mapping[str, str] = {
    "outliers": "Does disparity need outlier weights?",
    "correlations": "Does outlier activation tell damage?",
    "bit-threshold": "At which width do languages part?",
    "layer-ablation": "Does it help to protect the outlier layers?",
    "training-data": "Does the training share tell outlier activation and damage?",
    "own-thresholds": "Do thresholds of its own help a language?",
    "gateway-layers": "Are the first and the last layer the ones to protect?",
    "redundancy": "Does redundancy protect a language?",
    "mediation": "Does tokenization act through alignment and redundancy?",
    "bounds": "Do the documents' bounds hold?",
    "calibration-language": "Whom does calibration on one language help?",
    "null-controls": "Would it show without quantization?",
    TRAINED: "Which choice in training makes outliers and disparity?",
}
"""Name -> what it asks, in the order of the page."""


def named(name: str) -> list[str]:
    """Returns the experiment of a name; for "all" those that need no models of their own.

    >>> named("bounds"), TRAINED in named("all")
    (['bounds'], False)
    """
    if name == EVERY:
        return [each for each in EXPERIMENTS if each != TRAINED]
    return [one_of("the experiment", name, (*EXPERIMENTS, EVERY))]


def conduct(name: str, laboratory: Laboratory, *, models: str | Path | None = None) -> Result:
    """Returns the result of an experiment; `models` is where those of training-choices lie."""
    module = one_of("the experiment", name, tuple(EXPERIMENTS)).replace("-", "_")
    if (name == TRAINED) != (models is not None):
        raise InputError(f"models are for {TRAINED} alone, which needs them: the directory training/arms.py wrote")
    found = import_module(f"fairbits.research.{module}")
    if models is not None:
        trained: Result = found.training_choices(laboratory, found.models_in(models))
        return trained
    run: Callable[[Laboratory], Result] = getattr(found, module)
    return run(laboratory)
