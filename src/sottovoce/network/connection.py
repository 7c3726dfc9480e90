"""One agent's connection as the cloud writes to it: never waits for a slow reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from sottovoce.network.frames import GOODBYE
from sottovoce.network.guard import Guard

SEND_SECONDS: Final = 10.0
"""How long a frame may take to leave before the connection is given up."""

WAITING: Final = 16
"""Frames that may wait for a connection."""


@final
class Connection:
    """Writes whole frames at once, so that one slow reader delays nobody else.

    aiohttp would frame a message anew for each connection, in a coroutine that needs a task and a
    timer. A round goes to all agents in one frame; where it cannot leave at once, it waits in the
    transport, and only then is there a timer.

    Args:
        guard: below it.
        slow: called when the peer has not read for too long, before the connection is cut.
    """

    def __init__(self, guard: Guard, slow: Callable[[], None]) -> None:
        self.guard = guard
        self.leaving = False
        """Whether the connection is being closed: nothing on it counts any more."""
        self._transport = guard.transport
        self._slow = slow
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def post(self, frame: bytes) -> bool:
        """Write a frame; False if too many are waiting already."""
        if self.leaving or self._transport.is_closing():
            return True
        if self._waiting and not self._transport.get_write_buffer_size():
            self._stop_waiting()
        if self._waiting >= WAITING:
            return False
        self._transport.write(frame)
        if self._transport.get_write_buffer_size():
            self._wait()
        return True

    def close(self) -> None:
        """Hear nothing more, and close once everything written so far has left."""
        if not self.leaving:
            self.leaving = True
            self._stop_waiting()
            if not self._transport.is_closing():
                self._transport.write(GOODBYE)
            self.guard.stop()

    async def closed(self) -> None:
        """Close, and wait until that is done, a second at most."""
        self.close()
        await self.guard.gone()

    def _wait(self) -> None:
        self._waiting += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(SEND_SECONDS, self._overdue)

    def _stop_waiting(self) -> None:
        self._waiting = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self) -> None:
        late = self._transport.get_write_buffer_size() > 0
        self._stop_waiting()
        if late:
            self._slow()
            self._transport.abort()
