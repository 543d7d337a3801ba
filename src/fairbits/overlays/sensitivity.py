"""How much the answers of a model change with what its linear maps give: the Fisher information of every row."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairbits.measure.passes.batches import batches
from fairbits.measure.passes.head import split_head
from fairbits.measure.passes.recompute import recomputed
from fairbits.measure.passes.run import Scores, fisher_gradient, positions_at_once
from fairbits.measure.passes.text import Text
from fairbits.overlays.base_model import OverlayBase


def sensitivity(overlay_base: OverlayBase, text: Text, *, seed: int = 0) -> dict[str, Tensor]:
    """Returns E[(∂/∂y_r)²] of every linear map, (out,), per predicted token: F_r in KL ≈ ½ Σ_r F_r E[(Δy_r)²].

    Gradients are those of logits · ξ, ξ a Fisher direction drawn from `seed` at every predicted position; no label is
    looked at. That rows err independently of each other is an approximation; it ranks rows, and damage is measured.
    """
    model, found = overlay_base.model, {}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.enable_input_require_grads()  # type: ignore[no-untyped-call]  # gradients of activations only
    handles = []
    for name in overlay_base.schemes:
        found[name] = torch.zeros(overlay_base.weight(name).shape[0], dtype=torch.float64)
        module = model.get_submodule(overlay_base.weight(name).module)
        handles.append(module.register_forward_hook(_watcher(found[name])))
    try:
        positions = _backward(overlay_base, text, seed)
    finally:
        model.disable_input_require_grads()  # type: ignore[no-untyped-call]
        for handle in handles:
            handle.remove()
    return {name: sums / max(positions, 1) for name, sums in found.items()}


def _watcher(sums: Tensor) -> Callable[[nn.Module, Any, Any], None]:
    """Returns the hook that adds up the squared gradient of what a linear map gives."""

    def take(gradient: Tensor) -> None:
        sums.add_(gradient.detach().flatten(0, -2).float().square().sum(0).double().cpu())

    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(take)  # type: ignore[no-untyped-call]

    return hook


def _backward(overlay_base: OverlayBase, text: Text, seed: int) -> int:
    """Returns how many positions predicted a token, after a forward and a backward pass."""
    model, device = overlay_base.model, str(overlay_base.model.device)
    blocks = [model.get_submodule(block.module) for block in overlay_base.checkpoint.architecture.blocks]
    rng, scores = torch.Generator().manual_seed(seed), Scores(len(text.lang))
    split = split_head(model, next(batches(text, positions=1)).on(device))
    for batch in batches(text, positions=positions_at_once(model, split)):
        here = batch.on(device)
        with recomputed(blocks):
            features = split.body(here)
        torch.autograd.backward(features, fisher_gradient(features, batch, split, scores=scores, rng=rng))
    return int(scores.sums[0].sum())
