"""An agent that plays a script to another implementation's cloud, in a test run.

It must speak for all agents of the run at once: then every contribution completes a round.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

import aiohttp
import numpy as np
from msgspec.structs import replace

from sottovoce.network.conformance.checks import (
    CheckOutcome,
    Checks,
    EndedError,
    send_any,
    vectors,
)
from sottovoce.network.identity.tls import client_context
from sottovoce.network.protocol import messages as m
from sottovoce.network.protocol.codec import (
    MalformedError,
    decode_from_cloud,
    pack_whole,
    unpack_whole,
)

_PAUSE_SECONDS: Final = 0.2
LATER: Final = 4  # the round that is collected after what is checked of rounds
MANY: Final = 32  # messages between two rounds, more than any cloud has to hear


@final
class ScriptedAgent:
    """Connects for every check anew, and returns what the cloud did."""

    def __init__(self, url: str, keys: Path, agents: tuple[int, ...], *, patience: float) -> None:
        self._url, self._context = url, client_context(keys)
        self._checks = Checks(patience)
        self._hello = m.Hello(agents=list(agents), config=b"", round=0, receipt=b"")
        self._session: aiohttp.ClientSession

    async def play(self) -> list[CheckOutcome]:
        """Play the script, and return every check."""
        connector = aiohttp.TCPConnector(ssl=self._context)
        async with aiohttp.ClientSession(connector=connector) as session:
            self._session = session
            return await self._checks.run(self._script)

    async def _script(self) -> None:
        for asked in ((), ("sottovoce.0",)):
            name = f"asked for {' '.join(asked) or 'no version'}, it refuses with 426"
            try:
                async with self._connected(asked):
                    self._checks.add(name, False, "it took the connection")
            except EndedError as refused:
                if not refused.status:
                    raise
                self._checks.add(name, refused.status == 426, str(refused))
        async with self._connected(("sottovoce.0", *m.PROTOCOLS)) as line:
            name = f"asked for another version too, it takes {m.PROTOCOLS[0]}"
            self._checks.add(name, line.protocol == m.PROTOCOLS[0], "it took another")
        welcome = await self._welcomed()
        await self._refusals(welcome)
        await self._rounds(welcome)

    async def _welcomed(self) -> m.Welcome:
        async with self._connected() as line:
            welcome = await self._said(line, self._hello)
        if not isinstance(welcome, m.Welcome):
            raise EndedError("the cloud did not welcome these agents")
        if welcome.states or welcome.round != 1 or welcome.rounds <= LATER:
            raise EndedError(
                f"the cloud must be in round 1 of a run of sums with more than {LATER} rounds"
            )
        lengths = {len(v) for v in (welcome.grid, welcome.least, welcome.most)}
        whole = lengths == {8 * len(welcome.sums)} and len(welcome.lower) == len(welcome.upper)
        self._checks.add("its welcome has a grid and a range for every sum", whole, "it has not")
        return welcome

    async def _refusals(self, welcome: m.Welcome) -> None:
        """What ends a connection, and with which code."""
        hello, last = self._hello, self._hello.agents[-1]
        valid = m.Contribution(round=1, values=bytes(8 * len(welcome.sums)))
        refused: dict[str, tuple[m.Code, list[Any]]] = {
            case["name"]: (m.Code.MALFORMED, [bytes.fromhex(case["hex"])])
            for case in vectors()["frames"]["bad"]
            if case["from"] == "agent"
        }
        refused |= {
            "a text frame": (m.Code.MALFORMED, ["hello"]),
            "an agent twice": (m.Code.MALFORMED, [replace(hello, agents=[last, last])]),
            "a round without its receipt": (m.Code.MALFORMED, [replace(hello, round=1)]),
            "a vector too short": (
                m.Code.MALFORMED,
                [hello, replace(valid, values=bytes(7))],
            ),
            "an agent of others": (m.Code.NOT_YOURS, [replace(hello, agents=[2**53 - 1])]),
            "another run": (m.Code.OTHER_RUN, [replace(hello, config=b"x" * 32)]),
            "a forged receipt": (
                m.Code.FORGED_RECEIPT,
                [replace(hello, round=1, receipt=bytes(64))],
            ),
            "a contribution before hello": (m.Code.UNEXPECTED, [valid]),
            "a second hello": (m.Code.UNEXPECTED, [hello, hello]),
            "a state in a run of sums": (m.Code.UNEXPECTED, [hello, m.State(round=1, x=b"")]),
            "a flood": (m.Code.FLOOD, [hello, *[replace(valid, round=LATER)] * MANY]),
        }
        for name, (code, words) in refused.items():
            async with self._connected() as line:
                for word in words:
                    await send_any(line, word)
                seen = await self._last_code(line)
            self._checks.add(f"{name}: {code}", seen == code, f"it ended with {seen or 'no code'}")

    async def _rounds(self, welcome: m.Welcome) -> None:
        values = unpack_whole(welcome.least) // 2 + unpack_whole(welcome.most) // 2
        valid = m.Contribution(round=1, values=pack_whole(values))
        other = replace(
            valid, values=pack_whole(np.clip(values + 1, None, unpack_whole(welcome.most)))
        )
        rounds: dict[int, Any] = {}
        async with self._connected() as line:
            await self._said(line, self._hello)
            await self._answers(line, "future-round", replace(valid, round=2), m.Code.FUTURE_ROUND)
            for k in range(1, LATER):
                rounds[k] = await self._said(line, replace(valid, round=k))
                good = _is_round(rounds[k], k, welcome.prices)
                self._checks.add(f"it releases round {k}", good, "it does not, or not whole")
            k = LATER - 1
            again = await self._said(line, replace(valid, round=k))
            self._checks.add("the same again: the same round", again == rounds[k], "another")
            await self._answers(
                line, "another contribution", replace(other, round=k), m.Code.CONFLICT
            )
            followed = await self._heard(line)
            self._checks.add("conflict: the same round", followed == rounds[k], "another")
            old = replace(valid, round=k - 1)
            await self._answers(line, "the round before the last", old, m.Code.OLD_ROUND)
            async with self._connected() as newer:
                await self._comes_back(newer, welcome, rounds[k], behind=False)
                seen = await self._last_code(line)
                self._checks.add("a newer connection: replaced", seen == m.Code.REPLACED, seen)
        async with self._connected() as line:
            await self._comes_back(line, welcome, rounds[k - 1], behind=True)
            caught_up = await self._heard(line)
            self._checks.add("who is behind gets the last round", caught_up == rounds[k], "another")

    async def _comes_back(
        self, line: aiohttp.ClientWebSocketResponse, first: m.Welcome, seen: Any, *, behind: bool
    ) -> None:
        """Say hello with a round and its receipt: the same run, in its present round."""
        if not isinstance(seen, m.Round):
            raise EndedError("without rounds there is nothing to come back with")
        hello = replace(self._hello, round=seen.round, receipt=seen.receipt)
        expected = replace(first, round=LATER, spoke=LATER - 1)
        welcome = await self._said(line, hello)
        name = "one that is behind" if behind else "one that is not"
        self._checks.add(f"welcome to {name}", welcome == expected, "it is another")

    async def _answers(
        self, line: aiohttp.ClientWebSocketResponse, name: str, message: m.FromAgent, code: m.Code
    ) -> None:
        """The cloud objects, and the connection stays."""
        heard = await self._said(line, message)
        seen = heard.code if isinstance(heard, m.Error) else "no error"
        self._checks.add(f"{name}: {code}, and the connection stays", seen == code, seen)

    async def _said(self, line: aiohttp.ClientWebSocketResponse, message: m.FromAgent) -> Any:
        await send_any(line, message)
        return await self._heard(line)

    async def _heard(self, line: aiohttp.ClientWebSocketResponse) -> Any:
        """The next message, None once the connection is closed."""
        frame = await self._checks.within(line.receive(), "the cloud does not answer")
        if frame.type is not aiohttp.WSMsgType.BINARY:
            return None
        try:
            return decode_from_cloud(frame.data)
        except MalformedError:
            raise EndedError("what the cloud sent is no message of the protocol") from None

    async def _last_code(self, line: aiohttp.ClientWebSocketResponse) -> str:
        """Read to the end of the connection; the last code in it."""
        code = ""
        while (message := await self._heard(line)) is not None:
            code = message.code if isinstance(message, m.Error) else code
        return code

    @asynccontextmanager
    async def _connected(
        self, asked: Sequence[str] = m.PROTOCOLS
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        line = await self._checks.within(self._connect(asked), "no cloud takes a connection")
        try:
            yield line
        finally:
            await line.close()

    async def _connect(self, asked: Sequence[str]) -> aiohttp.ClientWebSocketResponse:
        while True:
            try:
                return await self._session.ws_connect(self._url, protocols=asked)
            except aiohttp.WSServerHandshakeError as error:
                words = f"the cloud refuses the handshake (HTTP {error.status})"
                raise EndedError(words, error.status) from None
            except (aiohttp.ClientError, OSError):  # a cloud may limit handshakes per second
                await asyncio.sleep(_PAUSE_SECONDS)


def _is_round(message: Any, k: int, prices: int) -> bool:
    if not isinstance(message, m.Round):
        return False
    whole = len(message.price) == 8 * prices and len(message.receipt) == m.RECEIPT
    return message.round == k and whole and bool(np.isfinite(np.frombuffer(message.price)).all())
