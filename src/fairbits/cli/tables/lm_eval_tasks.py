"""The tasks that were written for lm-eval, and the command that runs them."""

import shlex

from rich.console import Group
from rich.text import Text

from fairbits.cli.tables.layout import columns, language_name
from fairbits.errors import printable
from fairbits.verbs.tasks import TaskFiles


def tasks_table(found: TaskFiles) -> Group:
    """Returns the number of items by language and kind, and the command of lm-eval."""
    codes = sorted({code for by_language in found.items.values() for code in by_language})
    table = columns("language", "code", *(f"{kind} items" for kind in found.items), left=(1,))
    for code in codes:
        counts = (by_language.get(code, 0) for by_language in found.items.values())
        table.add_row(language_name(code), Text(code, style="dim"), *(f"{count:,}" for count in counts))
    path, groups = shlex.quote(str(found.directory)), ",".join(found.groups.values())
    command = (
        f"lm_eval --model hf --model_args pretrained=MODEL --include_path {path} --tasks {groups} --log_samples "
        "--output_path DIR"
    )
    return Group(table, "", Text(printable(command), overflow="fold"))
