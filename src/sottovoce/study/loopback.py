"""A whole run in one process: the machines, runners, rounds, steps and bytes that are deployed.

Cloud, helper and agents are those of the network; only sockets, the disk and the clock are missing.
One agent has a connection of its own, the others share a gateway, and every message travels as the
frame it would be, through a queue.

Do the messages tell anything besides the releases? The promise covers whatever is computed from
releases. So ``find_leak`` plays a run again with the very same releases and other states: every
byte that the cloud sends must be the same, receipts and the final answer included. What differs was
computed from a state.

Of a split cloud each party is left with something else. The cloud holds what agents sent, masked,
and the helper's answers: it takes the masks off and is left with sums and the helper's noise. The
helper knows masks and its own noise, and receives every release: it is left with sums and the
cloud's noise. An outsider receives the releases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec.structs import replace
from numpy.typing import ArrayLike

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.helper_rounds import Blinding, HelperRounds
from sottovoce.network.identity.authority import new_key
from sottovoce.network.identity.certificates import Identity, public_key
from sottovoce.network.local_round import LocalRound
from sottovoce.network.masks import HelperKeys, Masker, Secret
from sottovoce.network.protocol.actions import (
    Action,
    AnswerRound,
    Apply,
    Commit,
    Finish,
    LocalStep,
    Memory,
    Party,
    Record,
    Save,
    Send,
    SendUp,
    Stop,
)
from sottovoce.network.protocol.agent_machine import AgentMachine
from sottovoce.network.protocol.cloud_machine import CloudMachine, CloudPhase
from sottovoce.network.protocol.codec import (
    MASK_HEAD,
    Integers,
    decode_from_agent,
    decode_from_cloud,
    decode_from_helper,
    decode_to_helper,
    encode,
    pack,
    unpack,
    unpack_whole,
)
from sottovoce.network.protocol.collected import ContributionTotals
from sottovoce.network.protocol.helper_machine import HelperMachine
from sottovoce.network.protocol.messages import Code, Hello, Masked, State, Welcome
from sottovoce.network.protocol.receipt import ReceiptSigner
from sottovoce.network.round_arithmetic import Rounds, noisy_sigma
from sottovoce.network.runner import CloudRunner, Handlers, Outcome, Runner
from sottovoce.network.setup import make_config, setup_of
from sottovoce.network.transport.helper_link import HelperLink
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Released, Sampler, SecureSampler
from sottovoce.privacy.trust import ViewName
from sottovoce.problem.agents import Array
from sottovoce.problem.problem import Problem
from sottovoce.study.noise import FALSE_ALARM
from sottovoce.study.released_outputs import agent_columns

_KEY = bytes(32)  # signs the receipts of both halves

StateOverride = Callable[[int], Array | None]
"""The states of all agents in round k in place of their own iterates; NaN for those that keep
theirs, None if all do."""

Crash = tuple[int, StateOverride]
"""The round after whose contribution agents crash, to begin again with a state saved two rounds
before, and what overrides their states from then on."""


@final
class Keys:
    """Keys of the helper and of every connection, as an authority would have certified them."""

    def __init__(self, parties: tuple[tuple[int, ...], ...]) -> None:
        key, signing = X25519PrivateKey.generate(), new_key()
        agents = [X25519PrivateKey.generate() for _ in parties]
        identities = [
            Identity(mask=public_key(agent), agents=tuple(range(i, i + 1) for i in party))
            for agent, party in zip(agents, parties, strict=True)
        ]
        self.helper = HelperKeys(key, signing, lambda: identities)
        self._agents, self._helper, self._parties = agents, public_key(key), parties
        # Signatures are random: repeated in another run, they must be the same bytes.
        self.sign = cache(self.helper.sign)

    def masker(self, peer: int) -> Masker:
        """Return what the agents of a connection mask with after they have started."""
        public = public_key(self._agents[peer])
        secret = Secret(self._agents[peer], agent=public, helper=self._helper)
        return Masker(secret, public, self._parties[peer])


@final
@dataclass(slots=True, kw_only=True, eq=False)
class Played:
    """One run: what agents contributed from, and what each party received."""

    states: Array  # x(k) that agents contributed from, one row per round
    releases: list[Released] = field(default_factory=list)  # what was released, round by round
    frames: list[tuple[int, bytes]] = field(default_factory=list)  # of the cloud, by connection
    # every masked contribution as a split cloud has seen it: connection, round, bytes
    masked: list[tuple[int, int, bytes]] = field(default_factory=list)
    # per round, what is left when the split cloud has taken the masks off, in grid steps
    sums: list[Integers] = field(default_factory=list)
    # per round, the noise that the helper has drawn: its answer without the masks
    noise: list[Integers] = field(default_factory=list)

    @property
    def values(self) -> Array:
        """The released outputs, one row per round."""
        return np.array([released.values for released in self.releases])

    def noisy_sums(self, half: ViewName) -> Integers:
        """Return the noisy sums that half of a split cloud faces, by round, in grid steps."""
        if half == "cloud":
            return np.array(self.sums)
        return np.array([r.multiples for r in self.releases]) + np.array(self.noise)


@final
class Loopback:
    """Runs of one plan, one after the other, with one sampler.

    The agent, from 1, has a connection of its own; ``helper`` adds the noise of a split cloud's
    other half.
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
    ) -> None:
        config = make_config(plan, algorithm, rounds=rounds, noise="secure", run_id="audit")
        self.setup = setup_of(plan, config)
        self.sampler, self.rounds = sampler, Rounds(plan, algorithm, sampler, rounds)
        others = [index for index in range(problem.agents) if index != agent - 1]
        parties = [[agent - 1], others] if others else [[agent - 1]]
        self.groups = tuple(AgentGroup.of_problem(problem, party) for party in parties)
        columns = np.arange(problem.cloud.lower().size)
        attacked = agent_columns(problem.cloud, agent)
        self.columns = (columns[attacked], np.delete(columns, attacked))
        self.steps: dict[int, LocalRound] = {}
        self.keys = Keys(tuple(group.agents for group in self.groups))
        self.masks: Integers
        """The sum of masks that noise was added to last: the helper knows it."""
        self._noise = SecureSampler(noisy_sigma(plan)) if helper is None else helper
        self.answers: HelperRounds | None = None
        if self.setup.split:
            sign = self.keys.sign
            self.answers = HelperRounds(plan, config, self.keys.helper, self, sign=sign)
        self.masked_totals = ContributionTotals(plan.cloud.sums.count, skip=MASK_HEAD)
        self.noisy = np.flatnonzero(plan.sigma > 0)

    def blind(self, residues: Integers) -> Integers:
        """Add the helper's noise to a sum of masks."""
        self.masks = residues.copy()
        return self._noise.blind(residues)

    def play(
        self,
        override: StateOverride = lambda k: None,
        *,
        crash: Crash | None = None,
        absent: Container[int] = (),
        sampler: Sampler | None = None,
    ) -> Played:
        """Play a run from the agents' starts to its end.

        ``crash`` is one of the first connection's agents, of a split cloud; in ``absent`` rounds
        the first connection's contributions are lost; ``sampler`` adds the noise of this run.
        """
        self.rounds.restart(sampler or self.sampler)
        return _Run(self, override, crash, absent).play()


@final
class _Run:
    """One run: the store and the connections of its cloud; frames wait in a queue."""

    def __init__(
        self,
        loopback: Loopback,
        override: StateOverride,
        crash: Crash | None,
        absent: Container[int],
    ) -> None:
        self.loopback, self.override, self.absent = loopback, override, absent
        self.crash, self.crashed = crash, False
        self.queue: deque[Callable[[], object]] = deque()
        setup, self.digests = loopback.setup, dict[int, bytes]()
        states = sum(columns.size for columns in loopback.columns)
        self.outcome, self.played = Outcome(), Played(states=np.empty((setup.rounds, states)))
        receipts = ReceiptSigner(_KEY, setup.config_hash)
        self.cloud = CloudMachine(setup, receipts, self.digests.get, straggler="fallback")
        self.runner = CloudRunner(self.cloud, loopback.rounds, self, self.outcome)
        self.runner.server, self.runner.later = self, self._later
        self.runner.alarm = lambda *_: None  # there is no clock
        if loopback.answers is not None:
            self._join_helper(loopback.answers)
        starts = [
            Memory(x=start, answer=start) for start in (pack(g.start) for g in loopback.groups)
        ]
        self.agents = [self._make_machine(peer, start) for peer, start in enumerate(starts)]
        self.runners = [self._make_runner(peer) for peer in range(len(starts))]
        self.saved = [starts[0]]

    def play(self) -> Played:
        for peer in range(len(self.agents)):
            self._connect(peer)
        self._drain()
        while self.absent and self.cloud.phase is CloudPhase.COLLECTING:
            self.runner.on(self.cloud.deadline, self.cloud.round)
            self._drain()
        if self.outcome.failure is not None:
            raise self.outcome.failure
        return self.played

    def commit(self, record: Record, released: Released) -> None:
        """Keep a round."""
        self.played.releases.append(released)
        self.digests[record.k] = record.digest

    def end(self, status: str, reason: str = "") -> None:
        """The run is over."""

    def incident(self, code: Code, agents: tuple[int, ...], k: int) -> None:
        """Fail on any refusal, but of a failed run and of a state sent anew after a crash."""
        if code is not Code.FAILED and not (self.crashed and code is Code.CONFLICT):
            raise AssertionError(f"an honest message was refused: {code}")

    def post(self, action: Send) -> None:
        """Send a message of the cloud's."""
        frame = encode(action.message)
        for peer in action.peers:
            self.played.frames.append((peer, frame))
            self._later(self._agent_receives, peer, frame)

    def disconnect(self, peer: int) -> None:
        """A connection ends with the run."""

    def _later(self, call: Callable[..., object], *arguments: object) -> None:
        self.queue.append(partial(call, *arguments))

    def _drain(self) -> None:
        while self.queue:
            self.queue.popleft()()

    def _connect(self, peer: int) -> None:
        machine = self.agents[peer]
        self.cloud.connect(peer, frozenset(machine.agents))
        self.runners[peer].on(machine.connected)

    def _join_helper(self, answers: HelperRounds) -> None:
        digests: dict[int, bytes] = {}
        helper = HelperMachine(lambda text: answers, _KEY, digests.get)

        def answer(action: AnswerRound) -> list[Action]:
            row = answers.answer(action)
            digests[row.k] = row.digest
            self.played.noise.append(unpack_whole(row.release) - self.loopback.masks)
            return helper.committed(row)

        def to_cloud(action: Send) -> None:
            self._later(lambda frame: link.hear(decode_from_helper(frame)), encode(action.message))

        def receive(frame: bytes) -> None:
            runner.on(helper.receive, 1, decode_to_helper(frame))

        handlers: Handlers = {AnswerRound: answer, Send: to_cloud}
        runner = Runner("helper", handlers, self.outcome, journal=self)
        link = HelperLink(
            self.loopback.setup.config,
            lambda message: self._later(receive, encode(message)),
            lambda full, receipt: None,
            self._later,
        )
        link.answered, link.pledged = self._remove_masks, self.runner.pledged
        self.runner.link = link
        helper.connect(1)
        link.hear(None)

    def _remove_masks(self, full: Commit, answer: bytes) -> None:
        """The cloud takes the masks off."""
        total = self.loopback.masked_totals(full.parts)[self.loopback.noisy]
        self.played.sums.append(total - unpack_whole(answer))
        self.runner.answered(full, answer)

    def _make_machine(self, peer: int, memory: Memory) -> AgentMachine:
        """The machine of agents that start from a saved memory."""
        masker = self.loopback.keys.masker(peer) if self.loopback.setup.split else None
        agents, steps = self.loopback.groups[peer].agents, partial(_OverriddenRound, self, peer)
        return AgentMachine(agents, memory, lambda welcome: None, steps, masker)

    def _make_runner(self, peer: int) -> Runner:
        handlers: Handlers = {
            Apply: lambda action: None,
            Save: partial(self._save, peer),
            SendUp: partial(self._send_up, peer),
            Finish: lambda action: None,
            Stop: lambda action: None,  # the run failed
        }
        return Runner("agent", handlers, self.outcome)

    def _agent_receives(self, peer: int, frame: bytes) -> None:
        self.runners[peer].on(self.agents[peer].hear, decode_from_cloud(frame))

    def _cloud_receives(self, peer: int, frame: bytes) -> None:
        message = decode_from_agent(frame)
        if isinstance(message, Masked):
            self.played.masked.append((peer, message.round, message.values))
        self.runner.on(self.cloud.receive, peer, message)

    def _save(self, peer: int, action: Save) -> None:
        if peer == 0:
            self.saved = [*self.saved[-2:], action.memory]

    def _send_up(self, peer: int, action: SendUp) -> None:
        message = action.message
        if isinstance(message, State):  # of a release of states
            x = self.state(peer, message.round, unpack(self.agents[peer].memory.x))
            message = State(round=message.round, x=pack(x))
        if not peer and not isinstance(message, Hello) and message.round in self.absent:
            return
        self._later(self._cloud_receives, peer, encode(message))
        if self.crash is None or peer > 0 or not isinstance(message, Masked):
            return
        if message.round == self.crash[0]:
            (_, self.override), self.crash, self.crashed = self.crash, None, True
            self._later(self._reconnect)

    def _reconnect(self) -> None:
        """Agents that crashed begin with an old state."""
        self.agents[0] = self._make_machine(0, self.saved[0])
        self.cloud.disconnect(0)
        waiting, self.queue = self.queue, deque()
        self._connect(0)
        self._drain()  # before any other message: the round is still open
        self.queue = waiting

    def state(self, peer: int, k: int, x: Array) -> Array:
        """The agents' states of round k: x, unless the game overrides them."""
        columns, overridden = self.loopback.columns[peer], self.override(k)
        if overridden is not None and not np.isnan(overridden[columns]).all():
            x = np.where(np.isnan(overridden[columns]), x, overridden[columns])
        self.played.states[k - 1, columns] = x
        return x


@final
class _OverriddenRound:
    """The agents' half of a run, in a game that overrides their states."""

    def __init__(self, run: _Run, peer: int, welcome: Welcome) -> None:
        steps = run.loopback.steps
        if peer not in steps:
            steps[peer] = LocalRound(run.loopback.groups[peer], welcome)
        self._run, self._peer, self._local = run, peer, steps[peer]
        self.keeps, self.begin = self._local.keeps, self._local.begin

    def contributions(self, x: Array) -> Integers | None:
        """What is contributed by agents that begin at x."""
        k = self._run.agents[self._peer].memory.round + 1
        return self._override_state(k, x, self._local.contributions(x))

    def __call__(self, k: int, *prices: Array, proximal: Array, since: int) -> LocalStep:
        """Take the step of round k."""
        step = self._local(k, *prices, proximal=proximal, since=since)
        return replace(step, values=self._override_state(k + 1, step.x, step.values))

    def _override_state(self, k: int, x: Array, values: Integers | None) -> Integers | None:
        """What is contributed in round k, of the states that the game has for it."""
        if values is None or k > self._run.loopback.setup.rounds:
            return values
        state = self._run.state(self._peer, k, x)
        return values if state is x else self._local.contributions(state)


@final
class Replayed(Sampler):
    """Releases what was released before, whatever the values."""

    def __init__(self, releases: Iterable[Released]) -> None:
        self._releases = iter(releases)
        self.values: list[ArrayLike] = []
        """What it was to add noise to."""

    def release(self, values: ArrayLike) -> Released:
        """Return the next release of the run that is played again."""
        self.values.append(values)
        return next(self._releases)

    def release_multiples(self, multiples: Integers) -> Released:
        """Likewise."""
        return self.release(multiples)

    release_modular = release_multiples


def find_absence_leak(loop: Loopback, worlds: Sequence[Array]) -> str:
    """Return what counts in rounds that an agent misses besides public figures, "" for nothing.

    In the second half of a run the contributions of the first connection are lost. Played again
    with the same releases, all others do the same whatever that agent does: so what the noise is
    added to must be the same, too.
    """
    half = loop.setup.rounds // 2
    absent, values = range(half + 1, loop.setup.rounds + 1), []
    releases = loop.play(absent=absent).releases
    for states in worlds:
        sampler = Replayed(releases)
        loop.play(partial(_always, states), absent=absent, sampler=sampler)
        values.append(np.array(sampler.values[half:]))
    same = np.array_equal(values[0], values[1])
    return "" if same else "what an agent did before rounds that it missed"


def _always(states: Array, _: int) -> Array:
    return states


def find_leak(loop: Loopback, played: Played, lower: Array, upper: Array) -> str:
    """Return what the messages of a run reveal besides its releases, "" for nothing."""
    generator = np.random.default_rng(len(played.states))
    states = generator.uniform(lower, upper, (len(played.states) + 1, lower.size))
    other = loop.play(lambda k: states[k - 1], sampler=Replayed(played.releases))
    if len(other.frames) != len(played.frames):
        return "how many messages there are"
    for (peer, frame), (other_peer, other_frame) in zip(played.frames, other.frames, strict=True):
        if (peer, frame) != (other_peer, other_frame):
            return _describe_difference(decode_from_cloud(frame), decode_from_cloud(other_frame))
    return ""


def _describe_difference(first: Any, second: Any) -> str:
    if type(first) is not type(second):
        return "which messages there are"
    fields = [f for f in first.__struct_fields__ if getattr(first, f) != getattr(second, f)]
    return f"{', '.join(fields)} of a {type(first).__name__.lower()} message"


def masks_reused(masked: Iterable[tuple[int, int, bytes]], parties: tuple[Party, ...]) -> bool:
    """Whether two contributions of a connection are behind one mask, repeated messages apart.

    Their difference is then one of contributions, which lies in a known range, 0 where two rounds
    have the same contribution; behind different masks it is any number of 64 bits.
    """
    for peer, party in enumerate(parties):
        said = dict.fromkeys((k, data) for sender, k, data in masked if sender == peer)
        sent = [data for _, data in said]
        width = (party.most - party.least).astype(np.float64)
        chance = float(np.prod(np.minimum(1.0, (2 * width + 1) / 2.0**64)))
        if chance * len(sent) ** 2 > FALSE_ALARM / 100:
            continue  # ranges so wide that even new masks would look like old ones
        rows = np.array([unpack_whole(data) for data in sent]).reshape(-1, width.size)
        for i in range(len(rows) - 1):
            distance = np.abs((rows[i + 1 :] - rows[i]).astype(np.float64))
            if np.any(np.all(distance <= width, axis=1)):
                return True
    return False
