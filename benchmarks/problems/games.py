"""Problems with answers in closed form: families drawn from seeds, their optima and limits.

Agents' states are laid end to end as components. Everything is arrays, and an oracle (cvxpy) finds
the optimum independently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np

from sottovoce.algorithm.public_sum import Ball, Level, PublicSum
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import symbol

POWER, LOG, EXP = 0, 1, 2
MU = 0.796227  # Gaussian-DP of epsilon = ln 3, delta = 0.05


class Agents(NamedTuple):
    """Components: f by kind (scale, place, power) and linear, couplings at home, and h."""

    kind: Any
    scale: Any
    place: Any
    power: Any
    linear: Any
    quad_ptr: Any
    quad_to: Any
    quad: Any
    block_ptr: Any
    block_weight: Any
    block_need: Any
    h_ptr: Any
    h_row: Any
    h_kind: Any
    h_coef: Any
    h_power: Any
    lower: Any
    upper: Any
    start: Any
    straight: Any  # whether f + price'h is a quadratic: one step of Newton's is exact


@dataclass
class Region:
    """``|u - center| <= radius``, or ``sum of a_i u_i^2 + b_i u_i <= c`` if radius is negative."""

    members: list[int]
    radius: float
    center: Any = None
    square: Any = None
    plain: Any = None
    bound: float = 0.0

    def stated(self) -> Ball | Level:
        """The region as the cloud takes it."""
        members = tuple(self.members)
        if self.radius >= 0.0:
            center = np.zeros(len(members)) if self.center is None else self.center
            return Ball(members=members, center=tuple(center), radius=self.radius)
        u = [symbol(f"u{m}") for m in members]
        terms = zip(self.square.tolist(), self.plain.tolist(), u, strict=True)
        phi = canonical(sum(a * s**2 + b * s for a, b, s in terms) - self.bound)
        return Level(members=members, symbols=tuple(u), phi=phi)


@dataclass
class Game:
    """A problem under construction; ``finish`` freezes it."""

    name: str
    sums: int
    family: str = ""
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    f: list[tuple[int, float, float, float, float]] = field(default_factory=list)
    h: list[list[tuple[int, int, float, float]]] = field(default_factory=list)
    quad: dict[tuple[int, int], float] = field(default_factory=dict)
    blocks: list[tuple[int, float, float]] = field(default_factory=list)
    least: Any = None
    most: Any = None
    regions: list[Region] = field(default_factory=list)
    sigma: Any = None

    def component(
        self,
        f: tuple[int, float, float, float, float],
        low: float,
        high: float,
        h: list[tuple[int, int, float, float]],
        start: float | None = None,
    ) -> int:
        self.f.append(f)
        self.h.append(h)
        self.lower.append(low)
        self.upper.append(high)
        self.start.append(min(max(0.0, low), high) if start is None else start)
        return len(self.f) - 1

    def block(self, first: int, weight: float = 0.0, need: float = 0.0) -> None:
        self.blocks.append((first, weight, need))

    @property
    def agents(self) -> Agents:
        n = len(self.f)
        kind, scale, place, power, linear = (np.array(v, float) for v in zip(*self.f, strict=True))
        rows: list[list[tuple[int, float]]] = [[] for _ in range(n)]
        for (i, j), q in self.quad.items():
            rows[i].append((j, q))
            rows[j].append((i, q))
        blocks = self.blocks or [(c, 0.0, 0.0) for c in range(n)]
        flat = [e for row in rows for e in row]
        entries = [e for h in self.h for e in h]
        return Agents(
            kind.astype(np.int64), scale, place, power, linear,
            np.cumsum([0] + [len(r) for r in rows]),
            np.array([e[0] for e in flat], np.int64), np.array([e[1] for e in flat], float),
            np.array([b[0] for b in blocks] + [n], np.int64),
            np.array([b[1] for b in blocks], float), np.array([b[2] for b in blocks], float),
            np.cumsum([0] + [len(h) for h in self.h]),
            np.array([e[0] for e in entries], np.int64),
            np.array([e[1] for e in entries], np.int64),
            np.array([e[2] for e in entries], float), np.array([e[3] for e in entries], float),
            np.array(self.lower, float), np.array(self.upper, float), np.array(self.start, float),
            np.array([
                f[0] == POWER and f[3] == 2 and all(e[1] == POWER and e[3] in (1, 2) for e in h)
                for f, h in zip(self.f, self.h, strict=True)
            ], np.int64),
        )  # fmt: skip

    def public(self, unit: Any, *, noisy: bool) -> PublicSum:
        """C, with units and noise of the sums."""
        least = np.full(self.sums, -np.inf) if self.least is None else np.array(self.least, float)
        most = np.full(self.sums, np.inf) if self.most is None else np.array(self.most, float)
        return PublicSum(
            lower=least,
            upper=most,
            unit=unit,
            noisy=np.full(self.sums, float(noisy)),
            regions=[region.stated() for region in self.regions],
        )

    def sensitivities(self) -> Any:
        """S[o, agent] over the box, in l2 over an agent's components."""
        a = self.agents
        blocks = a.block_ptr
        out = np.zeros((self.sums, blocks.size - 1))
        for b in range(blocks.size - 1):
            for c in range(blocks[b], blocks[b + 1]):
                for o, kind, coef, power in self.h[c]:
                    worst = 0.0
                    for x in (self.lower[c], self.upper[c]):
                        worst = max(worst, abs(slope_h(kind, coef, power, x)))
                    out[o, b] += worst**2
        return np.sqrt(out)

    def plan(self, radius: float) -> Any:
        """Noise for trajectories ``radius`` times the widest side of an agent's box."""
        S, a = self.sensitivities(), self.agents
        width = np.array(
            [
                max(a.upper[i:j] - a.lower[i:j])
                for i, j in zip(a.block_ptr, a.block_ptr[1:], strict=False)
            ]
        )
        median = np.array([np.median(row[row > 0]) for row in S])
        worst = np.max(radius * width * np.sqrt(((S / median[:, None]) ** 2).sum(0)))
        return median * worst / MU


def slope_h(kind: int, coef: float, power: float, x: float) -> float:
    if kind == EXP:
        return coef * power * np.exp(power * x)
    return coef * power * x ** (power - 1)


class Optimum(NamedTuple):
    x: Any
    price: Any
    root: Any  # error of (x, price) per unit of noise in every sum


def optimum(game: Game) -> Optimum:
    """The saddle point by cvxpy, polished by Newton's method, and the linearised error."""
    x, price = _by_cvxpy(game)
    a = game.agents
    # The solver's accuracy does not always tell who stands at a bound: these were told wrong.
    loose, stuck = np.zeros(x.size, bool), np.zeros(x.size, bool)
    for _ in range(10):
        best = _polish(game, x.copy(), price.copy(), loose, stuck)
        gradient = derivatives(game, best.x, best.price)[2] * (a.upper - a.lower)
        rounding = 1e-12 * np.max(np.abs(gradient))
        held = (best.x == a.lower) & (gradient < -rounding)
        held |= (best.x == a.upper) & (gradient > rounding)
        outside = np.maximum(a.lower - best.x, best.x - a.upper) > 1e-12 * (a.upper - a.lower)
        if not np.any(held & ~loose) and not np.any(outside & ~stuck):
            break
        loose |= held
        stuck |= outside
    return best


def _by_cvxpy(game: Game) -> tuple[Any, Any]:
    a = game.agents
    n = a.kind.size
    z = cp.Variable(n)  # in units of the boxes
    width = a.upper - a.lower
    x = cp.multiply(width, z) + a.lower
    cost: Any = a.linear @ x
    mixed = np.diff(a.quad_ptr) > 0
    for p in np.unique(a.power[a.kind == POWER]):
        w = np.flatnonzero((a.kind == POWER) & (a.power == p) & (a.scale != 0) & ~mixed)
        if w.size:
            root = a.scale[w] ** (1 / p)
            term = cp.multiply(root, x[w] - a.place[w])
            cost += cp.sum_squares(term) if p == 2 else cp.sum(cp.power(term, int(p)))
    w = np.flatnonzero(a.kind == LOG)
    if w.size:
        cost -= a.scale[w] @ cp.log(x[w] + a.place[w])
    for b in range(a.block_weight.size):
        i, j = a.block_ptr[b], a.block_ptr[b + 1]
        if a.block_weight[b]:
            cost += a.block_weight[b] / 2 * cp.square(cp.sum(x[i:j]) - a.block_need[b])
        if a.quad_ptr[j] > a.quad_ptr[i]:
            Q = np.zeros((j - i, j - i))
            for c in range(i, j):
                for e in range(a.quad_ptr[c], a.quad_ptr[c + 1]):
                    Q[c - i, a.quad_to[e] - i] = a.quad[e]
            D = np.diag(2 * a.scale[i:j])
            L = np.linalg.cholesky(Q + D)
            t = a.place[i:j]
            cost += cp.sum_squares(L.T @ x[i:j]) / 2 - (D @ t) @ x[i:j] + t @ D @ t / 2
    sums: list[Any] = [[] for _ in range(game.sums)]
    by: dict[tuple[int, int, float], list[tuple[int, float]]] = {}
    for c, h in enumerate(game.h):
        for o, kind, coef, power in h:
            by.setdefault((o, kind, power), []).append((c, coef))
    for (o, kind, power), terms in by.items():
        w = np.array([t[0] for t in terms])
        coef = np.array([t[1] for t in terms])
        if kind == EXP:
            sums[o].append(coef @ cp.exp(power * x[w]))
        elif power == 1:
            sums[o].append(coef @ x[w])
        else:
            sums[o].append(coef @ cp.power(x[w], int(power)))
    s = [sum(parts) for parts in sums]
    S = game.sensitivities()
    size = np.array([np.max(row) for row in S]) * np.max(width)
    public = game.public(np.ones(game.sums), noisy=False)
    constraints: list[Any] = [z >= 0, z <= 1]
    duals: list[tuple[Any, Any]] = []
    for o in range(game.sums):
        if public.lower[o] == public.upper[o]:
            c = s[o] / size[o] == public.upper[o] / size[o]
            constraints.append(c)
            duals.append((c, lambda v, o=o: {o: v / size[o]}))
        else:
            if public.upper[o] < np.inf:
                c = s[o] / size[o] <= public.upper[o] / size[o]
                constraints.append(c)
                duals.append((c, lambda v, o=o: {o: v / size[o]}))
            if public.lower[o] > -np.inf:
                c = -s[o] / size[o] <= -public.lower[o] / size[o]
                constraints.append(c)
                duals.append((c, lambda v, o=o: {o: -v / size[o]}))
    copies = {}
    for r in game.regions:
        u = cp.Variable(len(r.members))
        for i, o in enumerate(r.members):
            # a convex sum enters a region where phi rises with it
            rises = r.radius < 0 and r.square[i] == 0 and not s[o].is_affine()
            c = s[o] <= u[i] if rises else s[o] == u[i]
            constraints.append(c)
            duals.append((c, lambda v, o=o: {o: v}))
        if r.radius >= 0:
            constraints.append(
                cp.norm(u - (np.zeros(len(r.members)) if r.center is None else r.center))
                <= r.radius
            )
        else:
            constraints.append(r.square @ cp.square(u) + r.plain @ u <= r.bound)
        copies[id(r)] = u
    # badly scaled objectives are scaled for the solver only
    scale = np.max(a.scale) + np.max(np.abs(a.linear))
    problem = cp.Problem(cp.Minimize(cost / scale), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    price = np.zeros(game.sums)
    for c, put in duals:
        for o, v in put(np.asarray(c.dual_value)).items():
            price[o] += scale * v
    return np.asarray(x.value), price


def derivatives(game: Game, x: Any, price: Any) -> tuple[Any, Any, Any, Any]:
    """s, its Jacobian, gradient and Hessian (n x n) of f + price'h."""
    a, n = game.agents, len(game.f)
    s, J = np.zeros(game.sums), np.zeros((game.sums, n))
    g, H = a.linear.copy(), np.zeros((n, n))
    with np.errstate(all="ignore"):
        d = x - a.place
        even = a.power
        g += np.where(a.kind == POWER, a.scale * even * d ** (even - 1), 0)
        curve = np.where(
            a.kind == POWER, a.scale * even * (even - 1) * d ** np.maximum(even - 2, 0), 0
        )
        t = x + a.place
        g += np.where(a.kind == LOG, -a.scale / t, 0)
        curve += np.where(a.kind == LOG, a.scale / t**2, 0)
    H[np.arange(n), np.arange(n)] = np.nan_to_num(curve)
    for c in range(n):
        for e in range(a.quad_ptr[c], a.quad_ptr[c + 1]):
            H[c, a.quad_to[e]] += a.quad[e]
            g[c] += a.quad[e] * x[a.quad_to[e]]
    for b in range(a.block_weight.size):
        i, j = a.block_ptr[b], a.block_ptr[b + 1]
        H[i:j, i:j] += a.block_weight[b]
        g[i:j] += a.block_weight[b] * (x[i:j].sum() - a.block_need[b])
    for c, h in enumerate(game.h):
        for o, kind, coef, power in h:
            if kind == EXP:
                value = coef * np.exp(power * x[c])
                slope, bend = power * value, power**2 * value
            else:
                value, slope = coef * x[c] ** power, coef * power * x[c] ** (power - 1)
                bend = coef * power * (power - 1) * x[c] ** (power - 2) if power >= 2 else 0.0
            s[o] += value
            J[o, c] += slope
            g[c] += price[o] * slope
            H[c, c] += price[o] * bend
    return s, J, g, H


def _polish(game: Game, x: Any, price: Any, loose: Any, stuck: Any) -> Optimum:
    a, p = game.agents, game.sums
    public = game.public(np.ones(p), noisy=False)
    width = a.upper - a.lower
    s, J, g, _ = derivatives(game, x, price)
    strength = np.abs(g) * width
    gap = np.minimum(x - a.lower, a.upper - x) / width
    typical = np.max(np.abs(J * price[:, None]) * width, initial=1e-300)
    free = (gap > 1e-6) | ((strength < 1e-7 * typical) & (gap > 1e-9))
    free = (free | loose) & ~stuck
    for i in np.flatnonzero(~free):
        x[i] = a.lower[i] if x[i] - a.lower[i] < a.upper[i] - x[i] else a.upper[i]
    free &= width > 0
    inside = np.ones(p, bool)
    inside[[m for r in game.regions for m in r.members]] = False
    worth = np.abs(price) * np.array([np.max(np.abs(J[o]) * width) for o in range(p)])
    size = max(worth.max(), 1e-300)
    active = inside & ((worth > 1e-6 * size) | (public.lower == public.upper))
    price[inside & ~active] = 0.0
    bound = np.where(price < 0, public.lower, public.upper)
    held = []
    for r in game.regions:
        m = r.members
        if np.sum(worth[m]) > 1e-6 * size:
            center = np.zeros(len(m)) if r.center is None else r.center
            gradient = s[m] - center if r.radius >= 0 else 2 * r.square * s[m] + r.plain
            held.append((r, float(price[m] @ gradient / (gradient @ gradient))))
        else:
            price[m] = 0.0
    F = np.flatnonzero(free)
    nf, na = F.size, int(active.sum())
    A = np.flatnonzero(active)
    R = [o for r, _ in held for o in r.members]
    # unknowns: x_F, price_A, price_R, multipliers of regions held
    nu = np.array([v for _, v in held])

    def system() -> tuple[Any, Any, Any]:
        s, J, g, H = derivatives(game, x, price)
        size = nf + na + len(R) + len(held)
        M, rhs, noise = np.zeros((size, size)), np.zeros(size), np.zeros((size, p))
        M[:nf, :nf] = H[np.ix_(F, F)]
        M[:nf, nf : nf + na] = J[np.ix_(A, F)].T
        M[:nf, nf + na : nf + na + len(R)] = J[np.ix_(R, F)].T
        rhs[:nf] = -g[F]
        M[nf : nf + na, :nf] = J[np.ix_(A, F)]
        rhs[nf : nf + na] = bound[A] - s[A]
        noise[np.arange(nf, nf + na), A] = -1.0
        at = nf + na
        for index, (r, _) in enumerate(held):
            m = r.members
            k = len(m)
            center = np.zeros(k) if r.center is None else r.center
            u, mult = s[m], nu[index]
            if r.radius >= 0:
                grad, hess, value = (
                    2 * (u - center),
                    2 * np.eye(k),
                    ((u - center) ** 2).sum() - r.radius**2,
                )
            else:
                grad, hess, value = (
                    2 * r.square * u + r.plain,
                    np.diag(2 * r.square),
                    (r.square * u**2 + r.plain * u).sum() - r.bound,
                )
            # price = mult grad(u), u = s(x) + noise
            M[at : at + k, at : at + k] = np.eye(k)
            M[at : at + k, :nf] = -mult * hess @ J[np.ix_(m, F)]
            M[at : at + k, nf + na + len(R) + index] = -grad
            rhs[at : at + k] = mult * grad - price[m]
            noise[at : at + k, m] = mult * hess
            last = nf + na + len(R) + index
            M[last, :nf] = grad @ J[np.ix_(m, F)]
            rhs[last] = -value
            noise[last, m] = -grad
            at += k
        return M, rhs, noise

    if held:
        nu = np.array([v / 2 if r.radius >= 0 else v for r, v in held])
    for _ in range(30):
        M, rhs, _ = system()
        scale_r = np.abs(M).max(1) + 1e-300
        step = _solve(M / scale_r[:, None], rhs / scale_r)
        inner = x[F] + step[:nf]
        if np.any(inner < a.lower[F] - 1e-3 * width[F]) or np.any(
            inner > a.upper[F] + 1e-3 * width[F]
        ):
            break
        x[F] += step[:nf]
        price[A] += step[nf : nf + na]
        price[R] += step[nf + na : nf + na + len(R)]
        nu = nu + step[nf + na + len(R) :]
        if np.max(np.abs(step[:nf]) / width[F], initial=0) < 1e-13:
            break
    M, rhs, noise = system()
    scale_r = np.abs(M).max(1) + 1e-300
    sol = _solve(M / scale_r[:, None], noise / scale_r[:, None])
    root = np.zeros((len(game.f) + p, p))
    root[F] = sol[:nf]
    root[len(game.f) + A] = sol[nf : nf + na]
    if R:
        root[[len(game.f) + o for o in R]] = sol[nf + na : nf + na + len(R)]
    return Optimum(x, price, root)


def _solve(matrix: Any, right: Any) -> Any:
    try:
        return np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:  # rows that depend on one another
        return np.linalg.lstsq(matrix, right, rcond=1e-13)[0]


def limits(game: Game, best: Optimum, sigma: Any) -> tuple[float, float]:
    """sqrt of the summed variances of x and of price after one round; divide by sqrt(T)."""
    spread = ((best.root * sigma) ** 2).sum(1)
    n = len(game.f)
    return float(np.sqrt(spread[:n].sum())), float(np.sqrt(spread[n:].sum()))
