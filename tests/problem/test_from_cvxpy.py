"""Problems stated in cvxpy have the optimum that cvxpy finds, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import sottovoce as sv
from sottovoce.errors import ProblemError

cp: Any = import_module("cvxpy")  # its type hints do not name what it exports
RANDOM = np.random.default_rng(7)
COSTS, ROWS = RANDOM.random((4, 6)), RANDOM.random((5, 10))


def rates() -> tuple[Any, Any]:
    a, b, c = (cp.Variable(name=name, bounds=[0.01, 5.0]) for name in "abc")
    return cp.Problem(
        cp.Maximize(cp.log(a) + 2 * cp.log(b) + cp.sqrt(c)), [a + b <= 1, b + c <= 2]
    ), None


def paper_like() -> tuple[Any, Any]:
    x = cp.Variable(3, name="x", bounds=[-10, 10])
    cost = (x[0] - 9) ** 2 + (x[1] + 4) ** 4 + (x[2] - 1) ** 2
    return cp.Problem(cp.Minimize(cost), [cp.sum(x) <= 3, x[1] ** 2 + x[2] ** 2 <= 20]), {
        x: ["mill", "hill", "dam"]
    }


def chargers() -> tuple[Any, Any]:
    y = cp.Variable((4, 6), name="y", nonneg=True)
    rows = [y <= 3, cp.sum(y, axis=1) == np.array([3.0, 4, 5, 6]), cp.sum(y, axis=0) <= 5]
    cost = cp.sum_squares(y - 1) + cp.sum(cp.multiply(COSTS, y))
    return cp.Problem(cp.Minimize(cost), rows), {y: ["a", "b", "c", "d"]}


def packing() -> tuple[Any, Any]:
    v = cp.Variable(10, name="v", bounds=[0, 1])
    rows = [sparse.csr_array(ROWS) @ v <= 2, cp.NonNeg(v - 0.01), cp.Zero(v[0] - v[1])]
    return cp.Problem(cp.Maximize(COSTS.ravel()[:10] @ v), rows), {v: [f"u{i}" for i in range(10)]}


def non_smooth() -> tuple[Any, Any]:
    z, w = (cp.Variable(2, name=name, bounds=[-3, 3]) for name in "zw")
    target = cp.Parameter(2, value=[1.0, 1.0])
    cost = (
        cp.norm(z - target)
        + cp.norm1(w + 1)
        + cp.norm_inf(w)
        + cp.huber(z[0] - 2, 0.5)
        + cp.quad_form(w, np.array([[2.0, 1.0], [1.0, 2.0]]))
        + cp.exp(w[1])
        + cp.max(z)
        + cp.log_sum_exp(cp.hstack([w, 0.5]))
        + cp.logistic(z[1])
        + cp.pos(z[1])
        + cp.sum(cp.abs(cp.diff(z)))
    )
    return cp.Problem(cp.Minimize(cost), [z + w >= 0.3, cp.norm(z) <= 2, z[0] - w[0] == 0.5]), None


def one_owner_of_two() -> tuple[Any, Any]:
    p, q, r = (cp.Variable(name=name, bounds=[-2, 2]) for name in "pqr")
    cost = (p - q) ** 2 + (p + q - 3) ** 2 + (r - 2) ** 2
    return cp.Problem(cp.Minimize(cost), [p + r <= 1, q + r <= 1]), {
        p: "left",
        q: "left",
        r: "right",
    }


def public_cost() -> tuple[Any, Any]:
    y = cp.Variable((4, 6), name="y", nonneg=True)
    load = cp.sum(y, axis=0)
    rows = [y <= 3, cp.sum(y, axis=1) == np.array([3.0, 4, 5, 6])]
    cost = cp.sum(cp.multiply(COSTS, y)) + cp.sum_squares(load - 2) + 3 * cp.max(load)
    return cp.Problem(cp.Minimize(cost + (y[0, 0] + 1) ** 2), rows), {y: ["a", "b", "c", "d"]}


@pytest.mark.parametrize(
    "stated", [rates, paper_like, chargers, packing, non_smooth, one_owner_of_two, public_cost]
)
def test_the_optimum_is_that_of_cvxpy(stated: Callable[[], tuple[Any, Any]]) -> None:
    problem, owners = stated()
    problem.solve(solver="CLARABEL")
    read = sv.from_cvxpy(problem, owners)
    optimum = sv.reference_optimum(read)
    sign = -1 if isinstance(problem.objective, cp.Maximize) else 1
    assert read.evaluate(optimum.x).objective == pytest.approx(sign * problem.value, abs=2e-5)


ATOMS: dict[str, Callable[[Any], Any]] = {
    "vec": lambda x: cp.norm(cp.vec(x, order="F") - 1),
    "trace": cp.trace,
    "kron": lambda x: cp.sum_squares(cp.kron(np.array([[1.0, 2.0]]), x)),
    "cumsum": lambda x: cp.sum_squares(cp.cumsum(x, axis=0)),
    "mean": lambda x: cp.norm(x[0] - cp.mean(x)),
    "Frobenius": lambda x: cp.norm(x, "fro"),
    "logistic": lambda x: cp.sum(cp.logistic(x)),
    "log_sum_exp": lambda x: cp.sum(cp.log_sum_exp(x, axis=1, keepdims=True)),
    "entr": lambda x: -cp.sum(cp.entr(x)),
    "minimum": lambda x: -cp.sum(cp.minimum(x, 1 - x)),
}


@pytest.mark.parametrize("atom", ATOMS)
def test_an_atom_of_a_matrix_has_the_value_that_cvxpy_gives_it(atom: str) -> None:
    x, y = cp.Variable((2, 2), name="x", bounds=[0.1, 2]), cp.Variable(name="y", bounds=[0, 1])
    stated = cp.Problem(cp.Minimize(ATOMS[atom](x) + y), [x[0, 0] + y <= 2])
    read = sv.from_cvxpy(stated, owners={x: "a", y: "b"})
    for point in np.random.default_rng(0).uniform(0.1, 1, (3, 5)):
        x.value, y.value = point[:4].reshape(2, 2), point[4]
        assert read.evaluate(point).objective == pytest.approx(stated.objective.value, rel=1e-12)


def test_rows_go_where_they_are_needed() -> None:
    problem, owners = chargers()
    read = sv.from_cvxpy(problem, owners)
    assert [group.name for group in read.groups] == ["a", "b", "c", "d"]
    assert read.rows == 6  # a capacity per hour; the needs are private, 0 <= y <= 3 is the box
    assert all(own.rows for own in read.local)
    assert all((group.lower == 0).all() and (group.upper == 3).all() for group in read.groups)


def test_it_runs_privately() -> None:
    problem, owners = paper_like()
    read = sv.from_cvxpy(problem, owners)
    plan = sv.plan(read, epsilon=1.0, delta=1e-3, hide=sv.Trajectory(radius=0.01, rounds=200))
    reached = sv.simulate(read, plan).x[0]
    assert np.abs(reached - sv.reference_optimum(read).x).max() < 0.2


X, Y = (cp.Variable(name=name) for name in "xy")
BOX = [X >= -1, X <= 1, Y >= -1, Y <= 1, X + Y <= 1]
INTEGER = cp.Variable(name="n", integer=True, bounds=[0, 3])
PAIR = cp.Variable(2, name="pair", bounds=[0, 1])
UNSET = cp.Parameter(name="c", nonneg=True)
REFUSED: dict[str, tuple[Any, Any, Any, tuple[str, ...]]] = {
    "no bounds": (X**2, [X + Y <= 1], None, ("x", "finite bounds", "inf", "x <= 10")),
    "no owner": (X**2, BOX, {X: "a"}, ("owner", "y")),
    "too few owners": (cp.sum(PAIR), [], {PAIR: ["a"]}, ("pair", "2 rows", "got 1")),
    "integer": (INTEGER**2, [], None, ("n", "real", "integer")),
    "another atom": (cp.kl_div(X, 1), BOX, None, ("kl_div", "affine")),
    "another norm": (cp.pnorm(PAIR, 3), [], None, ("pair, 3", "affine")),
    "a cone": (X, [cp.SOC(X, PAIR)], None, ("comparison", "SOC")),
    "a parameter without a value": (UNSET * X, BOX, None, ("c", "value")),
    "a row that never holds": (X, [*BOX, cp.Constant(2) <= 1], None, ("never holds", "2")),
    "an equality that never holds": (X, [*BOX, cp.Constant(2) == 3], None, ("never holds", "2")),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_odd_is_named(kind: str) -> None:
    cost, rows, owners, words = REFUSED[kind]
    with pytest.raises(ProblemError) as caught:
        sv.from_cvxpy(cp.Problem(cp.Minimize(cost), rows), owners)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("other", ["x", None, X])
def test_only_problems_of_cvxpy_are_read(other: object) -> None:
    with pytest.raises(ProblemError, match=r"must be a cvxpy\.Problem, got"):
        sv.from_cvxpy(other)
