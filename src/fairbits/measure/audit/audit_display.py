"""How an audit is shown: as a table, a pandas DataFrame and a figure."""

from typing import TYPE_CHECKING, Any

from fairbits.checks import one_of
from fairbits.display.figure import Figure, heatmap
from fairbits.display.table import Table, data_frame
from fairbits.errors import InputError
from fairbits.language.lookup import language_of
from fairbits.stats.estimates_display import cells, estimate_columns, figure_of_series, worst_first

if TYPE_CHECKING:
    import pandas

    from fairbits.measure.audit.audit import Audit


def table_of(audit: "Audit") -> Table:
    """Returns the predicted damage of every language in bits per byte; "?" marks those that are not to be trusted."""
    damage = audit.predicted.bits_per_byte.by_language()
    rows = tuple(
        (
            code if code in audit.trusted else f"{code} ?",
            language_of(code).name,
            *cells(damage[code]),
            cells(audit.bits_per_byte[code])[0],
            str(damage[code].n),
        )
        for code in _order(audit)
    )
    unsure = ("? the model was probably not trained on such text: do not trust its predicted damage",)
    return Table(
        f"{audit.subject.target}: predicted damage of {audit.scheme.name} in bits per byte, 95% intervals",
        ("language", "name", "damage", "low", "high", "loss before", "documents"),
        rows,
        () if set(audit.trusted) == set(audit.languages) else unsure,
    )


def pandas_of(audit: "Audit") -> "pandas.DataFrame":
    """Returns one row per language, the largest predicted damage first."""
    order = _order(audit)
    columns: dict[str, list[Any]] = {
        "language": order,
        "name": [language_of(code).name for code in order],
        "trusted": [code in audit.trusted for code in order],
        "documents": [int((audit.measured.lang == code).sum()) for code in order],
    }
    columns["tokens"] = [int(audit.measured.predicted[audit.measured.lang == code].sum()) for code in order]
    predicted = audit.predicted
    for name, found in (
        ("predicted_bits_per_byte", predicted.bits_per_byte.by_language()),
        ("predicted_nats_per_token", predicted.nats_per_token.by_language()),
        ("bits_per_byte", audit.bits_per_byte),
        ("kappa_weighted", audit.kappa_weighted),
        ("kappa_mixture", audit.kappa_mixture),
        ("outlier_share", audit.outlier_share),
        ("bytes_per_token", {code: each.bytes_per_token for code, each in audit.tokenization.items()}),
    ):
        columns |= estimate_columns(name, (found[code] for code in order))
    return data_frame(columns, index="language")


def figure_of(audit: "Audit", what: str) -> Figure:
    """Returns the predicted damage of every language, or of every language by the block that causes it; or experts."""
    scheme = audit.scheme.name
    if one_of("what", what, ("languages", "blocks", "experts")) == "experts":
        if audit.experts is None:
            raise InputError(f"{audit.subject.target} has no experts whose text was counted; plot languages or blocks")
        return audit.experts.plot()
    if what == "languages":
        damage = audit.predicted.bits_per_byte.by_language()
        return figure_of_series({"predicted": damage}, title=f"Predicted damage of {scheme}", unit="bits_per_byte")
    order, own = _order(audit), audit.predicted
    rows = dict(zip(own.languages, own.by_block.tolist(), strict=True))
    return heatmap(
        f"Predicted damage of {scheme} in nats per token, by block",
        [rows[code] for code in order],
        rows=order,
        columns=[str(block) for block in range(own.by_block.shape[1])],
        axis="block",
    )


def _order(audit: "Audit") -> list[str]:
    return worst_first(audit.predicted.bits_per_byte.by_language())
