"""Derivatives by all symbols at once are SymPy's."""

from __future__ import annotations

import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.problem.derivatives import slopes_of

X = sp.symbols("x1:5")
P = sp.Symbol("p")

leaves = st.sampled_from([*X, P, sp.Integer(2), sp.Float(0.5)])
formulas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=4).map(lambda a: sp.Add(*a)),
        st.lists(inner, min_size=2, max_size=3).map(lambda a: sp.Mul(*a)),
        st.tuples(inner, st.sampled_from([2, 3, -1])).map(lambda a: (a[0] + 7) ** a[1]),
        inner.map(lambda a: sp.exp(a / 9)),
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(formulas)
def test_they_are_sympys_own(formula: sp.Expr) -> None:
    found = slopes_of(formula, X)
    assert list(found) == [s for s in X if s in found]
    at = {s: sp.Rational(k + 3, 7) for k, s in enumerate((*X, P))}
    for s in X:
        own, theirs = (float(e.subs(at)) for e in (found.get(s, sp.S.Zero), sp.diff(formula, s)))
        assert abs(own - theirs) <= 1e-9 * (1 + abs(theirs))


def test_what_is_zero_is_left_out_and_others_symbols_are_numbers() -> None:
    x, y, z, _ = X
    assert slopes_of(P * x * y + z - z * 1.0, (x, z)) == {x: P * y}
    assert slopes_of(x**P, (x, P)) == {x: sp.diff(x**P, x), P: sp.diff(x**P, P)}
    assert slopes_of(sv.pos(x - y), (x, y)).keys() == {x, y}
