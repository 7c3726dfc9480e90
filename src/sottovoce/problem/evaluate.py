"""A problem at one point: the objective and the public constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.problem.agents import Array, read_only
from sottovoce.problem.numeric import Formulas, Numeric
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
        rows: ``g_j(x)``, one number per stated constraint: those that couple agents, then those on
            one agent, which its set keeps; of a row of every agent of a fleet the worst one's.
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
    rows, equality = [numeric.constraints(x)], [numeric.equality]
    begin = 0
    agents = {}
    for group in problem.groups:
        end = begin + group.count * group.dim
        for s in group.symbols:
            agents[s] = group, x[begin:end].reshape(group.count, group.dim)
        begin = end
    for own in problem.cloud.own:
        group, states = next(agents[s] for s in own.formulas[0].symbols if s in agents)
        values = Formulas(own.formulas, group).values(states)[0]
        rows.append(values[[np.argmax(violation(values, np.array(own.equality)))]])
        equality.append(np.array([own.equality]))
    with np.errstate(all="ignore"):
        return Evaluation(
            objective=numeric.objective(x),
            rows=read_only(np.concatenate(rows)),
            labels=(*problem.cloud.row_labels(), *(own.name for own in problem.cloud.own)),
            equality=np.concatenate(equality),
        )
