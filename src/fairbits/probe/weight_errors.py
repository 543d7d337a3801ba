"""What a scheme does to the weights, met with what the text has shown of each linear map."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.scheme import Scheme
from fairbits.probe.measurements import Measurements


def weight_errors(checkpoint: Checkpoint, linears: tuple[str, ...], *, scheme: Scheme) -> Iterator[tuple[str, Tensor]]:
    """Yields ΔW (out, in) of every linear map, one at a time."""
    for name in linears:
        W = checkpoint.read(name).float()
        yield name, scheme.error(W.T if checkpoint.architecture.weights[name].transposed else W)


def column_errors(checkpoint: Checkpoint, linears: tuple[str, ...], *, scheme: Scheme) -> dict[str, Floats]:
    """Returns m_j = Σ_i ΔW_ij² of every input channel j of every linear map."""
    errors = weight_errors(checkpoint, linears, scheme=scheme)
    return {name: error.double().square().sum(0).numpy() for name, error in errors}


def kronecker_damage(checkpoint: Checkpoint, measured: Measurements, *, scheme: Scheme) -> Floats:
    """Returns ½ tr(G ΔW A ΔWᵀ) in nats per predicted token, (languages, linears), A = E[x xᵀ] and G = E[g gᵀ].

    It takes x and g of a token for independent, as the Kronecker-factored approximation of the Fisher matrix does.
    """
    if not measured.inputs:
        raise InputError("the second moments were not kept; measure with second_moments to factor the Fisher matrix")
    damage = torch.zeros(len(measured.languages), len(measured.linears), dtype=torch.float64)
    for index, (name, error) in enumerate(weight_errors(checkpoint, measured.linears, scheme=scheme)):
        A = torch.from_numpy(measured.inputs[measured.seen_by[name]])
        G = torch.from_numpy(measured.outputs[name])
        for lang in range(len(measured.languages)):
            damage[lang, index] = ((G[lang] @ error) * (error @ A[lang])).sum().double() / 2
    result: Floats = damage.numpy()
    return result
