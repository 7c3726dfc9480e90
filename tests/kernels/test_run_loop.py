"""Whole rounds: a simulation has the bits of a cloud and agents that take them by themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from kernel_builds import BUILDS, kernel_of, make_fleet, use_build

import sottovoce as sv
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.public_sum import PublicSum
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import symbol
from sottovoce.kernels import variant
from sottovoce.kernels.cloud_kernel import CloudKernel
from sottovoce.kernels.fleet_kernel import MEASURES, FleetStates
from sottovoce.kernels.run_kernel import Release, Run, normals, stream_seed
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.problem.fleets import Fleet, FleetContribution

X, A = symbol("x"), symbol("a")
SUMS = 2
TRACE = 3 * SUMS + len(MEASURES)


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    yield from use_build(request.param, monkeypatch)


def agents(count: int, seed: int = 0) -> Fleet:
    return make_fleet(
        (X,),
        (FleetContribution(row=0, terms=(X, canonical(X**2))),),
        (np.full((count, 1), -4.0), np.full((count, 1), 4.0)),
        objective=canonical((X - A) ** 4 + (X - A) ** 2),
        parameters={A: np.random.default_rng(seed).uniform(1, 3, count)},
    )


def advance(run: Run, done: int, until: int, steps: Any, **records: Any) -> None:
    tasks = run.tasks(done, until, steps, **records)
    with ThreadPoolExecutor(len(tasks)) as pool:
        for future in [pool.submit(task) for task in tasks]:
            future.result()


def public() -> PublicSum:
    return PublicSum(lower=[-np.inf, 0.0], upper=[3.0, 9.0], unit=[0.5, 1.0], noise=[1.0, 1.0])


def fleets(counts: tuple[int, ...], *, gradient_steps: bool = False) -> list[FleetStates]:
    kernels = [kernel_of(agents(c, c), gradient_steps=gradient_steps) for c in counts]
    return [FleetStates(k, np.zeros((k.count, 1)), solution=np.ones((k.count, 1))) for k in kernels]


GRID = np.array([2.0**-10, 2.0**-9])
SIGMA = np.array([0.5, 1.0])


@pytest.mark.parametrize("planned", [True, False])
def test_a_run_has_the_bits_of_a_cloud_and_agents_by_themselves(build: str, planned: bool) -> None:
    rounds, counts, seed = 20, (1, 1, 18), stream_seed(7, 0)
    grid = GRID if planned else None
    sigma = SIGMA if planned else np.zeros(2)
    run = Run(fleets(counts), Release(offset=np.zeros(2), sigma=sigma, grid=grid, seeds=(seed,)),
              (public(), DualAveraging()))  # fmt: skip
    k = np.arange(1.0, rounds + 1)
    steps = np.column_stack([1.0 / k if planned else k**0.0, np.full(rounds, 0.5 * planned), k / 9])
    transcript = np.zeros((rounds, SUMS))
    for done, until in ((0, 7), (7, rounds)):  # slices change nothing
        advance(run, done, until, steps[done:until], transcript=transcript[done:until])
    cloud, alone = CloudKernel(public(), DualAveraging(), planned=planned), fleets(counts)
    z = normals(seed, rounds, SUMS)
    sums = [f.contributions(SUMS, grid) for f in alone]
    for i in range(rounds):
        share, steer, theta = steps[i]
        y = np.sum(sums, axis=0) * (GRID if planned else 1.0) + sigma * z[i]
        if planned:
            assert np.array_equal(transcript[i], y), i
        cloud.round(i + 1, transcript[i], share=share, steer=steer)
        sums = [f.round(i + 1, cloud.price, theta=theta, share=share, grid=grid) for f in alone]
    assert run.cloud is not None
    for name in ("price", "answer", "released"):
        assert getattr(run.cloud, name).tobytes() == getattr(cloud, name).tobytes()
    for one, other in zip(run.fleets, alone, strict=True):
        assert one.states.tobytes() == other.states.tobytes()
        assert one.answer.tobytes() == other.answer.tobytes()
    assert run.failed_round[0] == 0
    assert np.any(cloud.price != 0.0)


def test_marks_record_what_fleets_measure(build: str) -> None:
    release = Release(offset=np.array([0.25, -1.0]), sigma=np.zeros(2), grid=None, seeds=(5,))
    run = Run(fleets((1, 18)), release, (public(), DualAveraging()))
    trace = np.zeros((2, TRACE))
    advance(run, 0, 3, np.tile([1.0, 0.0, 0.1], (3, 1)), marks=np.array([0, 3]), trace=trace)
    assert run.cloud is not None
    measured = np.sum([f.measure(run.cloud.answer) for f in run.fleets], axis=0)
    np.testing.assert_allclose(trace[1, :SUMS], release.offset + measured[:SUMS], rtol=1e-14)
    np.testing.assert_allclose(trace[1, SUMS:-4], measured[SUMS:], rtol=1e-13)
    assert np.array_equal(trace[1, -4:], np.r_[run.cloud.answer, run.cloud.price])
    assert trace[0, SUMS + 2] == 19.0  # squared distance from 0 to the solution 1


def test_lanes_have_the_bits_of_single_runs_in_every_build(monkeypatch: pytest.MonkeyPatch) -> None:
    x = sv.agents(3, lower=-5, upper=5)
    problem = sv.Problem(
        objectives=[(x[0] - 1) ** 4, (x[1] + 2) ** 2, (x[2] - 3) ** 2],
        constraints=[(x[0] + 10 * x[1]) ** 2 <= 50, x[0] + x[2] <= 1],
    )
    hide = sv.Trajectory(radius=1.0, rounds=20)
    plan = sv.paper.plan(problem, epsilon=1, delta=0.1, hide=hide, allow_undernoised=True)
    ends = set()
    for build in BUILDS:
        for _ in use_build(build, monkeypatch):
            for runs in (1, 17):
                steps = Tikhonov(gamma_bar=1e-3)
                found = sv.simulate(problem, plan, algorithm=steps, runs=runs, transcript=True)
                assert found.transcript is not None
                released = (found.transcript.y[0], found.transcript.gradients[0])
                arrays = (found.x[0], found.price[0], *released)
                ends.add(b"".join(a.tobytes() for a in arrays))
                assert not found.failed.any()
    assert len(ends) == 1


def test_normals_are_those_of_splitmix_and_box_muller(build: str) -> None:
    seed, mask = stream_seed(0, 0), 2**64 - 1
    found = normals(seed, 50, 3)

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    expected = []
    for pair in range(100):
        state = (seed + (2 * pair + 1) * 0x9E3779B97F4A7C15) & mask
        u = 1.0 - (mix(state) >> 12) * 2.0**-52
        v = (mix((state + 0x9E3779B97F4A7C15) & mask) >> 12) * 2.0**-52 - 0.125
        radius = np.sqrt(-2.0 * np.log(u))
        expected += [radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)]
    np.testing.assert_allclose(found, np.reshape(expected, (50, 4))[:, :3], rtol=1e-13, atol=1e-15)


@pytest.mark.skipif(len(BUILDS) == 1, reason="nothing compiled to compare")
def test_normals_have_the_same_bits_in_every_build() -> None:
    outs = []
    for name in BUILDS:
        out = np.empty(2 * 3 * 16)
        variant.build(name).fill_rounds(12345, 32, 3, out)
        outs.append(out.tobytes())
    assert len(set(outs)) == 1
