"""Output of commands: tables on the console, JSON for scripts on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sottovoce.errors import PrivacyError
from sottovoce.tables import PlainTable

if TYPE_CHECKING:
    from sottovoce.study.prediction import Prediction

_REMEDY = (
    "more agents, a larger epsilon, a smaller radius or another thing to hide would help: "
    "sottovoce advise says how much"
)

_STATUS_STYLES = {
    "proven": "green",
    "numerical": "yellow",
    "fails": "bold red",
    "unchecked": "cyan",
    "note": "cyan",
}
"""The colour of a cell that is the status of an assumption."""

console = Console(highlight=False)
"""For people; Rich keeps tables readable in pipes and narrow terminals."""

errors = Console(stderr=True, highlight=False)
"""For messages and progress, so that standard output stays clean for results."""


def show_result(data: object, *shown: str | PlainTable, json: bool) -> None:
    """Print a result: its data as JSON, or what people read."""
    if json:
        sys.stdout.write(json_of(data))
        return
    for item in shown:
        if isinstance(item, PlainTable):
            _print_table(item)
        else:
            console.print(item, markup=False, soft_wrap=True)


def json_of(value: object, *, indent: int = 2) -> str:
    """Return a value as JSON; arrays become lists, infinities and NaN become null."""
    import msgspec

    data = msgspec.json.encode(value, enc_hook=lambda numpy: numpy.tolist())
    return msgspec.json.format(data, indent=indent).decode() + "\n"


def picked(value: object, *names: str) -> dict[str, object]:
    """Return some attributes of a value by name."""
    return {name: getattr(value, name) for name in names}


def _print_table(plain: PlainTable) -> None:
    if plain.framed:
        title = escape(plain.title) or None
        table = Table(title=title, title_justify="left", show_header=bool(plain.columns))
    else:
        console.print(plain.title, markup=False, soft_wrap=True)
        table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for position, heading in enumerate(plain.columns):
        # Without lines between them, headings that are wider than figures take two lines.
        text = escape(heading) if plain.framed else escape(heading).replace(" ", "\n", 1)
        justify: JustifyMethod = "right" if position and not plain.words else "left"
        table.add_column(text, justify=justify, overflow="fold" if plain.words else "ellipsis")
    for row in plain.rows:
        table.add_row(*(Text(cell, _STATUS_STYLES.get(cell, "")) for cell in row))
    console.print(table)
    for note in plain.notes:
        console.print(note, markup=False, soft_wrap=True)


def warn_if_useless(
    prediction: Prediction, *, strict: bool, show: Callable[[str], None] | None = None
) -> None:
    """Warn that an answer will be useless; refuse it if ``strict``."""
    if not prediction.useless:
        return
    text = f"after {prediction.rounds:,} rounds {prediction.useless}: {_REMEDY}"
    if strict:
        raise PrivacyError(f"an answer must be worth something, got a plan for which {text}")
    if show is not None:
        show(text)
        return
    errors.print("[bold red]WARNING: THE ANSWER WILL BE USELESS:[/] ", end="")
    errors.print(text, markup=False, soft_wrap=True)
