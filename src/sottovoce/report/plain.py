"""Plain tables as Rich ones, for terminals."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from sottovoce.tables import PlainTable


def rich_table(plain: PlainTable) -> Table:
    """Return a table for a terminal; names are text, whatever they look like."""
    table = Table(title=escape(plain.title), title_justify="left")
    for place, heading in enumerate(plain.columns):
        table.add_column(escape(heading), justify="right" if place else "left")
    for row in plain.rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
