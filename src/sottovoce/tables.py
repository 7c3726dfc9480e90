"""The table of every command and study: it prints as text, and shows as HTML in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

_MOST_LETTERS = 160  # of a fact in a notebook, or of a refusal in a table


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTable:
    """Words and figures in columns, the first of them names.

    Attributes:
        title: what the table is about.
        columns: the headings, empty for a table of names and values.
        rows: the cells, as text.
        notes: sentences below it.
        framed: whether a terminal draws lines around it.
        words: whether cells are sentences, which a terminal folds, and not figures.
    """

    title: str
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    framed: bool = False
    words: bool = False

    def __str__(self) -> str:
        lines = [self.columns, *self.rows] if self.columns else list(self.rows)
        count = max((len(line) for line in lines), default=0)
        widths = [max(len(line[c]) for line in lines if c < len(line)) for c in range(count)]
        text = [self.title]
        for line in lines:
            first = f"  {line[0]:<{widths[0]}}"
            rest = (f"  {cell:>{w}}" for cell, w in zip(line[1:], widths[1:], strict=False))
            text.append("".join([first, *rest]).rstrip())
        return "\n".join([*text, *self.notes])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            f"<tr><th>{escape(row[0])}</th>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        top = f"<thead><tr>{head}</tr></thead>" if head else ""
        return (
            f"<table><caption>{escape(self.title)}</caption>{top}<tbody>{body}</tbody></table>"
            f"{notes}"
        )


def framed_table(
    title: str,
    columns: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    *,
    notes: Iterable[str] = (),
    words: bool = False,
) -> PlainTable:
    """Return a table around which a terminal draws lines."""
    return PlainTable(
        title=title, columns=columns, rows=tuple(rows), notes=tuple(notes), framed=True, words=words
    )


def facts_html(title: str, **facts: object) -> str:
    """Return a value's name and some facts of it as an HTML table, escaped and cut short."""
    rows = tuple((name.replace("_", " "), cut(str(fact))) for name, fact in facts.items())
    return PlainTable(title=title, rows=rows)._repr_html_()


def cut(text: str, most: int = _MOST_LETTERS) -> str:
    """Return a text, shortened if it is long."""
    return text if len(text) <= most else text[: most - 3] + "..."
