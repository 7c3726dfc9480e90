from __future__ import annotations

import logging
from pathlib import Path

import aiohttp
import pytest
from network_harness import plan_for, run

from sottovoce.network.cloud import Cloud
from sottovoce.network.observe.live_page import PageLink
from sottovoce.problem.problem import Problem


def test_the_link_works_once_and_then_for_its_browser_alone(
    paper: Problem, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> str:
        cloud = Cloud(plan_for(paper), keys=keys, store=tmp_path / "run.db", rounds=5)
        await cloud.start()
        async with (
            PageLink(keys / "operator", cloud.port) as link,
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as own,
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as other,
        ):
            first, home = link.url, link.url.partition("/open/")[0]
            assert home.startswith("http://127.0.0.1:")
            for path in ("/", "/data", "/page/page.js", "/open/", "/open/guess"):
                assert (await status(own, home + path)) in (403, 404)
            assert not link.opened.is_set()
            assert (await status(own, first, Host="evil.example")) == 403
            async with own.get(first) as answer:
                assert answer.status == 200
                cookie = answer.headers["Set-Cookie"]
                assert "HttpOnly" in cookie
                assert "SameSite=Strict" in cookie
                assert first.rpartition("/")[2] not in cookie
            assert link.opened.is_set()
            for session in (own, other):
                assert (await status(session, first)) == 403
            for path, wanted in (("/", 200), ("/page/page.js", 200), ("/status", 404)):
                assert (await status(own, home + path)) == wanted
                assert (await status(other, home + path)) in (403, 404)
            async with own.get(home + "/data?seen=0") as answer:
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert (await answer.json())["run"]["rounds"] == 5
            await cloud.stop()
            assert (await status(own, home + "/")) == 502
            return first.rpartition("/")[2]

    token = run(main())
    assert not [r for r in caplog.records if token in repr(vars(r))]


async def status(session: aiohttp.ClientSession, url: str, **headers: str) -> int:
    async with session.get(url, headers=headers) as answer:
        return answer.status
