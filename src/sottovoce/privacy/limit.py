"""The asymptotic error of averaged stochastic approximation after T noisy releases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import instance, whole
from sottovoce.certificate.optimum import ReferenceOptimum, reference_optimum, saddle_prices
from sottovoce.certificate.smooth_form import is_nonsmooth, smooth_form
from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.tape import tape
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.groups import Array, read_only
from sottovoce.problem.linear_rows import Matrix
from sottovoce.problem.numeric import Numeric, StateBlock, gram, numeric_of, tangents
from sottovoce.problem.problem import Problem
from sottovoce.problem.sums import Region, Sums

ACTIVE_FORCE = 1e-6  # multiplier times slope, over the objective's largest: above, it is active
_DETERMINED_SHARE = 1e-3  # of what a force moves where nothing determines it: below, something does
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
    system = linearise(problem, saddle)
    sigma = plan.released_sigma / np.sqrt(rounds)
    variance = np.zeros(problem.size)
    for o, dx in system.state_responses():
        variance += np.square(sigma[o] * dx)
    price_variance = np.square(system.price_response * sigma).sum(axis=1)
    return np.sqrt(variance), np.sqrt(price_variance), system.flat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearisedKkt:
    """The KKT system of a problem at its saddle point, to first order in an error w of the sums.

    Attributes:
        blocks: which states belong to which agents.
        sum_jacobian: S.
        inverse_hessians: ``H_i^-1`` of every agent along its free directions, block by block.
        price_response: ``dlambda / dw``, shape (p, p).
        flat: components of x that neither curvature nor constraints determine.
        objective_gradient: of the N states.
        columns: the N states in S, which has more columns for non-smooth terms.
    """

    blocks: tuple[StateBlock, ...]
    sum_jacobian: Matrix
    inverse_hessians: list[Array]
    price_response: Array
    flat: tuple[int, ...]
    objective_gradient: Array
    columns: NDArray[np.int64]

    def state_responses(self) -> Iterator[tuple[int, Array]]:
        """``dx / dw_o = -H^-1 S' dlambda/dw_o`` for every sum o whose error moves anything."""
        for o, dprice in enumerate(self.price_response.T):
            if not np.any(dprice):
                continue
            force = self.sum_jacobian.T @ dprice
            dx = np.zeros(force.size)
            for block, inverse in zip(self.blocks, self.inverse_hessians, strict=True):
                dx[block.index] = -np.einsum("iab,ib->ia", inverse, block.select(force)).ravel()
            yield o, dx[self.columns]


def linearise(problem: Problem, saddle: ReferenceOptimum) -> LinearisedKkt:
    """Return how states and prices at the saddle point respond to an error of the sums."""
    sums, price = problem.cloud.sums, saddle_prices(problem, saddle)
    numeric, columns = numeric_of(problem, sums.families), np.arange(problem.size)
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
        numeric = numeric_of(smooth.problem, sums.families)
        at_bound = np.abs(inner.bound_multipliers) > least_force
        # A constraint that is active for a sum with a cost is a bound of the state that equals it.
        at_bound[smooth.copies] |= np.abs((price - saddle.cost)[smooth.priced]) > least_force
        saddle, columns = inner, smooth.columns
    jacobian = numeric.jacobian(saddle.x)
    sum_jacobian = jacobian[: sums.count]
    free = (numeric.lower < numeric.upper) & ~at_bound
    hessian = numeric.lagrangian_hessian(saddle.x, np.concatenate([price, saddle.local]))
    width = np.where(numeric.upper > numeric.lower, numeric.upper - numeric.lower, 1.0)
    active = numeric.equality.copy()
    force = np.abs(saddle.local) * _largest_entries(jacobian[numeric.rows :])
    active[numeric.rows :] |= force > least_force
    # Projectors on the free directions, and the Hessians below, are across an agent's box, because
    # they depend on the units of rows and columns.
    projectors = tangents(numeric.blocks, jacobian.multiply(width).tocsr(), free, active)
    inverses, flat = _invert_hessians(numeric, saddle.x, hessian, projectors, width)
    products, values = gram(numeric.blocks, sum_jacobian, inverses), numeric.constraints(saddle.x)
    # A force on a state as a price: over the largest slope of each sum.
    largest = _largest_entries(sum_jacobian)
    least_price = 1.0 / np.where(largest > 0, largest, np.inf) * least_force
    price_response = _solve_price_response(sums, products, price, values, least_price)
    flat = _find_undetermined(numeric.blocks, sum_jacobian, inverses, price_response, flat & free)
    return LinearisedKkt(
        blocks=numeric.blocks,
        sum_jacobian=sum_jacobian,
        inverse_hessians=inverses,
        price_response=price_response,
        flat=tuple(np.flatnonzero(flat[columns]).tolist()),
        objective_gradient=objective_gradient,
        columns=columns,
    )


def _invert_hessians(
    numeric: Numeric, x: Array, hessian: Matrix, projectors: Sequence[Array], width: Array
) -> tuple[list[Array], NDArray[np.bool_]]:
    """``H_i^-1`` of every agent along its free directions, and which components have no curvature.

    Flat directions get the curvature ``_FLAT``, so that an inverse exists.
    """
    inverses, flat = [], np.zeros(x.size, dtype=np.bool_)
    across = [
        block.hessians(hessian)
        * block.select(width)[:, :, np.newaxis]
        * block.select(width)[:, np.newaxis, :]
        for block in numeric.blocks
    ]
    force = np.abs(numeric.objective_gradient(x) * width)
    largest = max(max(float(np.max(np.abs(h), initial=0.0)) for h in across), float(force.max()))
    for block, h, projector in zip(numeric.blocks, across, projectors, strict=True):
        regular = projector @ h @ projector + _FLAT * largest * projector
        inverse = projector @ np.linalg.inv(regular + (np.eye(block.dim) - projector)) @ projector
        diagonal = np.einsum("iaa->ia", inverse)
        flat[block.index] = (diagonal > _DETERMINED_SHARE / (_FLAT * largest)).ravel()
        unit = block.select(width)
        inverses.append(inverse * unit[:, :, np.newaxis] * unit[:, np.newaxis, :])
    return inverses, flat


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


def _find_undetermined(
    blocks: Sequence[StateBlock],
    sum_jacobian: Matrix,
    inverses: Sequence[Array],
    price_response: Array,
    flat: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which of the components without curvature active sums do not determine either.

    A force on component c moves it by ``B_cc - v' dlambda/dw v`` with ``v = S B e_c`` and
    ``B = H^-1``: next to nothing where sums determine it, as far as B_cc where nothing does.
    """
    undetermined = np.zeros_like(flat)
    for block, B in zip(blocks, inverses, strict=True):
        if not np.any(flat[block.index]):
            continue
        S = sum_jacobian[:, block.index].toarray().reshape(-1, block.count, block.dim)
        v = np.einsum("pia,iab->pib", S, B)
        freely = np.einsum("iaa->ia", B)
        moved = freely - np.einsum("pib,pq,qib->ib", v, price_response, v, optimize=True)
        undetermined[block.index] = (moved > _DETERMINED_SHARE * freely).ravel()
    return np.asarray(undetermined & flat)


def _largest_entries(matrix: Matrix) -> Array:
    """The largest absolute entry of every row."""
    return np.asarray(abs(matrix).max(axis=1).toarray()).ravel()
