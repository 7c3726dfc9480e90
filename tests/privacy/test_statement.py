"""What a plan says of itself: never more than it keeps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.certify.certificate import Certificate, certify
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.privacy.statement import NOT_COVERED, _down, readings, statement
from sottovoce.problem import gallery
from sottovoce.problem.agents import fleet, states
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem


@pytest.fixture(scope="module")
def paper() -> Certificate:
    return certify(gallery.paper().cloud)


def made(certificate: Certificate, **change: Any) -> NoisePlan:
    asked: dict[str, Any] = {"epsilon": math.log(3), "delta": 0.05, "radius": 1.0}
    return plan(certificate, **(asked | change))


def test_the_statement_of_the_papers_plan_can_be_repeated_to_anybody(paper: Certificate) -> None:
    found = made(paper, rounds=500_000)
    text = str(found)
    assert text == statement(found)
    for said in (
        "Noise (joint method), standard deviation per released number:",
        f"g: g3                        {found.sigma_g[2]:.6g}",
        "Promise, for all 500,000 rounds and all messages together:",
        "every agent is (1.09861, 0.05)-differentially private or better",
        "worst: x3 with Gaussian-DP mu = 0.7962",
        "errs at least 34.5% of the time (blind guessing: 50%); advantage at most 0.31.",
        "What is hidden (made for adjacency: trajectory):",
        "differ by at most 1 in l2 over all rounds look alike",
        "a constant offset of 0.0014 over 500,000 rounds is hidden",
        "not any two behaviours: in each round up to 7e-05 of the width",
        "From whom: every other agent, all of them together, and an eavesdropper of all messages",
        "Not covered:",
    ):
        assert said in text
    for item in NOT_COVERED:
        assert f"  - {item}" in text


def test_what_is_not_covered_names_every_limit() -> None:
    text = " ".join(NOT_COVERED)
    for limit in ("the cloud itself", "break the protocol", "further than the radius",
                  "side channels"):  # fmt: skip
        assert limit in text


def test_all_readings_are_given_whatever_the_plan_was_made_for(paper: Certificate) -> None:
    found = readings(made(paper, radius=0.25, adjacency="per-round", rounds=100))
    assert list(found) == ["trajectory", "per-round", "everything"]
    assert "differ by at most 2.5 in l2 over all rounds" in found["trajectory"]
    assert "a constant offset of 0.25 over 100 rounds" in found["per-round"]
    assert "in each round up to 0.012 of the width" in found["everything"]


def test_everything_is_said_to_be_hidden_only_if_it_is(paper: Certificate) -> None:
    whole = made(paper, radius=None, adjacency="everything", rounds=10)
    assert "any two behaviours of an agent look alike" in readings(whole)["everything"]
    almost = made(paper, radius=whole.radius * (1 - 1e-9), adjacency="per-round", rounds=10)
    assert "not any two behaviours" in readings(almost)["everything"]


def test_agents_with_different_radii_are_told_as_a_span(paper: Certificate) -> None:
    found = readings(made(paper, radius=[1, 2, 3, 4, 5, 6, 7.39], rounds=100))
    assert "differ by at most 1 to 7.3 in l2" in found["trajectory"]
    assert "a constant offset of 0.1 to 0.73 over 100 rounds" in found["per-round"]


def test_an_agent_that_cannot_move_does_not_weaken_the_reading() -> None:
    x = states(2, lower=[-1, 0], upper=[1, 0])
    problem = Problem(states=x, objectives=[s**2 for s in x], constraints=[x[0] + x[1] <= 0.5])
    found = made(certify(problem.cloud), radius=None, adjacency="everything", rounds=10)
    assert "any two behaviours of an agent look alike" in readings(found)["everything"]


def test_released_gradients_are_named_by_constraint_and_component() -> None:
    x = states(2, lower=-1, upper=1, dim=[2, 1], names=["car", "mast"])
    (car, mast) = x
    problem = Problem(
        states=x,
        objectives=[car[0] ** 2 + car[1] ** 2, mast**2],
        constraints={"near": (car[1] - mast) ** 2 + car[0] <= 3},
    )
    text = str(made(certify(problem.cloud)))
    assert "d near / d car[2]" in text
    assert "d near / d mast" in text
    assert "d near / d car[1]" not in text


def test_long_lists_are_cut_short_and_say_so() -> None:
    ev = fleet(3, lower=0, upper=1, dim=20, name="ev")
    problem = Problem(
        states=ev,
        objectives=sum(s**2 for s in ev.state),
        constraints=[total(ev, list(ev.state)) <= np.full(20, 2.0)],
    )
    found = made(certify(problem.cloud))
    assert f"... and 8 more, up to {found.sigma.max():.6g}" in str(found)


@given(st.floats(1e-12, 1e12))
def test_what_is_said_to_be_hidden_is_never_rounded_up(value: float) -> None:
    assert 0.9 * value <= float(_down(value).replace(",", "")) <= value
