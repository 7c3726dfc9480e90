"""Folders read: by whoever may see everything, by the cloud, and by a device or a gateway.

``load_problem`` reads everything and belongs on the machine where the problem was written; a server
has the public files alone, which ``read_public`` reads; a device or a gateway has these and the
private ones of its own agents, which ``read_part`` reads. All three read a file in the same way.

A fleet's private file has the formulas that its agents share, and names tables beside it with what
differs between them: private parameters, starts in the columns ``start`` and fallbacks in
``fallback``. A gateway's copy of a table has the lines of its own agents and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.arguments import entries, path_of, whole
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import in_order
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.formula.parse import parse_expression
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.files.public_file import PublicFile, Stated, inside, read_public_file
from sottovoce.problem.files.schema import (
    AgentFile,
    Document,
    FleetFile,
    read_document,
    refusal,
)
from sottovoce.problem.files.table import Table, read_table
from sottovoce.problem.problem import AgentView, CloudView, Problem
from sottovoce.problem.relations import Row, read_row

FOLDER = "agents"
_POINTS = ("start", "fallback")


def load_problem(folder: str | Path) -> Problem:
    """Read a problem from a folder: ``problem.toml``, and all agents' files under ``agents/``."""
    root = path_of("folder", folder)
    public = read_public_file(root)
    expected = {stated.private_file for stated in public.stated}
    surplus = sorted(p.name for p in (root / FOLDER).glob("*.toml") if p.name not in expected)
    if surplus:
        raise ProblemError(
            f"agents/{surplus[0]} belongs to no agent: problem.toml has {_last(public)}; add the "
            "agent there or remove the file"
        )
    return _read(root, public, range(1, _last(public) + 1), keep=True)


def read_public(folder: str | Path) -> Problem:
    """Read the public files alone: a problem whose objectives are all 0, being private."""
    root = path_of("folder", folder)
    return _read(root, read_public_file(root), ())


def read_part(folder: str | Path, agents: Any) -> Problem:
    """Read the public files and what these agents alone know.

    Of all other agents the objective is 0; of others in the same fleet the private parameters are
    those of one that was read, since their own are elsewhere.

    Args:
        folder: the folder, or a gateway's copy with its own agents' files alone.
        agents: their numbers, from 1.
    """
    root = path_of("folder", folder)
    public = read_public_file(root)
    listed = entries("agents", agents, "a list of agents' numbers")
    last = _last(public)
    wanted = {whole("agent", a, least=1, most=last, error=ProblemError) for a in listed}
    return _read(root, public, wanted)


def read_agent(path: str | Path) -> tuple[CloudView, int, AgentView]:
    """Read ``FOLDER/agents/3.toml``: the public problem, the agent's number and what it knows."""
    file = path_of("path", path)
    if not file.stem.isdecimal():
        raise ProblemError(f"an agent's file must be called 1.toml, 2.toml, ..., got {file.name}")
    number = int(file.stem)
    problem = read_part(file.absolute().parent.parent, [number])
    return problem.cloud, number, problem.agent(number)


def _last(public: PublicFile) -> int:
    return public.stated[-1].numbers.stop - 1


def _read(
    root: Path, public: PublicFile, agents: Collection[int], *, keep: bool = False
) -> Problem:
    files: list[_ReadPrivateFile | None] = []
    for stated in public.stated:
        mine = agents if len(agents) == 0 else [a for a in stated.numbers if a in agents]
        files.append(_private_file(root, stated, mine) if mine else None)
    try:
        groups = [
            stated.group({} if file is None else file.parameters)
            for stated, file in zip(public.stated, files, strict=True)
        ]
    except ProblemError as error:
        raise refusal(public.document.path, str(error)) from None
    symbols = {s.name: s for group in groups for s in (*group.symbols, *group.parameters)}
    known = list(zip(files, groups, strict=True))
    start, fallback = (
        [None if f is None else f.point(key, group) for f, group in known] for key in _POINTS
    )
    objectives = [ZERO if f is None else f.objective(group, symbols) for f, group in known]
    return Problem(
        **public.arguments(groups),
        objectives=objectives,
        start=start,
        fallback=fallback,
        local=[row for f, group in known if f is not None for row in f.local(group, symbols)],
        source=_source(public, files) if keep else None,
    )


def _source(public: PublicFile, files: Sequence[_ReadPrivateFile | None]) -> dict[str, str] | None:
    """Every file by its path, to be written back unchanged; None if one is no text."""
    texts: dict[str, str | None] = {"problem.toml": public.document.text}
    texts |= {name: table.text for name, table in public.tables.items()}
    for file in files:
        texts |= {} if file is None else file.texts
    kept = {path: text for path, text in texts.items() if text is not None}
    return kept if len(kept) == len(texts) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ReadPrivateFile:
    """What agents alone know, before any formula is read.

    Attributes:
        document: the file itself.
        spec: what it says.
        parameters: private parameters of all agents of the fleet; of those that are not here, the
            numbers of one that is.
        points: starts and fallbacks likewise, shape (count, d), if its tables have them.
        texts: every file that was read, by its path in the problem's folder; None for Parquet.
    """

    document: Document
    spec: AgentFile | FleetFile
    parameters: Mapping[str, Array]
    points: Mapping[str, Array]
    texts: Mapping[str, str | None]

    def objective(self, group: Group, symbols: Mapping[str, Expression]) -> Expression:
        """Read f; a name of ``symbols`` that is another's gets a message of its own."""
        spec = self.spec
        who, name = ("agent", spec.agent) if isinstance(spec, AgentFile) else ("fleet", spec.fleet)
        if name is not None and name != group.name:
            raise refusal(
                self.document.at(who),
                f"{who} must be {group.name!r}, as problem.toml calls it, got {name!r:.60}",
            )
        text = spec.objective
        where = self.document.at(text.split("\n")[0])
        formula = parse_expression(text, symbols, where=where)
        _require_local(formula, group, where, f"the objective of {group.name}")
        return formula

    def local(self, group: Group, symbols: Mapping[str, Expression]) -> list[Row]:
        """Read the rows of the local set."""
        rows = []
        for text in self.spec.local:
            where = self.document.at(text.split("\n")[0], table="local")
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
                self.document.at(key),
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


def _private_file(root: Path, stated: Stated, agents: Collection[int]) -> _ReadPrivateFile:
    """Read the private file of an agent, or of the agents of a fleet with these numbers."""
    document = read_document(root / FOLDER / stated.private_file)
    what = f"the file of {stated.name}"
    kind: type[AgentFile] | type[FleetFile] = AgentFile if stated.alone else FleetFile
    spec = document.convert(kind, document.tables, what)
    texts: dict[str, str | None] = {f"{FOLDER}/{stated.private_file}": document.text}
    parameters: dict[str, Array] = {}
    points: dict[str, Array] = {}
    if isinstance(spec, FleetFile):
        files = [spec.parameters] if isinstance(spec.parameters, str) else spec.parameters
        paths = [root / FOLDER / inside(file, document.at(file)) for file in files]
        # A gateway has its own tables only; whether all of its agents are there is seen below.
        every = len(agents) == len(stated.numbers)
        tables = [read_table(path) for path in paths if every or path.is_file()]
        texts |= {f"{FOLDER}/{Path(table.path).name}": table.text for table in tables}
        if tables:
            parameters, points = _gathered(document, tables, stated, agents)
    return _ReadPrivateFile(
        document=document, spec=spec, parameters=parameters, points=points, texts=texts
    )


def _gathered(
    document: Document, tables: Sequence[Table], stated: Stated, agents: Collection[int]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Parameters and points of all agents of a fleet from its tables."""
    where, first, count = document.at("parameters"), stated.numbers.start, len(stated.numbers)
    places = np.concatenate([table.numbers(stated.numbers) for table in tables]) - first
    lines = np.bincount(places, minlength=count)
    wanted = np.array(sorted(agents)) - first
    wrong = [*np.flatnonzero(lines > 1)[:1], *wanted[lines[wanted] == 0][:1]]
    if wrong:
        rule = f"the tables must have one line for agent {wrong[0] + first}, got {lines[wrong[0]]}"
        raise refusal(where, rule)
    columns = [table.parameters(_POINTS) for table in tables]
    if any(c.keys() != columns[0].keys() for c in columns):
        raise refusal(where, "the tables must all have the same columns, got others")
    line = np.full(count, -1)
    line[places] = np.arange(places.size)
    order = np.where(line >= 0, line, line[wanted[0]])  # who is not here gets one's who is
    parameters = {n: np.concatenate([c[n] for c in columns])[order] for n in columns[0]}
    blocks = {key: [table.block(key, stated.spec.dim) for table in tables] for key in _POINTS}
    complete = {key: [b for b in some if b is not None] for key, some in blocks.items()}
    points = {
        key: np.concatenate(some)[order]
        for key, some in complete.items()
        if len(some) == len(tables)
    }
    return parameters, points
