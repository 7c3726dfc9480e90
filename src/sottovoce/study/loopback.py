"""A whole run in one process: the machines, rounds, steps and bytes that are deployed.

Cloud and agents are those of the network; only sockets, the disk and the clock are missing. One
agent has a connection of its own, the others share a gateway, and every message travels as the
frame it would be.

Do the messages tell anything besides the releases? The promise covers whatever is computed from
releases. So ``tells_more`` plays a run again with the very same releases and other states: every
byte that the cloud sends must be the same, receipts and the final answer included. What differs was
computed from a state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.local_round import LocalRound
from sottovoce.network.protocol.actions import (
    Action,
    Commit,
    Incident,
    Join,
    Meet,
    Memory,
    Save,
    Send,
    SendUp,
    Think,
)
from sottovoce.network.protocol.agent_machine import AgentMachine
from sottovoce.network.protocol.cloud_machine import CloudMachine
from sottovoce.network.protocol.codec import (
    Integers,
    decode_from_agent,
    decode_from_cloud,
    encode,
    pack,
    unpack,
)
from sottovoce.network.protocol.messages import Code, FromAgent, Masked, State
from sottovoce.network.protocol.receipt import Notary
from sottovoce.network.round_arithmetic import Blinding, Rounds, noisy_sigma
from sottovoce.network.setup import Parties, make_config, setup_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Released, Sampler, SecureSampler
from sottovoce.problem.agents import Array
from sottovoce.problem.problem import Problem
from sottovoce.study.halves import Held, HelperHalf, Keys
from sottovoce.study.stated import own_states

Acts = Callable[[int], Array | None]
"""The states that agents take in round k instead of their own iterates, NaN for those that go on
with theirs; None if all do."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """One run: the agents' states, and what each party received.

    Attributes:
        states: x(k) that agents contributed from, one row per round.
        releases: what was released in each round.
        frames: every frame that the cloud sent, in order, with the connection it went to.
        held: what the halves of a split cloud hold besides; nothing of a trusted one.
    """

    states: Array
    releases: tuple[Released, ...]
    frames: tuple[tuple[int, bytes], ...]
    held: Held

    @property
    def values(self) -> Array:
        """The released outputs, one row per round."""
        return np.array([released.values for released in self.releases])


@final
class Loopback:
    """Runs of one plan, one after the other, with one sampler.

    Args:
        problem: the whole problem.
        plan: its noise.
        algorithm: what agents and cloud run.
        sampler: adds the noise.
        rounds: T.
        agent: who has a connection of its own, from 1.
        helper: adds the noise of the helper, of a split cloud.
        keys: of a split cloud; new ones if not given.
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
        helper: Blinding | None = None,
        keys: Keys | None = None,
    ) -> None:
        config = make_config(plan, algorithm, rounds=rounds, noise="secure", run_id="audit")
        self.setup = setup_of(plan, Parties(plan), config)
        self.notary = Notary(bytes(32), config.hash)
        self.rounds = Rounds(plan, algorithm, sampler, rounds)
        others = [i for i in range(1, problem.agents + 1) if i != agent]
        parties = [[agent], others] if others else [[agent]]
        self.groups = tuple(AgentGroup.of_problem(problem, party) for party in parties)
        own = own_states(problem.cloud, agent)
        every = np.arange(problem.cloud.lower().size)
        self.columns = (every[own], np.delete(every, own))
        self.steps: dict[int, LocalRound] = {}
        self.keys = keys or Keys(tuple(tuple(party) for party in parties))
        self._helper = SecureSampler(noisy_sigma(plan)) if helper is None else helper
        self.half: HelperHalf | None = None
        if self.setup.split:
            self.half = HelperHalf(plan, config, self.keys, self._helper)
        self.with_sampler = partial(  # the same with noise from elsewhere
            Loopback,
            problem,
            plan,
            algorithm=algorithm,
            rounds=rounds,
            agent=agent,
            helper=self._helper,
            keys=self.keys,
        )

    def play(self, acts: Acts | None = None, *, crash: int = 0, then: Acts | None = None) -> Played:
        """Play a run from the agents' starts to its end.

        Args:
            acts: what agents do instead of what they would.
            crash: of a split cloud, the round after whose contribution the first connection's
                agents crash, and begin again with a state that was saved two rounds before.
            then: what agents do instead after the crash.
        """
        run = _Run(self, acts or _nothing, crash, then or _nothing)
        return run.play()


@final
class _Run:
    """One run; frames wait in a queue, as they would on the way."""

    def __init__(self, loopback: Loopback, acts: Acts, crash: int, then: Acts) -> None:
        self.loop, self.acts, self.then = loopback, acts, then
        self.crash, self.crashed = crash, False
        self.cloud = CloudMachine(loopback.setup, loopback.notary, self._digest)
        self.helper, self.held = loopback.half, Held()
        starts = [_memory(group) for group in loopback.groups]
        self.agents = [self._machine(peer, start) for peer, start in enumerate(starts)]
        self.saved, self.digests = [starts[0]], {0: loopback.setup.config_hash}
        states = sum(columns.size for columns in loopback.columns)
        self.states = np.empty((loopback.setup.rounds, states))
        self.releases: list[Released] = []
        self.frames: list[tuple[int, bytes]] = []
        self.queue: deque[Callable[[], None]] = deque()

    def play(self) -> Played:
        self.loop.rounds.restart()
        if self.helper is not None:
            self.helper.restart()
        for peer, machine in enumerate(self.agents):
            self.cloud.connect(peer, frozenset(machine.agents))
            self._perform(peer, machine.connected())
        while self.queue:
            self.queue.popleft()()
        return Played(
            states=self.states,
            releases=tuple(self.releases),
            frames=tuple(self.frames),
            held=self.held,
        )

    def _machine(self, peer: int, memory: Memory) -> AgentMachine:
        """The machine of agents that start from a saved memory."""
        masker = None if self.helper is None else self.loop.keys.masker(peer)
        agents = self.loop.groups[peer].agents
        return AgentMachine(agents, memory, lambda welcome: None, masker)

    def _digest(self, k: int) -> bytes | None:
        return self.digests.get(k)

    def _cloud_receive(self, peer: int, frame: bytes) -> None:
        message = decode_from_agent(frame)
        if isinstance(message, Masked):
            self.held.masked.append((peer, message.values))
        actions = deque(self.cloud.receive(peer, message))
        while actions:
            action = actions.popleft()
            if isinstance(action, Commit):
                actions.extend(self._commit(action))
            elif isinstance(action, Meet):
                assert self.helper is not None  # noqa: S101  only a split cloud introduces agents
                pledge = self.helper.meet(action.agents, action.mask)
                actions.extend(self.cloud.pledged(action.peer, pledge))
            elif isinstance(action, Send):
                sent = encode(action.message)
                for to in action.peers:
                    self.frames.append((to, sent))
                    self.queue.append(partial(self._agent_receive, to, sent))
            elif isinstance(action, Incident) and not (
                self.crashed and action.code is Code.CONFLICT  # a state that was lost is sent anew
            ):
                raise AssertionError(f"the cloud refused an honest message: {action.code}")

    def _commit(self, action: Commit) -> list[Action]:
        cloud = self.cloud
        previous = self.loop.setup.config_hash if cloud.last is None else cloud.last.digest
        rounds = self.loop.rounds
        answer = b"" if self.helper is None else self.helper.ask(action, self.held)
        record, released = rounds.play(action.k, action.parts, previous, action.held, answer)
        rounds.prepare()
        self.releases.append(released)
        self.digests[record.k] = record.digest
        return cloud.committed(record)

    def _agent_receive(self, peer: int, frame: bytes) -> None:
        self._perform(peer, self.agents[peer].hear(decode_from_cloud(frame)))

    def _perform(self, peer: int, actions: list[Action]) -> None:
        machine = self.agents[peer]
        for action in actions:
            if isinstance(action, Join):
                if peer not in self.loop.steps:
                    group = self.loop.groups[peer]
                    self.loop.steps[peer] = LocalRound(group, action.welcome)
                step = self.loop.steps[peer]
                x = step.begin(action.x)
                values = self._values(peer, machine.memory.round + 1, x, step.contributions(x))
                self._perform(peer, machine.joined(values, x))
            elif isinstance(action, Think):
                done = self.loop.steps[peer](
                    action.k, action.x, action.answer, action.price, action.y
                )
                values = self._values(peer, action.k + 1, done.x, done.values)
                self._perform(peer, machine.stepped(done.x, done.answer, values))
            elif isinstance(action, Save) and peer == 0:
                self.saved = [*self.saved[-2:], action.memory]
            elif isinstance(action, SendUp):
                frame = encode(self._acted(peer, action.message))
                self.queue.append(partial(self._cloud_receive, peer, frame))
                if isinstance(action.message, Masked) and peer == 0:
                    self._crash(action.message.round)

    def _crash(self, k: int) -> None:
        """The first connection's agents end once they have spoken, and begin with an old state."""
        if k == self.crash and not self.crashed:
            self.crashed, self.acts = True, self.then
            self.agents[0] = self._machine(0, self.saved[0])
            self.queue.append(self._reconnect)

    def _reconnect(self) -> None:
        self.cloud.disconnect(0)
        self.cloud.connect(0, frozenset(self.agents[0].agents))
        waiting, self.queue = self.queue, deque()
        self._perform(0, self.agents[0].connected())
        while self.queue:  # before any other message: the round is still open
            self.queue.popleft()()
        self.queue = waiting

    def _values(self, peer: int, k: int, x: Array, values: Integers | None) -> Integers | None:
        """What is contributed in round k: the agents' own choice, unless the game has them act."""
        if values is None or k > self.loop.setup.rounds:
            return values
        columns, acted = self.loop.columns[peer], self.acts(k)
        if acted is not None and not np.isnan(acted[columns]).all():
            x = np.where(np.isnan(acted[columns]), x, acted[columns])
            values = self.loop.steps[peer].contributions(x)
        self.states[k - 1, columns] = x
        return values

    def _acted(self, peer: int, message: FromAgent) -> FromAgent:
        """What is sent; states, of a release of states, are those that the game has agents take."""
        if not isinstance(message, State):
            return message
        k, columns = message.round, self.loop.columns[peer]
        x, acted = unpack(self.agents[peer].memory.x), self.acts(k)
        if acted is not None:
            x = np.where(np.isnan(acted[columns]), x, acted[columns])
        self.states[k - 1, columns] = x
        return State(round=k, x=pack(x))


def _nothing(k: int) -> None:
    """All agents keep their own iterates."""


def _memory(group: AgentGroup) -> Memory:
    start = pack(group.start)
    return Memory(x=start, answer=start)


@final
class Replayed(Sampler):
    """Releases what was released before, whatever the values."""

    def __init__(self, releases: Iterable[Released]) -> None:
        self._releases = iter(releases)

    def release(self, values: ArrayLike) -> Released:
        """Return the next release of the run that is played again."""
        return next(self._releases)

    def release_multiples(self, multiples: Integers) -> Released:
        """Likewise."""
        return next(self._releases)

    def release_residues(self, residues: Integers) -> Released:
        """Likewise."""
        return next(self._releases)


def tells_more(loop: Loopback, played: Played, lower: Array, upper: Array) -> str:
    """Return what the messages of a run tell besides its releases, "" for nothing.

    Args:
        loop: where it was played.
        played: the run.
        lower: lower bounds of all states.
        upper: upper bounds of all states.
    """
    generator = np.random.default_rng(len(played.states))
    elsewhere = generator.uniform(lower, upper, (len(played.states) + 1, lower.size))
    other = loop.with_sampler(sampler=Replayed(played.releases)).play(lambda k: elsewhere[k - 1])
    if len(other.frames) != len(played.frames):
        return "how many messages there are"
    for (to, frame), (too, second) in zip(played.frames, other.frames, strict=True):
        if (to, frame) != (too, second):
            return _difference(decode_from_cloud(frame), decode_from_cloud(second))
    return ""


def _difference(first: Any, second: Any) -> str:
    if type(first) is not type(second):
        return "which messages there are"
    fields = [f for f in first.__struct_fields__ if getattr(first, f) != getattr(second, f)]
    return f"{', '.join(fields)} of a {type(first).__name__.lower()} message"
