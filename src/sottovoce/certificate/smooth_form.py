"""A smooth problem whose saddle point is that of a non-smooth one: its epigraph form.

Every agent's non-smooth terms become variables of its own (``problem.epigraph``); a term that mixes
agents becomes one more agent, and its rows constraints behind the others. So does a public cost:
``U(s)`` is the objective ``U(u)`` of agents whose states u must equal the sums, or be at least as
large where their terms are not affine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from sottovoce.certificate.contributions import sum_ranges
from sottovoce.formula.canonical import rebuild, substitute, subtract
from sottovoce.formula.derive import is_smooth
from sottovoce.formula.expression import NONSMOOTH, ZERO, Expression, symbol
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.costs import is_convex_everywhere
from sottovoce.problem.epigraph import EpigraphWriter
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.local import LocalSet, box_of
from sottovoce.problem.numeric import Formulas
from sottovoce.problem.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmoothForm:
    """A smooth problem without a public cost."""

    problem: Problem  # its sums are the stated ones; s_o - u_o of those with a public cost
    columns: NDArray[np.int64]  # the stated states in its vector of states
    rows: int  # how many of its constraints, the first ones, are the stated ones
    priced: NDArray[np.int64]  # these o, from 0; the rows of ``s_o - u_o`` follow the stated ones
    copies: NDArray[np.int64]  # the columns of the states u_o


def is_nonsmooth(problem: Problem) -> bool:
    """Whether any formula of a problem is not smooth."""
    formulas = [
        *problem.objectives,
        *(c for agent_set in problem.local for c in agent_set.inequalities),
    ]
    for family in problem.constraints:
        formulas += [*family.rest, *(h for part in family.sums for h in part.terms)]
    return not all(is_smooth(f) for f in formulas)


def smooth_form(problem: Problem) -> SmoothForm:
    """Write a problem with a variable for every non-smooth term and for every sum of its cost."""
    of_costs = np.array([o for t in problem.cloud.sums.costs for o in t.rows], dtype=np.int64)
    priced = np.sort(of_costs)
    smooth, columns = _smooth(_with_copies(problem, priced) if priced.size else problem)
    copies = columns[problem.size : problem.size + priced.size]
    return SmoothForm(
        problem=smooth,
        columns=columns[: problem.size],
        rows=problem.rows,
        priced=priced,
        copies=copies[np.argsort(of_costs)],
    )


def _with_copies(problem: Problem, priced: NDArray[np.int64]) -> Problem:
    """Give every sum of the public cost a state of its own, in agents whose objective is U."""
    cloud, sums = problem.cloud.without_cost(), problem.cloud.sums
    ranges = sum_ranges(sums, cloud.groups)
    copy_of: dict[int, Expression] = {}
    rising = np.zeros(sums.count, dtype=np.bool_)
    groups, objectives = [], []
    for k, term in enumerate(sums.costs):
        copies = {s: symbol(f"cost{k + 1}[{i + 1}]") for i, s in enumerate(term.symbols)}
        copy_of |= dict(zip(term.rows, copies.values(), strict=True))
        rising[list(term.rows)] = [s in term.rising for s in term.symbols]
        low, high = np.array([ranges[o] for o in term.rows]).T
        # Bounds must hold no copy, where U allows it.
        room = np.where(high > low, high - low, 1.0) * is_convex_everywhere(term.formula)
        groups.append(
            Group(
                name=f"cost{k + 1}",
                symbols=tuple(copies.values()),
                lower=read_only([low - room]),
                upper=read_only([high + room]),
            )
        )
        objectives.append(substitute(term.formula, copies))
    families, rows, first = [], [], 0
    for family in sums.families:
        priced_rows = [r for r in range(family.rows) if first + r in copy_of]
        if priced_rows:
            rest = list(family.rest or (ZERO,) * family.rows)
            for r in priced_rows:
                rest[r] = subtract(rest[r], copy_of[first + r])
            family = replace(family, rest=tuple(rest))
            whole = len(priced_rows) == family.rows
            equal = [not rising[first + r] for r in priced_rows]
            some = list(zip(map(family.only, priced_rows), equal, strict=True))
            if whole and len(set(equal)) == 1:
                some = [(family, equal[0])]
            rows += [replace(part, equality=equality) for part, equality in some]
        families.append(family)
        first += family.rows
    lower, upper = np.array(sums.lower), np.array(sums.upper)
    lower[priced], upper[priced] = np.where(rising[priced], -np.inf, 0.0), 0.0
    everyone = (*cloud.groups, *groups)
    return unchecked_problem(
        groups=(*problem.groups, *groups),
        objectives=(*problem.objectives, *objectives),
        cloud=replace(
            cloud,
            groups=everyone,
            constraints=(*cloud.constraints, *rows),
            sums=replace(cloud.sums, families=tuple(families), lower=lower, upper=upper),
        ),
        local=(*problem.local, *map(box_of, groups)),
        start=(*problem.start, *(0.5 * (g.lower + g.upper) for g in groups)),
    )


def _smooth(problem: Problem) -> tuple[Problem, NDArray[np.int64]]:
    """A problem without non-smooth terms, and where the stated states are."""
    writer = _ProblemWriter(problem)
    families = [writer.family(family) for family in problem.constraints]
    sums = [writer.family(family) for family in problem.cloud.sums.families]
    objectives = [writer.formula(f) for f in problem.objectives]
    local = [
        replace(local_set, inequalities=tuple(writer.formula(c) for c in local_set.inequalities))
        for local_set in problem.local
    ]
    agents = [
        _widened(group, local_set, start, writer.single[group.name])
        for group, local_set, start in zip(problem.groups, local, problem.start, strict=True)
    ]
    # The stated components of every agent come first among its components.
    is_stated = [
        np.tile(np.arange(wider.dim) < group.dim, group.count)
        for group, (wider, _, _) in zip(problem.groups, agents, strict=True)
    ]
    for variable, expr in writer.shared.extra.items():
        extra = _shared(variable, expr, problem)
        agents.append((extra, box_of(extra), read_only(extra.upper)))
    families += [
        Constraint(name=f"non-smooth term {k + 1}", sums=(), rest=(row,), offset=read_only([0.0]))
        for k, row in enumerate(writer.shared.rows)
    ]
    groups, sets, starts = zip(*agents, strict=True)
    smooth = unchecked_problem(
        groups=groups,
        objectives=(*objectives, *(ZERO for _ in writer.shared.extra)),
        cloud=replace(
            problem.cloud,
            groups=groups,
            constraints=_over(groups, families),
            sums=replace(problem.cloud.sums, families=_over(groups, sums)),
        ),
        local=sets,
        start=starts,
    )
    return smooth, np.flatnonzero(np.concatenate(is_stated))


def unchecked_problem(*, groups: Sequence[Group], **values: object) -> Problem:
    """Return a problem with these attributes, which are not checked, and no objective as code."""
    problem: Problem = object.__new__(Problem)
    vars(problem).update(values, groups=groups, code=(None,) * len(groups))
    return problem


@final
class _ProblemWriter:
    """Writes non-smooth terms of one agent by its own variables, others by shared ones."""

    def __init__(self, problem: Problem) -> None:
        # Newton's method takes 20 steps to where a norm vanishes by its quotient, 300 by its row.
        self.single = {g.name: EpigraphWriter(g.name, norm_rows=False) for g in problem.groups}
        self.shared = EpigraphWriter("shared", norm_rows=False)
        self._owner = {s: g.name for g in problem.groups for s in (*g.symbols, *g.parameters)}

    def formula(self, expr: Expression) -> Expression:
        """The smooth form of a formula."""
        if is_smooth(expr):
            return expr
        names = {self._owner[s] for s in expr.symbols}
        if len(names) == 1:
            return self.single[names.pop()].smooth(expr)
        if expr.op in NONSMOOTH:
            return self.shared.smooth(expr)
        return rebuild(expr, [self.formula(a) for a in expr.args])

    def family(self, family: Constraint) -> Constraint:
        """The smooth form of rows."""
        sums = tuple(part.mapped(self.formula) for part in family.sums)
        return replace(family, sums=sums, rest=tuple(map(self.formula, family.rest)))


def _over(groups: Sequence[Group], families: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The same rows over the wider groups."""
    wider = {group.name: group for group in groups}
    return tuple(family.with_groups(wider) for family in families)


def _widened(
    group: Group, local: LocalSet, start: Array, writer: EpigraphWriter
) -> tuple[Group, LocalSet, Array]:
    """A group with the variables of its non-smooth terms behind its components."""
    if not writer.extra:
        return group, local, start
    low, high = writer.bounds(group, local)
    wider = replace(
        group,
        symbols=(*group.symbols, *writer.extra),
        lower=read_only(np.hstack([group.lower, low])),
        upper=read_only(np.hstack([group.upper, high])),
    )
    inequalities = len(local.inequalities)
    wider_local = replace(
        local,
        inequalities=(*local.inequalities, *writer.rows),
        labels=(
            *local.labels[:inequalities],
            *(f"a non-smooth term of {group.name}" for _ in writer.rows),
            *local.labels[inequalities:],
        ),
        lower=read_only(np.hstack([local.lower, low])),
        upper=read_only(np.hstack([local.upper, high])),
    )
    values = Formulas(writer.extra.values(), group).values(np.clip(start, local.lower, local.upper))
    above = np.clip(values.T + 0.1 * (high - low), low, high)
    return wider, wider_local, read_only(np.hstack([start, above]))


def _shared(symbol: Expression, stated: Expression, problem: Problem) -> Group:
    """One more agent, whose state is a non-smooth term that mixes agents."""
    named = [g for g in problem.groups if g.count == 1]
    together = Group(
        name="all named agents",
        symbols=tuple(s for g in named for s in g.symbols),
        lower=read_only(np.hstack([g.lower for g in named])),
        upper=read_only(np.hstack([g.upper for g in named])),
    )
    writer = EpigraphWriter("shared")
    writer.extra[symbol] = stated
    low, high = writer.bounds(together, box_of(together))
    return Group(name=symbol.name, symbols=(symbol,), lower=low, upper=high)
