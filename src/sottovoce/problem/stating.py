"""What people state, read and checked: agents, objectives, constraints and starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sottovoce.arguments import entries
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import (
    add,
    addends,
    canonical,
    coefficient,
    in_order,
    multiply,
    pieces_of,
    subtract,
)
from sottovoce.formula.derive import is_smooth
from sottovoce.formula.expression import Expression, Op, Relation, number
from sottovoce.formula.parse import check_expression, parse_expression
from sottovoce.problem.agents import (
    Agents,
    Array,
    Group,
    owners,
    read_only,
    read_states,
    require_distinct_labels,
    rewritten,
)
from sottovoce.problem.code import Objective
from sottovoce.problem.constraints import Constraint, Hard, Total, one_by_one
from sottovoce.problem.relations import labelled_rows, read_formula

_WORD = re.compile(r"[^\W\d]\w*")
_MOST_PIECES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resolved:
    """A statement in plain symbols: groups of agents, and what was stated about them."""

    groups: tuple[Group, ...]
    objectives: Any
    constraints: Any
    local: Any


def resolved(agents: Any, objectives: Any, constraints: Any, local: Any) -> Resolved:
    """Find the agents of a statement, and write it in plain symbols.

    Agents are groups of one if they were given by their names, or if a formula names single ones;
    all in one group if formulas name the state of every one. Their order is that of ``agents``, or
    that in which they were made.

    Args:
        agents: from ``sv.agents``, one or several, which formulas then name by their names; None:
            those whose states or parameters the formulas are made of.
        objectives: as ``Problem`` takes them.
        constraints: likewise.
        local: likewise.
    """
    used: dict[Agents, bool] = {}
    names: set[str] = set()
    for formula in _formulas((objectives, constraints, local)):
        if isinstance(formula, str):
            names.update(_WORD.findall(formula))
            continue
        for one, single in owners((formula,)).items():
            used[one] = used.get(one, False) or single
    listed: list[Agents | Group] = [*sorted(used, key=lambda one: one.serial)]
    if agents is not None:
        alone = isinstance(agents, (Agents, Group))
        listed = [agents] if alone else entries("agents", agents, "from sv.agents")
    if not listed:
        raise ProblemError(
            "a problem needs at least one agent, got none: formulas that are text name agents "
            "given in agents=..."
        )
    for part in listed:
        if not isinstance(part, (Agents, Group)):
            raise ProblemError(f"agents must come from sv.agents, got {part!r:.60}")
    for one in (one for one in used if used[one] and one not in set(listed)):
        names.update(s.name.partition("[")[0] for s in one.symbols)
    whole = sum(len(part) if isinstance(part, Agents) else 1 for part in listed)
    # As many objectives as agents: each has its own.
    each = isinstance(objectives, (list, tuple)) and len(objectives) == whole != len(listed)
    apart = {
        part
        for part in listed
        if isinstance(part, Agents)
        and (part.by_name or (each and len(part) > 1) or used.get(part, False) or part.calls(names))
    }
    groups: list[Group] = []
    for part in listed:
        if isinstance(part, Group):
            groups.append(part)
        else:
            groups += part.groups if part in apart else [part.fleet]
    _check_names(groups)
    return Resolved(
        groups=tuple(groups),
        objectives=_plain_objectives(objectives, listed, apart),
        constraints=_plain(constraints, apart),
        local=_plain(_per_agent(local, apart), apart),
    )


def _check_names(groups: Sequence[Group]) -> None:
    names = [group.name for group in groups]
    names += sorted({s.name.partition("[")[0] for g in groups for s in g.parameters})
    for name, uses in Counter(names).items():
        if uses > 1:
            raise ProblemError(f"names must differ, got {name} twice: rename one")
    require_distinct_labels(groups)


def _formulas(given: Any) -> Iterator[Expression | str]:
    """All formulas of a statement, texts too."""
    if isinstance(given, Expression | str):
        yield given
    elif isinstance(given, Relation):
        yield from (given.left, given.right)
    elif isinstance(given, Constraint | Total):
        yield from given.rest
        yield from (h for part in given.sums for h in part.terms)
        yield from () if given.linear is None else given.linear.symbols[:1]
    elif isinstance(given, Hard):
        yield from _formulas(given.row)
    elif isinstance(given, Mapping):
        yield from _formulas(list(given.values()))
    elif isinstance(given, np.ndarray | list | tuple):
        for entry in np.ravel(given) if isinstance(given, np.ndarray) else given:
            yield from _formulas(entry)


def _plain(given: Any, apart: Collection[Agents]) -> Any:
    """A statement in plain symbols; sums over agents that are stated one by one are written out."""
    if isinstance(given, Expression):
        return rewritten(given, {})
    if isinstance(given, Relation):
        return Relation(rewritten(given.left, {}), given.sign, rewritten(given.right, {}))
    if isinstance(given, Constraint):
        return _plain_constraint(given, apart)
    if isinstance(given, Hard):
        return Hard(_plain(given.row, apart))
    if isinstance(given, Mapping):
        return {name: _plain(row, apart) for name, row in given.items()}
    if isinstance(given, np.ndarray):
        return _plain(np.ravel(given).tolist(), apart) if given.dtype == object else given
    if isinstance(given, list | tuple):
        return [_plain(row, apart) for row in given]
    return given


def _plain_constraint(given: Constraint, apart: Collection[Agents]) -> Constraint:
    whole = Total(sums=given.sums, rest=given.rest, offset=given.offset, linear=given.linear)
    stated = [part for part in whole.sums if not any(a in apart for a in owners(part.terms))]
    if len(stated) < len(whole.sums):
        written = tuple(part for part in whole.sums if part not in stated)
        whole = one_by_one(replace(whole, sums=written))
    sums = []
    for part in stated:
        terms = tuple(canonical(rewritten(h, {})) for h in part.terms)
        named = [*owners(part.terms)]
        sums.append(replace(part, terms=terms, group=named[0].fleet if named else part.group))
    linear = whole.linear
    if linear is not None:
        symbols = tuple(rewritten(s, {}) for s in linear.symbols)
        linear = replace(linear, symbols=symbols)
    rest = tuple(canonical(rewritten(e, {})) for e in whole.rest)
    return replace(given, sums=tuple(sums), rest=rest, offset=whole.offset, linear=linear)


def _plain_objectives(
    given: Any, listed: Sequence[Agents | Group], apart: Collection[Agents]
) -> list[Any]:
    """The objectives, a template's written out for agents that are stated one by one."""
    stated = list(given) if isinstance(given, (list, tuple, np.ndarray)) else [given]
    if len(stated) == len(listed):
        found: list[Any] = []
        for formula, part in zip(stated, listed, strict=True):
            template = isinstance(formula, Expression) and owners((formula,)) == {part: False}
            if isinstance(part, Agents) and part in apart and template:
                found += [part.alone(formula, i) for i in range(len(part))]
            else:
                found.append(formula)
        stated = found
    return [_plain(formula, apart) for formula in stated]


def _per_agent(local: Any, spread: Collection[Agents]) -> Any:
    """Local rows with those of a template written out for agents that are stated one by one."""
    if not spread or local is None:
        return local
    found: dict[str, Any] = {}
    for name, row in labelled_rows(local, "local"):
        relation = row.row if isinstance(row, Hard) else row
        sides = (relation.left, relation.right) if isinstance(relation, Relation) else ()
        named = owners(sides)
        shared = len(named) == 1 and not any(named.values())
        owner = next(iter(named)) if shared else None
        if owner is None or owner not in spread:
            found[name] = row
            continue
        for i in range(len(owner)):
            left, right = (owner.alone(side, i) for side in sides)
            found[f"{name} {i + 1}"] = Relation(left, relation.sign, right)
    return found if isinstance(local, Mapping) else list(found.values())


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
                    "agents with code one by one, by their names"
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
    pairs = list(labelled_rows(given, "g"))
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
        rows = _pieces(stated, {s: g.name for s, g in known.owner.items()}, where)
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
            raise ProblemError(
                f"{where} sums over {part.group.name}, which is not among the agents"
            )
        allowed = {*part.group.symbols, *part.group.parameters}
        for h in part.terms:
            check_expression(h, allowed, where)
            if not h.symbols & set(part.group.symbols):
                raise ProblemError(
                    f"{where} must depend on the state of {part.group.name}, got the term {h}"
                )
    rest = tuple(check_expression(e, symbols.values(), where) for e in given.rest)
    if given.linear is not None and not given.linear.used() <= set(symbols.values()):
        raise ProblemError(f"{where} names agents that are not there")
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


def _pieces(g: Expression, owners: Mapping[Expression, str], where: str) -> list[Expression]:
    """Return rows that hold together where ``g <= 0`` does, no maximum of which mixes agents.

        c max(a, b) + r <= 0   is   c a + r <= 0  and  c b + r <= 0
        c |a| + r <= 0         is   c a + r <= 0  and  -c a + r <= 0    if r names an agent

    Raises:
        ProblemError: if that takes many rows.
    """
    found = [g]
    while True:
        split = [part for row in found for part in _halves(row, owners)]
        if len(split) == len(found):
            return found
        if len(split) > _MOST_PIECES:
            raise ProblemError(
                f"{where} must have few maxima that mix agents, got one that becomes more than "
                f"{_MOST_PIECES} rows: write one constraint for each piece"
            )
        found = split


def _halves(g: Expression, owners: Mapping[Expression, str]) -> list[Expression]:
    terms = addends(g)
    alone = sum(1 for t in terms if t.symbols) == 1
    for term in terms:
        factor, rest = coefficient(term)
        mixes = len({owners[s] for s in rest.symbols}) > 1
        if not (mixes and factor > 0):
            continue
        others = subtract(g, term)
        if rest.op == Op.MAX:
            return [add(multiply(number(factor), a), others) for a in pieces_of(rest)]
        if rest.op == Op.ABS and not alone:
            signed = (multiply(number(sign * factor), rest.args[0]) for sign in (1, -1))
            return [add(one, others) for one in signed]
    return [g]
