"""The public 14-language table behind the founding documents, with its provenance."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from fairbits.checks import Floats, one_of


@dataclass(frozen=True)
class FoundingStatistics:
    """What the founding documents published. Illustrative: reproduce it, never learn from it."""

    provenance: str
    languages: tuple[str, ...]
    script: tuple[str, ...]
    degradation: Floats
    outlier_activation: Floats
    kappa_weighted: Floats
    tokens: Floats
    outlier_layers: tuple[int, ...]
    kurtosis: dict[str, Floats]
    """Per-layer excess kurtosis of BLOOM-560M, XGLM-564M and GPT-2."""
    max_kurtosis: dict[str, float]
    published: dict[str, float | list[float]]

    @property
    def latin(self) -> Floats:
        """1 for languages in Latin script, else 0."""
        return np.array([float(code == "Latn") for code in self.script])

    def rows(self, *languages: str) -> list[int]:
        """Returns the row of each language."""
        return [self.languages.index(one_of("language", lang, self.languages)) for lang in languages]


@cache
def founding_statistics() -> FoundingStatistics:
    """Returns the table as shipped in `assets/founding_statistics.json`.

    >>> len(founding_statistics().languages)
    14
    """
    text = resources.files("fairbits").joinpath("assets/founding_statistics.json").read_text(encoding="utf-8")
    data = json.loads(text)
    columns = {key: [row[key] for row in data["languages"]] for key in data["languages"][0]}
    return FoundingStatistics(
        provenance=data["provenance"],
        languages=tuple(columns["lang"]),
        script=tuple(columns["script"]),
        degradation=np.array(columns["degradation"]),
        outlier_activation=np.array(columns["outlier_activation_fraction"]),
        kappa_weighted=np.array(columns["kappa_weighted"]),
        tokens=np.array(columns["tokens"], dtype=np.float64),
        outlier_layers=tuple(data["outlier_layers"]),
        kurtosis={
            "BLOOM-560M": np.array(data["bloom560m_mlp_kurtosis"]),
            "XGLM-564M": np.array(data["xglm564m_kurtosis"]),
            "GPT-2": np.array(data["gpt2_layer_kurtosis"]),
        },
        max_kurtosis=data["max_kurtosis_census"],
        published=data["published"],
    )
