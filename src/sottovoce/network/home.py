"""What agents compute at home: their own objective and their own part of the public constraints.

``slope_i = df_i/dx_i (x_i) + sum_j mu_j dg_j/dx_i``, where each dg_j/dx_i is either a public
formula in the agent's own state, worked out here, or an entry that the cloud sent with noise.
A household holds one agent or, for a gateway, many; agents of one fleet are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import sympy as sp

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.certify.gradients import gradient_entries
from sottovoce.errors import InputError
from sottovoce.network.files import read_agent
from sottovoce.network.scalars import Scalars
from sottovoce.network.steps import Step
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.numeric import Block, Formulas, Part
from sottovoce.problem.problem import AgentView, CloudView, Problem

Gradient: TypeAlias = Callable[[Array], Any]
"""``x_i -> df_i/dx_i`` of one agent, both of shape (d,)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Member:
    """Agents of one group: where they are and how their objective grows.

    Attributes:
        group: the public group.
        places: which agents of the group, from 0.
        gradient: ``(count, d) -> (count, d)``.
    """

    group: Group
    places: Any
    gradient: Callable[[Array], Array]

    @property
    def size(self) -> int:
        return len(self.places) * self.group.dim


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Household:
    """The agents behind one connection, with everything private about them.

    Attributes:
        cloud: the public problem.
        agents: their numbers, from 1, increasing.
        start: x(1) of all of them, one after the other.
        members: their groups.
    """

    cloud: CloudView
    agents: tuple[int, ...]
    start: Array
    members: tuple[_Member, ...]

    @staticmethod
    def of_problem(problem: Problem, agents: Sequence[int]) -> Household:
        """Return agents of a problem that is known as a whole, as in a gateway or a simulation."""
        numbers = _increasing(agents)
        members, starts = [], []
        for index, places in _by_group(problem.cloud, numbers):
            group, private = problem.cloud.groups[index], problem.groups[index]
            objective = problem.objectives[index]
            gradient = (
                _named_slope(objective, private)
                if group.count == 1
                else _fleet_slope(objective, private, places)
            )
            members.append(_Member(group=group, places=places, gradient=gradient))
            starts.append(problem.start[index][places].ravel())
        return Household(
            cloud=problem.cloud,
            agents=numbers,
            start=read_only(np.concatenate(starts)),
            members=tuple(members),
        )

    @staticmethod
    def of_file(path: str | Path) -> Household:
        """Return the agent in ``FOLDER/agents/3.toml``; its public problem is FOLDER's."""
        cloud, agent, view = read_agent(path)
        return Household.of_gradient(cloud, agent, _gradient_of(view), start=view.start)

    @staticmethod
    def of_gradient(
        cloud: CloudView, agent: int, gradient: Gradient, *, start: Any = None
    ) -> Household:
        """Return an agent whose objective is any code that can tell its gradient.

        Args:
            cloud: the public problem, ``problem.cloud`` or ``read_public(folder).cloud``.
            agent: its number, from 1.
            gradient: ``x_i -> df_i/dx_i (x_i)``, arrays of shape (d,).
            start: x_i(1); by default the point of X_i nearest 0.
        """
        index, place = cloud.locate(agent)
        group = cloud.groups[index]
        lower, upper = group.lower[place], group.upper[place]
        first = np.zeros(group.dim) if start is None else np.asarray(start, dtype=np.float64)
        if first.shape != (group.dim,):
            raise InputError(f"start must have {group.dim} numbers, got shape {first.shape}")

        def slope(x: Array) -> Array:
            value = np.asarray(gradient(x[0]), dtype=np.float64).reshape(-1)
            if value.shape != (group.dim,) or not np.isfinite(value).all():
                raise InputError(f"gradient must return {group.dim} finite numbers")
            return value[np.newaxis]

        member = _Member(group=group, places=np.array([place]), gradient=slope)
        return Household(
            cloud=cloud,
            agents=(agent,),
            start=read_only(np.clip(first, lower, upper)),
            members=(member,),
        )


@final
class HomeStep:
    """x(k) of a household to x(k+1), for one run.

    Args:
        household: the agents.
        algorithm: gives the agents' step.
        lower: bounds from the cloud, one after the other.
        upper: likewise.
        rows: the constraint of each entry the cloud will send.
        columns: its component of the household's state.
    """

    def __init__(
        self,
        household: Household,
        algorithm: Algorithm,
        *,
        lower: Array,
        upper: Array,
        rows: Sequence[int],
        columns: Sequence[int],
    ) -> None:
        self._step = Step(algorithm.agent_step, algorithm)
        self._lower, self._upper = lower, upper
        self._rows = np.array(rows, dtype=np.int64)
        self._columns = np.array(columns, dtype=np.int64)
        self._parts: list[tuple[slice, _Member, list[Any]]] = []
        sent = set(zip(rows, columns, strict=True))
        begin = 0
        for member in household.members:
            here = slice(begin, begin + member.size)
            terms: list[Any] = list(_fleet_terms(household.cloud, member))
            if member.group.count == 1:
                terms.append(_OwnEntries(household.cloud, member.group, begin, sent))
            self._parts.append((here, member, terms))
            begin += member.size

    def __call__(self, k: int, x: Array, mu: Array, y: Array) -> Array:
        """Take the step of round k."""
        slope = np.empty(x.size)
        for here, member, terms in self._parts:
            own = x[here].reshape(-1, member.group.dim)
            total = member.gradient(own)
            for term in terms:
                total = total + term.slope(own, mu)
            slope[here] = total.ravel()
        if self._rows.size:
            slope += np.bincount(self._columns, mu[self._rows] * y, minlength=x.size)
        moved = self._step(k, x=x, slope=slope, lower=self._lower, upper=self._upper)
        return np.asarray(moved, dtype=np.float64)


@final
class _OwnEntries:
    """``sum_j mu_j dg_j/dx_i`` over the entries a named agent works out from its own state."""

    def __init__(
        self, cloud: CloudView, group: Group, begin: int, sent: set[tuple[int, int]]
    ) -> None:
        names = [g.name for g in cloud.groups]
        first = sum(g.count * g.dim for g in cloud.groups[: names.index(group.name)])
        columns = range(first, first + group.dim)
        home = [
            e
            for e in gradient_entries(cloud)
            if e.column in columns and (e.row, begin + e.column - first) not in sent
        ]
        for entry in home:
            if entry.kind == "released":
                raise InputError(
                    f"constraint {entry.row + 1} couples {group.name} with other agents, but the "
                    "cloud does not send its gradient: the run was planned for another problem"
                )
        self._rows = sorted({e.row for e in home})
        price = {row: sp.Dummy(f"mu{row}") for row in self._rows}
        slopes = [sp.Integer(0)] * group.dim
        for entry in home:
            slopes[entry.column - first] += price[entry.row] * entry.formula
        self._slopes = Scalars(slopes, [*group.symbols, *price.values()])

    def slope(self, x: Array, mu: Array) -> Array:
        return self._slopes(*x[0], *mu[self._rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _FleetTerm:
    """``sum_r,t mu_rt W[r, i] dh_t/dx (x_i)`` for the hosted agents of a fleet."""

    part: Part

    def slope(self, x: Array, mu: Array) -> Array:
        return self.part.formulas.pullback(x, self.part.spread(mu))


def _fleet_terms(cloud: CloudView, member: _Member) -> list[_FleetTerm]:
    terms, begin = [], 0
    for family in cloud.constraints:
        for part in family.sums:
            if part.group.name == member.group.name:
                block = Block(
                    index=slice(0, member.size),
                    count=len(member.places),
                    symbols=part.group.symbols,
                    parameters={s: a[member.places] for s, a in part.group.parameters.items()},
                )
                rows = begin + np.arange(part.rows).reshape(-1, len(part.terms))
                weights = None if part.weights is None else part.weights[:, member.places]
                formulas = Formulas(part.terms, block)
                terms.append(_FleetTerm(part=Part(rows=rows, weights=weights, formulas=formulas)))
        begin += family.rows
    return terms


def _fleet_slope(objective: sp.Expr, group: Group, places: Any) -> Callable[[Array], Array]:
    block = Block(
        index=slice(0, len(places) * group.dim),
        count=len(places),
        symbols=group.symbols,
        parameters={s: a[places] for s, a in group.parameters.items()},
    )
    formulas = Formulas([objective], block)
    one = np.ones((1, 1))
    return lambda x: formulas.pullback(x, one)


def _named_slope(objective: sp.Expr, group: Group) -> Callable[[Array], Array]:
    slopes = Scalars(
        [sp.diff(objective, s) for s in group.symbols], [*group.symbols, *group.parameters]
    )
    own = [values[0] for values in group.parameters.values()]
    return lambda x: slopes(*x[0], *own)[np.newaxis]


def _gradient_of(view: AgentView) -> Gradient:
    slopes = Scalars([sp.diff(view.objective, s) for s in view.symbols], view.symbols)
    return lambda x: slopes(*x)


def _increasing(agents: Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(sorted(set(agents)))
    if not numbers or len(numbers) != len(agents):
        raise InputError("agents must be at least one number, each once")
    return numbers


def _by_group(cloud: CloudView, agents: Sequence[int]) -> list[tuple[int, Any]]:
    found: dict[int, list[int]] = {}
    for agent in agents:
        index, place = cloud.locate(agent)
        found.setdefault(index, []).append(place)
    return [(index, np.array(places)) for index, places in found.items()]
