"""Families of problems drawn from seeds; even seeds were tuned on, odd ones held out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import sottovoce as sv

Family = Callable[[int], sv.Problem]


def _named(n: int, lower: Any, upper: Any, dim: int = 1) -> Any:
    return sv.agents([f"a{i}" for i in range(n)], lower=lower, upper=upper, dim=dim)


def _rows(A: Any, x: Any, most: Any) -> list[Any]:
    """``A x <= most``, row by row, without entries that are 0."""
    return [
        sum(float(a) * x[i] for i, a in enumerate(row) if a) <= float(b)
        for row, b in zip(A, most, strict=True)
    ]


def _routes(rng: np.random.Generator, links: int, n: int, share: float) -> Any:
    routes = rng.random((links, n)) < share
    routes[rng.integers(links, size=n), np.arange(n)] = True
    return routes.astype(float)


def utility(seed: int, n: int = 12, links: int = 5) -> sv.Problem:
    """Network utility maximisation: flows with logarithmic worth share links."""
    rng = np.random.default_rng([1, seed])
    x, worth = _named(n, 0.0, 5.0), rng.uniform(0.5, 3, n)
    f = [-w * sv.log(x[i] + 0.1) for i, w in enumerate(worth.tolist())]
    rows = _rows(_routes(rng, links, n, 0.4), x, rng.uniform(2, 6, links))
    return sv.Problem(objectives=f, constraints=rows)


def dispatch(seed: int, n: int = 10, decades: float = 1.0) -> sv.Problem:
    """Generators whose supply equals demand; curvatures over ``2 decades`` powers of ten."""
    rng = np.random.default_rng([2, seed])
    x, q = _named(n, 0.0, 10.0), rng.permutation(10 ** np.linspace(-decades, decades, n))
    t = rng.uniform(0, 2, n)
    f = [float(q[i]) / 2 * (x[i] - float(t[i])) ** 2 for i in range(n)]
    return sv.Problem(objectives=f, constraints=[sv.total(x) == float(n * rng.uniform(2, 3))])


def fleet(seed: int, n: int = 200) -> sv.Problem:
    """Quadratic agents under one capacity."""
    rng = np.random.default_rng([3, seed])
    data = {"q": 10 ** rng.uniform(-0.3, 0.3, n), "t": rng.uniform(0.2, 0.9, n)}
    x = sv.agents(n, lower=0.0, upper=1.0, parameters=data)
    f = x["q"] / 2 * (x.x - x["t"]) ** 2
    return sv.Problem(agents=x, objectives=f, constraints=[sv.total(x.x) <= 0.35 * n])


def small(seed: int) -> sv.Problem:
    """Three agents with a curved and an affine constraint, as in HS 14, 22 and 65."""
    rng = np.random.default_rng([5, seed])
    x = _named(3, -3.0, 3.0)
    a, b, q, t = (rng.uniform(*ends, 3) for ends in ((0.3, 1.0), (-1, 1), (0.5, 2), (1, 2)))
    f = [float(q[i]) * (x[i] - float(t[i])) ** 2 for i in range(3)]
    curved = sum(float(a[i]) * x[i] ** 2 for i in range(3)) <= 1.0
    return sv.Problem(objectives=f, constraints=[curved, *_rows([b], x, [0.3])])


def vector(seed: int, m: int = 5, d: int = 4, rows: int = 3) -> sv.Problem:
    """Agents with vector states and full quadratic forms under affine constraints."""
    rng = np.random.default_rng([6, seed])
    x, f, sums = _named(m, -3.0, 3.0, d), [], [0.0] * rows
    for i in range(m):
        L, t = rng.normal(size=(d, d)) / 2, rng.uniform(-1, 1, d)
        y = (np.linalg.cholesky(L @ L.T + np.eye(d)).T) @ (x[i] - t)
        f.append(sv.sum_squares(y) / 2 + rng.normal(size=d) @ x[i])
        sums = [s + rng.normal(size=d) @ x[i] for s in sums]
    bounds = rng.uniform(-1.0, 0.5, rows).tolist()
    rows_stated = [s <= b for s, b in zip(sums, bounds, strict=True)]
    return sv.Problem(objectives=f, constraints=rows_stated)


def scaled(seed: int) -> sv.Problem:
    """Rows, states and objective in units that differ by powers of ten."""
    rng = np.random.default_rng([7, seed])
    n, rows = 8, 3
    A = rng.uniform(0.2, 1.0, (rows, n)) * (rng.random((rows, n)) < 0.7)
    A[:, 0] = 0.5
    r, w, unit = 10 ** rng.uniform(-3, 3, rows), 10 ** rng.uniform(-2, 2, n), rng.uniform(-5, 5)
    unit = 10 ** (unit if seed > 1 else 10 * seed - 5)
    x, q, t = _named(n, 0.0, w), rng.uniform(0.5, 2, n), rng.uniform(0.5, 1.0, n)
    f = [float(unit * q[i] / w[i] ** 2) * (x[i] - float(t[i] * w[i])) ** 2 for i in range(n)]
    most = r * A.sum(1) * rng.uniform(0.3, 0.6, rows)
    return sv.Problem(objectives=f, constraints=_rows(r[:, None] * A / w, x, most))


def weak(seed: int) -> sv.Problem:
    """Constraints that hardly matter: multipliers near 0, or hardly any slack."""
    rng = np.random.default_rng([8, seed])
    n, A = 6, rng.uniform(0, 1, (4, 6))
    x, t, q = _named(n, 0.0, 1.0), rng.uniform(0.2, 0.8, n), rng.uniform(0.5, 2, n)
    f = [float(q[i]) * (x[i] - float(t[i])) ** 2 for i in range(n)]
    most = (A @ t) * (1 + np.array([-0.2, -0.002, 0.002, 0.3]))
    return sv.Problem(objectives=f, constraints=_rows(A, x, most))


def chargers(seed: int, n: int = 20, hours: int = 6) -> sv.Problem:
    """Chargers with hardly any curvature: energy by a deadline, hours with a shared capacity."""
    rng = np.random.default_rng([9, seed])
    limit, tariff = rng.choice([3.7, 7.4, 11.0], n), rng.uniform(0.07, 0.15, hours)
    need = np.minimum(rng.lognormal(np.log(8), 0.5, n), 0.9 * limit * hours)
    data = {"need": need, "value": rng.uniform(0.2, 0.5, n)}
    upper = np.repeat(limit[:, None], hours, axis=1)
    x = sv.agents(n, dim=hours, lower=0.0, upper=upper, parameters=data)
    late = x["value"] * (x.x.sum() - x["need"]) ** 2
    f = tariff @ x.x + 0.002 * sv.sum_squares(x.x) + late
    return sv.Problem(agents=x, objectives=f, constraints=[sv.total(x.x) <= 1.8 * n])


def disc(seed: int) -> sv.Problem:
    """Two points of the plane that keep within a distance, and a stiff joint: disc, paraboloid."""
    e = np.random.default_rng([10, seed]).uniform(-0.5, 0.5, 6).tolist()
    x = _named(4, [[-3.2, -5], -5, -5, -5], [[3.2, 5], 5, 5, 5], [2, 2, 1, 1])  # type: ignore[arg-type]
    f = [
        (x[0][0] - (3 + e[0])) ** 2 + (x[0][1] - (2 + e[1])) ** 2,
        (x[1][0] + (2 - e[2])) ** 2 + 2 * (x[1][1] + (1 - e[3])) ** 2,
        (x[2] - (2 + e[4])) ** 2,
        0.5 * (x[3] - (1 + e[5])) ** 2,
    ]
    near = (x[0][0] - x[1][0]) ** 2 + (x[0][1] - x[1][1]) ** 2 <= 8
    joint = (x[2] + 10 * x[3]) ** 2 + x[0][0] ** 2 <= 9
    return sv.Problem(objectives=f, constraints=[near, joint])


def loads(seed: int, n: int = 4) -> sv.Problem:
    """``log(sum of exp(x_i)) <= 2``: contributions that differ by powers of ten over a box."""
    rng = np.random.default_rng([11, seed])
    x, q, t = _named(n, -4.0, 2.1), rng.uniform(0.5, 2, n), rng.uniform(1, 2, n)
    f = [float(q[i]) * (x[i] - float(t[i])) ** 2 for i in range(n)]
    return sv.Problem(objectives=f, constraints=[sum(sv.exp(x[i]) for i in range(n)) <= np.exp(2)])


def linear(seed: int, n: int = 8, rows: int = 4, curvature: float = 0.0) -> sv.Problem:
    """Linear programs: agents without curvature, or hardly any, under shared capacities."""
    rng = np.random.default_rng([13, seed])
    A = _routes(rng, rows, n, 0.6) * rng.uniform(0.2, 2, (rows, n))
    w, c = rng.uniform(1, 5, n), rng.uniform(0.5, 3, n)
    x = _named(n, 0.0, w)
    f = [curvature * x[i] ** 2 - float(c[i]) * x[i] for i in range(n)]
    return sv.Problem(objectives=f, constraints=_rows(A, x, A @ w * rng.uniform(0.3, 0.6, rows)))


def absolute(seed: int, n: int = 8, rows: int = 3) -> sv.Problem:
    """Piecewise-linear costs: non-smooth, and indifferent where a price equals a slope."""
    rng = np.random.default_rng([14, seed])
    x, p, w = _named(n, -5.0, 5.0), rng.uniform(-4, 4, n), rng.uniform(0.5, 2, n)
    A = rng.normal(size=(rows, n))
    f = [float(w[i]) * abs(x[i] - float(p[i])) for i in range(n)]
    return sv.Problem(objectives=f, constraints=_rows(A, x, A @ p - 2.0))


def fairness(seed: int, n: int = 6) -> sv.Problem:
    """Max-min fairness: the last agent's state is the least share, which it wants large."""
    rng = np.random.default_rng([15, seed])
    x, a = _named(n + 1, 0.0, 3.0), rng.uniform(0.5, 2, n).tolist()
    f = [0.01 * x[i] for i in range(n)] + [-1.0 * x[n]]
    rows = [x[n] - a[i] * x[i] <= 0 for i in range(n)]
    return sv.Problem(objectives=f, constraints=[*rows, sum(x[i] for i in range(n)) <= 0.8 * n])


def generators(seed: int, n: int = 8) -> sv.Problem:
    """Generators with nearly linear costs that meet a demand."""
    rng = np.random.default_rng([16, seed])
    x = _named(n, 0.0, rng.uniform(50, 300, n))
    c, q = rng.uniform(10, 40, n), 10 ** rng.uniform(-4, -2, n)
    f = [float(c[i]) * x[i] + float(q[i]) * x[i] ** 2 for i in range(n)]
    return sv.Problem(objectives=f, constraints=[sv.total(x) == 60.0 * n])


CURVED: dict[str, Family] = {
    "utility": utility,
    "utility 30 x 8": lambda s: utility(100 + s, 30, 8),
    "dispatch": dispatch,
    "dispatch, 6 decades": lambda s: dispatch(100 + s, 10, 3.0),
    "fleet": fleet,
    "small": small,
    "small 2": lambda s: small(10 + s),
    "vector": vector,
    "scaled": scaled,
    "scaled 2": lambda s: scaled(2 + s),
    "weak": weak,
    "chargers": chargers,
    "disc": disc,
    "loads": loads,
}
FLAT: dict[str, Family] = {
    "linear": linear,
    "linear 12 x 6": lambda s: linear(100 + s, 12, 6),
    "linear 20 x 10": lambda s: linear(200 + s, 20, 10),
    "nearly linear": lambda s: linear(300 + s, curvature=1e-3),
    "absolute": absolute,
    "fairness": fairness,
    "generators": generators,
}
