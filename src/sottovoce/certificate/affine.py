"""How far all affine contributions of one agent move together: a singular value, not a sum.

A difference v of two states moves the sums by ``A v``. Row by row, ``|A v|^2 <= sum_o |a_o|^2
|v|^2`` takes each sum at its own worst direction v; the largest singular value of A takes one
direction for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from sottovoce.certificate.forms import exact
from sottovoce.formula.derive import gradient
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.expression import ZERO, Expression, exactly
from sottovoce.formula.intervals import Interval
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.constraints import Weights
from sottovoce.problem.fleet import Fleet, Index

_PIECE = 1 << 14  # agents whose small matrices are held at once
_EPS = 2.0**-52


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
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
    """The affine contributions of the agents of one fleet, whose states have several components.

    Attributes:
        agents: their numbers, from 0.
        count: how many agents.
        outputs: the sums they are contributions to, from 0.
        parts: their slopes.
    """

    agents: Index
    count: int
    outputs: NDArray[np.int64]
    parts: tuple[_Rows, ...]

    def loads(self, precision: Array) -> Array:
        """``|diag(precision)^(1/2) A_i|_2^2`` for every agent i, rounded up; shape (count,)."""
        strength = [part.strength(precision) for part in self.parts]
        dim = self.parts[0].middle.shape[2]
        slack = (self.outputs.size + 16 * dim + 32) * _EPS
        found = np.empty(self.count)
        for begin in range(0, self.count, _PIECE):
            at = slice(begin, begin + _PIECE)
            gram, lost = np.zeros((1, dim, dim)), np.zeros(1)
            for part, all_of_them in zip(self.parts, strength, strict=True):
                c, b, r = (_of(v, at) for v in (all_of_them, part.middle, part.radius))
                c = np.broadcast_to(c, np.broadcast_shapes(c.shape, r.shape))
                gram = gram + np.einsum("tn,tna,tnb->nab", c, *(np.broadcast_to(
                    b, (*c.shape, dim)),) * 2)  # fmt: skip
                lost = lost + (c * r**2).sum(axis=0)
            # A computed eigenvalue errs by a few roundings of the matrix's size, its trace.
            largest = np.linalg.eigvalsh(gram)[:, -1] + slack * np.trace(gram, axis1=1, axis2=2)
            found[at] = np.square(np.sqrt(largest) + np.sqrt(lost)) * (1.0 + 8.0 * _EPS)
        return found


def affine_parts(fleets: Sequence[Fleet]) -> Iterator[Affine]:
    """Yield what is affine of the fleets whose components some affine contribution mixes."""
    for fleet in fleets:
        found = list(_parts(fleet)) if fleet.places and fleet.group.dim > 1 else []
        if any(np.any(np.count_nonzero(part.middle, axis=2) > 1) for part in found):
            yield Affine(
                agents=fleet.agents,
                count=fleet.group.count,
                outputs=np.unique(np.concatenate([part.rows.ravel() for part in found])),
                parts=tuple(found),
            )


def _parts(fleet: Fleet) -> Iterator[_Rows]:
    slopes_of = [_slopes(h, fleet.group) for h in fleet.terms]
    for part in fleet.parts():
        own = [slopes_of[t] for t in part.terms]
        kept = [column for column, slopes in enumerate(own) if slopes is not None]
        if kept:
            yield _rows(part.rows[:, kept], part.weights, [s for s in own if s is not None])


@exactly()
def _slopes(formula: Expression, group: Group) -> list[Interval] | None:
    """The derivatives of an affine formula by the group's components; None if none or not so."""
    slopes, own = gradient(exact(formula), group.symbols), set(group.symbols)
    if not slopes or any(d.symbols & own for d in slopes.values()):
        return None
    box = {s: Interval(lower=a, upper=a) for s, a in group.parameters.items()}
    derivatives = [slopes.get(s, ZERO) for s in group.symbols]
    return [enclose(d, {s: box[s] for s in d.symbols}) for d in derivatives]


def _rows(rows: Any, weights: Weights, slopes: Sequence[Sequence[Interval]]) -> _Rows:
    count = max(np.size(end.lower) for term in slopes for end in term)
    lower, upper = (
        np.array([[np.broadcast_to(e, (count,)) for e in ends] for ends in sides])
        for sides in (
            [[end.lower for end in term] for term in slopes],
            [[end.upper for end in term] for term in slopes],
        )
    )
    middle = lower / 2 + upper / 2
    radius = np.nextafter(np.maximum(upper - middle, middle - lower), np.inf)
    length = np.sqrt(np.square(radius).sum(axis=1)) * (1.0 + (middle.shape[1] + 8) * _EPS)
    return _Rows(rows=rows, weights=weights, middle=middle.transpose(0, 2, 1), radius=length)


def _of(values: Array, agents: slice) -> Array:
    return values if values.shape[1] == 1 else values[:, agents]
