"""Each thing a hostile or broken peer may do has one outcome, and the honest finish their run."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import ssl
import struct
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from network_harness import Peer, completed, member, page, peer, plan_for, serving, words_of

from sottovoce.network import identity
from sottovoce.network.cloud import Cloud
from sottovoce.network.failures import RefusedError
from sottovoce.network.identity import revoke_certificate
from sottovoce.network.identity.tls import client_context
from sottovoce.network.protocol.actions import Send
from sottovoce.network.protocol.cloud_machine import CREDIT
from sottovoce.network.protocol.codec import encode
from sottovoce.network.protocol.messages import PROTOCOLS, Code, Hello, Round
from sottovoce.network.store import summarise
from sottovoce.network.transport import server as server_module
from sottovoce.network.transport.limits import Limits
from sottovoce.network.transport.server import UNREAD
from sottovoce.problem.problem import Problem

ALL = list(range(1, 8))


async def closing_code(one: Peer) -> str:
    """The code in the error that closes a connection."""
    last = ""
    while (message := await one.hear()) is not None:
        last = message.get("code", last)
    return last


async def honest_finish(problem: Problem, cloud: Cloud, keys: Path, folder: Path) -> None:
    await completed(cloud, member(problem, ALL, cloud, keys, folder))


HELLO = {"type": "hello", "agents": [1], "config": b"", "round": 0}
HELLO |= {"receipt": b""}
EARLY = {"type": "contribution", "round": 1, "values": bytes(8)}


@pytest.mark.parametrize(
    ("code", "attack"),
    [
        (Code.MALFORMED, ["hello"]),
        (Code.MALFORMED, [b"\xc1\xff\x00"]),
        (Code.NOT_YOURS, [HELLO | {"agents": [2]}]),
        (Code.UNEXPECTED, [EARLY]),
        (Code.UNEXPECTED, [HELLO, {"type": "state", "round": 1, "x": bytes(8)}]),
        (Code.FLOOD, [HELLO, *[EARLY] * (CREDIT + 2)]),
        (Code.OVERSIZE, [bytes(Limits(agents=7, numbers=7).frame + 1)]),
    ],
)
async def test_a_hostile_message_ends_its_connection_and_nothing_else(
    code: Code, attack: list[Any], paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud:
        async with peer(cloud, keys, "agents/1") as one:
            for message in attack:
                await (one.socket.send_str(message) if message == "hello" else one.say(message))
            assert await closing_code(one) in (code, "")  # an oversize frame gets no answer
        await honest_finish(paper, cloud, keys, tmp_path)
    assert summarise(tmp_path / "run.db").incidents == {code.value: 1}


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 2**40])
async def test_no_number_in_a_contribution_stops_the_run(
    value: int, paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async with (
        serving(plan_for(paper), keys, tmp_path / "run.db", rounds=3) as cloud,
        peer(cloud, keys, "agents/1-7") as one,
    ):
        assert (await one.hello(ALL))["sums"] == [0, 1, 2, 3]
        bad = struct.pack("<4q", 0, 0, 0, value)
        await one.say({"type": "contribution", "round": 1, "values": bad})
        assert (await one.hear())["type"] == "round"
    assert summarise(tmp_path / "run.db").incidents == {"clipped": 1}


async def rejected(url: str, context: ssl.SSLContext | bool) -> bool:
    """Whether a connection with this context fails before a word of the protocol is spoken."""
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            async with session.ws_connect(url, protocols=PROTOCOLS) as socket:
                # In TLS 1.3 a client learns only now that its certificate was refused.
                return (await socket.receive(timeout=5)).type is not aiohttp.WSMsgType.BINARY
        except (aiohttp.ClientError, OSError):
            return True


async def test_only_tls_1_3_with_a_valid_certificate_gets_in(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    identity.create_keys(tmp_path / "stranger", agents=1)
    shutil.copytree(keys, tmp_path / "k")
    identity.issue_keys(tmp_path / "k", agents=range(2, 3), days=0)
    for folder in ("k/agents/2", "stranger/agents/1"):
        (tmp_path / folder / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())

    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=3) as cloud:
        url = f"wss://127.0.0.1:{cloud.port}"
        nobody = ssl.create_default_context(cafile=str(keys / "ca.pem"))
        old = client_context(keys / "agents" / "1")
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await rejected(url, nobody)
        assert await rejected(url, old)
        assert await rejected(url, client_context(tmp_path / "stranger" / "agents" / "1"))
        assert await rejected(url, client_context(tmp_path / "k" / "agents" / "2"))
        assert await rejected(url.replace("wss", "ws"), False)
        async with peer(cloud, keys, "agents/1") as good:
            assert (await good.hello([1]))["type"] == "welcome"
        await honest_finish(paper, cloud, keys, tmp_path)


@pytest.mark.parametrize("asked", [(), ("sottovoce.5",), ("sottovoce.7", "chat")])
async def test_another_version_is_refused_at_the_handshake_by_a_code(
    asked: tuple[str, ...], paper: Problem, keys: Path, tmp_path: Path
) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    headers |= {"Sec-WebSocket-Protocol": ", ".join(asked)} if asked else {}
    connector = aiohttp.TCPConnector(ssl=client_context(keys / "agents" / "1"))
    async with (
        serving(plan_for(paper), keys, tmp_path / "run.db", rounds=3) as cloud,
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://127.0.0.1:{cloud.port}/", headers=headers) as answer,
    ):
        words = await answer.text()
        counted = cloud._metrics.refused[Code.VERSION]
    assert (answer.status, counted) == (426, 1)
    assert words == "version: the WebSocket subprotocol must be sottovoce.6"


async def test_a_server_takes_the_version_before_its_own(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=3) as cloud:
        cloud._server.protocols = ("sottovoce.7", "sottovoce.6")
        async with peer(cloud, keys, "agents/1") as one:
            assert one.socket.protocol == "sottovoce.6"
            assert (await one.hello([1]))["type"] == "welcome"
        await honest_finish(paper, cloud, keys, tmp_path)


@pytest.mark.parametrize("served", [("sottovoce.7",), ()], ids=["newer", "before version 6"])
async def test_an_agent_stops_at_a_cloud_of_another_version(
    served: tuple[str, ...],
    paper: Problem,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not served:  # it names no version in its handshake
        monkeypatch.setattr(server_module.Server, "_require_version", lambda self, request: None)
    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=3) as cloud:
        cloud._server.protocols = served
        with pytest.raises(RefusedError, match=r"must speak sottovoce\.6") as caught:
            await member(paper, [1], cloud, keys, tmp_path).run()
    assert caught.value.code is Code.VERSION


async def test_an_agent_does_not_talk_to_a_cloud_of_another_authority(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    identity.create_keys(tmp_path / "k", agents=1)

    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=3) as cloud:
        assert await rejected(
            f"wss://127.0.0.1:{cloud.port}", client_context(tmp_path / "k" / "agents" / "1")
        )


async def test_a_revoked_agent_is_dropped_within_seconds_and_stays_out(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    shutil.copytree(keys, tmp_path / "k")

    mine = tmp_path / "k"
    async with serving(plan_for(paper), mine, tmp_path / "run.db", rounds=3) as cloud:
        async with peer(cloud, mine, "agents/1") as one:
            await one.hello([1])
            began = time.monotonic()
            revoke_certificate(mine, mine / "agents" / "1" / "cert.pem")
            assert await closing_code(one) == "revoked"
            assert time.monotonic() - began < 5
        with pytest.raises(RefusedError) as caught:
            await member(paper, [1], cloud, mine, tmp_path).run()
        assert caught.value.code is Code.REVOKED
        await honest_finish(paper, cloud, mine, tmp_path)


async def test_silent_and_half_open_connections_end_and_delay_nobody(
    paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HELLO_SECONDS", 0.3)
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.3)

    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud:
        raw = [await asyncio.open_connection("127.0.0.1", cloud.port) for _ in range(5)]
        async with peer(cloud, keys, "agents/1") as silent:
            await honest_finish(paper, cloud, keys, tmp_path)
            assert await closing_code(silent) == "silent"
        for reader, writer in raw:
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()


@pytest.mark.parametrize("unread", [UNREAD, 1 << 20], ids=["too many", "for too long"])
async def test_a_peer_that_does_not_read_is_dropped_and_never_waited_for(
    unread: int, paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "UNREAD", unread)
    monkeypatch.setattr(server_module, "SEND_SECONDS", 0.5 if unread > UNREAD else 60.0)

    async with (
        serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud,
        peer(cloud, keys, "agents/1") as one,
    ):
        assert (await one.hello([1]))["type"] == "welcome"
        one.socket._writer.transport.pause_reading()
        server = cloud._server
        for _ in range(200):
            if not server._channels:
                break
            began = time.monotonic()
            server.post(
                Send(peers=(1,), message=Round(round=1, price=bytes(1 << 20), y=b"", receipt=b""))
            )
            assert time.monotonic() - began < 1
            await asyncio.sleep(0.02)
        assert not server._channels
        monkeypatch.undo()
        await honest_finish(paper, cloud, keys, tmp_path)
    assert summarise(tmp_path / "run.db").incidents == {Code.SLOW.value: 1}


def masked(payload: bytes, first: int = 0x82, key: bytes = b"\x01\x80\x00\xff") -> bytes:
    """A client's frame, byte by byte as section 5.3 of the standard has it."""
    size = len(payload)
    head = bytes((first, 0x80 | size)) if size < 126 else struct.pack("!BBH", first, 254, size)
    return head + key + bytes(b ^ key[i % 4] for i, b in enumerate(payload))


@pytest.mark.parametrize("cut", [1, 5, 40, None])
async def test_a_message_that_comes_in_pieces_is_heard_and_so_is_all_that_follows(
    cut: int | None, paper: Problem, keys: Path, tmp_path: Path
) -> None:
    """``cut`` bytes and then the rest, or two frames that are one message."""

    async with (
        serving(plan_for(paper), keys, tmp_path / "run.db", rounds=2) as cloud,
        peer(cloud, keys, "agents/1-7") as one,
    ):
        hello = Hello(agents=ALL, config=b"", round=0, receipt=b"")
        said = encode(hello)
        pieces = [masked(said[:9], first=0x02), masked(said[9:], first=0x80)]
        if cut is not None:
            pieces = [masked(said)[:cut], masked(said)[cut:]]
        for piece in pieces:
            one.socket._writer.transport.write(piece)
            await asyncio.sleep(0.05)
        welcome = await one.hear()
        values = welcome["least"]
        for k in (1, 2):
            await one.say({"type": "contribution", "round": k, "values": values})
            told = await one.hear()
            assert (told["type"], told["round"]) == ("round", k)


async def test_a_silent_peer_gets_a_ping_and_is_dropped_if_it_stays_silent(
    paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEARTBEAT_SECONDS", 0.2)

    async with (
        serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud,
        peer(cloud, keys, "agents/1", autoping=False) as dead,
        peer(cloud, keys, "agents/2") as alive,
    ):
        await dead.hello([1])
        await alive.hello([2])
        hearing = asyncio.create_task(alive.hear())  # aiohttp answers pings meanwhile
        assert (await dead.socket.receive(timeout=5)).type is aiohttp.WSMsgType.PING
        assert await dead.hear() is None
        await asyncio.sleep(0.5)
        assert cloud._machine.present == {2}
        assert len(cloud._server._channels) == 1
        hearing.cancel()


async def test_operator_pages_need_the_operator(paper: Problem, keys: Path, tmp_path: Path) -> None:
    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud:
        healthy = '{"healthy": true, "troubles": []}'
        assert await page(cloud, keys, "agents/1", "/healthz") == (200, healthy)
        for path in ("/metrics", "/status", "/"):
            assert (await page(cloud, keys, "agents/1", path))[0] == 403
        with pytest.raises(aiohttp.WSServerHandshakeError):  # an operator takes no part
            async with peer(cloud, keys, "operator"):
                pass
        await honest_finish(paper, cloud, keys, tmp_path)
        status, text = await page(cloud, keys, "operator", "/metrics")
        assert status == 200
        assert "sottovoce_round 5.0\n" in text
        assert 'sottovoce_certificate_days{of="server"} 39' in text
        assert 'sottovoce_certificate_days{of="authority"} 36' in text
        assert 'sottovoce_round_seconds_bucket{le="+Inf"} 5.0\n' in text
        assert (await page(cloud, keys, "operator", "/status"))[0] == 200


CANARY = 123456789


def leaks(text: str | bytes) -> bool:
    """Whether a planted contribution can be read off, as digits or as raw bytes.

    False alarms below 1e-6: pages show fewer than 1,000 digits that are left to chance, at 1e-9
    each, and digests have 8 bytes of it with 1e-19 each.
    """
    raw = text.encode() if isinstance(text, str) else text
    return str(CANARY).encode() in raw or struct.pack("<q", CANARY) in raw


async def test_planted_contributions_never_show_in_anything_an_agent_or_observer_can_reach(
    paper: Problem, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[bytes] = []

    async def observe(cloud: Cloud) -> None:
        connector = aiohttp.TCPConnector(ssl=client_context(keys / "operator"))
        async with aiohttp.ClientSession(connector=connector) as session:
            for path in ("/healthz", "/metrics", "/status", "/", "/nothing", "/data"):
                async with session.get(f"https://127.0.0.1:{cloud.port}{path}") as answer:
                    seen.append(await answer.read())
        assert json.loads(seen[-1]).keys() >= {"run", "rounds", "status", "budget"}

    async with (
        serving(plan_for(paper), keys, tmp_path / "run.db", rounds=3) as cloud,
        peer(cloud, keys, "agents/1-7") as one,
    ):
        await one.hello(ALL)
        good = struct.pack("<4q", *[CANARY] * 4)
        for values in (good[:-8] + struct.pack("<q", 2**60), good, good[:-8] + bytes(8)):
            await one.say({"type": "contribution", "round": 1, "values": values})
            seen.append((await one.socket.receive(timeout=5)).data)
        await one.say({"type": "contribution", "round": 2, "values": good})
        seen.append((await one.socket.receive(timeout=5)).data)
        await observe(cloud)
        await one.say({"type": "contribution", "round": 1, "values": good, "more": CANARY})
        seen.append((await one.socket.receive(timeout=5)).data)
    seen += [repr(summarise(tmp_path / "run.db")).encode()]
    seen += [words_of(record) for record in caplog.records]
    assert len(seen) > 20
    assert not [part for part in seen if leaks(part)]
    assert leaks(f"values = {CANARY}")
    assert leaks(struct.pack("<q", CANARY))
