"""Saved states that are lost or old: no answer is confirmed, applied, and beyond a limit."""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import completed, member, run, serving, taking_part
from test_feasible_run import with_margins
from test_relay import relay_keys, relaying

import sottovoce as sv
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.cloud import Cloud, CloudResult
from sottovoce.network.protocol.collected import few_gaps, merge_gaps
from sottovoce.network.protocol.messages import MOST_GAPS
from sottovoce.network.round_arithmetic import AnswerTest
from sottovoce.privacy.averaging import answer_weights
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.problem import Problem

__all__ = ["relay_keys"]

ROUNDS, LIMIT = 40, 3.0
SHARES = (0.1, 0.5, 0.9, 0.99)


def together(agents: int = 2, *, most: float = 5.0) -> Problem:
    """Agents that must reach 3 together, would rather do nothing, and can safely do the most."""
    x = sv.agents(agents, lower=0, upper=most)
    return Problem(
        objectives=[xi**2 for xi in x],
        constraints={"demand": sv.hard(sum(x) >= LIMIT)},
        fallback=[[most]] * agents,
    )


def planned(problem: Problem) -> NoisePlan:
    return with_margins(problem, ROUNDS, sigma=0.01)


class Party:
    """Agents of a problem on one connection, whose state file a test may do anything to."""

    def __init__(self, problem: Problem, numbers: list[int], keys: Path, folder: Path) -> None:
        self._problem, self._numbers, self._keys, self._folder = problem, numbers, keys, folder
        name = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        self.state = folder / f"{name}.state"
        self.round = 0
        self.told: list[tuple[float, str]] = []
        self._paused = asyncio.Event()
        self._until = math.inf

    def _on_state(self, k: int, x: Any, which: str) -> None:
        self.round = k
        self.told.append((float(x.sum()), which))
        if k >= self._until:
            self._paused.set()

    def at(self, cloud: Cloud | int) -> Agent:
        where = (cloud, self._keys, self._folder)
        settings: dict[str, Any] = {"allow_simulated": True, "on_state": self._on_state}
        return member(self._problem, self._numbers, *where, **settings)

    async def until(self, cloud: Cloud | int, k: int) -> None:
        """Take part until round k, and die."""
        self._until = k
        self._paused.clear()
        async with taking_part(self.at(cloud)):
            await self._paused.wait()
        self._until = math.inf


async def broken(
    problem: Problem, keys: Path, folder: Path, cut: int, kind: str, *, restart: bool
) -> tuple[CloudResult, list[AgentResult]]:
    """A run in which agent 1 loses its state after round ``cut``, or gets an older copy back."""
    one = Party(problem, [1], keys, folder)
    copy = folder / "copy"
    settings: dict[str, Any] = {"rounds": ROUNDS, "seed": 5}
    others = [[a] for a in range(2, problem.agents + 1)]
    async with serving(planned(problem), keys, folder / "run.db", **settings) as cloud:
        rest = [Party(problem, numbers, keys, folder) for numbers in others]
        tasks = [asyncio.create_task(party.at(cloud).run()) for party in rest]
        if kind == "copy":
            await one.until(cloud, max(1, cut // 2))
            shutil.copy(one.state, copy)
        await one.until(cloud, cut)
        one.state.unlink()
        if kind == "copy":
            shutil.copy(copy, one.state)
        if not restart:
            first = await one.at(cloud).run()
            result = await cloud.finished(linger=5)
            return result, [first, *(await asyncio.gather(*tasks))]
        await one.until(cloud, cut + 1)  # the gap is known, and the cloud dies
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with serving(planned(problem), keys, folder / "run.db", **settings) as cloud:
        parties = [one, *(Party(problem, numbers, keys, folder) for numbers in others)]
        return await completed(cloud, *(party.at(cloud) for party in parties))


def applied(ended: list[AgentResult]) -> float:
    return float(sum(one.setpoint.sum() for one in ended))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", ["lost", "copy"])
def test_lost_or_old_state_is_never_confirmed_and_violated(
    kind: str, share: float, keys: Path, tmp_path: Path
) -> None:
    cut = min(ROUNDS - 1, round(share * ROUNDS))
    problem = together()
    result, ended = run(broken(problem, keys, tmp_path, cut, kind, restart=False))
    first = ended[0]
    assert (first.confirmed, first.setpoint.tolist()) == (False, [5.0])
    assert applied(ended) >= LIMIT
    if cut + 1 < ROUNDS:  # before its last words: the cloud knows, and by itself confirms no such
        assert not result.confirmed or sum(one.x.sum() for one in ended) >= LIMIT
    if share in (0.5, 0.9):
        assert result.confirmed is False
    assert np.all([one.confirmed is result.confirmed for one in ended[1:]])


def test_lost_state_counts_after_a_restart_of_the_cloud(keys: Path, tmp_path: Path) -> None:
    result, ended = run(broken(together(), keys, tmp_path, 20, "lost", restart=True))
    assert result.confirmed is False
    assert [one.setpoint.tolist() for one in ended] == [[5.0], [5.0]]


def test_a_small_gap_among_many_leaves_the_answer_confirmed(keys: Path, tmp_path: Path) -> None:
    problem = together(7, most=2.0)
    result, ended = run(broken(problem, keys, tmp_path, 2, "lost", restart=True))
    assert result.confirmed is True
    assert [one.confirmed for one in ended] == [False] + [True] * 6
    assert applied(ended) >= LIMIT


@pytest.mark.parametrize("kind", ["lost", "copy", "whole"])
async def test_state_lost_after_the_end_falls_back(kind: str, keys: Path, tmp_path: Path) -> None:
    problem = together()
    made = planned(problem)
    settings: dict[str, Any] = {"rounds": ROUNDS, "seed": 5}
    parties = [Party(problem, [a], keys, tmp_path) for a in (1, 2)]
    async with serving(made, keys, tmp_path / "run.db", **settings) as cloud:
        other = asyncio.create_task(parties[1].at(cloud).run())
        await parties[0].until(cloud, ROUNDS // 2)
        shutil.copy(parties[0].state, tmp_path / "copy")
        await parties[0].at(cloud).run()
        result = await cloud.finished(linger=5)
        second = await other
    if kind != "whole":
        parties[0].state.unlink()
    if kind == "copy":
        shutil.copy(tmp_path / "copy", parties[0].state)
    async with serving(made, keys, tmp_path / "run.db", **settings) as cloud:
        confirmed, first, second = result.confirmed, await parties[0].at(cloud).run(), second
    assert confirmed is True
    assert first.confirmed is (kind == "whole")
    assert (first.setpoint.tolist() == [5.0]) is (kind != "whole")
    assert first.setpoint.sum() + second.setpoint.sum() >= LIMIT


@pytest.mark.parametrize("lost", [False, True])
async def test_lost_state_of_a_gateway_behind_a_relay_counts(
    lost: bool, relay_keys: Path, tmp_path: Path
) -> None:
    """A relay keeps nothing: that it is started again leaves no gap by itself."""
    problem = together(7)
    settings: dict[str, Any] = {"rounds": ROUNDS, "seed": 5}
    below = Party(problem, [1, 2], relay_keys, tmp_path)
    others = [Party(problem, [a], relay_keys, tmp_path) for a in range(3, 8)]
    async with serving(planned(problem), relay_keys, tmp_path / "run.db", **settings) as cloud:
        async with relaying(problem, range(1, 5), cloud.port, relay_keys) as (port, _):
            late = [asyncio.create_task(p.at(cloud).run()) for p in others[2:]]
            async with taking_part(*(p.at(port) for p in others[:2])):
                await below.until(port, ROUNDS // 2)
        if lost:
            below.state.unlink()
        async with relaying(problem, range(1, 5), cloud.port, relay_keys) as (port, _):
            here = [asyncio.create_task(p.at(port).run()) for p in (below, *others[:2])]
            result = await cloud.finished(linger=5)
            result, ended = result, list(await asyncio.gather(*here, *late))
    assert result.confirmed is not lost
    assert [one.confirmed for one in ended] == [not lost] * 6
    assert (ended[0].setpoint.tolist() == [5.0, 5.0]) is lost


def test_a_gap_counts_the_range_of_its_agents_with_the_weight_of_its_rounds() -> None:
    problem = together()
    made = planned(problem)
    assert made.feasible is not None
    share = float(answer_weights(ROUNDS)[11:30].sum())
    sign = 1.0 if np.isfinite(problem.cloud.sums.lower[0]) else -1.0  # as the sum is written
    edge = LIMIT + float(made.feasible.margin[0]) + 5.0 * share
    for gap, above, confirmed in [
        ((2, 2, 12, 30), 1e-3, True),
        ((2, 2, 12, 30), -1e-3, False),
        ((1, 2, 12, 30), 1e-3, False),
        ((2, 2, 11, 30), 1e-3, False),
    ]:
        verdict = AnswerTest(made, ROUNDS)
        averaged = sign * np.array([edge + above])
        for k in range(1, ROUNDS):
            missed = (gap, (gap[0], gap[1], 14, 20)) if k == 31 else ()
            assert verdict(k, averaged, frozenset(), missed) is None
        assert verdict(ROUNDS, averaged, frozenset()) is confirmed


def test_gaps_overlap_and_stay_few() -> None:
    assert merge_gaps([(1, 1, 5, 7), (1, 1, 2, 4), (2, 2, 1, 1)]) == ((1, 1, 2, 7), (2, 2, 1, 1))
    many = [(1 + i % 3, 3, 10 * i + 1, 10 * i + 2) for i in range(MOST_GAPS + 1)]
    assert few_gaps(many[:MOST_GAPS]) == tuple(sorted(many[:MOST_GAPS]))
    assert few_gaps(many) == ((1, 3, 1, 10 * MOST_GAPS + 2),)
