"""Saddle points by sequential quadratic programming, and sparse factors of KKT systems.

At x with multipliers mu, Clarabel solves the quadratic program of the tangents,

    minimise  df'd + d' H d / 2   over  g + A d <= 0 (or = 0),  lower <= x + d <= upper,

with H the Hessian of ``L = f + mu'g``; its multipliers are the next ones. The step is halved until
the natural residual or an l1 merit falls. By convexity tangents lie below g: rows whose program has
no point have none in common either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sparse

from sottovoce.errors import ConvexityError, ProblemError
from sottovoce.problem.groups import Array
from sottovoce.problem.numeric import Numeric

MAX_ITERATIONS = 200
MIN_STEP = 1e-10  # of a step at which the line search gives up
DECREASE = 1e-4  # the part of a step's length by which the residual must fall
MIN_GAIN = 1e-12  # of the merit: a smaller fall is rounding
ACCURACY = 1e-15  # of a quadratic program; its best point is taken if it is not reached
PENALTY = 2.0  # of a unit of violation in the merit, in units of the row's multiplier
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


def approach_saddle(numeric: Numeric, targets: Sequence[float]) -> Iterator[Solution]:
    """Yield a point for each target the natural residual falls below, and where it ends.

    Constraints without a common point in the box are refused.
    """
    lower, upper = numeric.lower, numeric.upper
    margin = INSET * (upper - lower)
    near_start = np.clip(numeric.start, lower + margin, upper - margin)
    x = min((near_start, 0.5 * (lower + upper)), key=lambda y: _largest_violation(numeric, y))
    now, remaining = Solution(x, np.zeros(numeric.equality.size), 0), list(targets)
    while now.iterations < MAX_ITERATIONS:
        residual = numeric.residual(now.x, now.mu)
        if residual <= remaining[0]:
            remaining = [target for target in remaining if target < residual]
            yield now
        following = _step(numeric, now, residual) if remaining else None
        if following is None:
            break
        now = following
    yield now


@np.errstate(all="ignore")
def _step(numeric: Numeric, now: Solution, residual: float) -> Solution | None:
    """The next point; None where the program or the line search fails."""
    x, mu, _ = now
    slopes, g = numeric.jacobian(x), numeric.constraints(x)
    gradient, hessian = numeric.objective_gradient(x), numeric.lagrangian_hessian(x, mu)
    if not all(np.isfinite(v).all() for v in (slopes.data, g, gradient, hessian.data)):
        return None
    bounds = (numeric.lower - x, numeric.upper - x)
    d, multipliers = _quadratic_program(hessian, gradient, slopes, g, numeric.equality, bounds)
    if not (np.isfinite(d).all() and np.isfinite(multipliers).all()):
        return None
    _require_feasible(numeric, x, multipliers, g, slopes)

    def merit(y: Array) -> float:
        off = numeric.constraints(y)
        off = np.where(numeric.equality, np.abs(off), np.maximum(off, 0.0))
        return numeric.objective(y) + PENALTY * float(np.abs(multipliers) @ off)

    length, before = 1.0, merit(x)
    while length > MIN_STEP:
        y = np.clip(x + length * d, numeric.lower, numeric.upper)
        nu = mu + length * (multipliers - mu)
        after = numeric.residual(y, nu)
        falls = after <= (1.0 - DECREASE * length) * residual
        if np.isfinite(after) and (falls or merit(y) < before - MIN_GAIN * abs(before)):
            return Solution(y, nu, now.iterations + 1)
        length *= 0.5
    return None


def _quadratic_program(
    hessian: Any, gradient: Array, slopes: Any, g: Array, equality: Any, bounds: tuple[Array, Array]
) -> tuple[Array, Array]:
    """The step d and the multipliers of the rows ``g + A d``, or a ray of them if there is none."""
    import clarabel  # slow to load; a cloud solves no program

    order = np.argsort(~equality, kind="stable")  # equalities first
    unit = sparse.eye_array(gradient.size, format="csr")
    rows = sparse.vstack([slopes[order], -unit, unit], format="csc")
    room = np.concatenate([-g[order], -bounds[0], bounds[1]])
    count = int(np.count_nonzero(equality))
    cones = [clarabel.ZeroConeT(count), clarabel.NonnegativeConeT(room.size - count)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = ACCURACY
    curvature = sparse.triu(sparse.csc_array(hessian), format="csc")
    solution = clarabel.DefaultSolver(curvature, gradient, rows, room, cones, settings).solve()
    multipliers = np.empty(g.size)
    multipliers[order] = solution.z[: g.size]
    return np.array(solution.x), multipliers


def _largest_violation(numeric: Numeric, x: Array) -> float:
    g = numeric.constraints(x)
    return float(np.max(g, initial=0.0)) if np.all(np.isfinite(g)) else np.inf


def require_convex(numeric: Numeric, x: Array, mu: Array) -> None:
    """Refuse a negative eigenvalue of the second derivatives of f or ``mu' g`` at x.

    They are taken across the boxes: in units of f, whatever those of the states.
    """
    across = sparse.diags_array(numeric.upper - numeric.lower)
    for what, hessian in (
        ("objective", numeric.objective_hessian(x)),
        ("weighted sum of the constraints", numeric.constraint_hessian(x, mu)),
    ):
        if not _positive_semidefinite(across @ hessian @ across):
            raise ConvexityError(
                f"the {what} must be convex, got a direction in which it bends downwards: "
                "certify the problem to see which formula it is and where"
            )


def _require_feasible(numeric: Numeric, x: Array, mu: Array, g: Array, slopes: Any) -> None:
    """Refuse rows that multipliers prove to have no common point, and name them."""

    def proves(nu: Array) -> bool:
        # The tangent of nu'g at x is positive on the whole box; by convexity nu'g is, too.
        weighted, slope = nu * g, slopes.T @ nu
        descent = np.where(slope > 0.0, numeric.lower - x, numeric.upper - x) * slope
        reach = np.maximum(np.abs(numeric.lower), np.abs(numeric.upper))
        rounding = ROUNDING * float(np.sum(np.abs(weighted)) + np.sum(np.abs(slope) * reach))
        return float(np.sum(weighted) + np.sum(descent)) > rounding

    if not proves(mu):
        return
    require_convex(numeric, x, mu)
    for j in np.argsort(np.abs(mu)):
        fewer = np.where(np.arange(mu.size) == j, 0.0, mu)
        mu = fewer if proves(fewer) else mu
    labels = (numeric.label(int(j)) for j in np.flatnonzero(mu))
    raise ProblemError(
        "constraints must hold together at some point of the box, got none for "
        f"{' and '.join(dict.fromkeys(labels))}: relax a constraint or widen the box"
    )
