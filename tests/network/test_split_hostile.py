"""Halves, agents and keys that are not what they should be: refused, and nothing leaks."""

from __future__ import annotations

import asyncio
import logging
import re
import struct
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from msgspec.structs import replace
from network_harness import (
    Site,
    free_port,
    helping,
    member,
    run,
    serving,
    split_plan,
    taking_part,
    words_of,
)
from test_chaos import rounds_done, start

from sottovoce.network import cloud as cloud_module
from sottovoce.network.cloud import Cloud
from sottovoce.network.failures import DivergedError, HaltedError, IdentityError, RefusedError
from sottovoce.network.helper import Helper
from sottovoce.network.identity.tls import client_context
from sottovoce.network.masks import Masker
from sottovoce.network.protocol.actions import Setup
from sottovoce.network.protocol.codec import Integers, decode_from_helper, pack_whole
from sottovoce.network.protocol.messages import Code
from sottovoce.network.store import summarise
from sottovoce.network.transport.server import Server
from sottovoce.privacy.ledger import Ledger
from sottovoce.problem.problem import Problem

ALONE = [[i] for i in range(1, 8)]


async def refused(problem: Problem, cloud: Cloud, keys: Path, folder: Path) -> RefusedError:
    """How an agent ends that meets this cloud."""
    with pytest.raises(RefusedError) as found:
        await member(problem, [3], cloud, keys, folder).run()
    return found.value


async def test_an_agent_with_a_helpers_key_refuses_a_cloud_without(split_site: Site) -> None:
    own = split_site.keys / "cloud"
    async with serving(split_site.plan(), own, split_site.store, rounds=3) as cloud:
        error = await refused(split_site.problem, cloud, split_site.keys, split_site.folder)
    assert error.code is Code.OTHER_RUN
    assert "these keys ask for a helper, and the run has none" in str(error)


@pytest.mark.parametrize("lie", ["grid", "lower", "upper", "sums"])
def test_an_agent_goes_by_what_both_halves_say(
    split_site: Site, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Setup.welcome

    def lying(*args: Any) -> Any:
        """A finer grid or wider bounds would make contributions large against the noise."""
        honest = said(*args)
        if lie == "sums":
            return replace(honest, sums=[*honest.sums[:-1], honest.sums[-1] + 1])
        numbers = np.frombuffer(getattr(honest, lie), "<f8")
        numbers = numbers / 1024 if lie == "grid" else numbers * 2
        return replace(honest, **{lie: numbers.tobytes()})

    monkeypatch.setattr(Setup, "welcome", lying)

    async def main() -> RefusedError:
        async with split_site.halves(rounds=3) as (cloud, _):
            return await refused(split_site.problem, cloud, split_site.keys, split_site.folder)

    assert "the helper has not signed what the cloud asks for" in str(run(main()))


async def test_a_helper_does_not_pass_for_the_cloud_nor_talk_to_agents(split_site: Site) -> None:
    plan = split_plan(split_site.problem)
    async with helping(plan, split_site.keys, split_site.folder / "helper.db") as helper:
        connector = aiohttp.TCPConnector(ssl=client_context(split_site.keys / "agents" / "3"))
        url = f"https://127.0.0.1:{helper.port}/"
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url) as answer,
        ):
            assert answer.status == 403  # only the cloud may ask
    # A server with the helper's certificate in the place of the cloud.
    own = split_site.keys / "helper"
    async with serving(split_site.plan(), own, split_site.store, rounds=3) as cloud:
        error = await refused(split_site.problem, cloud, split_site.keys, split_site.folder)
        assert "must be a split cloud by its certificate" in str(error)


async def test_cloud_and_helper_with_other_plans_do_not_run(split_site: Site) -> None:
    async with helping(
        split_plan(split_site.problem, sigma=1.0), split_site.keys, split_site.folder / "h"
    ) as helper:
        url = f"wss://127.0.0.1:{helper.port}"
        own = split_site.keys / "cloud"
        plan = split_plan(split_site.problem)
        async with serving(plan, own, split_site.folder / "r", rounds=3, helper=url) as cloud:
            with pytest.raises(HaltedError, match="with the same plan"):
                await cloud.finished()
    assert summarise(split_site.folder / "h").incidents == {"other-run": 1}


def test_a_helper_with_a_ledger_answers_no_run_that_it_does_not_cover(split_site: Site) -> None:
    ledger = Ledger(split_site.folder / "ledger.db")
    ledger.grant(split_site.problem.cloud.agent_labels(), 1.1, 0.05, hide="trajectory", radius=1.0)

    async def one(name: str) -> int:
        folder = split_site.folder / name
        folder.mkdir()
        plan, store = split_plan(split_site.problem), folder / "helper.db"
        async with helping(plan, split_site.keys, store, ledger=ledger) as helper:
            url, own = f"wss://127.0.0.1:{helper.port}", split_site.keys / "cloud"
            async with serving(plan, own, folder / "run.db", rounds=3, helper=url) as cloud:
                agents = [
                    member(split_site.problem, i, cloud, split_site.keys, folder) for i in ALONE
                ]
                async with taking_part(*agents):
                    done = asyncio.create_task(cloud.finished(linger=5))
                    failed = asyncio.create_task(helper._outcome._ended.wait())
                    await asyncio.wait([done, failed], return_when=asyncio.FIRST_COMPLETED)
                for task in (done, failed):
                    task.cancel()
                await asyncio.gather(done, failed, return_exceptions=True)
                return int(helper.round)

    assert [run(one(name)) for name in ("first", "second")] == [3, 3]
    assert run(one("third")) == 0  # the same agents, once more: their budgets are spent


async def test_a_mask_that_does_not_fit_ends_the_run_and_is_never_sent(
    split_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    cover = Masker.mask

    def broken(self: Masker, config: bytes, k: int, values: Integers) -> bytes:
        sent = cover(self, config, k, values)
        return sent if k < 3 else sent[:-1] + bytes([sent[-1] ^ 0x10])

    monkeypatch.setattr(Masker, "mask", broken)

    async with split_site.halves(rounds=9) as (cloud, _):
        async with taking_part(*(split_site.member(cloud, *i) for i in ALONE)) as tasks:
            with pytest.raises(DivergedError, match="a sum left its certified range"):
                await cloud.finished()
            assert cloud.round == 2
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(e) for e in ended} == {RefusedError}


async def test_planted_contributions_never_show_in_anything_either_half_can_reach(
    split_site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    raw: list[Integers] = []
    seen: list[bytes] = []
    cover, hear = Masker.mask, Server._hear

    def noted(self: Masker, config: bytes, k: int, values: Integers) -> bytes:
        raw.append(values.copy())
        return cover(self, config, k, values)

    def at_either_half(self: Server, peer: int, data: bytes) -> None:
        seen.append(bytes(data))
        hear(self, peer, data)

    def back(frame: bytes) -> Any:
        seen.append(bytes(frame))
        return decode_from_helper(frame)

    monkeypatch.setattr(Masker, "mask", noted)
    monkeypatch.setattr(Server, "_hear", at_either_half)
    monkeypatch.setattr(cloud_module, "decode_from_helper", back)
    states: list[float] = []
    settings: dict[str, Any] = {"rounds": 12, "keep_states": True}
    async with split_site.halves(**settings) as (cloud, _):
        agents = [split_site.member(cloud, *i) for i in ALONE]
        ended = await asyncio.gather(*(agent.run() for agent in agents))
        states.extend(float(x) for e in ended for x in (*e.x, *e.last_x))
    assert len(seen) > 12 * 9
    files = [path for path in split_site.folder.iterdir() if not path.name.endswith(".state")]
    files = [path for path in files if ".state" not in path.name]
    assert {"run.db", "helper.db"} <= {path.name for path in files}
    seen += [path.read_bytes() for path in files]
    logs = b" ".join(words_of(record) for record in caplog.records)
    values = {int(v) for row in raw for v in row if abs(int(v)) > 2**20}
    assert len(values) > 40
    # Patterns that nothing else looks like: two contributions of an agent, states of many digits.
    # Under 1,000 of 8 bytes in under 1 MB of masks, digests and noise: false alarms below 1e-10.
    patterns = [pack_whole(row) for row in raw if row.size > 1 and np.all(np.abs(row) > 2**20)]
    patterns += [struct.pack("<d", x) for x in states if (x * 2**20) % 1]
    assert len(patterns) > 20
    everything = b"\xff".join(seen)
    assert not [p for p in patterns if p in everything]
    assert not [v for v in values if re.search(rb"\b%d\b" % v, logs)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_contribution_is_in_the_memory_of_either_half(
    split_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw: list[bytes] = []
    masked: list[bytes] = []
    cover = Masker.mask

    def noted(self: Masker, config: bytes, k: int, values: Integers) -> bytes:
        sent = cover(self, config, k, values)
        if values.size > 1:
            raw.append(pack_whole(values))
            masked.append(sent[16:])
        return sent

    monkeypatch.setattr(Masker, "mask", noted)
    port, second = free_port(), free_port()
    crew = [
        start("cloud", port, split_site.keys, split_site.folder, 100_000, "--helper", second),
        start("helper", second, split_site.keys, split_site.folder),
    ]

    dumps: list[bytes] = []  # asyncio would write a result of this size out for its task's name

    async def main() -> None:
        agents = [split_site.member(port, *i) for i in ALONE]
        async with taking_part(*agents):
            while rounds_done(split_site.store) < 30:
                await asyncio.sleep(0.05)
            for process in crew:
                process.send_signal(19)  # SIGSTOP: the dump is of one moment
            dumps.extend(memory_of(process.pid) for process in crew)
            for process in crew:
                process.kill()  # agents would wait for a stopped peer to close its connection
                process.wait()

    try:
        asyncio.run(main())
    finally:
        for process in crew:
            process.kill()
            process.wait()
    cloud, helper = dumps
    last = [word for word in dict.fromkeys(raw[-40:]) if word.strip(b"\0")]
    assert len(last) > 10
    assert any(word in cloud for word in masked[-40:])  # what is there can be found
    assert not [word for word in last if word in cloud or word in helper]


PAGE = 4096


def memory_of(pid: int) -> bytes:
    """Everything that a process can write to, pages of zeros apart: they hold no word."""
    parts: list[bytes] = []
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if rights.startswith("rw"):
                begin, end = (int(part, 16) for part in span.split("-"))
                memory.seek(begin)
                try:
                    data = memory.read(end - begin)
                except OSError:
                    continue
                pages = (data[at : at + PAGE] for at in range(0, len(data), PAGE))
                parts.append(b"".join(page for page in pages if page.count(0) < len(page)))
    return b"\xff".join(parts)


async def test_a_helper_of_another_version_ends_the_run_before_it_begins(split_site: Site) -> None:
    plan = split_plan(split_site.problem)
    async with helping(plan, split_site.keys, split_site.folder / "helper.db") as helper:
        helper._server.protocols = ("sottovoce.helper.4", "sottovoce.6")
        url, own = f"wss://127.0.0.1:{helper.port}", split_site.keys / "cloud"
        async with serving(plan, own, split_site.store, helper=url, rounds=3) as cloud:
            with pytest.raises(RefusedError, match=r"must speak sottovoce\.helper\.3") as caught:
                await cloud.finished()
    assert caught.value.code is Code.VERSION


async def test_keys_without_a_key_for_masks_make_no_helper(site: Site) -> None:
    helper = Helper(split_plan(site.problem), keys=site.keys, store=site.folder / "h")
    with pytest.raises(IdentityError, match=r"key for masks|X25519"):
        await helper.start()
