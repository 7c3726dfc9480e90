"""How far one agent can move one output: ``S[o, l] = sup over X of |d output_o / d x_l|``.

Outputs are rows of sums, or of whatever else is released.
What is linear, and slopes that convexity makes monotone, are bounded for all agents at once; other
terms of named agents get a certified supremum each, by branch and bound, and those of fleets one
vectorised enclosure over all their agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.certificate.influence import (
    UP,
    Affine,
    affine_parts,
    mixture_bounds,
    slope_bounds,
)
from sottovoce.errors import CertificateError
from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.connected import connected
from sottovoce.problem.constraints import Constraint
from sottovoce.problem.fleet import Fleet, WeightedTerms
from sottovoce.problem.fleets import fleets_of


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
            values[row, block.rows] += column[:, 0]
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
    fleets = fleets_of(domain, families)
    agents = sum(group.count for group in domain)
    return Sensitivity(
        outputs=sum(family.rows for family in families),
        agents=agents,
        blocks=tuple(_blocks(fleets, agents, convex, tolerance)),
        affine=tuple(affine_parts(fleets)),
    )


def _blocks(
    fleets: Sequence[Fleet], agents: int, convex: Mapping[int, bool], tolerance: float
) -> Iterator[Block]:
    """A dense block per sum of a stated fleet, a sparse one of all named agents per part."""
    mixtures = [(fleet, _owners(fleet, fleets)) for fleet in fleets if not fleet.places]
    entries: list[Any] = [(*(np.zeros(0, dtype=np.int64),) * 3, *(np.zeros(0),) * 2)]
    for fleet in (fleet for fleet in fleets if fleet.places):
        label = _components(fleet, mixtures)
        bounds, movers = _bounds(fleet, convex, tolerance), [_mover(fleet, h) for h in fleet.terms]
        for part in fleet.parts():
            if isinstance(fleet.agents, slice):
                yield Block(
                    rows=part.rows.ravel(),
                    first=fleet.agents.start,
                    upper=_weighted(part, [bounds[t][0] for t in part.terms]),
                    found=_weighted(part, [bounds[t][1] for t in part.terms], up=1.0),
                    parts=np.tile([label[movers[t]] for t in part.terms], len(part.rows)),
                )
                continue
            for t, row, place, weight in part.entries(fleet.group.count):
                ends = [np.abs(weight) * _raised(slope, up)[place]
                        for slope, up in zip(bounds[t], (UP, 1.0), strict=True)]  # fmt: skip
                moved = np.full(row.size, label[movers[t]])
                entries.append((row, fleet.agents[place], moved, *ends))
    for fleet, owners in mixtures:
        output = fleet.sums[0].row
        with _naming(owners[0][0], output):
            numbers = [agent for _, agent, _ in owners]
            known = convex.get(output, False)
            found = list(mixture_bounds(fleet, numbers, convex=known, tolerance=tolerance))
        for agent, upper, met in found:
            # The first component of the agent's that the formula names says which part moves it.
            home, _, component = next(one for one in owners if one[1] == agent)
            own = _components(home, mixtures)[home.group.symbols[component]]
            entries.append([np.array([v]) for v in (output, agent, own, upper, met)])
    yield from _of_entries(entries, agents)


def _of_entries(entries: Sequence[Any], agents: int) -> Iterator[Block]:
    row, agent, moved, upper, met = (np.concatenate(c) for c in zip(*entries, strict=True))
    for part in np.unique(moved):
        mine = moved == part
        rows, at = np.unique(row[mine], return_inverse=True)
        shape, place = (rows.size, agents), (at, agent[mine])
        ends = [sparse.csr_array((v[mine], place), shape=shape) for v in (upper, met)]
        yield Block(rows=rows, first=0, upper=ends[0], found=ends[1], parts=int(part))


def _bounds(
    fleet: Fleet, convex: Mapping[int, bool], tolerance: float
) -> dict[int, tuple[Array, Array]]:
    """Bounds of the slopes of every term."""
    found = {}
    for part in fleet.parts():
        for t, row in zip(part.terms, part.rows[0].tolist(), strict=True):
            # Of a term with a negative weight the assumption is that its negative is convex.
            known = convex.get(row, False) and part.nonnegative()
            with _naming(fleet, row):
                found[t] = slope_bounds(
                    fleet.terms[t], fleet.group, convex=known, tolerance=tolerance
                )
    return found


def _mover(fleet: Fleet, h: Expression) -> Expression:
    """The first component that a term names."""
    return next(s for s in fleet.group.symbols if s in h.symbols)


@contextmanager
def _naming(fleet: Fleet, row: int) -> Iterator[None]:
    """Say whose influence on what it is that has no bound."""
    try:
        yield
    except CertificateError as error:
        raise CertificateError(
            f"the influence of {fleet.group.name} on output {row + 1} has no finite bound: {error}"
        ) from error


Owner = tuple[Fleet, int, int]
"""A component of a state: the fleet, the agent's number and the component."""


def _owners(mixture: Fleet, fleets: Sequence[Fleet]) -> list[Owner]:
    """Whose each component of a mixture is."""
    found = []
    for column in mixture.columns:
        for fleet in fleets:
            if fleet.places and not isinstance(fleet.columns, slice):
                (at,) = np.nonzero(fleet.columns == column)
                if at.size:
                    place, component = divmod(int(at[0]), fleet.group.dim)
                    found.append((fleet, int(fleet.agents[place]), component))
    return found


def _components(
    fleet: Fleet, mixtures: Sequence[tuple[Fleet, Sequence[Owner]]]
) -> dict[Expression, int]:
    """Number the parts of a fleet's states: components that some output mixes share a part."""
    place = {s: c for c, s in enumerate(fleet.group.symbols)}
    links = [[place[s] for s in h.symbols if s in place] for h in fleet.terms]
    for _, owners in mixtures:
        own = [(agent, component) for home, agent, component in owners if home is fleet]
        links += [[c for a, c in own if a == agent] for agent, _ in own]
    pairs = [(mixed[0], c) for mixed in links for c in mixed]
    label = connected(fleet.group.dim, *np.array(pairs, dtype=np.int64).reshape(-1, 2).T)
    return {s: int(label[c]) for s, c in place.items()}


def _weighted(part: WeightedTerms, slopes: Sequence[Array], up: float = UP) -> Any:
    """Multiply the slopes of the terms by the weights, row ``r * terms + t``."""
    count = slopes[0].size
    if part.weights is None:
        if all(s.strides == (0,) for s in slopes):
            column = np.array([[s[0]] for s in slopes])
            return np.broadcast_to(column, (len(slopes), count))
        return np.stack(slopes)
    raised = [_raised(s, up) for s in slopes]
    if sparse.issparse(part.weights):
        parts = [abs(part.weights).multiply(s[np.newaxis, :]).tocsr() for s in raised]
        order = np.arange(part.rows.size).reshape(len(slopes), -1).T.ravel()
        return sparse.csr_array(sparse.vstack(parts, format="csr")[order])
    product = np.abs(part.weights)[:, np.newaxis, :] * np.stack(raised)[np.newaxis]
    return product.reshape(part.rows.size, count)


def _raised(slope: Array, up: float) -> Array:
    """A slope enlarged so that its product with a weight, rounded, is a bound; 1 needs no room."""
    return slope if np.all(slope == 1.0) else slope * up


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
