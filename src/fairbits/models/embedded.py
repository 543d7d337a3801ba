"""The models that come with the package: `embedded:tiny`, `embedded:tiny?outliers=3:125,7:148`."""

import re
from pathlib import Path

from fairbits.core.checks import positive
from fairbits.core.errors import InputError

PREFIX = "embedded:"
ASSETS = Path(__file__).parents[1] / "assets"
LANGUAGES = {  # that each embedded model was trained on, from its model card
    "tiny": (
        *("amh_Ethi", "arb_Arab", "ben_Beng", "deu_Latn", "eng_Latn", "fin_Latn", "fra_Latn", "heb_Hebr", "hin_Deva"),
        *("ind_Latn", "jpn_Jpan", "kor_Hang", "rus_Cyrl", "spa_Latn", "swh_Latn", "tha_Thai", "tur_Latn", "vie_Latn"),
        *("yor_Latn", "zho_Hans"),
    )
}

TRAINING_TOKENS = {
    "tiny": (
        *(338_848, 995_550, 245_199, 2_462_992, 6_878_828, 1_186_353, 2_967_525, 703_662, 272_339, 1_155_396),
        *(1_716_195, 1_470_387, 1_807_269, 2_487_437, 301_417, 445_826, 1_607_317, 1_020_712, 330_485, 2_099_754),
    )
}
"""The training tokens of the languages of embedded models, from `training/history.json`."""


def find_embedded(target: str) -> tuple[Path, dict[int, float]]:
    """Returns the directory of the embedded model that `target` names, and the kurtosis requested by block."""
    name, question, query = target.removeprefix(PREFIX).partition("?")
    names = sorted(path.parent.name for path in ASSETS.glob("*/config.json"))
    if name not in names:
        listed = ", ".join(PREFIX + name for name in names)
        raise InputError(f"{target!r} does not name an embedded model; available: {listed}")
    if not question:
        return ASSETS / name, {}
    key, _, pairs = query.partition("=")
    if key != "outliers" or not re.fullmatch(r"[0-9]+:[^:,]+(,[0-9]+:[^:,]+)*", pairs):
        raise InputError(f"{target!r} must read {PREFIX}{name}?outliers=BLOCK:KAPPA,… (e.g. ?outliers=3:125,7:148)")
    kappa: dict[int, float] = {}
    for pair in pairs.split(","):
        number, _, text = pair.partition(":")
        block = int(number)
        if block in kappa:
            raise InputError(f"{target!r} names block {block} twice; each block may be named only once")
        try:
            kappa[block] = positive(f"κ of block {block}", float(text))
        except InputError:
            raise
        except ValueError:
            raise InputError(f"{target!r} requests κ {text!r} in block {block}; it must be a number") from None
    return ASSETS / name, dict(sorted(kappa.items()))


def embedded_languages(target: str) -> tuple[str, ...] | None:
    """Returns the codes of the languages that an embedded model was trained on; None for any other model."""
    return LANGUAGES[find_embedded(target)[0].name] if target.startswith(PREFIX) else None


def training_shares(target: str) -> dict[str, float] | None:
    """Returns the share of each language in the training text of an embedded model; None for other models."""
    if not target.startswith(PREFIX):
        return None
    name = find_embedded(target)[0].name
    total = sum(TRAINING_TOKENS[name])
    return {code: count / total for code, count in zip(LANGUAGES[name], TRAINING_TOKENS[name], strict=True)}
