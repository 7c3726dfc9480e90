"""Public constraints on one component of one state: bounds, not sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from formula_values import evaluate
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import symbol


def problem(*own: Any, lower: Any = -5.0, upper: Any = 5.0) -> sv.Problem:
    x = sv.agents(2, lower=lower, upper=upper, dim=[1, 2])
    y, z = x[1]
    rows = [row(x[0]) if callable(row) else row for row in own]
    return sv.Problem(
        agents=x, objectives=[x[0] ** 2, y**2 + z**2], constraints=[*rows, x[0] + y - z <= 3]
    )


def box(stated: sv.Problem) -> tuple[float, float]:
    group = stated.cloud.groups[0]
    return float(group.lower[0, 0]), float(group.upper[0, 0])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (lambda x: x <= 2, (-5.0, 2.0)),
        (lambda x: -2 * x <= 3, (-1.5, 5.0)),
        (lambda x: x**2 <= 4, (-2.0, 2.0)),
        (lambda x: (x - 1) ** 2 + x <= 1, (0.0, 1.0)),
        (lambda x: sv.exp(x) <= math.e, (-5.0, 1.0)),
        (lambda x: -sv.log(x) <= 0, (1.0, 5.0)),
        (lambda x: 3 * x == 1.5, (0.5, 0.5)),
        ("x1 == 2", (2.0, 2.0)),
        # without an interior: no probe but the minimum itself meets it
        (lambda x: abs(x - 0.3) <= 0, (0.3, 0.3)),
        (lambda x: (3 * x - 0.9) ** 2 <= 0, (0.3, 0.3)),
        # defined near one end only
        (lambda x: -sv.log(x - 4) <= sv.log(4), (4.25, 5.0)),
        (lambda x: -sv.log(-4 - x) <= sv.log(4), (-5.0, -4.25)),
        (lambda x: x <= 99, (-5.0, 5.0)),
    ],
)
def test_a_constraint_on_one_component_is_a_bound(row: Any, expected: tuple[float, float]) -> None:
    found = problem(row)
    assert box(found) == pytest.approx(expected, abs=1e-14)
    assert [family.name for family in found.constraints] == ["g2"]
    assert [family.name for family in found.cloud.separable] == ["g1"]
    assert found.cloud.sums.labels == ("g2",)


@pytest.mark.parametrize(
    "row", [lambda x: x <= -6, lambda x: x**2 <= -1, lambda x: x == 7, lambda x: x >= 9]
)
def test_one_that_never_holds_is_refused(row: Any) -> None:
    with pytest.raises(
        ProblemError, match=r"constraint g1 must hold somewhere between .* got none"
    ):
        problem(row)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.1, 5),
    st.floats(-4, 4, allow_subnormal=False),
    st.floats(0.01, 8),
    st.sampled_from(["square", "exp", "four"]),
)
def test_the_bound_is_the_last_float_that_holds(
    scale: float, centre: float, level: float, kind: str
) -> None:
    formula: Any = {
        "square": lambda s: scale * (s - centre) ** 2,
        "exp": lambda s: sv.exp(scale * (s - centre) / 4) - 1,
        "four": lambda s: scale * (s - centre) ** 4 / 10 + s / 50 - centre / 50,
    }[kind]
    found = problem(lambda x: formula(x) <= level)
    t = symbol("x1")
    g = canonical(formula(t) - level)

    def value(at: float) -> float:
        return float(evaluate(g, {t: at}))

    low, high = box(found)
    for inside in (low, high):
        assert value(inside) <= 1e-9
    for edge, way in ((low, -np.inf), (high, np.inf)):
        beyond = float(edge)
        for _ in range(4):
            beyond = float(np.nextafter(beyond, way))
        if -5 <= beyond <= 5 and edge not in (-5.0, 5.0):
            assert value(beyond) > -1e-12


def test_one_that_may_not_be_convex_stays_a_constraint() -> None:
    kept = problem(lambda x: x**3 <= 1)
    assert [family.name for family in kept.constraints] == ["g1", "g2"]
    assert kept.cloud.separable == ()


def test_a_row_whose_coefficients_are_all_zero_is_refused_by_name() -> None:
    ev = sv.agents(1, lower=-5, upper=5, dim=2, name="ev", parameters={"c": [0.0]})
    x = sv.agents(["a"], lower=0, upper=1)
    with pytest.raises(sv.errors.ProblemError, match="constraint g2 must name a state"):
        sv.Problem(
            agents=[ev, x],
            objectives=[ev.x[0] ** 2, x[0] ** 2],
            constraints=[ev.x[0] + x[0] <= 1, ev["c"] * ev.x[0] <= 1],
        )
