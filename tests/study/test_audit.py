"""The auditor: it passes what is right, finds what is broken, and seldom cries wolf.

A correct plan is called broken in fewer than one audit in ten thousand. Seeds are fixed where noise
is simulated; where it is the secure sampler's there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
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

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.certificate.sensitivity import Sensitivity
from sottovoce.errors import InputError
from sottovoce.formula.functions import exp
from sottovoce.network.protocol.actions import Part
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.round_arithmetic import Rounds, deployed_sampler
from sottovoce.paper.paper_plan import paper_plan
from sottovoce.privacy import sampler as samplers
from sottovoce.privacy.adjacency import Adjacency, Everything, Offset, Trajectory
from sottovoce.privacy.gaussian import gdp_mu_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.sampler import Sampler
from sottovoce.problem import gallery
from sottovoce.problem.constraints import total
from sottovoce.problem.groups import Array, read_only
from sottovoce.problem.problem import Problem
from sottovoce.study import audit as module
from sottovoce.study.audit import Audit, Game, _bound_mu, audit

EPSILON, DELTA = math.log(3), 0.05
TARGET = float(gdp_mu_of(EPSILON, DELTA))

Case = tuple[Problem, Certificate]


def made(certificate: Certificate, hide: Adjacency | None = None, **change: Any) -> NoisePlan:
    asked: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA}
    how = paper_plan if change.pop("method", "joint") == "paper" else plan
    return how(certificate, hide=hide or Trajectory(radius=0.05), **(asked | change))


def short(problem: Problem, plan: NoisePlan, agent: int = 0, **change: Any) -> Audit:
    settings: dict[str, Any] = {"runs": 100, "rounds": 4, "sampler": Faulty(plan)}
    return audit(problem, plan, agent=agent, **(settings | change))


@pytest.fixture(scope="module")
def paper() -> Case:
    problem = gallery.paper()
    return problem, certify(problem.cloud)


@pytest.fixture(scope="module")
def two() -> Case:
    """Two sums of two agents; x2 moves the first one ten times as much as x1 does."""
    x = sv.agents(2, lower=-1, upper=1)
    problem = Problem(
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2],
        constraints=[x[0] + 10 * x[1] <= 8, exp(x[0]) + x[1] ** 2 <= 3],
    )
    return problem, certify(problem.cloud)


@pytest.fixture(scope="module")
def stiff() -> Case:
    """The paper's release has cross terms: x2 moves the first gradient ten times as much as x1."""
    x = sv.agents(2, lower=-1, upper=1)
    problem = Problem(
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2], constraints=[(x[0] + 10 * x[1]) ** 2 <= 150]
    )
    return problem, certify(problem.cloud)


# --- what is right passes ----------------------------------------------------------------------


def test_the_deployed_sampler_keeps_the_papers_promise(paper: Case) -> None:
    problem, certificate = paper
    found = audit(problem, made(certificate, Trajectory(radius=1.0)), agent=2, runs=100, rounds=8)
    assert found.passed
    assert found.played_share > 0.9
    assert found.measured_mu <= found.played_mu <= found.claimed_mu
    assert (found.noise.rounds, found.noise.outputs) == (2 * 100 * 8, 4)


def test_games_on_an_executor_are_as_many_and_find_the_same(two: Case) -> None:
    problem, certificate = two
    promise = made(certificate)
    heard: list[float] = []

    def hear(doing: str, share: float | None = None) -> None:
        heard.append(share or 0.0)

    with ThreadPoolExecutor(2) as executor:
        found = audit(
            problem, promise, agent=1, runs=100, rounds=4, executor=executor, progress=hear
        )
        with pytest.raises(InputError, match="sampler must be left out with executor"):
            short(problem, promise, executor=executor)
    assert found.passed
    assert (found.noise.rounds, found.noise.outputs) == (2 * 100 * 4, 2)
    assert 0.0 < max(heard) < 1.0


@pytest.mark.parametrize(
    "hide",
    [Trajectory(radius=0.05, rounds=8), Offset(radius=0.05, rounds=8), Everything(rounds=8)],
    ids=lambda hide: hide.kind,
)
def test_every_promise_is_kept(two: Case, hide: Adjacency) -> None:
    problem, certificate = two
    right = made(certificate, hide)
    found = short(problem, right, runs=200)
    assert found.passed
    assert found.played_share > 0.9
    assert found.measured_mu <= found.played_mu <= found.claimed_mu
    if hide.kind != "trajectory":  # three rounds of eight may reveal their share and no more
        assert found.claimed_mu == pytest.approx(right.gdp_mu[0] * math.sqrt(3 / 8))


def test_most_of_what_was_played_is_found(two: Case) -> None:
    # An audit that finds nothing proves nothing.
    problem, certificate = two
    bold = made(certificate, epsilon=6.0)
    found = short(problem, bold, rounds=2, runs=300)
    assert found.passed
    assert 0.6 * found.played_mu < found.measured_mu <= found.played_mu


def test_the_papers_release_can_be_audited(paper: Case) -> None:
    problem, certificate = paper
    right = made(certificate, Trajectory(radius=1.0), method="paper")
    found = short(problem, right, 2)
    assert found.passed
    assert found.noise.outputs == len(right.outputs) > 4


def test_sums_that_a_region_holds_can_be_audited() -> None:
    problem = gallery.coupled()
    found = short(problem, made(certify(problem.cloud)), 2)
    assert found.passed
    assert found.noise.outputs == 5
    assert found.played_share > 0.9


@pytest.mark.slow
def test_a_fleet_can_be_audited() -> None:
    ev = sv.agents(3, lower=0, upper=1, dim=2, name="ev")
    shared = total(list(ev.x)) <= 1.0
    cars = Problem(objectives=sum(s**2 for s in ev.x), constraints=[shared])
    found = short(cars, made(certify(cars.cloud)), 1)
    assert found.passed
    assert found.played_share > 0.99


# --- what is broken is found -------------------------------------------------------------------


def scaled_down(right: NoisePlan) -> Sampler:
    """What a cloud would deploy that takes the noise of the second sum for less."""
    weaker = replace(right.outputs[1], sigma=0.7 * right.outputs[1].sigma)
    return deployed_sampler(replace(right, outputs=(right.outputs[0], weaker)))


class Swapped(Faulty):
    """Noise on the wrong sum."""

    def release_multiples(self, multiples: Any) -> Any:
        return super().release_multiples(multiples[::-1].copy())


FAULTS = (first_output_bare, same_in_pairs_of_rounds, a_tenth_less)
BROKEN = [*(partial(Faulty, fault=fault) for fault in FAULTS), scaled_down, Swapped]


@pytest.mark.parametrize("make", BROKEN)
def test_a_broken_sampler_is_found(two: Case, make: Callable[[NoisePlan], Sampler]) -> None:
    problem, certificate = two
    right = made(certificate)
    assert not short(problem, right, sampler=make(right)).noise.passed


@pytest.mark.parametrize("fault", [none_at_all, halved])
def test_all_noise_halved_is_found_by_the_game(two: Case, fault: Fault) -> None:
    problem, certificate = two
    right = made(certificate)
    found = short(problem, right, runs=300, rounds=2, sampler=Faulty(right, fault))
    assert found.played_share > 0.9
    assert not found.game_passed
    assert found.measured_mu > found.claimed_mu


def test_a_secure_sampler_without_noise_is_found(
    two: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "_discrete_gaussian", lambda: lambda zeros: zeros)
    problem, certificate = two
    found = audit(problem, made(certificate), agent="x1", runs=100, rounds=4)
    assert not found.noise.passed
    assert not found.game_passed


def _price_leaks(record: Any, said: Array) -> Any:
    return {"sent_price": record.sent_price + said[: record.sent_price.size]}


def _answer_leaks(record: Any, said: Array) -> Any:
    return {"answer": record.answer + said[: record.answer.size]}


def _contributions_in_receipts(record: Any, said: Array) -> Any:
    return {"digest": next_digest(record.digest, 1, said.tobytes(), b"")}


@pytest.mark.parametrize(
    ("leak", "where"),
    [
        pytest.param(_price_leaks, "price of a round", id="a contribution in the prices"),
        pytest.param(_answer_leaks, "price of a done", id="a contribution in the answer"),
        pytest.param(
            _contributions_in_receipts, "receipt of a round", id="contributions in receipts"
        ),
    ],
)
def test_messages_that_tell_more_than_the_releases_are_found(
    two: Case, monkeypatch: pytest.MonkeyPatch, leak: Callable[..., Any], where: str
) -> None:
    honest = Rounds.play

    def play(self: Rounds, k: int, parts: tuple[Part, ...], *rest: Any) -> Any:
        record, released = honest(self, k, parts, *rest)
        said = np.frombuffer(parts[0].data, dtype="<i8") * 2.0**-40
        return changed(record, **leak(record, said)), released

    problem, certificate = two
    right = made(certificate)
    assert short(problem, right).leaks == ""
    monkeypatch.setattr(Rounds, "play", play)
    found = short(problem, right)
    assert found.leaks == f"{where} message"
    assert not found.passed


def scaled(S: Sensitivity, output: int, factor: float) -> Sensitivity:
    """S with the influence of everybody on one output taken for less."""
    blocks = []
    for block in S.blocks:
        factors = np.where(block.rows == output, factor, 1.0)[:, np.newaxis]
        sparse = hasattr(block.upper, "tocsr")
        upper = block.upper.multiply(factors).tocsr() if sparse else block.upper * factors
        blocks.append(replace(block, upper=upper))
    return replace(S, blocks=tuple(blocks))


def test_a_sensitivity_that_was_halved_for_one_sum_is_found(two: Case) -> None:
    problem, certificate = two
    broken = made(replace(certificate, sensitivity=scaled(certificate.sensitivity, 0, 0.25)))
    assert broken.gdp_mu.max() <= TARGET  # it believes in its own promise
    found = short(problem, broken, 1)
    assert not found.game_passed
    assert found.played_share > 2
    assert found.measured_mu > found.claimed_mu
    assert short(problem, made(certificate), 1).passed


def test_a_range_of_contributions_that_is_too_small_is_found(two: Case) -> None:
    problem, certificate = two
    ranges = certificate.contributions
    smaller = replace(ranges, spread=scaled(ranges.spread, 0, 0.5))
    hide = Everything(rounds=4)
    broken = made(replace(certificate, contributions=smaller), hide)
    assert broken.gdp_mu.max() <= TARGET
    assert not short(problem, broken, 1).game_passed
    assert short(problem, made(certificate, hide), 1).passed


def test_the_papers_formula_is_found_out_where_agents_are_coupled(stiff: Case) -> None:
    problem, certificate = stiff
    # Large K_g: the noise on g is not to blame, only the gradient's, which forgets x2.
    undernoised = made(certificate, method="paper", allow_undernoised=True)
    honest = short(problem, undernoised, 1)
    assert honest.passed  # it admits what it reveals
    assert honest.claimed_mu > 5 * TARGET
    asked = replace(undernoised, gdp_mu=read_only(np.full(2, TARGET)))
    assert not short(problem, asked, 1).game_passed


# --- statistics --------------------------------------------------------------------------------


def test_the_closed_loop_is_really_closed(two: Case) -> None:
    # Later rounds depend on earlier noise, and the ratio of the whole transcript still is what the
    # theorem says: mean and variance mu^2/2 and mu^2, within five standard errors.
    problem, certificate = two
    right = made(certificate)
    game = Game(problem, right, 1, rounds=3, sampler=Faulty(right, seed=4))
    score = np.array([game.play(1)[0] for _ in range(400)])
    mu = game.played_mu
    assert np.mean(score) == pytest.approx(mu**2 / 2, abs=5 * mu / math.sqrt(400))
    assert np.std(score) == pytest.approx(mu, rel=5 / math.sqrt(2 * 400))


def gaussian_scores(rng: np.random.Generator, mu: float, runs: int) -> tuple[Array, Array]:
    """Log-likelihood ratios of a mechanism that reveals exactly mu."""
    z = rng.standard_normal((2, runs))
    return mu * z[0] - mu**2 / 2, mu * z[1] + mu**2 / 2


@pytest.mark.parametrize("mu", [0.25, 0.8, 3.0])
def test_a_right_claim_is_seldom_called_broken(monkeypatch: pytest.MonkeyPatch, mu: float) -> None:
    # At 90% confidence instead of 99.995% a wrong share of errors would show in 200 audits.
    monkeypatch.setattr(module, "CONFIDENCE", 0.9)
    rng = np.random.default_rng(int(100 * mu))
    alarms = 0
    for _ in range(200):
        found = _bound_mu(*gaussian_scores(rng, mu, 400), DELTA, mu)
        alarms += found.mu > mu
    assert alarms <= 0.1 * 200


def test_half_the_noise_is_nearly_always_found_by_the_game() -> None:
    rng = np.random.default_rng(10)
    caught = sum(
        _bound_mu(*gaussian_scores(rng, TARGET / 0.5, 400), DELTA, TARGET).mu > TARGET
        for _ in range(40)
    )
    assert caught >= 38


def test_epsilon_from_counts_is_a_lower_bound_too() -> None:
    rng = np.random.default_rng(11)
    found = _bound_mu(*gaussian_scores(rng, TARGET, 20_000), DELTA, TARGET)
    assert 0.5 * EPSILON < found.epsilon <= EPSILON
