"""Problems as folders that people write by hand, split by who may read what.

``problem.toml`` holds what the cloud knows: agents and their boxes, constraints as text, privacy
and schedule. ``agents/1.toml``, ``agents/2.toml``, ... hold what one agent alone knows: its
objective as text and its start.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sympy as sp

from sottovoce.errors import ProblemError
from sottovoce.problem.agents import Group, States, states
from sottovoce.problem.printer import write_constraint, write_expression
from sottovoce.problem.problem import Problem
from sottovoce.problem.text import parse_constraint, parse_expression

FORMAT = 1
PRIVACY_KEYS = ("epsilon", "delta", "radius", "adjacency", "rounds")
SCHEDULE_KEYS = ("algorithm", "gamma_bar", "alpha_bar", "c1", "c2", "rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """One TOML file: where it is, its text and its tables."""

    path: str
    text: str
    tables: Mapping[str, Any]

    def at(self, needle: str, after: str = "") -> str:
        """Where ``needle`` stands, for messages: the file and the line."""
        start = max(self.text.find(after), 0) if after else 0
        place = self.text.find(needle, start)
        return (
            self.path
            if place < 0
            else f"{self.path}, line {self.text.count(chr(10), 0, place) + 1}"
        )

    def check_keys(self, table: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
        for key in table:
            if key not in known:
                raise ProblemError(
                    f"{self.at(key)}: {what} may have {', '.join(known)}, got {key!r}"
                )

    def require(self, table: Mapping[str, Any], key: str, kind: Any, what: str) -> Any:
        if key not in table:
            raise ProblemError(f"{self.path}: {what} needs {key!r}: add a line {key} = ...")
        if not isinstance(table[key], kind) or isinstance(table[key], bool):
            raise ProblemError(
                f"{self.at(key)}: {key} of {what} has the wrong type, got {table[key]!r}"
            )
        return table[key]


def load_problem(folder: str | Path) -> Problem:
    """Read a problem from a folder: ``problem.toml`` and ``agents/1.toml`` to ``agents/n.toml``.

    Nothing in the files is ever executed: formulas go through the parser of ``problem.text``.
    """
    root = Path(folder)
    cloud = _read(root, "problem.toml")
    cloud.check_keys(
        cloud.tables, ("format", "agents", "constraints", "privacy", "schedule"), "problem.toml"
    )
    if cloud.tables.get("format", FORMAT) != FORMAT:
        raise ProblemError(
            f"{cloud.at('format')}: format must be {FORMAT}, got {cloud.tables['format']!r}: "
            "this file needs a newer version of sottovoce"
        )
    agents = _agents(cloud)
    symbols = {s.name: s for group in agents.groups for s in group.symbols}
    privates = [_read(root, f"agents/{i + 1}.toml") for i in range(len(agents))]
    _refuse_surplus_agents(root, len(agents))
    private = [_agent_file(d, g, symbols) for d, g in zip(privates, agents.groups, strict=True)]
    return Problem(
        states=agents,
        objectives=[objective for objective, _ in private],
        constraints=_constraints(cloud, symbols),
        start=[start for _, start in private],
        privacy=_settings(cloud, "privacy", PRIVACY_KEYS),
        schedule=_settings(cloud, "schedule", SCHEDULE_KEYS),
        source={document.path: document.text for document in (cloud, *privates)},
    )


def save_problem(problem: Problem, folder: str | Path) -> None:
    """Write a problem as a folder; one that was read from files is written back unchanged.

    Reading the folder again gives the same problem. Fleets have no file form: state them in
    Python.
    """
    root = Path(folder)
    files = problem.source if problem.source is not None else _write(problem)
    for path in files:
        if (root / path).exists() and (root / path).read_text(encoding="utf-8") != files[path]:
            raise ProblemError(
                f"{root / path} exists already with other content: choose a new folder"
            )
    (root / "agents").mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (root / path).write_text(text, encoding="utf-8")
        if path.startswith("agents/"):
            (root / path).chmod(0o600)


def _read(root: Path, name: str) -> _Document:
    path = root / name
    try:
        text = path.read_text(encoding="utf-8")
        return _Document(path=name, text=text, tables=tomllib.loads(text))
    except (FileNotFoundError, NotADirectoryError):
        raise ProblemError(f"{path} must exist, got no such file: write it by hand or save a "
                           "problem with sv.save_problem") from None  # fmt: skip
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path} must be UTF-8 text, got other bytes") from error
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(f"{path} must be TOML: {error}") from error
    except RecursionError:
        raise ProblemError(f"{path} must be TOML without deep nesting") from None


def _agents(document: _Document) -> States:
    tables = document.require(document.tables, "agents", list, "problem.toml")
    if not tables:
        raise ProblemError(f"{document.at('agents')}: a problem needs at least one agent, got none")
    names, dims, lowers, uppers = [], [], [], []
    for i, table in enumerate(tables):
        what = f"agent {i + 1}"
        if not isinstance(table, dict):
            raise ProblemError(f"{document.at('agents')}: {what} must be a table, got {table!r}")
        document.check_keys(table, ("name", "dim", "lower", "upper"), what)
        names.append(document.require({"name": f"x{i + 1}", **table}, "name", str, what))
        dims.append(document.require({"dim": 1, **table}, "dim", int, what))
        lowers.append(document.require(table, "lower", (int, float, list), what))
        uppers.append(document.require(table, "upper", (int, float, list), what))
    try:
        return states(len(tables), lower=lowers, upper=uppers, dim=dims, names=names)
    except ProblemError as error:
        raise ProblemError(f"{document.path}: {error}") from error


def _constraints(document: _Document, symbols: Mapping[str, sp.Symbol]) -> dict[str, sp.Basic]:
    tables = document.require(document.tables, "constraints", list, "problem.toml")
    constraints: dict[str, sp.Basic] = {}
    for j, table in enumerate(tables):
        what = f"constraint {j + 1}"
        if isinstance(table, str):
            table = {"expression": table}
        if not isinstance(table, dict):
            raise ProblemError(f"{document.at('constraints')}: {what} must be a text or a table")
        document.check_keys(table, ("name", "expression"), what)
        name = document.require({"name": f"g{j + 1}", **table}, "name", str, what)
        text = document.require(table, "expression", str, what)
        where = document.at(text.split("\n")[0], after="constraints")
        if name in constraints:
            raise ProblemError(f"{where}: names must differ, got constraint {name} twice")
        g = parse_constraint(text, symbols, where=where)
        constraints[name] = sp.Le(g, 0, evaluate=False)
    return constraints


def _agent_file(
    document: _Document, group: Group, symbols: Mapping[str, sp.Symbol]
) -> tuple[sp.Expr, Any]:
    document.check_keys(document.tables, ("agent", "objective", "start"), document.path)
    name = document.tables.get("agent", group.name)
    if name != group.name:
        raise ProblemError(
            f"{document.at('agent')}: agent must be {group.name!r}, as problem.toml calls it, "
            f"got {name!r}"
        )
    text = document.require(document.tables, "objective", str, document.path)
    where = document.at(text.split("\n")[0])
    objective = parse_expression(text, symbols, where=where)
    for symbol in sorted(objective.free_symbols - set(group.symbols), key=str):
        raise ProblemError(
            f"{where}: the objective of {group.name} may name its own state only, got {symbol}: "
            "put what couples agents into a constraint"
        )
    start = document.tables.get("start")
    return objective, None if start is None else np.asarray(start, dtype=np.float64)


def _settings(document: _Document, name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    table = document.tables.get(name, {})
    if not isinstance(table, dict):
        raise ProblemError(f"{document.at(name)}: {name} must be a table [{name}]")
    document.check_keys(table, known, f"[{name}]")
    return table


def _refuse_surplus_agents(root: Path, count: int) -> None:
    expected = {f"{i + 1}.toml" for i in range(count)}
    surplus = sorted(p.name for p in (root / "agents").glob("*.toml") if p.name not in expected)
    if surplus:
        raise ProblemError(
            f"agents/{surplus[0]} belongs to no agent: problem.toml has {count}; "
            "add the agent there or remove the file"
        )


def _write(problem: Problem) -> dict[str, str]:
    lines = [f"format = {FORMAT}"]
    for group in problem.groups:
        if group.count != 1:
            raise ProblemError(
                f"only agents stated one by one can be written as files, got the fleet "
                f"{group.name} of {group.count}"
            )
        lines += ["", "[[agents]]", f'name = "{group.name}"']
        lines += [f"dim = {group.dim}"] if group.dim > 1 else []
        lines += [f"lower = {_bounds(group.lower)}", f"upper = {_bounds(group.upper)}"]
    for constraint in problem.constraints:
        lines += ["", "[[constraints]]", f'name = "{constraint.name}"']
        lines += [f'expression = "{write_constraint(constraint.rest[0])}"']
    for name, table in (("privacy", problem.privacy), ("schedule", problem.schedule)):
        if table:
            lines += ["", f"[{name}]", *(f"{k} = {_scalar(v)}" for k, v in table.items())]
    files = {"problem.toml": "\n".join(lines) + "\n"}
    for i, group in enumerate(problem.groups):
        lines = [
            f'agent = "{group.name}"',
            f'objective = "{write_expression(problem.objectives[i])}"',
        ]
        lines += [f"start = {_bounds(problem.start[i])}"]
        files[f"agents/{i + 1}.toml"] = "\n".join(lines) + "\n"
    return files


def _bounds(values: Any) -> str:
    flat = [repr(float(v)) for v in np.ravel(values)]
    return flat[0] if len(flat) == 1 else f"[{', '.join(flat)}]"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_scalar(v) for v in value)}]"
    return repr(value)
