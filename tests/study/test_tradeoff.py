"""What a budget buys: the table agrees with the plans and limits it is made of."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sottovoce.certify.certificate import certify
from sottovoce.errors import InputError
from sottovoce.privacy.hide import Trajectory
from sottovoce.privacy.limit import limit
from sottovoce.privacy.plan import plan
from sottovoce.problem import gallery
from sottovoce.problem.agents import states
from sottovoce.problem.problem import Problem
from sottovoce.study.tradeoff import TradeoffRow, tradeoff


def table(hide: str, radius: float | None, **settings: Any) -> list[TradeoffRow]:
    return tradeoff(
        gallery.paper(),
        epsilons=[0.5, 2.0],
        rounds=[500, 2000],
        delta=0.05,
        radius=radius,
        hide=hide,
        **settings,
    )


def test_an_executor_gives_the_same_rows_and_tells_how_many_are_done() -> None:
    heard: list[tuple[str, float | None]] = []

    def hear(doing: str, share: float | None = None) -> None:
        heard.append((doing, share))

    with ThreadPoolExecutor(2) as executor:
        there = table("trajectory", 1.0, executor=executor, progress=hear)
    assert there == table("trajectory", 1.0)
    assert ("planning", 0.0) in heard
    assert heard[0][0].startswith("certifying")


def test_every_row_is_a_plan_and_its_limit() -> None:
    problem = gallery.paper()
    rows = table("trajectory", 1.0)
    assert [(row.epsilon, row.rounds) for row in rows] == [
        (0.5, 500), (0.5, 2000), (2.0, 500), (2.0, 2000),
    ]  # fmt: skip
    hide = Trajectory(radius=1.0, rounds=2000)
    made = plan(certify(problem), epsilon=2.0, delta=0.05, hide=hide)
    expected = limit(problem, made, 2000)
    last = rows[-1]
    assert last.x == pytest.approx(expected.x)
    assert last.price == pytest.approx(expected.price)
    assert last.sigma_least == pytest.approx(made.sigma.min())
    assert last.sigma_most == pytest.approx(made.sigma.max())
    assert last.hidden_offset == pytest.approx(1 / math.sqrt(2000))


def test_accuracy_is_bought_with_epsilon_and_rounds() -> None:
    tight, tight_long, loose, loose_long = table("trajectory", 1.0)
    assert loose.x < tight.x
    assert loose.sigma_most < tight.sigma_most
    assert tight_long.x == pytest.approx(tight.x / 2, rel=1e-3)
    assert loose_long.price == pytest.approx(loose.price / 2, rel=1e-3)


def test_hiding_every_round_buys_no_accuracy_with_more_of_them() -> None:
    few, many, _, _ = table("offset", 0.1)
    assert many.x == pytest.approx(few.x, rel=1e-3)
    assert many.hidden_offset == few.hidden_offset == pytest.approx(0.1)


def test_hiding_everything_hides_any_offset() -> None:
    rows = table("everything", None)
    assert rows[0].hidden_offset is None


def test_outputs_without_noise_do_not_count_as_the_least() -> None:
    x = states(2, lower=[-1, 0], upper=[1, 0])
    problem = Problem(
        states=x,
        objectives=[(x[0] - 3) ** 2, x[1] ** 2],
        constraints=[x[0] + x[1] <= 0.5, 2 * x[1] ** 2 + x[1] <= 1],
    )
    (row,) = tradeoff(
        problem, epsilons=[1.0], rounds=[10], delta=0.01, radius=None, hide="everything"
    )
    assert row.sigma_least == row.sigma_most > 0


def test_bad_budgets_are_refused() -> None:
    with pytest.raises(InputError, match="epsilon must be positive"):
        tradeoff(gallery.paper(), epsilons=[-1.0], rounds=[10], delta=0.05, radius=1.0,
                 hide="trajectory")  # fmt: skip
