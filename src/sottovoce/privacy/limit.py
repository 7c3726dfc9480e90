"""The asymptotic error of averaged stochastic approximation after T noisy releases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import instance, whole
from sottovoce.certificate.kkt import KktSolver
from sottovoce.certificate.optimum import (
    KERNEL_SHARE,
    ReferenceOptimum,
    kernel_share,
    reference_optimum,
    saddle_prices,
)
from sottovoce.certificate.smooth_form import is_nonsmooth, smooth_form
from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.tape import tape
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.groups import Array, read_only
from sottovoce.problem.linear_rows import Matrix, sparse
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem
from sottovoce.problem.sums import Region, Sums

ACTIVE_FORCE = 1e-6  # multiplier times slope, over the objective's largest: above, it is active
_ROUNDING = 1e-13  # of the largest response across a box: below, it is 0
_FLAT = 1e-10  # curvature over the largest, both across an agent's box: below, there is none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Limit:
    """Asymptotic standard deviations of x and prices, averaged over T noisy releases.

    Those of Polyak and Juditsky's averages on the active set; no lower bound. Errors of few
    rounds may be smaller.

    Attributes:
        rounds: T.
        x_each: of every component of x.
        price_each: of every price; 0 where no constraint is active.
        flat: components of x, from 0, that no curvature determines at the saddle point. There the
            error falls more slowly than 1/sqrt(T), and no limit of this kind exists.
    """

    rounds: int
    x_each: Array
    price_each: Array
    flat: tuple[int, ...]

    @property
    def x(self) -> float:
        """Root-mean-square of |x - x-hat|, without flat directions."""
        return float(np.linalg.norm(self.x_each))

    @property
    def price(self) -> float:
        """Root-mean-square of |lambda - lambda-hat|."""
        return float(np.linalg.norm(self.price_each))


def accuracy_limit(
    problem: Problem,
    plan: NoisePlan,
    rounds: int | None = None,
    *,
    saddle: ReferenceOptimum | None = None,
) -> Limit:
    """Return the asymptotic limit of T releases at the saddle point.

    On the active set, ``H dx + S' dlambda = 0``, ``S dx - du = -w`` and ``dlambda`` in the tangent
    of C's normal cone, with H the Hessian of ``f + lambda'h`` (and of local rows, by their
    multipliers) along the directions that no active bound and no active local row fixes, S the
    Jacobian of the sums and w the averaged noise, of variance ``sigma^2 / T`` (Polyak and
    Juditsky's asymptotic covariance of averaged stochastic approximation). Agents are eliminated
    one by one, so that a system of the size of the sums is left, whatever their number. T is by
    default what the plan's ``hide`` names; ``saddle`` is the saddle point if it is known already.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    instance("plan", plan, NoisePlan, "sv.plan(problem, ...)")
    rounds = plan.named_rounds() if rounds is None else whole("rounds", rounds, least=1)
    if saddle is not None:
        instance("saddle", saddle, ReferenceOptimum, "sv.reference_optimum(problem)")
    plan.require_problem(problem)
    saddle = reference_optimum(problem) if saddle is None else saddle
    if plan.release is None:
        each = _limit_deviations(problem, plan, rounds, saddle)
    else:
        each = plan.release.limit(problem, plan, rounds, saddle)
    return Limit(
        rounds=rounds, x_each=read_only(each[0]), price_each=read_only(each[1]), flat=each[2]
    )


def _limit_deviations(
    problem: Problem, plan: NoisePlan, rounds: int, saddle: ReferenceOptimum
) -> tuple[Array, Array, tuple[int, ...]]:
    """The standard deviations of x and of prices, and the flat components of x."""
    system, sigma = linearise(problem, saddle), plan.released_sigma / np.sqrt(rounds)
    each = (np.linalg.norm(moved * sigma, axis=1) for moved in (system.states, system.prices))
    return *each, system.flat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearisedKkt:
    """How the saddle point of a problem answers, to first order, to an error w of its p sums.

    Attributes:
        states: ``dx / dw``, shape (N, p).
        prices: ``dlambda / dw``, shape (p, p).
        flat: components of x that neither curvature nor constraints determine.
        objective_gradient: of the N states.
    """

    states: Array
    prices: Array
    flat: tuple[int, ...]
    objective_gradient: Array


def linearise(problem: Problem, saddle: ReferenceOptimum) -> LinearisedKkt:
    """Return how states and prices at the saddle point respond to an error of the sums."""
    sums, price = problem.cloud.sums, saddle_prices(problem, saddle)
    numeric, columns = Numeric(problem, sums.families, local=True), np.arange(problem.size)
    objective_gradient = numeric.objective_gradient(saddle.x)
    largest_force = float(np.max(np.abs(objective_gradient)))
    if sums.costs:
        cost_slope = Numeric(problem.cloud, sums.families).pullback(saddle.x, saddle.cost)
        # The sum of both is 0 where x_hat is inside all bounds and rows.
        largest_force = max(largest_force, float(np.max(np.abs(cost_slope))))
        objective_gradient = objective_gradient + cost_slope
    least_force = ACTIVE_FORCE * largest_force
    at_bound = np.abs(saddle.bound_multipliers) > least_force
    if is_nonsmooth(problem) or sums.costs:
        # Every non-smooth term becomes a variable with rows, which fix a state in a corner of it.
        smooth = smooth_form(problem)
        inner, sums = reference_optimum(smooth.problem), smooth.problem.cloud.sums
        numeric = Numeric(smooth.problem, sums.families, local=True)
        at_bound = np.abs(inner.bound_multipliers) > least_force
        # A constraint that is active for a sum with a cost is a bound of the state that equals it.
        at_bound[smooth.copies] |= np.abs((price - saddle.cost)[smooth.priced]) > least_force
        saddle, columns = inner, smooth.columns
    free = (numeric.lower < numeric.upper) & ~at_bound
    states, prices, flat = _responses(numeric, sums, saddle, price, (free, least_force))
    return LinearisedKkt(
        states=states[columns],
        prices=prices,
        flat=tuple(np.flatnonzero(flat[columns]).tolist()),
        objective_gradient=objective_gradient,
    )


def _responses(
    numeric: Numeric,
    sums: Sums,
    saddle: ReferenceOptimum,
    price: Array,
    active: tuple[NDArray[np.bool_], float],
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """``dx / dw``, ``dlambda / dw`` and the flat states of a smooth problem.

    ``active`` has the states that no bound fixes, and the least force of an active row.
    """
    free, least_force = active
    # States across their boxes, because curvature and slopes depend on their units; others stay 0.
    width = np.where(free, numeric.upper - numeric.lower, 0.0)
    across = sparse.diags_array(width)
    jacobian = numeric.jacobian(saddle.x)
    local = np.abs(saddle.local) * _largest_entries(jacobian[numeric.rows :]) > least_force
    local |= numeric.equality[numeric.rows :]
    S, rows = jacobian[: sums.count] @ across, jacobian[numeric.rows :][local] @ across
    hessian = numeric.lagrangian_hessian(saddle.x, np.concatenate([price, saddle.local]))
    hessian = across @ hessian @ across
    force = np.abs(numeric.objective_gradient(saddle.x) * width)
    flat_curvature = _FLAT * max(float(np.max(abs(hessian).data, initial=0.0)), float(force.max()))
    solver = KktSolver()
    # Flat directions get a curvature, so that an inverse exists.
    least_curvature = sparse.diags_array(np.where(free, flat_curvature, 1.0))
    solver.factor(hessian + least_curvature, rows)

    def state_response(forces: Array) -> Array:
        return solver.solve(-forces, np.zeros((rows.shape[0], forces.shape[1])))[0]

    force_response, values = state_response(S.T.toarray()), numeric.constraints(saddle.x)
    # A force on a state as a price: over the largest slope of each sum.
    largest = _largest_entries(jacobian[: sums.count])
    least_price = 1.0 / np.where(largest > 0, largest, np.inf) * least_force
    prices = _solve_price_response(sums, S @ force_response, price, values, least_price)

    def flat_component(v: Array) -> Array:
        moved = state_response(v)
        return np.asarray(flat_curvature * (moved - force_response @ (prices @ (S @ moved))))

    flat = free & (kernel_share(flat_component, free.size) > KERNEL_SHARE)
    moved = -(force_response @ prices)
    moved[np.abs(moved) < _ROUNDING * np.max(np.abs(moved), initial=0.0)] = 0.0
    return width[:, np.newaxis] * moved, prices, flat


def _solve_price_response(
    sums: Sums, gram_matrix: Array, price: Array, values: Array, least_price: Array
) -> Array:
    """``dlambda / dw``, shape (p, p): how prices respond to an error of the sums.

    With ``G = S H^-1 S'`` an active row has ``G dlambda = w``. In an active region, whose prices
    are ``lambda = m grad phi(u)``, ``(I + m hess phi G) dlambda - grad phi dm = m hess phi w`` and
    ``grad phi' G dlambda = grad phi' w``.
    """
    active = (sums.lower == sums.upper) | (np.abs(price) > least_price)
    regions = [
        r for r in sums.regions if np.any(np.abs(price[list(r.rows)]) > least_price[list(r.rows)])
    ]
    in_regions = {row for r in sums.regions for row in r.rows}
    rows = [o for o in range(sums.count) if o not in in_regions and active[o]]
    priced = [*rows, *(row for region in regions for row in region.rows)]
    place = {o: c for c, o in enumerate(priced)}  # the price of others stays 0
    response = np.zeros((sums.count, sums.count))
    if not priced:
        return response
    p, G = len(priced), gram_matrix[np.ix_(priced, priced)]
    left, right = np.zeros((p + len(regions),) * 2), np.zeros((p + len(regions), p))
    left[: len(rows), :p], right[: len(rows), : len(rows)] = G[: len(rows)], np.eye(len(rows))
    for m, region in enumerate(regions):
        columns = [place[row] for row in region.rows]
        slope, curvature = _differentiate_region(region, values[list(region.rows)])
        multiplier = float(price[list(region.rows)] @ slope) / float(slope @ slope)
        left[columns, :p] = np.eye(p)[columns] + multiplier * curvature @ G[columns]
        left[columns, p + m] = -slope
        right[np.ix_(columns, columns)] = multiplier * curvature
        left[p + m, :p], right[p + m, columns] = slope @ G[columns], slope
    scale = 1.0 / np.sqrt(np.maximum(np.abs(left).max(axis=1), 1e-300))  # an empty row stays 0
    solution, *_ = np.linalg.lstsq(left * scale[:, np.newaxis], right * scale[:, np.newaxis])
    response[np.ix_(priced, priced)] = solution[:p]
    return response


def _differentiate_region(region: Region, u: Array) -> tuple[Array, Array]:
    """The gradient and the Hessian of phi at u."""
    slope, curvature = np.zeros(len(u)), np.zeros((len(u), len(u)))
    place = {s: k for k, s in enumerate(region.symbols)}
    first, second = gradient(region.phi, region.symbols), hessian(region.phi, region.symbols)
    values = tape((*first.values(), *second.values()), region.symbols)(*u.tolist())
    for s, value in zip(first, values[: len(first)], strict=True):
        slope[place[s]] = value
    for (s, t), value in zip(second, values[len(first) :], strict=True):
        curvature[place[s], place[t]] = curvature[place[t], place[s]] = value
    return slope, curvature


def _largest_entries(matrix: Matrix) -> Array:
    """The largest absolute entry of every row."""
    return np.asarray(abs(matrix).max(axis=1).toarray()).ravel()
