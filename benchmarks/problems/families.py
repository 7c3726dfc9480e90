"""Families of problems drawn from seeds; even seeds were tuned on, odd ones held out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.problems.games import EXP, LOG, POWER, Game, Region


def _affine(row: int, coef: float) -> tuple[int, int, float, float]:
    return (row, POWER, coef, 1.0)


def utility(seed: int, n: int = 12, links: int = 5) -> Game:
    """Network utility maximisation: flows with logarithmic worth share links."""
    rng = np.random.default_rng([1, seed])
    game = Game(f"utility{n}/{seed}", links)
    routes = rng.random((links, n)) < 0.4
    for c in range(n):
        routes[rng.integers(links), c] = True
    for c in range(n):
        h = [_affine(o, 1.0) for o in range(links) if routes[o, c]]
        game.component((LOG, rng.uniform(0.5, 3), 0.1, 0, 0), 0.0, 5.0, h, start=1.0)
    game.most = rng.uniform(2, 6, links)
    return game


def dispatch(seed: int, n: int = 10, decades: float = 1.0) -> Game:
    """Generators whose supply equals demand; curvatures over ``2 decades`` powers of ten."""
    rng = np.random.default_rng([2, seed])
    game = Game(f"dispatch{n}e{decades:g}/{seed}", 1)
    q = 10 ** np.linspace(-decades, decades, n)
    rng.shuffle(q)
    for c in range(n):
        game.component((POWER, q[c] / 2, rng.uniform(0, 2), 2, 0), 0.0, 10.0, [_affine(0, 1.0)])
    demand = n * rng.uniform(2, 3)
    game.least = game.most = [demand]
    return game


def fleet(seed: int, n: int = 200, decades: float = 0.3) -> Game:
    """Quadratic agents under one capacity."""
    rng = np.random.default_rng([3, seed])
    game = Game(f"fleet{n}/{seed}", 1)
    for _ in range(n):
        q = 10 ** rng.uniform(-decades, decades)
        game.component((POWER, q / 2, rng.uniform(0.2, 0.9), 2, 0), 0.0, 1.0, [_affine(0, 1.0)])
    game.most = [0.35 * n]
    return game


def rosen(seed: int) -> Game:
    """Hock and Schittkowski 43, shifted: four agents, three convex constraints."""
    rng = np.random.default_rng([4, seed])
    game = Game(f"rosen/{seed}", 3)
    e = rng.uniform(-0.3, 0.3, 4)
    rows = [(1, 1, 1, 1), (1, 2, 1, 2), (2, 1, 1, 0)]
    lin = [(1, -1, 1, -1), (-1, 0, 0, -1), (2, -1, 0, -1)]
    for c, (a, place) in enumerate([(1, 2.5), (1, 2.5), (2, 5.25), (1, -3.5)]):
        h = []
        for o in range(3):
            if rows[o][c]:
                h.append((o, POWER, float(rows[o][c]), 2.0))
            if lin[o][c]:
                h.append(_affine(o, float(lin[o][c])))
        game.component((POWER, a, place + e[c], 2, 0), -5.0, 5.0, h)
    game.most = [8.0, 10.0, 5.0]
    return game


def small(seed: int) -> Game:
    """Two to three agents with a curved and an affine constraint, as in HS 14, 22 and 65."""
    rng = np.random.default_rng([5, seed])
    game = Game(f"small/{seed}", 2)
    for _ in range(3):
        h = [(0, POWER, rng.uniform(0.3, 1.0), 2.0), _affine(1, rng.uniform(-1, 1))]
        game.component((POWER, rng.uniform(0.5, 2), rng.uniform(1, 2), 2, 0), -3.0, 3.0, h)
    game.most = [1.0, 0.3]
    if seed % 4 > 1:
        game.least = [-np.inf, 0.3]
    return game


def vector(seed: int, m: int = 5, d: int = 4, rows: int = 3) -> Game:
    """Agents with vector states and full quadratic forms under affine constraints."""
    rng = np.random.default_rng([6, seed])
    game = Game(f"vector/{seed}", rows)
    for _ in range(m):
        L = rng.normal(size=(d, d)) / 2
        Q = L @ L.T + np.eye(d)
        first = len(game.f)
        for c in range(d):
            h = [_affine(o, rng.normal()) for o in range(rows)]
            game.component((POWER, Q[c, c] / 2, rng.uniform(-1, 1), 2, rng.normal()), -3.0, 3.0, h)
        for c in range(d):
            for e in range(c):
                game.quad[first + c, first + e] = Q[c, e]
        game.block(first)
    game.most = rng.uniform(-1.0, 0.5, rows)
    return game


def scaled(seed: int) -> Game:
    """Rows, states and objective in units that differ by powers of ten."""
    rng = np.random.default_rng([7, seed])
    n, rows = 8, 3
    game = Game(f"scaled/{seed}", rows)
    A = rng.uniform(0.2, 1.0, (rows, n)) * (rng.random((rows, n)) < 0.7)
    A[:, 0] = 0.5
    r, x, f = 10 ** rng.uniform(-3, 3, rows), 10 ** rng.uniform(-2, 2, n), 10 ** rng.uniform(-5, 5)
    if seed < 2:
        f = (1e-5, 1e5)[seed]
    for c in range(n):
        h = [_affine(o, r[o] * A[o, c] / x[c]) for o in range(rows) if A[o, c]]
        q, t = rng.uniform(0.5, 2), rng.uniform(0.5, 1.0)
        game.component((POWER, f * q / x[c] ** 2, t * x[c], 2, 0), 0.0, x[c], h)
    game.most = r * A.sum(1) * rng.uniform(0.3, 0.6, rows)
    return game


def weak(seed: int) -> Game:
    """Constraints that hardly matter: multipliers near 0, or hardly any slack."""
    rng = np.random.default_rng([8, seed])
    n, rows = 6, 4
    game = Game(f"weak/{seed}", rows)
    A = rng.uniform(0, 1, (rows, n))
    t, q = rng.uniform(0.2, 0.8, n), rng.uniform(0.5, 2, n)
    for c in range(n):
        game.component(
            (POWER, q[c], t[c], 2, 0), 0.0, 1.0, [_affine(o, A[o, c]) for o in range(rows)]
        )
    full = A @ t
    game.most = full + np.array([-0.2, -0.002, 0.002, 0.3]) * full
    return game


def chargers(seed: int, n: int = 20, hours: int = 6) -> Game:
    """Chargers with hardly any curvature: energy by a deadline, hours with a shared capacity."""
    rng = np.random.default_rng([9, seed])
    game = Game(f"chargers{n}/{seed}", hours)
    price = rng.uniform(0.07, 0.15, hours)
    for _ in range(n):
        limit = rng.choice([3.7, 7.4, 11.0])
        first = len(game.f)
        for t in range(hours):
            game.component((POWER, 0.002, 0.0, 2, price[t]), 0.0, limit, [_affine(t, 1.0)])
        game.block(
            first,
            2 * rng.uniform(0.2, 0.5),
            min(rng.lognormal(np.log(8), 0.5), 0.9 * limit * hours),
        )
    game.most = np.full(hours, 1.8 * n)
    return game


def disc(seed: int) -> Game:
    """Two points of the plane that keep within a distance, and a stiff joint: disc, paraboloid."""
    rng = np.random.default_rng([10, seed])
    game = Game(f"disc/{seed}", 4)
    e = rng.uniform(-0.5, 0.5, 6)
    game.component((POWER, 1, 3 + e[0], 2, 0), -3.2, 3.2, [_affine(0, 1.0), (3, POWER, 1.0, 2.0)])
    game.component((POWER, 1, 2 + e[1], 2, 0), -5, 5, [_affine(1, 1.0)])
    game.component((POWER, 1, -2 + e[2], 2, 0), -5, 5, [_affine(0, -1.0)])
    game.component((POWER, 2, -1 + e[3], 2, 0), -5, 5, [_affine(1, -1.0)])
    game.component((POWER, 1, 2 + e[4], 2, 0), -5, 5, [_affine(2, 1.0)])
    game.component((POWER, 0.5, 1 + e[5], 2, 0), -5, 5, [_affine(2, 10.0)])
    game.regions = [
        Region([0, 1], np.sqrt(8.0)),
        Region([2, 3], -1.0, square=np.array([1.0, 0.0]), plain=np.array([0.0, 1.0]), bound=9.0),
    ]
    for first in (0, 2, 4, 5):
        game.block(first)
    return game


def coupled(seed: int = 0) -> Game:
    """The gallery's coupled problem by its five sums, over boxes that its constraints imply."""
    game = Game("coupled", 5)
    game.component((POWER, 1, 3, 2, 0), -3.1, 3.1, [_affine(0, 1.0), (3, POWER, 1.0, 2.0)])
    game.component((POWER, 1, 2, 2, 0), -5, 2.1, [_affine(1, 1.0), (4, EXP, 1.0, 1.0)])
    game.component((POWER, 1, -2, 2, 0), -5, 2.1, [_affine(0, -1.0), (4, EXP, 1.0, 1.0)])
    game.component((POWER, 2, -1, 2, 0), -5, 5, [_affine(1, -1.0)])
    game.component((POWER, 1, 2, 2, 0), -5, 2.1, [_affine(2, 1.0), (4, EXP, 1.0, 1.0)])
    game.component((POWER, 0.5, 1, 2, 0.25), -0.85, 0.85, [_affine(2, 10.0)])
    game.quad[3, 2] = 1.0
    game.most = [np.inf, np.inf, np.inf, np.inf, np.exp(2.0)]
    game.regions = [
        Region([0, 1], np.sqrt(8.0)),
        Region([2, 3], -1.0, square=np.array([1.0, 0.0]), plain=np.array([0.0, 1.0]), bound=9.0),
    ]
    for first in (0, 2, 4, 5):
        game.block(first)
    return game


def loads(seed: int, n: int = 4) -> Game:
    """``log(sum of exp(x_i)) <= c`` as ``sum of exp(x_i) <= e^c``."""
    rng = np.random.default_rng([11, seed])
    game = Game(f"loads/{seed}", 1)
    for _ in range(n):
        game.component(
            (POWER, rng.uniform(0.5, 2), rng.uniform(1, 2), 2, 0), -4.0, 2.1, [(0, EXP, 1.0, 1.0)]
        )
    game.most = [np.exp(2.0)]
    return game


def paper(seed: int = 0) -> Game:
    """The paper's example, with the noise that its certificate and joint plan give."""
    game = Game("paper", 4)
    h = [
        [_affine(0, 1.0)],
        [_affine(0, 1.0)],
        [_affine(0, 1.0), (2, POWER, 1.0, 2.0)],
        [_affine(2, 1.0)],
        [(1, POWER, 1.0, 2.0)],
        [(1, POWER, 1 / 12, 4.0), _affine(2, 1.0), (3, POWER, 1.0, 2.0)],
        [(1, POWER, 1 / 12, 4.0), (3, POWER, 1.0, 2.0)],
    ]
    f = [
        (1, 9, 2, 1),
        (1, -4, 4, 0),
        (1, 1, 8, 0),
        (1, 0, 2, 1),
        (1, -3, 6, 0),
        (1, 7, 2, 0),
        (1, 5, 2, 0),
    ]
    for (a, t, m, b), entries in zip(f, h, strict=True):
        game.component((POWER, a, t, m, b), -10.0, 10.0, entries)
    game.most = [3.0, 20.0, 1.0, 5.0]
    game.sigma = np.array([3.64469, 11.4588, 9.93021, 6.42145])
    return game


def routing(seed: int = 0, n: int = 2000, rows: int = 500, hops: int = 3) -> Game:
    """Sparse routing: flows over a few links each, many links."""
    rng = np.random.default_rng([12, seed])
    game = Game(f"routing{rows}/{seed}", rows)
    load = np.zeros(rows)
    for _ in range(n):
        links = rng.choice(rows, hops, replace=False)
        target = rng.uniform(0.5, 1.0)
        load[links] += target
        game.component(
            (POWER, rng.uniform(0.5, 2) / 2, target, 2, 0),
            0.0,
            1.0,
            [_affine(int(o), 1.0) for o in links],
        )
    game.most = np.maximum(load, 0.5) * rng.uniform(0.6, 1.1, rows)
    return game


FAMILIES: list[Callable[[int], Game]] = [
    utility,
    lambda s: utility(100 + s, 30, 8),
    dispatch,
    lambda s: dispatch(100 + s, 10, 3.0),
    lambda s: fleet(s, 200),
    lambda s: fleet(s, 2000),
    rosen,
    small,
    lambda s: small(10 + s),
    vector,
    scaled,
    lambda s: scaled(2 + s),
    weak,
    chargers,
    disc,
    loads,
]


def tuned() -> list[Game]:
    """Problems that constants were chosen on."""
    return [family(0) for family in FAMILIES] + [paper()]


def held_out() -> list[Game]:
    """Problems of the same families that no choice was made on."""
    return [family(1) for family in FAMILIES] + [coupled()]
