"""READ FIRST. Tests of the research notes' predictions: one module per experiment, with a function of the same name
that takes a Laboratory and returns a Result.

| module               | holds                                                                        |
|----------------------|------------------------------------------------------------------------------|
| `laboratory`         | a model and its text, and the damage of replaced weights to every language   |
| `result`             | question, prediction, design, tables, figure, verdict, what it means         |
| `stored_results`     | the results that come with the package, and the page docs/research/experiments.md |
| `gaps`               | gaps between languages, compared by resampling the same documents            |
| `traits`             | traits of languages: damage, activation, tokenization, redundancy            |
| `trait_correlation`  | correlations between traits                                                  |
| `language_screening` | which languages of the declaration a model knows                             |
| `finer_tokenization` | the same text in more tokens (for `mediation`)                               |
| `gateway_trials`     | the damage with sets of blocks left unrounded (for `gateway_layers`)         |
| `sharing_costs`      | costs of one code and of own codes (for `price_of_sharing`)                  |
| `trained_models`     | models trained for an experiment (for `training_choices`)                    |
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.result import Answer, Result

__all__ = ["EXPERIMENTS", "Answer", "Laboratory", "Result", "Setting", "experiments_named", "run_experiment"]

EVERY = "all"
TRAINED = "training-choices"
"""The experiment that needs models trained for it."""
EXPERIMENTS: Mapping[str, str] = {
    "outliers": "Does disparity need outlier weights, and grow with them?",
    "correlations": "Are languages with more outlier activation damaged less?",
    "bit-threshold": "Does the largest κ set the width at which languages diverge?",
    "layer-ablation": "Does protecting the outlier layers halve the gap?",
    "training-data": "Does more training text mean more outlier activation?",
    "own-thresholds": "Do separate copies with their own thresholds narrow the gap?",
    "gateway-layers": "Are the first and the last layer the ones to protect?",
    "redundancy": "Does redundancy predict who is damaged?",
    "mediation": "Does tokenization act through alignment and redundancy alone?",
    "bounds": "Do the documents' bounds hold?",
    "calibration-language": "Does the language of calibration matter?",
    "price-of-sharing": "Does one code for all that follows the worst language help it?",
    "null-controls": "Is there no gap where there is hardly any rounding?",
    TRAINED: "Do training choices cause outliers and disparity?",
}
"""Name -> the tested prediction as a question, in the order of the page."""


def experiments_named(name: str) -> list[str]:
    """Returns the experiment with this name; for "all" every one that needs no models trained for it.

    >>> experiments_named("bounds"), TRAINED in experiments_named("all")
    (['bounds'], False)
    """
    if name == EVERY:
        return [each for each in EXPERIMENTS if each != TRAINED]
    return [one_of("the experiment", name, (*EXPERIMENTS, EVERY))]


def run_experiment(name: str, laboratory: Laboratory, *, models: str | Path | None = None) -> Result:
    """Returns the result of an experiment; `models` is the directory with the models of training-choices."""
    module = one_of("the experiment", name, tuple(EXPERIMENTS)).replace("-", "_")
    if (name == TRAINED) != (models is not None):
        raise InputError(
            f"{TRAINED} needs models and no other experiment takes them; give the directory of training/arms.py"
        )
    found = import_module(f"fairbits_research.experiments.{module}")
    if models is not None:
        trained: Result = found.training_choices(laboratory, found.models_in(models))
        return trained
    run: Callable[[Laboratory], Result] = getattr(found, module)
    return run(laboratory)
