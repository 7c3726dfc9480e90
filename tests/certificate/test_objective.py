from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from random_expressions import SYMBOLS, boxes, expressions, fractions, inside, patiently, precise

from sottovoce.certificate.forms import simplified
from sottovoce.certificate.objective import Component, Norm, Signed, euclidean
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import number
from sottovoce.formula.functions import exp
from sottovoce.formula.intervals import interval

X, Y, Z = SYMBOLS


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def component_of(forms: Any, *rest: Any) -> Component:
    return Component.of([canonical(form) for form in forms], *rest)


def column(box: Any) -> Any:
    lower, upper = np.transpose([box[symbol] for symbol in SYMBOLS])
    return interval(lower[:, None], upper[:, None])


@patiently
@given(expressions, boxes, fractions)
def test_a_component_is_enclosed_with_all_its_forms(
    expr: Any, box: Any, shares: list[float]
) -> None:
    component = component_of([expr, simplified(expr)], SYMBOLS)
    try:
        value, slope = component.over(column(box))
    except CertificateError:
        return
    point = inside(box, shares)
    exact = precise(expr, point)
    assert exact is None or value.lower[0] <= exact <= value.upper[0]
    for row, symbol in enumerate(SYMBOLS):
        steepness = precise(derivative(expr, symbol), point)
        assert steepness is None or slope.lower[row, 0] <= steepness <= slope.upper[row, 0]


def test_the_mean_value_form_narrows_a_small_box() -> None:
    expr = X * (1 - X) * (2 - X)
    small = interval([[0.5]], [[0.51]])
    value, _ = component_of([expr], [X]).over(small)
    natural = 0.51 * 0.5 * 1.5 - 0.5 * 0.49 * 1.49
    assert value.upper[0] - value.lower[0] < natural / 5


def test_forms_are_intersected() -> None:
    repeated, single = X**2 + 2 * X, (X + 1) ** 2 - 1
    box = interval([[-2.0]], [[1.0]])
    value, _ = component_of([repeated, single], [X]).over(box)
    assert (value.lower[0], value.upper[0]) == (-1.0, 3.0)


def test_a_known_fact_raises_a_slope_to_zero_and_no_further() -> None:
    box = interval([[0.0], [0.0]], [[2.0], [1.0]])
    expr = X**3 - 3 * X**2 + 3 * X - Y
    _, plain = component_of([expr], [X, Y]).over(box)
    _, told = component_of([expr], [X, Y], frozenset({X})).over(box)
    assert plain.lower[0, 0] < 0 == told.lower[0, 0]
    assert told.upper[0, 0] == plain.upper[0, 0]
    assert told.lower[1, 0] == plain.lower[1, 0] == -1


@pytest.mark.parametrize(
    ("expr", "affine"),
    [
        (3 * X + Y**2 + 1, [True, False]),
        (X * Y, [True, True]),
        (X * Y * (X + 1), [False, True]),
        (exp(X) * Y + Y, [False, True]),
        (number(4), [True, True]),
    ],
)
def test_affine_variables_are_recognised_by_structure(expr: Any, affine: list[bool]) -> None:
    component = component_of([expr], [X, Y])
    assert component.affine.tolist() == affine
    assert Signed(component=component, sign=-1).convex.tolist() == affine
    both = Norm(components=(component, component_of([X**2 * Y], [X, Y])))
    assert both.convex.tolist() == [False, affine[1]]


def test_signs_turn_bounds_and_slopes_around() -> None:
    box = interval([[1.0]], [[3.0]])
    up, down = (Signed(component=component_of([X**2], [X]), sign=s) for s in (1, -1))
    assert up.bound(box)[0] == [9.0]
    assert down.bound(box)[0] == [-1.0]
    assert down.bound(box)[1].upper <= 0 <= up.bound(box)[1].lower
    assert down.value(np.array([[2.0]])) == [-4.0]


def test_a_norm_has_the_slope_of_half_its_square() -> None:
    components = (component_of([X], [X, Y]), component_of([Y - 3], [X, Y]))
    upper, slope = Norm(components=components).bound(interval([[3.0], [1.0]], [[4.0], [2.0]]))
    assert upper[0] == pytest.approx(np.sqrt(20.0), rel=1e-15)
    assert slope.lower[0, 0] == pytest.approx(3.0)
    assert slope.upper[1, 0] == pytest.approx(-1.0)
    assert Norm(components=components).value(np.array([[3.0], [-1.0]])) == [5.0]


def test_euclidean_neither_overflows_nor_vanishes() -> None:
    for scale in (1e-200, 1.0, 1e200):
        norm = euclidean([interval(3 * scale, 3 * scale), interval(-4 * scale, -4 * scale)])
        assert norm.lower <= 5 * scale <= norm.upper
        assert norm.upper - norm.lower <= 5e-15 * scale
    assert euclidean([interval(0.0, 0.0)]).upper == 0.0
    assert euclidean([interval(-np.inf, 1.0)]).upper == np.inf
