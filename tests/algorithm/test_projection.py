from __future__ import annotations

from math import exp
from typing import Any

import cvxpy
import numpy as np
import pytest

from sottovoce.algorithm import projection
from sottovoce.algorithm.projection import PublicSet, intervals, no_phi, project, project_work
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.turn import PUBLIC
from sottovoce.problem.agents import Array

cp: Any = cvxpy


def region(
    size: int, radius: float = -1.0, center: Array | None = None, level: float = 0.0
) -> PublicSet:
    return PublicSet(
        np.full(size, -np.inf),
        np.full(size, np.inf),
        np.array([0, size]),
        np.arange(size, dtype=np.int64),
        np.zeros(size) if center is None else center,
        np.array([radius]),
        np.array([level]),
    )


def projected(v: Array, weight: Array, public: PublicSet, phi: projection.Phi = no_phi) -> Array:
    u = np.empty(v.size)
    project(v, weight, public, phi, u, np.empty(project_work(v.size)))
    return u


def paraboloid(region: int, u: Array, gradient: Array, hessian: Array) -> float:
    hessian[:, :] = 0.0
    hessian[0, 0] = 2.0
    gradient[0] = 2.0 * u[0]
    gradient[1] = 1.0
    return float(u[0] * u[0] + u[1] - 9.0)


def exponentials(region: int, u: Array, gradient: Array, hessian: Array) -> float:
    hessian[:, :] = 0.0
    value = -2.0
    for i in range(u.size):
        gradient[i] = exp(u[i])
        hessian[i, i] = gradient[i]
        value += gradient[i]
    return value


def test_intervals_points_and_free_sums_are_clipped() -> None:
    public = intervals(np.array([-np.inf, 2.0, -1.0, -np.inf]), np.array([1.0, 2.0, 1.0, np.inf]))
    u = projected(np.array([3.0, 5.0, -4.0, 7.0]), np.array([1.0, 2.0, 3.0, 4.0]), public)
    assert np.array_equal(u, [1.0, 2.0, -1.0, 7.0])


def test_balls_agree_with_cvxpy_in_any_diagonal_metric() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        v, center = 3 * rng.normal(size=3), rng.normal(size=3)
        weight, radius = 10 ** rng.uniform(-2, 2, 3), rng.uniform(0.1, 2)
        u = projected(v, weight, region(3, radius, center))
        z = cp.Variable(3)
        cost = cp.sum(cp.multiply(weight / weight.max(), cp.square(z - v)))
        cp.Problem(cp.Minimize(cost), [cp.norm(z - center) <= radius]).solve(solver=cp.CLARABEL)
        assert np.allclose(u, z.value, atol=1e-4)
        assert np.linalg.norm(u - center) <= radius * (1 + 1e-12)


def test_a_ball_in_an_equal_metric_is_the_radial_projection() -> None:
    v, center = np.array([3.0, -4.0]), np.array([0.5, 0.25])
    u = projected(v, np.full(2, 7.0), region(2, 1.5, center))
    assert np.allclose(u, center + 1.5 * (v - center) / np.linalg.norm(v - center), rtol=1e-14)
    assert np.array_equal(projected(v, np.ones(2), region(2, 0.0, center)), center)


@pytest.mark.parametrize(("phi", "size"), [(paraboloid, 2), (exponentials, 3)])
def test_general_regions_meet_their_optimality_conditions_to_twelve_digits(
    phi: projection.Phi, size: int
) -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        v = np.minimum(rng.normal(size=size) * 10 ** rng.uniform(-1, 1.5), 20.0)
        weight = 10 ** rng.uniform(-2, 2, size)
        u, gradient, hessian = np.empty(size), np.empty(size), np.empty((size, size))
        work = np.empty(project_work(size))
        nu = project(v, weight, region(size), phi, u, work)
        value = phi(0, u, gradient, hessian)
        assert value <= 1e-11 * (1 + np.abs(u).max())
        rounding = 1e-12 * weight * (np.abs(u) + np.abs(v)) + 1e-12 * nu * np.abs(gradient)
        assert np.all(np.abs(weight * (u - v) + nu * gradient) <= rounding)
        assert nu == 0.0 or abs(value) <= 1e-11 * (1 + np.abs(u).max())


def test_points_inside_stay_where_they_are() -> None:
    v = np.array([0.5, 1.0])
    assert np.array_equal(projected(v, np.ones(2), region(2), paraboloid), v)
    assert np.array_equal(projected(v, np.ones(2), region(2, 3.0)), v)


def test_compiled_and_python_give_the_same_bits() -> None:
    kinds = ", ".join(["float64[::1]"] * 4 + [*PUBLIC.values()])
    compiled = load_kernel(f"""
from sottovoce.algorithm.projection import PublicSet, project
from sottovoce.compiler.module import entry
from test_projection import paraboloid

@entry("float64({kinds})")
def projected(v, weight, u, work, {", ".join(PUBLIC)}):
    return project(v, weight, PublicSet({", ".join(PUBLIC)}), paraboloid, u, work)
""")
    rng = np.random.default_rng(3)
    public = PublicSet(
        np.array([-np.inf, -np.inf, -np.inf, -np.inf, 0.0]),
        np.array([np.inf, np.inf, np.inf, np.inf, 1.0]),
        np.array([0, 2, 4]),
        np.array([0, 1, 3, 2]),
        np.zeros(4),
        np.array([1.5, -1.0]),
        np.array([0.0, 0.5]),
    )
    for _ in range(50):
        v, weight = 5 * rng.normal(size=5), 10 ** rng.uniform(-2, 2, 5)
        u, w, work = np.empty(5), np.empty(5), np.empty(project_work(5))
        nu = project(v, weight, public, paraboloid, u, work)
        assert nu == compiled.projected(v, weight, w, work, *public)
        assert np.array_equal(u, w)
