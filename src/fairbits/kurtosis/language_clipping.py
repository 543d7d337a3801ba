"""LA-ACIQ as the research notes write it, on a model: the α of every language, and of w ⊙ a in every layer.

Proposition 1 (000-22) has one grid for the whole model and P_λ = Σ_l ā_l(λ) P_l (003-08), P_l the weights of the
linear layers of block l. The α that minimises the error under P_λ is exact here: weights are counted by value, so a
model is read once, tensor by tensor, and P_λ of any language is a weighting of the counts. Weights of 16 bits are
counted as they are; wider ones, and products w·a, in bins of 2⁻⁹ of their value.

Theorem 2 (004-13, 004-19) takes w ⊙ a of one linear layer, a_j = √(E_λ[x_j²]) divided by its largest channel, and
α* = argmin E(Q(w ⊙ a) − w ⊙ a)². This α* is a threshold on w_ij a_j. The algorithm then uses it as one on w_ij, which
it is only where a_j = 1: elsewhere the product asks for α*/a_j.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.core.memory import ERROR_ROWS
from fairbits.core.progress import Progress
from fairbits.forward.statistics import ActivationStatistics
from fairbits.kurtosis.clipping_record import ClippedLanguage, ClippedLayer, LanguageClipping, square_law
from fairbits.kurtosis.patterns import Pattern
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.clip_formulas import kappa_factor
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits.models.streaming_model import ReadAhead
from fairbits.models.weight_moments import (
    Counts,
    ModelMoments,
    bin_edges,
    central_moments,
    count_by_value,
    mixture_moments,
)
from fairbits.stats.intervals import Estimate
from fairbits.text.corpus import Corpus, TextRequest

DROPPED = 14  # bits of float32 that are not counted: 9 of the mantissa's 23 are
FOUR_BITS = "the research notes give f(κ, B) for 4 bits only; its constants are used at {} bits too"


@dataclass(frozen=True, eq=False)
class WeightCounts:
    """The distribution P_l of the weights of every block: a part `share[l, i]` of them are `values[i]`."""

    values: Floats
    share: Floats  # (blocks, values)

    @classmethod
    def of(cls, counts: Mapping[torch.dtype, Counts]) -> "WeightCounts":
        """Returns the distributions, given counts (blocks, keys) by the type of the weights."""
        values, columns = [], []
        for dtype, table in counts.items():
            keys = np.flatnonzero(table.any(axis=0))
            values.append(_middles(dtype, keys))
            columns.append(table[:, keys].astype(np.float64))
        joined = np.concatenate(columns, axis=1)
        return cls(np.concatenate(values), joined / joined.sum(axis=1, keepdims=True))

    def errors(self, alpha: float, grid: Grid) -> Floats:
        """Returns E(w − Q_α(w))² of every block."""
        change = self.values - grid.quantize(self.values, grid.step(alpha))
        errors: Floats = self.share @ change**2
        return errors

    def best_alpha(self, activation: Floats, grid: Grid) -> float:
        """Returns argmin_α Σ_l ā_l E(w − Q_α(w))², certified."""
        return float(grid.alpha(clip_sample(self.values, grid, importance=activation @ self.share).step))


@dataclass(frozen=True, eq=False)
class ProductMoments:
    """σ and κ of w ⊙ a for every language, from the power sums of the columns of w (out, in)."""

    sigma: Floats
    kappa: Floats

    @classmethod
    def of(cls, W: Tensor, activation: Floats) -> "ProductMoments":
        """Returns the moments for activation (languages, in): E(w a)ᵏ = Σ_j a_jᵏ Σ_i w_ijᵏ / n."""
        sums = torch.zeros(4, W.shape[1], dtype=torch.float64, device=W.device)
        for rows in torch.split(W, ERROR_ROWS):
            power = wide = rows.double()
            for k in range(4):
                sums[k] += power.sum(0)
                power = power * wide
        columns = sums.cpu().numpy()
        m1, m2, m3, m4 = (activation**k @ columns[k - 1] / W.numel() for k in range(1, 5))
        second, third = m2 - m1**2, m3 - 3 * m1 * m2 + 2 * m1**3
        fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
        moments = [central_moments(W.numel(), *row) for row in zip(m1, second, third, fourth, strict=True)]
        return cls(np.array([m.sigma for m in moments]), np.array([m.kappa for m in moments]))


def channel_activation(squares: Floats) -> Floats:
    """Returns a = √(E[x²]) of every language, divided by its largest channel; 0 if the input is 0."""
    rms = np.sqrt(squares)
    largest = rms.max(axis=1, keepdims=True)
    activation: Floats = np.divide(rms, largest, out=np.zeros_like(rms), where=largest > 0)
    return activation


def language_clipping(
    checkpoint: Checkpoint,
    corpus: Corpus,
    *,
    measured: ActivationStatistics,
    moments: ModelMoments,
    request: TextRequest,
    bits: int = 4,
    products: bool = True,
    device: str = "cpu",
    progress: Progress | None = None,
) -> LanguageClipping:
    """Returns the thresholds of LA-ACIQ for every language; `products` includes those of w ⊙ a in every layer."""
    grid = Grid(bits)
    pattern = Pattern(
        measured.lang,
        measured.document,
        sums=measured.sums("block", "norm"),
        tokens=measured.sums("block", "positions"),
    )
    reading = _Reading(checkpoint, measured, moments, grid, device, progress)
    counts, layers = reading.run(products=products)
    whole = mixture_moments(moments.blocks, [block.n for block in moments.blocks])
    shared = whole.sigma * float(kappa_factor(whole.kappa))
    languages = _languages(pattern, counts, moments, sigma=whole.sigma, shared=shared, grid=grid)
    left_out = f"{len(measured.left_out)} linear layers have no α of w ⊙ a: their inputs were not observed"
    return LanguageClipping(
        target=checkpoint.target,
        fingerprint=checkpoint.fingerprint,
        corpus=corpus.name,
        hashes=dict(corpus.hashes[request.split]),
        **request.settings,
        bits=bits,
        weights=sum(block.n for block in moments.blocks),
        sigma=whole.sigma,
        kappa=whole.kappa,
        alpha_shared=shared,
        alpha_mixture=counts.best_alpha(pattern.share.mean(axis=0), grid),
        languages=languages,
        law=square_law(languages, whole.kappa),
        layers=tuple(layers),
        notes=(
            *checkpoint.notes,
            *corpus.notes,
            *measured.notes,
            *([FOUR_BITS.format(bits)] if bits != 4 else []),
            *([left_out] if measured.left_out and products else []),
        ),
    )


def _languages(
    pattern: Pattern, counts: WeightCounts, moments: ModelMoments, *, sigma: float, shared: float, grid: Grid
) -> dict[str, ClippedLanguage]:
    """Returns the thresholds of each language and their errors under P_λ = Σ ā_l(λ) P_l.

    Δε = Σ_l ā_l(λ) (f_l(α_shared) − f_l(α*(λ))). To first order α*(λ) does not move with ā, as it is the minimum: its
    interval is that of this sum with fixed thresholds.
    """
    kappa = pattern.kappa_weighted([block.kappa for block in moments.blocks])
    mixture = pattern.kappa_mixture(moments.blocks)
    written = {code: estimate.transform(lambda k: sigma * float(kappa_factor(k))) for code, estimate in kappa.items()}
    exact = [counts.best_alpha(share, grid) for share in pattern.share]
    least = np.array([counts.errors(alpha, grid) for alpha in exact])
    at_shared = counts.errors(shared, grid)
    excess = pattern.weighted(at_shared - least)
    languages = {}
    for i, (code, share) in enumerate(zip(pattern.languages, pattern.share, strict=True)):
        error = float(share @ least[i])
        languages[code] = ClippedLanguage(
            kappa_weighted=kappa[code],
            kappa_mixture=mixture[code],
            sigma=mixture_moments(moments.blocks, share).sigma,
            alpha_written=written[code],
            alpha_exact=exact[i],
            error_shared=float(share @ at_shared),
            error_written=float(share @ counts.errors(written[code].value, grid)),
            error_exact=error,
            excess=excess[code],
            excess_relative=_divided(excess[code], error),
        )
    return languages


def _divided(estimate: Estimate, by: float) -> Estimate:
    return estimate.transform(lambda value: value / by if by > 0 else 0.0)


@dataclass(frozen=True, eq=False)
class _Reading:
    """One pass over the linear layers of the blocks: counts of their values, and the thresholds of w ⊙ a."""

    checkpoint: Checkpoint
    measured: ActivationStatistics
    moments: ModelMoments
    grid: Grid
    device: str
    progress: Progress | None

    def run(self, *, products: bool) -> tuple[WeightCounts, list[ClippedLayer]]:
        blocks = self.checkpoint.architecture.blocks
        counts: dict[torch.dtype, Counts] = {}
        layers = []
        for number, name, tensor in self._tensors():
            dtype, by_value = _counted(tensor)
            table = counts.setdefault(dtype, np.zeros((len(blocks), len(by_value)), dtype=np.int64))
            table[number] += by_value
            if products and name in self.measured.seen_by:
                layers.append(self._layer(number, name, tensor, dtype, by_value))
        return WeightCounts.of(counts), layers

    def _tensors(self) -> Iterator[tuple[int, str, Tensor]]:
        """Yields block, name and tensor of every linear layer, one at a time."""
        parts = [list(block.linears) for block in self.checkpoint.architecture.blocks]
        done, total = 0, sum(map(len, parts))
        with ReadAhead(self.checkpoint, self.device, parts) as reader:
            for number, names in enumerate(parts):
                for name in names:
                    if self.progress is not None:
                        self.progress("computing thresholds", done, total)
                    yield number, name, reader.read(name)
                    done += 1

    def _layer(self, block: int, name: str, tensor: Tensor, dtype: torch.dtype, by_value: Counts) -> ClippedLayer:
        weight, own_moments = self.checkpoint.architecture.weights[name], self.moments.tensors[name]
        W = (tensor.T if weight.transposed else tensor).float()
        activation = channel_activation(self.measured.channels[self.measured.seen_by[name]])
        moments = ProductMoments.of(W, activation)
        scales = torch.from_numpy(activation).float().to(W.device)
        alphas = [self._alpha(*_counted(W * row)) for row in scales]
        languages = self.measured.languages
        return ClippedLayer(
            name=name,
            block=block,
            role=weight.role,
            sigma=own_moments.sigma,
            kappa=own_moments.kappa,
            alpha=self._alpha(dtype, by_value),
            product_sigma=dict(zip(languages, moments.sigma.tolist(), strict=True)),
            product_kappa=dict(zip(languages, moments.kappa.tolist(), strict=True)),
            product_alpha=dict(zip(languages, alphas, strict=True)),
        )

    def _alpha(self, dtype: torch.dtype, by_value: Counts) -> float:
        keys = np.flatnonzero(by_value)
        best = clip_sample(_middles(dtype, keys), self.grid, importance=by_value[keys].astype(np.float64))
        return float(self.grid.alpha(best.step))


def _counted(tensor: Tensor) -> tuple[torch.dtype, Counts]:
    """Returns how many weights have each value; wider types are counted in bins of float32."""
    wide = tensor.dtype.itemsize > 2
    counted = tensor.float().contiguous() if wide else tensor
    return counted.dtype, count_by_value(counted, dropped=DROPPED if wide else 0)


def _middles(dtype: torch.dtype, keys: Counts) -> Floats:
    low, high = bin_edges(dtype, keys, dropped=DROPPED if dtype.itemsize > 2 else 0)
    middle: Floats = (low + high) / 2
    return middle
