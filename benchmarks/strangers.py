"""Problems of the field stated in cvxpy, which no constant of the algorithm was chosen on.

Each is a problem with the owners of its variables, or None where every variable is an agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np

Stated = tuple[Any, Any]


def _drawn(seed: int, rows: int, columns: int, share: float = 1.0) -> Any:
    rng = np.random.default_rng([17, seed])
    return rng.uniform(0.2, 2.0, (rows, columns)) * (rng.random((rows, columns)) < share)


def _normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng([18, seed]).normal(size=shape)


def _each(n: int, lower: float, upper: float) -> tuple[Any, Any]:
    """n numbers, each an agent's."""
    x = cp.Variable(n, name="x", bounds=[np.full(n, lower), np.full(n, upper)])
    return x, {x: [f"x{i + 1}" for i in range(n)]}


def _rows(shape: tuple[int, int], lower: float, upper: float) -> tuple[Any, Any]:
    """A matrix whose rows are agents."""
    x = cp.Variable(shape, name="x", bounds=[np.full(shape, lower), np.full(shape, upper)])
    return x, {x: [f"x{i + 1}" for i in range(shape[0])]}


def entropy() -> Stated:
    x, owners = _each(20, 1e-4, 1)
    rows = [cp.sum(x) == 1, _normal(1, 2, 20) @ x <= [0.1, 0.0]]
    return cp.Problem(cp.Minimize(-cp.sum(cp.entr(x))), rows), owners


def water_filling() -> Stated:
    x, owners = _each(30, 0, 3)
    return cp.Problem(
        cp.Maximize(cp.sum(cp.log(_drawn(2, 1, 30)[0] + x))), [cp.sum(x) <= 10]
    ), owners


def transport() -> Stated:
    x, owners = _rows((3, 4), 0, 20)
    rows = [cp.sum(x, 1) <= [20, 25, 21], cp.sum(x, 0) >= [15, 17, 12, 9]]
    return cp.Problem(cp.Minimize(cp.sum(cp.multiply(_drawn(3, 3, 4), x))), rows), owners


def assignment() -> Stated:
    x, owners = _rows((4, 4), 0, 1)
    rows = [cp.sum(x, 0) == 1, cp.sum(x, 1) == 1]
    return cp.Problem(cp.Minimize(cp.sum(cp.multiply(_drawn(4, 4, 4), x))), rows), owners


def consensus() -> Stated:
    x, owners = _each(12, -5, 5)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - _normal(5, 12))), [cp.diff(x) == 0]), owners


def smooth_chain() -> Stated:
    x, owners = _each(20, -15, 15)
    wish = np.cumsum(_normal(6, 20))
    return cp.Problem(cp.Minimize(cp.sum_squares(x - wish)), [cp.abs(cp.diff(x)) <= 0.3]), owners


def max_min() -> Stated:
    x, owners = _each(15, 0, 5)
    least = cp.Variable(name="least", bounds=[0, 5])
    rows = [_drawn(7, 1, 15)[0] @ x <= 10, x >= least]
    return cp.Problem(cp.Maximize(least), rows), {**owners, least: "least"}


def curved_max_min() -> Stated:
    x, owners = _each(10, 0, 5)
    least = cp.Variable(name="least", bounds=[0, 5])
    rows = [_drawn(8, 5, 10, 0.4) @ x <= 3, x >= least]
    cost = least - 0.01 * cp.sum_squares(x)
    return cp.Problem(cp.Maximize(cost), rows), {**owners, least: "least"}


def median() -> Stated:
    x, owners = _rows((8, 2), -8, 8)
    near = sum(cp.norm(x[i] - wish) for i, wish in enumerate(2 * _normal(9, 8, 2)))
    return cp.Problem(cp.Minimize(near), [cp.diff(x, axis=0) == 0]), owners


def robots() -> Stated:
    x, owners = _rows((5, 2), -10, 10)
    rows = [cp.norm(x[i] - x[i + 1]) <= 2 for i in range(4)]
    return cp.Problem(cp.Minimize(cp.sum_squares(x - 5 * _normal(10, 5, 2))), rows), owners


def least_l1() -> Stated:
    x, owners = _each(10, -3, 3)
    A = _normal(11, 6, 10)
    return cp.Problem(cp.Minimize(cp.norm1(x)), [A @ x == A[:, 0]]), owners


def denoised_l1() -> Stated:
    x, owners = _each(10, -3, 3)
    A = _normal(12, 6, 10)
    return cp.Problem(cp.Minimize(cp.norm1(x)), [cp.norm(A @ x - A[:, 0]) <= 0.5]), owners


def least_squares_norm() -> Stated:
    x, owners = _each(25, -3, 3)
    return cp.Problem(cp.Minimize(cp.sum_squares(x)), [_normal(13, 4, 25) @ x == 1]), owners


def l1_fit() -> Stated:
    x, owners = _each(5, -5, 5)
    misfit = cp.norm1(_normal(14, 12, 5) @ x - _normal(15, 12))
    return cp.Problem(cp.Minimize(misfit), [cp.sum(x) <= 3]), owners


def norm_fit() -> Stated:
    x, owners = _each(5, -5, 5)
    misfit = cp.norm(_normal(16, 12, 5) @ x - _normal(17, 12))
    return cp.Problem(cp.Minimize(misfit), [cp.sum(x) == 0.3]), owners


def portfolio() -> Stated:
    x, owners = _each(15, 0, 0.3)
    risk = cp.sum_squares(_normal(18, 3, 15) / 3 @ x) + 0.1 * cp.sum_squares(x)
    return cp.Problem(cp.Minimize(risk - _drawn(19, 1, 15)[0] @ x / 10), [cp.sum(x) == 1]), owners


def risk_budget() -> Stated:
    x, owners = _each(8, 0, 0.5)
    F = _normal(20, 8, 8)
    rows = [cp.sum(x) == 1, cp.quad_form(x, cp.psd_wrap(F @ F.T / 8)) <= 0.3]
    return cp.Problem(cp.Minimize(cp.sum_squares(x) - _drawn(21, 1, 8)[0] @ x / 10), rows), owners


def congestion() -> Stated:
    x, owners = _each(12, 0, 4)
    delay = cp.sum(cp.power(_drawn(22, 4, 12, 0.5) @ x, 4)) / 50
    return cp.Problem(cp.Minimize(delay - cp.sum(cp.log(x + 0.1))), [cp.sum(x) >= 5]), owners


def diet() -> Stated:
    x, owners = _each(9, 0, 10)
    rows = [_drawn(23, 4, 9) @ x >= [8, 6, 10, 4]]
    return cp.Problem(cp.Minimize(_drawn(24, 1, 9)[0] @ x), rows), owners


def packing() -> Stated:
    x, owners = _each(50, 0, 1)
    A = _drawn(25, 10, 50, 0.5)
    return cp.Problem(cp.Maximize(_drawn(26, 1, 50)[0] @ x), [A @ x <= 0.3 * A.sum(1)]), owners


def stepwise_dispatch() -> Stated:
    x, owners = _each(8, 0, 10)
    a, b = np.sort(_drawn(27, 2, 8), axis=0)
    cost = cp.sum(cp.maximum(cp.multiply(a, x), cp.multiply(b, x) - 5 * (b - a)))
    return cp.Problem(cp.Minimize(cost), [cp.sum(x) == 43]), owners


def storage() -> Stated:
    x, owners = _rows((4, 6), -3, 3)
    charge = cp.cumsum(x, axis=1)
    rows = [cp.abs(cp.sum(x, 0)) <= 4, cp.abs(charge) <= 2, cp.sum(x, 1) == 0]
    cost = cp.sum(x @ _drawn(28, 1, 6)[0]) + 0.1 * cp.sum_squares(x)
    return cp.Problem(cp.Minimize(cost), rows), owners


def huber_balance() -> Stated:
    x, owners = _each(10, -12, 12)
    rows = [cp.sum(x) == 0, cp.abs(x[0] - x[5]) <= 0.5]
    return cp.Problem(cp.Minimize(cp.sum(cp.huber(x - 3 * _normal(29, 10), 1))), rows), owners


def logistic_budget() -> Stated:
    x, owners = _each(10, -4, 4)
    loss = cp.sum(cp.logistic(cp.multiply(2 * _normal(30, 10), x))) + 0.05 * cp.sum_squares(x)
    return cp.Problem(cp.Minimize(loss), [cp.norm1(x) <= 5]), owners


def meeting_point() -> Stated:
    x, owners = _each(6, -10, 10)
    far = cp.Variable(name="far", bounds=[0, 30])
    rows = [cp.abs(x - 3 * _normal(31, 6)) <= far, cp.diff(x) == 0]
    return cp.Problem(cp.Minimize(far), rows), {**owners, far: "far"}


def peak_tariff() -> Stated:
    x, owners = _rows((12, 4), 0, 3)
    load, price = cp.sum(x, 0), _drawn(32, 1, 4)[0]
    rows = [cp.sum(x, 1) == _drawn(33, 1, 12)[0] + 2]
    cost = 0.05 * cp.sum_squares(x) + price @ load / 10 + cp.max(load)
    return cp.Problem(cp.Minimize(cost), rows), owners


def target_norm() -> Stated:
    x, owners = _rows((10, 3), 0, 2)
    cost = cp.sum_squares(x - _drawn(34, 10, 3)) + 2 * cp.norm(cp.sum(x, 0) - [5, 7, 3])
    return cp.Problem(cp.Minimize(cost), [cp.sum(x[:, 0]) <= 6]), owners


def soft_maximum() -> Stated:
    x, owners = _each(16, 0, 2)
    load = _drawn(35, 4, 16, 0.6) @ x
    worth = cp.sum(cp.sqrt(x + 0.1))
    return cp.Problem(cp.Minimize(cp.log_sum_exp(load) - worth), [cp.sum(x) >= 4]), owners


def barrier() -> Stated:
    x, owners = _each(10, 0, 1)
    load = _drawn(36, 3, 10) @ x
    return cp.Problem(
        cp.Maximize(cp.sum(cp.log(25 - load)) + 3 * cp.sum(x)), [x[0] + x[1] <= 1]
    ), owners


def proportional() -> Stated:
    x, owners = _each(40, 0.01, 5)
    rows = [_drawn(37, 8, 40, 0.3) @ x <= 6]
    return cp.Problem(cp.Maximize(_drawn(38, 1, 40)[0] @ cp.log(x)), rows), owners


STRANGERS: tuple[Callable[[], Stated], ...] = (
    entropy, water_filling, transport, assignment, consensus, smooth_chain, max_min,
    curved_max_min, median, robots, least_l1, denoised_l1, least_squares_norm, l1_fit, norm_fit,
    portfolio, risk_budget, congestion, diet, packing, stepwise_dispatch, storage, huber_balance,
    logistic_budget, meeting_point, peak_tariff, target_norm, soft_maximum, barrier, proportional,
)  # fmt: skip
