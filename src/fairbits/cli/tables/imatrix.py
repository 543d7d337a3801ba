"""What the terminal shows of an imatrix."""

from typing import Any

from rich.console import Group, RenderableType

from fairbits.cli.tables.layout import columns, language_name
from fairbits.errors import count_of
from fairbits.model.files.imatrix import Imatrix


def imatrix_data(found: Imatrix) -> dict[str, Any]:
    """Returns what an imatrix holds, for JSON."""
    return {
        "layers": len(found.entries),
        "tokens": found.tokens,
        "datasets": list(found.datasets),
        "languages": dict(found.languages),
        "fingerprint": found.fingerprint,
    }


def imatrix_table(found: Imatrix) -> RenderableType:
    """Returns the size of an imatrix and the share of each language."""
    head = f"importance of {count_of(len(found.entries), 'layer')}, measured on {found.tokens:,} tokens"
    if not found.languages:
        return head
    table = columns("language", "code", "share", left=(1,))
    for code, share in found.languages.items():
        table.add_row(language_name(code), code, f"{share:.1%}")
    return Group(head, table)
