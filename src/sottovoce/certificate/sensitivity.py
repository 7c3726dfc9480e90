"""How far one agent can move one output: ``S[o, l] = sup over X of |d output_o / d x_l|``.

Outputs are rows of sums, or of whatever else is released.
What is linear, and slopes that convexity makes monotone, are bounded for all agents at once; other
terms of named agents get a certified supremum each, by branch and bound, and those of fleets one
vectorised enclosure over all their agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.certificate.affine import Affine, affine_parts
from sottovoce.certificate.influence import Influence, influences
from sottovoce.certificate.slopes import UP, slope_bounds
from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.connected import connected
from sottovoce.problem.constraints import Constraint, FleetSum
from sottovoce.problem.terms import NamedRows, named_rows_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A rectangle of S: the outputs ``rows`` against the agents ``first`` onwards.

    Attributes:
        rows: the outputs, from 0.
        first: the first agent, from 0.
        upper: certified upper bounds, one row per output and one column per agent; a dense array,
            possibly a broadcast view, or a sparse array.
        found: the largest values actually found, of the same shape.
        parts: which part of an agent's state moves each output, one number for all outputs or one
            per output. No output is moved by two parts of one agent, so that components which no
            output mixes count apart.
    """

    rows: NDArray[np.int64]
    first: int
    upper: Any
    found: Any
    parts: Any = 0

    @property
    def agents(self) -> int:
        """How many agents it speaks of."""
        return int(self.upper.shape[1])

    def meets(self, agents: slice) -> bool:
        """Whether it speaks of some of the agents ``agents``."""
        return bool(self.first < agents.stop and agents.start < self.first + self.agents)

    def over(self, agents: slice) -> Block:
        """Its part of the agents ``agents``, which then count from 0."""
        begin, end = max(agents.start - self.first, 0), agents.stop - self.first
        upper, found = self.upper[:, begin:end], self.found[:, begin:end]
        first = max(self.first - agents.start, 0)
        return replace(self, first=first, upper=upper, found=found)

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
class Sensitivity:
    """The matrix S of all outputs against all agents, in blocks that never overlap.

    Attributes:
        outputs: number of outputs.
        agents: number of agents n.
        blocks: what is not zero.
        affine: what is known of several outputs together, of agents whose components some affine
            output mixes.
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
            own = slice(affine.first, affine.first + affine.count)
            curved = precision.copy()
            curved[affine.outputs] = 0.0
            mine = tuple(b.over(own) for b in self.blocks if b.meets(own))
            rest = replace(self, blocks=mine, agents=affine.count, affine=()).loads(curved)
            both = (affine.loads(precision) + rest) * (1.0 + 4.0 * 2.0**-52)
            total[own] = np.minimum(total[own], both)
        return total

    def signature(self, precision: Array) -> Array:
        """One number per agent that tells agents with different influences apart."""
        total = np.zeros(self.agents)
        for block in self.blocks:
            own = total[block.first : block.first + block.agents]
            for part in np.unique(block.parts):
                own += block.load(part, precision)
        return total

    def columns(self, agent: int) -> Array:
        """The influence of agent ``agent`` (from 0) on every output, one row per part of it."""
        mine = [b for b in self.blocks if 0 <= agent - b.first < b.agents]
        found = [np.ravel(block.parts) for block in mine]
        parts = np.unique(np.concatenate([*found, np.zeros(0, dtype=np.int64)]))
        values = np.zeros((parts.size, self.outputs))
        for block in mine:
            column = block.upper[:, [agent - block.first]]
            column = column.toarray() if sparse.issparse(column) else column
            row = np.searchsorted(parts, np.broadcast_to(block.parts, block.rows.shape))
            values[row, block.rows] = column[:, 0]
        return values

    def largest(self) -> Array:
        """The largest influence of any agent on each output, ``max_l S[o, l]``."""
        values = np.zeros(self.outputs)
        for block in self.blocks:
            peak = block.upper.max(axis=1)
            peak = peak.toarray().ravel() if sparse.issparse(peak) else peak
            values[block.rows] = np.maximum(values[block.rows], peak)
        return values

    def typical(self) -> Array:
        """The median of ``S[o, l]`` over the agents l that move o; 0 if none does."""
        return np.array([_median(parts) for parts in self._moving()])

    def smallest(self) -> Array:
        """The smallest ``S[o, l]`` over the agents l that move o; 0 if none does."""
        least = [
            min((v.min() for v, _ in parts if v.size), default=0.0) for parts in self._moving()
        ]
        return np.array(least)

    def _moving(self) -> list[list[tuple[Array, int]]]:
        """Per output the influences that are not 0, in parts that count so many times each."""
        found: list[list[tuple[Array, int]]] = [[] for _ in range(self.outputs)]
        for block in self.blocks:
            upper, repeat = block.upper, 1
            if sparse.issparse(upper):
                upper = upper.tocsr()
                rows: Any = (upper.data[a:b] for a, b in pairwise(upper.indptr))
            else:
                if upper.strides[1] == 0:
                    repeat, upper = upper.shape[1], upper[:, :1]
                rows = upper
            for output, values in zip(block.rows, rows, strict=True):
                found[output].append((values[values > 0], repeat))
        return found

    def dense(self) -> Array:
        """The whole matrix S as an array (outputs, agents); for problems of moderate size."""
        return self._assemble("upper")

    def dense_found(self) -> Array:
        """The largest values actually found, as an array (outputs, agents)."""
        return self._assemble("found")

    def gap(self) -> float:
        """The largest relative distance between a certified bound and the value found."""
        worst = 0.0
        for block in self.blocks:
            upper, found = block.upper, block.found
            if sparse.issparse(upper):
                upper, found = upper.data, found.data
            elif upper.strides[1] == 0 and found.strides[1] == 0:
                upper, found = upper[:, :1], found[:, :1]
            positive = found > 0
            if np.any(positive):
                worst = max(worst, float(np.max(upper[positive] / found[positive])) - 1.0)
        return worst

    def _assemble(self, which: str) -> Array:
        matrix = np.zeros((self.outputs, self.agents))
        for block in self.blocks:
            values = getattr(block, which)
            values = values.toarray() if sparse.issparse(values) else values
            matrix[block.rows, block.first : block.first + values.shape[1]] += values
        return matrix


def sensitivity(
    families: Sequence[Constraint],
    domain: Sequence[Group],
    *,
    convex: Mapping[int, bool],
    tolerance: float,
) -> Sensitivity:
    """Certify ``S[o, l]`` for every output o and agent l over the boxes of ``domain``.

    Args:
        families: the rows that are released.
        domain: the agents with the boxes over which states will be kept.
        convex: for each row, whether it is proven convex; then its slope by x_l never
            decreases in x_l, which saves most of the subdivision.
        tolerance: relative gap at which subdivision stops.
    """
    named = named_rows_of(domain, families)
    blocks = [*named_blocks(named, domain, convex, tolerance)]
    blocks += _fleet_blocks(families, domain, convex)
    return Sensitivity(
        outputs=sum(family.rows for family in families),
        agents=sum(group.count for group in domain),
        blocks=tuple(blocks),
        affine=tuple(affine_parts(families, domain, named)),
    )


def named_blocks(
    named: NamedRows, domain: Sequence[Group], convex: Mapping[int, bool], tolerance: float
) -> Iterator[Block]:
    """What named agents move, in one sparse block for each number of a part of a state."""
    if not named.units:
        return
    found: Influence = influences(named, domain, convex, tolerance)
    agents = sum(group.count for group in domain)
    for part in np.unique(found.part):
        mine = found.part == part
        rows, at = np.unique(found.row[mine], return_inverse=True)
        shape, place = (rows.size, agents), (at, found.agent[mine])
        yield Block(
            rows=rows,
            first=0,
            upper=sparse.csr_array((found.upper[mine], place), shape=shape),
            found=sparse.csr_array((found.found[mine], place), shape=shape),
            parts=int(part),
        )


def _fleet_blocks(
    families: Sequence[Constraint],
    domain: Sequence[Group],
    convex: Mapping[int, bool],
) -> Iterator[Block]:
    boxes = {group.name: group for group in domain}
    offsets, agents = {}, 0
    for group in domain:
        offsets[group.name], agents = agents, agents + group.count
    first = 0
    for family in families:
        for part in (p for p in family.sums if p.group.count > 1):
            group = boxes[part.group.name]
            per_term = [slope_bounds(h, group, convex=convex.get(first + t, False))
                        for t, h in enumerate(part.terms)]  # fmt: skip
            repeats = part.rows // len(part.terms)
            yield Block(
                rows=np.arange(first, first + part.rows),
                first=offsets[group.name],
                upper=_weighted(part, [upper for upper, _ in per_term]),
                found=_weighted(part, [found for _, found in per_term], up=1.0),
                parts=np.tile(_part_of(part.terms, group, _parts(families, group)), repeats),
            )
        first += family.rows


def _parts(families: Sequence[Constraint], group: Group) -> dict[Expression, int]:
    """Number the parts of a fleet's states: components that some output mixes share a part."""
    own = [p for family in families for p in family.sums if p.group.name == group.name]
    links = np.zeros((group.dim, group.dim))
    for formula in (h for part in own for h in part.terms):
        mixed = [c for c, s in enumerate(group.symbols) if s in formula.symbols]
        links[np.ix_(mixed, mixed)] = 1.0
    label = connected(group.dim, *np.nonzero(links))
    return {s: int(label[c]) for c, s in enumerate(group.symbols)}


def _part_of(
    formulas: Sequence[Expression], group: Group, parts: Mapping[Expression, int]
) -> NDArray[np.int64]:
    """The part of the group's state that moves each formula."""
    movers = [next(s for s in group.symbols if s in f.symbols) for f in formulas]
    return np.array([parts[s] for s in movers], dtype=np.int64)


def _weighted(part: FleetSum, slopes: Sequence[Array], up: float = UP) -> Any:
    """Multiply the slopes of the terms by the weights, row ``r * terms + t``."""
    if part.weights is None:
        if all(s.strides == (0,) for s in slopes):
            column = np.array([[s[0]] for s in slopes])
            return np.broadcast_to(column, (len(slopes), part.group.count))
        return np.stack(slopes)
    if sparse.issparse(part.weights):
        parts = [abs(part.weights).multiply(s[np.newaxis, :] * up).tocsr() for s in slopes]
        order = np.arange(part.rows).reshape(len(slopes), -1).T.ravel()
        return sparse.csr_array(sparse.vstack(parts, format="csr")[order])
    product = np.abs(part.weights)[:, np.newaxis, :] * np.stack(slopes)[np.newaxis] * up
    return product.reshape(part.rows, part.group.count)


def _median(parts: Sequence[tuple[Array, int]]) -> float:
    """The median of values that count so many times each; 0 if there is none."""
    values = np.concatenate([np.zeros(0), *(part for part, _ in parts)])
    if not values.size:
        return 0.0
    if len({repeat for _, repeat in parts}) == 1:
        return float(np.median(values))
    order = np.argsort(values)
    counts = np.concatenate([np.full(part.size, repeat) for part, repeat in parts])[order]
    upto = np.cumsum(counts)
    middle = [np.searchsorted(upto, upto[-1] / 2, side=side) for side in ("left", "right")]
    return float(np.mean(values[order][middle]))
