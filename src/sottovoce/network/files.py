"""A problem folder as each party reads it: the cloud without agents/, an agent with its own file.

``load_problem`` reads everything and belongs on the machine where the problem was written. A server
has ``problem.toml`` alone; a device has ``problem.toml`` and one ``agents/i.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.problem.agents import States, states
from sottovoce.problem.problem import AgentView, CloudView, Problem
from sottovoce.problem.text import parse_expression


def read_public(folder: str | Path) -> Problem:
    """Read ``problem.toml`` alone: a problem whose objectives are all 0, being private."""
    path = Path(folder) / "problem.toml"
    tables = _read(path)
    agents = _agents(tables, path)
    try:
        return Problem(
            states=agents,
            objectives=["0"] * len(agents),
            constraints=_constraints(tables, path),
            privacy=tables.get("privacy", {}),
            schedule=tables.get("schedule", {}),
        )
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from error


def read_agent(path: str | Path) -> tuple[CloudView, int, AgentView]:
    """Read ``FOLDER/agents/3.toml``: the public problem, the agent's number and what it knows."""
    file = Path(path)
    if not file.stem.isdecimal():
        raise ProblemError(f"an agent's file must be called 1.toml, 2.toml, ..., got {file.name}")
    number = int(file.stem)
    cloud = read_public(file.absolute().parent.parent).cloud
    index, place = cloud.locate(number)
    group = cloud.groups[index]
    tables = _read(file)
    name, text = tables.get("agent", group.name), tables.get("objective")
    if name != group.name:
        raise ProblemError(f"{file}: agent must be {group.name!r} as in problem.toml, got {name!r}")
    if not isinstance(text, str):
        raise ProblemError(f"{file}: objective must be a text, got {text!r}")
    objective = parse_expression(text, {s.name: s for s in group.symbols}, where=str(file))
    lower, upper = group.lower[place], group.upper[place]
    start = np.atleast_1d(np.asarray(tables.get("start", np.clip(0.0, lower, upper)), dtype=float))
    if start.shape != lower.shape or not np.all((lower <= start) & (start <= upper)):
        raise ProblemError(f"{file}: start must be {group.dim} numbers inside the agent's box")
    view = AgentView(
        name=group.name,
        symbols=group.symbols,
        lower=lower,
        upper=upper,
        objective=objective,
        start=start,
    )
    return cloud, number, view


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ProblemError(f"{path} must exist, got no such file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ProblemError(f"{path} must be TOML: {error}") from None


def _agents(tables: Mapping[str, Any], path: Path) -> States:
    listed = tables.get("agents")
    if not isinstance(listed, list) or not all(isinstance(t, dict) for t in listed):
        raise ProblemError(f"{path}: agents must be a list of tables [[agents]]")
    try:
        return states(
            len(listed),
            lower=[t["lower"] for t in listed],
            upper=[t["upper"] for t in listed],
            dim=[t.get("dim", 1) for t in listed],
            names=[t.get("name", f"x{i + 1}") for i, t in enumerate(listed)],
        )
    except KeyError as error:
        raise ProblemError(f"{path}: every agent needs {error}") from None
    except ProblemError as error:
        raise ProblemError(f"{path}: {error}") from error


def _constraints(tables: Mapping[str, Any], path: Path) -> dict[str, str]:
    listed = tables.get("constraints")
    if not isinstance(listed, list):
        raise ProblemError(f"{path}: constraints must be a list")
    found: dict[str, str] = {}
    for j, entry in enumerate(listed):
        table = {"expression": entry} if isinstance(entry, str) else entry
        name = table.get("name", f"g{j + 1}")
        if name in found or not isinstance(table.get("expression"), str):
            raise ProblemError(f"{path}: constraint {name} must be stated once, as a text")
        found[name] = table["expression"]
    return found
