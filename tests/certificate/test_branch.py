from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sottovoce.certificate.branch import maximise, middle
from sottovoce.formula.intervals import FloatArray, Interval, interval


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
    settings = {"tolerance": 0.0, "budget": 10_000, "slack": 1e-9} | options
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
    assert middle(np.array([lower]), np.array([upper]))[0] == pytest.approx(expected)
    assert middle(np.array([-1.7e308]), np.array([1.7e308]))[0] == 0.0
