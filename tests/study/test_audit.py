"""The auditor: it passes what is right, finds what is broken, and seldom cries wolf.

A correct plan is called broken in fewer than one audit in ten thousand. Seeds are fixed where noise
is simulated; where it is the secure sampler's there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from broken_samplers import (
    Fault,
    Faulty,
    a_tenth_less,
    first_output_bare,
    halved,
    none_at_all,
    same_in_pairs_of_rounds,
)
from msgspec.structs import replace as changed

from sottovoce.algorithm.averaging import Averaging
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.certify.certificate import Certificate, certify
from sottovoce.certify.sensitivity import Block, Sensitivity
from sottovoce.errors import InputError, ProblemError
from sottovoce.network import rounds as network_rounds
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.rounds import Rounds
from sottovoce.privacy import sampler as samplers
from sottovoce.privacy.gaussian import mu_of
from sottovoce.privacy.plan import NoisePlan, plan
from sottovoce.problem import gallery
from sottovoce.problem.agents import Array, fleet, read_only, states
from sottovoce.problem.constraints import total
from sottovoce.problem.expressions import exp
from sottovoce.problem.problem import Problem
from sottovoce.study import audit as module
from sottovoce.study.audit import Audit, _bounds, audit

EPSILON, DELTA = math.log(3), 0.05
TARGET = float(mu_of(EPSILON, DELTA))

Case = tuple[Problem, Certificate]


def made(certificate: Certificate, **change: Any) -> NoisePlan:
    asked: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "radius": 0.05}
    return plan(certificate, **(asked | change))


def short(problem: Problem, plan: NoisePlan, agent: int = 1, **change: Any) -> Audit:
    """An audit of less than a second."""
    settings: dict[str, Any] = {"runs": 100, "rounds": 4, "sampler": Faulty(plan)}
    return audit(problem, plan, agent=agent, **(settings | change))


@pytest.fixture(scope="module")
def paper() -> Case:
    problem = gallery.paper()
    return problem, certify(problem.cloud)


@pytest.fixture(scope="module")
def stiff() -> Case:
    """x2 moves the first gradient ten times as much as x1 does."""
    x = states(2, lower=-1, upper=1)
    problem = Problem(
        states=x,
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2],
        constraints=[(x[0] + 10 * x[1]) ** 2 <= 150],
    )
    return problem, certify(problem.cloud)


@pytest.fixture(scope="module")
def exponential() -> Case:
    """Either agent's change shows most where the other is largest, far from its start."""
    x = states(2, lower=-1, upper=1)
    problem = Problem(
        states=x,
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2],
        constraints=[exp(x[0] + x[1]) <= 4],
    )
    return problem, certify(problem.cloud)


# --- what is right passes ----------------------------------------------------------------------


def test_the_deployed_sampler_keeps_the_papers_promise(paper: Case) -> None:
    problem, certificate = paper
    found = audit(problem, made(certificate, radius=1.0), agent=3, runs=100, rounds=8)
    assert found.passed
    assert found.played_share > 0.9
    assert found.measured_mu <= found.played_mu <= found.claimed_mu
    assert (found.noise.rounds, found.noise.outputs) == (2 * 100 * 8, 4)


@pytest.mark.parametrize("adjacency", ["trajectory", "per-round", "everything"])
def test_every_promise_is_kept(exponential: Case, adjacency: str) -> None:
    problem, certificate = exponential
    radius = None if adjacency == "everything" else 0.05
    right = made(certificate, radius=radius, adjacency=adjacency, rounds=8)
    found = short(problem, right, runs=200)
    assert found.passed
    assert found.measured_mu <= found.played_mu <= found.claimed_mu
    if adjacency != "trajectory":  # three rounds of eight may reveal their share and no more
        assert found.claimed_mu == pytest.approx(right.gdp_mu[0] * math.sqrt(3 / 8))


def test_most_of_what_was_played_is_found(exponential: Case) -> None:
    # An audit that finds nothing proves nothing.
    problem, certificate = exponential
    bold = plan(certificate, epsilon=6.0, delta=DELTA, radius=0.05)
    found = short(problem, bold, rounds=2, runs=300)
    assert found.passed
    assert 0.6 * found.played_mu < found.measured_mu <= found.played_mu


def test_the_papers_algorithm_can_be_audited(stiff: Case) -> None:
    problem, certificate = stiff
    assert short(problem, made(certificate), 2, algorithm=Tikhonov(gamma_bar=0.05)).passed


@pytest.mark.slow
def test_a_fleet_can_be_audited() -> None:
    ev = fleet(3, lower=0, upper=1, dim=2, name="ev")
    shared = total(ev, list(ev.state)) <= 1.0
    cars = Problem(states=ev, objectives=sum(s**2 for s in ev.state), constraints=[shared])
    found = short(cars, made(certify(cars.cloud)), 2)
    assert found.passed
    assert found.played_share > 0.99


# --- what is broken is found -------------------------------------------------------------------


@pytest.mark.parametrize("fault", [first_output_bare, same_in_pairs_of_rounds, a_tenth_less])
def test_a_broken_sampler_is_found(exponential: Case, fault: Fault) -> None:
    problem, certificate = exponential
    right = made(certificate)
    assert not short(problem, right, sampler=Faulty(right, fault)).noise.passed


@pytest.mark.parametrize("fault", [none_at_all, halved])
def test_all_noise_halved_is_found_by_the_game_for_an_exponential_of_a_sum(
    exponential: Case, fault: Fault
) -> None:
    # The other agent must be where it makes things worst: at its start only half the claim shows.
    problem, certificate = exponential
    right = made(certificate)
    found = short(problem, right, runs=300, rounds=2, sampler=Faulty(right, fault))
    assert found.played_share > 0.9
    assert not found.game_passed
    assert found.measured_mu > found.claimed_mu


def test_a_secure_sampler_that_adds_nothing_is_found(
    exponential: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "_discrete_gaussian", lambda: lambda zeros: zeros)
    problem, certificate = exponential
    found = audit(problem, made(certificate), agent=1, runs=100, rounds=4)
    assert not found.noise.passed
    assert not found.game_passed


def test_noise_that_a_cloud_scales_down_is_found(
    exponential: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weaker(plan: NoisePlan) -> Array:
        return np.concatenate([plan.sigma_g[plan.sigma_g > 0], 0.7 * plan.gradient_sigma])

    monkeypatch.setattr(network_rounds, "noisy_sigma", weaker)
    problem, certificate = exponential
    assert not audit(problem, made(certificate), agent=1, runs=100, rounds=4).noise.passed


def _first_entry_bare(self: Rounds, record: Any, x: Array) -> Any:
    return {"y": np.concatenate([self._outputs(x)[1][:1], record.y[1:]])}


def _answer_leaks(self: Rounds, record: Any, x: Array) -> Any:
    g = self._outputs(x)[0]
    return {"carried": np.concatenate([record.carried[: -g.size], record.carried[-g.size :] + g])}


def _states_in_receipts(self: Rounds, record: Any, x: Array) -> Any:
    return {"digest": next_digest(record.digest, 1, x.tobytes(), b"")}


@pytest.mark.parametrize(
    ("leak", "where"),
    [
        pytest.param(_first_entry_bare, "y, receipt of a round", id="first gradient entry bare"),
        pytest.param(_answer_leaks, "mu of a done", id="g leaks into the answer"),
        pytest.param(_states_in_receipts, "receipt of a round", id="states hashed into receipts"),
    ],
)
def test_messages_that_tell_more_than_the_releases_are_found(
    exponential: Case, monkeypatch: pytest.MonkeyPatch, leak: Callable[..., Any], where: str
) -> None:
    honest = Rounds.play

    def play(self: Rounds, k: int, x: Array, *rest: Any) -> Any:
        record, released = honest(self, k, x, *rest)
        return changed(record, **leak(self, record, x)), released

    problem, certificate = exponential
    right = made(certificate)
    assert short(problem, right).told == ""
    monkeypatch.setattr(Rounds, "play", play)
    found = short(problem, right)
    assert found.told.split(" of ")[1] == where.split(" of ")[1] + " message"
    assert where.split(" of ")[0].split(", ")[0] in found.told
    assert not found.passed


def without_cross_terms(certificate: Certificate) -> Certificate:
    """S as it would be if an agent moved no gradient but its own."""
    S = certificate.sensitivity.dense()
    for output, entry in enumerate(certificate.released, start=certificate.cloud.rows):
        others = np.arange(S.shape[1]) != entry.agent
        S[output, others] = 0.0
    block = Block(rows=np.arange(len(S)), first=0, upper=S, found=S)
    dropped = Sensitivity(outputs=S.shape[0], agents=S.shape[1], blocks=(block,))
    return replace(certificate, sensitivity=dropped)


def test_dropped_cross_terms_are_found(stiff: Case) -> None:
    problem, certificate = stiff
    broken = made(without_cross_terms(certificate))
    assert broken.gdp_mu.max() <= TARGET  # it believes in its own promise
    found = short(problem, broken, 2)
    assert not found.game_passed
    assert found.played_share > 2
    assert found.measured_mu > 2 * found.claimed_mu
    assert short(problem, made(certificate), 2).passed


def test_the_papers_formula_is_found_out_where_agents_are_coupled(stiff: Case) -> None:
    problem, certificate = stiff
    # Large K_g: the noise on g is not to blame, only the gradient's, which forgets x2.
    undernoised = made(certificate, method="paper", allow_undernoised=True)
    honest = short(problem, undernoised, 2)
    assert honest.passed  # it admits what it reveals
    assert honest.claimed_mu > 5 * TARGET
    asked = replace(undernoised, gdp_mu=read_only(np.full(2, TARGET)))
    assert not short(problem, asked, 2).game_passed


# --- statistics --------------------------------------------------------------------------------


def test_the_closed_loop_is_really_closed(stiff: Case) -> None:
    # Later rounds depend on earlier noise, and the ratio of the whole transcript still is what the
    # theorem says: mean and variance mu^2/2 and mu^2, within five standard errors.
    problem, certificate = stiff
    right = made(certificate)
    game = module._Game(problem, right, 2, 3, Averaging(), Faulty(right, seed=4))
    score = np.array([game.play(1)[0] for _ in range(400)])
    mu = game.played_mu
    assert np.mean(score) == pytest.approx(mu**2 / 2, abs=5 * mu / math.sqrt(400))
    assert np.std(score) == pytest.approx(mu, rel=5 / math.sqrt(2 * 400))


def gaussian_scores(rng: np.random.Generator, mu: float, runs: int) -> tuple[Array, Array]:
    """Log-likelihood ratios of a mechanism that reveals exactly mu."""
    z = rng.standard_normal((2, runs))
    return mu * z[0] - mu**2 / 2, mu * z[1] + mu**2 / 2


@pytest.mark.parametrize("mu", [0.25, 0.8, 3.0])
def test_a_claim_that_is_just_right_is_seldom_called_broken(
    monkeypatch: pytest.MonkeyPatch, mu: float
) -> None:
    # At 90% confidence instead of 99.995% a wrong share of errors would show in 200 audits.
    monkeypatch.setattr(module, "CONFIDENCE", 0.9)
    rng = np.random.default_rng(int(100 * mu))
    alarms = 0
    for _ in range(200):
        found = _bounds(*gaussian_scores(rng, mu, 400), DELTA, mu)
        alarms += found.mu > mu
    assert alarms <= 0.1 * 200


def test_half_the_noise_is_nearly_always_found_by_the_game() -> None:
    rng = np.random.default_rng(10)
    caught = sum(
        _bounds(*gaussian_scores(rng, TARGET / 0.5, 500), DELTA, TARGET).mu > TARGET
        for _ in range(40)
    )
    assert caught >= 38


def test_epsilon_from_counts_is_a_lower_bound_too() -> None:
    rng = np.random.default_rng(11)
    found = _bounds(*gaussian_scores(rng, TARGET, 20_000), DELTA, TARGET)
    assert 0.5 * EPSILON < found.epsilon <= EPSILON


# --- bad input ---------------------------------------------------------------------------------


def test_bad_input_is_refused(paper: Case, stiff: Case) -> None:
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
    few = made(certificate, adjacency="per-round", rounds=10)
    with pytest.raises(InputError, match="rounds must be at most 10, which the plan covers"):
        audit(problem, few, agent=1, rounds=20)
