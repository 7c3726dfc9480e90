"""NumPy's functions and arrays, Python's operators: they work, or say what to write.

The common ones are in ``tests/behaviour``: ``test_array_habits`` and ``test_refused_statements``.
"""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import Expression, Relation, symbol
from sottovoce.formula.functions import (
    FormulaArray,
    absolute,
    bundled,
    exp,
    formula_array,
    huber,
    log,
    logsumexp,
    maximum,
    pos,
    sum_squares,
)

x: Any = symbol("x")
y: Any = symbol("y")
V = formula_array([symbol(f"v[{k}]") for k in (1, 2, 3)])
A = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
ROWS = [V[0] - 2 * V[1] + 0.5 * V[2], 3 * V[1] + V[2]]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (np.fabs(x), abs(x)),
        (np.logaddexp(x, y), logsumexp(x, y)),
        (np.reciprocal(x), 1 / x),
        (np.float64(2.0) + x, x + 2),
        (x * np.float32(0.5), 0.5 * x),
        (np.float64(2.0) ** x, 2.0**x),
        (Fraction(1, 3) * x, x / 3),
        (np.dot(V, V), sum_squares(V)),
        (np.mean(V), (V[0] + V[1] + V[2]) / 3),
        (np.prod(V), V[0] * V[1] * V[2]),
    ],
)
def test_habits_of_numpy_give_formulas(formula: Any, expected: Any) -> None:
    assert isinstance(formula, Expression)
    assert canonical(formula) is canonical(expected)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (A @ V - 1, [r - 1 for r in ROWS]),
        (1 / (A @ V), [1 / r for r in ROWS]),
        (np.array([1.0, 2.0]) * x, [x, 2 * x]),
        (x + np.array([1.0, 2.0]), [x + 1, x + 2]),
        (np.array([1.0, 2.0]) ** x, [1.0**x, 2.0**x]),
        (np.log(V[:2]), [log(V[0]), log(V[1])]),
        (pos(V[1:] - 1), [pos(V[1] - 1), pos(V[2] - 1)]),
        (maximum(V, 1), [maximum(v, 1) for v in V]),
        (huber(V, 2), [huber(v, 2) for v in V]),
        (absolute(V), [abs(v) for v in V]),
        (np.cumsum(V), [V[0], V[0] + V[1], V[0] + V[1] + V[2]]),
        (np.diff(V), [V[1] - V[0], V[2] - V[1]]),
    ],
)
def test_arrays_go_entry_by_entry(array: Any, expected: list[Any]) -> None:
    assert isinstance(array, FormulaArray)
    assert all(canonical(a) is canonical(b) for a, b in zip(array, expected, strict=True))


@pytest.mark.parametrize("sign", ["<=", ">=", "=="])
@pytest.mark.parametrize(
    ("left", "right", "count"),
    [(x, y, 0), (x, 3, 0), (V, 1, 3), (V, [1, 2, 3], 3), (V, np.ones(3), 3), (x, np.ones(2), 2)],
)
def test_comparisons_state_relations(sign: str, left: Any, right: Any, count: int) -> None:
    compare = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}[sign]
    result = compare(left, right)
    rows = list(result) if count else [result]
    assert len(rows) == max(count, 1)
    lefts = left if np.ndim(left) else [left] * len(rows)
    rights = right if np.ndim(right) else [right] * len(rows)
    for row, a, b in zip(rows, lefts, rights, strict=True):
        assert isinstance(row, Relation)
        assert row.equality == (sign == "==")
        # NumPy turns what it compares around; an equality may then have the other sign.
        turned = sign == ">=" or (sign == "==" and str(row).startswith("1"))
        assert row.g is canonical(b - a if turned else a - b)


def test_a_number_may_stand_on_the_left() -> None:
    assert operator.le(3, x).g is canonical(3 - x)
    assert operator.eq(3, x).equality
    assert operator.ge(np.float64(3), x).g is canonical(x - 3)
    assert [row.g for row in np.array([1, 2]) <= V[:2]][1] is canonical(2 - V[1])
    assert [row.equality for row in np.ones(3) == V] == [True] * 3


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: not x, ProblemError, "formula has no truth value .* state a relation"),
        (lambda: V > 1, ProblemError, "must include its border.* write >="),
        (lambda: V != 1, ProblemError, "write <=, >= or =="),
        (lambda: x in [y], ProblemError, "no truth value"),
        (lambda: np.log10(V), ProblemError, r"write sv.log\(x\)/sv.log\(10\)"),
        (lambda: np.sort(V), ProblemError, "a row must include its border"),
        (lambda: x + "1", TypeError, "unsupported operand"),
        (lambda: x + True, TypeError, "unsupported operand"),
        (lambda: exp(x <= 1), ProblemError, "must not be a comparison, got x <= 1"),
        (lambda: maximum([]), ProblemError, "maximum takes at least one argument, got none"),
        (lambda: V.__setitem__(0, x), ValueError, "read-only"),
        (lambda: hash(V), TypeError, "unhashable"),
    ],
)
def test_what_cannot_work_says_what_to_write(make: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_one_symbol_is_no_array_and_a_constant_has_a_value() -> None:
    assert bundled([x]) is x
    assert bundled([x, y]).shape == (2,)
    assert float(2 * (x - x) + 3) == 3.0
