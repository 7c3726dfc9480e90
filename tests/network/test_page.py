from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
from network_harness import member, page, plan_for, serving

import sottovoce as sv
from formula_values import evaluate
from plans import certified
from sottovoce.network import identity
from sottovoce.network.cloud import Cloud
from sottovoce.network.failures import DiskError
from sottovoce.network.identity import revoke_certificate
from sottovoce.network.identity.tls import client_context
from sottovoce.network.observe import live_page as live
from sottovoce.network.observe.charts import (
    POINTS,
    TICK_SECONDS,
    WINDOW,
    Samples,
    ShownConstraints,
)
from sottovoce.network.observe.live_page import budget_rows
from sottovoce.network.observe.operator_pages import TURNED_AWAY
from sottovoce.network.protocol.actions import Record
from sottovoce.network.protocol.messages import Code
from sottovoce.network.store import CloudStore
from sottovoce.privacy.adjacency import Offset, Trajectory
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.plan import plan as make
from sottovoce.problem.groups import Array
from sottovoce.problem.problem import Problem

FOLDER = Path(live.__file__).parent / "page"
ALL = list(range(1, 8))


class Watcher:
    """Asks as the page does."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self.about: dict[str, Any] = {}
        self.points: list[Any] = []

    async def ask(self) -> dict[str, Any]:
        """What is new."""
        seen = int(self.points[-1][0]) if self.points else 0
        query = {"run": self.about["run"], "seen": seen} if self.about else {}
        async with self._session.get(self._url, params=query) as answer:
            data: dict[str, Any] = await answer.json()
        if data.get("run"):
            self.about, self.points = data["run"], []
        self.points += data.get("rounds", {}).get("points", [])
        return data

    async def status(self) -> int:
        """The status of an answer; 0 where a new connection was refused after a refusal."""
        try:
            async with self._session.get(self._url) as answer:
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def until_over(self) -> dict[str, Any]:
        """Ask until the end; what was answered last."""
        while not (data := await self.ask())["over"]:
            await asyncio.sleep(0.3)
        return data


@asynccontextmanager
async def watching(cloud: Cloud, keys: Path) -> AsyncIterator[Watcher]:
    connector = aiohttp.TCPConnector(ssl=client_context(keys / "operator"))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Watcher(session, f"https://127.0.0.1:{cloud.port}/data")


async def statuses(cloud: Cloud, keys: Path, who: str, *paths: str) -> set[int]:
    """All on one connection: handshakes are limited."""
    connector = aiohttp.TCPConnector(ssl=client_context(keys / who))
    async with aiohttp.ClientSession(connector=connector) as session:
        found = set()
        for path in paths:
            async with session.get(f"https://127.0.0.1:{cloud.port}{path}") as answer:
                found.add(answer.status)
        return found


async def test_the_page_its_files_and_its_data_are_the_operators(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud:
        own = ("/", *(f"/page/{name}" for name in live.TYPES))
        assert await statuses(cloud, keys, "agents/1", *own, "/data") == {403}
        assert await statuses(cloud, keys, "operator", *own) == {200}
        others = ("/page/live.py", "/page/..%2Fcloud.py", "/page/")
        assert await statuses(cloud, keys, "operator", *others) == {404}


async def test_every_answer_of_the_page_has_a_strict_policy_and_is_not_stored(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    connector = aiohttp.TCPConnector(ssl=client_context(keys / "operator"))
    async with (
        serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        for path in ("/", "/data", *(f"/page/{name}" for name in live.TYPES)):
            async with session.get(f"https://127.0.0.1:{cloud.port}{path}") as answer:
                policy = answer.headers["Content-Security-Policy"].split("; ")
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "require-trusted-types-for 'script'" in policy
                assert not re.search("unsafe|data:|https?:|\\*", " ".join(policy))
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    html = (FOLDER / live.INDEX).read_text("utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script(?![^>]* src=)", html)
    for name in live.TYPES:
        text = (FOLDER / name).read_text("utf-8")
        for address in re.findall(r"(?:https?:)?//[a-z][^\s\"'`)]*", text):
            assert address == "http://www.w3.org/2000/svg"  # a name, never fetched
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    named = set(re.findall(r"(?:src|href|from)\s*=?\s*\"/page/([\w.]+)\"", html))
    assert named <= set(live.TYPES)


def test_everything_that_may_be_refused_has_a_meaning_on_the_page() -> None:
    script = (FOLDER / "page.js").read_text("utf-8")
    table = script.partition("const MEANING = {")[2].partition("};")[0]
    explained = set(re.findall(r"^  \"?([\w-]+)\"?: \"", table, re.MULTILINE))
    assert explained == {code.value for code in Code} | set(TURNED_AWAY)


def luminance(colour: str) -> float:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_keep_the_contrast_that_weak_eyes_need(theme: int) -> None:
    style = (FOLDER / "page.css").read_text("utf-8")
    themes = [dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in style.split("@media")[:2]]
    colours = themes[theme]
    least = {"text": 4.5, "muted": 4.5, "good": 4.5, "warn": 4.5, "bad": 4.5}
    least |= {"accent": 4.5, "limit": 3.0, "control": 3.0}
    for name, wanted in least.items():
        for ground in ("ground", "surface"):
            light, dark = sorted((luminance(colours[name]), luminance(colours[ground])))[::-1]
            assert (light + 0.05) / (dark + 0.05) >= wanted, (name, ground)


async def test_data_tell_what_the_run_is_where_it_is_and_how_it_ends(
    paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TICK_SECONDS", 0.02)
    cloud = Cloud(plan_for(paper), keys=keys, store=tmp_path / "run.db", rounds=60)
    await cloud.start()
    async with watching(cloud, keys) as watcher:
        first = await watcher.ask()
        about = first["run"]
        assert (about["rounds"], about["agents"], about["private"]) == (60, 7, True)
        assert about["prices"] == ["g1", "g2", "g3", "g4"]
        assert [c["sigma"] for c in about["constraints"]] == [4.0] * 4
        assert about["promise"].startswith("Promise, for all")
        assert first["rounds"]["points"] == []
        assert (first["status"]["missing"], first["status"]["connected"]) == (7, 0)
        assert len(first["budget"]["rows"]) == 7
        assert (await watcher.ask())["run"] is None
        await member(paper, ALL, cloud, keys, tmp_path).run()
        before = await watcher.ask()
        assert not before["over"]
        last, _ = await asyncio.gather(watcher.until_over(), cloud.stop())
    assert (last["rounds"]["round"], last["status"]["phase"]) == (60, "done")
    points = watcher.points
    assert all(len(point) == 1 + 3 * 8 for point in points)
    assert [point[0] for point in points] == sorted({point[0] for point in points})
    assert points[-1][0] == 60
    assert points[-1][1:5] == pytest.approx(cloud._machine.answer, rel=1e-5)


async def test_a_round_that_was_not_committed_is_not_shown(
    paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = CloudStore.commit

    def full(self: CloudStore, record: Record, *rest: Any) -> None:
        if record.k == 2:
            raise DiskError("the disk is full")
        commit(self, record, *rest)

    monkeypatch.setattr(CloudStore, "commit", full)

    cloud = Cloud(plan_for(paper), keys=keys, store=tmp_path / "run.db", rounds=5)
    await cloud.start()
    task = asyncio.create_task(member(paper, ALL, cloud, keys, tmp_path).run())
    async with watching(cloud, keys) as watcher:
        with pytest.raises(DiskError):
            await cloud.finished()
        task.cancel()
        await watcher.ask()
        last, _ = await asyncio.gather(watcher.until_over(), cloud.stop())
    assert last["rounds"]["round"] == 1  # whoever starts it again draws other noise for round 2
    assert watcher.points[-1][0] == 1
    assert last["status"]["failed"]


async def test_a_page_opened_late_gets_the_points_it_has_missed(
    paper: Problem, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TICK_SECONDS", 0.01)

    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=60) as cloud:
        await member(paper, ALL, cloud, keys, tmp_path).run()
        await asyncio.sleep(0.05)
        async with watching(cloud, keys) as watcher:
            data = await watcher.ask()
            assert data["rounds"]["round"] == 60
            assert len(data["rounds"]["points"]) > 1
            assert data["rounds"]["points"][-1][0] == 60
            assert data["status"]["phase"] == "done"
            assert (await watcher.ask())["rounds"]["points"] == []
            watcher.about["run"] = "another"
            assert len((await watcher.ask())["rounds"]["points"]) > 1


async def test_pages_share_the_rate_of_their_certificate(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    async with serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud:
        assert (await page(cloud, keys, "operator", "/data?run=x&seen=-1"))[0] == 200
        async with watching(cloud, keys) as watcher:
            codes = [await watcher.status() for _ in range(30)]
        assert codes[0] == 200
        assert 429 in codes
        assert cloud._metrics.turned_away["pages"] > 0


async def test_a_revoked_operator_sees_no_more(paper: Problem, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    identity.create_keys(folder, agents=7)
    async with serving(plan_for(paper), folder, tmp_path / "run.db", rounds=5) as cloud:
        assert await statuses(cloud, folder, "operator", "/data") == {200}
        revoke_certificate(folder, folder / "operator" / "cert.pem")
        await asyncio.sleep(2.5)
        assert await statuses(cloud, folder, "operator", "/data") == {403}


async def test_an_idle_connection_that_had_its_answer_is_closed_and_not_counted_as_an_offence(
    paper: Problem, keys: Path, tmp_path: Path
) -> None:
    connector = aiohttp.TCPConnector(ssl=client_context(keys / "operator"))
    async with (
        serving(plan_for(paper), keys, tmp_path / "run.db", rounds=5) as cloud,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        async with session.get(f"https://127.0.0.1:{cloud.port}/") as answer:
            await answer.read()
        silent = await asyncio.open_connection(
            "127.0.0.1", cloud.port, ssl=client_context(keys / "operator")
        )
        listener = cloud._server
        while len(listener.connections) < 2:
            await asyncio.sleep(0.01)
        for connection in listener.connections:
            connection.due = 0.0  # as after ten seconds
        listener.check()
        assert cloud._metrics.turned_away["request"] == 1  # the one that asked for nothing
        while listener.connections:
            await asyncio.sleep(0.01)
        silent[1].close()


def sampled(k: int, price: Array, released: Array) -> Record:
    return Record(
        k=k,
        parts=(),
        sent_price=price,
        price=price,
        answer=price,
        released=released,
        y=np.zeros(0),
        digest=b"",
    )


def test_points_stay_bounded_and_keep_every_extreme_that_was_sampled(paper: Problem) -> None:
    samples = Samples(ShownConstraints.of(plan_for(paper)))
    generator = np.random.default_rng(1)
    seen = []
    for k in range(1, 4 * POINTS):
        price = generator.normal(size=4)
        seen.append(price)
        release = generator.normal(size=4)
        samples.add(sampled(k, price, release))
        assert len(samples.points) < POINTS
    low, high = samples.points[:, 9:13].min(axis=0), samples.points[:, 17:21].max(axis=0)
    np.testing.assert_allclose(low, np.min(seen, axis=0), rtol=1e-5)
    np.testing.assert_allclose(high, np.max(seen, axis=0), rtol=1e-5)
    rounds = samples.points[:, 0].tolist()
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == 4 * POINTS - 1
    assert samples.after(0)["averaged"] == WINDOW


def test_a_tick_of_the_page_costs_a_small_part_of_its_time() -> None:
    n = 32
    x = sv.agents(n, lower=0, upper=1)
    constraints = [x[i] + x[(i + 1) % n] <= 1 for i in range(n)]
    problem = Problem(agents=x, objectives=[a**2 for a in x], constraints=constraints)
    samples = Samples(ShownConstraints.of(plan_for(problem)))
    began, ticks = time.thread_time(), 100
    for k in range(1, ticks + 1):
        value = np.full(n, 1.0 / k)
        samples.add(sampled(k, value, value))
        assert len(samples.points) == k
        assert len(msgspec.json.encode(samples.after(k - 1))) > 3 * 2 * n
    spent = (time.thread_time() - began) / ticks
    assert spent < 0.01 * TICK_SECONDS


def test_constraints_are_shown_against_their_limits(paper: Problem, coupled: Problem) -> None:
    stated = ShownConstraints.of(plan_for(paper))
    sums = paper.cloud.sums
    assert [row["upper"] for row in stated.rows] == sums.upper.tolist()
    assert [row["lower"] for row in stated.rows] == [None] * 4
    releases = np.arange(12.0).reshape(3, 4)
    expected = [releases.mean(axis=0), releases.min(axis=0), releases.max(axis=0)]
    assert stated.spread(releases).tolist() == np.array(expected).tolist()
    mixed = ShownConstraints.of(plan_for(coupled))
    held = coupled.cloud.sums
    at = np.linspace(0.5, 1.0, held.count)[None]
    for row, shown in zip(mixed.rows, mixed.spread(at).T, strict=True):
        region = next((r for r in held.regions if r.name == row["name"]), None)
        if region is None:
            assert shown[0] == at[0, held.labels.index(row["name"])]
            continue
        phi = evaluate(region.phi, dict(zip(region.symbols, at[0, list(region.rows)], strict=True)))
        assert shown[0] == pytest.approx(float(phi))
        assert (row["upper"], row["sigma"]) == (0.0, None)
    values = ShownConstraints.of(plan_for(coupled, method="paper"))
    assert [row["upper"] for row in values.rows] == [0.0] * coupled.cloud.rows


def test_constraints_are_shown_with_what_is_aimed_at(paper: Problem) -> None:
    hide = Trajectory(radius=0.01, rounds=1000)
    plan = make(certified("paper"), epsilon=1.0, delta=0.01, hide=hide, feasible=0.95)
    assert plan.feasible is not None
    rows = ShownConstraints.of(plan).rows
    assert [row["aims"] for row in rows] == [(aim,) for aim in plan.feasible.target.upper.tolist()]
    assert all(row["upper"] is not None and row["aims"][0] < row["upper"] for row in rows)
    assert all(row["aims"] == () for row in ShownConstraints.of(plan_for(paper)).rows)


def test_the_budget_lists_what_the_ledger_knows_least_left_first(
    paper: Problem, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    plan = plan_for(paper, hide=Offset(radius=1.0, rounds=5))
    ledger.grant([f"x{i}" for i in range(1, 7)], 2.0, 0.05, hide="offset", radius=1.0)
    ledger.grant(["x7", "x9"], 1.0, 0.05, hide="offset", radius=1.0)
    ledger.spend("run", plan.charges())
    lines = budget_rows(plan, ledger)
    assert lines["ledger"]
    rows = lines["rows"]
    assert rows[0]["agent"] == "x7"
    assert len(rows) == 7
    for row in rows:
        account = ledger.account(row["agent"])
        assert float(row["spent"]) >= account.spent
        assert float(row["remaining"]) <= account.remaining
    alone = budget_rows(plan, None)
    assert not alone["ledger"]
    assert all(set(row) == {"agent", "run"} for row in alone["rows"])


def test_a_ledger_that_cannot_be_read_is_said_and_stops_nothing(
    paper: Problem, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute("DROP TABLE accounts")
    lines = budget_rows(plan_for(paper), ledger)
    assert lines["trouble"]
    assert len(lines["rows"]) == 7
