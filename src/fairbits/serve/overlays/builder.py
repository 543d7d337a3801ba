"""Building overlays: which languages share one, which rows it holds and in which form, and the damage on held-out text.

How much damage each row saves is estimated from the sensitivity of the outputs; the damage itself is measured.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from torch import Tensor, nn

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.units import bits
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.batches import batches
from fairbits.forward.body_and_head import positions_per_batch, recompute_in_backward, split_head
from fairbits.forward.fisher import LossSums, SignDraws, fisher_gradient
from fairbits.forward.windows import NO_LABEL, TokenizedText
from fairbits.models.scales.groups import Codes, dequantize_in_float32, fit_scales
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.gptq.block_rounding import round_layer
from fairbits.quantization.gptq.hessian import InputStatistics
from fairbits.quantization.learned.learn_model import Teacher
from fairbits.serve.overlays.base_model import OverlayBase
from fairbits.serve.overlays.overlay_files import BASE, Form, Overlay, Patch
from fairbits.serve.overlays.switch import Switch

HOLDOUT_EVERY = 3  # one in this many documents of a language is held out
RESIDUAL_BITS = 2  # bits of the residual of a row: of 2, 3 and 8 bits, 2 saved most per byte in measurements
Cluster = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A linear layer in another form; an overlay may hold some of its rows.

    `saved` is what each row saves in nats per predicted token if errors of rows are independent: ½ F_r (e_r − e'_r),
    e_r = E[(Δw_rᵀx)²] of the base and e'_r of the other form.
    """

    form: Form
    name: str
    codes: Codes
    saved: Tensor
    base_scales: Tensor
    module: str
    transposed: bool

    def patch(self, rows: Tensor | None) -> Patch:
        codes, scales, base_scales = (
            tensor if rows is None else tensor.index_select(0, rows)
            for tensor in (self.codes.codes, self.codes.scales, self.base_scales)
        )
        patch = Patch(self.form, self.name, self.module, self.codes.bits, rows, scales, transposed=self.transposed)
        return replace(patch, base_scales=base_scales) if self.form == "steps" else replace(patch, codes=codes)

    @property
    def row_bytes(self) -> float:
        one_row = self.patch(torch.zeros(1, dtype=torch.int64)).tensors()
        return sum(tensor.nbytes for tensor in one_row.values())


def fit_rows(
    overlay_base: OverlayBase, text: TokenizedText, sensitivity: Mapping[str, Tensor], *, form: Form
) -> Iterator[Candidate]:
    """Yields every linear layer in a form fitted to its inputs on a text, in the base.

    "residual"  the difference to the original weights, in RESIDUAL_BITS
    "codes"     the weights quantized again, in the bits of the base
    both by GPTQ with the exact weighted clip, under H = E[x xᵀ] of the text
    "steps"     the base's codes k with the scales of least error, ⟨w, k⟩_H / ⟨k, k⟩_H
    """
    dtype = overlay_base.checkpoint.scale_dtype
    for name, inputs in overlay_base.input_statistics(text):
        H = inputs.H
        assert H is not None
        W, base, weight = overlay_base.original(name), overlay_base.codes(name), overlay_base.weight(name)
        scheme, residual = overlay_base.schemes[name], W - dequantize_in_float32(base)
        if form == "residual":
            codes = _gptq(residual, replace(scheme, bits=RESIDUAL_BITS), inputs, dtype)
        elif form == "codes":
            codes = _gptq(W, scheme, inputs, dtype)
        else:
            codes = replace(base, scales=fit_scales(W, base.codes, base.scales, H=H.cpu()).to(dtype))
        error = (residual if form == "residual" else W) - dequantize_in_float32(codes)
        saved = 0.5 * sensitivity[name] * (_energy(residual, H) - _energy(error, H))
        yield Candidate(form, name, codes, saved, base.scales, weight.module, weight.transposed)


def _gptq(W: Tensor, scheme: Scheme, inputs: InputStatistics, dtype: torch.dtype) -> Codes:
    exact = replace(scheme, clip="exact", objective="mean", rounding="gptq")
    return round_layer(W, exact, dtype=dtype, inputs=inputs)[0]


def _energy(change: Tensor, H: Tensor) -> Tensor:
    """Returns E[(Δw_rᵀx)²] of every row."""
    moved = change.to(H.device)
    return ((moved @ H) * moved).sum(1).double().cpu()


class OverlayBuilder:
    """A base, and the predictions of the original model on the calibration text."""

    def __init__(
        self, overlay_base: OverlayBase, reference: ReferenceModel, *, seed: int = 0, progress: Progress | None = None
    ) -> None:
        self.overlay_base, self.text, self._seed = overlay_base, reference.text, seed
        self._tell = progress or (lambda _stage, _done, _total: None)
        self._teacher = Teacher(reference, overlay_base.model, device=str(overlay_base.model.device))
        self._held_out = held_out_documents(self.text)
        self._sensitivity: dict[str, dict[str, Tensor]] = {}

    def patterns(self) -> dict[str, Floats]:
        self._tell("computing importance patterns", 0, 1)
        return importance_patterns(self.overlay_base, self._fitting(self.text.languages))

    def candidates(self, cluster: Cluster, form: Form) -> list[Candidate]:
        """Returns every linear layer of the base in a form fitted to the languages of a cluster, equally weighted."""
        for code in cluster:
            if code not in self._sensitivity:
                self._tell(f"computing sensitivities for {code}", len(self._sensitivity), len(self.text.languages))
                self._sensitivity[code] = sensitivity(self.overlay_base, self._fitting((code,)), seed=self._seed)
        sensitivities = [self._sensitivity[code] for code in cluster]
        mean = {name: torch.stack([rows[name] for rows in sensitivities]).mean(0) for name in sensitivities[0]}
        candidates, total = [], len(self.overlay_base.schemes)
        for candidate in fit_rows(self.overlay_base, self._fitting(cluster), mean, form=form):
            candidates.append(candidate)
            self._tell(f"choosing {form} rows for {', '.join(cluster):.40}", len(candidates), total)
        return candidates

    def overlay(self, name: str, cluster: Cluster, candidates: Sequence[Candidate], budget: float | None) -> Overlay:
        """Returns the overlay of a cluster, of at most this share of the base's bytes; None: all rows."""
        limit = None if budget is None else budget * self.overlay_base.size_bytes
        return Overlay(name, cluster, patches_within(candidates, limit))

    def damage(self, languages: Iterable[str], overlay: Overlay | None = None) -> dict[str, float]:
        """Returns KL from the original model on held-out text, in bits per byte of each language."""
        wanted = set(languages)
        windows = [
            i for i, window in enumerate(self.text.windows) if self._selects(window.document, wanted, held_out=True)
        ]
        switch = Switch(self.overlay_base.model, () if overlay is None else (overlay,))
        switch.to(BASE if overlay is None else overlay.name)
        try:
            with np.errstate(invalid="ignore"):  # languages that are not evaluated have no tokens
                nats = self._teacher.damage(windows) * self._tokens_per_byte(windows)
        finally:
            switch.to(BASE)
        return {code: bits(float(nats[i])) for i, code in enumerate(self.text.languages) if code in wanted}

    def _fitting(self, languages: Iterable[str]) -> TokenizedText:
        wanted = set(languages)
        windows = (window for window in self.text.windows if self._selects(window.document, wanted, held_out=False))
        return replace(self.text, windows=tuple(windows))

    def _selects(self, document: int, languages: set[str], *, held_out: bool) -> bool:
        return str(self.text.lang[document]) in languages and (document in self._held_out) == held_out

    def _tokens_per_byte(self, windows: Sequence[int]) -> Floats:
        count, chosen = len(self.text.languages), [self.text.windows[i] for i in windows]
        tokens, size, language = np.zeros(count), np.zeros(count), self.text.language_of
        for window in chosen:
            tokens[language[window.document]] += sum(label != NO_LABEL for label in window.main.labels)
        for document in {window.document for window in chosen}:
            size[language[document]] += self.text.size_bytes[document]
        ratio: Floats = tokens / np.maximum(size, 1)
        return ratio


def held_out_documents(text: TokenizedText) -> frozenset[int]:
    """Returns every third document of each language."""
    documents: dict[str, list[int]] = {code: [] for code in text.languages}
    for document in sorted({window.document for window in text.windows}):
        documents[str(text.lang[document])].append(document)
    few = sorted(code for code, numbers in documents.items() if len(numbers) < HOLDOUT_EVERY)
    if few:
        raise InputError(
            f"the calibration text has {len(documents[few[0]])} document(s) in {few[0]}; overlays are fitted to some "
            f"and evaluated on others, which takes {HOLDOUT_EVERY} of every language: give more text, or more --tokens"
        )
    return frozenset(n for numbers in documents.values() for n in numbers[HOLDOUT_EVERY - 1 :: HOLDOUT_EVERY])


def best_count(damages: Mapping[int, Mapping[str, float]], *, spare: float) -> int:
    """Returns the fewest clusters whose worst damage is within `spare` of the least."""
    worst = {count: max(by_language.values()) for count, by_language in damages.items()}
    return min(count for count, value in worst.items() if value <= min(worst.values()) * (1 + spare))


def patches_within(candidates: Sequence[Candidate], budget: float | None) -> tuple[Patch, ...]:
    """Returns the rows that save most per byte, and anything at all, in at most `budget` bytes; None: all rows."""
    if budget is None:
        return tuple(candidate.patch(None) for candidate in candidates)
    size = np.concatenate([np.full(len(candidate.saved), candidate.row_bytes) for candidate in candidates])
    density = np.concatenate([candidate.saved.numpy() for candidate in candidates]) / size
    order = np.argsort(-density, kind="stable")
    taken = np.zeros(len(order), dtype=bool)
    taken[order[(np.cumsum(size[order]) <= budget) & (density[order] > 0)]] = True
    ends = np.cumsum([len(candidate.saved) for candidate in candidates])
    patches = []
    for candidate, rows in zip(candidates, np.split(taken, ends[:-1]), strict=True):
        if rows.any():
            patches.append(candidate.patch(None if rows.all() else torch.from_numpy(np.flatnonzero(rows))))
    return tuple(patches)


def importance_patterns(overlay_base: OverlayBase, text: TokenizedText) -> dict[str, Floats]:
    """Returns for each language log E_λ[x_j²] of every input of every layer, less its mean per layer."""
    parts: dict[str, Floats] = {}
    for name, inputs in overlay_base.input_statistics(text, products=False):
        sees = str(overlay_base.weight(name).sees)
        if sees not in parts and inputs.squares is not None:
            logs = np.log(inputs.squares + np.finfo(np.float32).tiny)
            parts[sees] = logs - logs.mean(axis=1, keepdims=True)
    patterns = np.concatenate(list(parts.values()), axis=1)
    return dict(zip(text.languages, patterns, strict=True))


def clusters(patterns: Mapping[str, Floats], count: int) -> tuple[tuple[str, ...], ...]:
    """Returns `count` clusters of languages by Ward's method, largest first; they are nested for different counts."""
    codes = list(patterns)
    if count >= len(codes):
        return tuple((code,) for code in codes)
    # what all languages have in common does not help to cluster them
    table = np.stack([patterns[code] for code in codes])
    # cut by count: no height separates languages at equal distances
    labels = cut_tree(linkage(table - table.mean(axis=0), method="ward"), n_clusters=[count])[:, 0]
    groups = [tuple(codes[i] for i in np.flatnonzero(labels == label)) for label in range(count)]
    return tuple(sorted(groups, key=lambda group: (-len(group), group)))


def sensitivity(overlay_base: OverlayBase, text: TokenizedText, *, seed: int = 0) -> dict[str, Tensor]:
    """Returns E[(∂/∂y_r)²] of every linear layer, (out,), per predicted token: F_r in KL ≈ ½ Σ_r F_r E[(Δy_r)²].

    These are gradients of logits · ξ, ξ a Fisher direction drawn from `seed` at every predicted position; no label is
    used. Treating the errors of rows as independent is an approximation, used only to rank rows; damage is measured.
    """
    model, squares = overlay_base.model, {}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.enable_input_require_grads()  # type: ignore[no-untyped-call]  # gradients of activations only
    handles = []
    for name in overlay_base.schemes:
        squares[name] = torch.zeros(overlay_base.weight(name).shape[0], dtype=torch.float64)
        module = model.get_submodule(overlay_base.weight(name).module)
        handles.append(module.register_forward_hook(_gradient_hook(squares[name])))
    try:
        positions = _backward(overlay_base, text, seed)
    finally:
        model.disable_input_require_grads()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()
    return {name: sums / max(positions, 1) for name, sums in squares.items()}


def _gradient_hook(sums: Tensor) -> Callable[[nn.Module, Any, Any], None]:

    def take(gradient: Tensor) -> None:
        sums.add_(gradient.detach().flatten(0, -2).float().square().sum(0).double().cpu())

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(take)  # type: ignore[no-untyped-call]

    return hook


def _backward(overlay_base: OverlayBase, text: TokenizedText, seed: int) -> int:
    model, device = overlay_base.model, str(overlay_base.model.device)
    blocks = [model.get_submodule(block.module) for block in overlay_base.checkpoint.architecture.blocks]
    draws, scores = SignDraws(seed), LossSums(len(text.lang))
    split = split_head(model, next(batches(text, positions=1)).on(device))
    for batch in batches(text, positions=positions_per_batch(model, split)):
        here = batch.on(device)
        with recompute_in_backward(blocks):
            features = split.body(here)
        torch.autograd.backward(features, fisher_gradient(features, batch, split, scores=scores, draws=draws))
    return int(scores.sums[0].sum())
