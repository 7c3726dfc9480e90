"""What a plan says of itself: never more than it keeps."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.certify.certificate import Certificate, certify
from sottovoce.privacy.figures import down, percent_down, up
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.privacy.statement import NOT_COVERED, hidden, readings, statement
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
        f"g: g3                        {down(found.sigma_g[2])}",
        "Promise, for all 500,000 rounds and all messages together:",
        "every agent is (1.09862, 0.05)-differentially private or better",
        "worst: x3 with Gaussian-DP mu = 0.7962",
        "errs at least 34.5% of the time (blind guessing: 50%); advantage at most 0.31.",
        "What is hidden (made for adjacency: trajectory):",
        "a change of at most 1 of an agent's whole sequence of states, in l2: a constant offset of "
        "only 0.0014 over 500,000 rounds.",
        "an offset of at most 0.0014 in every one of 500,000 rounds.",
        "not any behaviour: of the width of an agent's domain only 7e-05 is hidden in every round.",
        "A state that stays where it is is not hidden: whoever averages many releases finds it.",
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
    assert "a change of at most 2.5 of an agent's whole sequence" in found["trajectory"]
    assert "a constant offset of only 0.25 over 100 rounds" in found["trajectory"]
    assert "an offset of at most 0.25 in every one of 100 rounds" in found["per-round"]
    assert "only 0.012 is hidden in every round" in found["everything"]


def test_everything_is_said_to_be_hidden_only_if_it_is(paper: Certificate) -> None:
    whole = made(paper, radius=None, adjacency="everything", rounds=10)
    assert "any behaviour at all of an agent within the public set" in readings(whole)["everything"]
    almost = made(paper, radius=whole.radius * (1 - 1e-9), adjacency="per-round", rounds=10)
    assert "not any behaviour" in readings(almost)["everything"]


def test_agents_with_different_radii_are_told_as_a_span(paper: Certificate) -> None:
    found = readings(made(paper, radius=[1, 2, 3, 4, 5, 6, 7.39], rounds=100))
    assert "a change of at most 1 to 7.3 of an agent's whole sequence" in found["trajectory"]
    assert "an offset of at most 0.1 to 0.73 in every one of 100 rounds" in found["per-round"]


def test_an_agent_that_cannot_move_does_not_weaken_the_reading() -> None:
    x = states(2, lower=[-1, 0], upper=[1, 0])
    problem = Problem(states=x, objectives=[s**2 for s in x], constraints=[x[0] + x[1] <= 0.5])
    found = made(certify(problem.cloud), radius=None, adjacency="everything", rounds=10)
    assert "any behaviour at all of an agent within the public set" in readings(found)["everything"]


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
    assert f"... and 8 more, up to {down(found.sigma.max())}" in str(found)


def test_a_guarantee_says_what_is_hidden_in_the_users_terms(paper: Certificate) -> None:
    said = {
        "trajectory": "Hidden: a change of at most 2 of the whole sequence of states, in l2: a "
        "constant offset of only 0.2 over 100 rounds.",
        "per-round": "Hidden: an offset of at most 2 in every round.",
        "everything": "Hidden: any behaviour at all within the public set.",
    }
    for adjacency, text in said.items():
        radius = None if adjacency == "everything" else 2.0
        found = made(paper, radius=radius, adjacency=adjacency, rounds=100).guarantee(3)
        assert str(found).startswith("x3: (1.09862, 0.05)-differentially private (Gaussian-DP mu")
        assert str(found).endswith(text)
        assert found.hidden == hidden(found.adjacency, found.radius, 100)


def test_under_trajectory_adjacency_averaging_finds_a_state_that_stays_where_it_is() -> None:
    # Why the words above are so careful: 2,000 releases of x1 + x2 with x2 known, box of 20.
    x = states(2, lower=-10, upper=10)
    problem = Problem(states=x, objectives=[s**2 for s in x], constraints=[x[0] + x[1] <= 15])
    found = made(certify(problem.cloud), rounds=2_000)
    assert found.sigma_g[0] / np.sqrt(2_000) < 0.04
    assert "a constant offset of only 0.022 over 2,000 rounds" in found.guarantee(1).hidden
    hiding = made(certify(problem.cloud), radius=None, adjacency="everything", rounds=2_000)
    assert hiding.sigma_g[0] / np.sqrt(2_000) > 20


FIGURES = st.one_of(st.floats(1e-300, 1e300), st.floats(0, 50), st.floats(0, 1), st.just(0.05))


@given(FIGURES, st.integers(1, 9))
def test_epsilon_delta_and_mu_are_printed_rounded_up_and_sigma_rounded_down(
    value: float, digits: int
) -> None:
    above, below = (float(written(value, digits).replace(",", "")) for written in (up, down))
    assert below <= value <= above
    assert above - below <= 1.01 * 10.0 ** (1 - digits) * value + 1e-320


@given(st.floats(0, 0.5))
def test_an_attackers_error_rate_is_printed_rounded_down(rate: float) -> None:
    printed = float(percent_down(rate).removesuffix("%"))
    assert printed / 100 <= rate * (1 + 1e-15)
    assert rate <= printed / 100 + 0.001 + 1e-9


def test_no_figure_of_a_statement_is_better_than_the_plan(paper: Certificate) -> None:
    for epsilon in np.linspace(0.1, 3.0, 8):
        found = made(paper, epsilon=epsilon, delta=1 / 3)
        worst = found.guarantee(int(np.argmax(found.gdp_mu)) + 1)
        text = str(found)
        said = re.search(r"every agent is \((\S+), (\S+)\)-diff.* mu = (\S+)\.\n", text)
        assert said is not None
        assert float(said[1]) >= worst.epsilon
        assert float(said[2]) >= 1 / 3
        assert float(said[3]) >= worst.gdp_mu
        for row, sigma in enumerate(found.sigma_g):
            line = re.search(rf"g: g{row + 1} +(\S+)\n", text)
            assert line is not None
            assert float(line[1]) <= sigma
