"""Exact definiteness of rational matrices, with SymPy's minors as the oracle."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.formula.derive import definiteness


def exact(rows: list[list[Any]]) -> list[list[Fraction]]:
    return [[Fraction(entry) for entry in row] for row in rows]


SQUARES = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(st.integers(-3, 3), min_size=n, max_size=n), min_size=n, max_size=n)
)


@settings(max_examples=80, deadline=None)
@given(rows=SQUARES, shift=st.sampled_from([0, 0, 1, -1]), gram=st.booleans())
def test_definiteness_agrees_with_the_signs_of_all_principal_minors(
    rows: list[list[int]], shift: int, gram: bool
) -> None:
    a = sp.Matrix(rows)
    matrix = (a.T * a if gram else a + a.T) / 7 + sp.Rational(shift, 10**9) * sp.eye(a.rows)
    n = a.rows
    chosen = [[k for k in range(n) if mask >> k & 1] for mask in range(1, 2**n)]
    minors = [matrix.extract(rows, rows).det() for rows in chosen]
    leading = [matrix[:k, :k].det() for k in range(1, n + 1)]
    expected = 1 if min(leading) > 0 else 0 if min(minors) >= 0 else -1
    fractions = [[Fraction(int(e.p), int(e.q)) for e in row] for row in matrix.tolist()]
    assert definiteness(fractions) == expected


@pytest.mark.parametrize(("corner", "verdict"), [(1, 1), (0, 0), (-1, -1)])
def test_definiteness_sees_one_part_in_two_to_the_200(corner: int, verdict: int) -> None:
    near = 1 + Fraction(corner, 2**200)
    assert definiteness(exact([[1, 1], [1, near]])) == verdict
    assert definiteness(exact([[1, 1, 0], [1, near, 0], [0, 0, 5]])) == verdict


def test_a_zero_on_the_diagonal_allows_nothing_beside_it() -> None:
    assert definiteness(exact([[0, 1], [1, 5]])) == -1
    assert definiteness(exact([[0, 0], [0, 5]])) == 0
    assert definiteness(exact([[0, 0], [0, 0]])) == 0
