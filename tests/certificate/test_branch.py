"""The search itself: bounds hold, boxes are spared, and enclosures hold what mpmath computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given

from random_expressions import SYMBOLS, boxes, expressions, fractions, inside, patiently, precise
from sottovoce.certificate.branch import Component, Maximum, Norm, maximise_norm, split_point
from sottovoce.certificate.forms import simplified
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


def search(expr: Any, side: tuple[float, float] = (-10.0, 10.0), **options: Any) -> Maximum:
    """Maximise a formula over a cube."""
    component = component_of([expr], [s for s in SYMBOLS if s in canonical(expr).symbols])
    ends = (np.full(len(component.variables), end) for end in side)
    settings = {"tolerance": 1e-9, "budget": 10_000} | options
    return maximise_norm(Norm(components=(component,), sign=1), interval(*ends), **settings)


HILL = -((X - 1.3) ** 2) - (Y + 7.9) ** 2 - X * Y / 8  # a saddle would have slopes of one sign


def test_bound_and_example_meet_at_the_maximum() -> None:
    outcome = search(HILL)
    # The gradient vanishes at -2 (x - 1.3) = y/8 and -2 (y + 7.9) = x/8.
    x, y = np.linalg.solve([[2.0, 0.125], [0.125, 2.0]], [2.6, -15.8])
    exact = -((x - 1.3) ** 2) - (y + 7.9) ** 2 - x * y / 8
    assert outcome.found <= exact + 1e-12
    assert exact <= outcome.upper <= outcome.found + 1e-8
    assert outcome.at == pytest.approx([x, y], abs=1e-3)


def test_a_maximum_outside_the_box_is_on_its_face_by_monotonicity() -> None:
    outcome = search(-((X - 20) ** 2) - (Y + 30) ** 2)
    assert outcome.upper == outcome.found == -500.0
    assert outcome.at.tolist() == [10.0, -10.0]
    assert outcome.boxes <= 2


def test_the_budget_is_kept_and_the_bound_stays_valid() -> None:
    best = search(HILL).found
    for budget in (1, 2, 7, 50):
        outcome = search(HILL, budget=budget)
        assert outcome.boxes <= budget + 1
        assert outcome.upper >= best >= outcome.found


def test_boxes_that_cannot_beat_a_known_value_are_cut() -> None:
    outcome = search(HILL, found=1_000.0)
    assert outcome.boxes == 1
    assert outcome.upper == outcome.found == 1_000.0


def test_an_affine_function_is_searched_on_faces_and_a_point_is_a_box() -> None:
    outcome = search(X * Y - Y * Z + X * Z)
    assert outcome.found == outcome.upper == 100.0
    assert outcome.boxes < 30
    assert search(-((X - 1) ** 2), (3.0, 3.0)).boxes == 1


def test_an_endless_bound_ends_the_search() -> None:
    outcome = search((X - 1.3) ** -2 + Y)
    assert outcome.upper == np.inf
    assert outcome.boxes < 1_000


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [(-10, 10, 0), (0, 4e5, 2e5), (1, 100, 10), (-100, -1, -10), (1, 2, 1.5), (3, 3, 3)],
)
def test_the_middle_respects_the_scale(lower: float, upper: float, expected: float) -> None:
    assert split_point(np.array([lower]), np.array([upper]))[0] == pytest.approx(expected)
    assert split_point(np.array([-1.7e308]), np.array([1.7e308]))[0] == 0.0


@patiently
@given(expressions, boxes, fractions)
def test_a_component_is_enclosed_with_all_its_forms(
    expr: Any, box: Any, shares: list[float]
) -> None:
    component = component_of([expr, simplified(expr)], SYMBOLS)
    lower, upper = np.transpose([box[symbol] for symbol in SYMBOLS])
    try:
        value, slope = component.over(interval(lower[:, None], upper[:, None]))
    except CertificateError:
        return
    point = inside(box, shares)
    exact = precise(expr, point)
    assert exact is None or value.lower[0] <= exact <= value.upper[0]
    for row, symbol in enumerate(SYMBOLS):
        steepness = precise(derivative(expr, symbol), point)
        assert steepness is None or slope.lower[row, 0] <= steepness <= slope.upper[row, 0]


def test_mean_values_forms_and_facts_narrow_an_enclosure() -> None:
    value, _ = component_of([X * (1 - X) * (2 - X)], [X]).over(interval([[0.5]], [[0.51]]))
    natural = 0.51 * 0.5 * 1.5 - 0.5 * 0.49 * 1.49
    assert value.upper[0] - value.lower[0] < natural / 5
    both = component_of([X**2 + 2 * X, (X + 1) ** 2 - 1], [X])
    value, _ = both.over(interval([[-2.0]], [[1.0]]))
    assert (value.lower[0], value.upper[0]) == (-1.0, 3.0)
    box, expr = interval([[0.0], [0.0]], [[2.0], [1.0]]), X**3 - 3 * X**2 + 3 * X - Y
    _, plain = component_of([expr], [X, Y]).over(box)
    _, known = component_of([expr], [X, Y], frozenset({X})).over(box)
    assert plain.lower[0, 0] < 0 == known.lower[0, 0]
    assert known.upper[0, 0] == plain.upper[0, 0]
    assert known.lower[1, 0] == plain.lower[1, 0] == -1


@pytest.mark.parametrize(
    ("expr", "affine"),
    [
        (3 * X + Y**2 + 1, [True, False]),
        (X * Y * (X + 1), [False, True]),
        (exp(X) * Y + Y, [False, True]),
        (number(4), [True, True]),
    ],
)
def test_affine_variables_are_recognised_by_structure(expr: Any, affine: list[bool]) -> None:
    assert component_of([expr], [X, Y]).affine.tolist() == affine
