"""Statements read and checked: agents, objectives, constraints and starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
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
    multiply,
    pieces_of,
    subtract,
)
from sottovoce.formula.derive import is_smooth
from sottovoce.formula.expression import Expression, Op, Relation, number, symbol
from sottovoce.formula.order import in_order
from sottovoce.formula.parse import (
    MAX_CHARACTERS,
    check_expression,
    parse_constraint,
    parse_expression,
)
from sottovoce.problem.agents import Agents, RowName, owners, rewritten
from sottovoce.problem.code import Objective
from sottovoce.problem.constraints import (
    Constraint,
    FleetSum,
    Hard,
    Total,
    over_named_agents,
    row_symbols,
    without_rows,
)
from sottovoce.problem.groups import Group, read_only, require_distinct_labels

_WORD = re.compile(r"[^\W\d]\w*")
_MOST_PIECES = 64


class StatedRow(NamedTuple):
    """A row as people write it."""

    name: str  # its label, ``g1``, ``g2``, ... in order, or empty
    row: object  # a comparison, text, a family of constraints, or a row that was read before
    hard: bool = False  # whether a physical limit stands behind it, see ``hard``


def stated_rows(statement: object, prefix: str = "") -> list[StatedRow]:
    """Return the rows of a mapping from names, a list or one row; arrays of rows are written out.

    Rows of a list are called ``prefix1``, ``prefix2``, ...; without a prefix they have no names.
    """
    if isinstance(statement, Mapping):
        pairs = [(str(name), row) for name, row in statement.items()]
    else:
        several = list(statement) if isinstance(statement, (list, tuple)) else [statement]
        pairs = [(f"{prefix}{j + 1}" if prefix else "", row) for j, row in enumerate(several)]
    rows: list[StatedRow] = []
    for name, row in pairs:
        if isinstance(row, StatedRow):
            rows.append(row)
        elif isinstance(row, Hard):
            rows += (one._replace(hard=True) for one in stated_rows({name: row.row}))
        elif isinstance(row, (np.ndarray, list, tuple)):
            flat = np.ravel(np.asarray(row, dtype=object))
            rows += map(StatedRow, _labels(name, flat.size), flat)
        else:
            rows.append(StatedRow(name, row))
    return rows


def _labels(name: str, count: int) -> list[str]:
    """The labels of the rows of one statement, which may have no name."""
    if count == 1 or not name:
        return [name] * count
    return [f"{name}[{k + 1}]" for k in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One row ``g(x) <= 0`` or ``g(x) = 0``."""

    g: Expression  # the formula
    equality: bool  # whether it must be 0
    written: str | Relation  # the row as it was stated

    @property
    def label(self) -> str:
        """The row as text."""
        return str(self.written)


def read_row(statement: object, symbols: Mapping[str, Expression], where: str) -> Row:
    """Read one row in ``symbols``: a comparison with <=, >= or ==, text, or one that was read."""
    if isinstance(statement, Row):
        return statement
    if isinstance(statement, str):
        g, equality = parse_constraint(statement, symbols, where=where)
    elif isinstance(statement, bool | np.bool_):
        raise ProblemError(
            f"{where} must name at least one agent, got a comparison that is always "
            f"{bool(statement)}: remove it or mend it"
        )
    elif isinstance(statement, Relation):
        g, equality = check_expression(statement.g, symbols.values(), where), statement.equality
    else:
        raise ProblemError(f"{where} must be a comparison with <=, >= or ==, got {statement!r:.60}")
    if not g.symbols:
        raise ProblemError(f"{where} must name at least one agent, got {statement}: remove it")
    return Row(g=g, equality=equality, written=statement)


def resolve_agents(
    agents: object,
    objectives: object,
    constraints: Sequence[StatedRow],
    local: Sequence[StatedRow],
    cost: Expression | None,
) -> tuple[tuple[Group, ...], list[object], list[StatedRow], list[StatedRow], Expression | None]:
    """Find the agents of a statement, and write it in plain symbols.

    Agents are groups of one if they were given by their names, or if a formula names single ones;
    all in one group if formulas name the state of every one. Their order is that of ``agents``, or
    that in which they were made. Arguments are those of ``Problem``, rows taken apart.
    """
    constraints = [row._replace(row=_without_rows(row.row)) for row in constraints]
    several = isinstance(objectives, (list, tuple))
    stated_objectives = (
        list(objectives) if isinstance(objectives, (list, tuple, np.ndarray)) else [objectives]
    )
    formulas = [
        *stated_objectives,
        *(f for row in (*constraints, *local) for f in _formulas(row.row)),
        *([] if cost is None else [cost]),
    ]
    # Longer texts are refused when they are read.
    texts = (formula[:MAX_CHARACTERS] for formula in formulas if isinstance(formula, str))
    names = {word for text in texts for word in _WORD.findall(text)}
    used = owners(formula for formula in formulas if isinstance(formula, Expression))
    ordered = _ordered(agents, used)
    for other in used.keys() - set(ordered):
        if used[other]:
            names.update(s.name.partition("[")[0] for s in other.symbols)
    # As many objectives as agents: each has its own.
    single = several and len(stated_objectives) == sum(map(len, ordered)) != len(ordered)
    named = {
        a
        for a in ordered
        if a.by_name or (single and len(a) > 1) or used.get(a, False) or a.calls(names)
    }
    groups = tuple(g for a in ordered for g in (a.groups if a in named else [a.fleet]))
    uses = Counter(group.name for group in groups)
    uses.update(sorted({s.name.partition("[")[0] for g in groups for s in g.parameters}))
    for name, count in uses.items():
        if count > 1:
            raise ProblemError(f"names must differ, got {name} twice: rename one")
    require_distinct_labels(groups)
    per_agent = [row for stated in local for row in _per_agent(stated, named)]
    coupling, private = (
        [row._replace(row=_plain(row.row, named)) for row in rows]
        for rows in (constraints, per_agent)
    )
    plain = None if cost is None else plain_cost(cost, named)
    return groups, _plain_objectives(stated_objectives, ordered, named), coupling, private, plain


def _ordered(agents: object, used: Collection[Agents]) -> list[Agents]:
    """The agents of a statement in order."""
    stated: list[Any] = [*sorted(used, key=lambda owner: owner.serial)]
    if agents is not None:
        single = isinstance(agents, (Agents, Group))
        stated = [agents] if single else entries("agents", agents, "from sv.agents")
    if not stated:
        raise ProblemError(
            "a problem needs at least one agent, got none: formulas that are text name agents "
            "given in agents=..."
        )
    ordered = [Agents(a.name, a) if isinstance(a, Group) else a for a in stated]
    for one in ordered:
        if not isinstance(one, Agents):
            raise ProblemError(f"agents must come from sv.agents, got {one!r:.60}")
    return ordered


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


def _without_rows(row: object) -> object:
    """A comparison in which sums over fleets stand for all of their agents."""
    if not isinstance(row, Relation):
        return row
    return Relation(without_rows(row.left), row.sign, without_rows(row.right))


def _plain(row: object, named: Collection[Agents]) -> object:
    """A row in plain symbols; sums over agents that are stated one by one are written out."""
    if isinstance(row, Relation):
        return Relation(rewritten(row.left, {}), row.sign, rewritten(row.right, {}))
    if not isinstance(row, Constraint):
        return row
    sums, singles = [], []
    for part in row.sums:
        owner = next(iter(owners(part.terms)), None)
        if owner in named:
            singles.append(part)
            continue
        plain = part.mapped(lambda h: canonical(rewritten(h, {})))
        sums.append(replace(plain, group=owner.fleet if owner else part.group))
    total = Total(sums=tuple(singles), rest=row.rest, offset=row.offset, linear=row.linear)
    total = over_named_agents(total)
    linear = total.linear
    if linear is not None:
        linear = replace(linear, symbols=tuple(rewritten(s, {}) for s in linear.symbols))
    rest = tuple(canonical(rewritten(e, {})) for e in total.rest)
    return replace(row, sums=tuple(sums), rest=rest, offset=total.offset, linear=linear)


def _plain_objectives(
    stated: list[object], ordered: Sequence[Agents], named: Set[Agents]
) -> list[object]:
    """The objectives, a template's written out for agents that are stated one by one."""
    if len(stated) == len(ordered):
        pairs, stated = zip(stated, ordered, strict=True), []
        for formula, agents in pairs:
            formulas = [formula] if isinstance(formula, Expression) else []
            stated += [f for (f,) in _for_each(formulas, {agents} & named)] or [formula]
    return [rewritten(f, {}) if isinstance(f, Expression) else f for f in stated]


def _per_agent(stated: StatedRow, named: Collection[Agents]) -> list[StatedRow]:
    """A local row; a template's written out for agents that are stated one by one."""
    row, name = stated.row, stated.name
    if not isinstance(row, Relation):
        return [stated]
    sides = _for_each((row.left, row.right), named)
    return [
        StatedRow(name and f"{name} {i + 1}", Relation(left, row.sign, right), stated.hard)
        for i, (left, right) in enumerate(sides)
    ] or [stated]


def _for_each(
    formulas: Sequence[Expression], named: Collection[Agents]
) -> list[tuple[Expression, ...]]:
    """Templates written out agent by agent; nothing unless they are those of agents ``named``."""
    (owner, single), *others = owners(formulas).items() or [(None, True)]
    if owner is None or single or others or owner not in named:
        return []
    return [tuple(owner.alone(f, i) for f in formulas) for i in range(len(owner))]


def read_objectives(
    formulas: Sequence[object], groups: Sequence[Group]
) -> tuple[Expression | Objective, ...]:
    """Return the objective of every group, a formula in its own symbols or code."""
    if len(formulas) != len(groups):
        raise ProblemError(
            f"objectives must have one formula per agent or fleet ({len(groups)}), "
            f"got {len(formulas)}"
        )
    owner = {s: group.name for group in groups for s in (*group.symbols, *group.parameters)}
    symbols = {s.name: s for s in owner}
    exprs: list[Expression | Objective] = []
    for group, formula in zip(groups, formulas, strict=True):
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
        for other in in_order(expr.symbols):
            if owner[other] != group.name:
                raise ProblemError(
                    f"{where} may name its own state only, got {other}, which belongs to "
                    f"{owner[other]}: put what couples agents into a constraint"
                )
        exprs.append(group.fill(expr) if group.count == 1 else expr)
    return tuple(exprs)


def stated_cost(cost: object) -> Expression | None:
    """Return ``cost=`` as a formula: one, or a total or an array of one row."""
    if cost is None:
        return None
    if isinstance(cost, np.ndarray) and cost.size == 1:
        cost = cost.item()
    elif isinstance(cost, Total) and len(cost) == 1:
        cost = cost[0]
    if not isinstance(cost, Expression):
        raise ProblemError(
            f"cost must be one convex formula of sums such as sv.sum_squares(base + "
            f"sv.total(ev.x)), got {cost!r:.60}"
        )
    return cost


def plain_cost(formula: Expression, named: Set[Agents]) -> Expression:
    """Return a cost in plain symbols; the same total stated twice is one.

    Totals over the agents ``named``, which are stated one by one, are written out.
    """
    formula = rewritten(without_rows(formula, named), {})
    totals: dict[object, FleetSum] = {}
    values: dict[Expression, Expression] = {}
    for s in row_symbols(formula):
        part = s.value.part
        group = next((a.fleet for a in owners(part.terms)), part.group)
        plain = replace(part.mapped(lambda h: canonical(rewritten(h, {}))), group=group)
        plain = totals.setdefault(plain.key, plain)
        place = list(totals.values()).index(plain) + 1
        values[s] = symbol(RowName(f"total {place}[{s.value.row + 1}]", plain, s.value.row))
    return canonical(rewritten(formula, values) if values else formula)


def read_constraints(
    written: Sequence[StatedRow], groups: tuple[Group, ...]
) -> tuple[Constraint, ...]:
    """Return the families of ``constraints=``, in order."""
    owner = {s: g for g in groups for s in (*g.symbols, *g.parameters)}
    symbols = {s.name: s for s in owner}
    families: list[Constraint] = []
    for row in written:
        if isinstance(row.row, Constraint):
            family = _fleet_constraint(row.name, row.row, owner)
            families.append(replace(family, hard=family.hard or row.hard))
        else:
            families += _formula_constraints(row, symbols, owner)
    return tuple(families)


def _require_one_fleet(g: Expression, owner: Mapping[Expression, Group], where: str) -> None:
    """Refuse a fleet's state or parameters beside those of other agents."""
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
    written: StatedRow, symbols: Mapping[str, Expression], owner: Mapping[Expression, Group]
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
    name: str, statement: Constraint, owner: Mapping[Expression, Group]
) -> Constraint:
    where = f"constraint {name}"
    if len({part.group.name for part in statement.sums}) < len(statement.sums):
        raise ProblemError(f"{where} must sum over each fleet once: add the terms inside one total")
    for part in statement.sums:
        if owner.get(part.group.symbols[0]) is not part.group:
            raise ProblemError(
                f"{where} must sum over agents of the problem, got {part.group.name}: state an "
                "objective for them, or leave them out"
            )
        for h in part.terms:
            check_expression(h, (*part.group.symbols, *part.group.parameters), where)
            if not h.symbols.intersection(part.group.symbols):
                raise ProblemError(
                    f"{where} must depend on the state of {part.group.name}, got the term {h}"
                )
    named = {s: group.name for s, group in owner.items() if group.count == 1}
    rest = tuple(check_expression(e, named, where) for e in statement.rest)
    if statement.linear is not None and not statement.linear.used() <= named.keys():
        raise ProblemError(f"{where} must name agents of the problem only, got others")
    # What has no weight adds nothing, whatever its curvature.
    statement = replace(statement, sums=tuple(part for part in statement.sums if part.enters.any()))
    enters = np.array([bool(e.symbols) for e in rest] or np.zeros(statement.rows, dtype=np.bool_))
    for part in statement.sums:
        enters |= part.enters
    if statement.linear is not None:
        enters |= np.diff(statement.linear.indptr) > 0
    if not enters.all():
        raise ProblemError(
            f"{where}: every row of A @ x must name an agent, got row {int(np.argmin(enters)) + 1} "
            "with none: remove the row"
        )
    beside = {named[s] for e in rest for s in e.symbols}
    for name_twice in (part.group.name for part in statement.sums if part.group.name in beside):
        raise ProblemError(
            f"{where} must name {name_twice} once, got it inside a total and beside it: "
            "put everything about it into the total"
        )
    return replace(statement, name=name, rest=rest)


def _pieces(g: Expression, owners: Mapping[Expression, str], where: str) -> list[Expression]:
    """Return rows that hold together where ``g <= 0`` does, no maximum of which mixes agents.

    c max(a, b) + r <= 0   is   c a + r <= 0  and  c b + r <= 0
    c |a| + r <= 0         is   c a + r <= 0  and  -c a + r <= 0    if r names an agent
    """
    rows = [g]
    while True:
        split = [part for row in rows for part in _split_first(row, owners)]
        if len(split) == len(rows):
            break
        if len(split) > _MOST_PIECES:
            raise ProblemError(
                f"{where} must have few maxima that mix agents, got one that becomes more than "
                f"{_MOST_PIECES} rows: write one constraint for each piece"
            )
        rows = split
    constants = [float(row) for row in rows if not row.symbols]  # they hold or never do
    if max(constants, default=0.0) > 0.0:
        raise ProblemError(
            f"{where} must hold at some point, got a maximum with a constant piece that is "
            f"{max(constants):g} too large: relax it"
        )
    return [row for row in rows if row.symbols]


def _split_first(g: Expression, owners: Mapping[Expression, str]) -> list[Expression]:
    """The pieces of the first maximum or absolute value that mixes agents; g itself without one."""
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
