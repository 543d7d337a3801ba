"""Overlay: makes small sets of rows that replace rows of a quantized base for some languages."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from fairbits.comparison.plan_trial import corpus_for
from fairbits.core.checks import in_range, one_of, whole
from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.core.version import __version__
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.serve.overlays.activations import record_activations
from fairbits.serve.overlays.base_model import OverlayBase, check_base
from fairbits.serve.overlays.builder import Cluster, OverlayBuilder, best_count, clusters
from fairbits.serve.overlays.overlay_files import BASE, Form, Overlay, Overlays, check_directory, open_for_writing
from fairbits.text.corpus import Corpus, TextRequest

COUNTS = (1, 2, 4, 8)  # of clusters that are tried
SPARE = 0.02  # fewer clusters are chosen if they raise the damage of the worst language by no more than this share


def overlay(
    model: str | Path | Checkpoint,
    *,
    base: str | Path | Checkpoint,
    out: str | Path | None = None,
    languages: Iterable[str] | None = None,
    text: str | Path | Corpus | None = None,
    budget: float = 0.05,
    clusters: int | None = None,
    form: Form = "residual",
    activations: int | None = None,
    tokens: int = 2048,
    sequence: int = 512,
    seed: int = 0,
    device: str = AUTO,
    progress: Progress | None = None,
) -> Overlays:
    """Returns overlays for a base that was made from a model, after writing them to `out` (BASE/overlays).

    `budget` is the largest size of one overlay, as a share of the base's bytes. Languages are clustered by the rows
    that matter to them; `clusters` is their number, by default the one with the least damage of the worst language on
    held-out text. A language whose damage there does not fall stays with the base. `activations` is a width in bits:
    inputs of linear layers are then rounded too, with thresholds for every language and for all together.
    """
    request = TextRequest("calibration", tokens, sequence, seed)
    checkpoint = model if isinstance(model, Checkpoint) else Checkpoint(model)
    below = base if isinstance(base, Checkpoint) else Checkpoint(base)
    in_range("budget", budget, least=0.0, most=1.0)
    one_of("form", form, get_args(Form))
    if clusters is not None:
        whole("clusters", clusters, least=1)
    if activations is not None:
        whole("activations", activations, least=2, most=8)
    device = resolve_device(device)
    if out is None and below.kind != "directory":
        raise InputError(f"{below.target} is not a directory to write overlays into; name one (--out)")
    place = check_directory(below.directory / "overlays" if out is None else Path(out))
    check_base(below, checkpoint)
    corpus = corpus_for(checkpoint, languages=languages, text=text)
    words = tokenize_corpus(checkpoint, corpus, request=request)
    table = None
    # the directory is locked before anything is computed, so that a second run is refused; the answers of the model are
    # written to disk before the base is loaded: both are never in memory
    with (
        open_for_writing(place),
        ReferenceModel.on_text(checkpoint, words, device=device, progress=progress) as reference,
    ):
        below_model = OverlayBase(checkpoint, below, device=device)
        builder = OverlayBuilder(below_model, reference, seed=seed, progress=progress)
        overlays, serving, record = overlays_for(builder, budget=budget, count=clusters, form=form)
        record |= {
            "fairbits": __version__,
            "model": checkpoint.target,
            "fingerprint": checkpoint.fingerprint,
            "base_bytes": below_model.size_bytes,
            "text": {"corpus": corpus.name, **request.settings},
        }
        if activations is not None:
            # every language has its own thresholds, and so its own overlay, with the rows of the one that serves it
            patches = {overlay.name: overlay.patches for overlay in overlays} | {BASE: ()}
            overlays = tuple(Overlay(code, (code,), patches[name]) for code, name in serving.items())
            serving = {code: code for code in serving}
            table = record_activations(below_model.model, checkpoint.architecture, words).table(bits=activations)
        result = Overlays(below.fingerprint, overlays, serving, record, table)
        result.write(place)
    return result


def overlays_for(
    builder: OverlayBuilder, *, budget: float, count: int | None, form: Form
) -> tuple[tuple[Overlay, ...], dict[str, str], dict[str, Any]]:
    """Returns the overlays, which of them serves each language, and a record of how they were chosen."""
    languages, patterns = builder.text.languages, builder.patterns()
    counts = (
        [number for number in COUNTS if number <= len(languages)] if count is None else [min(count, len(languages))]
    )
    before = builder.damage(languages)
    built: dict[Cluster, tuple[Overlay, dict[str, float]]] = {}
    tried: dict[int, dict[str, float]] = {}
    for number in counts:
        tried[number] = {}
        for cluster in clusters(patterns, number):
            if cluster not in built:
                name = cluster[0] if len(cluster) == 1 else f"{cluster[0]}-and-{len(cluster) - 1}"
                overlay = builder.overlay(name, cluster, builder.candidates(cluster, form), budget)
                built[cluster] = overlay, builder.damage(cluster, overlay)
            tried[number] |= built[cluster][1]
    limited = {  # each language stays with the base where that is better
        number: {code: min(value, before[code]) for code, value in damage.items()} for number, damage in tried.items()
    }
    chosen = best_count(limited, spare=SPARE)
    after = tried[chosen]
    overlays = [built[cluster][0] for cluster in clusters(patterns, chosen)]
    serving = {code: overlay.name for overlay in overlays for code in overlay.languages if after[code] < before[code]}
    used = tuple(overlay for overlay in overlays if overlay.name in serving.values())
    record = {
        "form": form,
        "budget": budget,
        "clusters": chosen,
        "tried": {
            str(number): {"worst": max(damage.values()), "mean": sum(damage.values()) / len(damage)}
            for number, damage in limited.items()
        },
        "apart": {code: {"base": before[code], "overlay": after[code]} for code in languages},
    }
    return used, {code: serving.get(code, BASE) for code in languages}, record
