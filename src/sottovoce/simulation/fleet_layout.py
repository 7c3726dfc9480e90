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

from sottovoce.formula.expression import ZERO, Expression
from sottovoce.kernels.fleet_kernel import FleetKernel, FleetStates
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.code import Objective, Watched
from sottovoce.problem.fleet import Fleet, Index
from sottovoce.problem.fleets import fleets_of
from sottovoce.problem.problem import Problem
from sottovoce.simulation.formulas import as_fleet, named_agents
from sottovoce.simulation.layout import fleet_kernel

Value: TypeAlias = Callable[[Array], float]

_fleets: WeakKeyDictionary[Problem, dict[bool, list[Fleet]]] = WeakKeyDictionary()
_kernels: WeakKeyDictionary[Problem, tuple[object, bool, list[FleetKernel]]]
_kernels = WeakKeyDictionary()


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetLayout:
    """A problem's agents, named ones of one form together.

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
        found = []
        for kernel, place, groups in zip(self.kernels, self.places, self.groups, strict=True):
            shape = (kernel.count, kernel.d)
            hat = None if solution is None else solution[place].reshape(shape)
            start = np.concatenate([x0[g].ravel() for g in groups]).reshape(shape)
            found.append(FleetStates(kernel, start, solution=hat))
        return found

    def together(self, parts: Sequence[Array]) -> Array:
        """Return all states in the problem's order."""
        x = np.empty(sum(part.size for part in parts))
        for place, part in zip(self.places, parts, strict=True):
            x[place] = part.ravel()
        return x


def lay_out(problem: Problem, domain: Sequence[Group], *, gradient: bool) -> FleetLayout:
    """Lay out a problem's agents.

    Args:
        problem: whose.
        domain: the groups with the bounds that their agents keep to.
        gradient: whether they take gradient steps, all named agents as one.
    """
    fleets = _fleets_of(problem, gradient=gradient)
    begin = np.cumsum([0, *(g.count * g.dim for g in domain)])
    spans = [np.arange(first, last) for first, last in pairwise(begin.tolist())]
    families = problem.constraints if gradient else problem.cloud.sums.families
    named = [i for i, g in enumerate(domain) if g.count == 1]
    return FleetLayout(
        kernels=_kernels_of(problem, fleets, domain, gradient=gradient),
        places=[fleet.columns for fleet in fleets],
        groups=[fleet.places for fleet in fleets],
        offset=np.concatenate([np.zeros(0), *(family.offset for family in families)]),
        values=[
            (slice(int(begin[i]), int(begin[i + 1])), _value(code))
            for i, code in enumerate(problem.code)
            if code is not None
        ],
        symbols=tuple(s for i in named for s in domain[i].symbols),
        named=np.concatenate([np.zeros(0, dtype=np.int64), *(spans[i] for i in named)]),
    )


def _fleets_of(problem: Problem, *, gradient: bool) -> list[Fleet]:
    known = _fleets.setdefault(problem, {})
    if gradient not in known:
        known[gradient] = _stepping(problem) if gradient else _minimising(problem)
    return known[gradient]


def _stepping(problem: Problem) -> list[Fleet]:
    stated = [i for i, g in enumerate(problem.groups) if g.count > 1]
    found = fleets_of(problem.groups, problem.constraints, problem.objectives, problem.local)
    named = named_agents(problem, problem.constraints)
    own = [as_fleet(named, problem.groups)] if named.symbols else []
    return [*found[: len(stated)], *own]


def _minimising(problem: Problem) -> list[Fleet]:
    code = [i for i, objective in enumerate(problem.code) if objective is not None]
    objectives = [ZERO if i in code else f for i, f in enumerate(problem.objectives)]
    families = problem.cloud.sums.families
    return fleets_of(problem.groups, families, objectives, problem.local, alone=code)


def _kernels_of(
    problem: Problem, fleets: Sequence[Fleet], domain: Sequence[Group], *, gradient: bool
) -> list[FleetKernel]:
    """The kernels of the last domain are kept: solves of one problem follow each other."""
    known = _kernels.get(problem)
    if known is not None and known[0] is domain and known[1] == gradient:
        return known[2]
    made = []
    for fleet in fleets:
        box = fleet.within(domain)
        code = problem.code[fleet.places[0]] if len(fleet.places) == 1 else None
        watched = None if code is None else _watched(fleet, problem, code)
        made.append(
            fleet_kernel(fleet, box.lower, box.upper, gradient=watched, gradient_steps=gradient)
        )
    if all(code is None for code in problem.code):
        _kernels[problem] = (domain, gradient, made)
    return made


def _value(code: Objective) -> Value:
    told = code.value
    return lambda x: np.nan if told is None else float(told(x))


def _watched(fleet: Fleet, problem: Problem, code: Objective) -> Watched:
    name = problem.groups[fleet.places[0]].name

    def report() -> None:
        warnings.warn(
            f"the gradient of {name} is not monotone: its objective is not convex, and the answer "
            "need not be the minimum",
            stacklevel=2,
        )

    return Watched(name, code.gradient, fleet.group.dim, report)
