"""The cloud's side of the helper: asks for the masks of a round until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from sottovoce.network.failures import HaltedError, RefusedError
from sottovoce.network.identity.certificates import HELPER
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.actions import Commit, Meet
from sottovoce.network.protocol.codec import mask_of
from sottovoce.network.protocol.messages import (
    HELPER_VERSION,
    Answer,
    Ask,
    Code,
    FromHelper,
    Open,
    Opened,
    Pledged,
    Refusal,
    ToHelper,
)
from sottovoce.network.protocol.messages import Introduce as Introduction

if TYPE_CHECKING:
    from sottovoce.network.transport.client import Client

LONGEST_PAUSE: Final = 5.0

Name = tuple[tuple[int, ...], bytes]
"""Agents that share a connection, and their key for masks."""


@final
@dataclass(eq=False, repr=False)
class HelperLink:
    """Asks the helper on the cloud's behalf, again on every new connection.

    Args:
        config: the run's configuration.
        post: sends a message on the connection there is.
        keep: writes a question and the receipt that goes with it down, before it is asked.
        later: calls a function once what is going on has ended.
        receipt: of the helper's last answer, empty if it is not known.

    Attributes:
        answered: called with a full round and the helper's answer to it.
        pledged: called with a peer and the helper's signature, None if it does not know the key.
        connected: whether the helper takes part in the run at the moment.
    """

    config: str
    post: Callable[[ToHelper], None]
    keep: Callable[[Commit, bytes], None]
    later: Callable[..., object]
    receipt: bytes = b""

    def __post_init__(self) -> None:
        self.answered: Callable[[Commit, bytes], None]
        self.pledged: Callable[[int, bytes | None], None]
        self.connected = False
        self._opened_times = 0
        self._full: Commit | None = None
        self._names: dict[Name, int] = {}
        self._waiting: dict[int, list[int]] = {}
        self._pledges: dict[int, bytes] = {}
        self._met: set[int] = set()

    def meet(self, agents: Meet) -> None:
        """Have the helper sign what is asked of agents, and tell ``pledged``."""
        number = self._number((agents.agents, agents.mask))
        if number in self._pledges:
            self.later(self.pledged, agents.peer, self._pledges[number])
            return
        self._waiting.setdefault(number, []).append(agents.peer)
        if self.connected:
            self._introduce(number)

    def ask(self, full: Commit) -> None:
        """Ask for the masks of a round, until it is answered."""
        self._full = full
        self.keep(full, self.receipt)
        if self.connected:
            self._ask(full)

    async def follow(self, client: Client[FromHelper]) -> None:
        """Hold the connection for as long as the cloud lives."""

        async def hear(message: FromHelper | None) -> bool:
            if message is None and not client.has_role(HELPER):
                raise RefusedError(Code.NOT_YOURS, "the helper must be one by its certificate")
            self.hear(message)
            return True

        await client.serve(
            hear, lost=self._lost, progress=lambda: self._opened_times, done=lambda: False
        )

    def hear(self, message: FromHelper | None) -> None:
        """A message came from the helper; None for a new connection."""
        match message:
            case None:
                self._met.clear()
                self.post(Open(version=HELPER_VERSION, config=self.config))
            case Opened():
                self._opened(message)
            case Pledged():
                self._pledges[message.number] = message.pledge
                self._tell(message.number, message.pledge)
            case Answer():
                self._hear_answer(message)
            case Refusal():
                self._refused(message)

    def _lost(self) -> None:
        self.connected = False

    def _opened(self, message: Opened) -> None:
        if message.version != HELPER_VERSION:
            raise RefusedError(Code.VERSION, "the helper speaks another version of the protocol")
        self.connected = True
        self._opened_times += 1
        note("helper", round=message.round)
        for number in sorted(self._waiting):
            self._introduce(number)
        if self._full is not None:
            self._ask(self._full)

    def _hear_answer(self, message: Answer) -> None:
        full = self._full
        if full is None or message.round != full.k:
            return  # asked twice over two connections: the first answer was taken
        self._full = None
        self.receipt = message.receipt
        self.answered(full, message.values)

    def _refused(self, message: Refusal) -> None:
        if message.number:
            self._tell(message.number, None)
            return
        raise HaltedError(
            f"the helper refused the run ({message.code}): cloud and helper must have been started "
            "with the same plan, and neither store may be an old copy; nothing was sent"
        )

    def _tell(self, number: int, pledge: bytes | None) -> None:
        for peer in self._waiting.pop(number, ()):
            self.pledged(peer, pledge)

    def _number(self, name: Name) -> int:
        return self._names.setdefault(name, len(self._names) + 1)

    def _introduce(self, number: int) -> None:
        """Say who a number stands for, once per connection."""
        if number not in self._met:
            agents, mask = list(self._names)[number - 1]  # in the order of their numbers
            self._met.add(number)
            self.post(Introduction(number=number, agents=list(agents), mask=mask))

    def _ask(self, full: Commit) -> None:
        listed = []
        for part in full.parts:
            mask = mask_of(part.data)
            number = self._number((part.party.agents, mask.key))
            self._introduce(number)
            listed.append((number, mask.session, mask.round))
        self.post(Ask(round=full.k, taken=sorted(listed), receipt=self.receipt))
