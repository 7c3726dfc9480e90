"""What the agents of a fleet minimise: formulas, numbers and the structure of the problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.formula.expression import Expression

Array: TypeAlias = NDArray[np.float64]
Weights: TypeAlias = Any  # None, a dense array (rows, count), or a SciPy sparse matrix


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """Rows that a fleet adds to: ``sum_i W[r, i] h_t(x_i)`` to row ``row + r T + t``.

    Attributes:
        row: the first row.
        terms: h_t.
        weights: W; None for 1.
        table: every term has weights of its own: W is sparse with column ``i T + t``, and row
            ``row + r`` is ``sum_it W[r, i T + t] h_t(x_i)``.
    """

    row: int
    terms: tuple[Expression, ...]
    weights: Weights = None
    table: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalRow:
    """``least <= a'x <= most``, or a square ``k (a'x - e)^2`` of the objective.

    Attributes:
        factors: a, formulas of the parameters.
        least: lower limits, all of which hold; for a square e.
        most: upper limits, likewise.
        square: k; None for a row of the agent's set.
    """

    factors: tuple[Expression, ...]
    least: tuple[Expression, ...]
    most: tuple[Expression, ...]
    square: Expression | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeparableForm:
    """``sum_c q_c(x_c) + squares`` with q_c of degree two at most, over two rows at most."""

    objective: Expression
    rows: tuple[LocalRow, ...]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmoothForm:
    """A smooth convex problem in the state and some variables more, for the interior-point method.

    Attributes:
        extra: the variables more; they stand for non-smooth terms.
        objective: f with them.
        terms: every h with them.
        inequalities: ``c(x, t) <= 0``.
        equalities: ``e(x) = 0``, affine.
        lower: bounds of the variables more, shape (count, extra).
        upper: likewise.
    """

    extra: tuple[Expression, ...]
    objective: Expression
    terms: tuple[Expression, ...]
    inequalities: tuple[Expression, ...]
    equalities: tuple[Expression, ...]
    lower: Array
    upper: Array


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetProblem:
    """What the agents of a fleet minimise; all formulas canonical.

    Attributes:
        states: the symbols of the d components.
        parameters: the parameters that formulas name, with the agents' numbers, shape (count,).
        objective: f.
        sums: what they add to rows.
        lower: bounds, shape (count, d).
        upper: likewise.
        form: the structure of the problem; None where the state is a vector, or a number, in a box.
        local_rows: how many rows their own sets have beside the bounds.
        gradient: of an objective that is Python code, added to that of ``objective``.
    """

    states: tuple[Expression, ...]
    parameters: Mapping[Expression, Array]
    objective: Expression
    sums: tuple[Terms, ...]
    lower: Array
    upper: Array
    form: SeparableForm | SmoothForm | None = None
    local_rows: int = 0
    gradient: Callable[[Any], Any] | None = None

    @property
    def terms(self) -> tuple[Expression, ...]:
        """Every h_t."""
        return tuple(h for part in self.sums for h in part.terms)
