"""Passes over fleets: bits of the algorithm, of every build, and of agents by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from kernel_builds import BUILDS, gradient_step, kernel_of, make_fleet, use_build
from scipy.optimize import brentq

from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import Expression, symbol
from sottovoce.formula.functions import exp
from sottovoce.formula.tape import tape
from sottovoce.kernels.core.plain import INTERIOR, SEPARABLE
from sottovoce.kernels.fleet_kernel import MEASURES, FleetKernel, FleetStates
from sottovoce.paper.tikhonov import state_step
from sottovoce.problem.fleets import Fleet
from sottovoce.problem.fleets import FleetContribution as Terms

X = tuple(symbol(f"x{c}") for c in range(3))
A, B = symbol("a"), symbol("b")


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    yield from use_build(request.param, monkeypatch)


def values(formulas: list[Expression], symbols: Any, numbers: Any) -> list[float]:
    return [float(v) for v in tape(formulas, tuple(symbols))(*numbers)]


def scalars(count: int, **more: Any) -> Fleet:
    """Scalar states with a quartic objective and every kind of weight."""
    rng = np.random.default_rng(count)
    x = X[0]
    table = sparse.random(2, count, density=0.7, random_state=1, format="csr")
    stated: dict[str, Any] = {
        "parameters": {A: rng.uniform(-2, 2, count), B: rng.uniform(0.1, 2, count)},
        "objective": canonical(B * (x - A) ** 4 + (x - 1) ** 2),
    }
    sums = (
        Terms(row=0, terms=(canonical(2 * x), canonical(x**2))),
        Terms(row=2, terms=(x,), weights=rng.normal(size=(3, count))),
        Terms(row=5, terms=(x,), weights=table),
    )
    bounds = (np.full((count, 1), -3.0), rng.uniform(1.0, 4.0, (count, 1)))
    return make_fleet((x,), sums, bounds, **(stated | more))


def weights(problem: Fleet, count: int) -> Any:
    """The rows' coefficients of every term, shape (7, terms, count)."""
    out = np.zeros((7, 4, count))
    out[0, 0] = out[1, 1] = 1.0
    out[2:5, 2] = problem.sums[1].weights
    out[5:7, 3] = problem.sums[2].weights.toarray()
    return out


PRICE = np.array([0.3, 0.7, -0.2, 0.4, 0.1, 0.6, -0.5])


@pytest.mark.parametrize("count", [1, 21])
def test_scalar_states_go_to_their_proximal_minimiser(build: str, count: int) -> None:
    problem = scalars(count)
    fleet = FleetStates(kernel_of(problem), np.zeros((count, 1)))
    assert fleet.kernel.width == (16 if count > 1 else 1)
    terms = problem.terms
    slopes = [gradient(h, (X[0],))[X[0]] for h in terms]
    own = gradient(problem.objective, (X[0],))[X[0]]
    W, symbols = weights(problem, count), (X[0], A, B)
    center, worth = np.zeros(count), np.zeros(count)
    for k in (1, 2):
        center += (fleet.states.ravel() - center) / 2
        sums = fleet.round(k, PRICE, theta=0.5, share=0.5)
        for i in range(count):
            multipliers = [sum_left(PRICE * W[:, t, i], W[:, t, i]) for t in range(4)]
            numbers = [v[i] for v in problem.group.parameters.values()]

            at = [center[i], *numbers]
            pull = left(0.0, multipliers, values(slopes, symbols, at))
            low, high = -3.0, problem.group.upper[i, 0]
            worth[i] = max(abs(pull) * (high - low), worth[i] * k / (k + 1))
            weight = 0.5 * worth[i] / (high - low) ** 2

            def slope(
                x: float,
                m: Any = multipliers,
                p: Any = numbers,
                w: float = weight,
                c: float = center[i],
            ) -> float:
                f, *h = values([own, *slopes], symbols, [x, *p])
                return left(f, m, h) + w * (x - c)

            ends = slope(low), slope(high)
            expected = low if ends[0] > 0 else high if ends[1] < 0 else brentq(slope, low, high)
            assert fleet.states[i, 0] == pytest.approx(expected, abs=1e-9), (k, i)
        x = fleet.states.ravel()
        h = np.array([2 * x, x**2, x, x])
        np.testing.assert_allclose(sums, np.einsum("rti,ti->r", W, h), rtol=1e-12)
    assert np.array_equal(fleet.contributions(7), sums)


def left(first: float, m: Any, h: Any) -> float:
    for a, b in zip(m, h, strict=True):
        first = first + a * b
    return first


def sum_left(products: Any, used: Any) -> float:
    total = 0.0
    for value in products[used != 0.0]:
        total += value
    return total


def test_contributions_are_integers_on_a_grid(build: str) -> None:
    problem = scalars(21)
    fleet = FleetStates(kernel_of(problem), np.full((21, 1), 0.7))
    grid = np.array([0.1, 0.25, 0.01, 0.2, 0.3, 0.5, 0.05])
    W, x = weights(problem, 21), fleet.states.ravel()
    h = np.array([2 * x, x**2, x, x])
    expected = np.rint(np.einsum("rti,ti->rti", W, h).sum(axis=1) / grid[:, None]).sum(axis=1)
    assert np.array_equal(fleet.contributions(7, grid), expected)
    before = fleet.states
    fleet.round(1, PRICE, theta=0.5, share=0.25, grid=grid)
    assert np.array_equal(fleet.answer, before)  # the average of what was released


def vectors(count: int, **more: Any) -> Fleet:
    x, rng = X, np.random.default_rng(count)
    stated: dict[str, Any] = {
        "parameters": {A: rng.uniform(-2, 2, count)},
        "objective": canonical((x[0] + x[1] - A) ** 2 + x[1] ** 4 + exp(0.3 * x[2]) - x[0] * A),
    }
    sums = (Terms(row=0, terms=(canonical(x[0] + x[1]), canonical(x[2] ** 2))),)
    bounds = (np.full((count, 3), -2.0), np.full((count, 3), 1.5))
    return make_fleet(x, sums, bounds, **(stated | more))


def test_vector_states_in_a_box_go_to_their_proximal_minimiser(build: str) -> None:
    problem = vectors(3)
    fleet = FleetStates(kernel_of(problem), np.zeros((3, 3)))
    own = gradient(problem.objective, X)
    terms = [gradient(h, X) for h in problem.terms]
    price = np.array([0.4, 0.2])
    before = fleet.states
    fleet.round(1, price, theta=0.5, share=1.0)
    for i in range(3):
        a = problem.group.parameters[A][i]

        def slope(x: Any, a: float = a, with_f: bool = True) -> Any:
            out = []
            for s in X:
                value = values([own[s]], (*X, A), [*x, a])[0] if with_f and s in own else 0.0
                for m, dh in zip(price, terms, strict=True):
                    if s in dh:
                        value = value + m * values([dh[s]], (*X, A), [*x, a])[0]
                out.append(value)
            return np.array(out)

        lower, upper, x = problem.group.lower[i], problem.group.upper[i], fleet.states[i]
        worth = np.max(np.abs(slope(before[i], with_f=False)) * (upper - lower))
        weight = 0.5 * worth / (upper - lower) ** 2
        step = slope(x) + weight * (x - before[i])
        np.testing.assert_allclose(np.clip(x - step, lower, upper), x, atol=1e-8)


def separable(count: int, rows: int) -> Fleet:
    """``sum_c A (x_c - c)^2`` with a need, and a square of a sum if there are two rows."""
    x, rng = X, np.random.default_rng(count)
    objective = A * (x[0] - 1) ** 2 + A * x[1] ** 2 + 0.5 * (x[2] + 1) ** 2
    square = 3 * (x[0] - x[1] - 0.25) ** 2 if rows == 2 else 0
    return vectors(
        count,
        parameters={A: rng.uniform(0.5, 2, count), B: rng.uniform(-1, 1, count)},
        objective=canonical(objective + square),
        equalities=(canonical(x[0] + x[1] + x[2] - B),),
    )


@pytest.mark.parametrize("rows", [1, 2])
def test_separable_problems_agree_with_the_interior_point_method(build: str, rows: int) -> None:
    problem = separable(18 if build != "plain" else 2, rows)
    price = np.array([0.4, 0.2])
    kernels = [kernel_of(problem), kernel_of(problem, interior=True)]
    assert [kernel.how for kernel in kernels] == [SEPARABLE, INTERIOR]
    fleets = [FleetStates(kernel, np.zeros((kernel.count, 3))) for kernel in kernels]
    starts = [fleet.states for fleet in fleets]
    np.testing.assert_allclose(starts[0].sum(axis=1), problem.group.parameters[B], atol=1e-12)
    np.testing.assert_allclose(starts[0], starts[1], atol=1e-7)
    sums = [fleet.round(1, price, theta=0.5, share=1.0) for fleet in fleets]
    np.testing.assert_allclose(fleets[0].states, fleets[1].states, atol=1e-6)
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-5)
    measured = [fleet.measure(price) for fleet in fleets]
    np.testing.assert_allclose(measured[0][:-2], measured[1][:-2], atol=1e-5)


SHAPES: dict[str, Callable[[], FleetKernel]] = {
    "scalars": lambda: kernel_of(scalars(18)),
    "vectors": lambda: kernel_of(vectors(2)),
    "one row": lambda: kernel_of(separable(18, 1)),
    "two rows": lambda: kernel_of(separable(18, 2)),
    "interior point": lambda: kernel_of(separable(2, 1), interior=True),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_build_has_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {}
    for build in BUILDS:
        for _ in use_build(build, monkeypatch):
            kernel = SHAPES[name]()
            fleet = FleetStates(kernel, np.full(kernel.lower.shape, 0.5))
            price = PRICE if name == "scalars" else PRICE[:2]
            sums = [fleet.round(k, price, theta=0.5, share=0.5) for k in (1, 2)]
            ends[build] = (fleet.states.tobytes(), fleet.answer.tobytes(), np.array(sums).tobytes())
    assert len(set(ends.values())) == 1


@pytest.mark.parametrize("make", [scalars, vectors, lambda n: separable(n, 2)])
def test_an_agent_in_a_fleet_has_its_bits_alone(build: str, make: Callable[[int], Fleet]) -> None:
    count = 3
    whole = make(count)
    whole = replace(whole, sums=tuple(t for t in whole.sums if t.weights is None))

    def of(agents: slice) -> Any:
        some = whole.some(np.arange(count)[agents])
        fleet = FleetStates(kernel_of(some), np.zeros(some.group.lower.shape))
        fleet.round(1, np.array([0.4, 0.2]), theta=0.5, share=1.0)
        return fleet.states

    together = of(slice(0, count))
    for i in range(count):
        assert of(slice(i, i + 1)).tobytes() == together[i : i + 1].tobytes()


@pytest.mark.parametrize("count", [1, 18])
def test_gradient_steps_have_the_bits_of_algorithm_1(build: str, count: int) -> None:
    problem = scalars(count)
    fleet = FleetStates(kernel_of(problem, gradient_steps=True), np.full((count, 1), 0.5))
    slopes = [gradient(h, (X[0],))[X[0]] for h in problem.terms]
    own = gradient(problem.objective, (X[0],))[X[0]]
    W = weights(problem, count)
    before = fleet.contributions(7)
    sums = gradient_step(fleet, PRICE, 0.1, 0.2)
    assert np.array_equal(sums, before)
    for i in range(count):
        numbers = [0.5, *(v[i] for v in problem.group.parameters.values())]
        f, *h = values([own, *slopes], (X[0], A, B), numbers)
        slope = left(f, [sum_left(PRICE * W[:, t, i], W[:, t, i]) for t in range(4)], h)
        assert fleet.states[i, 0] == state_step(
            0.5, slope, 0.1, 0.2, -3.0, problem.group.upper[i, 0]
        )


def test_measures_of_a_box_are_those_of_the_formulas(build: str) -> None:
    problem = scalars(5)
    hat = np.full((5, 1), 0.25)
    fleet = FleetStates(kernel_of(problem), np.full((5, 1), 0.5), solution=hat)
    sums, numbers = np.split(fleet.measure(PRICE), [7])
    measured = dict(zip(MEASURES, numbers, strict=True))
    x = fleet.states.ravel()
    a, b = problem.group.parameters.values()
    assert measured["objective"] == pytest.approx(np.sum(b * (x - a) ** 4 + (x - 1) ** 2))
    assert measured["squared_error"] == measured["squared_error_last"] == 5 * 0.0625
    W = weights(problem, 5)
    m = np.einsum("r,rti->ti", PRICE, W)
    slope = 4 * b * (x - a) ** 3 + 2 * (x - 1) + m[0] * 2 + m[1] * 2 * x + m[2] + m[3]
    near = np.clip(x - slope, problem.group.lower.ravel(), problem.group.upper.ravel())
    assert measured["residual"] == pytest.approx(np.sum((x - near) ** 2))
    np.testing.assert_allclose(sums, fleet.contributions(7))
