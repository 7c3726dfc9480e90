"""A primal-dual interior-point method on a sparse KKT system.

Bounds are rows like any other: with ``G = (g, lower - x, x - upper)``, its Jacobian A, slacks s and
multipliers mu, the conditions of a saddle point are followed as tau falls to 0:

    df/dx + A' mu = 0,     G(x) + s = 0,     s mu = tau.

A row that must be 0 has no slack, and a multiplier of either sign.

Steps are Mehrotra's predictor and corrector where these bring the residual down, and plain Newton
steps cut back until they do elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sparse

from sottovoce.errors import ConvexityError, ProblemError
from sottovoce.problem.groups import Array
from sottovoce.problem.numeric import Numeric

MAX_ITERATIONS = 300
MIN_TAU = 1e-16  # of the complementarity target: below it products of float64 are noise
MIN_STEP = 1e-8  # of a Newton step at which the line search gives up
BOUND_SHARE = 0.99  # of the way to the nearest bound that a step goes, nearer as tau falls
ARMIJO = 1e-4  # the part of the promised decrease that a step must bring
MIN_CENTRING = 0.1  # of sigma, while the equations are further off than complementarity
INSET = 0.05  # of a box's width that the start keeps from its bounds
NEGATIVE = 1e-9  # below minus this share of a matrix's largest entry an eigenvalue is negative
ROUNDING = 1e-9  # of a tangent's terms: what float64 may add to a proof of infeasibility
REGULARISATIONS = (1e-11, 1e-9, 1e-6)
"""What is added to the diagonal of a system scaled to size 1, the first that leaves it regular:
rows that depend on each other and states without curvature stay solvable, and refinement takes the
addition out again."""
EQUILIBRATIONS = 4  # passes that scale rows and columns towards largest entries of 1
REFINEMENTS = 8  # at most, of a solution of the linear system
PIVOT = 1e-3
"""A diagonal entry at least so large beside its column is a pivot, which keeps factors sparse."""


@final
class KktSolver:
    """Solves ``[H A'; A -S] [dx; dmu] = -[r; q]``, S a diagonal, by sparse LU factors.

    The order of elimination is chosen at the first factorisation, by minimum degree, and kept.
    """

    def __init__(self) -> None:
        self._order: Any = None

    def factor(self, hessian: Any, slopes: Any, shift: Array | float = 0.0) -> None:
        """Factor the system, scaled so that the largest entry of every row is near 1."""
        from scipy.sparse.linalg import splu  # slow to load; a cloud solves no system

        m, n = slopes.shape
        below = sparse.diags_array(np.broadcast_to(-np.asarray(shift), (m,)))
        signs = np.concatenate([np.ones(n), -np.ones(m)])
        matrix = sparse.block_array([[hessian, slopes.T], [slopes, below]], format="csc")
        if not np.all(np.isfinite(matrix.data)):
            raise np.linalg.LinAlgError("the system must hold finite numbers")
        lengths = np.diff(matrix.indptr)
        column, used = np.repeat(np.arange(n + m), lengths), lengths > 0
        self._scale = np.ones(n + m)
        for _ in range(EQUILIBRATIONS):
            sizes = np.abs(matrix.data) * self._scale[matrix.indices] * self._scale[column]
            largest = np.maximum.reduceat(sizes, matrix.indptr[:-1][used])
            self._scale[used] /= np.sqrt(np.where(largest > 0.0, largest, 1.0))
        matrix.data *= self._scale[matrix.indices] * self._scale[column]
        self._matrix = matrix
        options = {"diag_pivot_thresh": PIVOT, "options": {"SymmetricMode": True}}
        for size in REGULARISATIONS:
            regular = matrix + sparse.diags_array(size * signs)
            try:
                if self._order is None:
                    factors = splu(regular, permc_spec="MMD_AT_PLUS_A", **options)
                    self._order = np.argsort(factors.perm_c)
                permuted = regular[self._order][:, self._order].tocsc()
                self._factors = splu(permuted, permc_spec="NATURAL", **options)
            except RuntimeError:  # exactly singular
                continue
            return
        raise np.linalg.LinAlgError("the system must be regular")

    def solve(self, r: Array, q: Array) -> tuple[Array, Array]:
        """Return ``(dx, dmu)``, refined as long as that helps; for one right side or columns."""
        right = -(self._scale * np.concatenate([r, q]).T).T
        if not np.all(np.isfinite(right)):
            raise np.linalg.LinAlgError("the right side must hold finite numbers")
        y = best = np.zeros_like(right)
        rest, least = right, np.inf
        for _ in range(REFINEMENTS):
            size = float(np.max(np.abs(rest), initial=0.0))
            if not size < 0.5 * least:
                break
            best, least = y, size
            y = y + self._apply(rest)
            rest = right - self._matrix @ y
        y = (self._scale * (y if np.max(np.abs(rest), initial=0.0) < least else best).T).T
        return y[: len(r)], y[len(r) :]

    def _apply(self, right: Array) -> Array:
        out = np.empty_like(right)
        out[self._order] = self._factors.solve(right[self._order])
        return out


def _positive_semidefinite(matrix: Any) -> bool:
    """Whether no eigenvalue of a sparse symmetric matrix is below ``-NEGATIVE`` of its largest."""
    from scipy.sparse.linalg import splu

    least = NEGATIVE * float(np.max(np.abs(matrix.data), initial=0.0)) or 1.0
    shifted = sparse.csc_array(matrix + least * sparse.eye_array(matrix.shape[0]))
    settings = {"diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    try:  # pivots on the diagonal have the signs of the eigenvalues (Sylvester)
        factors = splu(shifted, permc_spec="MMD_AT_PLUS_A", **settings)
    except RuntimeError:
        return False
    on_diagonal = np.array_equal(factors.perm_r, factors.perm_c)
    return bool(on_diagonal and np.all(factors.U.diagonal() > 0.0))


class Solution(NamedTuple):
    """Where the iteration ended; whether that is a saddle point, the residual says."""

    x: Array
    mu: Array
    iterations: int


class Step(NamedTuple):
    """A direction from an iterate."""

    x: Array
    slack: Array
    mu: Array


@final
@dataclass(frozen=True, slots=True, eq=False)
class Iterate:
    """A point of the iteration: states x, slacks s, multipliers mu, and df/dx, G, dG/dx = A there.

    ``gradient`` is 0 for states that cannot move.
    """

    x: Array
    slack: Array
    mu: Array
    gradient: Array
    G: Array
    A: Any

    @property
    def dual(self) -> Array:
        """``dL/dx``, shape (N,)."""
        return np.asarray(self.gradient + self.A.T @ self.mu)


@final
class InteriorPoint:
    """The iteration for one smooth problem: f over a box, rows ``g <= 0`` or ``g = 0``."""

    def __init__(self, numeric: Numeric) -> None:
        self.numeric = numeric
        lower, upper = numeric.lower, numeric.upper
        self.moves = (upper > lower).astype(np.float64)
        self.free = np.flatnonzero(self.moves)
        self.rows = numeric.equality.size
        self.inequality = np.append(~numeric.equality, np.ones(2 * self.free.size, dtype=np.bool_))
        unit = sparse.eye_array(lower.size, format="csr")[self.free]
        self._bounds = sparse.vstack([-unit, unit], format="csr")
        self._bound_offsets = np.concatenate([lower[self.free], -upper[self.free]])
        self.penalty = 1.0  # of a unit of an equality's violation, in units of the objective
        self.solver = KktSolver()

    def iterate(self, targets: Sequence[float]) -> Iterator[Solution]:
        """Yield a point for each target the natural residual falls below, and where it ends.

        Constraints without a common point in the box are refused.
        """
        now = self._start()
        remaining = list(targets)
        for iteration in range(MAX_ITERATIONS):
            self._require_feasible(now)
            residual = self.numeric.residual(now.x, now.mu[: self.rows])
            if residual <= remaining[0]:
                remaining = [target for target in remaining if target < residual]
                yield Solution(now.x, now.mu[: self.rows], iteration)
            try:
                following = self._advance(now) if remaining else None
            except np.linalg.LinAlgError:
                following = None
            if following is None:
                break
            now = following
        yield Solution(now.x, now.mu[: self.rows], iteration)

    def iterate_at(self, x: Array, slack: Array, mu: Array) -> Iterate:
        """An iterate, with what must be known there."""
        slopes = self.numeric.jacobian(x)
        if self.free.size < x.size:
            slopes = (slopes @ sparse.diags_array(self.moves)).tocsr()
        return Iterate(
            x=x,
            slack=slack,
            mu=mu,
            gradient=self.moves * self.numeric.objective_gradient(x),
            G=np.concatenate([self.numeric.constraints(x), self._bounds @ x + self._bound_offsets]),
            A=sparse.vstack([slopes, self._bounds], format="csr"),
        )

    def hessian(self, x: Array, mu: Array) -> Any:
        """The second derivatives of L; the identity for states that cannot move."""
        h = self.numeric.lagrangian_hessian(x, mu[: self.rows])
        if self.free.size < x.size:
            moves = sparse.diags_array(self.moves)
            h = moves @ h @ moves + sparse.diags_array(1.0 - self.moves)
        return h

    def require_convex(self, x: Array, mu: Array) -> None:
        """Refuse a negative eigenvalue of the second derivatives of f or ``mu' g`` at x.

        They are taken across the boxes: in units of f, whatever those of the states.
        """
        across = sparse.diags_array(self.numeric.upper - self.numeric.lower)
        for what, hessian in (
            ("objective", self.numeric.objective_hessian(x)),
            ("weighted sum of the constraints", self.numeric.constraint_hessian(x, mu)),
        ):
            if not _positive_semidefinite(across @ hessian @ across):
                raise ConvexityError(
                    f"the {what} must be convex, got a direction in which it bends downwards: "
                    "certify the problem to see which formula it is and where"
                )

    def _start(self) -> Iterate:
        lower, upper = self.numeric.lower, self.numeric.upper
        margin = INSET * (upper - lower)
        near_start = np.clip(self.numeric.start, lower + margin, upper - margin)
        x = min((near_start, 0.5 * (lower + upper)), key=self._largest_violation)
        zero = np.zeros(self.inequality.size)
        now = self.iterate_at(x, zero, zero)
        tau = max(1e-3, 0.1 * float(np.median(np.abs(now.gradient * (upper - lower)))))
        slack = np.maximum(-now.G, 1e-2 * np.maximum(1.0, np.abs(now.G)))
        slack[self.rows :] = -now.G[self.rows :]
        slack = np.where(self.inequality, slack, 0.0)
        missed = np.max(np.abs(now.G[~self.inequality]), initial=0.0)
        self.penalty = tau / max(1.0, float(missed))
        return self.iterate_at(
            x, slack, np.where(self.inequality, tau / np.where(self.inequality, slack, 1.0), 0.0)
        )

    def _products(self, slack: Array, mu: Array) -> Array:
        return np.asarray((slack * mu)[self.inequality])

    def _largest_violation(self, x: Array) -> float:
        g = self.numeric.constraints(x)
        return float(np.max(g, initial=0.0)) if np.all(np.isfinite(g)) else np.inf

    def _infeasibility(self, new: Iterate, now: Iterate) -> tuple[Array, Array]:
        """The residuals, in units of the objective by way of present gaps and multipliers."""
        below, above = np.split(now.slack[self.rows :], 2)
        primal = np.where(self.inequality, now.mu, self.penalty) * (new.G + new.slack)
        return np.minimum(below, above) * new.dual[self.free], primal

    def _merit(self, new: Iterate, tau: float, now: Iterate) -> float:
        parts = (*self._infeasibility(new, now), self._products(new.slack, new.mu) - tau)
        return float(np.sqrt(sum(np.sum(np.square(part)) for part in parts)))

    def _advance(self, now: Iterate) -> Iterate | None:
        mu = np.where(self.inequality, now.mu, 1.0)
        self.solver.factor(self.hessian(now.x, now.mu), now.A, now.slack / mu)
        affine = self._newton_step(now, 0.0)
        mean = float(np.mean(self._products(now.slack, now.mu)))
        length = self._step_to_boundary(now, affine, 1.0)
        reached = self._products(now.slack + length * affine.slack, now.mu + length * affine.mu)
        sigma = (float(np.mean(reached)) / mean) ** 3
        parts = self._infeasibility(now, now)
        if max(np.max(np.abs(part), initial=0.0) for part in parts) > mean:
            # Products that vanish long before the equations hold would pin the point to a bound.
            sigma = max(sigma, MIN_CENTRING)
        tau = max(MIN_TAU, sigma * mean)
        before = self._merit(now, tau, now)
        short = max(BOUND_SHARE, 1.0 - mean)
        corrected = self._newton_step(now, tau - affine.slack * affine.mu)
        length = self._step_to_boundary(now, corrected, short)
        new = self._accept(now, corrected, length, tau, before)
        if new is not None:
            return new
        plain = self._newton_step(now, tau)
        length = self._step_to_boundary(now, plain, short)
        while new is None and length > MIN_STEP:
            new = self._accept(now, plain, length, tau, before)
            length *= 0.5
        return new

    def _newton_step(self, now: Iterate, product: Array | float) -> Step:
        """The Newton step to ``s mu = product``."""
        mu = np.where(self.inequality, now.mu, 1.0)
        target = np.where(self.inequality, product / mu, 0.0)
        dx, dmu = self.solver.solve(now.dual, now.G + target)
        slack = np.where(self.inequality, -(now.G + now.slack) - now.A @ dx, 0.0)
        return Step(self.moves * dx, slack, dmu)

    def _accept(
        self, now: Iterate, step: Step, length: float, tau: float, before: float
    ) -> Iterate | None:
        x, slack, mu = (
            v + length * d for v, d in zip((now.x, now.slack, now.mu), step, strict=True)
        )
        new = self.iterate_at(x, slack, mu)
        return new if self._merit(new, tau, now) <= (1.0 - ARMIJO * length) * before else None

    def _step_to_boundary(self, now: Iterate, step: Step, share: float) -> float:
        """The longest step, at most 1, that goes this share of the way to the nearest bound."""
        room = np.concatenate([now.slack[self.inequality], now.mu[self.inequality]])
        move = np.concatenate([step.slack[self.inequality], step.mu[self.inequality]])
        falling = move < 0.0
        return min(1.0, share * float(np.min(-room[falling] / move[falling], initial=np.inf)))

    def _require_feasible(self, now: Iterate) -> None:
        slopes, g, mu = now.A[: self.rows], now.G[: self.rows], now.mu[: self.rows]
        if not self._proves_infeasible(now.x, mu * g, slopes.T @ mu):
            return
        self.require_convex(now.x, mu)
        for j in np.argsort(np.abs(mu)):
            fewer = np.where(np.arange(mu.size) == j, 0.0, mu)
            if self._proves_infeasible(now.x, fewer * g, slopes.T @ fewer):
                mu = fewer
        labels = (self.numeric.label(int(j)) for j in np.flatnonzero(mu))
        raise ProblemError(
            "constraints must hold together at some point of the box, got none for "
            f"{' and '.join(dict.fromkeys(labels))}: relax a constraint or widen the box"
        )

    def _proves_infeasible(self, x: Array, weighted: Array, slopes: Array) -> bool:
        """Whether the tangent of ``mu' g`` at x is positive on the whole box.

        By convexity ``mu' g`` is then positive too, so that no point meets all constraints.
        """
        lower, upper = self.numeric.lower, self.numeric.upper
        descent = np.where(slopes > 0.0, lower - x, upper - x) * slopes
        reach = np.maximum(np.abs(lower), np.abs(upper))
        rounding = ROUNDING * float(np.sum(np.abs(weighted)) + np.sum(np.abs(slopes) * reach))
        return float(np.sum(weighted) + np.sum(descent)) > rounding
