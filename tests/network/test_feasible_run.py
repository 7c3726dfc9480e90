"""Runs that keep constraints: what devices apply, and who says that they may."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import Site, completed, member, plan_for, reached, run, serving, taking_part
from typer.testing import CliRunner
from welcomes import welcome_to

import sottovoce as sv
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.certificate.contributions import sum_ranges
from sottovoce.cli import application
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.cloud import Cloud, CloudResult
from sottovoce.network.config import welcome_objection
from sottovoce.network.local_round import LocalRound
from sottovoce.network.round_arithmetic import AnswerTest
from sottovoce.network.setup import check_request, ranges_of
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.averaging import answer_weights, weights_norm
from sottovoce.privacy.feasibility import AveragedNoise
from sottovoce.privacy.margins import feasibility
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.files.save import save_problem
from sottovoce.problem.groups import Array
from sottovoce.problem.problem import Problem

ROUNDS, SEED = 60, 0  # with which the answer is confirmed


def with_margins(problem: Problem, rounds: int = ROUNDS, *, sigma: float = 0.05) -> NoisePlan:
    """A plan with sigmas of our choosing, and the margins that belong to them."""
    made = plan_for(problem, sigma=sigma, hide=Trajectory(radius=1.0, rounds=rounds))
    sums = problem.cloud.sums
    noise = AveragedNoise(
        sigma=made.released_sigma * weights_norm(rounds),
        rounding=np.zeros(sums.count),
        ranges=np.array(sum_ranges(sums, made.domain)),
        rounds=rounds,
    )
    return replace(made, feasible=feasibility(sums, noise, 0.95))


def unconfirmable(made: NoisePlan) -> NoisePlan:
    """The same plan with a test that nobody passes."""
    assert made.feasible is not None
    return replace(made, feasible=replace(made.feasible, margin=made.feasible.margin + 1e6))


class Device:
    """Whoever is driven: remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, float, str]] = []

    def __call__(self, k: int, x: Array, which: str) -> None:
        self.told.append((k, float(x[0]), which))


def members(
    problem: Problem, cloud: Cloud, keys: Path, folder: Path, device: Device
) -> list[Agent]:
    """All agents; the first one's setpoints go to the device."""
    return [
        member(problem, [i], cloud, keys, folder, allow_simulated=True, on_state=on_state)
        for i, on_state in enumerate([device, *[None] * 6], start=1)
    ]


async def whole(
    problem: Problem, made: NoisePlan, keys: Path, folder: Path, device: Device
) -> tuple[CloudResult, list[AgentResult]]:
    settings: dict[str, Any] = {"rounds": made.rounds, "seed": SEED}
    async with serving(made, keys, folder / "run.db", **settings) as cloud:
        return await completed(cloud, *members(problem, cloud, keys, folder, device))


@pytest.fixture
def safe(paper: Problem) -> Problem:
    """The paper's problem, whose agents know what to do without an answer."""
    return Problem(
        agents=list(paper.groups),
        objectives=list(paper.objectives),
        constraints=dict(zip(paper.cloud.row_labels(), _stated(paper), strict=True)),
        fallback=[[0.25], None, None, None, None, None, None],
    )


def _stated(problem: Problem) -> list[Any]:
    rows = [g for family in problem.constraints for g in family.formulas]
    return [g <= 0 for g in rows]


def test_a_confirmed_answer_is_applied_at_the_end(
    safe: Problem, keys: Path, tmp_path: Path
) -> None:
    made, device = with_margins(safe), Device()
    result, ended = run(whole(safe, made, keys, tmp_path, device))
    simulated = sv.simulate(safe, made, rounds=ROUNDS, seed=SEED, record=[ROUNDS])
    assert simulated.confirmed is not None
    assert result.confirmed is True
    assert simulated.confirmed.tolist() == [True]
    x = np.concatenate([one.x for one in ended])
    assert np.array_equal(x, simulated.x[0])
    assert all(one.confirmed for one in ended)
    assert np.array_equal(np.concatenate([one.setpoint for one in ended]), x)
    *before, last = device.told
    assert before == [(k, 0.25, "fallback") for k in range(ROUNDS + 1)]
    assert last == (ROUNDS, float(x[0]), "answer")


def test_without_confirmation_fallbacks_apply(safe: Problem, keys: Path, tmp_path: Path) -> None:
    made, device = unconfirmable(with_margins(safe, 12)), Device()
    result, ended = run(whole(safe, made, keys, tmp_path, device))
    assert result.confirmed is False
    assert {which for _, _, which in device.told} == {"fallback"}
    assert ended[0].setpoint.tolist() == [0.25]
    assert ended[1].setpoint.tolist() == safe.start[1].ravel().tolist()
    assert [one.confirmed for one in ended] == [False] * 7


def test_a_crash_changes_no_verdict_and_no_bit(safe: Problem, keys: Path, tmp_path: Path) -> None:
    made = with_margins(safe, 30)

    async def interrupted() -> None:
        async with (
            serving(made, keys, tmp_path / "run.db", rounds=30, seed=SEED) as cloud,
            taking_part(*members(safe, cloud, keys, tmp_path, Device())),
        ):
            await reached(cloud, 17)

    run(interrupted())
    device = Device()
    result, ended = run(whole(safe, made, keys, tmp_path, device))
    simulated = sv.simulate(safe, made, rounds=30, seed=SEED, record=[30])
    assert simulated.confirmed is not None
    assert [result.confirmed] == simulated.confirmed.tolist()
    assert np.array_equal(np.concatenate([one.x for one in ended]), simulated.x[0])
    assert device.told[0][0] >= 16


def test_runs_without_margins_drive_devices_with_averages(site: Site) -> None:
    made, device = plan_for(site.problem, hide=Trajectory(radius=1.0, rounds=4)), Device()
    result, ended = run(whole(site.problem, made, site.keys, site.folder, device))
    assert result.confirmed is None
    assert [(k, which) for k, _, which in device.told] == [(k, "average") for k in (1, 2, 3, 4)]
    assert ended[0].setpoint.tolist() == ended[0].x.tolist()
    assert ended[0].confirmed is None


def test_words_that_counted_again_widen_the_margin_by_what_they_can_be_off(paper: Problem) -> None:
    made = with_margins(paper, 20)
    kept = made.feasible
    assert kept is not None
    edge = np.array(kept.sums.upper - kept.margin)  # passed with next to nothing to spare
    y = edge - 1e-6
    honest, held = AnswerTest(made, 20), AnswerTest(made, 20)
    agents = frozenset({2, 5})
    for k in range(1, 20):
        assert honest(k, y, frozenset()) is None
        assert held(k, y, agents if k in (10, 15) else frozenset()) is None
    assert honest(20, y, frozenset()) is True
    assert held(20, y, frozenset()) is False
    sums, grid, least, most = ranges_of(made).of(np.array([1, 4]))
    off = np.zeros(kept.sums.count)
    off[sums] = (most - least) * grid * answer_weights(20)[[9, 14]].sum()
    again = AnswerTest(made, 20)
    for k in range(1, 20):
        again(k, y, agents if k in (10, 15) else frozenset())
    assert again(20, edge - off * 1.001 - 1e-6, frozenset()) is True
    again.restart()
    assert again(20, y, frozenset()) is True


def test_an_agent_that_missed_rounds_averages_what_it_last_said_in_them(paper: Problem) -> None:
    house = AgentGroup.of_problem(paper, [0])
    welcome = welcome_to(paper.cloud, [1], DualAveraging(), rounds=50)
    x, answer, price = np.array([0.5]), np.array([0.125]), np.zeros(4)
    once = LocalRound(house, welcome)(31, x, answer, price, np.zeros(0), since=29).answer
    stepwise = answer
    for k in (29, 30, 31):
        stepwise = LocalRound(house, welcome)(k, x, stepwise, price, np.zeros(0)).answer
    assert np.array_equal(once, stepwise)


def test_an_agent_takes_no_part_in_a_run_without_margins_over_a_hard_constraint() -> None:
    x = sv.agents(2, lower=0, upper=1)
    for mark, words in ((sv.hard, "a constraint is hard"), (lambda g: g, None)):
        problem = Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=[mark(x[0] + x[1] <= 1)])
        welcome = welcome_to(problem.cloud, [1], DualAveraging())
        wrong = welcome_objection(welcome, problem.cloud, allow_simulated=True)
        assert wrong == words if words is None else words in str(wrong)


def test_a_run_must_have_the_rounds_that_its_margins_are_for(paper: Problem) -> None:
    with pytest.raises(sv.errors.InputError, match=r"rounds must be what the plan covers \(60\)"):
        check_request(with_margins(paper), 59, "wait")
    check_request(with_margins(paper), 60, "wait")


# --- Mixtures of answers and fallbacks: who checks them, and when answers are applied ---


MIXED_ROUNDS = 20


def fused(*fallback: float, rows: Any = None, limit: float = 3.0) -> Problem:
    """Two agents under a limit, with the fallbacks given."""
    x = sv.agents(2, lower=0, upper=5)
    couple = sv.hard(sum(x) <= limit) if rows is None else rows(x)
    return Problem(
        objectives=[(x[0] - 3) ** 2, (x[1] - 2) ** 2],
        constraints={"fuse": couple},
        fallback=[[value] for value in fallback] or None,
    )


async def mixed(
    problem: Problem, keys: Path, folder: Path, *, devices: tuple[Any, Any] = (None, None),
    **settings: Any,
) -> list[AgentResult]:  # fmt: skip
    made = with_margins(problem, MIXED_ROUNDS, sigma=0.01)
    fixed: dict[str, Any] = {"rounds": MIXED_ROUNDS, "seed": 1, **settings}
    async with serving(made, keys, folder / "run.db", **fixed) as cloud:
        agents = [
            member(problem, [a], cloud, keys, folder, allow_simulated=True, on_state=device)
            for a, device in zip((1, 2), devices, strict=True)
        ]
        ended = await asyncio.gather(*(agent.run() for agent in agents))
        await cloud.finished(linger=5)
        return list(ended)


def warned(caplog: pytest.LogCaptureFixture, event: str = "fallback-unsafe") -> list[list[int]]:
    lines = [record for record in caplog.records if record.msg == event]
    return sorted(record.fields["agents"] for record in lines)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("problem", "unsafe", "above"),
    [
        (fused(3.0, 0.0), [[1]], [[1]]),
        (fused(0.0, 0.0), [], []),
        (fused(), [], []),
        (fused(5.0, 1.0, rows=lambda x: sv.hard(x[0] + x[1] >= 3)), [[2]], []),
        (fused(0.0, 5.0, rows=lambda x: sv.hard(x[0] - x[1] <= 3)), [], []),
        (fused(0.0, 0.0, rows=lambda x: sv.hard((x[0] - x[1]) ** 2 <= 4)), [[1], [2]], []),
        (fused(0.0, 1.0, rows=lambda x: sv.hard((x[0] - x[1]) ** 2 <= 4)), [[1], [2]], [[2]]),
        (fused(0.0, 1.0, rows=lambda x: sv.hard(x[0] ** 2 + x[1] ** 2 <= 4)), [[2]], [[2]]),
    ],
)  # fmt: skip
def test_mixtures_with_an_unsafe_fallback_are_noted_by_its_agent(
    problem: Problem,
    unsafe: list[list[int]],
    above: list[list[int]],
    keys: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="sottovoce.network"):
        run(mixed(problem, keys, tmp_path))
    assert warned(caplog) == unsafe
    assert warned(caplog, "fallback-above-public") == above


def test_an_own_bound_makes_the_least_that_an_agent_can(
    keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = sv.agents(2, lower=0, upper=5)
    problem = Problem(
        objectives=[(x[0] - 3) ** 2, (x[1] - 2) ** 2],
        constraints={"fuse": sv.hard(x[0] + x[1] <= 3)},
        local=[x[0] >= 1],
        fallback=[[1.0], None],
    )
    with caplog.at_level(logging.WARNING, logger="sottovoce.network"):
        run(mixed(problem, keys, tmp_path))
    assert warned(caplog) == []


@pytest.mark.parametrize(
    ("rows", "unsafe"),
    [
        (lambda x: sv.hard(x[0] + x[1] <= 3), []),
        (lambda x: sv.hard(x[0] + x[1] >= 3), ["x1", "x2"]),
        (lambda x: x[0] + x[1] >= 3, []),  # nobody asks for answers that keep it
    ],
)
def test_check_lists_fallbacks_unsafe_in_mixtures(
    rows: Any, unsafe: list[str], tmp_path: Path
) -> None:
    save_problem(fused(rows=rows), tmp_path / "p")
    told = CliRunner().invoke(application(), ["check", str(tmp_path / "p"), "--json"])
    assert told.exit_code == 0
    assert json.loads(told.stdout)["unsafe_fallbacks"] == unsafe
    words = CliRunner().invoke(application(), ["check", str(tmp_path / "p")]).stdout
    assert ("may violate a constraint" in " ".join(words.split())) is bool(unsafe)


def test_answers_are_applied_at_one_time(keys: Path, tmp_path: Path) -> None:
    moments: list[float] = []

    def device(k: int, x: Any, which: str) -> None:
        if which == "answer":
            moments.append(time.monotonic())

    began = time.monotonic()
    ended = run(mixed(fused(0.0, 0.0), keys, tmp_path, devices=(device,) * 2, apply_after=2.0))
    assert all(one.confirmed for one in ended)
    assert len(moments) == 2
    assert moments[0] - began > 2.0
    assert moments[1] - moments[0] < 1.0
