"""Problems written as folders that ``load_problem`` reads back unchanged."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.arguments import entries, path_of, whole
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import substitute
from sottovoce.formula.expression import Expression, symbol
from sottovoce.formula.write import write_constraint, write_expression
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.files.constraint_text import as_matrix, fleet_columns, matrix_columns
from sottovoce.problem.files.schema import (
    FORMAT,
    AgentFile,
    AgentTable,
    ConstraintTable,
    CostTable,
    FleetFile,
    FleetTable,
    SumTable,
)
from sottovoce.problem.files.table import AGENT, columns_of, write_table
from sottovoce.problem.groups import Array, Group, agent_numbers
from sottovoce.problem.problem import Problem


def save_problem(
    problem: Problem, folder: str | Path, *, agents: Iterable[int] | None = None
) -> None:
    """Write a problem as a folder; one that was read from files is written back unchanged.

    Reading the folder again gives the same problem.
    """
    root = path_of("folder", folder)
    if agents is None:
        files = problem.source or _files(problem, range(1, problem.agents + 1))
    else:
        numbers = entries("agents", agents, "a list of agents' numbers")
        most = problem.agents
        files = _files(problem, {whole("agent", a, least=1, most=most) for a in numbers})
    for path in files:
        if (root / path).exists() and (root / path).read_text(encoding="utf-8") != files[path]:
            raise ProblemError(
                f"{root / path} exists already with other content: choose a new folder"
            )
    try:
        (root / "agents").mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            (root / path).write_text(text, encoding="utf-8")
            if path.startswith("agents/"):
                (root / path).chmod(0o600)
    except OSError as error:
        raise ProblemError(f"{root} must be a folder to write to, got {error.strerror}") from None


def _files(problem: Problem, agents: Collection[int]) -> dict[str, str]:
    """The files of a problem: all public ones, and the private ones of these agents."""
    numbers = agent_numbers(problem.groups)
    first_of = {g.name: of_group.start for g, of_group in zip(problem.groups, numbers, strict=True)}
    agents_tables: list[AgentTable] = []
    fleets: list[FleetTable] = []
    files: dict[str, str] = {}
    for index, (group, public) in enumerate(zip(problem.groups, problem.cloud.groups, strict=True)):
        if _alone(group):
            box = {"lower": _numbers(group.lower), "upper": _numbers(group.upper)}
            agents_tables.append(AgentTable(name=group.name, dim=group.dim, **box))
            continue
        # Files number agents by themselves before fleets, unless a fleet says its first.
        early = any(map(_alone, problem.groups[index:]))
        table, columns = _fleet_table(group, public, first_of[group.name] if early else None)
        fleets.append(table)
        if columns:
            files[f"{group.name}.csv"] = write_table(columns)
    constraints = _constraint_tables(problem, first_of, files)
    sums, cost = _cost_tables(problem, first_of, files)
    files["problem.toml"] = _toml(
        {
            "format": FORMAT,
            "agents": agents_tables,
            "fleet": fleets,
            "constraints": constraints,
            "sums": sums,
            "cost": cost,
            "privacy": dict(problem.privacy),
            "schedule": dict(problem.schedule),
        }
    )
    for index, of_group in enumerate(numbers):
        places = np.array([a - of_group.start for a in of_group if a in agents])
        if places.size:
            files |= _private_files(problem, index, of_group.start, places)
    return files


def _constraint_tables(
    problem: Problem, first_of: Mapping[str, int], files: dict[str, str]
) -> list[ConstraintTable]:
    """The constraints; ``files`` gets those of their weights."""
    constraints: list[ConstraintTable] = []
    for j, constraint in enumerate((*problem.constraints, *problem.cloud.separable)):
        linear = as_matrix(constraint)
        if linear is not None:
            file = f"rows{j + 1}.csv"
            constraints.append(_family(constraint, "matrix", matrix=file))
            files[file] = write_table(matrix_columns(linear, problem.groups))
        elif constraint.sums:
            weights = _weight_tables(constraint, f"weights{j + 1}", first_of, files)
            constraints.append(_family(constraint, _left(constraint), weights=weights))
        else:
            constraints += [
                ConstraintTable(
                    name=constraint.label(row),
                    expression=write_constraint(g, equality=constraint.equality),
                    hard=constraint.hard,
                )
                for row, g in enumerate(constraint.formulas)
            ]
    return constraints


def _weight_tables(
    family: Constraint, stem: str, first_of: Mapping[str, int], files: dict[str, str]
) -> dict[str, str]:
    """The names of the files of every fleet's weights in a family, which join ``files``."""
    weighted = {part.group.name: part for part in family.sums if part.weights is not None}
    names = {name: f"{stem}-{name}.csv" for name in weighted}
    for name, part in weighted.items():
        files[names[name]] = write_table(fleet_columns(part, first_of[name]))
    return names


def _cost_tables(
    problem: Problem, first_of: Mapping[str, int], files: dict[str, str]
) -> tuple[list[SumTable], list[CostTable]]:
    """The sums that the public cost names, and the cost; ``files`` gets those of weights."""
    cost = problem.cloud.cost
    if cost is None:
        return [], []
    sums: list[SumTable] = []
    names: list[Expression] = []
    for k, family in enumerate(cost.families):
        name = f"sum{k + 1}"
        weights = _weight_tables(family, name, first_of, files)
        sums.append(SumTable(name=name, expression=_left(family), weights=weights))
        rows = range(1, family.rows + 1)
        names += [symbol(name if family.rows == 1 else f"{name}[{r}]") for r in rows]
    formula = substitute(cost.formula, dict(zip(cost.symbols, names, strict=True)))
    return sums, [CostTable(expression=write_expression(formula))]


def _alone(group: Group) -> bool:
    return group.count == 1 and not group.parameters


def _fleet_table(
    group: Group, public: Group, first: int | None
) -> tuple[FleetTable, dict[str, Array]]:
    """The size and the box of a fleet, and the columns of its public table."""
    columns = {symbol.name: values for symbol, values in public.parameters.items()}
    box = _shared({"lower": group.lower, "upper": group.upper}, columns)
    file = f"{group.name}.csv" if columns else None
    table = FleetTable(
        name=group.name, count=group.count, dim=group.dim, first=first, parameters=file, **box
    )
    return table, columns


def _family(
    constraint: Constraint,
    left: str,
    matrix: str | None = None,
    weights: dict[str, str] | None = None,
) -> ConstraintTable:
    """The table of a family, with a list of bounds if these differ."""
    bound = -constraint.offset + 0.0
    uniform = bool(np.all(bound == bound[0]))
    right = repr(float(bound[0])) if uniform else "bound"
    return ConstraintTable(
        name=constraint.name,
        expression=f"{left} {'==' if constraint.equality else '<='} {right}",
        bound=None if uniform else bound.tolist(),
        hard=constraint.hard,
        matrix=matrix,
        weights=weights or {},
    )


def _left(constraint: Constraint) -> str:
    texts = []
    for part in constraint.sums:
        state = part.group.dim > 1 and list(map(id, part.terms)) == list(
            map(id, part.group.symbols)
        )
        terms = [part.group.name] if state else map(write_expression, part.terms)
        texts.append(f"total({', '.join(terms)})")
    if len(set(constraint.rest)) > 1:
        raise ProblemError(
            f"constraint {constraint.name} must add the same formula to every row to be written, "
            "got several: state the rows one by one"
        )
    return " + ".join([*texts, *map(write_expression, constraint.rest[:1])])


def _private_files(
    problem: Problem, index: int, first: int, places: NDArray[np.int64]
) -> dict[str, str]:
    group, public = problem.groups[index], problem.cloud.groups[index].parameters
    if problem.code[index] is not None:
        raise ProblemError(
            f"objective of {group.name} must be a formula to be written to a file, got code: state "
            "it in Python"
        )
    stated: dict[str, Any] = {
        "objective": write_expression(problem.objectives[index]),
        "local": [write_constraint(r.g, equality=r.equality) for r in problem.local[index].stated],
    }
    columns = {s.name: values for s, values in group.parameters.items() if s not in public}
    points = {"start": problem.start[index], "fallback": problem.fallback[index]}
    stated |= _shared({key: p for key, p in points.items() if p is not None}, columns)
    if _alone(group):
        return {f"agents/{first}.toml": _toml(AgentFile(agent=group.name, **stated))}
    name = f"fleet-{group.name}"
    selected = {column: values[places] for column, values in columns.items()}
    files = {f"agents/{name}.csv": write_table({AGENT: places + first, **selected})}
    text = _toml(FleetFile(fleet=group.name, parameters=f"{name}.csv" if columns else [], **stated))
    return {f"agents/{name}.toml": text} | (files if columns else {})


def _shared(blocks: Mapping[str, Array], columns: dict[str, Array]) -> dict[str, Any]:
    """What all agents have alike, by its key; what differs becomes columns (n, d)."""
    shared = {}
    for key, block in blocks.items():
        if np.all(block == block[:1]):
            shared[key] = _numbers(block[0])
        else:
            columns |= columns_of(key, block)
    return shared


def _numbers(values: ArrayLike) -> float | list[float]:
    flat: list[float] = np.ravel(values).tolist()
    return flat[0] if len(flat) == 1 else flat


def _toml(tables: object) -> str:
    """Tables as TOML: keys first, then ``[tables]`` and ``[[lists of tables]]``."""
    lines: list[str] = []
    for key, value in msgspec.to_builtins(tables).items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]", *_lines(value)] if value else []
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lines += [line for table in value for line in ("", f"[[{key}]]", *_lines(table))]
        elif value != []:
            lines += _lines({key: value})
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: object) -> str:
    """A value as TOML, which writes texts, numbers and lists as JSON does but for DEL."""
    if isinstance(value, dict):
        return f"{{ {', '.join(_lines(value))} }}"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProblemError(f"a name must be text that UTF-8 can write, got {text:.60}") from None
    return text
