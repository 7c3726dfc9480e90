"""A problem at one point: the objective and the constraints that couple agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.problem.agents import Array, read_only
from sottovoce.problem.numeric import Numeric
from sottovoce.tables import PlainTable

if TYPE_CHECKING:
    from sottovoce.problem.problem import Problem

_SHOWN = 12


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """The objective and the constraints of a problem at one point.

    Attributes:
        objective: ``sum_i f_i(x_i)``; not a number where an objective is code without a value.
        rows: ``g_j(x)``, one number per stated constraint that couples agents; what names one agent
            alone is part of its set.
        labels: what people call the constraints.
        equality: which of them must be 0 and not just at most 0.
    """

    objective: float
    rows: Array
    labels: tuple[str, ...]
    equality: NDArray[np.bool_]

    @property
    def violation(self) -> Array:
        """``max(0, g_j)``, or ``|g_j|`` of an equality, one number per constraint."""
        return violation(self.rows, self.equality)

    def __repr__(self) -> str:
        worst = float(np.max(self.violation, initial=0.0))
        return (
            f"Evaluation(objective={self.objective:.6g}, rows={self.rows.size}, "
            f"violation={worst:.3g})"
        )

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def __str__(self) -> str:
        return str(self._table())

    def _table(self) -> PlainTable:
        listed = zip(self.labels, self.rows.tolist(), self.violation.tolist(), strict=True)
        rows = tuple((name, f"{g:.6g}", f"{off:.3g}") for name, g, off in list(listed)[:_SHOWN])
        more = self.rows.size - len(rows)
        return PlainTable(
            title=f"objective {self.objective:.6g}",
            columns=("constraint", "g", "violation"),
            rows=rows,
            notes=(f"... and {more:,} more",) if more else (),
        )


def violation(rows: Array, equality: NDArray[np.bool_]) -> Array:
    """Return ``max(0, g_j)``, or ``|g_j|`` of an equality, along the last axis."""
    return np.where(equality, np.abs(rows), np.maximum(rows, 0.0))


def evaluation(problem: Problem, x: Array) -> Evaluation:
    """Return a problem's objective and stated constraints at x, all states in one vector."""
    numeric = Numeric(problem)
    with np.errstate(all="ignore"):
        return Evaluation(
            objective=numeric.objective(x),
            rows=read_only(numeric.constraints(x)),
            labels=tuple(problem.cloud.row_labels()),
            equality=numeric.equality,
        )
