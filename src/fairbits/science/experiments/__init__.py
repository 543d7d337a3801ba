"""READ FIRST. The predictions of the founding documents, tested: one experiment per module, each a function of the
same name from a Laboratory to a Result.

| module       | holds                                                                   |
|--------------|-------------------------------------------------------------------------|
| `laboratory` | a model and its text: what every language loses by what is done to it   |
| `result`     | question, prediction, design, tables, figure, verdict, what it means    |
| `gaps`       | gaps between languages, compared by drawing the same documents          |
| `ties`       | correlations between traits of languages                                |
| `records`    | the results that come with the package                                  |
| `render`     | results in the terminal                                                 |
| `page`       | all results as the page docs/results.md                                 |
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from fairbits.checks import one_of
from fairbits.errors import InputError
from fairbits.science.experiments.laboratory import Laboratory, Setting
from fairbits.science.experiments.result import Answer, Result

__all__ = ["EXPERIMENTS", "Answer", "Laboratory", "Result", "Setting", "conduct", "named"]

EVERY = "all"
TRAINED = "training-choices"
"""The experiment that compares models which were trained for it."""
EXPERIMENTS: Mapping[str, str] = {
    "outliers": "Does disparity need outlier weights, and grow with them?",
    "correlations": "Do languages with more outlier activation lose less?",
    "bit-threshold": "Does the largest κ tell at which width languages part?",
    "layer-ablation": "Does protecting the outlier layers halve the gap?",
    "training-data": "Does more training text mean more outlier activation?",
    "own-thresholds": "Do private copies with thresholds of their own narrow the gap?",
    "gateway-layers": "Are the first and the last layer the ones to protect?",
    "redundancy": "Does redundancy tell who is hurt?",
    "mediation": "Does tokenization act by alignment and redundancy alone?",
    "bounds": "Do the documents' bounds hold?",
    "calibration-language": "Does the language of calibration matter?",
    "null-controls": "Is there no gap where there is hardly any rounding?",
    TRAINED: "Do choices in training make outliers and disparity?",
}
"""Name -> the prediction that is tested, as a question; in the order of the page."""


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
    found = import_module(f"fairbits.science.experiments.{module}")
    if models is not None:
        trained: Result = found.training_choices(laboratory, found.models_in(models))
        return trained
    run: Callable[[Laboratory], Result] = getattr(found, module)
    return run(laboratory)
