"""How far one agent can move one output: ``S[o, l] = sup over X of |d output_o / d x_l|``.

Outputs are rows of sums, or of whatever else is released. Linear terms, and slopes that convexity
makes monotone, are bounded for all agents at once; other terms of up to a thousand different agents
by branch and bound, and those of larger fleets by one vectorised enclosure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.certificate.influence import (
    UP,
    agent_box,
    mixture_bounds,
    slope_bounds,
    weighted_blocks,
)
from sottovoce.errors import CertificateError
from sottovoce.formula.derive import connected, gradient, rationalise
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.expression import ZERO, Expression, exact_arithmetic
from sottovoce.formula.intervals import Interval
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.fleets import Fleet, Index, fleets_of
from sottovoce.problem.groups import Array, Group
from sottovoce.problem.linear_rows import Weights, sparse

_EPS = 2.0**-52  # the distance of 1.0 to the next float64
_BATCH = 1 << 14  # agents whose small matrices are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A rectangle of S: the outputs ``rows`` against the agents ``first`` onwards."""

    rows: NDArray[np.int64]
    first: int
    # certified upper bounds (outputs, agents): a dense array, maybe a view, or a sparse array
    upper: Any
    attained: Any  # the largest values attained, of the same shape
    # which part of an agent's state moves each output, one number for all outputs or one per
    # output. No output is moved by two parts of one agent, so that components which no output mixes
    # count separately.
    parts: Any = 0

    @property
    def agents(self) -> int:
        """How many agents the block has."""
        return int(self.upper.shape[1])

    def load(self, part: int, precision: Array) -> Array | float:
        """``sum_o S[o, l]^2 precision_o`` for every agent l, over the outputs that a part moves."""
        chosen = np.broadcast_to(self.parts, self.rows.shape) == part
        if not np.any(chosen):
            return 0.0
        weights = precision[self.rows[chosen]]
        upper = self.upper if np.all(chosen) else self.upper[np.flatnonzero(chosen)]
        if sparse.issparse(upper):
            return np.asarray(upper.power(2).T @ weights)
        if upper.strides[1] == 0:
            return float(np.square(upper[:, 0]) @ weights)
        return np.asarray(np.einsum("ol,ol,o->l", upper, upper, weights))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AffineRows:
    """Outputs ``rows[r, t]`` moved by ``W[r, i] (middle[t, i] +- radius[t, i])`` of agent i."""

    rows: NDArray[np.int64]
    weights: Weights
    middle: Array  # (terms, agents or 1, dim)
    radius: Array  # (terms, agents or 1): a bound on the length of what rounding left out

    def strength(self, precision: Array) -> Array:
        """``sum_r W[r, i]^2 precision[rows[r, t]]``, shape (terms, agents or 1)."""
        local = precision[self.rows]
        if self.weights is None:
            return np.asarray(local.T)
        squared = self.weights.power(2) if sparse.issparse(self.weights) else self.weights**2
        return np.asarray((squared.T @ local).T)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Affine:
    """The affine contributions of ``count`` agents of one fleet to the sums ``outputs``.

    A difference v of two states moves the sums by ``A v``. Row by row, ``|A v|^2 <= sum_o |a_o|^2
    |v|^2`` takes each sum at its own worst direction v; the largest singular value of A takes one
    direction for all of them.
    """

    agents: Index
    count: int
    outputs: NDArray[np.int64]
    parts: tuple[_AffineRows, ...]

    def loads(self, precision: Array) -> Array:
        """``|diag(precision)^(1/2) A_i|_2^2`` for every agent i, rounded up; shape (count,)."""
        strength = [part.strength(precision) for part in self.parts]
        dim = self.parts[0].middle.shape[2]
        slack = (self.outputs.size + 16 * dim + 32) * _EPS
        loads = np.empty(self.count)
        for begin in range(0, self.count, _BATCH):
            piece = slice(begin, begin + _BATCH)
            gram, lost = np.zeros((1, dim, dim)), np.zeros(1)
            for part, weights in zip(self.parts, strength, strict=True):
                arrays = (weights, part.middle, part.radius)
                c, b, r = (v if v.shape[1] == 1 else v[:, piece] for v in arrays)
                c = np.broadcast_to(c, np.broadcast_shapes(c.shape, r.shape))
                b = np.broadcast_to(b, (*c.shape, dim))
                gram = gram + np.einsum("tn,tna,tnb->nab", c, b, b)
                lost = lost + (c * r**2).sum(axis=0)
            # A computed eigenvalue errs by a few roundings of the matrix's size, its trace.
            largest = np.linalg.eigvalsh(gram)[:, -1] + slack * np.trace(gram, axis1=1, axis2=2)
            loads[piece] = np.square(np.sqrt(largest) + np.sqrt(lost)) * (1.0 + 8.0 * _EPS)
        return loads


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sensitivity:
    """The matrix S of all outputs against all agents, in blocks that never overlap.

    ``blocks`` hold what is not zero; ``affine`` what bounds several outputs together, for agents
    whose components some affine output mixes.
    """

    outputs: int
    agents: int
    blocks: tuple[Block, ...]
    affine: tuple[Affine, ...] = ()

    def loads(self, precision: Array) -> Array:
        """Return ``max_p sum_{o in p} S[o, l]^2 precision_o`` for every agent l, rounded up.

        p runs over the parts of the agent's state that no output mixes: a difference v of two
        states moves the outputs of part p by at most ``S |v_p|``, and the ``|v_p|^2`` add up to
        ``|v|^2``. With ``precision_o = 1/sigma_o^2`` and radius b_l the Gaussian-DP parameter of
        agent l is ``mu_l = b_l sqrt(loads_l)``.
        """
        total = np.zeros(self.agents)
        for part in {int(part) for block in self.blocks for part in np.unique(block.parts)}:
            load = np.zeros(self.agents)
            for block in self.blocks:
                load[block.first : block.first + block.agents] += block.load(part, precision)
            np.maximum(total, load, out=total)
        # A sum of n nonnegative numbers errs by less than n + 3 roundings.
        return np.asarray(total * (1.0 + (self.outputs + 8) * 2.0**-52))

    def together(self, precision: Array) -> Array:
        """Return ``sup |diag(precision)^(1/2) J_l|_2^2`` for every agent l, rounded up.

        J_l is the Jacobian of all outputs by agent l's state: what ``loads`` takes output by
        output is taken at one direction of the state for all affine outputs together.
        """
        total = self.loads(precision)
        for affine in self.affine:
            curved = precision.copy()
            curved[affine.outputs] = 0.0
            rest = self.loads(curved)[affine.agents]
            both = (affine.loads(precision) + rest) * (1.0 + 4.0 * 2.0**-52)
            total[affine.agents] = np.minimum(total[affine.agents], both)
        return total

    def signature(self, precision: Array) -> Array:
        """One number per agent that tells agents with different influences apart."""
        total = np.zeros(self.agents)
        for block in self.blocks:
            of_block = total[block.first : block.first + block.agents]
            for part in np.unique(block.parts):
                of_block += block.load(part, precision)
        return total

    def columns(self, agent: int) -> Array:
        """The influence of agent ``agent`` (from 0) on every output, one row per part of it."""
        blocks = [b for b in self.blocks if 0 <= agent - b.first < b.agents]
        parts = np.array(sorted({int(part) for b in blocks for part in np.ravel(b.parts)}))
        values = np.zeros((parts.size, self.outputs))
        for block in blocks:
            row = np.searchsorted(parts, np.broadcast_to(block.parts, block.rows.shape))
            values[row, block.rows] += dense(block.upper[:, [agent - block.first]])[:, 0]
        return values

    def largest(self, caps: Array | None = None) -> Array:
        """``max_l S[o, l]`` for every output o; with caps ``max_l S[o, l]^2 / caps_l``."""
        values = np.zeros(self.outputs)
        for block in self.blocks:
            upper = block.upper
            if caps is not None:
                cap = caps[block.first : block.first + block.agents]
                if sparse.issparse(upper):
                    upper = upper.power(2) / cap[np.newaxis, :]
                elif upper.strides[1] == 0:
                    upper = np.square(upper[:, :1]) / cap.min()
                else:
                    upper = np.square(upper) / cap
            values[block.rows] = np.maximum(values[block.rows], dense(upper.max(axis=1)).ravel())
        return values

    def typical(self) -> Array:
        """The median of ``S[o, l]`` over the agents l that move o; 0 if none does."""
        moving: list[list[Array]] = [[np.zeros(0)] for _ in range(self.outputs)]
        for block in self.blocks:
            upper: Any = block.upper
            if sparse.issparse(upper):
                upper = [upper.data[a:b] for a, b in pairwise(upper.indptr)]
            for output, values in zip(block.rows, upper, strict=True):
                moving[output].append(values)
        positive = (values[values > 0] for values in map(np.concatenate, moving))
        return np.array([float(np.median(values)) if values.size else 0.0 for values in positive])

    def dense(self, *, attained: bool = False) -> Array:
        """S, or the largest values attained, as an array (outputs, agents) of moderate size."""
        matrix = np.zeros((self.outputs, self.agents))
        for block in self.blocks:
            columns = slice(block.first, block.first + block.agents)
            matrix[block.rows, columns] += dense(block.attained if attained else block.upper)
        return matrix

    def gap(self) -> float:
        """The largest relative distance between a certified bound and the value attained."""
        worst = 0.0
        for block in self.blocks:
            upper, attained = block.upper, block.attained
            if sparse.issparse(upper):
                upper, attained = upper.data, attained.data
            elif upper.strides[1] == 0 and attained.strides[1] == 0:
                upper, attained = upper[:, :1], attained[:, :1]
            positive = attained > 0
            if np.any(positive):
                worst = max(worst, float(np.max(upper[positive] / attained[positive])) - 1.0)
        return worst


def dense(values: Any) -> Array:
    """Return a dense copy of a sparse array, and any other array as it is."""
    return np.asarray(values.toarray() if sparse.issparse(values) else values)


def sensitivity(
    families: Sequence[Constraint],
    domain: Sequence[Group],
    *,
    convex: Mapping[int, bool],
    tolerance: float,
    fleets: Sequence[Fleet] | None = None,
) -> Sensitivity:
    """Certify ``S[o, l]`` for every output o of ``families`` and agent l, over its ``domain``.

    Subdivision stops at the relative gap ``tolerance``. Of a row that is proven ``convex`` the
    slope by x_l never decreases in x_l, which saves most of it. ``fleets`` is ``fleets_of`` both.
    """
    fleets = fleets_of(domain, families) if fleets is None else fleets
    return Sensitivity(
        outputs=sum(family.rows for family in families),
        agents=sum(group.count for group in domain),
        blocks=tuple(_blocks(fleets, convex, tolerance)),
        affine=tuple(affine_parts(fleets)),
    )


def _blocks(
    fleets: Sequence[Fleet], convex: Mapping[int, bool], tolerance: float
) -> Iterator[Block]:
    mixtures = [(fleet, _owners(fleet, fleets)) for fleet in fleets if not fleet.places]

    # The first component of an agent that a formula names says which part of its state moves it.
    def slopes(fleet: Fleet) -> list[tuple[int, Sequence[Array]]]:
        label, bounds = _components(fleet, mixtures), _term_slopes(fleet, convex, tolerance)
        symbols = (next(s for s in fleet.group.symbols if s in h.symbols) for h in fleet.terms)
        return [(label[s], bounds[t]) for t, s in enumerate(symbols)]

    def entries() -> Iterator[tuple[int, list[Array]]]:
        for fleet, owners in mixtures:
            output = fleet.sums[0].row
            numbers, is_convex = [agent for _, agent, _ in owners], convex.get(output, False)
            with _name_in_errors(owners[0][0], output):
                bounds = list(mixture_bounds(fleet, numbers, convex=is_convex, tolerance=tolerance))
            for agent, upper, attained in bounds:
                owner_fleet, _, component = owners[numbers.index(agent)]
                part = _components(owner_fleet, mixtures)[owner_fleet.group.symbols[component]]
                yield part, [np.array([v]) for v in (output, agent, upper, attained)]

    of_agents = [fleet for fleet in fleets if fleet.places]
    blocks = weighted_blocks(of_agents, slopes, _scale_slopes, entries())
    for rows, first, parts, (upper, attained) in blocks:
        yield Block(rows=rows, first=first, upper=upper, attained=attained, parts=parts)


def _scale_slopes(weight: Array, upper: Array, attained: Array) -> tuple[Array, Array]:
    """Slopes times weights; a slope of 1 needs no room for the rounding of the product."""
    size = np.abs(weight)
    return size * np.where(upper == 1.0, upper, upper * UP), size * attained


def _term_slopes(
    fleet: Fleet, convex: Mapping[int, bool], tolerance: float
) -> dict[int, tuple[Array, Array]]:
    """Bounds of the slopes of every term."""
    bounds = {}
    for part in fleet.parts():
        for t, row in zip(part.terms, part.rows[0].tolist(), strict=True):
            # Of a term with a negative weight the assumption is that its negative is convex.
            is_convex = convex.get(row, False) and part.nonnegative()
            with _name_in_errors(fleet, row):
                bounds[t] = slope_bounds(
                    fleet.terms[t], fleet.group, convex=is_convex, tolerance=tolerance
                )
    return bounds


@contextmanager
def _name_in_errors(fleet: Fleet, row: int) -> Iterator[None]:
    """Name the agent and the output in an error about a missing bound."""
    try:
        yield
    except CertificateError as error:
        raise CertificateError(
            f"the influence of {fleet.group.name} on output {row + 1} has no finite bound: {error}"
        ) from error


Owner = tuple[Fleet, int, int]
"""A component of a state: the fleet, the agent's number and the component."""


def _owners(mixture: Fleet, fleets: Sequence[Fleet]) -> list[Owner]:
    """The owners of a mixture's components, in order."""
    owners = []
    for column in mixture.columns:
        for fleet in fleets:
            if fleet.places and not isinstance(fleet.columns, slice):
                for index in np.flatnonzero(fleet.columns == column).tolist():
                    place, component = divmod(index, fleet.group.dim)
                    owners.append((fleet, int(fleet.agents[place]), component))
    return owners


def _components(
    fleet: Fleet, mixtures: Sequence[tuple[Fleet, Sequence[Owner]]]
) -> dict[Expression, int]:
    """Number the parts of a fleet's states: components that some output mixes share a part."""
    place = {s: c for c, s in enumerate(fleet.group.symbols)}
    links = [[place[s] for s in h.symbols if s in place] for h in fleet.terms]
    for _, owners in mixtures:
        components: defaultdict[int, list[int]] = defaultdict(list)
        for owner_fleet, agent, component in owners:
            if owner_fleet is fleet:
                components[agent].append(component)
        links += components.values()
    pairs = [(mixed[0], c) for mixed in links for c in mixed]
    label = connected(fleet.group.dim, *np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    return {s: int(label[c]) for s, c in place.items()}


def affine_parts(fleets: Sequence[Fleet]) -> Iterator[Affine]:
    """Yield what is affine of the fleets whose components some affine contribution mixes."""
    for fleet in fleets:
        parts = tuple(_affine_rows(fleet)) if fleet.places and fleet.group.dim > 1 else ()
        if any(np.any(np.count_nonzero(part.middle, axis=2) > 1) for part in parts):
            outputs = np.unique(np.concatenate([part.rows.ravel() for part in parts]))
            yield Affine(agents=fleet.agents, count=fleet.group.count, outputs=outputs, parts=parts)


def _affine_rows(fleet: Fleet) -> Iterator[_AffineRows]:
    slopes_of = [_constant_slopes(h, fleet.group) for h in fleet.terms]
    for part in fleet.parts():
        affine = [k for k, t in enumerate(part.terms) if slopes_of[t]]
        if not affine:
            continue
        slopes = [slopes_of[part.terms[k]] for k in affine]
        count = max(d.lower.size for term in slopes for d in term)
        lower, upper = (
            np.array(
                [[np.broadcast_to(getattr(d, end), (count,)) for d in term] for term in slopes]
            )
            for end in ("lower", "upper")
        )
        middle = lower / 2 + upper / 2
        radius = np.nextafter(np.maximum(upper - middle, middle - lower), np.inf)
        length = np.sqrt(np.square(radius).sum(axis=1)) * (1.0 + (middle.shape[1] + 8) * _EPS)
        yield _AffineRows(
            rows=part.rows[:, affine],
            weights=part.weights,
            middle=middle.transpose(0, 2, 1),
            radius=length,
        )


@exact_arithmetic()
def _constant_slopes(formula: Expression, group: Group) -> list[Interval]:
    """The derivatives of an affine formula by the group's components; none if not affine."""
    slopes = gradient(rationalise(formula), group.symbols)
    if not slopes or any(d.symbols & {*group.symbols} for d in slopes.values()):
        return []
    derivatives = [slopes.get(s, ZERO) for s in group.symbols]
    return [enclose(d, agent_box(d, group)) for d in derivatives]
