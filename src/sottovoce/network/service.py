"""What the processes of a cloud, a relay and a helper share: peers, files, and how they end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from sottovoce.network.attendance import Attendance
from sottovoce.network.journal import Journal
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.process import Supervisor
from sottovoce.network.runner import Outcome
from sottovoce.network.transport.server import Server
from sottovoce.privacy.fence import Fence

TICK_SECONDS: Final = 1.0


class Service(ABC):
    """A process that others connect to.

    Args:
        agents: those who take part in its run, from 1.
    """

    def __init__(self, agents: Sequence[int] = ()) -> None:
        self._attendance = Attendance(agents)
        self._metrics = Metrics()
        self._outcome = Outcome(agents)
        self._supervisor = Supervisor(self._outcome.fail)
        self._store: Journal | None = None
        self._fence: Fence | None = None
        self._server: Server | None = None

    @property
    def _listening(self) -> Server:
        assert self._server is not None  # noqa: S101  there is one before anybody is heard
        return self._server

    @abstractmethod
    async def _start(self) -> None:
        """Open the files, and listen."""

    @abstractmethod
    def _look(self) -> None:
        """Every second, besides what all services do."""

    async def start(self) -> None:
        """Open the files, and listen; what fails leaves nothing open."""
        try:
            await self._start()
        except BaseException:
            self._close_files()
            raise
        self._supervisor.start("tick", self._tick())

    async def stop(self) -> None:
        """Close every connection and give the files back."""
        try:
            await self._supervisor.stop()
            if self._server is not None:
                await self._server.close()
        finally:
            self._close_files()

    async def _listen_at(self, server: Server, listen: tuple[str, int]) -> None:
        await server.listener.open(listen, self._supervisor)
        self._server = server
        self._metrics.start()

    async def _tick(self) -> None:
        """Every second: write incidents; drop peers that are revoked, expired or overdue."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._store is not None:
                self._store.flush()
            if self._server is not None:
                self._server.check()
                self._look()

    def _close_files(self) -> None:
        """Close the ledger's fence and the store, the store even if the fence fails."""
        try:
            if self._fence is not None:
                self._fence.close()
        finally:
            if self._store is not None:
                self._store.close()
