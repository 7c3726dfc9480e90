"""Where commands print: tables for people on the console, JSON for scripts on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, OverflowMethod, RenderableType
from rich.markup import escape
from rich.table import Table

from sottovoce.errors import PrivacyError
from sottovoce.tables import PlainTable

if TYPE_CHECKING:
    from sottovoce.study.prediction import Prediction

_REMEDY = (
    "more agents, a larger epsilon, a smaller radius or another thing to hide would help: "
    "sottovoce advise says how much"
)

console = Console(highlight=False)
"""For people; Rich keeps tables readable in pipes and narrow terminals."""

errors = Console(stderr=True, highlight=False)
"""For messages and progress, so that standard output stays clean for results."""


def show_result(data: object, *shown: RenderableType | PlainTable, json: bool) -> None:
    """Print a result: its data as JSON, or what people read, texts as they are."""
    if json:
        sys.stdout.write(json_of(data))
        return
    for item in shown:
        if isinstance(item, PlainTable):
            _print_plain(item)
        elif isinstance(item, str):
            console.print(item, markup=False, soft_wrap=True)
        else:
            console.print(item)


def json_of(value: object, *, indent: int = 2) -> str:
    """Return a value as JSON; arrays become lists, infinities and NaN become null."""
    import msgspec

    data = msgspec.json.encode(value, enc_hook=lambda numpy: numpy.tolist())
    return msgspec.json.format(data, indent=indent).decode() + "\n"


def picked(value: object, *names: str) -> dict[str, object]:
    """Return some attributes of a value by name."""
    return {name: getattr(value, name) for name in names}


def _print_plain(plain: PlainTable) -> None:
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column, heading in enumerate(plain.columns):
        two_lines = escape(heading).replace(" ", "\n", 1)  # headings are wider than figures
        table.add_column(two_lines, justify="right" if column else "left")
    for row in plain.rows:
        table.add_row(*(escape(cell) for cell in row))
    show_result(None, plain.title, table, *plain.notes, json=False)


def table_of(
    title: str, *columns: str, lines: box.Box = box.HEAVY_HEAD, words: bool = False
) -> Table:
    """Return an empty table: the first column to the left, figures to the right, words folded."""
    table = Table(title=title, title_justify="left", box=lines)
    for column, heading in enumerate(columns):
        figures = column > 0 and not words
        overflow: OverflowMethod = "fold" if words else "ellipsis"
        table.add_column(heading, justify="right" if figures else "left", overflow=overflow)
    return table


def warn_if_useless(
    prediction: Prediction, *, strict: bool, say: Callable[[str], None] | None = None
) -> None:
    """Warn that an answer will be useless, or refuse it.

    Raises:
        PrivacyError: it will be, and ``strict`` asks for a refusal.
    """
    if not prediction.useless:
        return
    text = f"after {prediction.rounds:,} rounds {prediction.useless}: {_REMEDY}"
    if strict:
        raise PrivacyError(f"an answer must be worth something, got a plan for which {text}")
    if say is not None:
        say(text)
        return
    errors.print("[bold red]WARNING: THE ANSWER WILL BE USELESS:[/] ", end="")
    errors.print(text, markup=False, soft_wrap=True)
