from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chromium import CHROMIUM, Tab, browser
from network_harness import member, plan_for, run, serving

from sottovoce.network.agent import AgentResult
from sottovoce.network.cloud import Cloud
from sottovoce.network.observe.live_page import PageLink
from sottovoce.privacy.ledger import Ledger
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs the package chromium, got no such command"),
]

PICTURES = Path(os.environ.get("SOTTOVOCE_PICTURES", "out/browser"))
SOAK_MINUTES = float(os.environ.get("SOTTOVOCE_SOAK_MINUTES", "30"))
SOAK_ROUNDS = 200_000


class Crew:
    """Agents of a problem, each a task that may be lost and come back."""

    def __init__(self, problem: Problem, cloud: Cloud, keys: Path, folder: Path) -> None:
        self._own = (problem, cloud, keys, folder)
        self.tasks = {i: self._start(i) for i in range(1, problem.agents + 1)}

    def _start(self, i: int) -> asyncio.Task[AgentResult]:
        problem, cloud, keys, folder = self._own
        return asyncio.create_task(member(problem, [i], cloud, keys, folder).run())

    async def lose(self, i: int) -> None:
        self.tasks[i].cancel()
        await asyncio.gather(self.tasks[i], return_exceptions=True)

    def bring_back(self, i: int) -> None:
        self.tasks[i] = self._start(i)

    async def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


@asynccontextmanager
async def opened(cloud: Cloud, keys: Path) -> AsyncIterator[Tab]:
    """The page of a cloud in a browser that came by the link."""
    async with PageLink(keys / "operator", cloud.port) as link, browser() as tab:
        await tab.command("Page.navigate", url=link.url)
        await tab.until("document.querySelector('#link')?.textContent === 'live'")
        yield tab


@pytest.mark.timeout(240)
def test_the_page_follows_a_run_that_loses_an_agent_and_ends(keys: Path, tmp_path: Path) -> None:
    problem = gallery.paper()

    async def main() -> None:
        ledger = Ledger(tmp_path / "ledger.db")
        names = [f"x{i}" for i in range(1, 8)]
        ledger.grant(names, 2.0, 0.05, hide="trajectory", radius=1.0)
        plan = plan_for(problem)
        cloud = Cloud(plan, keys=keys, store=tmp_path / "run.db", rounds=1500, ledger=ledger)
        await cloud.start()
        async with opened(cloud, keys) as tab:
            await watch(tab, cloud, Crew(problem, cloud, keys, tmp_path))

    async def watch(tab: Tab, cloud: Cloud, crew: Crew) -> None:
        await tab.until("document.querySelector('#connected').textContent === '7'")
        await tab.until("Number(document.querySelector('#progress').value) > 200")
        await crew.lose(3)
        await tab.until("document.querySelector('#absent').textContent === '1 missing'")
        await tab.until("document.querySelector('#missing tbody').textContent.startsWith('x3')")
        await tab.until("document.querySelector('#people .bad')?.textContent === 'x3 missing'")
        await tab.until("/no round for/.test(document.querySelector('#waited').textContent)")
        assert await tab.text("#rate") != ""
        for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
            await tab.look(width, dark=dark)
            await tab.screenshot(PICTURES / f"{width}-{'dark' if dark else 'light'}.png")
            assert await tab.value("document.documentElement.scrollWidth <= innerWidth")
        await tab.look(1280, dark=False)
        crew.bring_back(3)
        await tab.until("document.querySelector('#absent').textContent === 'nobody is missing'")
        await tab.until("Number(document.querySelector('#progress').value) > 1200")
        await tab.screenshot(PICTURES / "running.png")
        await tab.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        await cloud.finished(linger=30)
        await tab.until("document.querySelector('#phase').textContent === 'done'", 10)
        await check_the_end(tab)
        await crew.end()
        await cloud.stop()
        await tab.until("document.querySelector('#link').textContent === 'ended'")
        await tab.screenshot(PICTURES / "ended.png")
        assert tab.complaints == []
        assert {url.split("/")[2] for url in tab.requested} == {tab.requested[0].split("/")[2]}

    run(main(), patience=200)


async def check_the_end(tab: Tab) -> None:
    assert await tab.text("#round") == "1,500"
    assert await tab.value("document.querySelectorAll('#prices figure').length") == 4
    assert await tab.value("document.querySelectorAll('#constraints figure').length") == 4
    lines = await tab.value(
        "[...document.querySelectorAll('.chart .line')].map((l) => l.getAttribute('d').length)"
    )
    assert min(lines) > 100
    limits = await tab.value("document.querySelectorAll('#constraints .limit').length")
    assert limits == 4
    await tab.until("document.querySelector('#constraints-table tbody tr') !== null")
    assert await tab.value("document.querySelectorAll('#budget tbody tr').length") == 7
    assert "differentially private or better" in await tab.text("#promise")
    assert await tab.value("document.querySelector('svg.chart').ariaLabel.length") > 20
    # Charts have a name, tables heads, and whoever uses a keyboard sees where they are.
    await tab.value("document.querySelector('#pause').focus()")
    await tab.command("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert await tab.value("document.activeElement.id") == "span"
    assert await tab.value(outline) == "solid"


@pytest.mark.slow
@pytest.mark.timeout(2 * SOAK_MINUTES * 60 + 300)
def test_the_browsers_memory_stays_flat_beside_a_long_run(keys: Path, tmp_path: Path) -> None:
    rounds = int(SOAK_ROUNDS * SOAK_MINUTES / 30)
    pace = SOAK_MINUTES * 60 / rounds
    spawn = multiprocessing.get_context("spawn")

    async def main() -> None:
        plan = plan_for(gallery.paper())
        async with serving(plan, keys, tmp_path / "run.db", rounds=rounds) as cloud:
            words = (keys, tmp_path, cloud.port, pace)
            gateway = spawn.Process(target=paced_gateway, args=words, daemon=True)
            gateway.start()
            try:
                async with opened(cloud, keys) as tab:
                    found = await observed(tab, cloud, rounds)
                    assert tab.complaints == []
            finally:
                gateway.kill()
                gateway.join()
        heap = [megabytes for megabytes, _ in found]
        nodes = [count for _, count in found]
        print(found)  # noqa: T201  with -s: what was measured
        assert max(heap) < heap[0] + 2.0
        assert max(nodes) < nodes[0] + 200

    async def observed(tab: Tab, cloud: Cloud, rounds: int) -> list[tuple[float, int]]:
        """Memory at ten moments of the run, the first a tenth into it."""
        found = []
        for tenth in range(1, 11):
            while cloud.round < tenth * rounds // 10:
                await asyncio.sleep(0.5)
            found.append(await tab.memory())
        await tab.until("document.querySelector('#phase').textContent === 'done'")
        return found

    run(main(), patience=2 * SOAK_MINUTES * 60 + 200)


def paced_gateway(keys: Path, folder: Path, port: int, pace: float) -> None:
    """All agents of the paper's problem in a process of their own, a round every so often."""
    began = time.monotonic()

    def wait(k: int, setpoint: object, which: str) -> None:
        time.sleep(max(0.0, began + k * pace - time.monotonic()))

    asyncio.run(member(gallery.paper(), list(range(1, 8)), port, keys, folder, on_state=wait).run())
