"""A cloud that plays a script to another implementation's agent: agent 4 of the paper's problem.

An agent of ours hears the same messages, and what it would send is what the other must send. No
noise is added to anything: the configuration says so (``simulated``), and prices are constants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import msgspec
import numpy as np
from aiohttp import WSMsgType, web
from msgspec.structs import replace

from sottovoce.network.agent_group import AgentGroup
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
from sottovoce.network.local_round import LocalRound
from sottovoce.network.protocol import messages as m
from sottovoce.network.protocol.actions import Memory, SendUp
from sottovoce.network.protocol.agent_machine import AgentMachine
from sottovoce.network.protocol.codec import (
    MalformedError,
    decode_from_agent,
    decode_from_cloud,
    encode,
    pack,
)
from sottovoce.problem import gallery

AGENT: Final = 4
SUM: Final = 2  # the only one that this agent enters
PRICES: Final = (0.5, -1.0, 3.0, 0.0, 0.25, 40.0, 1.0, -60.0, 2.0, 2.0)
STARTS: Final = 3  # how often the agent must be started
ABSENT_SECONDS: Final = 3.0  # without a connection: the agent has stopped


@final
class ScriptedCloud:
    """Listens, and plays the script; ``tell`` hears what the user has to do."""

    def __init__(self, keys: Path, *, tell: Callable[[str], None], patience: float) -> None:
        self._context, self._tell = server_context(keys), tell
        self._checks = Checks(patience)
        group = AgentGroup.of_problem(gallery.paper(), [AGENT - 1])
        start = pack(group.start)
        self._reference = AgentMachine(
            (AGENT,),
            Memory(x=start, answer=start),
            lambda _: None,
            lambda welcome: LocalRound(group, welcome),
        )
        first = decode_from_cloud(
            bytes.fromhex(vectors()["conversations"][0]["exchanges"][0]["hear"])
        )
        assert isinstance(first, m.Welcome)  # noqa: S101  as the vectors begin
        self._welcome = first
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
        self._start(2, "with no saved state; it must play a run")
        await self._rounds()
        await self._interruptions()
        await self._end()
        self._start(3, "from the state that it saved; it must stop")
        await self._meet("started again, it shows the last receipt")
        await self._exchange("a cloud that lost rounds is left", self._at(3), closed=True)
        await self._stays_away("it does not come back to a cloud that lost rounds")

    async def _rounds(self) -> None:
        await self._meet("hello of a new agent")
        await self._exchange("the contribution of its start", self._welcome)
        for k in range(1, 4):
            await self._exchange(f"the contribution after round {k}", _round(k))
        await self._exchange("a repeated round is ignored", _round(3))
        await self._exchange("conflict: it waits", m.Error(code=m.Code.CONFLICT, round=4))
        self._lose()
        await self._meet("after a lost connection it shows the last receipt")
        await self._exchange("the contribution is repeated, byte for byte", self._at(4))
        await self._exchange("the contribution after round 4", _round(4))

    async def _interruptions(self) -> None:
        """Whatever is no message ends the connection, and changes nothing."""
        for k, name in enumerate(_wrong(1), start=5):
            await self._exchange(f"{name}: it leaves", _wrong(k)[name], closed=True)
            await self._meet(f"after {name} it shows the last receipt")
            await self._exchange(f"after {name} it repeats its contribution", self._at(k))
            await self._exchange(f"the contribution after round {k}", _round(k))
        self._lose()

    async def _end(self) -> None:
        missed, rounds = 4 + len(_wrong(1)) + 2, self._welcome.rounds
        await self._meet("hello with one contribution outstanding")
        ahead = replace(self._welcome, round=missed + 1, spoke=missed)
        await self._exchange("the cloud is ahead: it waits", ahead)
        await self._exchange("a round that it did not contribute to: a gap", _round(missed))
        for k in range(missed + 1, rounds):
            await self._exchange(f"the contribution after round {k}", _round(k))
        await self._exchange("nothing is sent after the last round", _round(rounds))
        done = m.Done(rounds=rounds, price=bytes(32), confirmed=None, wait=0.0)
        await self._exchange("it leaves when the run is over", done, closed=True)

    def _at(self, c: int) -> m.Welcome:
        return replace(self._welcome, round=c, spoke=c - 1)

    def _start(self, number: int, words: str) -> None:
        self._tell(f"start agent {AGENT} ({number} of {STARTS}), {words}")

    async def _meet(self, name: str) -> None:
        """The agent connects: its hello must be that of the reference."""
        self._reference.lost()
        (hello,) = self._reference.connected()
        assert isinstance(hello, SendUp)  # noqa: S101  a machine says hello first
        arrived = self._arrived.get()
        words = f"{name}: no agent came"
        self._socket, self._request = await self._checks.within(arrived, words)
        await self._judge(name, hello.message)

    async def _exchange(
        self, name: str, message: m.FromCloud | bytes | str, *, closed: bool = False
    ) -> None:
        """Send something: the agent must answer as the reference, or close the connection."""
        await send_any(self._socket, message)
        if closed:
            await self._judge(name, None)
            self._lose()
            return
        assert not isinstance(message, bytes | str)  # noqa: S101  those close the connection
        actions = self._reference.hear(message)
        if replies := [action.message for action in actions if isinstance(action, SendUp)]:
            await self._judge(name, replies[0])
            return
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

    def _lose(self) -> None:
        """Lose the connection, without a word."""
        if self._request.transport is not None:
            self._request.transport.abort()


def _round(k: int) -> m.Round:
    price = np.zeros(4)
    price[SUM] = PRICES[k % len(PRICES) - 1]
    return m.Round(round=k, price=pack(price), y=b"", receipt=bytes([k]) * 64)


def _wrong(k: int) -> dict[str, m.FromCloud | bytes | str]:
    """What an agent must not take for round k, by name."""
    fields = msgspec.msgpack.decode(encode(_round(k)))
    return {
        "a frame that is no message": b"\xc1",
        "an unknown field": msgspec.msgpack.encode(fields | {"note": 1}),
        "a text frame": "round",
        "a price that is NaN": replace(_round(k), price=pack(np.full(4, np.nan))),
        "a price too few": replace(_round(k), price=bytes(24)),
        "a receipt of 63 bytes": replace(_round(k), receipt=bytes(63)),
        "future-round": m.Error(code=m.Code.FUTURE_ROUND, round=k),
    }


def _difference(received: m.FromAgent | None, expected: m.FromAgent | None) -> str:
    """Which fields are not what they must be; never a value."""
    kind = "it left" if received is None else f"it sent a {type(received).__name__.lower()}"
    if received is None or type(received) is not type(expected):
        return kind
    fields = [f for f in received.__struct_fields__ if getattr(received, f) != getattr(expected, f)]
    return f"{kind} with another {', '.join(fields)}"
