"""Reading of problem folders: with all private files, with none (a cloud), or some (a gateway).

``load_problem`` reads ``problem.toml`` with the tables it names, and the private files of some
agents: of all on the machine where the problem was written, of none on a server, of its own on a
device or a gateway. What is left out has the objective 0.

A fleet's private file has the formulas that its agents share, and names tables beside it with what
differs between them: private parameters, starts in the columns ``start`` and fallbacks in
``fallback``. A gateway's copy of a table has the lines of its own agents and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, final

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from sottovoce.arguments import entries, path_of, whole
from sottovoce.errors import InputError, ProblemError
from sottovoce.formula.canonical import add
from sottovoce.formula.expression import Expression, Relation
from sottovoce.formula.order import in_order
from sottovoce.formula.parse import parse_expression
from sottovoce.problem.constraints import Constraint, Hard, hard
from sottovoce.problem.files.constraint_text import ConstraintReader
from sottovoce.problem.files.schema import (
    AgentFile,
    ConstraintTable,
    Document,
    FleetFile,
    FleetTable,
    ProblemFile,
    PublicNumbers,
    SumTable,
    check_settings,
    needs,
    read_document,
    refusal,
)
from sottovoce.problem.files.table import AGENT, Table, read_table
from sottovoce.problem.groups import Array, Group, fleet_group
from sottovoce.problem.problem import Problem
from sottovoce.problem.stating import Row, read_row

_BOUNDS = ("lower", "upper")
_POINTS = ("start", "fallback")
_ELSEWHERE, _UNKNOWN = Document(tables={}), AgentFile(objective="0")  # of agents that are not here


Public: TypeAlias = Mapping[str, float | list[float]]
"""Public numbers by their names: those of a table ``[public]``, or others in their place."""


def load_public(folder: str | Path) -> Public:
    """Read the table ``[public]`` of a problem: what a run of a series may replace."""
    return read_document(path_of("folder", folder) / "problem.toml").convert(ProblemFile).public


def replace_public(stated: Public, values: object) -> Public:
    """Return the public numbers of a problem with some replaced by others of the same length."""
    try:
        numbers = msgspec.convert(values, PublicNumbers)
    except msgspec.ValidationError as error:
        raise InputError(
            f"public data must map names to finite numbers or lists of them: {error}"
        ) from None
    for name, value in numbers.items():
        if name not in stated:
            names = ", ".join(stated) or "none"
            raise InputError(
                f"public data must be of the table [public] ({names}), got {name!r:.60}"
            )
        if np.shape(value) != np.shape(stated[name]):
            raise InputError(
                f"{name} must have {np.size(stated[name])} numbers, as in the table [public], got "
                f"{np.size(value)}"
            )
    return {**stated, **numbers}


def load_problem(
    folder: str | Path, *, agents: Iterable[int] | None = None, public: Public | None = None
) -> Problem:
    """Read a problem from a folder: ``problem.toml``, and agents' files under ``agents/``.

    Of agents whose files are not read the objective is 0; of those in a fleet of which some are
    read the private parameters are one of these's. ``public`` numbers take the place of those in
    the table ``[public]``.
    """
    files = _Files(path_of("folder", folder))
    document = files.document("problem.toml")
    spec = document.convert(ProblemFile)
    numbers = replace_public(spec.public, public or {})
    public_agents = list(_numbered(document, spec, files))
    if not public_agents:
        raise refusal(document.path, "a problem needs at least one agent, got none: add [[agents]]")
    if not (spec.constraints or spec.cost):
        raise refusal(document.path, needs("problem.toml", "constraints"))
    last = public_agents[-1].numbers.stop - 1
    if agents is None:
        files.require_no_others([one.private_file for one in public_agents], last)
        private_agents: Collection[int] = range(1, last + 1)
    else:
        stated_agents = entries("agents", agents, "a list of agents' numbers")
        private_agents = {
            whole("agent", a, least=1, most=last, error=ProblemError) for a in stated_agents
        }
    stated = [one.with_private(files, private_agents) for one in public_agents]
    try:
        groups = [one.group() for one in stated]
    except ProblemError as error:
        raise refusal(document.path, str(error)) from None
    symbols = {s.name: s for group in groups for s in (*group.symbols, *group.parameters)}
    pairs = list(zip(stated, groups, strict=True))
    fleets = {one.name: one.parameters for one in stated if not one.alone}
    reader = ConstraintReader(groups, fleets, files.tables(document, spec), numbers)
    return Problem(
        agents=groups,
        objectives=[one.objective(g, symbols) for one, g in pairs],
        local=[row for one, g in pairs for row in one.local(g, symbols)],
        constraints=dict(_constraints(document, spec, reader)),
        cost=_cost(document, spec, reader),
        **{key: [one.point(key, g) for one, g in pairs] for key in _POINTS},
        privacy=check_settings("privacy", document.tables.get("privacy"), document),
        schedule=check_settings("schedule", document.tables.get("schedule"), document),
        source=files.texts() if agents is None and not public else None,
    )


@final
class _Files:
    """The files of a folder, with the text of each that was read."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._texts: dict[str, str | None] = {}

    def document(self, path: str) -> Document:
        document = read_document(self._root / path)
        self._texts[path] = document.text
        return document

    def table(self, name: str, by: Document, folder: str = "") -> Table:
        """Read a table, which must lie in the folder of the file that names it."""
        if Path(name).name != name:
            rule = f"a table must be a file in the same folder, got {name!r:.60}"
            raise refusal(by.line_of(name), rule)
        table, self._texts[folder + name] = read_table(self._root / folder / name)
        return table

    def tables(self, by: Document, spec: ProblemFile) -> dict[str, Table]:
        """Read the tables that constraints name."""
        stated: list[ConstraintTable | SumTable] = list(spec.sums)
        stated += [c for c in spec.constraints if not isinstance(c, str)]
        named = {c.matrix for c in stated} | {w for c in stated for w in c.weights.values()}
        return {name: self.table(name, by) for name in named if name is not None}

    def has(self, path: str) -> bool:
        return (self._root / path).is_file()

    def require_no_others(self, expected: Collection[str], last: int) -> None:
        for path in sorted((self._root / "agents").glob("*.toml")):
            if f"agents/{path.name}" not in expected:
                raise ProblemError(
                    f"agents/{path.name} belongs to no agent: problem.toml has {last}; add the "
                    "agent there or remove the file"
                )

    def texts(self) -> dict[str, str] | None:
        """Every file that was read by its path; None if one is no text."""
        texts = {path: text for path, text in self._texts.items() if text is not None}
        return texts if len(texts) == len(self._texts) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _StatedAgents:
    """An agent by itself or a fleet, by ``problem.toml`` and its private file."""

    name: str  # of the agent or the fleet
    numbers: range  # the agents' numbers, from 1
    dim: int  # the dimension of a state
    alone: bool  # whether it is an agent by itself
    box: Mapping[str, ArrayLike]  # lower and upper bounds
    parameters: Mapping[str, Array]  # the public parameters of a fleet
    document: Document = _ELSEWHERE  # the private file, if one of the agents is here
    spec: AgentFile | FleetFile = _UNKNOWN  # what it says
    # private parameters of all agents; of those that are not here, the numbers of one that is
    private: Mapping[str, Array] = field(default_factory=dict)
    points: Mapping[str, Array] = field(default_factory=dict)  # starts, fallbacks (count, d)

    @property
    def private_file(self) -> str:
        """Where its private file is."""
        return f"agents/{self.numbers.start if self.alone else f'fleet-{self.name}'}.toml"

    def group(self) -> Group:
        """Return the agents, with their private parameters as well."""
        for name in self.parameters.keys() & self.private.keys():
            raise ProblemError(
                f"parameter {name} of {self.name} must be public or private, got it in both "
                "tables: remove one column"
            )
        every = {**self.parameters, **self.private}
        count = len(self.numbers)
        return fleet_group(count, name=self.name, dim=self.dim, **self.box, parameters=every)

    def with_private(self, files: _Files, agents: Collection[int]) -> _StatedAgents:
        """Add what those of these agents that are here know."""
        present = [a for a in self.numbers if a in agents] if len(agents) else []
        if not present:
            return self
        document = files.document(self.private_file)
        kind: type[AgentFile] | type[FleetFile] = AgentFile if self.alone else FleetFile
        spec = document.convert(kind, f"the file of {self.name}")
        stated = getattr(spec, "parameters", [])
        named = [stated] if isinstance(stated, str) else stated
        # A gateway has its own tables only; whether all of its agents are there is seen below.
        every = len(present) == len(self.numbers)
        here = [name for name in named if every or files.has(f"agents/{name}")]
        tables = [files.table(name, document, "agents/") for name in here]
        private, points = self._gathered(document, tables, present) if tables else ({}, {})
        return replace(self, document=document, spec=spec, private=private, points=points)

    def _gathered(
        self, document: Document, tables: Sequence[Table], agents: Sequence[int]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Parameters and points of all agents of a fleet from its tables."""
        where, first, count = document.line_of("parameters"), self.numbers.start, len(self.numbers)
        places = np.concatenate([table.numbers(self.numbers) for table in tables]) - first
        lines = np.bincount(places, minlength=count)
        wanted = np.array(agents) - first
        wrong = [*np.flatnonzero(lines > 1)[:1], *wanted[lines[wanted] == 0][:1]]
        if wrong:
            agent, got = wrong[0] + first, lines[wrong[0]]
            raise refusal(where, f"the tables must have one line for agent {agent}, got {got}")
        columns = [table.parameters(_POINTS) for table in tables]
        if any(c.keys() != columns[0].keys() for c in columns):
            raise refusal(where, "the tables must all have the same columns, got others")
        line = np.full(count, -1)
        line[places] = np.arange(places.size)
        order = np.where(line >= 0, line, line[wanted[0]])  # an agent elsewhere gets one's here
        parameters = {n: np.concatenate([c[n] for c in columns])[order] for n in columns[0]}
        points = {}
        for key in _POINTS:
            blocks = [b for table in tables if (b := table.block(key, self.dim)) is not None]
            if len(blocks) == len(tables):
                points[key] = np.concatenate(blocks)[order]
        return parameters, points

    def objective(self, group: Group, symbols: Mapping[str, Expression]) -> Expression:
        """Read f; a name of ``symbols`` that is another's gets a message of its own."""
        spec = self.spec
        who, name = ("agent", spec.agent) if isinstance(spec, AgentFile) else ("fleet", spec.fleet)
        if name is not None and name != group.name:
            raise refusal(
                self.document.line_of(who),
                f"{who} must be {group.name!r}, as problem.toml calls it, got {name!r:.60}",
            )
        where = self.document.line_of(spec.objective.split("\n")[0])
        formula = parse_expression(spec.objective, symbols, where=where)
        _require_local(formula, group, where, f"the objective of {group.name}")
        return formula

    def local(self, group: Group, symbols: Mapping[str, Expression]) -> list[Row]:
        """Read the rows of the local set."""
        rows = []
        for text in self.spec.local:
            where = self.document.line_of(text.split("\n")[0], table="local")
            row = read_row(text, symbols, where)
            _require_local(row.g, group, where, f"a local row of {group.name}")
            rows.append(row)
        return rows

    def point(self, key: str, group: Group) -> Array | None:
        """Start or fallback: one for all, one for each, or none."""
        stated = getattr(self.spec, key)
        if key in self.points or stated is None:
            return self.points.get(key)
        point = np.atleast_1d(np.array(stated, dtype=float))
        # The values stay unsaid: a start is private, and messages end up in logs.
        fits = point.shape == (group.dim,) or (group.count > 1 and point.shape == (1,))
        if not fits or not np.all((group.lower <= point) & (point <= group.upper)):
            many = "s" if group.dim > 1 else ""
            raise refusal(
                self.document.line_of(key),
                f"{key} of {group.name} must be {group.dim} number{many} inside its box: move it "
                "inside the bounds",
            )
        return point


def _require_local(formula: Expression, group: Group, where: str, what: str) -> None:
    for symbol in in_order(formula.symbols.difference(group.symbols, group.parameters)):
        raise refusal(
            where,
            f"{what} may name its own state only, got {symbol}: put what couples agents into a "
            "constraint",
        )


def _numbered(document: Document, spec: ProblemFile, files: _Files) -> Iterator[_StatedAgents]:
    """Number the agents from 1: those by themselves, then fleets, unless a fleet says its first."""
    alone = [
        FleetTable(f"x{i + 1}" if a.name is None else a.name, 1, a.dim, a.lower, a.upper)
        for i, a in enumerate(spec.agents)
    ]
    placed = {fleet.first: fleet for fleet in spec.fleet if fleet.first is not None}
    waiting = [*alone, *(fleet for fleet in spec.fleet if fleet.first is None)]
    following = 1
    while waiting or following in placed:
        table = placed.pop(following) if following in placed else waiting.pop(0)
        box, parameters = _fleet_numbers(document, table, files)
        yield _StatedAgents(
            name=table.name,
            numbers=range(following, following + table.count),
            dim=table.dim,
            alone=any(table is one for one in alone),
            box=box,
            parameters=parameters,
        )
        following += table.count
    for first, left in placed.items():
        raise refusal(
            document.line_of("first"),
            f"first of fleet {left.name} must be the number after another agent's or fleet's "
            f"last, got {first}: leave it out to put the fleet last",
        )


def _fleet_numbers(
    document: Document, spec: FleetTable, files: _Files
) -> tuple[dict[str, ArrayLike], dict[str, Array]]:
    """The bounds of a fleet and its public parameters."""
    table = None if spec.parameters is None else files.table(spec.parameters, document)
    if table is not None and (AGENT in table.columns or table.lines != spec.count):
        raise ProblemError(
            f"{table.path} must have a line for each of {spec.count:,} agents in order and no "
            f"column {AGENT!r}, got {table.lines:,} lines and {', '.join(table.columns):.60}"
        )
    what, box = f"fleet {spec.name}", {}
    for key in _BOUNDS:
        bound = getattr(spec, key)
        column = None if table is None else table.block(key, spec.dim)
        if column is None and bound is None:
            raise refusal(document.path, needs(what, key))
        if column is not None and bound is not None:
            raise refusal(
                document.line_of(key, table=f'"{spec.name}"'),
                f"{key} of {what} must be said once, got it here and as a column of its table: "
                "remove one",
            )
        box[key] = bound if column is None else column
    return box, {} if table is None else table.parameters(_BOUNDS)


def _constraints(
    document: Document, spec: ProblemFile, reader: ConstraintReader
) -> Iterator[tuple[str, Constraint | Relation | Hard]]:
    seen: set[str] = set()
    for j, stated in enumerate(spec.constraints):
        table = ConstraintTable(expression=stated) if isinstance(stated, str) else stated
        where = document.line_of(table.expression.split("\n")[0], table="[[constraints]]", nth=j)
        name = f"g{j + 1}" if table.name is None else table.name
        if name in seen:
            raise refusal(where, f"names must differ, got constraint {name} twice")
        seen.add(name)
        row = reader.read(table, where)
        yield name, hard(row) if table.hard else row


def _cost(public: Document, spec: ProblemFile, reader: ConstraintReader) -> Expression | None:
    """The public cost, all tables ``[[cost]]`` together."""
    names = reader.alone | reader.constants
    for n, table in enumerate(spec.sums):
        rows = reader.rows(table, public.line_of("expression", table="[[sums]]", nth=n))
        if taken := names.keys() & rows.keys():
            where = public.line_of("name", table="[[sums]]", nth=n)
            raise refusal(where, f"names must differ, got {min(taken)} twice: rename one")
        names |= rows
    terms = [
        parse_expression(
            table.expression, names, where=public.line_of("expression", table="[[cost]]", nth=n)
        )
        for n, table in enumerate(spec.cost)
    ]
    return add(*terms) if terms else None
