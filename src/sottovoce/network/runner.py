"""Carries out what a machine asks for, for all four roles; and how a run ends.

A machine cannot reach a socket, a file or the noise: it returns actions, and the runner of its role
does them one after the other. What a machine asks to be sent of a round comes from its
``committed``, which is called only after ``make_durable``: journal, then fence, then send is the
only way.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, final

from sottovoce.errors import SottovoceError
from sottovoce.network.failures import CrashedError, HaltedError, RefusedError
from sottovoce.network.journal import Status
from sottovoce.network.observe.logs import LogRateLimiter, note
from sottovoce.network.protocol.actions import Action, Halt, Incident, Reconnect, Send, Stop
from sottovoce.network.protocol.client_machine import ClientMachine
from sottovoce.network.protocol.messages import Code, Done
from sottovoce.privacy.fence import Fence


class RunLog(Protocol):
    """Where refusals and the end of a run are written: a ``Journal``, or in memory."""

    def incident(self, code: Code, agents: tuple[int, ...], k: int) -> None:
        """Count a refusal."""

    def end(self, status: Status, reason: str = "") -> None:
        """End the run."""


Handlers: TypeAlias = Mapping[
    type, Callable[[Any], list[Action] | Awaitable[list[Action] | None] | None]
]
"""What a role does with each kind of action; it returns the actions that follow."""


@final
class Outcome:
    """The end of one run, for those who wait for it.

    Args:
        agents: those who must hear of it, from 1.
    """

    def __init__(self, agents: Sequence[int] = ()) -> None:
        self.failure: SottovoceError | None = None
        self._agents = agents
        self._informed: set[int] = set()
        self._ended = asyncio.Event()
        self._known = asyncio.Event()
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

    def sent(self, action: Send, agents_of: Callable[[int], tuple[int, ...]]) -> None:
        """A message was sent; if it is the goodbye, its agents know of the end."""
        if isinstance(action.message, Done):
            self._informed.update(agent for peer in action.peers for agent in agents_of(peer))
            if len(self._informed) == len(self._agents):
                self._known.set()

    async def wait(self, *, linger: float = 0.0) -> None:
        """Wait for the end, and for ``linger`` seconds at most until every agent has heard of it.

        Raises:
            SottovoceError: why the run failed.
        """
        await self._ended.wait()
        self._raise()
        try:
            async with asyncio.timeout(linger):
                await self._known.wait()
        except TimeoutError:
            missed = sorted(set(self._agents) - self._informed)
            note("agents missed the end", agents=missed[:16])
        self._raise()

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure


class Runner:
    """Has a machine take events and carries out its actions in order: none of them interleave.

    Args:
        role: for messages.
        handlers: what the role does with actions of its own.
        outcome: hears of failures.
        journal: keeps incidents, and that a run was halted; a relay has none.
        refused: counts refusals.
    """

    def __init__(
        self,
        role: str,
        handlers: Handlers,
        outcome: Outcome,
        *,
        journal: RunLog | None = None,
        refused: Counter[Code] | None = None,
    ) -> None:
        self._role = role
        self._handlers: Handlers = {**handlers, Incident: self._incident, Halt: self._halt}
        self._outcome = outcome
        self._journal = journal
        self._refused = Counter[Code]() if refused is None else refused
        self._log = LogRateLimiter()

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

    async def perform_waiting(self, actions: Sequence[Action]) -> None:
        """Carry actions out, of which some take their time; what goes wrong is raised."""
        queue = deque(actions)
        while queue:
            action = queue.popleft()
            after = self._handlers[type(action)](action)
            queue.extend((await after if inspect.isawaitable(after) else after) or ())

    def fail(self, error: Exception) -> None:
        """End the run; half a round must not linger, and a restart continues from the journal."""
        if isinstance(error, SottovoceError):
            self._outcome.fail(error)
            return
        self._outcome.fail(CrashedError(f"the {self._role} failed with {type(error).__name__}"))
        raise error

    def _incident(self, action: Incident) -> None:
        self._refused[action.code] += 1
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
    """Write a round to the journal, then fence it off in the ledger: now it may be sent.

    Raises:
        DiskError: it cannot be written now.
        RollbackError: the ledger knows of a round that the journal does not hold.
    """
    commit()
    if fence is not None:
        fence.rise(k, digest)


def stopped(action: Stop) -> None:
    """Trying again cannot help: end the process with the reason."""
    raise RefusedError(action.code, f"{action.detail} ({action.code})")


def reconnect(machine: ClientMachine, action: Reconnect) -> None:
    """End the connection of an agent or a relay; its client connects again."""
    note("hung up", level=logging.WARNING, code=str(action.code))
    machine.lost()
