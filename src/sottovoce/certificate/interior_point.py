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

from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import numpy as np

from sottovoce.certificate.condensed import kkt_system
from sottovoce.certificate.kkt import KktMatrix
from sottovoce.errors import ConvexityError, ProblemError
from sottovoce.problem.agents import Array
from sottovoce.problem.numeric import Numeric

MAX_ITERATIONS = 300
MIN_TAU = 1e-16
MIN_STEP = 1e-8


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
        self.system = kkt_system(
            KktMatrix(
                jacobian=self.jacobian,
                hessian=method.numeric.lagrangian_hessian(now.x, now.mu),
                diagonal=now.low / self.below + now.high / self.above,
                held=method.held,
                shift=self._per_row(now.slack),
                rows=np.ones(now.mu.size, dtype=np.bool_),
            )
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
