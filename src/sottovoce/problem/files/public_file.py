"""``problem.toml``: agents and fleets with their boxes, constraints, privacy and schedule.

Everything in it, and in the tables that it names, is known to the cloud and to every agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import ProblemError
from sottovoce.formula.expression import ZERO, Expression, Relation
from sottovoce.formula.parse import parse_constraint
from sottovoce.problem.agents import Array, Group, fleet_group, named_groups
from sottovoce.problem.constraints import Constraint, Hard, hard
from sottovoce.problem.files.schema import (
    AgentTable,
    ConstraintTable,
    Document,
    FleetTable,
    ProblemFile,
    check_settings,
    read_document,
    refusal,
    required,
)
from sottovoce.problem.files.table import AGENT, Table, read_table
from sottovoce.problem.files.weights import MATRIX, fleet_weights, matrix_constraint
from sottovoce.problem.totals import BOUND, Totals

_BOUNDS = ("lower", "upper")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stated:
    """Agents as ``problem.toml`` states them: one by itself, or a fleet.

    Attributes:
        name: what people call the agent or the fleet.
        numbers: the agents' numbers, from 1.
        spec: its table.
        box: lower and upper bounds.
        parameters: the public parameters of a fleet.
    """

    name: str
    numbers: range
    spec: AgentTable | FleetTable
    box: Mapping[str, Any]
    parameters: Mapping[str, Array]

    @property
    def alone(self) -> bool:
        """Whether it is an agent by itself."""
        return isinstance(self.spec, AgentTable)

    @property
    def private_file(self) -> str:
        """What its private file is called."""
        return f"{self.numbers.start}.toml" if self.alone else f"fleet-{self.name}.toml"

    def group(self, private: Mapping[str, Array]) -> Group:
        """Return the agents with their private parameters as well."""
        if self.alone:
            box = {key: [bound] for key, bound in self.box.items()}
            return named_groups([self.name], dim=self.spec.dim, **box)[0]
        for name in self.parameters.keys() & private.keys():
            raise ProblemError(
                f"parameter {name} of {self.name} must be public or private, got it in both "
                "tables: remove one column"
            )
        every = {**self.parameters, **private}
        count, dim = len(self.numbers), self.spec.dim
        return fleet_group(count, name=self.name, dim=dim, **self.box, parameters=every)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicFile:
    """What ``problem.toml`` and the tables beside it say.

    Attributes:
        document: the file itself.
        stated: agents and fleets, in the order of their numbers.
        constraints: the tables of the constraints.
        settings: the tables ``[privacy]`` and ``[schedule]``.
        tables: the tables of numbers that were read, by their names.
    """

    document: Document
    stated: tuple[Stated, ...]
    constraints: tuple[ConstraintTable, ...]
    settings: Mapping[str, dict[str, Any]]
    tables: Mapping[str, Table]

    def arguments(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Return the arguments of ``Problem`` that the file states, for these agents."""
        return {
            "agents": list(groups),
            "constraints": dict(_constraints(self, groups)),
            **self.settings,
        }


def read_public_file(root: Path) -> PublicFile:
    """Read ``problem.toml`` and the tables it names.

    Raises:
        ProblemError: naming the file, the line and the key.
    """
    document = read_document(root / "problem.toml")
    spec = document.convert(ProblemFile, document.tables, "")
    agents = document.convert_each(AgentTable, spec.agents, "agent", "[[agents]]")
    fleets = document.convert_each(FleetTable, spec.fleet, "fleet", "[[fleet]]")
    listed = required(document, "problem.toml", "constraints", spec.constraints)
    texts = [{"expression": c} if isinstance(c, str) else c for c in listed]
    constraints = document.convert_each(ConstraintTable, texts, "constraint", "[[constraints]]")
    settings = {
        name: check_settings(name, getattr(spec, name), document)
        for name in ("privacy", "schedule")
    }
    if not agents and not fleets:
        raise refusal(document.path, "a problem needs at least one agent, got none: add [[agents]]")
    named = [f.parameters for f in fleets] + [c.matrix for c in constraints]
    named += [file for c in constraints for file in c.weights.values()]
    tables = {n: read_table(root / inside(n, document.at(n))) for n in named if n is not None}
    return PublicFile(
        document=document,
        stated=tuple(_numbered(document, agents, fleets, tables)),
        constraints=tuple(constraints),
        settings=settings,
        tables=tables,
    )


def inside(name: str, where: str) -> str:
    """Return the name of a table, which must lie in the folder of the file that names it.

    Raises:
        ProblemError: if it leads elsewhere.
    """
    if Path(name).name != name:
        raise refusal(where, f"a table must be a file in the same folder, got {name!r:.60}")
    return name


def _numbered(
    document: Document,
    agents: Sequence[AgentTable],
    fleets: Sequence[FleetTable],
    tables: Mapping[str, Table],
) -> Iterator[Stated]:
    """Number the agents from 1: those by themselves, then fleets, unless a fleet says its first."""
    placed = {f.first: f for f in fleets if f.first is not None}
    waiting: list[AgentTable | FleetTable] = [
        *agents,
        *(f for f in fleets if f.first is None),
    ]
    following, alone = 1, 0
    table: AgentTable | FleetTable
    while waiting or following in placed:
        table = placed.pop(following) if following in placed else waiting.pop(0)
        if isinstance(table, AgentTable):
            alone += 1
            box = {"lower": table.lower, "upper": table.upper}
            name, count = f"x{alone}" if table.name is None else table.name, 1
            parameters: dict[str, Array] = {}
        else:
            name, count = table.name, table.count
            box, parameters = _fleet_numbers(document, table, tables.get(table.parameters or ""))
        numbers = range(following, following + count)
        yield Stated(name=name, numbers=numbers, spec=table, box=box, parameters=parameters)
        following += count
    for first, left in placed.items():
        raise refusal(
            document.at("first"),
            f"first of fleet {left.name} must be the number after another agent's or fleet's "
            f"last, got {first}: leave it out to put the fleet last",
        )


def _fleet_numbers(
    document: Document, spec: FleetTable, table: Table | None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The bounds of a fleet and its public parameters."""
    if table is not None and (AGENT in table.columns or table.lines != spec.count):
        raise ProblemError(
            f"{table.path} must have a line for each of {spec.count:,} agents in order and no "
            f"column {AGENT!r}, got {table.lines:,} lines and {', '.join(table.columns):.60}"
        )
    what, box = f"fleet {spec.name}", {}
    for key, bound in (("lower", spec.lower), ("upper", spec.upper)):
        column = None if table is None else table.block(key, spec.dim)
        if column is not None and bound is not None:
            raise refusal(
                document.at(key, table=f'"{spec.name}"'),
                f"{key} of {what} must be said once, got it here and as a column of its table: "
                "remove one",
            )
        box[key] = required(document, what, key, bound) if column is None else column
    return box, {} if table is None else table.parameters(_BOUNDS)


def _constraints(
    public: PublicFile, groups: Sequence[Group]
) -> Iterator[tuple[str, Constraint | Relation | Hard]]:
    symbols = {s.name: s for group in groups if group.count == 1 for s in group.symbols}
    seen: set[str] = set()
    for j, table in enumerate(public.constraints):
        line = table.expression.split("\n")[0]
        where = public.document.at(line, table="[[constraints]]", nth=j)
        name = f"g{j + 1}" if table.name is None else table.name
        if name in seen:
            raise refusal(where, f"names must differ, got constraint {name} twice")
        seen.add(name)
        row = _constraint(public, groups, symbols, table, where)
        yield name, hard(row) if table.hard else row


def _constraint(
    public: PublicFile,
    groups: Sequence[Group],
    symbols: Mapping[str, Expression],
    table: ConstraintTable,
    where: str,
) -> Constraint | Relation:
    fleets = [(g, s) for g, s in zip(groups, public.stated, strict=True) if not s.alone]
    known = {n for _, s in fleets for n in s.parameters}
    totals = Totals([g for g, _ in fleets], known) if fleets else None
    names = dict(symbols) | ({} if table.bound is None else {"bound": BOUND})
    names |= {} if table.matrix is None else {"matrix": MATRIX}
    g, equality = parse_constraint(table.expression, names, where=where, totals=totals)
    if table.matrix is not None:
        read = public.tables[table.matrix]
        return matrix_constraint(g, read, groups, equality=equality, bound=table.bound, where=where)
    if totals is not None and totals.symbols:
        weights = {}
        for name, file in table.weights.items():
            numbers = next((s.numbers for _, s in fleets if s.name == name), None)
            if numbers is None:
                raise refusal(where, f"weights must be for a fleet, got {name!r:.60}")
            weights[name] = fleet_weights(public.tables[file], numbers)
        return totals.family(g, equality=equality, bound=table.bound, weights=weights, where=where)
    for key, value in (("bound", table.bound), ("weights", table.weights or None)):
        if value is not None:
            raise refusal(
                where,
                f"a constraint must have {key} for a total over a fleet or a matrix only, got "
                "neither: remove it",
            )
    return Relation(g, "==" if equality else "<=", ZERO)
