from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given

from random_expressions import SYMBOLS, boxes, expressions, fractions, inside, patiently, precise
from sottovoce.certificate.branch import Component, Norm, Signed, maximise, split_point
from sottovoce.certificate.forms import simplified
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import number
from sottovoce.formula.functions import exp
from sottovoce.formula.intervals import FloatArray, Interval, interval

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


class Parabola:
    """-(x - a)^2 summed over the coordinates, bounded loosely; slopes may be withheld."""

    def __init__(self, top: list[float], *, slopes: bool = True) -> None:
        self.top = np.array(top)[:, None]
        self.slopes = slopes
        self.boxes = 0
        self.convex = np.zeros(len(top), dtype=np.bool_)

    def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
        self.boxes += box.shape[1]
        nearest = np.clip(self.top, box.lower, box.upper)
        upper = self.value(nearest) + np.sum((box.upper - box.lower) ** 2, axis=0)
        slope = interval(-2 * (box.upper - self.top), -2 * (box.lower - self.top))
        if not self.slopes:
            slope = interval(np.minimum(slope.lower, -1.0), np.maximum(slope.upper, 1.0))
        return upper, slope

    def value(self, points: FloatArray) -> FloatArray:
        total: FloatArray = -np.sum((points - self.top) ** 2, axis=0)
        return total


class Bowl:
    """+(x - a)^2 summed over the coordinates, bounded loosely: greatest at a corner."""

    def __init__(self, bottom: list[float], *, convex: bool) -> None:
        self.hill = Parabola(bottom)
        self.convex = np.full(len(bottom), convex)

    def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
        farthest = np.where(self.hill.top > (box.lower + box.upper) / 2, box.lower, box.upper)
        upper = self.value(farthest) + np.sum(box.upper - box.lower, axis=0)
        return upper, -self.hill.bound(box)[1]

    def value(self, points: FloatArray) -> FloatArray:
        return -self.hill.value(points)


def square(count: int) -> Interval:
    return interval(np.full(count, -10.0), np.full(count, 10.0))


def search(objective: Any, count: int, **options: Any) -> Any:
    settings = {"tolerance": 1e-9, "budget": 10_000} | options
    return maximise(objective, square(count), **settings)


def test_bound_and_example_meet_at_the_maximum() -> None:
    outcome = search(Parabola([1.3, -7.9]), 2)
    assert outcome.found <= 0.0 <= outcome.upper
    assert outcome.upper - outcome.found <= 1e-9
    assert outcome.at == pytest.approx([1.3, -7.9], abs=1e-4)


def test_a_maximum_outside_the_box_is_found_on_its_face_by_monotonicity() -> None:
    objective = Parabola([20.0, -30.0])
    outcome = search(objective, 2)
    assert outcome.upper == outcome.found == -500.0
    assert outcome.at.tolist() == [10.0, -10.0]
    assert objective.boxes == outcome.boxes <= 2
    blind = Parabola([20.0, -30.0], slopes=False)
    assert search(blind, 2).upper == pytest.approx(-500.0)
    assert blind.boxes > 10


def test_the_budget_is_kept_and_the_bound_stays_valid() -> None:
    for budget in (1, 2, 7, 50):
        objective = Parabola([1.3, -7.9, 3.3])
        outcome = search(objective, 3, budget=budget)
        assert objective.boxes == outcome.boxes <= budget + 1
        assert outcome.upper >= 0.0 >= outcome.found


def test_boxes_that_cannot_beat_a_known_value_are_cut() -> None:
    objective = Parabola([1.3, -7.9])
    outcome = search(objective, 2, found=1_000.0)
    assert outcome.boxes == 1
    assert outcome.upper == outcome.found == 1_000.0


def test_a_convex_objective_is_searched_on_faces() -> None:
    faces, halves = (search(Bowl([1.0, -2.0, 0.5], convex=c), 3) for c in (True, False))
    for outcome in (faces, halves):
        assert outcome.found == 121 + 144 + 110.25
        assert outcome.upper == pytest.approx(outcome.found, abs=1e-8)
    assert faces.boxes < halves.boxes


def test_a_point_is_a_box() -> None:
    outcome = maximise(
        Parabola([1.0]), interval(np.array([3.0]), np.array([3.0])), tolerance=0.0, budget=10
    )
    assert outcome.upper == outcome.found == -4.0
    assert outcome.boxes == 1


def test_an_endless_bound_ends_the_search() -> None:
    class Pole(Parabola):
        def bound(self, box: Interval) -> tuple[FloatArray, Interval]:
            upper, slope = super().bound(box)
            inside = np.all((box.lower <= self.top) & (self.top <= box.upper), axis=0)
            return np.where(inside, np.inf, upper), interval(
                np.where(inside, -np.inf, slope.lower), np.where(inside, np.inf, slope.upper)
            )

    objective = Pole([1.3, -7.9])
    assert search(objective, 2).upper == np.inf
    assert objective.boxes < 1_000


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
