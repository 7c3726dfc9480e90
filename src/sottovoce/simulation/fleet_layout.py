"""All agents of a problem as kernels take them, and where their states lie among all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.canonical import add
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.kernels.fleet_kernel import FleetKernel, FleetStates
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.code import Objective, Watched
from sottovoce.problem.fleet import Fleet, FleetContribution, Index
from sottovoce.problem.fleets import fleets_of, named_rows
from sottovoce.problem.problem import Problem

Value: TypeAlias = Callable[[Array], float]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetLayout:
    """A problem's agents, named ones of one template together.

    Attributes:
        kernels: one per fleet.
        places: where the states of each fleet lie in the vector of all.
        groups: which of the problem's groups each fleet is.
        offset: the constants of the rows.
        values: of objectives that are code, with where their states lie.
        symbols: the states of all named agents.
        named: where these lie.
    """

    kernels: Sequence[FleetKernel]
    places: Sequence[Index]
    groups: Sequence[tuple[int, ...]]
    offset: Array
    values: Sequence[tuple[slice, Value]]
    symbols: tuple[Expression, ...]
    named: NDArray[np.int64]

    def start(self, x0: Sequence[Array], solution: Array | None) -> list[FleetStates]:
        """Return all fleets at the points of their own sets nearest to ``x0``, a part per group."""
        fleets = []
        for kernel, place, groups in zip(self.kernels, self.places, self.groups, strict=True):
            shape = (kernel.count, kernel.d)
            hat = None if solution is None else solution[place].reshape(shape)
            start = np.concatenate([x0[g].ravel() for g in groups]).reshape(shape)
            fleets.append(FleetStates(kernel, start, solution=hat))
        return fleets

    def together(self, parts: Sequence[Array]) -> Array:
        """Return all states in the problem's order."""
        x = np.empty(sum(part.size for part in parts))
        for place, part in zip(self.places, parts, strict=True):
            x[place] = part.ravel()
        return x


# Simulations of one problem follow each other: its fleets are kept, and the last layout.
_fleets: WeakKeyDictionary[Problem, dict[bool, list[Fleet]]] = WeakKeyDictionary()
_layouts: WeakKeyDictionary[Problem, tuple[object, bool, FleetLayout]] = WeakKeyDictionary()


def lay_out(problem: Problem, domain: Sequence[Group], *, gradient: bool) -> FleetLayout:
    """Lay out a problem's agents.

    Args:
        problem: whose.
        domain: the groups with the bounds that their agents keep to.
        gradient: whether they take gradient steps, all named agents as one.
    """
    known = _layouts.get(problem)
    if known is not None and known[0] is domain and known[1] == gradient:
        return known[2]
    by_kind = _fleets.setdefault(problem, {})
    if gradient not in by_kind:
        by_kind[gradient] = _stepping(problem) if gradient else _minimising(problem)
    layout = _layout(problem, by_kind[gradient], domain, gradient=gradient)
    if not layout.values:  # code is watched anew in every simulation
        _layouts[problem] = (domain, gradient, layout)
    return layout


def _layout(
    problem: Problem, fleets: Sequence[Fleet], domain: Sequence[Group], *, gradient: bool
) -> FleetLayout:
    kernels = []
    for fleet in fleets:
        box = fleet.within(domain)
        code = problem.code[fleet.places[0]] if len(fleet.places) == 1 else None
        watched = None if code is None else _watched(problem.groups[fleet.places[0]], code)
        kernels.append(
            FleetKernel(fleet, box.lower, box.upper, gradient=watched, gradient_steps=gradient)
        )
    ends = np.cumsum([0, *(g.count * g.dim for g in domain)]).tolist()
    spans = [slice(first, last) for first, last in pairwise(ends)]
    families = problem.constraints if gradient else problem.cloud.sums.families
    named = [i for i, g in enumerate(domain) if g.count == 1]
    codes = zip(spans, problem.code, strict=True)
    return FleetLayout(
        kernels=kernels,
        places=[fleet.columns for fleet in fleets],
        groups=[fleet.places for fleet in fleets],
        offset=np.concatenate([np.zeros(0), *(family.offset for family in families)]),
        values=[(span, _value(code)) for span, code in codes if code is not None],
        symbols=tuple(s for i in named for s in domain[i].symbols),
        named=np.concatenate([np.zeros(0, np.int64), *(np.r_[spans[i]] for i in named)]),
    )


def _minimising(problem: Problem) -> list[Fleet]:
    code = [i for i, objective in enumerate(problem.code) if objective is not None]
    objectives = [ZERO if i in code else f for i, f in enumerate(problem.objectives)]
    families = problem.cloud.sums.families
    return fleets_of(problem.groups, families, objectives, problem.local, alone=code)


def _stepping(problem: Problem) -> list[Fleet]:
    """All fleets, and all named agents as one agent with a long state: steps see no difference."""
    groups, stated = problem.groups, sum(g.count > 1 for g in problem.groups)
    fleets = fleets_of(groups, problem.constraints, problem.objectives, problem.local)[:stated]
    named = [i for i, g in enumerate(groups) if g.count == 1]
    if not named:
        return fleets
    begin = np.cumsum([0, *(g.count * g.dim for g in groups)])
    rows = enumerate(named_rows(problem.constraints))
    together = Fleet(
        group=Group(
            name="named",
            count=1,
            symbols=tuple(s for i in named for s in groups[i].symbols),
            lower=np.concatenate([groups[i].lower for i in named], axis=1),
            upper=np.concatenate([groups[i].upper for i in named], axis=1),
            parameters={},
        ),
        objective=named_objective(problem),
        sums=tuple(FleetContribution(row=j, terms=(h,)) for j, h in rows if not h.is_zero),
        places=tuple(named),
        columns=np.concatenate([np.arange(begin[i], begin[i + 1]) for i in named]),
    )
    return [*fleets, together]


def named_objective(problem: Problem) -> Expression:
    """Return the sum of the objectives of all named agents."""
    pairs = zip(problem.groups, problem.objectives, strict=True)
    return add(*(group.fill(f) for group, f in pairs if group.count == 1))


def _value(code: Objective) -> Value:
    value = code.value
    return lambda x: np.nan if value is None else float(value(x))


def _watched(group: Group, code: Objective) -> Watched:
    def report() -> None:
        warnings.warn(
            f"the gradient of {group.name} is not monotone: its objective is not convex, and the "
            "answer need not be the minimum",
            stacklevel=2,
        )

    return Watched(group.name, code.gradient, group.dim, report)
