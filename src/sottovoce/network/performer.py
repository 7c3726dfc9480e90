"""Does what the cloud's machine asks for: releases rounds, sends, refuses, and ends the run."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import final

from sottovoce.errors import SottovoceError
from sottovoce.network.attendance import Attendance
from sottovoce.network.errors import CrashedError, DivergedError, HaltedError
from sottovoce.network.observe.logs import LogRateLimiter, note
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.outcome import Outcome
from sottovoce.network.protocol.actions import (
    Action,
    Close,
    Commit,
    Halt,
    Incident,
    Meet,
    Record,
    Send,
)
from sottovoce.network.protocol.cloud import CloudMachine, CloudPhase
from sottovoce.network.protocol.messages import Done
from sottovoce.network.release import Release
from sottovoce.network.store import CloudStore
from sottovoce.network.transport.helper_link import HelperLink
from sottovoce.network.transport.server import Server


@final
class Performer:
    """Carries out actions, each to its end: none of them waits, so rounds cannot interleave.

    Args:
        machine: whose actions they are.
        release: makes a round that may be sent.
        store: keeps incidents, and how the run ended.
        outcome: hears of the end.
        metrics: counts.
        attendance: keeps who held rounds up.
        deadline: seconds after which last words count again; None to wait for everybody.
        apply_after: seconds from the end until answers are applied.
    """

    def __init__(
        self,
        machine: CloudMachine,
        release: Release,
        store: CloudStore,
        outcome: Outcome,
        *,
        metrics: Metrics,
        attendance: Attendance,
        deadline: float | None,
        apply_after: float,
    ) -> None:
        self.server: Server
        self.link: HelperLink | None = None
        self._machine = machine
        self._release = release
        self._store = store
        self._outcome = outcome
        self._metrics = metrics
        self._attendance = attendance
        self._deadline = deadline
        self._apply_after = apply_after
        self._timer: asyncio.TimerHandle | None = None
        self._log = LogRateLimiter()

    def start(self) -> None:
        """The cloud listens: agents that were there before it was restarted may be held, too."""
        if self._machine.phase is CloudPhase.DONE:
            self._finish()
        elif self._machine.last is not None:
            self._set_deadline()

    def stop(self) -> None:
        """Hold nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def perform(self, actions: list[Action]) -> None:
        """Do what the machine asks for; what goes wrong ends the run."""
        if not actions:
            return  # as for every contribution to a round but the last
        queue = deque(actions)
        try:
            while queue:
                queue.extend(self._do(queue.popleft()))
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, SottovoceError):
            self._outcome.fail(error)
            return
        # Half a round must not linger: end here, and a restart continues from the store.
        self._outcome.fail(CrashedError(f"the cloud failed with {type(error).__name__}"))
        raise error

    def _do(self, action: Action) -> list[Action]:
        match action:
            case Send():
                self._send(action)
            case Close():
                self.server.disconnect(action.peer)
            case Commit():
                if self.link is None:
                    return self._commit(action)
                self.link.ask(action)  # goes on with ``answered``
            case Meet():
                assert self.link is not None  # noqa: S101  only a split cloud introduces agents
                self.link.meet(action)
            case Incident():
                self._metrics.refused[action.code] += 1
                self._store.incident(action.code, action.agents, action.k)
                self._log.incident(action.code.value, action.agents, action.k)
            case Halt():
                self._halt(action)
        return []

    def answered(self, full: Commit, answer: bytes) -> None:
        """The helper has answered what it was asked about a round."""
        try:
            actions = self._commit(full, answer)
        except Exception as error:
            self._failed(error)
        else:
            self.perform(actions)

    def pledged(self, peer: int, pledge: bytes | None) -> None:
        """The helper has signed what is asked of a connection, or does not know its key."""
        self.perform(self._machine.pledged(peer, pledge))

    def _commit(self, full: Commit, answer: bytes = b"") -> list[Action]:
        """The way of a round from the last word to the first byte sent: all else comes after."""
        try:
            record = self._release(full, self._machine.last, answer)
        except DivergedError as error:
            return self._diverged(error)
        last = tuple(sorted(full.held)) or self.server.spoke
        asyncio.get_running_loop().call_soon(self._after, record, last)
        return self._machine.committed(record, self._apply_after)

    def _after(self, record: Record, last: tuple[int, ...]) -> None:
        """A round was sent: draw noise, keep the books."""
        try:
            self._release.prepare()
            self._attendance.completed(last)
            self._metrics.round(held=len(record.held))
            note("round", level=logging.DEBUG, round=record.k, held=len(record.held))
            if self._machine.phase is CloudPhase.DONE:
                self._finish()
            else:
                self._set_deadline()
        except Exception as error:
            self._failed(error)

    def _finish(self) -> None:
        if self._store.status != "done":
            self._store.end("done")
        self._outcome.end()
        note("done", rounds=self._store.released)

    def _send(self, action: Send) -> None:
        self.server.post(action)
        if isinstance(action.message, Done):
            for peer in action.peers:
                self._outcome.tell(self._machine.agents_of(peer))

    def _halt(self, action: Halt) -> None:
        self._store.end(
            "halted",
            f"agent {action.agents[0]} holds a receipt of round {action.k} that the store does "
            "not know, so the store was rolled back",
        )
        self._outcome.fail(HaltedError(f"the run is halted for good: {self._store.reason}"))

    def _diverged(self, error: DivergedError) -> list[Action]:
        """A run without an outcome ends for good; agents hear that, and never a wild price."""
        self._store.end("failed", f"{error.reason} in round {error.k:,}")
        self._outcome.fail(error)
        return self._machine.failed()

    def _set_deadline(self) -> None:
        if self._deadline is None:
            return
        self.stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._deadline, self._time_is_up, self._machine.round)

    def _time_is_up(self, k: int) -> None:
        self.perform(self._machine.deadline(k))
        if self._machine.round == k and self._machine.phase is CloudPhase.COLLECTING:
            self._set_deadline()  # nobody has spoken yet
