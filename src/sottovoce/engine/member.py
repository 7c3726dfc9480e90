"""One fleet as a kernel sees it: its text, and its arrays laid out in blocks of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.engine.fleet_text import FleetText
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.home_shape import Separable, shape_of
from sottovoce.engine.search import interior_addresses, search_addresses
from sottovoce.engine.slopes import used_parameters
from sottovoce.engine.vectors import WIDTH
from sottovoce.engine.weight_text import kind_of
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.epigraph import HomeForm

_PACK = 1 << 16  # agents laid out at a time, so that copies stay small


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Member:
    """One fleet's text, and its arrays that no round changes."""

    text: FleetText
    data: Array
    bounds: Array
    hat: Array
    rest: tuple[NDArray[Any], ...]
    searches: tuple[NDArray[np.int64], ...]

    def given(self, x: Array, mean: Array | None) -> tuple[Any, ...]:
        """What ``FleetText.arguments`` names: the count, all arrays, where searches are found."""
        means, count = () if mean is None else (mean,), self.text.fleet.group.count
        return (count, x, self.data, self.bounds, self.hat, *means, *self.rest, *self.searches)


def member(
    fleet: Fleet,
    algorithm: Algorithm,
    lower: Array,
    upper: Array,
    *,
    index: int = 0,
    size: int = 0,
    rows: int,
    gridded: bool = False,
    hat: Array | None = None,
) -> Member:
    """Lay out one fleet.

    Args:
        fleet: its formulas.
        algorithm: whose steps it takes.
        lower: bounds that states are kept in, shape (count, d).
        upper: likewise.
        index: the fleet's number in the kernel.
        size: how many scalar states named agents have.
        rows: how many sums, or rows of g, there are.
        gridded: whether contributions are rounded to the public grid.
        hat: its part of x_hat, if known.
    """
    steps = isinstance(algorithm, GradientSteps)
    text = FleetText(
        index=index,
        fleet=fleet,
        algorithm=algorithm,
        size=size,
        rows=rows,
        gridded=gridded,
        known=hat is not None,
        shared_lower=_shared(lower),
        shared_upper=_shared(upper),
        shape=None if steps else shape_of(fleet),
    )
    own = [values[:, np.newaxis] for values in used_parameters(fleet).values()]
    own += [] if text.shared_lower else [lower]
    own += [] if text.shared_upper else [upper]
    if isinstance(text.shape, HomeForm) and text.shape.extra:
        own += [text.shape.lower, text.shape.upper]
    return Member(
        text=text,
        data=packed(*own) if own else np.zeros(0),
        bounds=np.concatenate([lower[0], upper[0]]),
        hat=np.zeros(0) if hat is None else packed(hat.reshape(-1, fleet.group.dim)),
        rest=_weights(fleet),
        searches=_searches(text),
    )


def _searches(text: FleetText) -> tuple[NDArray[np.int64], ...]:
    if isinstance(text.shape, Separable):
        return (search_addresses(text.searches()),)
    return () if text.shape is None else (interior_addresses(text.derive_source()),)


def packed(*columns: Array, group: Group | None = None) -> Array:
    """Lay out arrays (count, c), side by side, in blocks: ``[block, c, lane]``, flat.

    With ``group`` the values are states, and are projected onto the group's box on the way.
    """
    count, rows = columns[0].shape[0], sum(c.shape[1] for c in columns)
    out = np.zeros((-(-count // WIDTH), rows, WIDTH))
    for begin in range(0, count, _PACK):
        part = slice(begin, min(count, begin + _PACK))
        row = 0
        for values in columns:
            own = values[part]
            if group is not None:
                own = np.clip(own, group.lower[part], group.upper[part])
            full = np.zeros((-(-own.shape[0] // WIDTH) * WIDTH, own.shape[1]))
            full[: own.shape[0]] = own
            blocks = full.reshape(-1, WIDTH, own.shape[1]).transpose(0, 2, 1)
            at = begin // WIDTH
            out[at : at + blocks.shape[0], row : row + own.shape[1]] = blocks
            row += own.shape[1]
    return out.reshape(-1)


def unpack(blocks: Array, out: Array) -> None:
    """Undo ``packed`` into ``out`` of shape (count, c)."""
    count, rows = out.shape
    shaped = blocks.reshape(-1, rows, WIDTH)
    for begin in range(0, count, _PACK):
        end = min(count, begin + _PACK)
        at = slice(begin // WIDTH, -(-end // WIDTH))
        out[begin:end] = shaped[at].transpose(0, 2, 1).reshape(-1, rows)[: end - begin]


def _shared(bound: Array) -> bool:
    return bool(bound.strides[0] == 0 or np.all(bound == bound[:1]))


def _weights(fleet: Fleet) -> tuple[NDArray[Any], ...]:
    arrays: list[NDArray[Any]] = []
    for part in fleet.sums:
        if kind_of(part) == "dense":
            arrays.append(packed(np.asarray(part.weights).T))
        if kind_of(part) == "table":
            by_term, terms = part.weights.tocsc(), len(part.terms)
            columns = np.repeat(np.arange(by_term.shape[1]), np.diff(by_term.indptr))
            arrays += [
                by_term.indptr[::terms].astype(np.int64),
                by_term.indices.astype(np.int32),
                (columns % terms).astype(np.int32),
                by_term.data.astype(np.float64),
            ]
        if kind_of(part) == "sparse":
            by_agent = part.weights.tocsc()
            arrays += [
                by_agent.indptr.astype(np.int64),
                by_agent.indices.astype(np.int32),
                by_agent.data.astype(np.float64),
            ]
    return tuple(arrays)
