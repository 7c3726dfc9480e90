"""A whole run in one process: the machines, rounds, steps and bytes that are deployed.

Cloud and agents are those of the network; only sockets, the disk and the clock are missing. One
agent has a connection of its own, the others share a gateway, and every message travels as the
frame it would be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.network.household import Household
from sottovoce.network.local_round import LocalRound
from sottovoce.network.parties import Parties
from sottovoce.network.protocol import agent as at_home
from sottovoce.network.protocol.actions import Action, Commit, Incident, Send
from sottovoce.network.protocol.agent import AgentMachine, Join, Memory, Think
from sottovoce.network.protocol.cloud import CloudMachine
from sottovoce.network.protocol.codec import (
    decode_from_agent,
    decode_from_cloud,
    encode,
    pack,
    pack_whole,
    unpack,
)
from sottovoce.network.protocol.messages import Contribution, FromAgent, State
from sottovoce.network.protocol.receipt import Notary
from sottovoce.network.rounds import Rounds
from sottovoce.network.setup import make_config, setup_of
from sottovoce.privacy.plan import NoisePlan
from sottovoce.privacy.sampler import Released, Sampler
from sottovoce.problem.agents import Array
from sottovoce.problem.problem import Problem
from sottovoce.study.stated import own_states

Acts = Callable[[int], Array | None]
"""The states that agents take in round k instead of their own iterates, NaN for those that go on
with theirs; None if all do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """One run as it was at home and as everybody heard it.

    Attributes:
        states: x(k) that agents contributed from, one row per round.
        releases: what was released in each round.
        frames: every frame that the cloud sent, in order, with the connection it went to.
    """

    states: Array
    releases: tuple[Released, ...]
    frames: tuple[tuple[int, bytes], ...]

    @property
    def values(self) -> Array:
        """The released outputs, one row per round."""
        return np.array([released.values for released in self.releases])


@final
class Loopback:
    """Runs of one plan, one after the other, with one sampler.

    Args:
        problem: everybody's problem.
        plan: its noise.
        algorithm: what agents and cloud run.
        sampler: adds the noise.
        rounds: T.
        agent: who has a connection of its own, from 1.
    """

    def __init__(
        self,
        problem: Problem,
        plan: NoisePlan,
        *,
        algorithm: Algorithm,
        sampler: Sampler,
        rounds: int,
        agent: int,
    ) -> None:
        config = make_config(plan, algorithm, rounds=rounds, noise="secure", run_id="audit")
        self.setup = setup_of(plan, Parties(plan), config)
        self.notary = Notary(bytes(32), config.hash)
        self.rounds = Rounds(plan, algorithm, sampler, rounds)
        others = [i for i in range(1, problem.agents + 1) if i != agent]
        parties = [[agent], others] if others else [[agent]]
        self.households = tuple(Household.of_problem(problem, party) for party in parties)
        own = own_states(problem.cloud, agent)
        every = np.arange(problem.cloud.lower().size)
        self.columns = (every[own], np.delete(every, own))
        self.steps: dict[int, LocalRound] = {}
        self._alike = partial(
            Loopback, problem, plan, algorithm=algorithm, rounds=rounds, agent=agent
        )

    def with_sampler(self, sampler: Sampler) -> Loopback:
        """Return the same with noise from elsewhere."""
        return self._alike(sampler=sampler)

    def play(self, acts: Acts | None = None) -> Played:
        """Play a run from the agents' starts to its end."""
        run = _Run(self, acts or (lambda k: None))
        return run.play()


@final
class _Run:
    """One run; frames wait in a queue, as they would on the way."""

    def __init__(self, loopback: Loopback, acts: Acts) -> None:
        self.loop, self.acts = loopback, acts
        self.cloud = CloudMachine(loopback.setup, loopback.notary, lambda k: None)
        self.agents = [
            AgentMachine(h.agents, _memory(h), lambda welcome: None) for h in loopback.households
        ]
        states = sum(columns.size for columns in loopback.columns)
        self.states = np.empty((loopback.setup.rounds, states))
        self.releases: list[Released] = []
        self.frames: list[tuple[int, bytes]] = []
        self.underway: deque[Callable[[], None]] = deque()

    def play(self) -> Played:
        self.loop.rounds.restart()
        for peer, machine in enumerate(self.agents):
            self.cloud.connect(peer, frozenset(machine.agents))
            self._at_home(peer, machine.connected())
        while self.underway:
            self.underway.popleft()()
        return Played(states=self.states, releases=tuple(self.releases), frames=tuple(self.frames))

    def _at_cloud(self, peer: int, frame: bytes) -> None:
        actions = deque(self.cloud.receive(peer, decode_from_agent(frame)))
        while actions:
            action = actions.popleft()
            if isinstance(action, Commit):
                actions.extend(self._commit(action))
            elif isinstance(action, Send):
                sent = encode(action.message)
                for to in action.peers:
                    self.frames.append((to, sent))
                    self.underway.append(partial(self._heard, to, sent))
            elif isinstance(action, Incident):
                raise AssertionError(f"the cloud refused an honest message: {action.code}")

    def _commit(self, action: Commit) -> list[Action]:
        cloud = self.cloud
        previous = self.loop.setup.config_hash if cloud.last is None else cloud.last.digest
        rounds = self.loop.rounds
        record, released = rounds.play(action.k, action.parts, previous, action.held)
        rounds.prepare()
        self.releases.append(released)
        return cloud.committed(record)

    def _heard(self, peer: int, frame: bytes) -> None:
        self._at_home(peer, self.agents[peer].receive(decode_from_cloud(frame)))

    def _at_home(self, peer: int, actions: list[at_home.Action]) -> None:
        machine = self.agents[peer]
        for action in actions:
            if isinstance(action, Join):
                if peer not in self.loop.steps:
                    household = self.loop.households[peer]
                    self.loop.steps[peer] = LocalRound(household, action.welcome)
                values = self.loop.steps[peer].contributions(action.x)
                self._at_home(peer, machine.joined(values))
            elif isinstance(action, Think):
                done = self.loop.steps[peer](
                    action.k, action.x, action.answer, action.price, action.y
                )
                self._at_home(peer, machine.stepped(done.x, done.answer, done.values))
            elif isinstance(action, at_home.Send):
                frame = encode(self._acted(peer, action.message))
                self.underway.append(partial(self._at_cloud, peer, frame))

    def _acted(self, peer: int, message: FromAgent) -> FromAgent:
        """What is sent: the agents' own choice, unless the game has them act."""
        if not isinstance(message, Contribution | State):
            return message
        k, columns = message.round, self.loop.columns[peer]
        x = unpack(self.agents[peer].memory.x)
        acted = self.acts(k)
        if acted is None or np.isnan(acted[columns]).all():
            self.states[k - 1, columns] = x
            return message
        x = np.where(np.isnan(acted[columns]), x, acted[columns])
        self.states[k - 1, columns] = x
        values = self.loop.steps[peer].contributions(x)
        if values is None:
            return State(round=k, x=pack(x))
        return Contribution(round=k, values=pack_whole(values))


def _memory(household: Household) -> Memory:
    start = pack(household.start)
    return Memory(x=start, answer=start)
