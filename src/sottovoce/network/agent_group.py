"""Who is behind a connection: one agent or, for a gateway, many, with all that is private."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np

from sottovoce.arguments import agent_index, array, entries, instance, path_of
from sottovoce.errors import InputError, ProblemError
from sottovoce.formula.expression import ZERO
from sottovoce.network.observe.logs import note
from sottovoce.problem.code import Watched
from sottovoce.problem.feasible import read_fallback, require_nonempty
from sottovoce.problem.files.load import Public, load_problem
from sottovoce.problem.fleets import Fleet, agent_fleet
from sottovoce.problem.groups import Array, read_only
from sottovoce.problem.local import local_rows, local_set
from sottovoce.problem.problem import CloudView, Problem

Gradient: TypeAlias = Callable[[Array], Any]
"""``x_i -> df_i/dx_i`` of one agent, both of shape (d,)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalGroup:
    """The agents of one group that are behind this connection."""

    fleet: Fleet  # their formulas, parameters and weights; a named agent is a fleet of one
    gradient: Watched | None = None  # ``df_i/dx_i`` as any code, for one agent by itself

    @property
    def size(self) -> int:
        """How many numbers their states have."""
        return self.fleet.group.count * self.fleet.group.dim


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentGroup:
    """The agents behind one connection, with everything private about them.

    Attributes:
        cloud: the public problem.
        agents: their numbers as files and messages count them, from 1, increasing.
        start: x(1) of all of them, one after the other.
        fallback: what they apply while there is no answer, likewise; NaN where it is their start.
        groups: what each group of them knows.
        folder: where they were read, to be read anew for every run of a series.
    """

    cloud: CloudView
    agents: tuple[int, ...]
    start: Array
    groups: tuple[LocalGroup, ...]
    fallback: Array
    folder: Path | None = None  # where it was read

    @property
    def sizes(self) -> list[int]:
        """How many numbers the state of each agent has."""
        groups = [member.fleet.group for member in self.groups]
        return [group.dim for group in groups for _ in range(group.count)]

    def some(self, agents: Sequence[int]) -> AgentGroup:
        """Return some of these agents."""
        if tuple(agents) == self.agents:
            return self
        stays = np.isin(self.agents, agents)
        groups, first = [], 0
        for member in self.groups:
            count = member.fleet.group.count
            places = np.flatnonzero(stays[first : first + count])
            if places.size:
                groups.append(replace(member, fleet=member.fleet.some(places)))
            first += count
        states = np.repeat(stays, self.sizes)
        return replace(
            self,
            agents=tuple(agents),
            groups=tuple(groups),
            start=read_only(self.start[states]),
            fallback=read_only(self.fallback[states]),
        )

    def renewed(self, public: Public) -> AgentGroup:
        """Return these agents with their files read anew, under other public numbers.

        Where their own files cannot be used, which nobody may learn, the data read before count.

        Raises:
            ProblemError: the public numbers are not of this problem.
        """
        if self.folder is None:
            return self
        try:
            return AgentGroup.of_folder(self.folder, self.agents, public=public)
        except Exception as error:
            reason = type(error).__name__
        # Outside of the handler: its error may say what is private, and would go with a new one.
        cloud = load_problem(self.folder, agents=(), public=public).cloud
        note("private-data-unread", level=logging.ERROR, error=reason)
        return replace(self, cloud=cloud)

    @staticmethod
    def of_problem(problem: Problem, agents: Sequence[int | str]) -> AgentGroup:
        """Return agents, by label or place from 0, of a problem that is known as a whole."""
        instance("problem", problem, Problem, "sv.Problem(...)")
        numbers = _numbers(problem.cloud, agents)
        families = problem.cloud.sums.families
        groups, starts, fallbacks = [], [], []
        for index, places in _by_group(problem.cloud, numbers):
            code = problem.code[index]
            formula = problem.objectives[index] if code is None else ZERO
            all_agents = agent_fleet(problem.groups, families, index, formula, problem.local[index])
            group = problem.groups[index]
            gradient = None if code is None else _watched(group.name, group.dim, code.gradient)
            groups.append(LocalGroup(fleet=all_agents.some(places), gradient=gradient))
            starts.append(problem.start[index][places].ravel())
            safe = problem.fallback[index]
            unsaid = np.full(starts[-1].shape, np.nan)
            fallbacks.append(unsaid if safe is None else safe[places].ravel())
        return AgentGroup(
            cloud=problem.cloud,
            agents=numbers,
            start=read_only(np.concatenate(starts)),
            groups=tuple(groups),
            fallback=read_only(np.concatenate(fallbacks)),
        )

    @staticmethod
    def of_file(path: str | Path) -> AgentGroup:
        """Return the agent in ``FOLDER/agents/3.toml``; its public problem is FOLDER's."""
        file = path_of("path", path)
        if not file.stem.isdecimal():
            raise ProblemError(
                f"an agent's file must be called 1.toml, 2.toml, ..., got {file.name}"
            )
        return AgentGroup.of_folder(file.absolute().parent.parent, [int(file.stem)])

    @staticmethod
    def of_folder(
        folder: str | Path, agents: Sequence[int], *, public: Public | None = None
    ) -> AgentGroup:
        """Return agents, numbered from 1, of a folder that may lack all other private files.

        ``public`` numbers take the place of those in problem.toml's table ``[public]``.
        """
        problem = load_problem(folder, agents=agents, public=public)
        group = AgentGroup.of_problem(problem, [agent - 1 for agent in agents])
        return replace(group, folder=path_of("folder", folder))

    @staticmethod
    def of_gradient(
        cloud: CloudView,
        agent: int | str,
        gradient: Gradient,
        *,
        start: Any = None,
        fallback: Any = None,
        local: Any = None,
    ) -> AgentGroup:
        """Return an agent whose objective is a callable that returns its gradient.

        Args:
            cloud: the public problem, ``Problem.load(folder, agents=[]).cloud``.
            agent: its label, or its place from 0.
            gradient: ``x_i -> df_i/dx_i (x_i)``, arrays of shape (d,). If it raises or is not
                finite, the agent logs it and sends a substitute (``network.local_round``).
            start: x_i(1); by default the point of X_i nearest 0.
            fallback: what it applies while there is no answer; by default where it starts.
            local: private rows, as in ``sv.Problem``.

        A gradient that is not monotone, so that no convex function has it, is noted once in the
        agent's own log; the cloud does not learn of it.
        """
        instance("cloud", cloud, CloudView, "problem.cloud")
        index, place = cloud.locate(agent)
        group = cloud.groups[index]
        private_set = local_set(
            group, cloud.local_rows[index], local_rows(local, [group])[group.name]
        )
        single = replace(group, name=group.label(place), count=1, parameters={})
        require_nonempty(single, private_set.of_agent(group, place))
        first = np.zeros(group.dim)
        if start is not None:
            first = array("start", start, f"{group.dim} numbers")
        if first.shape != (group.dim,):
            raise InputError(f"start must have {group.dim} numbers, got shape {first.shape}")
        if not np.isfinite(first).all():
            raise InputError("start must be finite, got NaN or infinity")
        all_agents = agent_fleet(cloud.groups, cloud.sums.families, index, ZERO, private_set)
        chosen = np.array([place])
        fleet = all_agents.some(chosen)
        safe_state = read_fallback(fallback, group.some(chosen), private_set.some(chosen))
        watched = _watched(group.label(place), group.dim, gradient)
        return AgentGroup(
            cloud=cloud,
            agents=_numbers(cloud, [agent]),
            start=read_only(np.clip(first, group.lower[place], group.upper[place])),
            groups=(LocalGroup(fleet=fleet, gradient=watched),),
            fallback=read_only(np.full(group.dim, np.nan) if safe_state is None else safe_state[0]),
        )


def _watched(name: str, dim: int, gradient: Gradient) -> Watched:
    """A gradient that is noted in the agent's own log if it is not monotone."""
    report = partial(note, "gradient-not-monotone", level=logging.WARNING)
    return Watched(name, gradient, dim, report)


def _numbers(cloud: CloudView, agents: Sequence[int | str]) -> tuple[int, ...]:
    """Agents' numbers, from 1, increasing."""
    labels = entries("agents", agents, "a list of agents")
    places = {agent_index(agent, cloud.agents, cloud.agent_labels) for agent in labels}
    if not places or len(places) != len(labels):
        raise InputError(f"agents must be at least one agent, each once, got {labels!r:.60}")
    return tuple(place + 1 for place in sorted(places))


def _by_group(cloud: CloudView, agents: Sequence[int]) -> list[tuple[int, Any]]:
    groups: dict[int, list[int]] = {}
    for agent in agents:
        index, place = cloud.locate(agent - 1)
        groups.setdefault(index, []).append(place)
    return [(index, np.array(places)) for index, places in groups.items()]
