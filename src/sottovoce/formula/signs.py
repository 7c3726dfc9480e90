"""Signs of formulas, by which rules for convexity are applied: what an oracle has to answer.

``Signs``       by the form of a formula alone, wherever it is defined;
``BoxSigns``    by its range over a box, rounding not counted;
the certificate's, by interval arithmetic with outward rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, final

import numpy as np

from sottovoce.formula.canonical import positive_by_form
from sottovoce.formula.enclosure import Ends, value_range
from sottovoce.formula.expression import Expression
from sottovoce.formula.order import in_order
from sottovoce.formula.tape import Array, tape

Hessian: TypeAlias = Mapping[tuple[Expression, Expression], Expression]

_MAX_LETTERS = 80  # of a formula in a message
_ROUNDING = 1e-12  # how far below 0 an eigenvalue may fall, relative to the largest


class Signs:
    """What the rules have to know of formulas where they are judged: here by their form alone."""

    defined: bool = True
    """Whether formulas may be assumed to be defined: no roots and logarithms of negative values."""

    def positive(self, expr: Expression, *, strict: bool) -> bool:
        """Whether a formula is at least 0, or positive, wherever it is defined."""
        return positive_by_form(expr, strict=strict)

    def semidefinite(self, entries: Hessian, variables: Sequence[Expression]) -> int:
        """The sign of a Hessian that depends on parameters, 1 or -1; 0 if it is not known."""
        return 0

    def range_text(self, expr: Expression) -> str:
        """The range of a formula for a message; nothing if it is not known."""
        return ""


@final
class BoxSigns(Signs):
    """Signs by the range of a formula over a box of symbols and parameters.

    ``parameters`` has the values of every parameter, one per agent.
    """

    def __init__(
        self, box: Mapping[Expression, Ends], parameters: Mapping[Expression, Array]
    ) -> None:
        self._box, self._parameters = box, parameters

    def positive(self, expr: Expression, *, strict: bool) -> bool:
        """Whether a formula is at least 0, or positive, on the box."""
        if positive_by_form(expr, strict=strict):
            return True
        low, _ = value_range(expr, self._box)
        return bool(low > 0.0 if strict else low >= 0.0)

    def semidefinite(self, entries: Hessian, variables: Sequence[Expression]) -> int:
        """The sign for every agent, by eigenvalues."""
        used = in_order({s for entry in entries.values() for s in entry.symbols})
        values = tape(entries.values(), used)(*(self._parameters[s] for s in used))
        shape = np.broadcast_shapes(*(np.shape(v) for v in values))
        place = {s: k for k, s in enumerate(variables)}
        matrix = np.zeros((*shape, len(place), len(place)))
        for (a, b), value in zip(entries, values, strict=True):
            matrix[..., place[a], place[b]] = matrix[..., place[b], place[a]] = value
        sizes = np.linalg.eigvalsh(matrix)
        slack = _ROUNDING * np.abs(sizes).max(axis=-1)
        if np.all(sizes[..., 0] >= -slack):
            return 1
        return -1 if np.all(sizes[..., -1] <= slack) else 0

    def range_text(self, expr: Expression) -> str:
        """The range as text."""
        low, high = value_range(expr, self._box)
        return f" with {brief(expr)} in [{float(low):.6g}, {float(high):.6g}]"


def brief(expr: Expression) -> str:
    """A formula as text, truncated to one line."""
    text = str(expr)
    return text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]}..."
