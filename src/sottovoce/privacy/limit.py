"""What T noisy releases can tell of the saddle point at best, before anything is run."""

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
from sottovoce.problem.agents import Array, read_only
from sottovoce.problem.linear_rows import Matrix
from sottovoce.problem.numeric import Numeric, StateBlock, gram, numeric_of, tangents
from sottovoce.problem.problem import Problem
from sottovoce.problem.sums import Region, Sums

HELD = 1e-6  # a force above this share of the objective's steepest slope holds its row or bound
_SHARE = 1e-3  # of what would move it freely, below which a component counts as held
_FLAT = 1e-10  # curvature below this share of the largest, both across an agent's box, is none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Limit:
    """The local minimax accuracy of x and prices from T releases, as standard deviations.

    No curvature holds the ``flat`` components of x at the saddle point. There the error falls more
    slowly than 1/sqrt(T), and no limit of this kind exists.
    """

    rounds: int
    x_each: Array  # of every component of x
    price_each: Array  # of every price; 0 where no constraint presses
    flat: tuple[int, ...]  # from 0

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
    multipliers) along the directions that no bound and no local row holds, S the slopes of the sums
    and w the averaged noise, of variance ``sigma^2 / T`` (Polyak and Juditsky's asymptotic
    covariance of averaged stochastic approximation). Agents are eliminated one by one, so that a
    system of the size of the sums is left, whatever their number. T is by default what the plan's
    ``hide`` names; ``saddle`` is the saddle point if it is known already.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    instance("plan", plan, NoisePlan, "sv.plan(problem, ...)")
    rounds = plan.named_rounds() if rounds is None else whole("rounds", rounds, least=1)
    if saddle is not None:
        instance("saddle", saddle, ReferenceOptimum, "sv.reference_optimum(problem)")
    plan.require_problem(problem)
    saddle = reference_optimum(problem) if saddle is None else saddle
    if plan.release is None:
        each = _least_deviations(problem, plan, rounds, saddle)
    else:
        each = plan.release.limit(problem, plan, rounds, saddle)
    return Limit(
        rounds=rounds, x_each=read_only(each[0]), price_each=read_only(each[1]), flat=each[2]
    )


def _least_deviations(
    problem: Problem, plan: NoisePlan, rounds: int, saddle: ReferenceOptimum
) -> tuple[Array, Array, tuple[int, ...]]:
    """The least standard deviations of x and of prices, and the flat components of x."""
    system = linearised(problem, saddle)
    sigma = plan.released_sigma / np.sqrt(rounds)
    moved = np.zeros(problem.size)
    for o, dx in system.moves():
        moved += np.square(sigma[o] * dx)
    return np.sqrt(moved), np.sqrt(np.square(system.answer * sigma).sum(axis=1)), system.flat


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linearised:
    """A problem near its saddle point, to first order in an error of the sums."""

    blocks: tuple[StateBlock, ...]
    slopes: Matrix  # S of the sums
    inverses: list[Array]  # H_i^-1 per agent where it may move
    answer: Array  # dlambda / dw, shape (p, p)
    flat: tuple[int, ...]  # components of x that nothing holds
    slope: Array  # the gradient of the objective, shape (N,)
    columns: NDArray[np.int64]  # of the N states in S, which has more for non-smooth terms

    def moves(self) -> Iterator[tuple[int, Array]]:
        """``dx / dw_o = -H^-1 S' answer_o`` for every sum o whose noise moves anything."""
        for o, column in enumerate(self.answer.T):
            if not np.any(column):
                continue
            pulled = self.slopes.T @ column
            dx = np.zeros(pulled.size)
            for block, inverse in zip(self.blocks, self.inverses, strict=True):
                dx[block.index] = -np.einsum("iab,ib->ia", inverse, block.of(pulled)).ravel()
            yield o, dx[self.columns]


def linearised(problem: Problem, saddle: ReferenceOptimum) -> Linearised:
    """Return the system whose solution is how the answer errs where the sums do."""
    sums, price = problem.cloud.sums, saddle_prices(problem, saddle)
    numeric, columns = numeric_of(problem, sums.families), np.arange(problem.size)
    slope = numeric.objective_gradient(saddle.x)
    if sums.costs:
        slope = slope + Numeric(problem.cloud, sums.families).pullback(saddle.x, saddle.cost)
    least = HELD * float(np.max(np.abs(slope)))
    bounded = np.abs(saddle.bound_multipliers) > least
    if is_nonsmooth(problem) or sums.costs:
        # With a variable and rows for every non-smooth term, these hold a state in its corner.
        smooth = smooth_form(problem)
        numeric, inner = numeric_of(smooth.problem, smooth.sums), reference_optimum(smooth.problem)
        bounded = np.abs(inner.bound_multipliers) > least
        # What a constraint holds of a sum with a cost it holds of the state that equals the sum.
        bounded[smooth.copies] |= np.abs((price - saddle.cost)[smooth.priced]) > least
        saddle, columns, sums = inner, smooth.columns, smooth.problem.cloud.sums
    jacobian = numeric.jacobian(saddle.x)
    slopes = jacobian[: sums.count]
    free = (numeric.lower < numeric.upper) & ~bounded
    hessian = numeric.lagrangian_hessian(saddle.x, np.concatenate([price, saddle.local]))
    width = np.where(numeric.upper > numeric.lower, numeric.upper - numeric.lower, 1.0)
    active = numeric.equality.copy()
    active[numeric.rows :] |= np.abs(saddle.local) * _steepest(jacobian[numeric.rows :]) > least
    # Projectors on the directions that no bound and no local row holds, and the Hessians below, are
    # across an agent's box: they depend on the units of rows and columns.
    moves = tangents(numeric.blocks, jacobian.multiply(width).tocsr(), free, active)
    inverses, flat = _inverses(numeric, saddle.x, hessian, moves, width)
    products, values = gram(numeric.blocks, slopes, inverses), numeric.constraints(saddle.x)
    # What a force on a state is as a price: one over the steepest slope of each sum.
    steepest = _steepest(slopes)
    units = 1.0 / np.where(steepest > 0, steepest, np.inf)
    answer = _answers(sums, products, price, values, units * least)
    loose = np.flatnonzero(_loose(numeric.blocks, slopes, inverses, answer, flat & free)[columns])
    return Linearised(
        blocks=numeric.blocks,
        slopes=slopes,
        inverses=inverses,
        answer=answer,
        flat=tuple(int(c) for c in loose),
        slope=slope,
        columns=columns,
    )


def _inverses(
    numeric: Numeric, x: Array, hessian: Matrix, moves: Sequence[Array], width: Array
) -> tuple[list[Array], NDArray[np.bool_]]:
    """``H_i^-1`` per agent where it may move, and which components flat directions move."""
    inverses, flat = [], np.zeros(x.size, dtype=np.bool_)
    across = [
        block.hessians(hessian)
        * block.of(width)[:, :, np.newaxis]
        * block.of(width)[:, np.newaxis, :]
        for block in numeric.blocks
    ]
    force = np.abs(numeric.objective_gradient(x) * width)
    most = max(max(float(np.max(np.abs(h), initial=0.0)) for h in across), float(force.max()))
    for block, h, projector in zip(numeric.blocks, across, moves, strict=True):
        # Next to nothing holds flat directions.
        regular = projector @ h @ projector + _FLAT * most * projector
        inverse = projector @ np.linalg.inv(regular + (np.eye(block.dim) - projector)) @ projector
        diagonal = np.einsum("iaa->ia", inverse)
        flat[block.index] = (diagonal > _SHARE / (_FLAT * most)).ravel()
        unit = block.of(width)
        inverses.append(inverse * unit[:, :, np.newaxis] * unit[:, np.newaxis, :])
    return inverses, flat


def _answers(sums: Sums, G: Array, price: Array, values: Array, least: Array) -> Array:
    """``dlambda / dw``, shape (p, p): how prices answer to an error in the sums."""
    held = (sums.lower == sums.upper) | (np.abs(price) > least)
    regions = [r for r in sums.regions if np.any(np.abs(price[list(r.rows)]) > least[list(r.rows)])]
    inside = {row for r in sums.regions for row in r.rows}
    rows = [o for o in range(sums.count) if o not in inside and held[o]]
    pressed = [*rows, *(row for region in regions for row in region.rows)]
    place = {o: c for c, o in enumerate(pressed)}  # of others the price stays 0
    answers = np.zeros((sums.count, sums.count))
    if not pressed:
        return answers
    p, G = len(pressed), G[np.ix_(pressed, pressed)]
    left, right = np.zeros((p + len(regions),) * 2), np.zeros((p + len(regions), p))
    left[: len(rows), :p], right[: len(rows), : len(rows)] = G[: len(rows)], np.eye(len(rows))
    for m, region in enumerate(regions):
        columns = [place[row] for row in region.rows]
        slope, bent = _derivatives(region, values[list(region.rows)])
        pressure = float(price[list(region.rows)] @ slope) / float(slope @ slope)
        left[columns, :p] = np.eye(p)[columns] + pressure * bent @ G[columns]
        left[columns, p + m] = -slope
        right[np.ix_(columns, columns)] = pressure * bent
        left[p + m, :p], right[p + m, columns] = slope @ G[columns], slope
    scale = 1.0 / np.sqrt(np.maximum(np.abs(left).max(axis=1), 1e-300))
    solved, *_ = np.linalg.lstsq(left * scale[:, np.newaxis], right * scale[:, np.newaxis])
    answers[np.ix_(pressed, pressed)] = solved[:p]
    return answers


def _derivatives(region: Region, u: Array) -> tuple[Array, Array]:
    slope, curvature = np.zeros(len(u)), np.zeros((len(u), len(u)))
    place = {s: k for k, s in enumerate(region.symbols)}
    first, second = gradient(region.phi, region.symbols), hessian(region.phi, region.symbols)
    values = tape((*first.values(), *second.values()), region.symbols)(*u.tolist())
    for s, value in zip(first, values[: len(first)], strict=True):
        slope[place[s]] = value
    for (s, t), value in zip(second, values[len(first) :], strict=True):
        curvature[place[s], place[t]] = curvature[place[t], place[s]] = value
    return slope, curvature


def _loose(
    blocks: Sequence[StateBlock],
    slopes: Matrix,
    inverses: Sequence[Array],
    answer: Array,
    flat: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which of the components that no curvature holds are not held by pressed sums either.

    A force on component c moves it by ``B_cc - v' answer v`` with ``v = S B e_c`` and B the inverse
    of H: next to nothing where sums hold it, as far as B_cc where nothing does.
    """
    loose = np.zeros_like(flat)
    for block, B in zip(blocks, inverses, strict=True):
        if not np.any(flat[block.index]):
            continue
        S = slopes[:, block.index].toarray().reshape(-1, block.count, block.dim)
        v = np.einsum("pia,iab->pib", S, B)
        moved = np.einsum("iaa->ia", B) - np.einsum("pib,pq,qib->ib", v, answer, v, optimize=True)
        loose[block.index] = (moved > _SHARE * np.einsum("iaa->ia", B)).ravel()
    return np.asarray(loose & flat)


def _steepest(slopes: Matrix) -> Array:
    """The largest absolute entry of every row."""
    return np.asarray(abs(slopes).max(axis=1).toarray()).ravel()
