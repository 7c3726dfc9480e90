"""The outputs that a plan states, ``o = F(x) + w``, and the pair of states they distinguish best.

An audit compares the deployed code with them. They are written from the statement of the problem,
its sums and the plan, and share no evaluator with agents and cloud, so that their errors show. The
second half searches for the two states of one agent that F separates best:

    maximise  || diag(1/sigma) (F(x with q) - F(x with p)) ||    over x in D,  |q - p| <= reach

A sum moves by the agent's own contribution, so that the search is over its own two states. For a
release of states the others' behaviours matter: adjacency fixes them to any, so a game puts them
where they are worst. The search climbs from many corners (L-BFGS-B). Its result is attained: a
lower bound on the supremum, never an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias, final

import numpy as np
import scipy.sparse as sparse
from scipy.optimize import minimize

from sottovoce.formula.canonical import add
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import Expression, Op, number
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Integers
from sottovoce.problem.groups import (
    Array,
    Group,
    lower_bounds,
    read_only,
    state_columns,
    upper_bounds,
)
from sottovoce.problem.linear_rows import Weights
from sottovoce.problem.problem import CloudView
from sottovoce.problem.sums import contributions

_BLOCK_STATES = 2**18  # evaluated at once: columns that fit the cache

# The search for the worst pair: enough for nine tenths of the claim, which
# tests/study/test_worst_pair.py demands for every problem there.
_START_CANDIDATES = 512  # corners and random points, of which the most promising climb
_CANDIDATES = 8  # that climb
_DIFFERENCE = 1e-5  # of a coordinate's width: of the difference quotients that climbing follows

_Function: TypeAlias = Callable[..., list[Array]]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReleasedOutputs:
    """``x -> F(x)`` of all outputs that get noise, in the order of a release."""

    sigma: Array  # the stated standard deviation of every output; ``grid`` is its public grid
    grid: Array
    lower: Array  # lower bounds of the states of x; ``upper`` their upper bounds
    upper: Array
    function: Callable[[Array], Array]  # F: (count, states) -> (count, outputs)

    def __call__(self, points: Array) -> Array:
        """Return F at points of shape (count, states), as an array (count, outputs)."""
        size = max(1, _BLOCK_STATES // max(1, self.lower.size))
        with np.errstate(all="ignore"):
            blocks = [self.function(points[k : k + size]) for k in range(0, len(points), size)]
        return np.concatenate(blocks)

    def standardised(self, points: Array, released: Array) -> Array:
        """Return the noise of releases at points, in units of sigma."""
        return np.asarray((released - self(points)) / self.sigma)

    def shifts(self, begin: Array, end: Array) -> Array:
        """Return ``||diag(1/sigma) (F(end) - F(begin))||`` for each pair of points."""
        return np.asarray(np.linalg.norm((self(end) - self(begin)) / self.sigma, axis=1))


def released_outputs(plan: NoisePlan) -> ReleasedOutputs:
    """Return what the plan's rounds release, as a function of all states."""
    noisy = [o for o in plan.outputs if o.sigma > 0]
    grid = np.array([o.grid for o in noisy])
    return ReleasedOutputs(
        sigma=np.array([o.sigma for o in noisy]),
        grid=grid,
        lower=lower_bounds(plan.domain),
        upper=upper_bounds(plan.domain),
        function=_function_of_release(plan)
        if plan.release is not None
        else _function_of_sums(grid, list(_group_contributions(plan))),
    )


def agent_outputs(plan: NoisePlan, agent: int) -> tuple[ReleasedOutputs, slice]:
    """Return outputs as an agent moves them, and the columns of its own states.

    A sum moves by an agent's own contribution, whatever the others do: it is a function of the
    agent's own states alone. How an agent moves values and gradients depends on the others.
    """
    outputs, columns = released_outputs(plan), agent_columns(plan.cloud, agent)
    if plan.release is not None:
        return outputs, columns
    index, member = plan.cloud.locate(agent - 1)
    name = plan.cloud.groups[index].name
    shares = [
        contribution.of_agent(member)
        for contribution in _group_contributions(plan)
        if contribution.group.name == name
    ]
    lower, upper = outputs.lower[columns], outputs.upper[columns]
    moved = replace(
        outputs, lower=lower, upper=upper, function=_function_of_sums(outputs.grid, shares)
    )
    return moved, slice(0, lower.size)


def agent_columns(cloud: CloudView, agent: int) -> slice:
    """Return the columns of agent number ``agent``, from 1, in the vector of all states."""
    index, member = cloud.locate(agent - 1)
    dim, first = cloud.groups[index].dim, state_columns(cloud.groups)[index].start
    return slice(first + member * dim, first + (member + 1) * dim)


def _function_of_release(plan: NoisePlan) -> Callable[[Array], Array]:
    """``F(x) = (g(x), dg/dx(x))``: a release that a cloud computes from raw states.

    It knows neither fleets nor equalities, so every row is one formula.
    """
    symbols = [s for group in plan.cloud.groups for s in group.symbols]
    g = [
        add(formula, number(offset))
        for family in plan.cloud.constraints
        for formula, offset in zip(family.named, family.offset, strict=True)
    ]
    formulas = [
        g[o.row] if o.column is None else derivative(g[o.row], symbols[o.column])
        for o in plan.outputs
        if o.sigma > 0
    ]
    function = _compile(symbols, formulas)
    return lambda points: np.stack(
        [np.broadcast_to(v, (len(points),)) for v in function(*points.T)], axis=1
    )


def _function_of_sums(
    grid: Array, shares: Sequence[_GroupContribution]
) -> Callable[[Array], Array]:
    """``F_o(x) = grid_o sum_i round(h_oi(x_i) / grid_o)``: contributions, rounded and added up."""

    def sums(points: Array) -> Array:
        steps = np.zeros((len(points), grid.size))
        for contribution in shares:
            for o, values in contribution.contributions(points):
                steps[:, o] += np.rint(values / grid[o]).sum(axis=1)
        return np.asarray(steps * grid)

    return sums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GroupContribution:
    """What the agents of a group add to some sums: ``W[r, i] h_t(x_i)`` to ``rows[r, t]``."""

    group: Group
    first: int  # the column of the group's first state
    function: _Function  # all h_t, of a state's components and the parameters
    rows: Integers  # the outputs, -1 for one without noise
    weights: Weights  # W; None for ones

    def of_agent(self, member: int) -> _GroupContribution:
        """Return the share of one agent of the group, whose states come first."""
        weights = None if self.weights is None else self.weights[:, [member]]
        return replace(self, group=self.group.some(np.array([member])), first=0, weights=weights)

    def contributions(self, points: Array) -> Iterator[tuple[int, Array]]:
        """Yield outputs, and what each agent adds to them at each point."""
        group = self.group
        end = self.first + group.count * group.dim
        x = points[:, self.first : end].reshape(len(points), group.count, group.dim)
        values = self.function(*np.moveaxis(x, 2, 0), *group.parameters.values())
        for t, value in enumerate(values):
            by_agent = np.broadcast_to(value, x.shape[:2])
            for r, o in enumerate(self.rows[:, t]):
                if o >= 0:
                    yield int(o), _weigh(by_agent, self.weights, r)


def _weigh(values: Array, weights: Weights, row: int) -> Array:
    if weights is None:
        return values
    if sparse.issparse(weights):
        begin, end = weights.indptr[row : row + 2]
        return np.asarray(values[:, weights.indices[begin:end]] * weights.data[begin:end])
    return np.asarray(values * weights[row])


def _group_contributions(plan: NoisePlan) -> Iterator[_GroupContribution]:
    sums, noisy = plan.cloud.sums, plan.sigma > 0
    output = np.where(noisy, np.cumsum(noisy) - 1, -1)  # of every sum, -1 without noise
    names = [group.name for group in plan.domain]
    placed = zip(plan.domain, state_columns(plan.domain), strict=True)
    groups = dict(zip(names, placed, strict=True))

    def contribution(
        name: str, formulas: Sequence[Expression], rows: Integers, weights: Weights = None
    ) -> _GroupContribution:
        group, columns = groups[name]
        return _GroupContribution(
            group=group,
            first=columns.start,
            function=_compile([*group.symbols, *group.parameters], formulas),
            rows=output[rows],
            weights=sparse.csr_array(weights) if sparse.issparse(weights) else weights,
        )

    for group in plan.domain:
        terms = contributions(sums, group) if group.count == 1 else {}
        if terms:
            yield contribution(
                group.name, list(terms.values()), np.array([list(terms)], dtype=np.int64)
            )
    begin = 0
    for family in sums.families:
        for part in family.sums:
            rows = begin + np.arange(part.rows).reshape(-1, len(part.terms))
            yield contribution(part.group.name, part.terms, rows, part.weights)
        begin += family.rows


def _compile(arguments: Sequence[Expression], formulas: Sequence[Expression]) -> _Function:
    """All formulas as one function of their arguments, by a recursion of this module's own."""

    def function(*arrays: Array) -> list[Array]:
        values = dict(zip(arguments, arrays, strict=True))
        with np.errstate(all="ignore"):
            return [_evaluate(formula, values) for formula in formulas]

    return function


def _evaluate(expr: Expression, values: dict[Expression, Array]) -> Array:
    if expr.is_number:
        return np.asarray(float(expr))
    if expr not in values:
        operands = [_evaluate(a, values) for a in expr.args]
        values[expr] = np.asarray(_OPERATIONS[expr.op](operands, expr.value))
    return values[expr]


def _norm(vector: Sequence[Array]) -> Array:
    return np.asarray(np.sqrt(sum(a * a for a in vector)))


def _inner_over_length(vectors: Sequence[Array]) -> Array:
    half = len(vectors) // 2
    length = _norm(vectors[:half])
    inner = sum(a * b for a, b in zip(vectors[:half], vectors[half:], strict=True))
    return np.where(length > 0.0, inner / np.where(length > 0.0, length, 1.0), 0.0)


_OPERATIONS: dict[str, Callable[[list[Array], Any], Array | float]] = {
    Op.ADD: lambda a, _: sum(a),
    Op.MUL: lambda a, _: math.prod(a),
    Op.POW: lambda a, c: np.power(a[0], float(c)),
    Op.EXP: lambda a, _: np.exp(a[0]),
    Op.LOG: lambda a, _: np.log(a[0]),
    Op.ABS: lambda a, _: np.abs(a[0]),
    Op.SIGN: lambda a, _: np.sign(a[0]),
    Op.MAX: lambda a, _: reduce(np.maximum, a),
    Op.WHERE: lambda a, _: np.where(a[0] > 0.0, a[1], a[2]),
    Op.NORM: lambda a, _: _norm(a),
    Op.NORM_SLOPE: lambda a, _: _inner_over_length(a),
    Op.HUBER: lambda a, m: np.where(
        np.abs(a[0]) <= m, a[0] * a[0], float(m) * (2.0 * np.abs(a[0]) - float(m))
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorstPair:
    """Two adjacent states of an agent, among states of the others where they differ most.

    F moves by ``shift``, in units of the noise, from ``begin`` to ``end``: all states that it is a
    function of, with the first and with the second state of the agent.
    """

    begin: Array
    end: Array
    shift: float


def worst_pair(outputs: ReleasedOutputs, columns: slice, reach: float) -> WorstPair:
    """Search the domain for the pair of an agent's states that moves the outputs most.

    They are at most ``reach`` apart, in l2; ``columns`` are the agent's.
    """
    search = _Search(outputs, columns, reach)
    begin, end = search.pairs(np.stack([search.climb(start) for start in search.draw_starts()]))
    shifts = outputs.shifts(begin, end)
    best = int(np.argmax(shifts))
    return WorstPair(
        begin=read_only(begin[best]), end=read_only(end[best]), shift=float(shifts[best])
    )


@final
class _Search:
    """Candidates (count, states + d): all states, and the step of the agent's own to its second."""

    def __init__(self, outputs: ReleasedOutputs, columns: slice, reach: float) -> None:
        width = outputs.upper - outputs.lower
        self.outputs, self.columns = outputs, columns
        self.low, self.high = outputs.lower[columns], outputs.upper[columns]
        self.reach = min(reach, float(np.linalg.norm(width[columns])))
        longest = np.minimum(self.reach, width[columns])
        self.lower = np.append(outputs.lower, -longest)
        self.upper = np.append(outputs.upper, longest)

    def pairs(self, candidates: Array) -> tuple[Array, Array]:
        """Return both points of every pair; the second stays in the box, no further than reach."""
        points, steps = np.split(candidates, [self.outputs.lower.size], axis=1)
        length = np.linalg.norm(steps, axis=1, keepdims=True)
        shrunk = steps * np.minimum(1.0, self.reach / np.where(length > 0, length, 1.0))
        end = points.copy()
        end[:, self.columns] = np.clip(points[:, self.columns] + shrunk, self.low, self.high)
        return points, end

    def score(self, candidates: Array) -> Array:
        """Return the shift of every pair; one without a value counts as nothing."""
        shifts = self.outputs.shifts(*self.pairs(candidates))
        return np.where(np.isfinite(shifts), shifts, 0.0)

    def draw_starts(self) -> Array:
        """Return the most promising of many corners and random points."""
        generator = np.random.default_rng(0)
        low, high = self.outputs.lower, self.outputs.upper
        share = generator.random((_START_CANDIDATES, low.size))
        kind = generator.random(share.shape)
        share = np.where(kind < 0.4, 0.0, np.where(kind < 0.8, 1.0, share))
        points = np.clip(low + share * (high - low), low, high)
        inward = (self.low + self.high) / 2.0 - points[:, self.columns]
        dim = inward.shape[1]
        axes = np.eye(dim)[generator.integers(dim, size=_START_CANDIDATES)]
        directions = np.where(generator.random((_START_CANDIDATES, 1)) < 0.5, inward, axes * inward)
        length = np.linalg.norm(directions, axis=1, keepdims=True)
        steps = self.reach * directions / np.where(length > 0, length, 1.0)
        candidates = np.clip(np.hstack([points, steps]), self.lower, self.upper)
        return candidates[np.argsort(self.score(candidates))[::-1][:_CANDIDATES]]

    def climb(self, start: Array) -> Array:
        """Follow difference quotients from one candidate to where no direction gains."""
        unit = np.where(self.upper > self.lower, self.upper - self.lower, 1.0)

        def placed(share: Array) -> Array:
            return np.clip(self.lower + share * unit, self.lower, self.upper)

        def loss(share: Array) -> tuple[float, Array]:
            step = np.where(share < 0.5, _DIFFERENCE, -_DIFFERENCE)
            scores = self.score(placed(np.vstack([share, share + np.diag(step)])))
            return -float(scores[0]), (scores[0] - scores[1:]) / step

        bounds = [(0.0, 1.0)] * start.size
        climbed = minimize(loss, (start - self.lower) / unit, jac=True, bounds=bounds)
        return max(start, placed(climbed.x), key=lambda one: float(self.score(one[np.newaxis])[0]))
