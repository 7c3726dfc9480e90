"""What a plan says of itself: never more than it keeps."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import sottovoce as sv
from plans import planned
from sottovoce.certificate.certificate import certify
from sottovoce.privacy.adjacency import Everything, Offset, Trajectory
from sottovoce.privacy.statement import down, hidden, not_covered, percent_down, statement, up
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem


def test_the_statement_of_the_papers_plan_can_be_repeated_to_anybody() -> None:
    found = planned(hide=Trajectory(radius=1.0, rounds=500_000))
    text = str(found)
    assert text == statement(found)
    for said in (
        "Noise (joint method), standard deviation per released number:",
        f"sum g3                       {down(found.sigma[2])}",
        "Promise, for all 500,000 rounds and all messages together:",
        "every agent is (1.09862, 0.05)-differentially private or better",
        "worst: x3 with Gaussian-DP mu = 0.7962",
        "errs at least 34.5% of the time (blind guessing: 50%); advantage at most 0.31.",
        "What is hidden of an agent (of x3, the worst off):",
        "a change of at most 1 of the whole sequence of states, in l2: a constant offset of "
        "only 0.0014 over 500,000 rounds.",
        "A state that stays where it is is not hidden: whoever averages many releases finds it.",
        "From whom: every other agent, all of them together, and an eavesdropper of all messages",
        "Not covered:",
    ):
        assert said in text
    for item in not_covered(found):
        assert f"  - {item}" in text


def test_what_is_not_covered_depends_on_what_is_released_and_hidden() -> None:
    text = " ".join(not_covered(planned()))
    for limit in ("the cloud itself, which sees every contribution", "break the protocol",
                  "further than the radius", "side channels"):  # fmt: skip
        assert limit in text
    whole = " ".join(not_covered(planned(hide=Everything(rounds=10))))
    assert "further than the radius" not in whole
    raw = " ".join(not_covered(planned(method="paper")))
    assert "the cloud itself, which sees every state" in raw


def test_a_plan_says_what_its_worst_off_agent_hides() -> None:
    radius = np.array([1, 2, 3, 4, 5, 6, 7.39])
    for hide in (Trajectory(radius=radius, rounds=100), Offset(radius=radius, rounds=100)):
        found = planned(hide=hide)
        worst = found.guarantee()
        assert f"What is hidden of an agent (of {worst.name}, the worst off):" in str(found)
        assert hidden(worst.hide) == worst.hidden
        assert worst.hidden in str(found)
        assert f"Hidden: {worst.hidden}." in str(worst)
        assert found.radius(6) == 7.39


def test_only_a_trajectory_warns_of_averages() -> None:
    for hide in (Offset(radius=0.25, rounds=100), Everything(rounds=100)):
        assert "averages many releases" not in str(planned(hide=hide))


def test_long_lists_are_cut_short_and_say_so() -> None:
    ev = sv.agents(3, lower=0, upper=1, dim=20, name="ev")
    problem = Problem(
        agents=ev,
        objectives=sum(s**2 for s in ev.x),
        constraints=[total(list(ev.x)) <= np.full(20, 2.0)],
    )
    found = planned(certify(problem.cloud))
    assert f"... and 8 more, up to {down(found.sigma.max())}" in str(found)


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


def test_no_figure_of_a_statement_is_better_than_the_plan() -> None:
    for epsilon in np.linspace(0.1, 3.0, 8):
        found = planned(epsilon=epsilon, delta=1 / 3)
        worst = found.guarantee()
        text = str(found)
        said = re.search(r"every agent is \((\S+), (\S+)\)-diff.* mu = (\S+)\.\n", text)
        assert said is not None
        assert float(said[1]) >= worst.epsilon
        assert float(said[2]) >= 1 / 3
        assert float(said[3]) >= worst.gdp_mu
        for row, sigma in enumerate(found.sigma):
            line = re.search(rf"sum g{row + 1} +(\S+)\n", text)
            assert line is not None
            assert float(line[1]) <= sigma
