"""Languages that can share an overlay: those to which the same inputs matter."""

from collections.abc import Mapping

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage

from fairbits.checks import Floats
from fairbits.measure.passes.text import Text
from fairbits.overlays.base_model import OverlayBase


def importance_patterns(overlay_base: OverlayBase, text: Text) -> dict[str, Floats]:
    """Returns for each language the logarithm of E_λ[x_j²] of every input of every linear map, less its mean per map.

    Loudness goes with the mean; what stays is which inputs matter more to a language than its others do.
    """
    parts: dict[str, Floats] = {}
    for name, known in overlay_base.known(text, products=False):
        sees = str(overlay_base.weight(name).sees)
        if sees not in parts and known.squares is not None:
            logs = np.log(known.squares + np.finfo(np.float32).tiny)
            parts[sees] = logs - logs.mean(axis=1, keepdims=True)
    patterns = np.concatenate(list(parts.values()), axis=1)
    return dict(zip(text.languages, patterns, strict=True))


def clusters(patterns: Mapping[str, Floats], count: int) -> tuple[tuple[str, ...], ...]:
    """Returns `count` clusters of languages, Ward's, which are nested for all counts; the largest first.

    >>> clusters({"a": np.array([0.0, 1]), "b": np.array([5.0, 5]), "c": np.array([0.1, 1])}, 2)
    (('a', 'c'), ('b',))
    """
    codes = list(patterns)
    if count >= len(codes):
        return tuple((code,) for code in codes)
    # what all languages have in common says nothing about who is alike
    table = np.stack([patterns[code] for code in codes])
    # cut by count: a height can part no languages that are equally far from each other
    labels = cut_tree(linkage(table - table.mean(axis=0), method="ward"), n_clusters=[count])[:, 0]
    found = [tuple(codes[i] for i in np.flatnonzero(labels == label)) for label in range(count)]
    return tuple(sorted(found, key=lambda each: (-len(each), each)))
