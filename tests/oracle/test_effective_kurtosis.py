"""ā_outlier, κ_eff and r of the block norm, by hooks and numpy alone, against the experiments and the audit."""

import math

import numpy as np
import pytest
import torch

from fairbits.models.checkpoint import Checkpoint
from fairbits.stats.correlation import pearson_fisher
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.language_traits import measure_traits

CODES = ("arb_Arab", "eng_Latn", "fra_Latn", "hin_Deva")
OUTLIERS = (2, 5)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """A few short sections, each of which fits one window, so that nothing is cut."""
    whole = udhr(CODES)
    splits = (whole.calibration, whole.evaluation)
    parts = [{code: tuple(text[:60] for text in texts[-6:]) for code, texts in split.items()} for split in splits]
    return Corpus("beginnings", *parts, parallel=True)


def excess_kurtosis(parts: list[np.ndarray]) -> float:
    w = np.concatenate([part.ravel() for part in parts]).astype(np.float64)
    centred = w - w.mean()
    return float((centred**4).mean() / (centred**2).mean() ** 2 - 3)


def block_norms(corpus: Corpus) -> dict[str, np.ndarray]:
    """a_l(λ): the norm of what each block puts out, mean over the tokens of all calibration documents."""
    checkpoint = Checkpoint("embedded:tiny")
    model, tokenizer = checkpoint.load().float().eval(), checkpoint.tokenizer()
    blocks, seen = model.transformer.h, {}
    for i, block in enumerate(blocks):
        block.register_forward_hook(
            lambda _m, _i, out, i=i: seen.__setitem__(i, (out[0] if isinstance(out, tuple) else out).squeeze(0))
        )
    norms = {}
    for code, texts in corpus.calibration.items():
        total, tokens = np.zeros(len(blocks)), 0
        for text in texts:
            ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
            with torch.no_grad():
                model(input_ids=torch.tensor([ids]))
            total += [seen[i][1:].double().norm(dim=-1).sum().item() for i in range(len(blocks))]
            tokens += len(ids) - 1  # the start is no text
        norms[code] = total / tokens
    return norms


def test_share_and_effective_kurtosis_of_the_block_norm(corpus) -> None:
    setting = Setting(text=corpus, tokens=400, calibration=400, outlier_layers=OUTLIERS, device="cpu")
    traits = measure_traits(Laboratory(setting).lab(), "own", dropout=False, treatments=[])
    state = Checkpoint("embedded:tiny").load().state_dict()
    kappa = np.array(
        [
            excess_kurtosis([w.float().numpy() for name, w in state.items() if f".h.{block}." in name and w.ndim == 2])
            for block in range(12)
        ]
    )
    norms = block_norms(corpus)
    share = {code: a / a.sum() for code, a in norms.items()}
    assert traits.a == pytest.approx([share[code][list(OUTLIERS)].sum() for code in CODES], rel=2e-3)
    assert traits.kappa_eff == pytest.approx([share[code] @ kappa for code in CODES], rel=2e-3)


def test_r_and_fishers_interval() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=9)
    y = 0.5 * x + rng.normal(size=9)
    n, sx, sy, sxy = 9, x.sum(), y.sum(), (x * y).sum()
    r = (n * sxy - sx * sy) / math.sqrt((n * (x * x).sum() - sx**2) * (n * (y * y).sum() - sy**2))
    z = 0.5 * math.log((1 + r) / (1 - r))
    ends = [(math.exp(2 * e) - 1) / (math.exp(2 * e) + 1) for e in (z - 1.959964 / 6**0.5, z + 1.959964 / 6**0.5)]
    estimate = pearson_fisher(x, y).estimate
    assert [estimate.value, estimate.low, estimate.high] == pytest.approx([r, *ends], abs=1e-6)
