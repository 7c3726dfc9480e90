"""Plain tables as Rich ones, for terminals."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table

from sottovoce.tables import PlainTable


def rich_table(plain: PlainTable) -> Table:
    """Return a table for a terminal, without its title; names are text, whatever they look like."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, heading in enumerate(plain.columns):
        two_lines = escape(heading).replace(" ", "\n", 1)  # headings are wider than figures
        table.add_column(two_lines, justify="right" if place else "left")
    for row in plain.rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
