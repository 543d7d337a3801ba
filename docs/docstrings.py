"""Docstrings as Markdown: doctests become code, the aligned lines on attributes become a list."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
ATTRIBUTE = re.compile(r"^(`\w+`) {2,}", re.MULTILINE)
ASTERISK = re.compile(r"(?<=\w)\*")


class Docstrings(Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Changes the docstring of an object in place."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Returns a docstring as Markdown.

    >>> as_markdown("Returns α*.")
    'Returns α\\\\*.'
    """
    shown = ATTRIBUTE.sub(r"- \1: ", ASTERISK.sub(r"\\*", docstring))
    listed = re.sub(r"(?<!\n)\n(?=- `\w+`: )", "\n\n", shown, count=1)
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0].replace(chr(92) + '*', '*')}\n```", listed)
