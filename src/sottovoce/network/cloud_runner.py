"""What a cloud does with its machine's actions: releases rounds, sends, and ends the run."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol, final

from sottovoce.network.failures import DivergedError
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.actions import Action, Close, Commit, Meet, Record, Send
from sottovoce.network.protocol.cloud_machine import CloudMachine, CloudPhase
from sottovoce.network.protocol.messages import Code
from sottovoce.network.round_arithmetic import Rounds
from sottovoce.network.runner import Handlers, Outcome, RunLog, Runner, make_durable
from sottovoce.network.transport.helper_link import HelperLink
from sottovoce.privacy.fence import Fence
from sottovoce.privacy.sampler import Released


class RoundStore(RunLog, Protocol):
    """Where a cloud's rounds are written: a ``CloudStore``, or in memory."""

    def commit(self, record: Record, released: Released) -> None:
        """Write a round durably."""


class Connections(Protocol):
    """Where messages go: a ``Server``, or queues."""

    def post(self, action: Send) -> None:
        """Send a message to each of its peers."""

    def disconnect(self, peer: int) -> None:
        """Close a connection once everything sent on it has left."""


@final
class CloudRunner(Runner):
    """Carries out a cloud's actions; none of them waits, so rounds cannot interleave.

    Args:
        machine: whose actions they are.
        rounds: adds up, adds the noise and steps.
        store: where rounds are written.
        outcome: hears of the end.
        refused: counts refusals.

    Attributes:
        server: where messages go.
        fence: of the run in the ledger, if there is one.
        link: asks the helper, of a split cloud.
        completed: hears of every round that was sent, and of the agents that were held in it, or
            were the last to answer.
        deadline: seconds after which last contributions are reused; None to wait for all agents.
        apply_after: seconds from the end until answers are applied.
        later: calls a function when a round was sent.
    """

    def __init__(
        self,
        machine: CloudMachine,
        rounds: Rounds,
        store: RoundStore,
        outcome: Outcome,
        *,
        refused: Counter[Code] | None = None,
    ) -> None:
        handlers: Handlers = {
            Send: self._send,
            Close: lambda action: self.server.disconnect(action.peer),
            Commit: self._ask_or_commit,
            Meet: self._meet,
        }
        super().__init__("cloud", handlers, outcome, journal=store, refused=refused)
        self.server: Connections
        self.fence: Fence | None = None
        self.link: HelperLink | None = None
        self.completed: Callable[[Record, tuple[int, ...]], None] = lambda record, last: None
        self.deadline: float | None = None
        self.apply_after = 0.0
        self.later: Callable[..., object] = call_soon
        self._machine, self._rounds, self._store = machine, rounds, store
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The cloud listens: agents that were there before it was restarted may be held, too."""
        if self._machine.phase is CloudPhase.DONE:
            self._finish()
        elif self._machine.last is not None:
            self._set_deadline()

    def stop(self) -> None:
        """Cancel the timeout."""
        if self._timer is not None:
            self._timer.cancel()

    def _ask_or_commit(self, full: Commit) -> list[Action]:
        if self.link is None:
            return self._commit(full)
        self.link.ask(full)  # goes on with ``answered``
        return []

    def _meet(self, agents: Meet) -> None:
        assert self.link is not None  # noqa: S101  only a split cloud introduces agents
        self.link.meet(agents)

    def answered(self, full: Commit, answer: bytes) -> None:
        """The helper has answered what it was asked about a round."""
        self.on(self._commit, full, answer)

    def pledged(self, peer: int, pledge: bytes | None) -> None:
        """The helper has signed what is asked of a connection, or does not know its key."""
        self.on(self._machine.pledged, peer, pledge)

    def _commit(self, full: Commit, answer: bytes = b"") -> list[Action]:
        """The way of a round from the last word to the first byte sent.

        Add up, add noise, step, write and fence: in this order, and nothing is sent before.

        Args:
            full: what was said in it.
            answer: the helper's, of a split cloud.

        Raises:
            DiskError: it cannot be written now.
            RollbackError: the ledger knows of a round that the store does not hold.
        """
        before = self._machine.last
        previous = self._machine.setup.config_hash if before is None else before.digest
        try:
            record, released = self._rounds.play(full.k, full.parts, previous, full.held, answer)
        except DivergedError as error:
            return self._diverged(error)
        commit = partial(self._store.commit, record, released)
        make_durable(commit, self.fence, record.k, record.digest)
        self.later(self.on, self._after, record, full.last)
        return self._machine.committed(record, self.apply_after)

    def _after(self, record: Record, last: tuple[int, ...]) -> list[Action]:
        """A round was sent: draw the noise of rounds to come, keep the books."""
        self._rounds.prepare()
        self.completed(record, last)
        note("round", level=logging.DEBUG, round=record.k, held=len(record.held))
        if self._machine.phase is CloudPhase.DONE:
            self._finish()
        else:
            self._set_deadline()
        return []

    def _finish(self) -> None:
        self._store.end("done")
        self._outcome.end()
        note("done", rounds=self._machine.round - 1)

    def _send(self, action: Send) -> None:
        self.server.post(action)
        self._outcome.sent(action, self._machine.agents_of)

    def _diverged(self, error: DivergedError) -> list[Action]:
        """A run without an outcome ends for good; agents hear that, and never a wild price."""
        self._store.end("failed", f"{error.reason} in round {error.k:,}")
        self._outcome.fail(error)
        return self._machine.failed()

    def _set_deadline(self) -> None:
        if self.deadline is None:
            return
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.deadline, self._time_is_up, self._machine.round)

    def _time_is_up(self, k: int) -> None:
        self.on(self._machine.deadline, k)
        if self._machine.round == k and self._machine.phase is CloudPhase.COLLECTING:
            self._set_deadline()  # no agent has answered yet


def call_soon(call: Callable[..., object], *arguments: object) -> None:
    """Call a function from the event loop, once what is going on has returned to it."""
    asyncio.get_running_loop().call_soon(call, *arguments)
