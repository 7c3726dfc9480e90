"""The cloud's side of the helper: asks for the masks of a round until it is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from sottovoce.network.failures import HaltedError
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.actions import Commit, Meet
from sottovoce.network.protocol.codec import mask_of
from sottovoce.network.protocol.messages import (
    Answer,
    Ask,
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
    """Asks the helper on the cloud's behalf, again on every new connection."""

    config: str
    post: Callable[[ToHelper], None]  # sends on the connection there is
    keep: Callable[[Commit, bytes], None]  # writes a question and its receipt before it is asked
    later: Callable[..., object]  # calls a function once what is going on has ended
    receipt: bytes = b""  # of the helper's last answer, empty if it is not known

    def __post_init__(self) -> None:
        self.answered: Callable[[Commit, bytes], None]  # hears the answer to a full round
        # Hears the helper's signature for a peer, None if the helper does not know its key.
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
            self.hear(message)
            return True

        def lost() -> None:
            self.connected = False

        await client.serve(hear, lost=lost, progress=lambda: self._opened_times, done=lambda: False)

    def hear(self, message: FromHelper | None) -> None:
        """A message came from the helper; None for a new connection."""
        match message:
            case None:
                self._met.clear()
                self.post(Open(config=self.config))
            case Opened():
                self._opened(message)
            case Pledged():
                self._pledges[message.number] = message.pledge
                self._tell(message.number, message.pledge)
            case Answer():
                full = self._full
                if full is not None and message.round == full.k:  # else it was asked twice
                    self._full, self.receipt = None, message.receipt
                    self.answered(full, message.values)
            case Refusal():
                self._refused(message)

    def _opened(self, message: Opened) -> None:
        self.connected = True
        self._opened_times += 1
        note("helper-connected", round=message.round)
        for number in sorted(self._waiting):
            self._introduce(number)
        if self._full is not None:
            self._ask(self._full)

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
        entries = []
        for part in full.parts:
            mask = mask_of(part.data)
            number = self._number((part.party.agents, mask.key))
            self._introduce(number)
            entries.append((number, mask.session, mask.round))
        self.post(Ask(round=full.k, taken=sorted(entries), receipt=self.receipt))
