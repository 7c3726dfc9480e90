"""Agents whose own sets miss the public domain: they take part, and apply their fallbacks."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import member, run, serving
from welcomes import welcome_to

import sottovoce as sv
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network.agent import AgentResult
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.local_round import LocalRound
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.problem import Problem

ROUNDS = 6


def stated(local: list[Any] | None = None, **settings: Any) -> Problem:
    """Two agents whose limit of 5 leaves half of their boxes, with a margin."""
    x = sv.agents(2, lower=0, upper=10)
    rows = [x[0] >= 6] if local is None else local
    return Problem(
        objectives=[(x[0] - 3) ** 2, (x[1] - 2) ** 2],
        constraints={"fuse": x[0] + x[1] <= 5},
        local=rows,
        **settings,
    )


def planned(problem: Problem, feasible: float | None = None) -> NoisePlan:
    hide = sv.Trajectory(radius=0.1, rounds=ROUNDS)
    certificate = sv.certify(problem.cloud)  # as a cloud does, which knows no local set
    return sv.plan(certificate, epsilon=1.0, delta=0.05, hide=hide, feasible=feasible)


@pytest.mark.parametrize("feasible", [None, 0.5])
def test_an_agent_whose_own_set_misses_the_domain_takes_part_and_applies_its_fallback(
    feasible: float | None, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = stated()
    made = planned(problem, feasible)
    told: list[tuple[float, str]] = []

    def on_state(k: int, x: Any, which: str) -> None:
        told.append((float(x[0]), which))

    async def main() -> list[AgentResult]:
        settings: dict[str, Any] = {"rounds": ROUNDS, "seed": 1}
        async with serving(made, keys, tmp_path / "run.db", **settings) as cloud:
            where = (cloud, keys, tmp_path)
            one = member(problem, [1], *where, allow_simulated=True, on_state=on_state)
            two = member(problem, [2], *where, allow_simulated=True)
            ended = await asyncio.gather(one.run(), two.run())
            result = await cloud.finished(linger=5)
            assert result.rounds == ROUNDS
            assert result.refused == {}
            return list(ended)

    with caplog.at_level(logging.WARNING, logger="sottovoce.network"):
        first, second = run(main())
    most = float(made.domain[0].upper[0, 0])
    assert most < 6.0
    assert first.x.tolist() == pytest.approx([most])
    assert first.setpoint.tolist() == [6.0]
    assert set(told) == {(6.0, "fallback")}
    assert second.rounds == ROUNDS
    lines = [r for r in caplog.records if r.msg == "set-outside-domain"]
    assert [r.fields["agents"] for r in lines] == [[1]]  # type: ignore[attr-defined]


def test_a_simulation_refuses_own_sets_that_miss_the_domain() -> None:
    problem = stated()
    with pytest.raises(sv.errors.ProblemError, match="own bounds of x1 must meet"):
        sv.simulate(problem, planned(problem), rounds=ROUNDS)


def test_own_rows_that_miss_the_domain_take_part_with_the_nearest_public_point() -> None:
    need = np.array([1.0, 16.0, 9.0])
    x = sv.agents(3, name="x", dim=2, lower=0, upper=10, parameters={"need": need})
    a, b = x.x
    problem = Problem(
        agents=[x],
        objectives=[a**2 + b**2],
        constraints={"limit": sv.total(a) <= 15},
        local=[a + 2 * b >= 1.5 * x["need"]],
        fallback=[[10.0, 10.0]],
    )
    group = AgentGroup.of_problem(problem, [0, 1, 2])
    (stated,) = problem.cloud.groups
    bounds = np.broadcast_to(np.array([5.0, 4.0]), (3, 2))
    domain = (replace(stated, upper=bounds),)
    made = LocalRound(group, welcome_to(problem.cloud, [1, 2, 3], DualAveraging(), domain=domain))
    assert made.outside == [2, 3]
    stepped = made(1, made.begin(np.zeros(6)), np.zeros(6), np.zeros(1), np.zeros(0))
    assert stepped.failed.size == 0
    assert stepped.x[2:].tolist() == pytest.approx([5.0, 4.0, 5.0, 4.0])
    setpoint, which = made.applied(stepped.answer, None)
    assert which == "average"
    assert setpoint[:2].tolist() == stepped.answer[:2].tolist()
    assert setpoint[2:].tolist() == [10.0] * 4


def test_the_nearest_public_point_is_between_corners_where_a_row_bends() -> None:
    """Own set: at most 1 from (7, 2); public: up to 5. Nearest: (5, 2) and (6, 2)."""
    x = sv.agents(2, dim=2, lower=0, upper=10)
    (a, b), (c, _) = x
    problem = Problem(
        agents=x,
        objectives=[a + b, c],
        constraints={"limit": a + c <= 9},
        local=[(a - 7) ** 2 + (b - 2) ** 2 <= 1],
    )
    group = AgentGroup.of_problem(problem, [0])
    domain = tuple(replace(group, upper=np.array([[5.0, 5.0]])) for group in problem.cloud.groups)
    made = LocalRound(group, welcome_to(problem.cloud, [1], DualAveraging(), domain=domain))
    assert made.begin(np.zeros(2)).tolist() == pytest.approx([5.0, 2.0], abs=1e-4)
    assert made.applied(np.zeros(2), None)[0].tolist() == pytest.approx([6.0, 2.0], abs=1e-4)
