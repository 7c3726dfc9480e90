from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import Site, completed, member, plan_for, play, run, serving, some_rounds
from scipy import stats

from databases import sqlite
from sottovoce.errors import BudgetError, InputError, PrivacyError
from sottovoce.network.cloud import Cloud
from sottovoce.network.failures import DivergedError, HaltedError, RefusedError, StoreError
from sottovoce.network.journal_place import seal
from sottovoce.network.protocol.actions import Part, Record
from sottovoce.network.protocol.codec import pack
from sottovoce.network.protocol.collected import ContributionTotals
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.round_arithmetic import PriceState
from sottovoce.network.setup import parties_of
from sottovoce.network.store import summarise, transcript
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.adjacency import Offset, Trajectory
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.sampler import Released
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate

ALL = list(range(1, 8))
FAST = Tikhonov(gamma_bar=0.02)


@pytest.mark.parametrize("name", ["paper", "coupled"])
@pytest.mark.parametrize(
    ("method", "algorithm", "atol"), [("joint", None, 0.0), ("paper", FAST, 1e-12)]
)
def test_with_the_same_seed_the_iterates_equal_those_of_solve(
    name: str,
    method: str,
    algorithm: Any,
    atol: float,
    request: pytest.FixtureRequest,
    keys: Path,
    tmp_path: Path,
) -> None:
    problem: Problem = request.getfixturevalue(name)
    plan = plan_for(problem, method=method)
    settings: dict[str, Any] = {"rounds": 40, "seed": 3, "algorithm": algorithm}
    result, x = run(play(problem, plan, keys, tmp_path, **settings))
    here = simulate(problem, plan, **settings)
    np.testing.assert_allclose(x, here.x[0], rtol=0, atol=atol)  # bit for bit
    np.testing.assert_allclose(result.price, here.price[0], rtol=0, atol=atol)
    assert np.any(result.price > 0)  # the noise took part


def test_a_series_of_two_runs_equals_simulate_and_pins_its_start(site: Site) -> None:
    plan = site.plan()
    results: list[Any] = []
    for name in ("first", "second"):
        (site.folder / name).mkdir()
        warm = results[-1][0].memory if results else None
        settings: dict[str, Any] = {"rounds": 20, "seed": 3, "warm_start": warm}
        results.append(run(play(site.problem, plan, site.keys, site.folder / name, **settings)))
    alone = simulate(site.problem, plan, rounds=20, seed=3)
    both = simulate(site.problem, plan, rounds=20, seed=3, warm_start=alone)
    np.testing.assert_array_equal(results[1][1], both.x[0])
    np.testing.assert_array_equal(results[1][0].price, both.price[0])

    async def again(warm: Any) -> None:
        async with serving(
            plan, site.keys, site.folder / "second" / "run.db", rounds=20, seed=3, warm_start=warm
        ):
            pass

    run(again(alone.warm_start()))
    for other in (None, both.warm_start()):
        with pytest.raises(StoreError, match="warm_start"):
            run(again(other))


def test_files_of_a_finished_run_say_what_to_do(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    plan = site.plan()

    async def once(store: str) -> None:
        async with serving(plan, site.keys, site.folder / store, rounds=3) as cloud:
            await completed(cloud, site.member(cloud, *ALL))

    run(once("first.db"))
    words = (
        r"1-7.state is of another run, after 3 rounds; if that run is over, move the file away "
        "and start again"
    )

    async def refused() -> None:
        async with serving(plan, site.keys, site.folder / "second.db", rounds=3) as cloud:
            with pytest.raises(RefusedError, match=words):
                await site.member(cloud, *ALL).run()

    run(refused())
    with caplog.at_level(logging.WARNING, logger="sottovoce.network"):
        run(once("first.db"))  # late agents are told, and nothing is released
    (warned,) = (r for r in caplog.records if r.levelno >= logging.WARNING)
    assert warned.getMessage() == "run-over"
    assert "a new run needs a new store" in warned.fields["reason"]  # type: ignore[attr-defined]
    assert summarise(site.folder / "first.db").rounds == 3


def test_secure_runs_differ_and_store_integers_whose_noise_has_the_right_size(site: Site) -> None:
    plan = plan_for(site.problem, sigma=4.0)
    kept = []
    for name in ("a", "b"):
        (site.folder / name).mkdir()
        run(play(site.problem, plan, site.keys, site.folder / name, rounds=60, keep_states=True))
        kept.append(transcript(site.folder / name / "run.db"))
    releases = np.concatenate([run.multiples for run in kept])
    # No release came twice: of 120 with 4 draws of 27 bits each, false alarms below 1e-29.
    assert len({row.tobytes() for row in releases}) == 120
    assert kept[0].said is not None
    parties, totals = parties_of(plan), ContributionTotals(plan.cloud.sums.count)
    exact = [totals([Part(party=parties(a), data=d) for a, d in said]) for said in kept[0].said]
    noise = (kept[0].multiples - np.array(exact)) / 2**26
    low, high = stats.chi2.interval(1 - 1e-7, noise.size)  # false alarms: 1e-7
    assert low < np.square(noise).sum() < high


def test_prices_that_the_cloud_does_not_remember_are_refused(site: Site) -> None:
    settings: dict[str, Any] = {"rounds": 100_000, "parties": [ALL]}
    run(site.some_rounds(site.plan(), 3, **settings))
    store = site.store
    config = summarise(store).config
    assert config is not None
    digest, price = config.hash, pack(np.full(4, 0.125))
    write = "UPDATE rounds SET context = ?, digest = ?, seal = ? WHERE k = ?"
    for k, release in sqlite(store, "SELECT k, release FROM rounds ORDER BY k"):
        # Seals and digests are in order: only the cloud's memory can tell.
        digest = next_digest(digest, k, price, release)
        mark = seal(k.to_bytes(8, "little"), price, release, digest, b"")
        sqlite(store, write, price, digest, mark, k)
    (site.folder / "run.db.mark").unlink()
    with pytest.raises(StoreError, match="remembered other prices than those of round"):
        run(site.some_rounds(site.plan(), 5, **settings))


@pytest.mark.parametrize(
    "change", ["DELETE FROM {}", "UPDATE {} SET value = ?, seal = ?"], ids=["lost", "older"]
)
def test_a_store_without_what_its_cloud_remembered_last_is_refused(site: Site, change: str) -> None:
    settings: dict[str, Any] = {"rounds": 100_000, "parties": [ALL]}
    where, store = (site.problem, site.plan(), site.keys, site.folder), site.store
    run(some_rounds(*where, 3, **settings))
    (older,) = sqlite(store, "SELECT value, seal FROM notes WHERE name = 'memory'")
    run(some_rounds(*where, 6, **settings))
    words = older if "?" in change else ()
    sqlite(store, change.format("notes") + " WHERE name = 'memory'", *words)
    with pytest.raises(StoreError, match="remembered is not of round"):
        run(some_rounds(*where, 9, **settings))


def test_a_restart_takes_no_step_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it takes no time, and no processor can come to other prices."""
    settings: dict[str, Any] = {"rounds": 100_000, "parties": [ALL]}
    run(site.some_rounds(site.plan(), 9, **settings))

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a step was taken")

    monkeypatch.setattr(PriceState, "take", never)

    async def start() -> int:
        async with site.serving(rounds=100_000) as cloud:
            return cloud.round

    assert run(start()) >= 9


def test_prices_that_run_away_end_the_run_as_failed_for_good(site: Site) -> None:
    plan = site.plan()

    async def main() -> None:
        async with site.serving(plan, rounds=8) as cloud:
            turn = cloud._runner._rounds._state.take

            def wild(k: int, y: Any) -> Any:
                if k == 4:
                    raise DivergedError(k)
                return turn(k, y)

            cloud._runner._rounds._state.take = wild  # type: ignore[method-assign]
            task = asyncio.create_task(site.member(cloud, *ALL).run())
            with pytest.raises(DivergedError, match="round 4"):
                await cloud.finished()
            with pytest.raises(RefusedError) as caught:
                await task
            assert caught.value.code is Code.FAILED

    run(main())
    assert DivergedError(4).exit_code == 2
    summary = summarise(site.store)
    assert (summary.status, summary.rounds) == ("failed", 3)
    assert summary.reason == "prices diverged in round 4"
    with pytest.raises(HaltedError, match="has failed for good"):
        run(main())


def test_a_store_rolled_back_to_a_backup_halts_the_run_for_good(site: Site) -> None:
    async def more(until: int) -> None:
        await site.some_rounds(site.plan(), until, rounds=1_000)

    run(more(5))
    backup = {name: (site.folder / name).read_bytes() for name in ("run.db", "run.db.mark")}
    run(more(20))
    (site.store).write_bytes(backup["run.db"])
    with pytest.raises(StoreError, match="lost"):
        run(more(900))
    (site.folder / "run.db.mark").write_bytes(backup["run.db.mark"])
    with pytest.raises(HaltedError, match="rolled back"):
        run(more(900))
    assert summarise(site.store).status == "halted"
    with pytest.raises(HaltedError):
        run(more(900))


def test_a_restarted_cloud_holds_an_agent_that_never_came_back(site: Site) -> None:
    settings: dict[str, Any] = {"rounds": 100_000, "straggler": "hold", "deadline": 0.05}
    plan = plan_for(site.problem, hide=Offset(radius=1.0, rounds=100_000))
    run(site.some_rounds(plan, 3, **settings))
    done = summarise(site.store).rounds
    most = [[i] for i in ALL[:-1]]
    run(site.some_rounds(plan, done + 3, parties=most, **settings))
    assert summarise(site.store).held >= 3


def test_a_run_takes_its_place_in_the_ledger_once_or_not_at_all(site: Site) -> None:
    plan = site.plan()  # costs every agent mu = 0.5
    ledger = Ledger(site.folder / "ledger.db")
    names = site.problem.cloud.agent_labels()
    ledger.grant(names, np.log(3), 0.05, hide="trajectory", radius=1.0)
    for name in ("one", "two"):
        (site.folder / name).mkdir()

    async def start(store: Path) -> None:
        async with serving(plan, site.keys, store, rounds=5, ledger=ledger):
            pass

    run(start(site.store))
    run(start(site.store))
    assert ledger.spent("x1") == 0.5
    run(start(site.folder / "other.db"))
    assert ledger.spent("x1") == pytest.approx(np.sqrt(0.5))
    with pytest.raises(BudgetError):
        run(start(site.folder / "third.db"))
    assert summarise(site.folder / "third.db").rounds == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 0},
        {"rounds": 11},
        {"rounds": 5, "straggler": "hold", "deadline": 0.0},
        {"rounds": 5, "straggler": "wait", "deadline": 1.0},
        {"rounds": 5, "deadline": math.nan},
        {"rounds": 5, "straggler": "hold", "first_deadline": 1.0},
        *({"rounds": 5, "stall": wrong} for wrong in (0.0, -1.0, math.nan)),
        *({"rounds": 5, "apply_after": wrong} for wrong in (-1.0, 601.0, math.nan)),
    ],
)
async def test_requests_that_no_run_meets_are_refused(site: Site, settings: dict[str, Any]) -> None:
    plan = plan_for(site.problem, hide=Trajectory(radius=1.0, rounds=10))

    with pytest.raises(InputError, match=list(settings)[-1]):
        Cloud(plan, keys=site.keys, store=site.store, **settings)


async def test_an_undernoised_plan_is_never_served(site: Site) -> None:
    undernoised = replace(site.plan(), certified=False)
    with pytest.raises(PrivacyError):
        Cloud(undernoised, rounds=5, keys=site.keys, store=site.store)


async def test_agents_refuse_simulated_noise_or_other_problems(
    site: Site, coupled: Problem
) -> None:
    async with site.serving(rounds=5, seed=1) as cloud:
        with pytest.raises(RefusedError, match="simulated"):
            await site.member(cloud, 1).run()
        with pytest.raises(RefusedError, match="another problem") as caught:
            await member(coupled, [3], cloud, site.keys, site.folder, allow_simulated=True).run()
        assert caught.value.code is Code.OTHER_RUN


@pytest.mark.parametrize("name", ["paper", "coupled"])
async def test_a_sum_beyond_the_samplers_reach_is_refused_before_a_budget_is_spent(
    name: str, request: pytest.FixtureRequest, keys: Path, tmp_path: Path
) -> None:
    problem: Problem = request.getfixturevalue(name)

    ledger = Ledger(tmp_path / "ledger.db")
    plan = plan_for(problem, sigma=1e-9)
    with pytest.raises(PrivacyError, match="within 2"):
        await Cloud(plan, rounds=5, keys=keys, store=tmp_path / "run.db", ledger=ledger).start()
    assert ledger.history() == ()


def test_an_error_in_a_round_ends_a_cloud_not_a_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = site.plan()

    async def broken() -> None:
        async with site.serving(plan, rounds=8) as cloud:
            real = cloud._store.commit

            def fail(record: Record, released: Released) -> None:
                if record.k == 4:
                    raise StoreError("the disk is full")
                real(record, released)

            monkeypatch.setattr(cloud._store, "commit", fail)
            with pytest.raises(StoreError, match="full"):
                await completed(cloud, site.member(cloud, *ALL))

    async def mended() -> None:
        async with site.serving(plan, rounds=8) as cloud:
            assert cloud.round == 3
            await completed(cloud, site.member(cloud, *ALL))

    run(broken())
    run(mended())
    assert summarise(site.store).status == "done"
