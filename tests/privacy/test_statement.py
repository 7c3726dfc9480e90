"""What a plan says of itself: never more than it keeps."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sottovoce as sv
from plans import planned
from sottovoce.certificate.certificate import certify
from sottovoce.errors import InputError
from sottovoce.network.setup import check_halves
from sottovoce.privacy.adjacency import (
    TRAJECTORY_ROUNDS,
    Adjacency,
    Everything,
    Offset,
    Trajectory,
    adjacency_of,
    radii,
)
from sottovoce.privacy.gaussian import delta_of
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.privacy.sampler import STEPS
from sottovoce.privacy.statement import down, hidden, not_covered, percent_down, statement, up
from sottovoce.privacy.trust import TRUST_STATEMENTS, SplitCloud
from sottovoce.problem import gallery
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate


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
        objectives=sum(s**2 for s in ev.x), constraints=[total(list(ev.x)) <= np.full(20, 2.0)]
    )
    found = planned(certify(problem.cloud))
    assert f"... and 8 more, up to {down(found.sigma.max())}" in str(found)


FIGURES = st.one_of(st.floats(1e-300, 1e300), st.floats(0, 50), st.floats(0, 1), st.just(0.05))


@given(FIGURES, st.integers(1, 9))
def test_promises_are_printed_rounded_up_and_sigma_down(value: float, digits: int) -> None:
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


# --- What is hidden, as typed values: their words, their radii and their rounds ---


def test_given_arrays_are_copied() -> None:
    given_ = np.array([1.0, 2.0])
    b = radii(sv.Trajectory(radius=given_), 2)
    given_[0] = 9.0
    assert b[0] == 1.0


def test_a_trajectory_covers_a_million_rounds_if_not_said_and_a_million_said_are_named() -> None:
    unsaid, said = sv.Trajectory(radius=1), sv.Trajectory(radius=1, rounds=1_000_000)
    assert unsaid == said
    assert unsaid.rounds == TRAJECTORY_ROUNDS == 1_000_000
    assert unsaid.open_ended
    assert not said.open_ended
    assert not replace(said, radius=2).open_ended


@pytest.mark.parametrize("rounds", [0, -1, 2.5, math.nan, math.inf, True, "7", 10**400])
def test_bad_rounds_are_refused(rounds: Any) -> None:
    for make in (
        lambda: sv.Trajectory(radius=1, rounds=rounds),
        lambda: sv.Offset(radius=1, rounds=rounds),
        lambda: sv.Everything(rounds=rounds),
    ):
        with pytest.raises(InputError, match="rounds must be an integer"):
            make()


def test_rounds_must_be_said_where_each_costs() -> None:
    for make in (lambda: sv.Offset(radius=1), lambda: sv.Everything()):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="rounds"):
            make()
    for kind in ("offset", "everything"):
        radius = 1.0 if kind == "offset" else None
        with pytest.raises(InputError, match=f"rounds must be given to hide {kind}"):
            adjacency_of(kind, radius=radius)


@pytest.mark.parametrize(
    ("hide", "words"),
    [
        (
            sv.Trajectory(radius=2.0, rounds=100),
            "a change of at most 2 of the whole sequence of states, in l2: a constant offset of "
            "only 0.2 over 100 rounds",
        ),
        (
            sv.Offset(radius=0.349, rounds=1_000),
            "an offset of at most 0.34 in every one of 1,000 rounds",
        ),
        (
            sv.Everything(rounds=25),
            "any behaviour at all within the public set, in all of 25 rounds, so that state, "
            "start, objective and data are hidden",
        ),
    ],
)
def test_each_kind_has_words_rounded_towards_the_worse(hide: Adjacency, words: str) -> None:
    assert hidden(hide) == words


# --- A split cloud: each half's noise keeps the promise alone, and outsiders face both ---


def test_each_half_faces_the_promise_and_outsiders_root_two_better() -> None:
    split = planned(trust=SplitCloud())
    for half in ("cloud", "helper"):
        seen = split.mu_seen_by(half)
        assert seen.tolist() == split.gdp_mu.tolist()
        assert np.all(delta_of(seen, split.epsilon) <= split.delta)
    with mpmath.workdps(40):
        for outside, mu in zip(split.mu_seen_by("outside"), split.gdp_mu, strict=True):
            exact = mpmath.mpf(float(mu)) / mpmath.sqrt(2)
            assert exact <= mpmath.mpf(float(outside)) <= exact * (1 + mpmath.mpf(2) ** -45)
    assert planned().mu_seen_by("outside").tolist() == split.gdp_mu.tolist()
    with pytest.raises(InputError, match="view must be one of outside under this plan"):
        planned().mu_seen_by("helper")


@pytest.mark.parametrize("scale", [2.0, 3.0, 8.0])
def test_the_sum_of_two_discrete_gaussians_is_one_of_root_two_times_the_scale(scale: float) -> None:
    # The factor between the two is 1 +- 3 exp(-pi^2 N^2): below 1e-16 from N = 2 on.
    reach = int(12 * scale)
    z = np.arange(-reach, reach + 1)
    one = np.exp(-np.square(z) / (2 * scale**2))
    both = np.convolve(one / one.sum(), one / one.sum())
    x = np.arange(-2 * reach, 2 * reach + 1)
    wide = np.exp(-np.square(x) / (4 * scale**2))
    near = np.abs(x) <= 6 * scale
    np.testing.assert_allclose(both[near], (wide / wide.sum())[near], rtol=1e-10)
    assert scale < STEPS


def test_the_statement_says_who_must_not_collude_with_whom() -> None:
    split = planned(trust=SplitCloud())
    text, mu = str(split), float(split.gdp_mu.max())
    for said in (
        "standard deviation added by each half:",
        "what is released has sqrt(2) times as much",
        f"the cloud, together with every other agent and an eavesdropper of all messages: {up(mu)}",
        f"that the cloud sends: {up(float(split.mu_seen_by('outside').max()))}",
        "Trust: the operators of cloud and helper must not collude",
        "cloud and helper together: if their operators collude, they see every contribution",
    ):
        assert said in text
    assert "the cloud itself, which sees" not in text
    assert any("nobody can check a single contribution" in item for item in not_covered(split))
    assert TRUST_STATEMENTS["split"] in str(split.guarantee(0))
    assert "Trust: the cloud is trusted" in str(planned())


def test_limit_and_simulation_have_root_two_times_the_noise() -> None:
    problem = gallery.paper()
    one, split = planned(), planned(trust=SplitCloud())
    assert accuracy_limit(problem, split, 100).x == pytest.approx(
        math.sqrt(2) * accuracy_limit(problem, one, 100).x
    )
    runs = {
        name: simulate(problem, p, rounds=3, runs=1, seed=1, transcript=True)
        for name, p in (("one", one), ("split", split))
    }
    first = {name: r.transcript.y[0][0] for name, r in runs.items() if r.transcript is not None}
    start = simulate(problem, rounds=3, runs=1, transcript=True).transcript
    assert start is not None
    bare = start.y[0][0]
    np.testing.assert_allclose(
        first["split"] - bare, math.sqrt(2) * (first["one"] - bare), atol=1e-6 * one.sigma.max()
    )


def test_a_helper_is_no_help_where_the_cloud_works_with_states() -> None:
    with pytest.raises(InputError, match="works with every state"):
        check_halves(planned(method="paper"), helper=True, simulated=False)
