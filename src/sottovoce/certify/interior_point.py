"""A primal-dual interior-point method that keeps fleets in blocks.

With slacks s for the constraints and multipliers ``low, high`` for the box, the conditions of a
saddle point are followed as tau falls to 0:

    df/dx + J' mu - low + high = 0,     g(x) + s = 0,
    s mu = tau,   (x - lower) low = tau,   (upper - x) high = tau.

A row that must be 0 has no slack, and a multiplier of either sign.

Steps are Mehrotra's predictor and corrector where these bring the residual down, and plain Newton
steps cut back until they do elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgWarning, lu_factor, lu_solve

from sottovoce.errors import ConvexityError, ProblemError
from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Block
from sottovoce.problem.numeric import Jacobian, Numeric

MAX_ITERATIONS = 300
MIN_TAU = 1e-16
MIN_STEP = 1e-8
TINY = float(np.finfo(np.float64).tiny)
DEPENDENT = 1e-13
FEW = 64
"""Up to so many states of named agents none is eliminated: a dense system is fast and exact."""
FLAT = 1e-4
"""An agent whose least curvature is below this share of the largest is not eliminated."""
PIECE = 256
"""How many agents are eliminated together; their matrices then stay in the cache."""


class Solution(NamedTuple):
    """Where the iteration ended; whether that is a saddle point, the residual says."""

    x: Array
    mu: Array
    iterations: int


class Iterate(NamedTuple):
    """A point of the iteration, or a step between two."""

    x: Array
    slack: Array
    mu: Array
    low: Array
    high: Array

    def moved(self, step: Iterate, length: float) -> Iterate:
        """The point ``length`` times ``step`` further on."""
        return Iterate(*(v + length * d for v, d in zip(self, step, strict=True)))


class Values(NamedTuple):
    """What the method needs to know at a point: ``J' mu``, ``dL/dx`` and ``g``."""

    pulled: Array
    gradient: Array
    g: Array


@final
class KktSystem:
    """The linear system ``[K J'; J -S] [dx; dmu] = -[r; q]``, solved block by block.

    ``K = hessian + diag(diagonal)`` and ``S = diag(shift)``. Agents are eliminated one by one,
    together with their local rows, by which their matrix becomes ``[K_i C_i'; C_i -S_i]``; what
    remains, the rows and named agents that nothing curves, is one dense system.

    Args:
        jacobian: J.
        hessian: one array (count, dim, dim) per block.
        diagonal: shape (N,).
        held: which states do not move, shape (N,).
        shift: one number per row.
        rows: which multipliers move.
    """

    def __init__(
        self,
        jacobian: Jacobian,
        hessian: Sequence[Array],
        diagonal: Array,
        held: NDArray[np.bool_],
        shift: Array,
        rows: NDArray[np.bool_],
    ) -> None:
        m = jacobian.shape[0]
        self.jacobian, self.rows = replace(jacobian, local=None), rows[:m]
        self.inverses: list[Array] = []
        self.local: list[NDArray[np.intp]] = []
        few = sum(block.count * block.dim for block in jacobian.blocks if block.named) <= FEW
        most = np.inf if few else max(float(np.max(np.abs(h), initial=0.0)) for h in hessian)
        corner = _Corner(m)
        for place, (block, h) in enumerate(zip(jacobian.blocks, hessian, strict=True)):
            slopes, bend, own = _local_border(jacobian, place, shift[m:], rows[m:])
            self.local.append(own)
            still = block.of(held)
            if block.named:
                full = _shifted(h, block.of(diagonal))
                flat = _least_curvature(full, still) <= FLAT * most
                kept = flat[:, np.newaxis] & ~still
                if kept.any():
                    corner.keep(block, kept, full, jacobian.columns(block)[:, kept.ravel()])
                    corner.keep_rows(kept, slopes, bend, own)
                still = still | kept
            self.inverses.append(_inverses(h, block.of(diagonal), still, slopes, bend))
        tops = [
            inverse[:, : block.dim, : block.dim]
            for block, inverse in zip(jacobian.blocks, self.inverses, strict=True)
        ]
        schur = jacobian.gram(tops) + np.diag(shift[:m])
        rows = self.rows
        self.kept, self.kept_rows, inner, border = corner.assembled()
        self.system = _Symmetric(
            np.block([[inner, border[rows].T], [border[rows], -schur[np.ix_(rows, rows)]]])
        )

    def solve(self, r: Array, q: Array) -> tuple[Array, Array]:
        """Return ``(dx, dmu)``; 0 for states that are held and rows that do not take part."""
        m = self.rows.size
        w = q[m:]
        reduced = q[:m] - self.jacobian.times(self._eliminated(r, w)[0])
        right = [r[self.kept], w[self.kept_rows], reduced[self.rows]]
        found = self.system.solve(-np.concatenate(right))
        n, local = self.kept.size, self.kept_rows.size
        dmu = np.zeros(m)
        dmu[self.rows] = found[n + local :]
        dx, dnu = (-part for part in self._eliminated(r + self.jacobian.pullback(dmu), w))
        dx[self.kept] = found[:n]
        dnu[self.kept_rows] = found[n : n + local]
        return dx, np.concatenate([dmu, dnu])

    def _eliminated(self, r: Array, w: Array) -> tuple[Array, Array]:
        dx, dnu = np.zeros_like(r), np.zeros_like(w)
        for block, own, inverse in zip(
            self.jacobian.blocks, self.local, self.inverses, strict=True
        ):
            right = np.hstack([block.of(r), w[own]])
            both = (inverse @ right[:, :, np.newaxis])[:, :, 0]
            dx[block.index], dnu[own] = both[:, : block.dim].ravel(), both[:, block.dim :]
        return dx, dnu


@final
class _Corner:
    """The agents that are not eliminated: their states, local rows and columns of J."""

    def __init__(self, rows: int) -> None:
        self._states: list[NDArray[np.intp]] = [np.empty(0, dtype=np.intp)]
        self._rows: list[NDArray[np.intp]] = [np.empty(0, dtype=np.intp)]
        self._matrices, self._slopes = [np.empty((0, 0))], [np.empty((0, 0))]
        self._bends = [np.empty(0)]
        self._borders = [np.empty((rows, 0))]

    def keep(self, block: Block, kept: NDArray[np.bool_], full: Array, columns: Array) -> None:
        """Keep states of a block; ``full`` is K and ``columns`` are J's."""
        self._states.append(np.asarray(block.index)[kept.ravel()])
        self._matrices += [own[np.ix_(m, m)] for own, m in zip(full, kept, strict=True)]
        self._borders.append(columns)

    def keep_rows(
        self, kept: NDArray[np.bool_], slopes: Array, bend: Array, own: NDArray[np.intp]
    ) -> None:
        """Keep the local rows of agents that keep a state."""
        for mask, c, below, rows in zip(kept, slopes, bend, own, strict=True):
            used = np.flatnonzero(np.full(len(rows), mask.any()))
            self._slopes.append(c[used][:, mask])
            self._bends.append(below[used])
            self._rows.append(rows[used])

    def assembled(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Array, Array]:
        """Which states and local rows there are, their matrix, and their columns of the rows."""
        states, rows = np.concatenate(self._states), np.concatenate(self._rows)
        k, c = _diagonal(self._matrices), _diagonal(self._slopes)
        border = np.hstack(self._borders)
        below = -np.diag(np.concatenate(self._bends))
        whole = np.hstack([border, np.zeros((len(border), rows.size))])
        return states, rows, np.block([[k, c.T], [c, below]]), whole


@final
class InteriorPoint:
    """The iteration for one problem."""

    def __init__(self, numeric: Numeric) -> None:
        self.numeric = numeric
        self.lower, self.upper = numeric.lower, numeric.upper
        self.held = self.upper <= self.lower
        self.equal = numeric.equality
        self.price = 1.0  # what a unit of an equality's violation counts, in units of the objective
        self.least_gap = np.spacing(np.maximum(np.abs(self.lower), np.abs(self.upper)))

    def approach(self, targets: Sequence[float]) -> Iterator[Solution]:
        """Yield a point for each target the natural residual falls below, and where it ends.

        Raises:
            ProblemError: if the constraints have no common point in the box.
        """
        now = self._start()
        values = self._values(now)
        remaining = list(targets)
        for iteration in range(MAX_ITERATIONS):
            self._require_feasible(now, values)
            residual = self.numeric.residual(now.x, now.mu)
            if residual <= remaining[0]:
                remaining = [target for target in remaining if target < residual]
                yield Solution(now.x, now.mu, iteration)
            try:
                following = self._advance(now, values) if remaining else None
            except np.linalg.LinAlgError:
                following = None
            if following is None:
                break
            now, values = following
        yield Solution(now.x, now.mu, iteration)

    def _start(self) -> Iterate:
        given = np.concatenate([np.ravel(part) for part in self.numeric.problem.start])
        margin = 0.05 * (self.upper - self.lower)
        inside = np.clip(given, self.lower + margin, self.upper - margin)
        points = (inside, 0.5 * (self.lower + self.upper))
        x = min(points, key=lambda point: _violation(self.numeric.constraints(point)))
        g = self.numeric.constraints(x)
        forces = np.abs(self.numeric.objective_gradient(x) * (self.upper - self.lower))
        tau = max(1e-3, 0.1 * float(np.median(forces)))
        slack = np.maximum(-g, 1e-2 * np.maximum(1.0, np.abs(g)))
        below, above = self.gaps(x)
        self.price = tau / max(1.0, float(np.max(np.abs(g[self.equal]), initial=0.0)))
        mu = np.where(self.equal, 0.0, tau / slack)
        return Iterate(x, np.where(self.equal, 0.0, slack), mu, tau / below, tau / above)

    def gaps(self, x: Array) -> tuple[Array, Array]:
        """``x - lower`` and ``upper - x``, never 0 by rounding.

        A state that cannot move counts as infinitely far from its bounds: no force, no limit.
        """
        below = np.maximum(x - self.lower, self.least_gap)
        above = np.maximum(self.upper - x, self.least_gap)
        return np.where(self.held, np.inf, below), np.where(self.held, np.inf, above)

    def _values(self, at: Iterate) -> Values:
        pulled = self.numeric.pullback(at.x, at.mu)
        gradient = self.numeric.objective_gradient(at.x) + pulled
        return Values(pulled, gradient, self.numeric.constraints(at.x))

    def _products(self, at: Iterate) -> Array:
        free = ~self.held
        below, above = (gap[free] for gap in self.gaps(at.x))
        rows = (at.slack * at.mu)[~self.equal]
        return np.concatenate([rows, below * at.low[free], above * at.high[free]])

    def _infeasibility(self, at: Iterate, values: Values, now: Iterate) -> tuple[Array, Array]:
        """What the equations miss, in units of the objective by way of the gaps and multipliers."""
        dual = (values.gradient - at.low + at.high)[~self.held]
        gap = np.minimum(*self.gaps(now.x))[~self.held]
        return gap * dual, np.where(self.equal, self.price, now.mu) * (values.g + at.slack)

    def _merit(self, at: Iterate, values: Values, tau: float, now: Iterate) -> float:
        parts = (*self._infeasibility(at, values, now), self._products(at) - tau)
        return float(np.sqrt(sum(part @ part for part in parts)))

    def _advance(self, now: Iterate, values: Values) -> tuple[Iterate, Values] | None:
        direction = _Direction(self, now, values)
        affine = direction.towards(0.0, 0.0, 0.0)
        mean = float(np.mean(self._products(now)))
        reached = now.moved(affine, direction.longest(affine, 1.0))
        sigma = (float(np.mean(self._products(reached))) / mean) ** 3
        if max(np.max(np.abs(part)) for part in self._infeasibility(now, values, now)) > mean:
            # Products that vanish long before the equations hold would pin the point to a bound.
            sigma = max(sigma, 0.1)
        tau = max(MIN_TAU, sigma * mean)
        before = self._merit(now, values, tau, now)
        short = max(0.99, 1.0 - mean)
        corrected = direction.towards(
            tau - affine.slack * affine.mu,
            tau - affine.x * affine.low,
            tau + affine.x * affine.high,
        )
        found = self._try(now, corrected, direction.longest(corrected, short), tau, before)
        if found is not None:
            return found
        plain = direction.towards(tau, tau, tau)
        length = direction.longest(plain, short)
        while found is None and length > MIN_STEP:
            found = self._try(now, plain, length, tau, before)
            length *= 0.5
        return found

    def _try(
        self, now: Iterate, step: Iterate, length: float, tau: float, before: float
    ) -> tuple[Iterate, Values] | None:
        new = now.moved(step, length)
        values = self._values(new)
        enough = (1.0 - 1e-4 * length) * before
        return (new, values) if self._merit(new, values, tau, now) <= enough else None

    def _require_feasible(self, now: Iterate, values: Values) -> None:
        if not self._exclude(now.x, now.mu * values.g, values.pulled):
            return
        require_convex(self.numeric, now.x, now.mu)
        mu = now.mu.copy()
        for j in np.argsort(np.abs(mu)):
            fewer = np.where(np.arange(mu.size) == j, 0.0, mu)
            if self._exclude(now.x, fewer * values.g, self.numeric.pullback(now.x, fewer)):
                mu = fewer
        guilty = " and ".join(dict.fromkeys(self.numeric.label(int(j)) for j in np.flatnonzero(mu)))
        raise ProblemError(
            f"constraints must hold together at some point of the box, got none for {guilty}: "
            "relax a constraint or widen the box"
        )

    def _exclude(self, x: Array, weighted: Array, slopes: Array) -> bool:
        """Whether the tangent of ``mu' g`` at x is positive on the whole box.

        By convexity ``mu' g`` is then positive too, so that no point meets all constraints.
        """
        descent = np.where(slopes > 0.0, self.lower - x, self.upper - x) * slopes
        reach = np.maximum(np.abs(self.lower), np.abs(self.upper))
        rounding = 1e-9 * float(np.sum(np.abs(weighted)) + np.sum(np.abs(slopes) * reach))
        return float(np.sum(weighted) + np.sum(descent)) > rounding


@final
class _Direction:
    """Newton steps from one point, for any targets of the products."""

    def __init__(self, method: InteriorPoint, now: Iterate, values: Values) -> None:
        self.now, self.values, self.equal = now, values, method.equal
        self.below, self.above = method.gaps(now.x)
        self.jacobian = method.numeric.jacobian(now.x)
        self.system = KktSystem(
            self.jacobian,
            method.numeric.lagrangian_hessian(now.x, now.mu),
            now.low / self.below + now.high / self.above,
            method.held,
            self._per_row(now.slack),
            np.ones(now.mu.size, dtype=np.bool_),
        )

    def towards(self, slack: Array | float, low: Array | float, high: Array | float) -> Iterate:
        """The step to ``s mu = slack``, ``(x - lower) low = low``, ``(upper - x) high = high``."""
        now, g = self.now, self.values.g
        r = self.values.gradient - low / self.below + high / self.above
        dx, dmu = self.system.solve(r, g + self._per_row(slack))
        return Iterate(
            x=dx,
            slack=np.where(self.equal, 0.0, -(g + now.slack) - self.jacobian.times(dx)),
            mu=dmu,
            low=(low - now.low * dx) / self.below - now.low,
            high=(high + now.high * dx) / self.above - now.high,
        )

    def _per_row(self, product: Array | float) -> Array:
        """``product / mu`` for rows with a slack, 0 for equalities."""
        mu = np.where(self.equal, 1.0, self.now.mu)
        return np.where(self.equal, 0.0, product / mu)

    def longest(self, step: Iterate, part: float) -> float:
        """The longest step, at most 1, that goes ``part`` of the way to the nearest bound."""
        now, bent = self.now, ~self.equal
        room = (self.below, self.above, now.slack[bent], now.mu[bent], now.low, now.high)
        moves = (step.x, -step.x, step.slack[bent], step.mu[bent], step.low, step.high)
        limits = (
            np.min(-have[move < 0.0] / move[move < 0.0], initial=np.inf)
            for have, move in zip(room, moves, strict=True)
        )
        return min(1.0, part * float(min(limits)))


def require_convex(numeric: Numeric, x: Array, mu: Array) -> None:
    """Refuse if the objective or ``mu' g`` bends downwards at x.

    Raises:
        ConvexityError: if a second derivative has a negative eigenvalue.
    """
    for what, blocks in (
        ("objective", numeric.objective_hessian(x)),
        ("weighted sum of the constraints", numeric.constraint_hessian(x, mu)),
    ):
        for h in blocks:
            least = 1e-9 * float(np.max(np.abs(h)))
            try:
                np.linalg.cholesky(h + (least or 1.0) * np.eye(h.shape[1]))
            except np.linalg.LinAlgError:
                raise ConvexityError(
                    f"the {what} must be convex, got a direction in which it bends downwards: "
                    "certify the problem to see which formula it is and where"
                ) from None


def _violation(g: Array) -> float:
    return float(np.max(g, initial=0.0)) if np.all(np.isfinite(g)) else np.inf


def _local_border(
    jacobian: Jacobian, place: int, shift: Array, rows: NDArray[np.bool_]
) -> tuple[Array, Array, NDArray[np.intp]]:
    """A block's slopes of local rows, what stands below them, and which rows they are.

    A row that does not take part has slope 0 and 1 below, so that its multiplier stays.
    """
    local, block = jacobian.local, jacobian.blocks[place]
    if local is None:
        none = np.empty((block.count, 0))
        return np.empty((block.count, 0, block.dim)), none, none.astype(np.intp)
    own = local.rows[place]
    takes_part = rows[own]
    slopes = local.slopes[place] * takes_part[:, :, np.newaxis]
    return slopes, np.where(takes_part, shift[own], 1.0), own


def _diagonal(blocks: Sequence[Array]) -> Array:
    """The matrix with these blocks along its diagonal; a block may have no rows or no columns."""
    ends = np.cumsum([(0, 0), *(block.shape for block in blocks)], axis=0)
    out = np.zeros(ends[-1])
    for block, (row, column) in zip(blocks, ends[:-1], strict=True):
        out[row : row + block.shape[0], column : column + block.shape[1]] = block
    return out


def _shifted(h: Array, diagonal: Array) -> Array:
    """``h_i + diag(diagonal_i)`` for every agent."""
    out = h.copy()
    index = np.arange(h.shape[1])
    out[:, index, index] += diagonal
    return out


def _least_curvature(h: Array, held: NDArray[np.bool_]) -> Array:
    """The least eigenvalue over the states that move, for every agent; infinite if none does."""
    moves = ~held
    if h.shape[1] == 1:
        return np.where(held[:, 0], np.inf, h[:, 0, 0])
    index = np.arange(h.shape[1])
    masked = h * moves[:, :, np.newaxis] * moves[:, np.newaxis, :]
    masked[:, index, index] += np.where(held, np.abs(h).max() + 1.0, 0.0)
    return np.where(held.all(axis=1), np.inf, np.linalg.eigvalsh(masked)[:, 0])


def _inverses(
    h: Array, diagonal: Array, held: NDArray[np.bool_], slopes: Array, bend: Array
) -> Array:
    """``[h_i + diag(diagonal_i), C_i'; C_i, -S_i]^-1`` per agent, 0 for states that are held."""
    if slopes.shape[1]:
        return _bordered(h, diagonal, held, slopes, bend)
    index = np.arange(h.shape[1])
    out = np.empty_like(h)
    for begin in range(0, len(h), PIECE):
        piece = slice(begin, begin + PIECE)
        still = held[piece]
        size = h[piece, index, index] + diagonal[piece]
        scale = np.where(still, 0.0, 1.0 / np.sqrt(np.maximum(np.abs(size), TINY)))
        k = h[piece] * scale[:, :, np.newaxis]
        k *= scale[:, np.newaxis, :]
        k[:, index, index] = np.where(still, 1.0, size * scale**2)
        inverse = np.linalg.inv(k)
        inverse *= scale[:, :, np.newaxis]
        np.multiply(inverse, scale[:, np.newaxis, :], out=out[piece])
    return out


def _bordered(
    h: Array, diagonal: Array, held: NDArray[np.bool_], slopes: Array, bend: Array
) -> Array:
    count, local, dim = slopes.shape
    index, below = np.arange(dim), dim + np.arange(local)
    out = np.empty((count, dim + local, dim + local))
    for begin in range(0, count, PIECE):
        piece = slice(begin, begin + PIECE)
        still, size = held[piece], h[piece, index, index] + diagonal[piece]
        scale = np.where(still, 0.0, 1.0 / np.sqrt(np.maximum(np.abs(size), TINY)))
        c = slopes[piece] * scale[:, np.newaxis, :]
        lengths = np.sqrt(np.maximum(np.max(c**2, axis=2), np.maximum(bend[piece], TINY)))
        k = np.zeros((len(size), dim + local, dim + local))
        k[:, :dim, :dim] = h[piece] * scale[:, :, np.newaxis] * scale[:, np.newaxis, :]
        k[:, index, index] = np.where(still, 1.0, size * scale**2)
        k[:, dim:, :dim] = c / lengths[:, :, np.newaxis]
        k[:, :dim, dim:] = k[:, dim:, :dim].transpose(0, 2, 1)
        # A little below every row keeps rows that depend on each other solvable.
        k[:, below, below] = -bend[piece] / lengths**2 - DEPENDENT
        scales = np.hstack([scale, 1.0 / lengths])
        inverse = np.linalg.inv(k) * scales[:, :, np.newaxis]
        np.multiply(inverse, scales[:, np.newaxis, :], out=out[piece])
    return out


@final
class _Symmetric:
    """A symmetric system, its rows and columns scaled to size 1, factored once."""

    def __init__(self, matrix: Array) -> None:
        self._scale = np.ones(len(matrix))
        for _ in range(4):
            sizes = np.abs(matrix * self._scale) * self._scale[:, np.newaxis]
            largest = np.max(sizes, axis=1, initial=0.0)
            self._scale /= np.sqrt(np.where(largest > 0.0, largest, 1.0))
        self._scaled = matrix * self._scale * self._scale[:, np.newaxis]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LinAlgWarning)
            self._factors = lu_factor(self._scaled, check_finite=False) if len(matrix) else None
        if self._factors is not None and not np.all(np.diag(self._factors[0])):
            self._factors = None

    def solve(self, right: Array) -> Array:
        """The solution, refined once; where there is none or many, the least that comes nearest."""
        scaled = self._scale * right
        if not right.size:
            return scaled
        if self._factors is None:
            y = np.asarray(np.linalg.lstsq(self._scaled, scaled)[0], dtype=np.float64)
        else:
            y = lu_solve(self._factors, scaled, check_finite=False)
            rest = scaled - self._scaled @ y
            y = y + lu_solve(self._factors, rest, check_finite=False)
        return np.asarray(self._scale * y, dtype=np.float64)
