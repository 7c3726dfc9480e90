"""Revocation, expiry and health go on whatever happens to the files and tasks behind them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from network_harness import member, page, peer, plan_for, serving

from sottovoce.errors import NetworkError
from sottovoce.network import service as service_module
from sottovoce.network.cloud import Cloud
from sottovoce.network.failures import RefusedError, StoreError
from sottovoce.network.identity import revoke_certificate
from sottovoce.network.identity.certificates import Authorization, Identity
from sottovoce.network.observe import operator_pages as pages_module
from sottovoce.network.process import Supervisor
from sottovoce.network.protocol.messages import Code
from sottovoce.problem.problem import Problem

TICK = 0.02


class Trouble:
    """Makes every look at a file fail as if its folder could not be read, while ``number`` says."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self.looks = 0
        real: Any = Path.stat

        def stat(this: Path, **options: Any) -> os.stat_result:
            if this == path:
                self.looks += 1
                if self.number:
                    raise OSError(self.number, os.strerror(self.number))
            found: os.stat_result = real(this, **options)
            return found

        monkeypatch.setattr(Path, "stat", stat)

    async def seen(self) -> None:
        """Wait until somebody has looked, thrice."""
        enough = self.looks + 3
        for _ in range(500):
            if self.looks >= enough:
                return
            await asyncio.sleep(TICK)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOENT])
async def test_an_unreadable_keys_folder_switches_off_neither_revocation_nor_health(
    number: int, paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "k"
    shutil.copytree(keys, mine)
    trouble = Trouble(mine / "revoked.txt", monkeypatch)
    monkeypatch.setattr(service_module, "TICK_SECONDS", TICK)

    async with serving(plan_for(paper), mine, tmp_path / "run.db", rounds=3) as cloud:
        trouble.number = number
        await trouble.seen()
        async with peer(cloud, mine, "agents/2") as one:  # the last good list lets it in
            assert (await one.hello([2]))["type"] == "welcome"
        monkeypatch.setattr(pages_module, "STALE_SECONDS", 0.0)
        status, text = await page(cloud, mine, "agents/2", "/healthz")
        assert status == 503
        assert "stale-revocations" in text
        monkeypatch.setattr(pages_module, "STALE_SECONDS", 10.0)
        revoke_certificate(mine, mine / "agents" / "1" / "cert.pem")
        trouble.number = 0
        await trouble.seen()
        with pytest.raises(RefusedError) as caught:
            await member(paper, [1], cloud, mine, tmp_path).run()
        assert caught.value.code is Code.REVOKED
        assert (await page(cloud, mine, "agents/2", "/healthz"))[0] == 200
        metrics = (await page(cloud, mine, "operator", "/metrics"))[1]
        assert "sottovoce_revocations_unreadable_total 0.0\n" not in metrics


def test_a_list_caught_while_it_is_rewritten_lets_nobody_in(keys: Path, tmp_path: Path) -> None:
    mine = tmp_path / "k"
    shutil.copytree(keys, mine)
    serial = revoke_certificate(mine, mine / "agents" / "1" / "cert.pem")
    who = Identity(agents=(range(1, 2),), serial=serial)
    authorization = Authorization(mine)
    assert authorization.objection(who) is Code.REVOKED
    (mine / "revoked.txt").write_text("")
    authorization.reload()
    assert authorization.objection(who) is Code.REVOKED


@pytest.mark.parametrize("error", [ValueError("0.1234"), asyncio.CancelledError(), None])
async def test_if_a_background_task_ends_the_process_ends(
    error: BaseException | None,
    paper: Problem,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_module, "TICK_SECONDS", TICK)

    async def ended(cloud: Cloud) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(Cloud, "_tick", ended)
    cloud = Cloud(plan_for(paper), rounds=3, keys=keys, store=tmp_path / "run.db")
    with pytest.raises(NetworkError, match="background task 'tick' must not end") as caught:
        await asyncio.wait_for(cloud.run(), 10)
    assert "0.1234" not in str(caught.value)


async def test_a_background_task_that_fails_with_a_named_error_keeps_it() -> None:
    failures: list[Exception] = []
    supervisor = Supervisor(failures.append)

    async def full() -> None:
        raise StoreError("the disk is full")

    async def forever() -> None:
        await asyncio.sleep(60)

    supervisor.start("full", full())
    supervisor.start("forever", forever())
    await asyncio.sleep(0.01)
    assert [str(failure) for failure in failures] == ["the disk is full"]
    await supervisor.stop()
    assert len(failures) == 1  # to be told to stop is no failure
