"""A split cloud: each half's noise keeps the promise alone, and outsiders face both."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from plans import planned
from sottovoce.errors import InputError
from sottovoce.network.setup import check_halves
from sottovoce.privacy.gaussian import delta_of
from sottovoce.privacy.limit import accuracy_limit
from sottovoce.privacy.sampler import STEPS
from sottovoce.privacy.statement import not_covered, up
from sottovoce.privacy.trust import TRUST_STATEMENTS, SplitCloud
from sottovoce.problem import gallery
from sottovoce.simulation.simulate import simulate


def test_against_either_half_the_promise_is_the_one_asked_for_and_outside_a_root_two_better() -> (
    None
):
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
