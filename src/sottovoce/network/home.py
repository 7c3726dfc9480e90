"""Who lives behind a connection: one agent or, for a gateway, many, with all that is private."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import sympy as sp

from sottovoce.arguments import array, entries, instance, whole
from sottovoce.engine.formulas import Fleet, formulas, part_of
from sottovoce.errors import InputError
from sottovoce.problem.agents import Array, Group, read_only
from sottovoce.problem.folder import read_agent
from sottovoce.problem.problem import CloudView, Problem

Gradient: TypeAlias = Callable[[Array], Any]
"""``x_i -> df_i/dx_i`` of one agent, both of shape (d,)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Single:
    """An agent by itself, named or one of a fleet.

    Attributes:
        group: its public group.
        place: its place in the group, from 0.
        gradient: ``df_i/dx_i``, as one formula per component or as any code.
    """

    group: Group
    place: int
    gradient: tuple[sp.Expr, ...] | Gradient

    @property
    def size(self) -> int:
        """How many numbers its state has."""
        return self.group.dim


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Several:
    """Agents of one fleet, computed together.

    Attributes:
        fleet: their formulas, parameters and weights, of those who live here alone.
    """

    fleet: Fleet

    @property
    def size(self) -> int:
        """How many numbers their states have."""
        return self.fleet.group.count * self.fleet.group.dim


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
    members: tuple[Single | Several, ...]

    @property
    def sizes(self) -> list[int]:
        """How many numbers the state of each agent has."""
        return [
            size
            for member in self.members
            for size in (
                [member.size]
                if isinstance(member, Single)
                else [member.fleet.group.dim] * member.fleet.group.count
            )
        ]

    @staticmethod
    def of_problem(problem: Problem, agents: Sequence[int]) -> Household:
        """Return agents of a problem that is known as a whole, as in a gateway or a simulation."""
        instance("problem", problem, Problem, "sv.Problem(...)")
        numbers = _increasing(agents)
        fleets = {fleet.group.name: fleet for fleet in formulas(problem).fleets}
        members: list[Single | Several] = []
        starts = []
        for index, places in _by_group(problem.cloud, numbers):
            group, f = problem.groups[index], problem.objectives[index]
            if group.count == 1:
                known = {s: sp.Float(float(a[0])) for s, a in group.parameters.items()}
                slopes = tuple(sp.diff(f, s).xreplace(known) for s in group.symbols)
                members.append(Single(group=problem.cloud.groups[index], place=0, gradient=slopes))
            else:
                members.append(Several(fleet=part_of(fleets[group.name], places)))
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
        slopes = tuple(sp.diff(view.objective, s) for s in view.symbols)
        return _alone(cloud, agent, slopes, view.start)

    @staticmethod
    def of_gradient(
        cloud: CloudView, agent: int, gradient: Gradient, *, start: Any = None
    ) -> Household:
        """Return an agent whose objective is any code that can tell its gradient.

        Args:
            cloud: the public problem, ``problem.cloud`` or ``read_public(folder).cloud``.
            agent: its number, from 1.
            gradient: ``x_i -> df_i/dx_i (x_i)``, arrays of shape (d,). Where it raises or gives no
                finite numbers, the agent goes on with what ``network.fallback`` says, and logs it.
            start: x_i(1); by default the point of X_i nearest 0.
        """
        return _alone(cloud, agent, gradient, start)


def _alone(
    cloud: CloudView, agent: int, gradient: tuple[sp.Expr, ...] | Gradient, start: Any
) -> Household:
    instance("cloud", cloud, CloudView, "problem.cloud")
    index, place = cloud.locate(agent)
    group = cloud.groups[index]
    wanted = f"{group.dim} numbers"
    first = np.zeros(group.dim) if start is None else array("start", start, wanted)
    if first.shape != (group.dim,):
        raise InputError(f"start must have {group.dim} numbers, got shape {first.shape}")
    if not np.isfinite(first).all():
        raise InputError("start must be finite")
    return Household(
        cloud=cloud,
        agents=(agent,),
        start=read_only(np.clip(first, group.lower[place], group.upper[place])),
        members=(Single(group=group, place=place, gradient=gradient),),
    )


def _increasing(agents: Sequence[int]) -> tuple[int, ...]:
    listed = entries("agents", agents, "a list of agents' numbers")
    numbers = tuple(sorted({whole("agent", agent, least=1) for agent in listed}))
    if not numbers or len(numbers) != len(listed):
        raise InputError(f"agents must be at least one number, each once, got {listed!r:.60}")
    return numbers


def _by_group(cloud: CloudView, agents: Sequence[int]) -> list[tuple[int, Any]]:
    found: dict[int, list[int]] = {}
    for agent in agents:
        index, place = cloud.locate(agent)
        found.setdefault(index, []).append(place)
    return [(index, np.array(places)) for index, places in found.items()]
