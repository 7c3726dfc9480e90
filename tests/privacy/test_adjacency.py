"""Radii and rounds: which behaviours look alike."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import InputError
from sottovoce.privacy.adjacency import (
    TRAJECTORY_ROUNDS,
    diameters,
    per_agent,
    radii,
    rounds_covered,
)
from sottovoce.problem.agents import fleet, states

BOXES = states(2, lower=[[0, 0], [-1, 2]], upper=[[3, 4], [-1, 2]], dim=2).groups


@pytest.mark.parametrize("kind", ["trajectory", "per-round"])
def test_radii_are_one_for_all_or_one_each(kind: str) -> None:
    for given_, expected in ((0.5, [0.5, 0.5]), ([1.0, 2.0], [1.0, 2.0])):
        adjacency, b = radii(kind, given_, BOXES, agents=2)
        assert adjacency == kind
        assert b.tolist() == expected


def test_everything_takes_the_diameter_and_a_point_has_none() -> None:
    _, b = radii("everything", None, BOXES, agents=2)
    assert b[0] >= 5.0
    assert b[0] == pytest.approx(5.0, rel=1e-12)
    assert b[1] == 0.0


def test_every_agent_of_a_fleet_has_the_diameter_of_its_own_box() -> None:
    lower, upper = [[0, 0], [-1, 2], [0, 0]], [[3, 4], [-1, 2], [12, 5]]
    _, b = radii("everything", None, [fleet(3, lower=lower, upper=upper, dim=2)], agents=3)
    np.testing.assert_allclose(b, [5.0, 0.0, 13.0], rtol=1e-12)


sides = st.floats(-300, 150).map(lambda e: 10.0**e)


@given(st.lists(sides, min_size=1, max_size=30), st.integers(1, 3))
def test_a_diameter_is_never_rounded_down(widths: list[float], count: int) -> None:
    group = fleet(count, lower=0.0, upper=[widths], dim=len(widths))
    exact = sum(Fraction(w) ** 2 for w in widths)
    found = diameters(group)
    assert found.shape == (count,)
    assert all(Fraction(float(d)) ** 2 >= exact for d in found)
    assert float(Fraction(float(found[0])) ** 2 / exact) <= 1 + 1e-12


def test_numbers_for_all_agents_are_a_view() -> None:
    values = per_agent("epsilon", 0.5, 1_000_000)
    assert values.strides == (0,)
    assert not values.flags.writeable


def test_given_arrays_are_copied() -> None:
    given_ = np.array([1.0, 2.0])
    _, b = radii("trajectory", given_, BOXES, agents=2)
    given_[0] = 9.0
    assert b[0] == 1.0


@pytest.mark.parametrize(
    ("kind", "radius", "message"),
    [
        ("Trajectory", 1.0, "adjacency must be one of trajectory, per-round, everything"),
        ("trajectory", None, "radius must be given with adjacency='trajectory'"),
        ("per-round", None, "radius must be given with adjacency='per-round'"),
        ("everything", 1.0, "radius must not be given with adjacency='everything'"),
        ("trajectory", [1.0, 2.0, 3.0], r"radius must be one number or one per agent \(2\), got"),
        ("trajectory", [[1.0, 2.0]], r"one per agent \(2\), got shape \(1, 2\)"),
        ("trajectory", "wide", "radius must be one number or one per agent"),
        ("trajectory", [1.0, 0.0], "radius must be positive and finite, got radius=0"),
        ("trajectory", -1.0, "radius must be positive and finite, got radius=-1"),
        ("per-round", math.nan, "radius must be positive and finite, got radius=nan"),
        ("per-round", math.inf, "radius must be positive and finite, got radius=inf"),
    ],
)
def test_a_bad_radius_has_its_own_message(kind: str, radius: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        radii(kind, radius, BOXES, agents=2)


def test_a_trajectory_covers_a_million_rounds_if_not_said() -> None:
    assert rounds_covered("trajectory", None) == TRAJECTORY_ROUNDS == 1_000_000


@pytest.mark.parametrize("rounds", [1, 7.0, np.int64(7), 2**53])
def test_whole_rounds_are_taken(rounds: Any) -> None:
    covered = rounds_covered("per-round", rounds)
    assert type(covered) is int
    assert covered == rounds


@pytest.mark.parametrize("rounds", [0, -1, 2.5, math.nan, math.inf, True, "7", 10**400])
def test_bad_rounds_are_refused(rounds: Any) -> None:
    with pytest.raises(InputError, match="rounds must be a whole number"):
        rounds_covered("trajectory", rounds)


@pytest.mark.parametrize("kind", ["per-round", "everything"])
def test_rounds_must_be_said_where_each_costs(kind: Any) -> None:
    with pytest.raises(InputError, match=f"rounds must be given with adjacency='{kind}'"):
        rounds_covered(kind, None)
