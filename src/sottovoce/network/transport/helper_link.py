"""The cloud's connection to its helper: asks for the masks of a round until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from sottovoce.network.failures import HaltedError, RefusedError
from sottovoce.network.identity.certificates import HELPER
from sottovoce.network.observe.logs import note
from sottovoce.network.protocol.actions import Commit, Meet
from sottovoce.network.protocol.codec import decode_from_helper, encode, mask_of
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
from sottovoce.network.store import PendingQuestion
from sottovoce.network.transport.client import Client

LONGEST_PAUSE: Final = 5.0

Name = tuple[tuple[int, ...], bytes]
"""Agents that share a connection, and their key for masks."""


@final
class HelperLink:
    """Asks the helper on the cloud's behalf, over one connection that is made again when lost.

    Args:
        url: the helper's address, ``wss://host:port``.
        keys: the cloud's folder, with cert.pem and key.pem to ask with.
        config: the run's configuration.
        asked: remembers the question at hand over a restart.

    Attributes:
        answered: called with a full round and the helper's answer to it.
        pledged: called with a peer and the helper's signature, None if it does not know the key.
        connected: whether the helper takes part in the run at the moment.
    """

    def __init__(self, url: str, keys: Path, config: str, asked: PendingQuestion) -> None:
        self.answered: Callable[[Commit, bytes], None]
        self.pledged: Callable[[int, bytes | None], None]
        self.connected = False
        self._config = config
        self._asked = asked
        self._client = Client(
            url, keys, decode_from_helper, limit=asked.room, longest_pause=LONGEST_PAUSE
        )
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
            loop = asyncio.get_running_loop()
            loop.call_soon(self.pledged, agents.peer, self._pledges[number])
            return
        self._waiting.setdefault(number, []).append(agents.peer)
        if self.connected:
            self._introduce(number)

    def ask(self, full: Commit) -> None:
        """Ask for the masks of a round, until it is answered."""
        self._full = full
        self._asked.write(full)
        if self.connected:
            self._ask(full)

    async def keep(self) -> None:
        """Hold the connection for as long as the cloud lives."""
        await self._client.serve(
            self._hear, lost=self._lost, progress=lambda: self._opened_times, done=lambda: False
        )

    async def _hear(self, message: FromHelper | None) -> bool:
        if message is None:
            if not self._client.has_role(HELPER):
                raise RefusedError(Code.NOT_YOURS, "the helper must be one by its certificate")
            self._met.clear()
            self._say(Open(version=HELPER_VERSION, config=self._config))
        else:
            self._heard(message)
        return True

    def _lost(self) -> None:
        self.connected = False

    def _heard(self, message: FromHelper) -> None:
        match message:
            case Opened():
                self._opened(message)
            case Pledged():
                self._pledges[message.number] = message.pledge
                self._tell(message.number, message.pledge)
            case Answer():
                self._hear_answer(message)
            case Refusal():
                self._refused(message)

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
        self._asked.receipt = message.receipt
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
            self._say(Introduction(number=number, agents=list(agents), mask=mask))

    def _ask(self, full: Commit) -> None:
        listed = []
        for part in full.parts:
            mask = mask_of(part.data)
            number = self._number((part.party.agents, mask.key))
            self._introduce(number)
            listed.append((number, mask.session, mask.round))
        self._say(Ask(round=full.k, taken=sorted(listed), receipt=self._asked.receipt))

    def _say(self, message: ToHelper) -> None:
        self._client.post(encode(message))
