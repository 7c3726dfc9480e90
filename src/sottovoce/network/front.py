"""What listens: the door, the HTTP server behind it, and the peers that come in."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, cast, final

from aiohttp import web

from sottovoce.network.allowances import Allowances
from sottovoce.network.door import Door, Handler
from sottovoce.network.identity.authorization import Gate
from sottovoce.network.observe.metrics import Metrics
from sottovoce.network.parties import Parties
from sottovoce.network.peers import Machine, Peers
from sottovoce.network.protocol.actions import Setup
from sottovoce.network.protocol.codec import frame_limit
from sottovoce.network.supervisor import Supervisor

IDLE_SECONDS: Final = 1.0
"""After a second without a round there is none that a handshake could slow down."""


@final
class Front:
    """The listening side of a cloud, or of a relay.

    Args:
        gate: tells who a peer is.
        context: with the certificate that peers see.
        machine: answers what they say.
        setup: tells how much an honest peer says.
        parties: likewise.
        metrics: counts.
        perform: does what the machine asks for.
    """

    def __init__(
        self,
        gate: Gate,
        context: ssl.SSLContext,
        machine: Machine,
        setup: Setup,
        parties: Parties,
        *,
        metrics: Metrics,
        perform: Callable[[list[Any]], None],
    ) -> None:
        offsets: list[int] = parties.offsets.tolist()
        self.door = Door(
            context,
            Allowances(offsets, sums=None if setup.states else setup.prices),
            agents=setup.agents,
            metrics=metrics,
            idle=lambda: metrics.waited > IDLE_SECONDS,
        )
        most = offsets[-1] if setup.states else setup.prices
        limit = frame_limit(agents=setup.agents, size=most)
        self.peers = Peers(gate, self.door, machine, metrics, perform, limit=limit)
        self.app = web.Application(middlewares=[self.door.paced])
        self.app.router.add_get("/", self._root)
        self.index: Handler | None = None
        """Answers people, who come to the same address as agents; nobody does if None."""
        self._runner = web.AppRunner(
            self.app, access_log=None, handle_signals=False, lingering_time=0
        )

    async def open(self, listen: tuple[str, int], supervisor: Supervisor) -> None:
        """Listen.

        Raises:
            BusyError: somebody else listens there, or the address is not up yet.
            NetworkError: this user may not listen there.
        """
        await self._runner.setup()
        server = cast(Callable[[], asyncio.Protocol], self._runner.server)
        await self.door.open(listen, server, supervisor)

    async def _root(self, request: web.Request) -> web.StreamResponse:
        if self.index is None or "Upgrade" in request.headers:
            return await self.peers.talk(request)
        return await self.index(request)

    async def close(self) -> None:
        """Close every connection and listen no more."""
        self.peers.close_all()
        await self._runner.cleanup()
        await self.door.close()
