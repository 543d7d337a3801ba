"""How scores are shown: as a table and as a pandas DataFrame."""

from typing import TYPE_CHECKING, Any

from fairbits.checks import one_of
from fairbits.display.table import Table, data_frame
from fairbits.language.lookup import language_of
from fairbits.stats.estimates_display import cells, estimate_columns, worst_first
from fairbits.units import MEASURES, UNITS, bits_per_byte

if TYPE_CHECKING:
    import pandas

    from fairbits.measure.scores.scores import Scores


def table_of(scores: "Scores") -> Table:
    """Returns the damage of every language in bits per byte, then worst, mean and gap."""
    damage, added = scores.frame().by_language(), scores.frame(measure="loss").by_language()
    own = scores.disparity()
    rows = tuple(
        (code, language_of(code).name, *cells(damage[code]), cells(added[code])[0], str(damage[code].n))
        for code in worst_first(damage)
    )
    worst, most = own.worst
    return Table(
        f"{scores.quantized.target} against {scores.reference.target}: divergence in bits per byte, 95% intervals",
        ("language", "name", "divergence", "low", "high", "added loss", "documents"),
        rows,
        (f"worst {worst} {most}; mean {own.mean}" + (f"; gap {own.gap}" if own.gap else ""), *scores.notes),
    )


def pandas_of(scores: "Scores", by: str) -> "pandas.DataFrame":
    """Returns one row per language, worst first, or one per document."""
    if one_of("by", by, ("language", "document")) == "document":
        return data_frame({name: each.tolist() for name, each in scores.documents.columns().items()})
    order, own = worst_first(scores.frame().by_language()), scores.documents
    rows = [own.lang == code for code in order]
    columns: dict[str, list[Any]] = {
        "language": order,
        "name": [language_of(code).name for code in order],
        "documents": [int(each.sum()) for each in rows],
        "tokens": [int(own.tokens[each].sum()) for each in rows],
        "reference_bits_per_byte": [
            float(bits_per_byte(own.nll_reference[each].sum(), own.bytes[each].sum())) for each in rows
        ],
    }
    for measure in MEASURES:
        for unit in UNITS if scores.question.parallel else UNITS[:2]:
            found = scores.frame(unit, measure=measure).by_language()
            columns |= estimate_columns(f"{measure}_{unit}", (found[code] for code in order))
    columns |= estimate_columns("flips", (scores.flips[code] for code in order))
    columns["recovery"] = [scores.recovery[code] for code in order]
    percentiles = [vars(scores.percentiles[code]) for code in order]
    columns |= {name: [each[name] for each in percentiles] for name in percentiles[0]}
    return data_frame(columns, index="language")
