"""``agents/3.toml`` and ``agents/fleet-ev.toml``: what agents alone know.

An agent's file has its objective, its start, its fallback and its local set. A fleet's has the
formulas that its agents share, and names tables beside it with what tells them apart: private
parameters, starts in the columns ``start`` and fallbacks in ``fallback``. A gateway's copy of a
table has the lines of its own agents and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import in_order
from sottovoce.formula.expression import Expression
from sottovoce.formula.parse import parse_expression
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.document import Document, read_document
from sottovoce.problem.public_file import Stated, inside
from sottovoce.problem.relations import Row, read_row
from sottovoce.problem.table import Table, read_table

FOLDER = "agents"
_POINTS = ("start", "fallback")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateFile:
    """A file of private things and its tables, before any formula is read.

    Attributes:
        document: the file itself.
        stated: whose it is.
        parameters: private parameters of all agents of the fleet; of those that are not here, the
            numbers of one that is.
        points: starts and fallbacks likewise, shape (count, d), if its tables have them.
        texts: every file that was read, by its path in the problem's folder; None for Parquet.
    """

    document: Document
    stated: Stated
    parameters: Mapping[str, Array]
    points: Mapping[str, Array]
    texts: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Own:
    """What a private file says: objective, start or starts, fallback or several, local rows."""

    objective: Expression
    start: Any
    fallback: Any
    local: list[Row]


def private_name(stated: Stated) -> str:
    """Return what the private file of an agent or a fleet is called."""
    return f"{stated.numbers.start}.toml" if stated.alone else f"fleet-{stated.name}.toml"


def read_private_file(root: Path, stated: Stated, agents: Collection[int]) -> PrivateFile:
    """Read the private file of an agent, or of the agents of a fleet with these numbers.

    Raises:
        ProblemError: naming the file, and what is missing or wrong.
    """
    name = private_name(stated)
    document = read_document(root / FOLDER / name)
    texts: dict[str, str | None] = {f"{FOLDER}/{name}": document.text}
    parameters: dict[str, Array] = {}
    points: dict[str, Array] = {}
    if not stated.alone:
        tables = _tables(document, root, whole=len(agents) == len(stated.numbers))
        texts |= {f"{FOLDER}/{Path(table.path).name}": table.text for table in tables}
        if tables:
            parameters, points = _gathered(document, tables, stated, agents)
    return PrivateFile(
        document=document, stated=stated, parameters=parameters, points=points, texts=texts
    )


def read_own(file: PrivateFile, group: Group, symbols: Mapping[str, Expression]) -> Own:
    """Return what a private file says of its agents.

    Args:
        file: the file and its tables.
        group: its agents, with all their parameters.
        symbols: every name of the problem: one that is another's gets a message of its own.
    """
    document = file.document
    what = f"the file of {group.name}"
    who = "agent" if file.stated.alone else "fleet"
    known: tuple[str, ...] = (who, "objective", *_POINTS, "local")
    known += () if file.stated.alone else ("parameters",)
    document.check_keys(document.tables, known, what)
    name = document.text_of({who: group.name, **document.tables}, who, what)
    if name != group.name:
        raise ProblemError(
            f"{document.at(who)}: {who} must be {group.name!r}, as problem.toml calls it, "
            f"got {name!r:.60}"
        )
    text = document.text_of(document.tables, "objective", what)
    where = document.at(text.split("\n")[0])
    objective = parse_expression(text, symbols, where=where)
    _require_own(objective, group, f"{where}: the objective of {group.name}")
    return Own(
        objective=objective,
        start=file.points.get("start", _point(document, "start", group, what)),
        fallback=file.points.get("fallback", _point(document, "fallback", group, what)),
        local=_local(document, group, symbols),
    )


def _tables(document: Document, root: Path, *, whole: bool) -> list[Table]:
    named = document.tables.get("parameters", [])
    files = [named] if isinstance(named, str) else named
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise ProblemError(
            f"{document.at('parameters')}: parameters must be a table's name such as "
            f'"fleet-ev.csv", or a list of such, got {type(named).__name__}'
        )
    paths = [root / FOLDER / inside(file, document.at(file)) for file in files]
    # A gateway has its own tables only; whether all of its agents are there is seen below.
    return [read_table(path) for path in paths if whole or path.is_file()]


def _gathered(
    document: Document, tables: list[Table], stated: Stated, agents: Collection[int]
) -> tuple[dict[str, Array], dict[str, Array]]:
    numbers = [table.numbers(stated.numbers) for table in tables]
    places = np.concatenate(numbers) - stated.numbers.start
    here = np.bincount(places, minlength=len(stated.numbers))
    wanted = np.array(sorted(agents)) - stated.numbers.start
    if (here > 1).any() or (here[wanted] == 0).any():
        wrong = int(np.argmax(here > 1)) if (here > 1).any() else wanted[here[wanted] == 0][0]
        raise ProblemError(
            f"{document.at('parameters')}: the tables must have one line for agent "
            f"{wrong + stated.numbers.start}, got {here[wrong]}"
        )
    dim = stated.arguments["dim"]
    columns = [table.parameters(_POINTS) for table in tables]
    if any(c.keys() != columns[0].keys() for c in columns):
        raise ProblemError(
            f"{document.at('parameters')}: the tables must all have the same columns, got others"
        )
    spread = _Spread(places, here, int(wanted[0]))
    found = {name: spread(np.concatenate([c[name] for c in columns])) for name in columns[0]}
    points = {}
    for key in _POINTS:
        some = [b for b in (table.block(key, dim) for table in tables) if b is not None]
        if some and len(some) == len(tables):
            points[key] = spread(np.concatenate(some))
    return found, points


class _Spread:
    """Puts lines where their agents are; agents that are not here get one's numbers who is."""

    def __init__(self, places: Any, here: Any, one: int) -> None:
        self.order = np.empty(here.size, dtype=np.int64)
        line = np.full(here.size, -1)
        line[places] = np.arange(places.size)
        self.order = np.where(line >= 0, line, line[one])

    def __call__(self, lines: Array) -> Array:
        return lines[self.order]


def _local(document: Document, group: Group, symbols: Mapping[str, Expression]) -> list[Row]:
    listed = document.tables.get("local", [])
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise ProblemError(
            f"{document.at('local')}: local of the file of {group.name} must be a list of texts "
            'such as ["x3[1] + x3[2] >= 5"]'
        )
    rows = []
    for text in listed:
        where = document.at(text.split("\n")[0], after="local")
        row = read_row(text, symbols, where)
        _require_own(row.g, group, f"{where}: a local row of {group.name}")
        rows.append(row)
    return rows


def _require_own(formula: Expression, group: Group, what: str) -> None:
    own = {*group.symbols, *group.parameters}
    for symbol in in_order(formula.symbols - own):
        raise ProblemError(
            f"{what} may name its own state only, got {symbol}: put what couples agents into a "
            "constraint"
        )


def _point(document: Document, key: str, group: Group, what: str) -> Any:
    lower, upper = group.lower, group.upper
    if key not in document.tables:
        return None
    point = np.atleast_1d(np.array(document.numbers(document.tables, key, what), dtype=float))
    # The values stay unsaid: a start is private, and messages end up in logs.
    fits = point.shape == (group.dim,) or (group.count > 1 and point.shape == (1,))
    if not fits or not np.all((lower <= point) & (point <= upper)):
        raise ProblemError(
            f"{document.at(key)}: {key} of {group.name} must be {group.dim} "
            f"number{'s' if group.dim > 1 else ''} inside its box: move it inside the bounds"
        )
    return point
