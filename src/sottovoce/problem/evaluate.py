"""A problem at one point: the objective and the stated constraints there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.tape import tape
from sottovoce.problem.agents import Array, read_only
from sottovoce.problem.code import Objective
from sottovoce.problem.local_numeric import numeric_of
from sottovoce.problem.numeric import Rows
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
        rows: ``g_j(x)``, one number per stated constraint.
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


@final
class Evaluator:
    """A problem's objective and stated constraints as functions of all states.

    Args:
        problem: what to evaluate, objectives that are code included.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._rows = Rows(problem, problem.constraints)
        if any(code is not None for code in problem.code):
            ends = np.cumsum([0, *(g.count * g.dim for g in problem.groups)]).tolist()
            self._valued = [
                (slice(*here), value_of(problem, index, code))
                for index, (here, code) in enumerate(zip(pairwise(ends), problem.code, strict=True))
            ]
        else:
            self._valued = [(slice(None), numeric_of(problem).objective)]

    def objective(self, x: Array) -> float:
        """``sum_i f_i(x_i)``."""
        with np.errstate(all="ignore"):
            return float(sum(value(x[here]) for here, value in self._valued))

    def rows(self, x: Array) -> Array:
        """``g(x)``, one number per stated constraint."""
        with np.errstate(all="ignore"):
            return self._rows.values(x)

    def at(self, x: Array) -> Evaluation:
        """Both, at one point."""
        return Evaluation(
            objective=self.objective(x),
            rows=read_only(self.rows(x)),
            labels=tuple(self._problem.cloud.row_labels()),
            equality=self._rows.equality,
        )


def value_of(problem: Problem, index: int, code: Objective | None) -> Callable[[Array], float]:
    """Return the objective of all agents of a group, a function of their states."""
    group, formula = problem.groups[index], problem.objectives[index]
    if code is not None:
        told = code.value
        return lambda x: np.nan if told is None else float(told(x))
    objective = tape([formula], (*group.symbols, *group.parameters))
    known = list(group.parameters.values())

    def value(x: Array) -> float:
        columns = x.reshape(group.count, group.dim).T
        (found,) = objective.arrays([*columns, *known], (group.count,))
        return float(np.sum(found))

    return value
