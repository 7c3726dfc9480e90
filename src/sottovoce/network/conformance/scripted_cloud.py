"""A cloud that plays a script to another implementation's agent: agent 4 of the paper's problem.

The script is among the test vectors: what the cloud sends, and what an agent of ours answers. No
noise is added to anything: the configuration says so (``simulated``), and prices are constants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from aiohttp import WSMsgType, web

from sottovoce.network.conformance.checks import (
    QUIET_SECONDS,
    CheckOutcome,
    Checks,
    EndedError,
    send_any,
    vectors,
)
from sottovoce.network.failures import not_listening
from sottovoce.network.identity.tls import server_context
from sottovoce.network.protocol import messages as m
from sottovoce.network.protocol.codec import MalformedError, decode_from_agent

AGENT: Final = 4
STARTS: Final = 3  # how often the agent must be started
ABSENT_SECONDS: Final = 3.0  # without a connection: the agent has stopped


@final
class ScriptedCloud:
    """Listens, and plays the script; ``tell`` hears what the user has to do."""

    def __init__(self, keys: Path, *, tell: Callable[[str], None], patience: float) -> None:
        self._context, self._tell = server_context(keys), tell
        self._checks = Checks(patience)
        self._serves = False  # at first no version is served
        self._asked: asyncio.Queue[str] = asyncio.Queue()
        self._arrived: asyncio.Queue[tuple[web.WebSocketResponse, web.Request]] = asyncio.Queue()
        self._socket: web.WebSocketResponse
        self._request: web.Request

    async def play(self, listen: tuple[str, int]) -> list[CheckOutcome]:
        """Listen, wait for the agent, and return every check."""
        app = web.Application()
        app.router.add_get("/", self._talk)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=QUIET_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, *listen, ssl_context=self._context).start()
            self._tell(f"listening on port {runner.addresses[0][1]}")
            return await self._checks.run(self._script)
        except OSError as error:
            raise not_listening("listen", listen, error) from None
        finally:
            await runner.cleanup()

    async def _talk(self, request: web.Request) -> web.WebSocketResponse:
        await self._asked.put(request.headers.get("Sec-WebSocket-Protocol", ""))
        if not self._serves:
            raise web.HTTPUpgradeRequired(text=m.Code.VERSION, headers={"Upgrade": "websocket"})
        socket = web.WebSocketResponse(protocols=m.PROTOCOLS, compress=False)
        await socket.prepare(request)
        await self._arrived.put((socket, request))
        await asyncio.Event().wait()  # cancelled at the end
        return socket

    async def _script(self) -> None:
        self._start(1, "with no saved state; it must stop at once")
        asked = await self._checks.within(self._asked.get(), "no agent came")
        version = m.PROTOCOLS[0]
        self._checks.add(f"it asks for {version}", version in asked, f"it asks for {asked!r:.40}")
        await self._stays_away("it stops where its version is not served")
        self._serves = True
        run, again = vectors()["script"].values()
        self._start(2, "with no saved state; it must play a run")
        await self._play(run)
        self._start(3, "from the state that it saved; it must stop")
        await self._play(again)
        await self._stays_away("it does not come back to a cloud that lost rounds")

    def _start(self, number: int, words: str) -> None:
        self._tell(f"start agent {AGENT} ({number} of {STARTS}), {words}")

    async def _play(self, steps: list[dict[str, str]]) -> None:
        """Send what each step says, and hold what comes back against it."""
        for step in steps:
            name = step["check"]
            if "hear" in step:
                await send_any(self._socket, bytes.fromhex(step["hear"]))
            elif "text" in step:
                await send_any(self._socket, step["text"])
            else:
                words = f"{name}: no agent came"
                self._socket, self._request = await self._checks.within(self._arrived.get(), words)
            if step["do"] == "wait":
                await self._waits(name)
            else:
                say = bytes.fromhex(step.get("say", ""))
                await self._judge(name, decode_from_agent(say) if say else None)
            if "lose" in step and self._request.transport is not None:
                self._request.transport.abort()  # without a word

    async def _waits(self, name: str) -> None:
        try:
            await asyncio.wait_for(self._socket.receive(), QUIET_SECONDS)
        except TimeoutError:
            self._checks.add(name, True)
            return
        self._checks.add(name, False, "it said something, or left")
        raise EndedError(f"after {name!r} nothing can be expected")

    async def _judge(self, name: str, expected: m.FromAgent | None) -> None:
        """The agent's next message must be this; None if it must close the connection."""
        message = await self._checks.within(self._socket.receive(), f"{name}: it says nothing")
        received: m.FromAgent | None = None
        if message.type is WSMsgType.BINARY:
            try:
                received = decode_from_agent(message.data)
            except MalformedError:
                raise EndedError(f"{name}: it sent what is no message of the protocol") from None
        self._checks.add(name, received == expected, _difference(received, expected))
        if type(received) is not type(expected):
            raise EndedError(f"after {name!r} nothing can be expected")

    async def _stays_away(self, name: str) -> None:
        while not self._asked.empty():
            self._asked.get_nowait()
        await asyncio.sleep(ABSENT_SECONDS)
        self._checks.add(name, self._asked.empty(), "it came back")


def _difference(received: m.FromAgent | None, expected: m.FromAgent | None) -> str:
    """Which fields are not what they must be; never a value."""
    kind = "it left" if received is None else f"it sent a {type(received).__name__.lower()}"
    if received is None or type(received) is not type(expected):
        return kind
    fields = [f for f in received.__struct_fields__ if getattr(received, f) != getattr(expected, f)]
    return f"{kind} with another {', '.join(fields)}"
