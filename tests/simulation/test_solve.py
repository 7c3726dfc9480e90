"""The compiled engine against plain Python, and everything that must not change a bit."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from engine_reference import (
    GradientSteps,
    PriceRounds,
    Written,
    drawn,
    everywhere,
    noise,
    published,
    with_margins,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
import sottovoce.simulation.simulate as simulate_module
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.errors import InputError
from sottovoce.formula.functions import exp
from sottovoce.paper.tikhonov import Tikhonov, multiplier_step
from sottovoce.problem.constraints import total
from sottovoce.problem.gallery import chargers, coupled, hock_schittkowski, paper
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate

PAPER = paper()
PUBLISHED = published(PAPER)
SUMS = noise(PAPER, 10.0)
HAT = (
    np.array([7.5916, -4.7685, 0.1769, -0.8214, -3.0, 1.7901, 1.3400]),
    np.array([1.816799, 0.0, 0.642735, 2.731062]),
)


def mixed() -> Problem:
    """Two named agents, a fleet with plain, dense and sparse sums, and one with its own boxes."""
    rng = np.random.default_rng(1)
    x = sv.agents(["a", "b"], lower=-2, upper=2, dim=[1, 2])
    a, b = x
    one = sv.agents(37, lower=-1, upper=1, dim=2, name="u", parameters={"p": rng.normal(size=37)})
    two = sv.agents(
        9, lower=rng.uniform(-2, -1, 9), upper=rng.uniform(1, 2, 9), name="v",
        parameters={"q": rng.uniform(1, 2, (9, 2))},
    )  # fmt: skip
    u, v, p, q = one.x, two.x, one["p"], two["q"]
    dense = rng.uniform(0, 1, (2, 37))
    thin = np.round(rng.uniform(0, 1, (3, 9)), 1) * (rng.uniform(size=(3, 9)) < 0.4) + np.eye(3, 9)
    corners = np.arange(9) % 3 == np.arange(3)[:, np.newaxis]
    return Problem(
        agents=[x, one, two],
        objectives=[
            (a - 1) ** 2,
            b[0] ** 2 + b[1] ** 2 + b[0],
            (u[0] - p) ** 2 + (u[1] + p * u[0]) ** 4 / 8,
            q[0] * (v - q[1]) ** 2,
        ],
        constraints=[
            total([u[0], u[0] ** 2 + u[1] ** 2]) + a + b[0] ** 2 <= [3.0, 20.0],
            total(u[1], weights=dense) <= 2.0,
            total([v, v**2], weights=sparse.csr_array(thin + corners)) <= 9.0,
            a + b[1] <= 1,
        ],
    )


def regions() -> Problem:
    """Numbers and vectors under a ball, a general region, an equality and a half-line."""
    x = sv.agents(["a", "b", "p", "c"], lower=-2, upper=2, dim=[1, 1, 2, 1])
    a, b, p, c = x
    return Problem(
        agents=x,
        objectives=[
            (a - 1) ** 2,
            (b - 2) ** 2 + exp(b) / 4,
            (p[0] - 1) ** 2 + (p[0] + p[1]) ** 2,
            c**2,
        ],
        constraints=[
            (a + b) ** 2 + (a - p[0]) ** 2 <= 1,
            (a + 2 * b) ** 2 + exp(b - p[1]) <= 3,
            a + b + p[1] + c == 1,
            p[0] + c <= 1,
        ],
    )


GALLERY = {
    "paper": (PAPER, 2e-3),
    "coupled": (coupled(), 2e-3),
    "chargers": (chargers(5, hours=3), 1e-3),
    "mixed": (mixed(), 1e-3),
    **{f"hs{n}": (hock_schittkowski(n), 1e-3) for n in (22, 43, 66)},
}


def start_of(problem: Problem) -> Any:
    return np.concatenate([part.ravel() for part in problem.start])


@pytest.mark.parametrize("name", GALLERY)
def test_gradient_steps_agree_with_the_numpy_reference_given_the_same_noise(name: str) -> None:
    problem, gamma_bar = GALLERY[name]
    plan = PUBLISHED if name == "paper" else everywhere(problem)
    algorithm = Tikhonov(gamma_bar=gamma_bar)
    mu0 = np.linspace(0.5, 1.0, problem.rows)
    z = drawn(3, 1, rounds=70, count=len(plan.outputs))
    reference = GradientSteps(problem, plan)
    x, mu = reference.run(algorithm, start_of(problem), mu0, z)
    result = simulate(
        problem, plan, rounds=70, runs=2, seed=3, algorithm=algorithm, mu0=mu0,
        saddle=(np.zeros(problem.size), np.zeros(problem.rows)), record=[70],
    )  # fmt: skip
    scale_x, scale_mu = 1 + np.abs(x), 1 + np.abs(mu)
    assert np.max(np.abs(result.x[1] - x) / scale_x) < 1e-12
    assert np.max(np.abs(result.price[1] - mu) / scale_mu) < 1e-12
    got = result.trace
    slope = np.array(reference.df(x)) + np.array(reference.dg(x), dtype=float).T @ mu
    g = np.array(reference.g(x), dtype=float)
    natural = np.concatenate(
        [x - np.clip(x - slope, reference.lower, reference.upper), mu - np.maximum(mu + g, 0)]
    )
    expected = [
        np.linalg.norm(x), np.linalg.norm(mu), max(0, g.max()), np.linalg.norm(natural),
        reference.f(x),
    ]  # fmt: skip
    measured = [got.error_x, got.error_price, got.violation, got.residual, got.objective]
    np.testing.assert_allclose([m[1, 0] for m in measured], expected, rtol=1e-9, atol=1e-9)


PRICED = {"paper": (paper, 10.0), "mixed": (mixed, 0.5), "regions": (regions, 0.2)}


@pytest.mark.parametrize("kind", ["noise", "margins", "exact"])
@pytest.mark.parametrize("name", PRICED)
def test_price_rounds_are_those_of_a_cloud_and_agents_alone(name: str, kind: str) -> None:
    """To the last bit on a grid; without one agents alone add up in another order."""
    make, sigma = PRICED[name]
    problem = make()
    count = problem.cloud.sums.count
    plan = None if kind == "exact" else noise(problem, sigma)
    if plan is not None and kind == "margins":
        plan = with_margins(plan, 25, share=0.05)
    rounds = 3 if plan is None else 25
    z = np.zeros((rounds, count)) if plan is None else drawn(3, 1, rounds=rounds, count=count)
    reference = PriceRounds(problem, plan)
    expected = reference.run(z)
    zeros = (np.zeros(problem.size), np.zeros(count))
    result = simulate(problem, plan, rounds=rounds, runs=2, seed=3, record=[rounds], saddle=zeros)
    assert (result.confirmed is not None) == (kind == "margins")
    slack = 1e-9 if plan is None else 0.0
    for part, values in expected.items():
        np.testing.assert_allclose(
            getattr(result, part)[1], values, rtol=slack, atol=slack, err_msg=part
        )
    assert np.any(result.last_price[1] != 0.0)
    x, written = expected["x"], Written(problem)
    g = np.array(written.g(x), dtype=float)
    equality = np.concatenate([[family.equality] * family.rows for family in problem.constraints])
    worst = max(0.0, np.max(np.where(equality, np.abs(g), g)))
    got = result.trace
    measured = [got.error_x, got.error_price, got.objective, got.violation]
    wanted = [np.linalg.norm(x), np.linalg.norm(expected["price"]), written.f(x), worst]
    np.testing.assert_allclose([m[1, 0] for m in measured], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [paper, regions])
def test_the_residual_is_zero_at_the_saddle_point_and_nowhere_else(make: Any) -> None:
    problem = make()
    result = simulate(problem, rounds=400, record=[0, 400])
    assert result.error_x is not None
    assert result.error_x[0] < 1e-6
    assert result.trace.residual[0, 1] < 1e-5 < 1e-2 < result.trace.residual[0, 0]
    assert result.trace.violation[0, 1] < 1e-6


def test_a_sum_that_cannot_move_holds_no_price_of_its_region_back() -> None:
    x = sv.agents(["a", "b", "c", "d"], lower=[-5, -5, 0.1, 0.3], upper=[5, 5, 0.1, 0.3])
    problem = Problem(
        objectives=[(s - 3) ** 2 for s in x],
        constraints=[(x[0] + 10 * x[1]) ** 2 + (x[2] + x[3]) ** 2 <= 9],
    )
    result = simulate(problem, rounds=200)
    np.testing.assert_allclose(result.x[0], sv.reference_optimum(problem).x, atol=1e-6)


@pytest.mark.parametrize("algorithm", [Tikhonov(), DualAveraging()])
def test_a_fleet_does_not_depend_on_the_number_of_threads(algorithm: Any) -> None:
    problem = big_fleet()
    run = partial(
        simulate, problem, noise(problem, 0.1), algorithm=algorithm, rounds=50, seed=5,
        record=[0, 9, 50],
    )  # fmt: skip
    single = run(threads=1)
    for result in (run(threads=2), run(threads=3), run(threads=3, runs=2)):
        np.testing.assert_array_equal(result.x[:1], single.x)
        np.testing.assert_array_equal(result.price[:1], single.price)
        np.testing.assert_array_equal(result.trace.residual[:1], single.trace.residual)


def big_fleet(n: int = 5000) -> Problem:
    """Enough agents for several chunks."""
    rng = np.random.default_rng(2)
    target, weights = rng.uniform(0, 2, n), rng.integers(1, 4, (1, n))
    group = sv.agents(n, lower=-1, upper=3, parameters={"target": target})
    constraint = total(group.x, weights=weights) <= n
    return Problem(
        agents=group, objectives=(group.x - group["target"]) ** 2, constraints=[constraint]
    )


def test_the_papers_transcript_lets_the_clouds_step_reproduce_mu() -> None:
    algorithm = Tikhonov()
    kept = simulate(
        PAPER, PUBLISHED, algorithm=algorithm, rounds=200, runs=2, seed=1, transcript=True,
        saddle=HAT,
    )  # fmt: skip
    assert kept.transcript is not None
    mu = np.zeros((2, 4))
    for k in range(200):
        gamma, alpha = algorithm.schedule(k + 1)[0]
        mu = multiplier_step(mu, kept.transcript.y[:, k], gamma, alpha)
    np.testing.assert_array_equal(mu, kept.last_price)
    reference = GradientSteps(PAPER, PUBLISHED)
    z = drawn(1, 1, rounds=1, count=20)[0]
    g = np.array(reference.g(np.zeros(7))) + reference.sigma_g * z[:4]
    entries = [o for o in PUBLISHED.outputs if o.column is not None]
    exact = np.array(reference.dg(np.zeros(7)))
    noisy = [exact[o.row, o.column] + o.sigma * n for o, n in zip(entries, z[4:], strict=True)]
    np.testing.assert_allclose(kept.transcript.y[1, 0], g, rtol=1e-14)
    np.testing.assert_allclose(kept.transcript.gradients[1, 0], noisy, rtol=1e-14)
    np.testing.assert_array_equal(kept.transcript.columns, [o.column for o in entries])


@given(scale=st.floats(0, 1e3), gamma_bar=st.floats(1e-6, 1e2), seed=st.integers(0, 2**53))
@settings(max_examples=30, deadline=None)
def test_iterates_stay_in_the_domain_and_mu_is_never_negative(
    scale: float, gamma_bar: float, seed: int
) -> None:
    domain = tuple(
        replace(g, lower=g.lower + 0.5 * i, upper=g.upper - i) for i, g in enumerate(PAPER.groups)
    )
    outputs = [replace(o, sigma=o.sigma * max(scale, 1e-9)) for o in PUBLISHED.outputs[4:]]
    plan = replace(PUBLISHED, domain=domain, outputs=(*PUBLISHED.outputs[:4], *outputs))
    result = simulate(
        PAPER,
        plan,
        rounds=20,
        runs=3,
        seed=seed,
        saddle=HAT,
        algorithm=Tikhonov(gamma_bar=gamma_bar),
    )
    lower = np.concatenate([g.lower.ravel() for g in domain])
    upper = np.concatenate([g.upper.ravel() for g in domain])
    assert np.all(result.x >= lower)
    assert np.all(result.x <= upper)
    assert np.all(result.price >= 0)


def stopped_after(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C after so many slices of at most 40 rounds."""
    seen = []
    original = simulate_module._next_size

    def next_size(size: int, seconds: float) -> int:
        seen.append(size)
        if len(seen) == slices:
            signal.raise_signal(signal.SIGINT)
        return min(40, original(size, seconds))

    monkeypatch.setattr(simulate_module, "_next_size", next_size)


@pytest.mark.parametrize("kind", ["named", "fleet", "Algorithm 1"])
def test_an_interrupted_run_is_valid_and_resumes_to_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = big_fleet() if kind == "fleet" else PAPER
    plan = {"named": SUMS, "Algorithm 1": PUBLISHED}.get(kind) or noise(problem, 0.1)
    asked: dict[str, Any] = {"rounds": 400, "runs": 2, "seed": 3}
    if kind != "fleet":
        asked["saddle"] = HAT
    if kind == "Algorithm 1":  # 17 runs are two blocks of lanes
        asked |= {"algorithm": Tikhonov(), "runs": 17}
    whole = simulate(problem, plan, **asked)
    file = tmp_path / "run.ckpt"
    with monkeypatch.context() as patch:
        stopped_after(3, patch)
        part = simulate(problem, plan, **asked, checkpoint=file)
    assert part.interrupted
    assert 0 < part.rounds < 400
    assert part.trace.k[-1] <= part.rounds
    np.testing.assert_array_equal(part.trace.residual, whole.trace.residual[:, : part.trace.k.size])
    resumed = simulate(problem, plan, **asked, checkpoint=file)
    assert not resumed.interrupted
    np.testing.assert_array_equal(resumed.x, whole.x)
    np.testing.assert_array_equal(resumed.price, whole.price)
    np.testing.assert_array_equal(resumed.trace.residual, whole.trace.residual)
    with pytest.raises(InputError, match="another simulation"):
        simulate(problem, plan, **(asked | {"seed": 4}), checkpoint=file)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(InputError, match="cut short or damaged"):
        simulate(problem, plan, **asked, checkpoint=file)


def test_a_run_that_blows_up_is_marked_with_its_round_and_the_others_go_on() -> None:
    x = sv.agents(2, lower=[-800, -1], upper=[800, 1])
    problem = Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=[exp(x[0]) + x[1] <= 10])
    plan = noise(problem, 0.0, {(0, 0): 1e5})
    result = simulate(
        problem, plan, rounds=50, runs=12, mu0=[1.0], saddle=([0.0, 0.0], [0.0]),
        algorithm=Tikhonov(gamma_bar=0.1),
    )  # fmt: skip
    failed = result.failed > 0
    assert 0 < failed.sum() < 12
    assert np.all(np.isfinite(result.price[~failed]))
    assert not np.any(np.isfinite(result.price[failed]))
    z = np.array([drawn(0, r, rounds=1, count=1)[0, 0] for r in range(12)])
    # A large negative normal throws x to 800 in round 1; exp(800) overflows g in round 2.
    np.testing.assert_array_equal(result.failed[z < -1], 2)


def test_without_a_plan_there_is_no_noise_and_the_result_says_so() -> None:
    result = simulate(big_fleet(n=300), rounds=5, runs=2, saddle=(np.zeros(300), np.zeros(1)))
    assert result.noise.startswith("none")
    np.testing.assert_array_equal(result.x[0], result.x[1])


def test_a_solve_does_not_remember_the_plan_of_another() -> None:
    plans = (SUMS, None, noise(PAPER, 20.0))
    after = [simulate(PAPER, plan, rounds=50, saddle=HAT).x for plan in plans]
    for plan, x in zip(plans, after, strict=True):
        assert np.array_equal(simulate(paper(), plan, rounds=50, saddle=HAT).x, x)
    assert len({x.tobytes() for x in after}) == len(plans)


def test_recording_is_log_spaced_by_default() -> None:
    default = simulate(PAPER, SUMS, rounds=5000, saddle=HAT)
    assert default.trace.k[[0, -1]].tolist() == [0, 5000]
    assert 500 < default.trace.k.size <= 1001
    some = simulate(PAPER, SUMS, rounds=5000, saddle=HAT, record=[0, 7, 4999])
    place = np.searchsorted(default.trace.k, [0, 7])
    np.testing.assert_array_equal(
        some.trace.error_price[:, :2], default.trace.error_price[:, place]
    )
    np.testing.assert_array_equal(default.error_x, default.trace.error_x[:, -1])


def test_a_run_whose_prices_run_away_says_in_which_round() -> None:
    """Nothing within the boxes meets the constraint, so prices grow for as long as they may."""
    x = sv.agents(2, lower=0, upper=1)
    problem = Problem(objectives=[a**2 for a in x], constraints=[x[0] + x[1] >= 3, x[0] <= 2])
    zeros = (np.zeros(2), np.zeros(problem.cloud.sums.count))
    result = simulate(problem, rounds=3000, record=[], saddle=zeros)
    reference = PriceRounds(problem, None)
    with pytest.raises(AssertionError):
        reference.run(np.zeros((3000, problem.cloud.sums.count)))
    assert result.failed[0] == len(reference.released)


def test_a_sum_that_cannot_move_does_not_hold_the_other_prices_at_zero() -> None:
    x = sv.agents(["a", "b", "c"], lower=[-4, -4, 2], upper=4)
    a, b, c = x
    problem = sv.Problem(
        agents=x,
        objectives=[(a - 1) ** 2, (b + 3) ** 2, (c + 3) ** 2],
        constraints=[sv.exp(-0.2 * a - 0.2 * b) + 0.5 * c <= 4, a - b <= 2],
    )
    result = sv.simulate(problem, rounds=300, progress=False)
    assert result.x[0] == pytest.approx([0.0, -2.0, 2.0], abs=1e-6)
