"""Problems written as folders that ``problem.folder`` reads back unchanged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.arguments import entries, instance, path_of, whole
from sottovoce.errors import ProblemError
from sottovoce.formula.write import write_constraint, write_expression
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.constraints import Constraint, FleetSum
from sottovoce.problem.matrix_rows import as_matrix, matrix_columns
from sottovoce.problem.problem import Problem
from sottovoce.problem.public_file import FORMAT
from sottovoce.problem.table import AGENT, columns_of, write_table

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def save_problem(problem: Problem, folder: str | Path, *, agents: Any = None) -> None:
    """Write a problem as a folder; one that was read from files is written back unchanged.

    Reading the folder again gives the same problem.

    Args:
        problem: the problem.
        folder: where to, a new folder or one with the same content.
        agents: whose private files to write, numbers from 1, for a gateway or a device; an empty
            list for the cloud; everybody's by default.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    root = path_of("folder", folder)
    files = _files(problem, agents)
    for path in files:
        if (root / path).exists() and (root / path).read_text(encoding="utf-8") != files[path]:
            raise ProblemError(
                f"{root / path} exists already with other content: choose a new folder"
            )
    try:
        _write_files(root, files)
    except OSError as error:
        raise ProblemError(f"{root} must be a folder to write to, got {error.strerror}") from None


def _files(problem: Problem, agents: Any) -> Mapping[str, str]:
    if agents is not None:
        listed = entries("agents", agents, "a list of agents' numbers")
        return _write(problem, {whole("agent", a, least=1, most=problem.agents) for a in listed})
    if problem.source is not None:
        return problem.source
    return _write(problem, range(1, problem.agents + 1))


def _write_files(root: Path, files: Mapping[str, str]) -> None:
    (root / "agents").mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (root / path).write_text(text, encoding="utf-8")
        if path.startswith("agents/"):
            (root / path).chmod(0o600)


def _write(problem: Problem, agents: Collection[int]) -> dict[str, str]:
    """The files of a problem: all public ones, and the private ones of these agents."""
    lines = [f"format = {FORMAT}"]
    files: dict[str, str] = {}
    public = {group.name: group for group in problem.cloud.groups}
    first_of = dict(zip(public, _firsts(problem), strict=True))
    for group, first in zip(problem.groups, _firsts(problem), strict=True):
        if _alone(group):
            lines += _agent_table(group)
        else:
            table, columns = _fleet_table(group, public[group.name])
            lines += ["", "[[fleet]]", f"name = {_quoted(group.name)}"]
            lines += [f"first = {first}"] if _before_agents(problem, group) else []
            lines += table
            if columns:
                files[f"{group.name}.csv"] = write_table(columns)
    for j, constraint in enumerate((*problem.constraints, *problem.cloud.own)):
        linear = as_matrix(constraint)
        if linear is not None:
            file = f"rows{j + 1}.csv"
            table = [*_compared(constraint, "matrix"), f"matrix = {_quoted(file)}"]
            tables = {file: write_table(matrix_columns(linear, problem.groups))}
        else:
            table, tables = _constraint_table(constraint, first_of, f"weights{j + 1}")
        lines += table
        files |= tables
    for name, settings in (("privacy", problem.privacy), ("schedule", problem.schedule)):
        if settings:
            lines += ["", f"[{name}]", *(f"{k} = {_setting(v)}" for k, v in settings.items())]
    files["problem.toml"] = "\n".join(lines) + "\n"
    for index, (group, first) in enumerate(zip(problem.groups, _firsts(problem), strict=True)):
        mine = [a - first for a in range(first, first + group.count) if a in agents]
        if mine:
            files |= _private_files(problem, index, first, np.array(mine))
    return files


def _alone(group: Group) -> bool:
    return group.count == 1 and not group.parameters


def _firsts(problem: Problem) -> list[int]:
    """The number of the first agent of each group."""
    counts = [group.count for group in problem.groups]
    return [1 + sum(counts[:i]) for i in range(len(counts))]


def _agent_table(group: Group) -> list[str]:
    lines = ["", "[[agents]]", f"name = {_quoted(group.name)}"]
    lines += [f"dim = {group.dim}"] if group.dim > 1 else []
    return [*lines, f"lower = {_bounds(group.lower)}", f"upper = {_bounds(group.upper)}"]


def _before_agents(problem: Problem, fleet: Group) -> bool:
    """Whether an agent by itself comes after a fleet; files have these first."""
    names = [group.name for group in problem.groups]
    return any(_alone(group) for group in problem.groups[names.index(fleet.name) :])


def _fleet_table(group: Group, public: Group) -> tuple[list[str], dict[str, Array]]:
    """The size and the box of a fleet, and the columns of its public table."""
    lines = [f"count = {group.count}"]
    lines += [f"dim = {group.dim}"] if group.dim > 1 else []
    columns = {symbol.name: values for symbol, values in public.parameters.items()}
    for key, bounds in (("lower", group.lower), ("upper", group.upper)):
        if np.all(bounds == bounds[:1]):
            lines += [f"{key} = {_bounds(bounds[0])}"]
        else:
            columns |= columns_of(key, bounds if group.dim > 1 else bounds[:, 0])
    lines += [f"parameters = {_quoted(f'{group.name}.csv')}"] if columns else []
    return lines, columns


def _constraint_table(
    constraint: Constraint, first_of: Mapping[str, int], label: str
) -> tuple[list[str], dict[str, str]]:
    """The table of a constraint, and the tables of its weights."""
    if not constraint.sums:
        lines = []
        for row, g in enumerate(constraint.formulas):
            text = write_constraint(g, equality=constraint.equality)
            lines += ["", "[[constraints]]", f"name = {_quoted(constraint.label(row))}"]
            lines += [f"expression = {_quoted(text)}", *_marked(constraint)]
        return lines, {}
    lines = _compared(constraint, _left(constraint))
    weighted = [part for part in constraint.sums if part.weights is not None]
    files = {part.group.name: f"{label}-{part.group.name}.csv" for part in weighted}
    if files:
        named = (f"{name} = {_quoted(file)}" for name, file in files.items())
        lines += [f"weights = {{ {', '.join(named)} }}"]
    tables = {
        files[part.group.name]: write_table(_weights(part, first_of[part.group.name]))
        for part in weighted
    }
    return lines, tables


def _compared(constraint: Constraint, left: str) -> list[str]:
    """The table of a family, with a list of bounds if these differ."""
    lines = ["", "[[constraints]]", f"name = {_quoted(constraint.name)}"]
    sign = "==" if constraint.equality else "<="
    bound = -constraint.offset + 0.0
    alike = bool(np.all(bound == bound[0]))
    right = repr(float(bound[0])) if alike else "bound"
    lines += [f"expression = {_quoted(f'{left} {sign} {right}')}"]
    return lines + ([] if alike else [f"bound = {_bounds(bound)}"]) + _marked(constraint)


def _marked(constraint: Constraint) -> list[str]:
    return ["hard = true"] if constraint.hard else []


def _left(constraint: Constraint) -> str:
    texts = []
    for part in constraint.sums:
        terms = "total({})".format(", ".join(write_expression(h) for h in part.terms))
        whole = part.group.dim > 1 and list(map(id, part.terms)) == list(
            map(id, part.group.symbols)
        )
        texts.append(f"total({part.group.name})" if whole else terms)
    if len(set(constraint.rest)) > 1:
        raise ProblemError(
            f"constraint {constraint.name} must add the same formula to every row to be written, "
            "got several: state the rows one by one"
        )
    return " + ".join([*texts, *map(write_expression, constraint.rest[:1])])


def _weights(part: FleetSum, first: int) -> dict[str, Any]:
    """W as a table: a line per entry if it is sparse, else a line per agent."""
    if not sparse.issparse(part.weights):
        return {f"row{r + 1}": row for r, row in enumerate(part.weights)}
    entries = part.weights.tocoo()
    row, agent = entries.coords
    return {"row": row + 1, "agent": agent + first, "weight": entries.data}


def _private_files(
    problem: Problem, index: int, first: int, places: NDArray[np.int64]
) -> dict[str, str]:
    group, start = problem.groups[index], problem.start[index]
    fallback = problem.fallback[index]
    rows = [write_constraint(r.g, equality=r.equality) for r in problem.local[index].stated]
    local = ["local = [", *(f"  {_quoted(text)}," for text in rows), "]"] if rows else []
    if problem.code[index] is not None:
        raise ProblemError(
            f"objective of {problem.groups[index].name} must be a formula to be written to a file, "
            "got code: state it in Python"
        )
    objective = f"objective = {_quoted(write_expression(problem.objectives[index]))}"
    if _alone(group):
        points = [f"start = {_bounds(start)}"]
        points += [] if fallback is None else [f"fallback = {_bounds(fallback)}"]
        lines = [f"agent = {_quoted(group.name)}", objective, *points, *local]
        return {f"agents/{first}.toml": "\n".join(lines) + "\n"}
    known = problem.cloud.groups[index].parameters
    columns = {s.name: values[places] for s, values in group.parameters.items() if s not in known}
    lines = [f"fleet = {_quoted(group.name)}", objective]
    for key, states in (("start", start), ("fallback", fallback)):
        if states is not None and np.all(states == states[:1]):
            lines += [f"{key} = {_bounds(states[0])}"]
        elif states is not None:
            columns |= columns_of(key, (states if group.dim > 1 else states[:, 0])[places])
    files = {}
    if columns:
        lines += [f"parameters = {_quoted(f'fleet-{group.name}.csv')}"]
        files[f"agents/fleet-{group.name}.csv"] = write_table({AGENT: places + first, **columns})
    return files | {f"agents/fleet-{group.name}.toml": "\n".join([*lines, *local]) + "\n"}


def _bounds(values: Any) -> str:
    flat = [repr(float(v)) for v in np.ravel(values)]
    return flat[0] if len(flat) == 1 else f"[{', '.join(flat)}]"


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_setting, value))}]"
    return repr(value)


def _quoted(text: str) -> str:
    """A text as TOML's basic string, whatever letters it has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProblemError(f"a name must be text that UTF-8 can write, got {text!r:.60}") from None
    letters = (_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return f'"{"".join(letters)}"'
