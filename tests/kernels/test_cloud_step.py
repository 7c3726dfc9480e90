"""The cloud's step and projections: the same bits in every build, and optimality conditions."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
from kernel_builds import BUILDS, use_build

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.public_sum import LARGEST_REGION, Ball, Level, PublicSum
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import symbol
from sottovoce.formula.functions import exp
from sottovoce.formula.tape import tape
from sottovoce.kernels import variant
from sottovoce.kernels.cloud_kernel import RUNAWAY, CloudKernel
from sottovoce.kernels.core import cloud_step, prices
from sottovoce.kernels.variant import core

U = [symbol(f"u{i}") for i in range(3)]


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    yield from use_build(request.param, monkeypatch)


def intervals(p: int) -> PublicSum:
    lower = np.where(np.arange(p) % 3 == 0, -np.inf, -1.0)
    upper = np.where(np.arange(p) % 3 == 1, -1.0, 2.0)  # every third a point
    unit, noise = 0.5 + np.arange(p), np.ones(p)
    return PublicSum(lower=lower, upper=upper, unit=unit, noise=noise)


def with_regions() -> PublicSum:
    phi = canonical(U[0] ** 2 + U[0] * U[1] + U[1] ** 2 + 0.1 * U[2] ** 4 - U[2] - 2)
    free = np.full(6, np.inf)
    lower, upper = -free, free.copy()
    lower[5], upper[5] = -1.0, 1.5
    regions = (
        Ball(members=(0, 3), center=(0.5, -0.25), radius=1.0),
        Level(members=(1, 2, 4), symbols=tuple(U), phi=phi, ranges=((-9.0, 9.0),) * 3, level=0.25),
    )
    unit, noise = 0.5 + np.arange(6), np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    return PublicSum(lower=lower, upper=upper, unit=unit, noise=noise, regions=regions)


def releases(p: int, rounds: int) -> tuple[Any, Any]:
    """Noise, and a response of sums to prices."""
    rng = np.random.default_rng(p)
    root = rng.normal(size=(p, p)) / p
    return rng.normal(size=(rounds, p)), root @ root.T + 0.1 * np.eye(p)


CASES = [intervals(1), intervals(4), intervals(30), with_regions()]


@pytest.mark.parametrize("public", CASES, ids=["1", "4", "30", "regions"])
def test_every_build_has_the_same_bits(public: PublicSum, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = np.array(public.unit)
    p = unit.size
    rounds = 30 if p == 4 else 8
    noise, response = releases(p, rounds)
    ends = set()
    for build in BUILDS:
        for _ in use_build(build, monkeypatch):
            cloud = CloudKernel(public, DualAveraging(), planned=True)
            for k in range(1, rounds + 1):
                y = 3.0 - response @ cloud.price + unit * np.array(public.noise) * noise[k - 1]
                assert cloud.round(k, y, share=0.5)
            assert np.any(cloud.price != 0.0)
            ends.add((cloud.price.tobytes(), cloud.memory[: core().kept_size(p)].tobytes()))
    assert len(ends) == 1


def test_the_answer_averages_and_steering_takes_off_what_it_has_too_much(build: str) -> None:
    public = intervals(4)
    cloud, plain = (
        CloudKernel(public, DualAveraging(), planned=True),
        CloudKernel(public, DualAveraging(), planned=True),
    )
    noise, _ = releases(4, 6)
    answer, released = np.zeros(4), np.zeros(4)
    for k in range(1, 7):
        y = 3.0 + noise[k - 1]
        before = cloud.price.copy()
        answer += 1.0 / k * (before - answer)
        released += 1.0 / k * (y - released)
        aimed = y + 0.5 * (released - cloud.nearest(released))
        assert cloud.round(k, y, share=1.0 / k, steer=0.5)
        assert plain.round(k, aimed, share=1.0 / k)
        assert np.array_equal(cloud.answer, answer)
        assert np.array_equal(cloud.released, released)
        assert np.array_equal(cloud.price, plain.price)


def test_without_a_plan_the_answer_is_the_last_price(build: str) -> None:
    cloud = CloudKernel(intervals(4), DualAveraging(), planned=False)
    for k in range(1, 4):
        cloud.round(k, np.full(4, 3.0), share=1.0)
    assert np.any(cloud.price != 0.0)
    assert np.array_equal(cloud.answer, cloud.price)
    assert not cloud.released.any()


def test_projections_meet_their_optimality_conditions(build: str) -> None:
    public = with_regions()
    ball, level = public.regions
    assert isinstance(ball, Ball)
    assert isinstance(level, Level)
    cloud = CloudKernel(public, DualAveraging(), planned=True)
    slopes = tape([level.phi, *(derivative(level.phi, s) for s in U)], U)
    rng = np.random.default_rng(0)
    for _ in range(20):
        v = 3.0 * rng.normal(size=6)
        u = cloud.nearest(v)
        out = v[[0, 3]] - ball.center
        size = max(1.0, float(np.linalg.norm(out)) / ball.radius)
        np.testing.assert_allclose(u[[0, 3]], ball.center + out / size, rtol=1e-12)
        assert u[5] == np.clip(v[5], -1.0, 1.5)
        own, value = u[[1, 2, 4]], np.array(slopes(*u[[1, 2, 4]]), dtype=float)
        off, normal = v[[1, 2, 4]] - own, value[1:]
        nu = float(off @ normal / (normal @ normal))
        assert value[0] + level.level <= 1e-10
        assert nu >= 0.0
        np.testing.assert_allclose(off, nu * normal, atol=1e-10)
        assert nu == 0.0 or abs(value[0] + level.level) < 1e-10


def test_a_projection_in_a_metric_is_normal_to_the_set_in_it(build: str) -> None:
    public = with_regions()
    ball, level = public.regions
    assert isinstance(ball, Ball)
    cloud, rng = CloudKernel(public, DualAveraging(), planned=True), np.random.default_rng(1)
    slopes = tape([derivative(level.phi, s) for s in U], U)  # type: ignore[union-attr]
    for _ in range(20):
        v, metric = 3.0 * rng.normal(size=6), rng.uniform(0.1, 10.0, size=6)
        u = cloud.nearest(v, metric=metric)
        force = metric * (v - u)
        outward = u[[0, 3]] - np.array(ball.center)
        assert abs(force[0] * outward[1] - force[3] * outward[0]) < 1e-7
        normal = np.array(slopes(*u[[1, 2, 4]]), dtype=float)
        pull = force[[1, 2, 4]]
        np.testing.assert_allclose(
            pull, float(pull @ normal / (normal @ normal)) * normal, atol=1e-7
        )


def test_projections_from_far_away_neither_overflow_nor_stop_short(build: str) -> None:
    phi = canonical(exp(U[0]) + U[1] - 0.03)
    level = Level(members=(0, 1), symbols=tuple(U[:2]), phi=phi, ranges=((-4.0, 4.0), (-2.0, 2.0)))
    free = np.full(2, np.inf)
    public = PublicSum(lower=-free, upper=free, unit=[1.0, 1.0], noise=[1.0, 1.0], regions=(level,))
    cloud = CloudKernel(public, DualAveraging(), planned=True)
    for v in ([262.5, -3.0], [3.0, 5.0], [1e4, 1e4], [-9.0, 40.0], [2.0, -1.0]):
        u = cloud.nearest(np.array(v))
        assert abs(np.exp(u[0]) + u[1] - 0.03) < 1e-9
        free_of_edges = np.abs(u) < (12.0, 6.0)  # one width beyond the ranges
        nu = (np.array(v) - u) / (np.exp(u[0]), 1.0)
        assert np.all(nu[free_of_edges] > 0.0)
        assert np.ptp(nu[free_of_edges]) < 1e-8 * nu.max()


def test_prices_that_run_away_are_reported(build: str) -> None:
    cloud = CloudKernel(intervals(4), DualAveraging(), planned=True)
    assert not cloud.round(1, np.full(4, np.nan), share=1.0)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The plain build, whose inner functions Python may call; other builds have its bits."""
    for _ in use_build("plain", monkeypatch):
        yield variant.build("plain")


def nearest_in_metric(kernels: Any, public_set: Any, v: Any, weight: Any) -> Any:
    u = np.zeros(v.size)
    kernels.project(v, weight, public_set, u, np.zeros(kernels.project_work(v.size)))
    return u


def test_projections_in_a_weighted_metric_are_clarabels(plain: Any) -> None:
    cp: Any = cvxpy
    core = CloudKernel(with_regions(), DualAveraging(), planned=True).core
    rng = np.random.default_rng(1)
    for _ in range(6):
        v, weight = 3.0 * rng.normal(size=6), 10 ** rng.uniform(-2, 2, 6)
        x = cp.Variable(6)
        cost = cp.sum(cp.multiply(weight / weight.max(), cp.square(x - v)))
        quadratic = cp.quad_form(x[[1, 2]], np.array([[1.0, 0.5], [0.5, 1.0]]))
        kept = [
            cp.norm(x[[0, 3]] - np.array([0.5, -0.25])) <= 1.0,
            quadratic + 0.1 * cp.power(x[4], 4) - x[4] - 2.0 + 0.25 <= 0.0,
            x[5] >= -1.0,
            x[5] <= 1.5,
        ]
        cp.Problem(cp.Minimize(cost), kept).solve(solver="CLARABEL", tol_gap_rel=1e-12)
        u = nearest_in_metric(plain, core.c_set, v, weight)
        np.testing.assert_allclose(u, x.value, atol=2e-4)
        off = weight @ (u - v) ** 2
        assert off <= weight @ (x.value - v) ** 2 * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("public", [intervals(4), with_regions()], ids=["intervals", "regions"])
def test_prices_meet_the_conditions_of_their_model(plain: Any, public: PublicSum) -> None:
    core, unit = CloudKernel(public, DualAveraging(), planned=True).core, np.array(public.unit)
    rng, p = np.random.default_rng(2), unit.size
    for _ in range(6):
        root, model = rng.normal(size=(p, p)), plain.DualModel()
        H, center = root @ root.T + 0.1 * np.eye(p), rng.normal(size=p)
        total, recent = 5.0 * rng.normal(size=p), 3.0
        model.p, model.dense, model.H, model.recent = p, True, H.ravel(), recent
        model.total, model.unit, model.public_set = total, unit, core.c_set
        price, aim = np.zeros(p), np.zeros(p)
        plain.maximise(model, center, price, aim, np.zeros(plain.prices_work(p, p * p)))
        right = total + H @ center
        np.testing.assert_allclose(H @ price + recent * aim, right, atol=1e-7 * np.abs(right).max())
        # u is in C, and l is normal to C there: projecting u + l leads back to u.
        back = nearest_in_metric(plain, core.c_set, (aim + price) * unit, 1.0 / unit**2)
        np.testing.assert_allclose(back / unit, aim, atol=1e-7 * (1.0 + np.abs(aim + price).max()))


def test_limits_outside_the_core_are_those_of_the_core() -> None:
    assert (LARGEST_REGION, RUNAWAY) == (prices.LARGEST_REGION, cloud_step.RUNAWAY)
