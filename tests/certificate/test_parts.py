from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_expressions import (
    SYMBOLS,
    expressions,
    fractions,
    inside,
    patiently,
    precise,
    symbols,
    total,
)

from sottovoce.certificate.forms import exact
from sottovoce.certificate.parts import candidates, name_parts, replaced, uses
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import exactly, symbol
from sottovoce.formula.functions import exp, sqrt, sum_squares

X = symbols("x", 7)
TEN = dict.fromkeys(X, (-10.0, 10.0))
EXPONENTIALS = [exp(x) for x in X]


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def free(components: Any) -> set[Any]:
    return set().union(*(component.symbols for component in components))


def test_softmax_needs_two_variables_and_its_mixed_derivative_three() -> None:
    whole = total(EXPONENTIALS)
    share = canonical(EXPONENTIALS[0] / whole)
    assert len(free(name_parts([share], TEN).components)) == 2
    mixed = canonical(EXPONENTIALS[0] * EXPONENTIALS[1] / whole**2)
    assert len(free(name_parts([mixed], TEN).components)) == 3


def test_the_range_of_a_part_is_exact() -> None:
    named = name_parts([canonical(X[0] / sqrt(1 + sum_squares(*X)))], TEN)
    (part,) = named.parts
    assert named.box[part.name] == (0.0, 600.0)
    assert part.least.tolist() == [0.0] * 6
    assert np.abs(part.greatest).tolist() == [10.0] * 6


def test_a_part_that_is_monotone_may_repeat_a_variable() -> None:
    falling = exp(X[1] - X[0]) + exp(X[2] - X[0])
    named = name_parts([canonical(1 / (1 + falling) - 1 / (1 + falling) ** 2)], TEN)
    assert len(free(named.components)) == 1


def test_a_part_whose_range_is_not_known_stays() -> None:
    tangled = X[0] * X[1] - X[0] + X[1] ** 2
    assert name_parts([canonical(exp(tangled) + tangled)], TEN).parts == ()


def test_variables_that_occur_elsewhere_are_not_named() -> None:
    def found(*exprs: Any) -> list[str]:
        return [str(part) for part in candidates([canonical(e) for e in exprs])]

    whole = (X[0] + X[1]) * X[2] + X[2] ** 2
    assert found(X[0] * X[1] + X[0], X[1]) == []
    assert found(whole) == [str(canonical(whole)), "x1 + x2"]
    assert found(whole, X[2]) == ["x1 + x2"]
    assert "x2 + x3" in found((X[0] + X[1] + X[2]) / X[0])
    assert "x2*x3" in found(X[0] * X[1] * X[2] + X[0])


def test_substitution_finds_terms_within_a_larger_sum() -> None:
    name = symbol("s")
    expr, part = canonical((X[0] + X[1] + X[2]) * exp(X[1] + X[2])), canonical(X[1] + X[2])
    assert replaced(expr, part, name) is canonical((X[0] + name) * exp(name))


def test_uses_count_a_tree_written_out() -> None:
    assert uses(canonical(X[0] * exp(X[0] + X[1]))) == {X[0]: 2, X[1]: 1}


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.3, 0.999, 1.0])
def test_a_value_of_a_part_is_traced_back_to_a_point(share: float) -> None:
    others = total(EXPONENTIALS[1:])
    (part,) = name_parts([canonical(X[0] / (X[0] ** 2 + others))], TEN).parts
    low, high = 6 * np.exp(-10.0), 6 * np.exp(10.0)
    value = low + share * (high - low)
    point = part.solve(value)
    assert float(precise(others, point)) == pytest.approx(value, rel=1e-12)
    assert all(-10 <= coordinate <= 10 for coordinate in point.values())


# A point is traced along a segment, so it is only as fine as the floats between 0 and 1.
quarters = st.lists(st.integers(-12, 12), min_size=2, max_size=2, unique=True).map(sorted)
coarse = st.fixed_dictionaries(
    {symbol: quarters.map(lambda ends: (ends[0] / 4, ends[1] / 4)) for symbol in SYMBOLS}
)


@patiently
@given(expressions, coarse, fractions)
def test_components_are_at_a_restored_point_what_they_were(
    expr: Any, box: Any, shares: list[float]
) -> None:
    try:
        with exactly():
            named = name_parts([exact(expr)], box)
    except CertificateError:
        return
    sides = {symbol: named.box[symbol] for symbol in free(named.components)}
    at = inside(sides, [(shares * 3)[k] for k in range(len(sides))])
    before, after = (
        precise(named.components[0], at),
        precise(expr, {**inside(box, shares), **named.restore(at)}),
    )
    if before is not None and after is not None and abs(before) < 1e6:
        assert abs(before - after) <= 1e-6 * (1 + abs(before))
