"""Problems as folders that people write by hand, split by who may read what.

``problem.toml`` holds what the cloud knows: agents and their boxes, constraints as text, privacy
and schedule. ``agents/1.toml``, ``agents/2.toml``, ... hold what one agent alone knows: its
objective as text, its start and its local set. ``load_problem`` reads everything and belongs on the
machine where the problem was written; a server has ``problem.toml`` alone, which ``read_public``
reads; a device has ``problem.toml`` and one ``agents/i.toml``, which ``read_agent`` reads. All
three read a file in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sympy as sp

from sottovoce.arguments import path_of
from sottovoce.errors import ProblemError
from sottovoce.problem.agents import Array, Group, States, states
from sottovoce.problem.document import Document, read_document
from sottovoce.problem.feasible import require_nonempty
from sottovoce.problem.local import local_set
from sottovoce.problem.problem import AgentView, CloudView, Problem
from sottovoce.problem.relations import Row, read_row
from sottovoce.problem.settings import Setting, check_setting
from sottovoce.problem.text import parse_constraint, parse_expression

FORMAT = 1


def load_problem(folder: str | Path) -> Problem:
    """Read a problem from a folder: ``problem.toml`` and ``agents/1.toml`` to ``agents/n.toml``.

    Nothing in the files is ever executed: formulas go through the parser of ``problem.text``.
    """
    root = path_of("folder", folder)
    cloud = read_document(root / "problem.toml")
    public = _public(cloud)
    groups = public["states"].groups
    privates = {f"agents/{i + 1}.toml": group for i, group in enumerate(groups)}
    files = {name: read_document(root / name) for name in privates}
    _refuse_surplus_agents(root, len(groups))
    symbols = _symbols(groups)
    known = [_agent_file(files[name], group, symbols) for name, group in privates.items()]
    return Problem(
        **public,
        objectives=[own.objective for own in known],
        start=[own.start for own in known],
        local=[row for own in known for row in own.local],
        source={"problem.toml": cloud.text} | {name: file.text for name, file in files.items()},
    )


def read_public(folder: str | Path) -> Problem:
    """Read ``problem.toml`` alone: a problem whose objectives are all 0, being private."""
    public = _public(read_document(path_of("folder", folder) / "problem.toml"))
    return Problem(**public, objectives=[sp.Integer(0)] * len(public["states"]))


def read_agent(path: str | Path) -> tuple[CloudView, int, AgentView]:
    """Read ``FOLDER/agents/3.toml``: the public problem, the agent's number and what it knows."""
    file = path_of("path", path)
    if not file.stem.isdecimal():
        raise ProblemError(f"an agent's file must be called 1.toml, 2.toml, ..., got {file.name}")
    number = int(file.stem)
    problem = read_public(file.absolute().parent.parent)
    group = problem.groups[problem.cloud.locate(number)[0]]
    own = _agent_file(read_document(file), group, _symbols(problem.groups))
    local = local_set(group, (), own.local)
    require_nonempty(group, local)
    view = AgentView(
        name=group.name,
        symbols=group.symbols,
        lower=group.lower[0],
        upper=group.upper[0],
        objective=own.objective,
        start=own.start,
        local=local,
    )
    return problem.cloud, number, view


def _symbols(groups: tuple[Group, ...]) -> dict[str, sp.Symbol]:
    return {s.name: s for group in groups for s in group.symbols}


def _public(document: Document) -> dict[str, Any]:
    """What ``problem.toml`` says, as arguments of ``Problem``."""
    known = ("format", "agents", "constraints", "privacy", "schedule")
    document.check_keys(document.tables, known, "problem.toml")
    number = document.tables.get("format", FORMAT)
    if isinstance(number, bool) or number != FORMAT:
        raise ProblemError(
            f"{document.at('format')}: format must be {FORMAT}, got {number!r:.60}: "
            "this file needs a newer version of sottovoce"
        )
    agents = _agents(document)
    return {
        "states": agents,
        "constraints": _constraints(document, _symbols(agents.groups)),
        "privacy": _settings(document, "privacy"),
        "schedule": _settings(document, "schedule"),
    }


def _agents(document: Document) -> States:
    tables = document.listed("agents")
    if not tables:
        raise ProblemError(f"{document.at('agents')}: a problem needs at least one agent, got none")
    names, dims, lowers, uppers = [], [], [], []
    for i, table in enumerate(tables):
        what = f"agent {i + 1}"
        document.check_keys(table, ("name", "dim", "lower", "upper"), what)
        names.append(document.text_of({"name": f"x{i + 1}", **table}, "name", what))
        dims.append(document.whole({"dim": 1, **table}, "dim", what))
        lowers.append(document.numbers(table, "lower", what))
        uppers.append(document.numbers(table, "upper", what))
    try:
        return states(len(tables), lower=lowers, upper=uppers, dim=dims, names=names)
    except ProblemError as error:
        raise ProblemError(f"{document.path}: {error}") from error


def _constraints(document: Document, symbols: Mapping[str, sp.Symbol]) -> dict[str, sp.Basic]:
    constraints: dict[str, sp.Basic] = {}
    for j, entry in enumerate(document.listed("constraints")):
        what = f"constraint {j + 1}"
        table = {"expression": entry} if isinstance(entry, str) else entry
        document.check_keys(table, ("name", "expression"), what)
        name = document.text_of({"name": f"g{j + 1}", **table}, "name", what)
        text = document.text_of(table, "expression", what)
        where = document.at(text.split("\n")[0], after="constraints")
        if name in constraints:
            raise ProblemError(f"{where}: names must differ, got constraint {name} twice")
        g, equality = parse_constraint(text, symbols, where=where)
        constraints[name] = (sp.Eq if equality else sp.Le)(g, 0, evaluate=False)
    return constraints


def _settings(document: Document, name: str) -> dict[str, Setting]:
    table = document.tables.get(name, {})
    if not isinstance(table, dict):
        raise ProblemError(f"{document.at(name)}: {name} must be a table [{name}]")
    found = {}
    for key, value in table.items():
        try:
            found[key] = check_setting(name, key, value)
        except ProblemError as error:
            raise ProblemError(f"{document.at(key, after=f'[{name}]')}: {error}") from None
    return found


class _Own(NamedTuple):
    """What an agent's file says: its objective, its start, shape (d,), and its local rows."""

    objective: sp.Expr
    start: Array
    local: list[Row]


def _agent_file(document: Document, group: Group, symbols: Mapping[str, sp.Symbol]) -> _Own:
    """What the file of the one agent of a group says."""
    what = f"the file of {group.name}"
    document.check_keys(document.tables, ("agent", "objective", "start", "local"), what)
    name = document.text_of({"agent": group.name, **document.tables}, "agent", what)
    if name != group.name:
        raise ProblemError(
            f"{document.at('agent')}: agent must be {group.name!r}, as problem.toml calls it, "
            f"got {name!r:.60}"
        )
    text = document.text_of(document.tables, "objective", what)
    where = document.at(text.split("\n")[0])
    objective = parse_expression(text, symbols, where=where)
    for symbol in sorted(objective.free_symbols - set(group.symbols), key=str):
        raise ProblemError(
            f"{where}: the objective of {group.name} may name its own state only, got {symbol}: "
            "put what couples agents into a constraint"
        )
    return _Own(objective, _start(document, group, what), _local(document, group, symbols))


def _local(document: Document, group: Group, symbols: Mapping[str, sp.Symbol]) -> list[Row]:
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
        for symbol in sorted(row.g.free_symbols - set(group.symbols), key=str):
            raise ProblemError(
                f"{where}: a local row of {group.name} may name its own state only, got {symbol}: "
                "put what couples agents into a constraint"
            )
        rows.append(row)
    return rows


def _start(document: Document, group: Group, what: str) -> Array:
    lower, upper = group.lower[0], group.upper[0]
    if "start" not in document.tables:
        return np.clip(np.zeros(group.dim), lower, upper)
    start = np.atleast_1d(np.array(document.numbers(document.tables, "start", what), dtype=float))
    # The values stay unsaid: a start is private, and messages end up in logs.
    if start.shape != lower.shape or not np.all((lower <= start) & (start <= upper)):
        raise ProblemError(
            f"{document.at('start')}: start of {group.name} must be {group.dim} "
            f"number{'s' if group.dim > 1 else ''} inside its box: move it inside the bounds"
        )
    return start


def _refuse_surplus_agents(root: Path, count: int) -> None:
    expected = {f"{i + 1}.toml" for i in range(count)}
    surplus = sorted(p.name for p in (root / "agents").glob("*.toml") if p.name not in expected)
    if surplus:
        raise ProblemError(
            f"agents/{surplus[0]} belongs to no agent: problem.toml has {count}; "
            "add the agent there or remove the file"
        )
