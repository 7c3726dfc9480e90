"""The outcome of every check, and the files that others test against."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, final

from aiohttp import ClientError, ClientWebSocketResponse, web

from sottovoce.network.protocol.codec import encode
from sottovoce.network.protocol.messages import FromAgent, FromCloud

FOLDER: Final = Path(__file__).parent
"""Where ``schema.json`` and ``vectors.json`` are."""

QUIET_SECONDS: Final = 0.5  # without a message: nothing is said

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """One claim about the other side, and what was seen if it does not hold; never a value."""

    name: str
    passed: bool
    seen: str = ""


@final
class EndedError(Exception):
    """The other side is gone, or does not answer: what follows cannot be checked.

    ``status`` is that of HTTP where a handshake was refused.
    """

    def __init__(self, words: str, status: int = 0) -> None:
        super().__init__(words)
        self.status = status


@final
class Checks:
    """Claims in the order in which they were checked, of a side that answers within a time."""

    def __init__(self, patience: float) -> None:
        self.all: list[CheckOutcome] = []
        self._patience = patience

    def add(self, name: str, passed: bool, seen: str = "") -> None:
        """Note an outcome."""
        self.all.append(CheckOutcome(name=name, passed=passed, seen="" if passed else seen))

    async def run(self, script: Callable[[], Awaitable[None]]) -> list[CheckOutcome]:
        """Play a script as far as the other side takes part in it."""
        try:
            await script()
        except EndedError as error:
            self.add("it takes part to the end", False, str(error))
        return self.all

    async def within(self, awaited: Awaitable[_Answer], words: str) -> _Answer:
        """Wait for the other side."""
        try:
            return await asyncio.wait_for(awaited, self._patience)
        except TimeoutError:
            raise EndedError(f"{words} within {self._patience:g} s") from None


async def send_any(
    socket: web.WebSocketResponse | ClientWebSocketResponse,
    message: FromAgent | FromCloud | bytes | str,
) -> None:
    """Send a message, or what is none; to who is gone nothing, which the next check tells."""
    with suppress(ClientError, OSError):
        if isinstance(message, str):
            await socket.send_str(message)
        else:
            await socket.send_bytes(message if isinstance(message, bytes) else encode(message))


def vectors() -> dict[str, Any]:
    """Return the test vectors."""
    content: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text(encoding="utf-8"))
    return content
