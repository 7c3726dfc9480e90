"""An agent as a process: connects, takes its steps locally, and reconnects after any failure."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final, final

import msgspec
import numpy as np

from sottovoce.arguments import instance, path_of, websocket_address
from sottovoce.errors import NetworkError, SottovoceError
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.config import SeriesRun, read_config, welcome_objection
from sottovoce.network.failures import RefusedError
from sottovoce.network.identity.tls import CLOUD
from sottovoce.network.journal import MEMORY, Journal
from sottovoce.network.local_round import LocalRound, Which
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.actions import Action, Apply, Finish, Memory, Save, Stop
from sottovoce.network.protocol.agent_machine import AgentMachine
from sottovoce.network.protocol.codec import decode_from_cloud, pack, unpack
from sottovoce.network.protocol.messages import Code, Welcome
from sottovoce.network.runner import Handlers, Outcome, Runner
from sottovoce.network.transport.client import LONGEST_PAUSE, Client
from sottovoce.network.transport.limits import CONFIG_BYTES
from sottovoce.privacy.trust import TRUST_STATEMENTS
from sottovoce.problem.groups import Array

if TYPE_CHECKING:
    from sottovoce.network.masks import HelperKnown


_REMEDIES: Final[Mapping[Code, str]] = {
    Code.NOT_YOURS: "the certificate is for other agents; check the keys and the agent's number",
    Code.HALTED: "the run is over for good; ask the operator for a new one",
    Code.FAILED: "the run ended without an answer; ask the operator for a new one",
    Code.REPLACED: "another process has these keys and took over; stop one of the two",
    Code.REVOKED: "ask the operator for a new certificate",
}
"""What to do about a refusal, besides that which depends on the agent's files."""

_APART: Final = (
    "no state is both allowed locally and in the public bounds: the nearest public one takes part "
    "in all rounds, and the fallback is applied"
)
_UNSAFE: Final = (
    "beside answers of others it may violate a constraint: let it contribute the least that the "
    "agent can where a sum has an upper limit, the most where it has a lower one"
)
_ABOVE: Final = (
    "while this agent is absent the cloud counts its public fallback, the point of its public box "
    "nearest 0, of which less may enter a sum with an upper limit, or more one with a lower limit: "
    "let the own fallback be on the safe side of it"
)
_GAP: Final = "the saved state was lost or is an older copy: the fallback is applied at the end"

_decoder = msgspec.msgpack.Decoder(Memory)
_encoder = msgspec.msgpack.Encoder()

OnState = Callable[[int, Array, Which], Awaitable[None] | None]
"""Called with k, the setpoint and what it is: drive the device here.

In a run that keeps constraints (``feasible``) it is the "fallback" when the agent joins, after
every step and at the end, unless the answer is confirmed and lacks no round: then the "answer",
once, when all agents apply it. In other runs it is the "average" after every step: averaged states
if the algorithm averages, because what an agent sends while it searches is several times farther
from the optimum. Agents whose own sets miss the public domain get the fallback in any run. The run
goes on whatever it raises; the log tells of it.
"""


Prepare = Callable[[SeriesRun], AgentGroup]
"""Called when a run of a series opens; returns all agents of the connection as they are now.

If it raises, the agents take part as they were before: that it failed may be private.
"""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentResult:
    """Where an agent ended, in the only run or in one of a series."""

    x: Array  # the answer, of all agents one after the other: averaged states, or the last
    last_x: Array
    price: Array  # the answer's, of all sums; of the constraints with a release of states
    rounds: int  # the last that it saw
    failed: int  # agent-rounds of this process in which an agent's own code failed
    deviation: Array  # of x by noise, as ``LocalRound.deviation`` has it; NaN if not known
    confirmed: bool | None  # passed the test at the end, and lacks no round; None: no test
    setpoint: Array  # what is to be applied: the answer or the fallback
    agents: tuple[int, ...]  # those of the connection that took part, from 1
    run: SeriesRun | None = None  # which run of the series it was


OnResult = Callable[[AgentResult], None]
"""Called at the end of every run of a series."""


@final
class AgentStore(Journal):
    """An agent's memory, ``start`` if nothing was saved, in a file of one agent at a time.

    A commit survives the death of the process. After a loss of power it may be some rounds old:
    the agent's average then has a gap, which the cloud's welcome tells it.
    """

    def __init__(self, path: str | os.PathLike[str], start: Memory) -> None:
        super().__init__(path, "agent", durable=False)
        body = self._notes.pop(MEMORY, None)
        self.memory = start if body is None else _decoder.decode(body)
        alone = not self.memory.runs  # of a series a run may have fewer agents
        if len(self.memory.x) > len(start.x) or (alone and len(self.memory.x) < len(start.x)):
            self.close()
            raise NetworkError(f"{self.name} was saved by other agents: choose another file")

    def save(self, memory: Memory) -> None:
        """Keep a memory; after a DiskError the one before is still there."""
        self.put(MEMORY, _encoder.encode(memory))
        self.memory = memory


@final
@dataclass(eq=False, repr=False)
class Agent:
    """An agent, or a gateway that hosts several.

    Args:
        group: the agents behind this connection, with their objectives; in a series one that was
            read from a folder is read anew for every run.
        cloud: the cloud's address, ``wss://host:port``.
        keys: folder with ca.pem, cert.pem and key.pem.
        saved: file of its state, from which it continues after a restart.
        on_state: callback with the setpoint to apply.
        prepare: callback for the agents' part in a run of a series, in place of the folder.
        on_result: callback with the end of every run of a series.
        allow_simulated: take part in a run whose noise is simulated, hence not private.
        longest_pause: seconds between attempts to reconnect, at most.
    """

    group: AgentGroup
    _: KW_ONLY
    cloud: str
    keys: str | os.PathLike[str]
    saved: str | os.PathLike[str]
    on_state: OnState | None = None
    prepare: Prepare | None = None
    on_result: OnResult | None = None
    allow_simulated: bool = False
    longest_pause: float = LONGEST_PAUSE

    def __post_init__(self) -> None:
        instance("group", self.group, AgentGroup, "sv.network.AgentGroup.of_file(...)")
        websocket_address("cloud", self.cloud)
        self._keys, self._path = path_of("keys", self.keys), path_of("saved", self.saved)
        self._helper: HelperKnown | None = None
        self._failed = 0
        self._round: LocalRound | None = None
        self._series: SeriesRun | None = None
        self._part = self.group  # those who take part in the run
        self._result: AgentResult
        self._price = np.zeros(0)
        self._confirmed: bool | None = None
        self._machine: AgentMachine

    async def run(self) -> AgentResult:
        """Take part until the run is done, or the last run of a series.

        Raises:
            RefusedError: the cloud refuses this agent, or is not the cloud it used to be.
            DiskError: its state cannot be saved.
            BusyError: another process of this agent is running.
            ExpiredError: its certificate has expired.
        """
        split = (self._keys / "helper.pem").exists()
        client = Client(
            self.cloud,
            self._keys,
            decode_from_cloud,
            limit=self._frame_limit(),
            longest_pause=self.longest_pause,
            role=CLOUD if split else "",
        )
        if split:
            from sottovoce.network.masks import HelperKnown  # loads cryptography

            self._helper = HelperKnown(self._keys, self.group.agents)
        note("trust", statement=TRUST_STATEMENTS["split" if split else "one"])
        start = pack(self.group.start)
        saved = AgentStore(self._path, Memory(x=start, answer=start))
        masker = None if self._helper is None else self._helper.masker
        self._machine = AgentMachine(
            self.group.agents, saved.memory, self._objection, self._join, masker
        )

        def stop(action: Stop) -> None:
            raise RefusedError(action.code, _refusal(action, saved))

        handlers: Handlers = {
            Apply: self._apply,
            Save: lambda action: saved.save(action.memory),
            Finish: self._finish,
            Stop: stop,
        }
        try:
            await Runner("agent", handlers, Outcome()).follow(client, self._machine)
        finally:
            saved.close()
        return self._result

    def _ended(self, memory: Memory) -> AgentResult:
        x = unpack(memory.answer)
        deviation, setpoint = np.full(x.size, np.nan), x
        if self._round is not None:
            deviation = self._round.deviation(x, self._price)
            setpoint, _ = self._round.applied(x, self._confirmed)
        return AgentResult(
            x=x,
            last_x=unpack(memory.x),
            price=self._price,
            rounds=memory.round,
            failed=self._failed,
            deviation=deviation,
            confirmed=self._confirmed,
            setpoint=setpoint,
            agents=self._part.agents,
            run=self._series,
        )

    def _join(self, welcome: Welcome) -> LocalRound:
        first = self._round is None
        self._round = LocalRound(self._part, welcome)
        if first:
            self._warn(self._round)
        number = {} if self._series is None else {"run": self._series.number}
        note("joined", agents=self._part.agents, round=welcome.round, **number)
        if self._round.keeps and self._machine.memory.missed:
            note("answer-gap", level=logging.WARNING, reason=_GAP)
        return self._round

    def _apply(self, action: Apply) -> Awaitable[None] | None:
        if action.failed:
            level = logging.DEBUG if self._failed else logging.ERROR
            failed = [self._part.agents[place] for place in action.failed]
            note("state-substituted", level=level, agents=failed, round=action.k)
            self._failed += len(action.failed)
        return None if self.on_state is None else self._drive(action.k, action.answer)

    async def _finish(self, action: Finish) -> list[Action]:
        self._price, self._confirmed = action.price, action.confirmed
        if action.confirmed:
            await asyncio.sleep(action.wait)
        if action.confirmed is not None:
            await self._drive(self._machine.memory.round, unpack(self._machine.memory.answer))
        self._result = self._ended(self._machine.memory)
        if self._series is not None and self.on_result is not None:
            try:
                self.on_result(self._result)
            except Exception as error:
                note("on-result-failed", level=logging.ERROR, error=type(error).__name__)
        if not action.again:
            return []
        self._round, self._failed = None, 0
        return self._machine.next_run()

    async def _drive(self, k: int, answer: Array) -> None:
        """Call ``on_state`` with what is to be applied after round k."""
        if self.on_state is None:
            return
        if self._round is not None:
            setpoint, which = self._round.applied(answer, self._confirmed)
        else:  # the run ended while this process was away
            start, safe = self.group.start, self.group.fallback
            setpoint, which = np.where(np.isnan(safe), start, safe), "fallback"
        try:
            pending = self.on_state(k, setpoint, which)
            if inspect.isawaitable(pending):
                await pending
        except Exception as error:
            # A device that refuses a setpoint must not stop the run, which would reveal it.
            note("on-state-failed", level=logging.ERROR, error=type(error).__name__, round=k)

    def _warn(self, steps: LocalRound) -> None:
        """Log locally, and send to no one, where a fallback is applied or unsafe."""
        unsafe, above = steps.unsafe() if steps.keeps else ([], [])
        for event, agents, words in (
            ("set-outside-domain", steps.outside, _APART),
            ("fallback-unsafe", unsafe, _UNSAFE),
            ("fallback-above-public", above, _ABOVE),
        ):
            if agents:
                note(event, level=logging.WARNING, agents=agents, reason=words)

    def _objection(self, welcome: Welcome) -> str | None:
        """What is wrong with a run: with who adds the noise an agent goes by its own keys."""
        try:
            group = self._prepared(read_config(welcome.config).series)
        except SottovoceError as error:
            return str(error)
        wrong = welcome_objection(welcome, group.cloud, allow_simulated=self.allow_simulated)
        memory, run = self._machine.memory, self._series
        if run and not memory.config and memory.runs.get(run.origin, 0) >= run.number:
            wrong = "the series has gone back to an earlier run: its store was rolled back"
        if wrong is not None:
            return wrong
        self.group = group
        self._part = group.some([a for a in group.agents if a not in set(welcome.sits_out)])
        runs = {} if self._series is None else {self._series.origin: self._series.number}
        self._machine.begin(self._part.start, runs)
        split = read_config(welcome.config).split
        if self._helper is None:
            return "the run has a helper, and these keys know none" if split else None
        if not split or welcome.states:
            return "these keys ask for a helper, and the run has none: the cloud would see all"
        if not self._helper.pledged(hashlib.sha256(welcome.config.encode()).digest(), welcome):
            return "the helper has not signed what the cloud asks for"
        return None

    def _prepared(self, run: SeriesRun | None) -> AgentGroup:
        """The agents as they are in a run: of a series their private data are read anew."""
        if run is None or (self._series == run and self._round is not None):
            return self.group
        self._series = run
        if self.prepare is None:
            return self.group.renewed(run.public)
        try:
            group = self.prepare(run)
        except Exception as error:
            note("private-data-unread", level=logging.ERROR, error=type(error).__name__)
            return self.group
        same = group.agents == self.group.agents
        return instance("prepare", group if same else None, AgentGroup, "the same agents")

    def _frame_limit(self) -> int:
        """What an honest cloud's largest message holds at most."""
        cloud, size = self.group.cloud, self.group.start.size
        return CONFIG_BYTES + 64 * cloud.sums.count + 32 * (size + 1) * (cloud.rows + 1)


def _refusal(action: Stop, saved: AgentStore) -> str:
    """Why an agent stops, and the remedy."""
    why = f"{action.detail} ({action.code})"
    if action.code is Code.OTHER_RUN and saved.memory.config:
        return (
            f"{why}: {saved.name} is of another run, after {saved.memory.round:,} rounds; if that "
            "run is over, move the file away and start again, if it is not, look for its cloud"
        )
    remedy = _REMEDIES.get(action.code)
    return why if remedy is None else f"{why}: {remedy}"
