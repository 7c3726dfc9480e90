"""What a plan says is released, from its public formulas: ``o = F(x) + w``, ``w_o`` with sigma_o.

An audit holds against this what the deployed code did. It is written from the statement of the
problem and shares no code with the cloud's own evaluation, so that a slip there shows.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import sympy as sp

from sottovoce.certify.gradients import gradient_entries
from sottovoce.privacy.plan import NoisePlan
from sottovoce.problem.agents import Array, lower_bounds, upper_bounds
from sottovoce.problem.numeric import Block, Formulas, Part, blocks_of
from sottovoce.problem.problem import CloudView

_POINTS = 4096  # evaluated together: columns that fit the cache


@final
class Stated:
    """``x -> F(x)`` of all outputs that get noise, in the order of a release.

    Args:
        plan: the noise.

    Attributes:
        sigma: the stated standard deviation of every output.
        lower: lower bounds of all states.
        upper: upper bounds of all states.
    """

    def __init__(self, plan: NoisePlan) -> None:
        cloud = plan.cloud
        self._noisy = np.flatnonzero(plan.sigma > 0)
        self.sigma = plan.sigma[self._noisy]
        self.lower, self.upper = lower_bounds(plan.domain), upper_bounds(plan.domain)
        self._offset = np.concatenate([c.offset for c in cloud.constraints])
        self._blocks, self._place = blocks_of(cloud.groups)
        rows, formulas = _rows_of_named(cloud)
        self._rows = np.array(rows, dtype=np.int64)
        self._function = self._compiled([*formulas, *_entries(plan)])
        self._sums = tuple(self._sums_of(cloud))

    def __call__(self, points: Array) -> Array:
        """Return F at points of shape (count, N), as an array (count, outputs)."""
        pieces = [self._piece(points[at : at + _POINTS]) for at in range(0, len(points), _POINTS)]
        return np.concatenate([np.zeros((0, self.sigma.size)), *pieces])

    def standardised(self, points: Array, released: Array) -> Array:
        """Return the noise of releases at points, in units of sigma."""
        return np.asarray((released - self(points)) / self.sigma)

    def shifts(self, begin: Array, end: Array) -> Array:
        """Return ``||diag(1/sigma) (F(end) - F(begin))||`` for each pair of points."""
        return np.asarray(np.linalg.norm((self(end) - self(begin)) / self.sigma, axis=1))

    def _piece(self, points: Array) -> Array:
        g = np.tile(self._offset, (len(points), 1))
        entries = np.zeros((len(points), 0))
        if self._function is not None:
            with np.errstate(all="ignore"):
                values = self._function(*points[:, self._blocks[0].index].T)
            columns = [np.broadcast_to(v, (len(points),)) for v in values]
            named = np.stack(columns, axis=1).astype(np.float64)
            g[:, self._rows] += named[:, : self._rows.size]
            entries = named[:, self._rows.size :]
        for part in self._sums:
            for row, x in zip(g, points, strict=True):
                row[part.rows] += part.gather(part.formulas.values(part.formulas.block.of(x)))
        return np.concatenate([g, entries], axis=1)[:, self._noisy]

    def _compiled(self, formulas: list[sp.Expr]) -> Any:
        if not formulas:
            return None
        block = self._blocks[0]
        exact = list(Formulas(formulas, block).exprs)
        return sp.lambdify(list(block.symbols), exact, modules="numpy", cse=True)

    def _sums_of(self, cloud: CloudView) -> Any:
        begin = 0
        for family in cloud.constraints:
            for term in family.sums:
                block: Block = self._place[term.group.name]
                rows = begin + np.arange(term.rows).reshape(-1, len(term.terms))
                formulas = Formulas(term.terms, block)
                yield Part(rows=rows, weights=term.weights, formulas=formulas)
            begin += family.rows


def _rows_of_named(cloud: CloudView) -> tuple[list[int], list[sp.Expr]]:
    rows: list[int] = []
    formulas: list[sp.Expr] = []
    begin = 0
    for family in cloud.constraints:
        rows += range(begin, begin + len(family.rest))
        formulas += family.rest
        begin += family.rows
    return rows, formulas


def _entries(plan: NoisePlan) -> list[sp.Expr]:
    formulas = {(e.row, e.column): e.formula for e in gradient_entries(plan.cloud)}
    pairs = zip(plan.gradient_rows.tolist(), plan.gradient_columns.tolist(), strict=True)
    return [formulas.get(pair, sp.Integer(0)) for pair in pairs]
