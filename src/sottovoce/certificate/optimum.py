"""The reference saddle point (x-hat, mu-hat), against which every private run is measured.

It is computed over the original box X with all private data in one place: a reference for errors,
never a release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.arguments import instance
from sottovoce.certificate.kkt import InteriorPoint, KktSolver, Solution
from sottovoce.certificate.smooth_form import SmoothForm, smooth_form
from sottovoce.errors import CertificateError, ConvexityError
from sottovoce.formula.derive import derivative
from sottovoce.formula.tape import tape
from sottovoce.problem.constraints import numbered
from sottovoce.problem.groups import Array, read_only
from sottovoce.problem.linear_rows import Matrix
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem

TOLERANCE = 1e-9  # the largest residual of a saddle point, in the units of x and mu
MAX_POLISH = 200  # the most Newton steps behind the interior-point method
PATIENCE = 3  # Newton steps in a row that may be worse than the best, while the active set settles
STRICT = 1e-6  # below this a multiplier and its slack both count as zero
ANGLE = 1e-12  # the square of an angle between slopes that counts as none
CURVATURE = 1e-10  # a second derivative below this share of the largest counts as none
KERNEL_SHARE = 1e-3
"""The part of a kernel above which it moves an unknown: shares met are above 0.1 or below 1e-4."""
MAX_ROUNDING = 1e-3  # the largest residual, relative to x, that rounding may excuse
PROBES = 4  # random vectors by which a kernel shows: almost surely each of them has a part in it


_known: WeakKeyDictionary[Problem, ReferenceOptimum] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReferenceOptimum:
    """A saddle point of ``L = sum_i f_i + mu' g`` on ``X x {mu >= 0}``; mu is free for equalities.

    Attributes:
        x: x-hat, shape (N,).
        mu: mu-hat, shape (m,).
        local: multipliers of local rows in the order of ``Numeric``'s, rows of non-smooth terms
            included.
        cost: dU/ds at s(x-hat), shape (p,), of the public cost U of the sums; 0 without one.
        bound_multipliers: dL/dx at x-hat, shape (N,): positive where a lower bound is active,
            negative where an upper bound is, 0 inside.
        objective: ``sum_i f_i + U`` at x-hat.
        residual: ``max(|x - P_X(x - dL/dx)|, |mu - max(mu + g, 0)|)``.
        active: the rows j, from 0, with ``g_j = 0``.
        dependent: active rows, from 0, whose gradients are linearly dependent on the states that
            no bound and no local row fixes: their multipliers need not be unique.
        margin: the least of ``max(mu_j, -g_j)`` over the rows and of the larger of multiplier and
            distance over the bounds; complementarity is strict if it is positive.
        flat: the states, from 0, that a direction moves which keeps all rows and bounds with a
            positive multiplier and along which L has no second derivative.
        iterations: Newton steps taken.
    """

    x: Array
    mu: Array
    local: Array
    cost: Array
    bound_multipliers: Array
    objective: float
    residual: float
    active: tuple[int, ...]
    dependent: tuple[int, ...]
    margin: float
    flat: tuple[int, ...]
    iterations: int

    @property
    def regular(self) -> bool:
        """Whether the active rows' gradients are linearly independent: then mu-hat is unique."""
        return not self.dependent

    @property
    def strict(self) -> bool:
        """Whether complementarity is strict: no row and no bound is active without a force."""
        return self.margin > STRICT

    @property
    def unique(self) -> bool:
        """Whether second derivatives prove x-hat unique; if not, only higher orders decide."""
        return not self.flat


def reference_optimum(problem: Problem) -> ReferenceOptimum:
    """Return the saddle point ``(x-hat, mu-hat) = arg min_{x in X} max_{mu >= 0} L(x, mu)``.

    It is kept as long as the problem is. An interior-point method comes near it; Newton steps on
    the natural residual, with the active rows and bounds it shows, then go on until they no longer
    move, because a small residual says little where the objective is flat (the paper's fifth
    agent).

    Raises:
        ProblemError: if the constraints have no common point in X.
        ConvexityError: if the objective or the constraints are not convex where it looked.
        CertificateError: if the residual does not come down to 1e-9, or to what float64 can
            resolve for numbers of the problem's size.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    for group, code in zip(problem.groups, problem.code, strict=True):
        if code is not None:
            raise CertificateError(
                f"a saddle point needs objectives as formulas, got code for {group.name}: run "
                "sv.simulate without noise, whose answer is near it"
            )
    saddle = _known.get(problem)
    if saddle is None:
        saddle = _known[problem] = _as_stated(smooth_form(problem))
    return saddle


def known_saddle(problem: Problem, *, most: int | None = None) -> ReferenceOptimum | None:
    """Return the saddle point; None where there is none to be had, or more than ``most`` states."""
    if most is not None and problem.size > most:
        return None
    try:
        return reference_optimum(problem)
    except CertificateError:
        return None


def _as_stated(smooth: SmoothForm) -> ReferenceOptimum:
    """The saddle point of a non-smooth problem, from that of its smooth form."""
    saddle = _smooth_saddle(smooth.problem)
    cost = np.zeros(smooth.problem.cloud.sums.count)
    # The multipliers of the rows ``s_o - u_o = 0``, by their sums.
    cost[smooth.priced] = saddle.mu[smooth.rows : smooth.rows + smooth.priced.size]
    place = {column: k for k, column in enumerate(smooth.columns.tolist())}
    return replace(
        saddle,
        x=read_only(saddle.x[smooth.columns]),
        mu=read_only(saddle.mu[: smooth.rows]),
        cost=read_only(cost),
        bound_multipliers=read_only(saddle.bound_multipliers[smooth.columns]),
        active=tuple(j for j in saddle.active if j < smooth.rows),
        dependent=tuple(j for j in saddle.dependent if j < smooth.rows),
        flat=tuple(place[c] for c in saddle.flat if c in place),
    )


def _smooth_saddle(problem: Problem) -> ReferenceOptimum:
    numeric = Numeric(problem, local=True)
    method = InteriorPoint(numeric)
    for approximate in method.iterate((1e-6, 1e-8, TOLERANCE)):
        saddle, residual = _polish(method, approximate)
        if residual <= TOLERANCE:
            break
    jacobian = numeric.jacobian(saddle.x)
    if not residual <= max(TOLERANCE, _rounding(saddle, jacobian)):
        raise CertificateError(
            f"the saddle point must have a residual of at most {TOLERANCE:g}, got {residual:.1e} "
            f"after {saddle.iterations} iterations: check that the problem is convex and strictly "
            "feasible, and state it in units that keep numbers near 1"
        )
    method.require_convex(saddle.x, saddle.mu)
    _require_minimum(numeric, saddle)
    return _describe(numeric, saddle, jacobian, residual)


def _polish(method: InteriorPoint, initial: Solution) -> tuple[Solution, float]:
    """Newton steps until they no longer move; a few may be bad while the active set settles."""
    numeric = method.numeric
    best = current = initial
    least = numeric.residual(initial.x, initial.mu)
    patience = PATIENCE
    for _ in range(MAX_POLISH):
        try:
            new = _newton(method, current)
        except np.linalg.LinAlgError:
            break
        residual = numeric.residual(new.x, new.mu)
        patience = PATIENCE if residual <= max(least, 1e-3 * TOLERANCE) else patience - 1
        if patience == 0 or not np.isfinite(residual):
            break
        step = float(np.max(np.abs(new.x - current.x) / (1.0 + np.abs(current.x))))
        current = new
        if patience == PATIENCE:
            best, least = new, residual
            if step <= 1e-2 * TOLERANCE:
                break
    return best, least


def _newton(method: InteriorPoint, current: Solution) -> Solution:
    """One semismooth Newton step: rows and bounds that the residual shows active hold exactly."""
    numeric, free = method.numeric, method.free
    target = current.x - numeric.lagrangian_gradient(current.x, current.mu)
    rows = numeric.equality | (current.mu + numeric.constraints(current.x) > 0.0)
    low, high = target <= numeric.lower, target >= numeric.upper
    x = np.where(low, numeric.lower, np.where(high, numeric.upper, current.x))
    mu = np.where(rows, current.mu, 0.0)
    active = np.concatenate([rows, low[free], high[free]]).astype(np.float64)
    forces = np.append(mu, np.zeros(2 * free.size))
    point = method.iterate_at(x, np.zeros_like(forces), forces)
    slopes = sparse.diags_array(active) @ point.A
    method.solver.factor(method.hessian(x, mu), slopes, 1.0 - active)
    dx, dmu = method.solver.solve(point.dual, active * point.G)
    moved = np.clip(x + dx, numeric.lower, numeric.upper)
    after = mu + dmu[: mu.size]
    after = np.where(numeric.equality, after, np.maximum(after, 0.0))
    return Solution(moved, after, current.iterations + 1)


def _require_minimum(numeric: Numeric, saddle: Solution) -> None:
    """Refuse if L is lower in a corner or the middle of X, which convexity would rule out."""
    least = numeric.lagrangian(saddle.x, saddle.mu)
    for x in (numeric.lower, numeric.upper, 0.5 * (numeric.lower + numeric.upper)):
        if numeric.lagrangian(x, saddle.mu) < least - TOLERANCE * (1.0 + abs(least)):
            raise ConvexityError(
                "the Lagrangian must be convex, got a lower value elsewhere in the box than where "
                "its gradient vanishes: certify the problem to see which formula bends downwards"
            )


def _rounding(saddle: Solution, jacobian: Matrix) -> float:
    """What float64 may add to the residual, which says nothing where it would hide x itself."""
    sizes = (saddle.x, saddle.mu, jacobian @ saddle.x, jacobian.T @ saddle.mu)
    size_x, *others = (float(np.max(np.abs(v))) for v in sizes)
    rounding = 32.0 * float(np.finfo(np.float64).eps) * max(size_x, *others)
    return rounding if rounding <= MAX_ROUNDING * (1.0 + size_x) else 0.0


def _describe(
    numeric: Numeric, saddle: Solution, jacobian: Matrix, residual: float
) -> ReferenceOptimum:
    x, mu, m = saddle.x, saddle.mu, numeric.rows
    g, multipliers = numeric.constraints(x), numeric.lagrangian_gradient(x, mu)
    distance = np.minimum(x - numeric.lower, numeric.upper - x)
    movable = numeric.upper > numeric.lower
    bounds = np.maximum(np.abs(multipliers), distance)[movable]
    forces = np.maximum(mu, -g)[~numeric.equality]
    active = numeric.equality | (mu + g > 0.0) | (g >= -TOLERANCE)
    inside = movable & (distance > TOLERANCE)
    at_active_bound = movable & ~inside & (np.abs(multipliers) > STRICT)
    return ReferenceOptimum(
        x=read_only(x),
        mu=read_only(mu[:m]),
        local=read_only(mu[m:]),
        cost=read_only([]),
        bound_multipliers=read_only(multipliers),
        objective=numeric.objective(x),
        residual=residual,
        active=_indices(active[:m]),
        dependent=_dependent(numeric, jacobian, inside, active),
        margin=float(min(np.min(forces, initial=np.inf), np.min(bounds, initial=np.inf))),
        flat=_flat(numeric, saddle, jacobian, movable & ~at_active_bound),
        iterations=saddle.iterations,
    )


def _indices(mask: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())


def _dependent(
    numeric: Numeric, jacobian: Matrix, free: NDArray[np.bool_], active: NDArray[np.bool_]
) -> tuple[int, ...]:
    """The active rows j of g in some ``w`` with ``w'A = 0``, A the slopes of all active rows."""
    solver, none = KktSolver(), np.zeros((free.size, PROBES))
    solver.factor(sparse.eye_array(free.size), _unit_slopes(jacobian, active, free), ANGLE)
    share = kernel_share(lambda w: solver.solve(none, ANGLE * w)[1], active.size)
    return _indices((active & (share > KERNEL_SHARE))[: numeric.rows])


def _flat(
    numeric: Numeric, saddle: Solution, jacobian: Matrix, free: NDArray[np.bool_]
) -> tuple[int, ...]:
    """The free states moved by directions v with ``v' H v = 0`` and ``J_j v = 0`` if mu_j > 0."""
    hessian, solver = numeric.lagrangian_hessian(saddle.x, saddle.mu), KktSolver()
    moves = sparse.diags_array(free * 1.0)
    largest = float(np.max(np.abs(hessian.data), initial=0.0)) or 1.0
    shifted = moves @ hessian @ moves / largest + sparse.diags_array(np.where(free, CURVATURE, 1.0))
    strongly_active = numeric.equality | (saddle.mu > STRICT)
    solver.factor(shifted, _unit_slopes(jacobian, strongly_active, free), ANGLE)
    none, shift = np.zeros((strongly_active.size, PROBES)), CURVATURE * free[:, np.newaxis]
    share = kernel_share(lambda v: solver.solve(-shift * v, none)[0], free.size)
    return _indices(free & (share > KERNEL_SHARE))


def kernel_share(shrink: Callable[[Array], Array], size: int) -> Array:
    """Return how much the kernel of a matrix M moves each unknown, from ``shrink = d (M + d)^-1``.

    It shrinks the component of an eigenvalue e to ``d / (d + e)`` of it: of a vector what is left
    after three times is its part in the kernel. A few random ones have a part everywhere.
    """
    probes = np.random.default_rng(0).normal(size=(PROBES, size)).T
    return np.asarray(np.abs(shrink(shrink(shrink(probes)))).max(axis=1))


def _unit_slopes(jacobian: Matrix, rows: NDArray[np.bool_], free: NDArray[np.bool_]) -> Matrix:
    """The slopes of some rows by the free states, of length 1 each; 0 for other rows."""
    slopes = sparse.diags_array(rows * 1.0) @ jacobian @ sparse.diags_array(free * 1.0)
    lengths = np.sqrt(np.asarray(slopes.power(2).sum(axis=1)).ravel())
    return sparse.diags_array(1.0 / np.where(lengths > 0.0, lengths, 1.0)) @ slopes


def saddle_prices(problem: Problem, saddle: ReferenceOptimum) -> Array:
    """Return lambda_hat, shape (p,): ``sum_o lambda_o dh_o/dx = d(mu'g + U)/dx`` at x_hat.

    For a constraint that is one sum as stated it is the multiplier; for a region of several sums
    it is ``c dphi/du`` with c such that both sides agree.
    """
    sums = problem.cloud.sums
    prices = np.array(saddle.cost)
    mixing: list[tuple[int, int]] = []
    for (row, family), origin in zip(numbered(problem.constraints), sums.origins, strict=True):
        if origin.as_stated:
            prices[origin.first : origin.first + family.rows] += saddle.mu[row : row + family.rows]
        else:
            mixing += [(row + r, origin.first + r) for r in range(family.rows)]
    if not mixing:
        return prices
    regions = {region.stated: region for region in sums.regions}
    stated = Numeric(problem).jacobian(saddle.x)
    coupling = Numeric(problem.cloud, sums.families)
    values, slopes = coupling.constraints(saddle.x), coupling.jacobian(saddle.x)
    for row, single in mixing:
        weights = np.zeros(sums.count)
        weights[single] = 1.0
        if (region := regions.get(row)) is not None:
            rows = list(region.rows)
            gradient = tape([derivative(region.phi, s) for s in region.symbols], region.symbols)
            weights[rows] = gradient(*values[rows].tolist())
        pulled = slopes.T @ weights
        size = float(pulled @ pulled)
        if size > 0.0:
            force = stated[[row]].toarray()[0]
            prices += saddle.mu[row] * float(force @ pulled) / size * weights
    return prices
