"""The auditor: it passes what is right, finds what is broken, and seldom cries wolf.

A correct plan is called broken in fewer than one audit in a thousand; all seeds are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.certify.certificate import Certificate, certify
from sottovoce.certify.sensitivity import Block, Sensitivity
from sottovoce.errors import InputError, ProblemError
from sottovoce.privacy.gaussian import mu_of
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.problem import gallery
from sottovoce.problem.agents import Array, fleet, read_only, states
from sottovoce.problem.constraints import total
from sottovoce.problem.problem import Problem
from sottovoce.study import audit as module
from sottovoce.study.audit import NoiseSource, _bounds, audit

EPSILON, DELTA = math.log(3), 0.05
TARGET = float(mu_of(EPSILON, DELTA))


def made(certificate: Certificate, **change: Any) -> NoisePlan:
    asked: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "radius": 0.05}
    return plan(certificate, **(asked | change))


@pytest.fixture(scope="module")
def paper() -> tuple[Problem, Certificate]:
    problem = gallery.paper()
    return problem, certify(problem.cloud)


@pytest.fixture(scope="module")
def stiff() -> tuple[Problem, Certificate]:
    """x2 moves the first gradient ten times as much as x1 does."""
    x = states(2, lower=-1, upper=1)
    problem = Problem(
        states=x,
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2],
        constraints=[(x[0] + 10 * x[1]) ** 2 <= 150],
    )
    return problem, certify(problem.cloud)


# --- what is right passes ----------------------------------------------------------------------


@pytest.mark.parametrize("agent", [1, 3, 6])
@pytest.mark.parametrize("radius", [0.05, 1.0])
def test_the_papers_problem_keeps_its_promise(
    paper: tuple[Problem, Certificate], agent: int, radius: float
) -> None:
    problem, certificate = paper
    found = audit(problem, made(certificate, radius=radius), agent=agent, rounds=8)
    assert found.passed
    assert found.measured_mu <= found.played_mu <= found.claimed_mu
    # An audit that finds nothing proves nothing: most of what was played must be found.
    assert found.measured_mu > 0.8 * found.played_mu
    assert found.attack == "log-likelihood ratio"


@pytest.mark.parametrize("adjacency", ["per-round", "everything"])
def test_promises_for_every_round_are_kept(
    paper: tuple[Problem, Certificate], adjacency: str
) -> None:
    problem, certificate = paper
    radius = 0.05 if adjacency == "per-round" else None
    found = made(certificate, radius=radius, adjacency=adjacency, rounds=50)
    result = audit(problem, found, agent=3, rounds=8)
    assert result.passed
    # Eight of fifty rounds may reveal their share and no more.
    assert result.claimed_mu == pytest.approx(found.gdp_mu[2] * math.sqrt(8 / 50))
    assert 0.4 * result.played_mu < result.measured_mu <= result.played_mu <= result.claimed_mu


def vehicles() -> Problem:
    """Two vehicles in the plane that must stay near each other: every gradient is released."""
    x = states(2, lower=-2, upper=2, dim=2, names=["p", "q"])
    (p, q) = x
    return Problem(
        states=x,
        objectives=[(p[0] - 2) ** 2 + p[1] ** 2, (q[0] + 2) ** 2 + q[1] ** 2],
        constraints=[(p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2 <= 4, p[1] + q[1] <= 1],
    )


@pytest.mark.parametrize(
    ("problem", "agents"),
    [
        pytest.param(vehicles(), (1, 2), id="vehicles"),
        pytest.param(gallery.coupled(), (1, 2, 3, 4), id="gallery", marks=pytest.mark.slow),
    ],
)
def test_coupled_vector_agents_keep_their_promise(
    problem: Problem, agents: tuple[int, ...]
) -> None:
    found = made(certify(problem.cloud))
    assert found.gradient_sigma.size > 0
    for agent in agents:
        result = audit(problem, found, agent=agent, rounds=6)
        assert result.passed
        assert 0 < result.measured_mu <= result.played_mu <= result.claimed_mu


def test_the_closed_loop_is_really_closed(stiff: tuple[Problem, Certificate]) -> None:
    # Later rounds depend on earlier noise, and the ratio of the whole transcript still is what the
    # theorem says: mean and variance mu^2/2 and mu^2, within five standard errors.
    problem, certificate = stiff
    game = module._Game(problem, made(certificate), 2, 8, Tikhonov(gamma_bar=0.05))
    score = game.play(1, 10_000, np.random.SeedSequence(4), _honest)["log-likelihood ratio"]
    mu = game.played_mu
    assert np.mean(score) == pytest.approx(mu**2 / 2, abs=5 * mu / 100)
    assert np.std(score) == pytest.approx(mu, rel=5 / math.sqrt(2 * 10_000))


# --- what is broken is found -------------------------------------------------------------------


def _honest(generator: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    return generator.standard_normal(shape)


def scaled(factor: float) -> NoiseSource:
    return lambda generator, shape: factor * generator.standard_normal(shape)


@pytest.mark.parametrize("factor", [0.5, 0.9])
@pytest.mark.parametrize("agent", [3, 6])
def test_too_little_noise_is_found(
    paper: tuple[Problem, Certificate], factor: float, agent: int
) -> None:
    problem, certificate = paper
    found = audit(problem, made(certificate), agent=agent, rounds=8, noise=scaled(factor))
    assert not found.passed
    assert found.measured_mu > found.claimed_mu
    assert found.measured_epsilon > found.claimed_epsilon


@pytest.mark.parametrize("factor", [0.5, 0.9])
def test_too_little_noise_is_found_in_every_round(
    paper: tuple[Problem, Certificate], factor: float
) -> None:
    problem, certificate = paper
    found = made(certificate, adjacency="per-round", rounds=8)
    assert not audit(problem, found, agent=3, rounds=8, noise=scaled(factor)).passed


def without_cross_terms(certificate: Certificate) -> Certificate:
    """S as it would be if an agent moved no gradient but its own."""
    S = certificate.sensitivity.dense()
    for output, entry in enumerate(certificate.released, start=certificate.cloud.rows):
        others = np.arange(S.shape[1]) != entry.agent
        S[output, others] = 0.0
    block = Block(rows=np.arange(len(S)), first=0, upper=S, found=S)
    dropped = Sensitivity(outputs=S.shape[0], agents=S.shape[1], blocks=(block,))
    return replace(certificate, sensitivity=dropped)


def test_dropped_cross_terms_are_found(stiff: tuple[Problem, Certificate]) -> None:
    problem, certificate = stiff
    broken = made(without_cross_terms(certificate))
    assert broken.gdp_mu.max() <= TARGET  # it believes in its own promise
    found = audit(problem, broken, agent=2, rounds=8)
    assert not found.passed
    assert found.measured_mu > 2 * found.claimed_mu
    assert audit(problem, made(certificate), agent=2, rounds=8).passed


def test_the_papers_formula_is_found_out_where_agents_are_coupled(
    stiff: tuple[Problem, Certificate],
) -> None:
    problem, certificate = stiff
    # Large K_g: the noise on g is not to blame, only the gradient's, which forgets x2.
    undernoised = made(certificate, method="paper", allow_undernoised=True)
    honest = audit(problem, undernoised, agent=2, rounds=8)
    assert honest.passed  # it admits what it reveals
    assert honest.claimed_mu > 5 * TARGET
    asked = replace(undernoised, gdp_mu=read_only(np.full(2, TARGET)))
    found = audit(problem, asked, agent=2, rounds=8)
    assert not found.passed


def same_in_pairs_of_rounds(z: Array) -> None:
    z[1::2] = z[::2]


def same_again_much_later(z: Array) -> None:
    z[4] = z[0]


def same_on_two_outputs(z: Array) -> None:
    z[..., 0] = z[..., 2]


def same_in_all_rounds(z: Array) -> None:
    z[:] = z[:1]


@pytest.mark.parametrize(
    "reuse",
    [same_in_pairs_of_rounds, same_again_much_later, same_on_two_outputs, same_in_all_rounds],
)
@pytest.mark.parametrize("adjacency", ["trajectory", "per-round"])
def test_noise_used_twice_is_found(
    paper: tuple[Problem, Certificate], reuse: Callable[[Array], None], adjacency: str
) -> None:
    def draw(generator: np.random.Generator, shape: tuple[int, int, int]) -> Array:
        z = generator.standard_normal(shape)
        reuse(z)
        return z

    problem, certificate = paper
    plan_ = made(certificate, adjacency=adjacency, rounds=8)
    found = audit(problem, plan_, agent=3, rounds=8, runs=2_000, noise=draw)
    assert not found.passed
    assert found.measured_mu > 3
    if adjacency == "trajectory":  # one round alone is shifted, and the ratio sees nothing amiss
        assert found.attack == "repeated noise"


def test_an_output_sent_without_noise_is_found(paper: tuple[Problem, Certificate]) -> None:
    problem, certificate = paper
    right = made(certificate)
    bare = replace(right, sigma_g=read_only([0.0, *right.sigma_g[1:]]))
    found = audit(problem, bare, agent=3, rounds=8, runs=1_000)
    assert not found.passed
    assert audit(problem, bare, agent=6, rounds=8, runs=1_000).passed  # x6 does not move g1


# --- statistics --------------------------------------------------------------------------------


def gaussian_scores(rng: np.random.Generator, mu: float, runs: int) -> tuple[Array, Array]:
    """Log-likelihood ratios of a mechanism that reveals exactly mu."""
    z = rng.standard_normal((2, runs))
    return mu * z[0] - mu**2 / 2, mu * z[1] + mu**2 / 2


@pytest.mark.parametrize("mu", [0.25, 0.8, 3.0])
def test_a_claim_that_is_just_right_is_seldom_called_broken(
    monkeypatch: pytest.MonkeyPatch, mu: float
) -> None:
    # At 90% confidence instead of 99.9% a wrong share of errors would show in 200 audits; each of
    # the two scores may take half.
    monkeypatch.setattr(module, "CONFIDENCE", 0.9)
    rng = np.random.default_rng(int(100 * mu))
    alarms = 0
    for _ in range(200):
        found = _bounds("", *gaussian_scores(rng, mu, 400), DELTA, mu)
        alarms += found.mu > mu
    assert alarms <= 0.05 * 200


def test_false_alarms_stay_below_one_in_a_thousand() -> None:
    rng = np.random.default_rng(9)
    alarms = sum(
        _bounds("", *gaussian_scores(rng, 0.8, 400), DELTA, 0.8).mu > 0.8 for _ in range(400)
    )
    assert alarms == 0  # 0.4 expected at the very most


def test_a_tenth_too_little_noise_is_nearly_always_found() -> None:
    rng = np.random.default_rng(10)
    caught = sum(
        _bounds("", *gaussian_scores(rng, TARGET / 0.9, 20_000), DELTA, TARGET).mu > TARGET
        for _ in range(40)
    )
    assert caught >= 36


def test_epsilon_from_counts_is_a_lower_bound_too() -> None:
    rng = np.random.default_rng(11)
    found = _bounds("", *gaussian_scores(rng, TARGET, 20_000), DELTA, TARGET)
    assert 0.5 * EPSILON < found.epsilon <= EPSILON


# --- bad input ---------------------------------------------------------------------------------


def test_bad_input_is_refused(
    paper: tuple[Problem, Certificate], stiff: tuple[Problem, Certificate]
) -> None:
    problem, certificate = paper
    right = made(certificate)
    with pytest.raises(InputError, match="runs must be at least 100"):
        audit(problem, right, agent=1, runs=99)
    with pytest.raises(InputError, match="rounds at least 2"):
        audit(problem, right, agent=1, rounds=1)
    with pytest.raises(ProblemError, match=r"agent must lie in 1\.\.7"):
        audit(problem, right, agent=8)
    with pytest.raises(InputError, match="the plan must be made for this problem"):
        audit(stiff[0], right, agent=1)
    short = made(certificate, adjacency="per-round", rounds=10)
    with pytest.raises(InputError, match="rounds must be at most 10, which the plan covers"):
        audit(problem, short, agent=1, rounds=20)


def test_fleets_are_refused() -> None:
    ev = fleet(2, lower=0, upper=1, name="ev")
    problem = Problem(states=ev, objectives=ev.state**2, constraints=[total(ev, ev.state) <= 1.0])
    with pytest.raises(InputError, match="an audit takes agents stated one by one"):
        audit(problem, made(certify(problem.cloud)), agent=1)
