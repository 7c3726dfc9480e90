"""What people state, read and checked: agents, objectives, constraints and starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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
from sottovoce.formula.parse import check_expression, parse_constraint, parse_expression
from sottovoce.problem.agents import (
    Agents,
    Group,
    owners,
    read_only,
    require_distinct_labels,
    rewritten,
)
from sottovoce.problem.code import Objective
from sottovoce.problem.constraints import Constraint, Hard, Total, one_by_one

_WORD = re.compile(r"[^\W\d]\w*")
_MOST_PIECES = 64


class Written(NamedTuple):
    """A row as people write it.

    Attributes:
        name: what they call it, ``g1``, ``g2``, ... in order, or nothing.
        row: a comparison, text, a family of constraints, or a row that was read before.
        hard: whether a physical limit stands behind it, see ``hard``.
    """

    name: str
    row: object
    hard: bool = False


def written_rows(given: object, prefix: str = "") -> list[Written]:
    """Return the rows of a mapping, a list or one row; arrays of rows are written out.

    Args:
        given: a mapping from names to rows, a list of rows, or one row.
        prefix: rows of a list are called ``prefix1``, ``prefix2``, ...; without it they have no
            names.
    """
    if isinstance(given, Mapping):
        pairs = [(str(name), row) for name, row in given.items()]
    else:
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        pairs = [(f"{prefix}{j + 1}" if prefix else "", row) for j, row in enumerate(listed)]
    rows: list[Written] = []
    for name, row in pairs:
        if isinstance(row, Written):
            rows.append(row)
        elif isinstance(row, Hard):
            rows += (one._replace(hard=True) for one in written_rows({name: row.row}))
        elif isinstance(row, (np.ndarray, list, tuple)):
            flat = np.ravel(np.asarray(row, dtype=object))
            rows += map(Written, _labels(name, flat.size), flat)
        else:
            rows.append(Written(name, row))
    return rows


def _labels(name: str, count: int) -> list[str]:
    """What people call the rows of one statement, which may have no name."""
    if count == 1 or not name:
        return [name] * count
    return [f"{name}[{k + 1}]" for k in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One row ``g(x) <= 0`` or ``g(x) = 0``.

    Attributes:
        g: the formula.
        equality: whether it must be 0.
        written: the row as it was stated.
    """

    g: Expression
    equality: bool
    written: str | Relation

    @property
    def label(self) -> str:
        """The row as text."""
        return str(self.written)


def read_row(given: object, symbols: Mapping[str, Expression], where: str) -> Row:
    """Read one row in ``symbols``: a comparison with <=, >= or ==, text, or one that was read."""
    if isinstance(given, Row):
        return given
    if isinstance(given, str):
        g, equality = parse_constraint(given, symbols, where=where)
    elif isinstance(given, bool | np.bool_):
        raise ProblemError(
            f"{where} must name at least one agent, got a comparison that is always "
            f"{bool(given)}: remove it or mend it"
        )
    elif isinstance(given, Relation):
        g, equality = check_expression(given.g, symbols.values(), where), given.equality
    else:
        raise ProblemError(f"{where} must be a comparison with <=, >= or ==, got {given!r:.60}")
    if not g.symbols:
        raise ProblemError(f"{where} must name at least one agent, got {given}: remove it")
    return Row(g=g, equality=equality, written=given)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resolved:
    """A statement in plain symbols: groups of agents, and what was stated about them."""

    groups: tuple[Group, ...]
    objectives: list[object]
    constraints: list[Written]
    local: list[Written]


def resolved(
    agents: object, objectives: object, constraints: Sequence[Written], local: Sequence[Written]
) -> Resolved:
    """Find the agents of a statement, and write it in plain symbols.

    Agents are groups of one if they were given by their names, or if a formula names single ones;
    all in one group if formulas name the state of every one. Their order is that of ``agents``, or
    that in which they were made. Arguments are those of ``Problem``, rows taken apart.
    """
    listed_objectives = (
        list(objectives) if isinstance(objectives, (list, tuple, np.ndarray)) else [objectives]
    )
    parts = [*listed_objectives, *(p for one in (*constraints, *local) for p in _formulas(one.row))]
    names = {word for text in parts if isinstance(text, str) for word in _WORD.findall(text)}
    used = owners(formula for formula in parts if isinstance(formula, Expression))
    listed = _listed(agents, used)
    for one in (one for one in used if used[one] and one not in set(listed)):
        names.update(s.name.partition("[")[0] for s in one.symbols)
    whole = sum(len(part) if isinstance(part, Agents) else 1 for part in listed)
    # As many objectives as agents: each has its own.
    several = isinstance(objectives, (list, tuple))
    each = several and len(listed_objectives) == whole != len(listed)
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
    per_agent = [row for one in local for row in _per_agent(one, apart)]
    return Resolved(
        groups=tuple(groups),
        objectives=_plain_objectives(listed_objectives, listed, apart),
        constraints=[one._replace(row=_plain(one.row, apart)) for one in constraints],
        local=[one._replace(row=_plain(one.row, apart)) for one in per_agent],
    )


def _listed(agents: object, used: Collection[Agents]) -> list[Agents | Group]:
    """The agents of a statement in order."""
    listed: list[Agents | Group] = [*sorted(used, key=lambda one: one.serial)]
    if agents is not None:
        whole = [agents] if isinstance(agents, (Agents, Group)) else None
        listed = whole or entries("agents", agents, "from sv.agents")
    if not listed:
        raise ProblemError(
            "a problem needs at least one agent, got none: formulas that are text name agents "
            "given in agents=..."
        )
    for part in listed:
        if not isinstance(part, (Agents, Group)):
            raise ProblemError(f"agents must come from sv.agents, got {part!r:.60}")
    return listed


def _check_names(groups: Sequence[Group]) -> None:
    names = [group.name for group in groups]
    names += sorted({s.name.partition("[")[0] for g in groups for s in g.parameters})
    for name, uses in Counter(names).items():
        if uses > 1:
            raise ProblemError(f"names must differ, got {name} twice: rename one")
    require_distinct_labels(groups)


def _formulas(row: object) -> list[Expression | str]:
    """All formulas of a row, or its text."""
    if isinstance(row, str):
        return [row]
    if isinstance(row, Relation):
        return [row.left, row.right]
    if isinstance(row, Constraint | Total):
        terms = [h for part in row.sums for h in part.terms]
        return [*row.rest, *terms, *(row.linear.symbols[:1] if row.linear else ())]
    return []


def _plain(row: object, apart: Collection[Agents]) -> object:
    """A row in plain symbols; sums over agents that are stated one by one are written out."""
    if isinstance(row, Relation):
        return Relation(rewritten(row.left, {}), row.sign, rewritten(row.right, {}))
    if not isinstance(row, Constraint):
        return row
    sums, written = [], []
    for part in row.sums:
        owner = next(iter(owners(part.terms)), None)
        if owner in apart:
            written.append(part)
            continue
        terms = tuple(canonical(rewritten(h, {})) for h in part.terms)
        sums.append(replace(part, terms=terms, group=owner.fleet if owner else part.group))
    whole = Total(sums=tuple(written), rest=row.rest, offset=row.offset, linear=row.linear)
    whole = one_by_one(whole)
    linear = whole.linear
    if linear is not None:
        linear = replace(linear, symbols=tuple(rewritten(s, {}) for s in linear.symbols))
    rest = tuple(canonical(rewritten(e, {})) for e in whole.rest)
    return replace(row, sums=tuple(sums), rest=rest, offset=whole.offset, linear=linear)


def _plain_objectives(
    stated: list[object], listed: Sequence[Agents | Group], apart: Collection[Agents]
) -> list[object]:
    """The objectives, a template's written out for agents that are stated one by one."""
    if len(stated) == len(listed):
        pairs, stated = zip(stated, listed, strict=True), []
        for formula, part in pairs:
            own = {part} if isinstance(part, Agents) and part in apart else set()
            formulas = (formula,) if isinstance(formula, Expression) else ()
            stated += [f for (f,) in _for_each(formulas, own)] or [formula]
    return [rewritten(f, {}) if isinstance(f, Expression) else f for f in stated]


def _per_agent(one: Written, apart: Collection[Agents]) -> list[Written]:
    """A local row; a template's written out for agents that are stated one by one."""
    if not isinstance(one.row, Relation):
        return [one]
    sides = _for_each((one.row.left, one.row.right), apart)
    rows = [Relation(left, one.row.sign, right) for left, right in sides]
    names = (one.name and f"{one.name} {i + 1}" for i in range(len(rows)))
    return [one._replace(name=n, row=row) for n, row in zip(names, rows, strict=True)] or [one]


def _for_each(
    formulas: Sequence[Expression], apart: Collection[Agents]
) -> list[tuple[Expression, ...]]:
    """Templates written out agent by agent; nothing unless they are those of agents ``apart``."""
    (owner, single), *others = owners(formulas).items() or [(None, True)]
    if owner is None or single or others or owner not in apart:
        return []
    return [tuple(owner.alone(f, i) for f in formulas) for i in range(len(owner))]


def read_objectives(
    listed: Sequence[object], groups: Sequence[Group]
) -> tuple[Expression | Objective, ...]:
    """Return the objective of every group, a formula in its own symbols or code."""
    if len(listed) != len(groups):
        raise ProblemError(
            f"objectives must have one formula per agent or fleet ({len(groups)}), "
            f"got {len(listed)}"
        )
    owner = {s: group.name for group in groups for s in (*group.symbols, *group.parameters)}
    symbols = {s.name: s for s in owner}
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
            formula = parse_expression(formula, symbols, where=where)
        expr = check_expression(formula, owner, where)
        for symbol in in_order(expr.symbols):
            if owner[symbol] != group.name:
                raise ProblemError(
                    f"{where} may name its own state only, got {symbol}, which belongs to "
                    f"{owner[symbol]}: put what couples agents into a constraint"
                )
        exprs.append(group.fill(expr) if group.count == 1 else expr)
    return tuple(exprs)


def read_constraints(
    written: Sequence[Written], groups: tuple[Group, ...]
) -> tuple[Constraint, ...]:
    """Return the families of ``constraints=``, in order."""
    if not written:
        raise ProblemError("a problem needs at least one constraint, got none")
    owner = {s: g for g in groups for s in (*g.symbols, *g.parameters)}
    symbols = {s.name: s for s in owner}
    families: list[Constraint] = []
    for one in written:
        if isinstance(one.row, Constraint):
            family = _fleet_constraint(one.name, one.row, owner)
            families.append(replace(family, hard=family.hard or one.hard))
        else:
            families += _formula_constraints(one, symbols, owner)
    return tuple(families)


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


def _formula_constraints(
    written: Written, symbols: Mapping[str, Expression], owner: Mapping[Expression, Group]
) -> Iterator[Constraint]:
    where = f"constraint {written.name}"
    row = read_row(written.row, symbols, where)
    _require_one_fleet(row.g, owner, where)
    rows = [row.g]
    if not (row.equality or is_smooth(row.g)):
        rows = _pieces(row.g, {s: g.name for s, g in owner.items()}, where)
    for name, g in zip(_labels(written.name, len(rows)), rows, strict=True):
        yield Constraint(
            name=name,
            sums=(),
            rest=(g,),
            offset=read_only([0.0]),
            equality=row.equality,
            hard=written.hard,
        )


def _fleet_constraint(
    name: str, given: Constraint, owner: Mapping[Expression, Group]
) -> Constraint:
    where = f"constraint {name}"
    if len({part.group.name for part in given.sums}) < len(given.sums):
        raise ProblemError(f"{where} must sum over each fleet once: add the terms inside one total")
    for part in given.sums:
        if owner.get(part.group.symbols[0]) is not part.group:
            raise ProblemError(
                f"{where} sums over {part.group.name}, which is not among the agents"
            )
        for h in part.terms:
            check_expression(h, (*part.group.symbols, *part.group.parameters), where)
            if not h.symbols.intersection(part.group.symbols):
                raise ProblemError(
                    f"{where} must depend on the state of {part.group.name}, got the term {h}"
                )
    named = {s: group.name for s, group in owner.items() if group.count == 1}
    rest = tuple(check_expression(e, named, where) for e in given.rest)
    if given.linear is not None and not given.linear.used() <= named.keys():
        raise ProblemError(f"{where} names agents that are not there")
    if given.linear is not None and not (given.sums or rest):
        weights = np.diff(given.linear.indptr)
        if not np.all(weights):
            row = int(np.argmin(weights)) + 1
            raise ProblemError(
                f"{where}: every row of A @ x must name an agent, got row {row} with none"
            )
    beside = {named[s] for e in rest for s in e.symbols}
    for name_twice in (part.group.name for part in given.sums if part.group.name in beside):
        raise ProblemError(
            f"{where} must name {name_twice} once, got it inside a total and beside it: "
            "put everything about it into the total"
        )
    return replace(given, name=name, rest=rest)


def _pieces(g: Expression, owners: Mapping[Expression, str], where: str) -> list[Expression]:
    """Return rows that hold together where ``g <= 0`` does, no maximum of which mixes agents.

    c max(a, b) + r <= 0   is   c a + r <= 0  and  c b + r <= 0
    c |a| + r <= 0         is   c a + r <= 0  and  -c a + r <= 0    if r names an agent
    """
    rows = [g]
    while True:
        split = [part for row in rows for part in _halves(row, owners)]
        if len(split) == len(rows):
            return _naming_states(rows, where)
        if len(split) > _MOST_PIECES:
            raise ProblemError(
                f"{where} must have few maxima that mix agents, got one that becomes more than "
                f"{_MOST_PIECES} rows: write one constraint for each piece"
            )
        rows = split


def _naming_states(rows: Sequence[Expression], where: str) -> list[Expression]:
    """Leave out constant pieces, which hold or never do."""
    constants = [float(row) for row in rows if not row.symbols]
    if max(constants, default=0.0) > 0.0:
        raise ProblemError(
            f"{where} must hold at some point, got a maximum with a constant piece that is "
            f"{max(constants):g} too large: relax it"
        )
    return [row for row in rows if row.symbols]


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
