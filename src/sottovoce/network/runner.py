"""Carries out what a machine asks for, for all four roles; and how a run ends.

A machine cannot reach a socket, a file or the noise: it returns actions, and the runner of its role
does them one after the other. What a machine asks to be sent of a round comes from its
``committed``, which is called only after ``make_durable``: journal, then fence, then send is the
only way.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

from sottovoce.errors import SottovoceError
from sottovoce.network.failures import CrashedError, DivergedError, HaltedError, RefusedError
from sottovoce.network.observe.logs import LogRateLimiter, note
from sottovoce.network.protocol.actions import (
    Abandon,
    Action,
    Close,
    Commit,
    Halt,
    Incident,
    Meet,
    Reconnect,
    Record,
    Send,
    SendUp,
    Stop,
    Wait,
)
from sottovoce.network.protocol.client_machine import CONVERSING, ClientMachine, ClientPhase
from sottovoce.network.protocol.cloud_machine import CloudMachine, CloudPhase
from sottovoce.network.protocol.codec import encode
from sottovoce.network.protocol.messages import Code, Done

if TYPE_CHECKING:  # agents run without noise and a ledger
    from sottovoce.network.journal import Journal, Status
    from sottovoce.network.protocol.messages import FromCloud
    from sottovoce.network.round_arithmetic import Rounds
    from sottovoce.network.transport.client import Client
    from sottovoce.network.transport.helper_link import HelperLink
    from sottovoce.privacy.fence import Fence
    from sottovoce.privacy.sampler import Released


class RoundStore(Protocol):
    """Where a cloud's rounds, refusals and end are written: a ``CloudStore``, or in memory."""

    def commit(self, record: Record, released: Released) -> None:
        """Write a round durably."""

    def incident(self, code: Code, agents: tuple[int, ...], k: int) -> None:
        """Count a refusal."""

    def end(self, status: Status, reason: str = "") -> None:
        """End the run."""


class Connections(Protocol):
    """Where messages go: a ``Server``, or queues."""

    def post(self, action: Send) -> None:
        """Send a message to each of its peers."""

    def disconnect(self, peer: int) -> None:
        """Close a connection once everything sent on it has left."""


Handlers: TypeAlias = Mapping[
    type, Callable[[Any], list[Action] | Awaitable[list[Action] | None] | None]
]
"""What a role does with each kind of action; it returns the actions that follow."""


@final
class Outcome:
    """The end of one run, for those who wait for it; these agents, from 1, must learn of it."""

    def __init__(self, agents: Sequence[int] = ()) -> None:
        self.failure: SottovoceError | None = None
        self._uninformed = set(agents)
        self._ended, self._known = asyncio.Event(), asyncio.Event()
        if not agents:
            self._known.set()

    def end(self) -> None:
        """The last round was released."""
        self._ended.set()

    def fail(self, error: SottovoceError) -> None:
        """The run cannot go on; the first reason counts."""
        if self.failure is None:
            self.failure = error
            note("failed", level=logging.ERROR, error=type(error).__name__)
        self._ended.set()
        self._known.set()  # after a failure no agent is waited for

    def inform(self, agents: Iterable[int]) -> None:
        """The goodbye was sent to these agents: they know of the end."""
        self._uninformed.difference_update(agents)
        if not self._uninformed:
            self._known.set()

    async def wait(self, *, linger: float = 0.0) -> None:
        """Wait for the end, and ``linger`` seconds at most until every agent has heard of it."""
        await self._ended.wait()
        self._raise()
        try:
            async with asyncio.timeout(linger):
                await self._known.wait()
        except TimeoutError:
            if linger:
                note("end-missed", agents=sorted(self._uninformed))
        self._raise()

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure


class Runner:
    """Has a machine take events and carries out its actions in order: none of them interleave.

    The journal keeps incidents, and that a run was halted; a relay has none. ``handlers`` are what
    the role does besides. Whoever listens has a ``server``.
    """

    def __init__(
        self,
        role: str,
        handlers: Handlers,
        outcome: Outcome,
        *,
        journal: Journal | RoundStore | None = None,
        refused: Counter[str] | None = None,
        agents_of: Callable[[int], tuple[int, ...]] = lambda peer: (),
    ) -> None:
        self.server: Connections
        # Seconds that the next round waits for agents, and those after it.
        self.deadlines = (math.inf, math.inf)
        self.time_is_up: Callable[[int], list[Action]]  # a machine's event: of this round
        self.alarm: Callable[..., asyncio.TimerHandle | None] = call_later
        self._timer: asyncio.TimerHandle | None = None
        self._role, self._outcome, self._journal = role, outcome, journal
        self._refused = Counter[str]() if refused is None else refused
        self._agents_of = agents_of
        self._log = LogRateLimiter()
        self._handlers: Handlers = {
            Send: self._send,
            Close: lambda action: self.server.disconnect(action.peer),
            Incident: self._incident,
            Halt: self._halt,
            Stop: _stop,
            Wait: self._wait,
            **handlers,
        }

    def stop(self) -> None:
        """Cancel the timeout."""
        if self._timer is not None:
            self._timer.cancel()

    def on(self, event: Callable[..., Sequence[Action]], *arguments: object) -> None:
        """Carry out what a machine's event asks for, without waiting; an error ends the run."""
        try:
            queue = deque(event(*arguments))
            while queue:
                action = queue.popleft()
                after = self._handlers[type(action)](action)
                assert after is None or isinstance(after, list)  # noqa: S101  nothing here waits
                queue.extend(after or ())
        except Exception as error:
            self.fail(error)

    def follow(self, client: Client[FromCloud], machine: ClientMachine) -> Awaitable[None]:
        """Have a machine converse with what is above it until its run is over; errors are raised.

        Its actions may take their time.
        """

        def reconnect(action: Reconnect) -> None:
            note("reconnecting", level=logging.WARNING, code=str(action.code))
            machine.lost()

        handlers: Handlers = {
            Reconnect: reconnect,
            SendUp: lambda action: client.post(encode(action.message)),
            **self._handlers,
        }

        async def hear(message: FromCloud | None) -> bool:
            queue = deque(machine.connected() if message is None else machine.hear(message))
            while queue:
                action = queue.popleft()
                after = handlers[type(action)](action)
                if after is not None and not isinstance(after, list):
                    after = await after
                queue.extend(after or ())
            return machine.phase in CONVERSING

        return client.serve(
            hear,
            lost=machine.lost,
            progress=lambda: machine.seen[1],
            done=lambda: machine.phase is ClientPhase.DONE,
        )

    def fail(self, error: Exception) -> None:
        """End the run; half a round must not linger, and a restart continues from the journal."""
        if isinstance(error, SottovoceError):
            self._outcome.fail(error)
            return
        self._outcome.fail(CrashedError(f"the {self._role} failed with {type(error).__name__}"))
        raise error

    def _wait(self, action: Wait) -> None:
        self.stop()
        seconds, others = self.deadlines
        self.deadlines = (others, others)
        self._timer = self.alarm(seconds, self.on, self.time_is_up, action.k)

    def _send(self, action: Send) -> None:
        self.server.post(action)
        if isinstance(action.message, Done):
            self._outcome.inform(a for peer in action.peers for a in self._agents_of(peer))

    def _incident(self, action: Incident) -> None:
        self._refused[action.code.value] += 1
        if self._journal is not None:
            self._journal.incident(action.code, action.agents, action.k)
        self._log.incident(action.code.value, action.agents, action.k)

    def _halt(self, action: Halt) -> None:
        assert self._journal is not None  # noqa: S101  only a journal can be rolled back
        who = f"agent {action.agents[0]}" if action.agents else "the cloud"
        reason = (
            f"{who} holds a receipt of round {action.k} that the store does not know, so the store "
            "was rolled back"
        )
        self._journal.end("halted", reason)
        self._outcome.fail(HaltedError(f"the run is halted for good: {reason}"))


def make_durable(commit: Callable[[], None], fence: Fence | None, k: int, digest: bytes) -> None:
    """Write a round to the journal, then fence it off in the ledger: now it may be sent."""
    commit()
    if fence is not None:
        fence.rise(k, digest)


def _stop(action: Stop) -> None:
    raise RefusedError(action.code, f"{action.detail} ({action.code})")


@final
class CloudRunner(Runner):
    """Releases rounds, sends, and ends the run; no action waits, so rounds cannot interleave."""

    def __init__(
        self,
        machine: CloudMachine,
        rounds: Rounds,
        store: RoundStore,
        outcome: Outcome,
        *,
        refused: Counter[str] | None = None,
    ) -> None:
        handlers: Handlers = {
            Commit: self._commit,
            Meet: self._meet,
            Abandon: lambda action: self._fail_run(DivergedError(action.k, "no agent contributed")),
        }
        super().__init__(
            "cloud",
            handlers,
            outcome,
            journal=store,
            refused=refused,
            agents_of=machine.agents_of,
        )
        self.fence: Fence | None = None  # of the run in the ledger
        self.link: HelperLink | None = None  # asks the helper, of a split cloud
        # Hears of every round that was sent, and who was held in it, or was the last to answer.
        self.completed: Callable[[Record, tuple[int, ...]], None] = lambda record, last: None
        self.apply_after = 0.0  # seconds from the end until answers are applied
        self.later: Callable[..., object] = call_soon  # calls a function when a round was sent
        self._machine, self._rounds, self._store = machine, rounds, store
        self.time_is_up = machine.deadline

    def start(self) -> None:
        """The cloud listens; a run may have been over before it was restarted."""
        self.on(self._machine.opened)
        if self._machine.phase is CloudPhase.DONE:
            self._finish()

    def answered(self, full: Commit, answer: bytes) -> None:
        """The helper has answered what it was asked about a round."""
        self.on(self._commit, full, answer)

    def pledged(self, peer: int, pledge: bytes | None) -> None:
        """The helper has signed what is asked of a connection, or does not know its key."""
        self.on(self._machine.pledged, peer, pledge)

    def _meet(self, agents: Meet) -> None:
        assert self.link is not None  # noqa: S101  only a split cloud introduces agents
        self.link.meet(agents)

    def _commit(self, full: Commit, answer: bytes | None = None) -> list[Action]:
        """The way of a round from the last contribution to the first byte sent.

        Of a split cloud it begins with the helper's answer. Add up, take the answer off, add noise,
        step, write and fence: in this order, and nothing is sent before.
        """
        if self.link is not None and answer is None:
            self.link.ask(full)  # goes on with ``answered``
            return []
        machine = self._machine
        previous = machine.setup.config_hash if machine.last is None else machine.last.digest
        try:
            record, released = self._rounds.play(
                full.k, full.parts, previous, full.held, answer or b""
            )
        except DivergedError as error:
            return self._fail_run(error)
        commit = partial(self._store.commit, record, released)
        make_durable(commit, self.fence, record.k, record.digest)
        self.later(self.on, self._after, record, full.last)
        return machine.committed(record, self.apply_after)

    def _fail_run(self, error: DivergedError) -> list[Action]:
        """A run without an outcome ends for good; agents learn that, and get no diverged price."""
        status: Status = "unanswered" if self._machine.setup.series else "failed"
        self._store.end(status, f"{error.reason} in round {error.k:,}")
        self._outcome.fail(error)
        return self._machine.failed()

    def _after(self, record: Record, last: tuple[int, ...]) -> list[Action]:
        """A round was sent: draw later noise, update metrics, end the run after the last round."""
        self._rounds.prepare()
        self.completed(record, last)
        note("round", level=logging.DEBUG, round=record.k, held=len(record.held))
        if self._machine.phase is CloudPhase.DONE:
            self._finish()
        return []

    def _finish(self) -> None:
        self._store.end("done")
        self._outcome.end()
        note("done", rounds=self._machine.round - 1)


def call_soon(call: Callable[..., object], *arguments: object) -> None:
    """Call a function from the event loop, once what is going on has returned to it."""
    asyncio.get_running_loop().call_soon(call, *arguments)


def call_later(
    seconds: float, call: Callable[..., object], *arguments: object
) -> asyncio.TimerHandle:
    """Call a function from the event loop, so many seconds from now."""
    return asyncio.get_running_loop().call_later(seconds, call, *arguments)
