"""What people state, read and checked: agents, objectives, constraints and starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sottovoce.arguments import entries
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import in_order
from sottovoce.formula.derive import is_smooth
from sottovoce.formula.expression import Expression
from sottovoce.formula.parse import check_expression, parse_expression
from sottovoce.problem.agents import (
    Array,
    Group,
    States,
    read_only,
    read_states,
    require_distinct_labels,
)
from sottovoce.problem.code import Objective
from sottovoce.problem.constraints import Constraint, Hard
from sottovoce.problem.pieces import pieces
from sottovoce.problem.relations import named_rows, read_formula


def read_groups(given: Any) -> tuple[Group, ...]:
    """Return the agents of ``states=``, in order."""
    alone = isinstance(given, (Group, States))
    parts = [given] if alone else entries("states", given, "from sv.states or sv.fleet")
    groups: list[Group] = []
    for part in parts:
        if isinstance(part, States):
            groups.extend(part.groups)
        elif isinstance(part, Group):
            groups.append(part)
        else:
            raise ProblemError(f"states must come from sv.states or sv.fleet, got {part!r}")
    if not groups:
        raise ProblemError("a problem needs at least one agent, got no states")
    names = [group.name for group in groups]
    names += sorted({s.name.partition("[")[0] for g in groups for s in g.parameters})
    for name, uses in Counter(names).items():
        if uses > 1:
            raise ProblemError(f"names must differ, got {name} twice: rename one")
    require_distinct_labels(groups)
    return tuple(groups)


def read_objectives(given: Any, groups: tuple[Group, ...]) -> tuple[Expression | Objective, ...]:
    """Return the objective of every group, a formula in its own symbols or code."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(listed) != len(groups):
        raise ProblemError(
            f"objectives must have one formula per agent or fleet ({len(groups)}), "
            f"got {len(listed)}"
        )
    owner = {s: group.name for group in groups for s in (*group.symbols, *group.parameters)}
    exprs: list[Expression | Objective] = []
    for group, formula in zip(groups, listed, strict=True):
        where = f"objective of {group.name}"
        if isinstance(formula, Objective):
            if group.count > 1:
                raise ProblemError(
                    f"{where} must be a formula for a fleet of {group.count}, got code: state "
                    "agents with code one by one, with sv.states"
                )
            exprs.append(formula)
            continue
        if callable(formula):
            raise ProblemError(
                f"{where} must be a formula, got a function: state code by its gradient, "
                "sv.Objective(gradient=...)"
            )
        if isinstance(formula, str):
            formula = parse_expression(formula, {s.name: s for s in owner}, where=where)
        expr = check_expression(formula, owner, where)
        for symbol in in_order(expr.symbols):
            if owner[symbol] != group.name:
                raise ProblemError(
                    f"{where} may name its own state only, got {symbol}, which belongs to "
                    f"{owner[symbol]}: put what couples agents into a constraint"
                )
        exprs.append(expr)
    return tuple(exprs)


def read_constraints(given: Any, groups: tuple[Group, ...]) -> tuple[Constraint, ...]:
    """Return the families of ``constraints=``, in order."""
    pairs = list(named_rows(given, "g"))
    if not pairs:
        raise ProblemError("a problem needs at least one constraint, got none")
    known = _Known(
        symbols={s.name: s for g in groups for s in (*g.symbols, *g.parameters)},
        owner={s: g for g in groups for s in (*g.symbols, *g.parameters)},
        groups=groups,
    )
    return tuple(c for name, row in pairs for c in _constraint(name, row, known))


class _Known(NamedTuple):
    """What constraints may name: symbols by their names, and whose each is."""

    symbols: Mapping[str, Expression]
    owner: Mapping[Expression, Group]
    groups: tuple[Group, ...]


def _require_one_fleet(g: Expression, owner: Mapping[Expression, Group], where: str) -> None:
    """Refuse a fleet's state or parameters beside anybody else's."""
    used = g.symbols
    named = {owner[s].name: owner[s] for s in used}
    for group in named.values():
        if len(named) > 1 and (group.count > 1 or used & set(group.parameters)):
            raise ProblemError(
                f"{where} must name the fleet {group.name} alone, which every agent of it then "
                f"keeps, got it beside others: sum over it with sv.total({group.name}, ...)"
            )
        if not used & set(group.symbols):
            raise ProblemError(
                f"{where} must name the state of {group.name}, got its parameters alone: remove it"
            )


def _constraint(name: str, given: Any, known: _Known) -> list[Constraint]:
    where = f"constraint {name}"
    if isinstance(given, Hard):
        return [replace(one, hard=True) for one in _constraint(name, given.row, known)]
    if isinstance(given, Constraint):
        named = {s.name: s for s, group in known.owner.items() if group.count == 1}
        return [_fleet_constraint(name, given, named, known.groups)]
    stated, equality = read_formula(given, known.symbols, where)
    _require_one_fleet(stated, known.owner, where)
    zero = read_only([0.0])
    if equality or is_smooth(stated):
        rows = [stated]
    else:
        rows = pieces(stated, {s: g.name for s, g in known.owner.items()}, where)
    labels = [name] if len(rows) == 1 else [f"{name}[{k + 1}]" for k in range(len(rows))]
    return [
        Constraint(name=label, sums=(), rest=(g,), offset=zero, equality=equality)
        for label, g in zip(labels, rows, strict=True)
    ]


def _fleet_constraint(
    name: str, given: Constraint, symbols: Mapping[str, Expression], groups: tuple[Group, ...]
) -> Constraint:
    where = f"constraint {name}"
    if len({part.group.name for part in given.sums}) < len(given.sums):
        raise ProblemError(f"{where} must sum over each fleet once: add the terms inside one total")
    for part in given.sums:
        if part.group not in groups:
            raise ProblemError(f"{where} sums over {part.group.name}, which is not in states")
        allowed = {*part.group.symbols, *part.group.parameters}
        for h in part.terms:
            check_expression(h, allowed, where)
            if not h.symbols & set(part.group.symbols):
                raise ProblemError(
                    f"{where} must depend on the state of {part.group.name}, got the term {h}"
                )
    rest = tuple(check_expression(e, symbols.values(), where) for e in given.rest)
    if given.linear is not None and not given.linear.used() <= set(symbols.values()):
        raise ProblemError(f"{where} names agents that are not in states")
    if given.linear is not None and not (given.sums or rest):
        weights = np.diff(given.linear.weights.indptr)
        if not np.all(weights):
            row = int(np.argmin(weights)) + 1
            raise ProblemError(
                f"{where}: every row of A @ x must name an agent, got row {row} with none"
            )
    for part in given.sums:
        if any(e.symbols & set(part.group.symbols) for e in rest):
            raise ProblemError(
                f"{where} must name {part.group.name} once, got it inside a total and beside it: "
                "put everything about it into the total"
            )
    return replace(given, name=name, rest=rest)


def read_start(given: Any, groups: tuple[Group, ...]) -> tuple[Array, ...]:
    """Return where the agents of every group start, shape (count, d)."""
    listed = [None] * len(groups)
    if given is not None:
        listed = entries("start", given, "a list with one entry per agent or fleet")
    if len(listed) != len(groups):
        raise ProblemError(
            f"start must have one entry per agent or fleet ({len(groups)}), got {len(listed)}"
        )
    starts: list[Array] = []
    for group, values in zip(groups, listed, strict=True):
        if values is None:
            point = np.clip(0.0, group.lower[:1], group.upper[:1])
            if not _constant_rows(group):
                point = np.clip(0.0, group.lower, group.upper)
            starts.append(read_states("start", point, group))
            continue
        array = read_states("start", values, group)
        if not np.all((array >= group.lower) & (array <= group.upper)):
            raise ProblemError(
                f"start of {group.name} must lie in its box: move it inside the bounds"
            )
        starts.append(array)
    return tuple(starts)


def _constant_rows(group: Group) -> bool:
    return group.lower.strides[0] == 0 and group.upper.strides[0] == 0
