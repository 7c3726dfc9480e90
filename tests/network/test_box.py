from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.network.protocol.codec import (
    LARGEST,
    Box,
    middle,
    pack,
    pack_whole,
    unpack,
    unpack_whole,
)

numbers = st.floats(-1e6, 1e6)
anything = st.floats(allow_nan=True, allow_infinity=True)


def box(size: int) -> Box:
    return Box(np.linspace(-3.0, 0.0, size), np.linspace(0.0, 5.0, size))


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20))
def test_clipping_moves_no_two_states_apart(pairs: list[tuple[float, float]]) -> None:
    within = box(len(pairs))
    ends = [np.array(end) for end in zip(*pairs, strict=True)]
    near = [unpack(within.nearest(pack(end)) or b"") for end in ends]
    assert np.all(np.abs(near[0] - near[1]) <= np.abs(ends[0] - ends[1]))


@given(st.lists(anything, min_size=1, max_size=20))
def test_every_vector_of_the_right_length_becomes_one_within_bounds(values: list[float]) -> None:
    within = box(len(values))
    near = within.nearest(pack(np.array(values)))
    assert near is not None
    assert within.holds(near)
    assert within.nearest(near) is near  # what is within keeps its bytes, signed zeros too


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(8), bytes(24)])
def test_another_length_has_no_nearest_state(data: bytes) -> None:
    assert box(2).nearest(data) is None


@pytest.mark.parametrize(("lower", "upper"), [(-LARGEST, LARGEST), (5e-324, 5e-324), (1.0, 4.0)])
def test_the_middle_of_a_box_lies_in_it(lower: float, upper: float) -> None:
    value = middle(np.array([lower]), np.array([upper]))[0]
    assert lower <= value <= upper


whole = st.integers(-(2**63), 2**63 - 1)


def range_(size: int) -> Box:
    return Box(np.arange(size) - 7, np.arange(size) * 3)


@given(st.lists(st.tuples(whole, whole), min_size=1, max_size=20))
def test_clipping_moves_no_two_contributions_apart(pairs: list[tuple[int, int]]) -> None:
    within = range_(len(pairs))
    for first, second in zip(*(within_of(within, end) for end in zip(*pairs, strict=True)),
                             strict=True):  # fmt: skip
        assert abs(first[1] - second[1]) <= abs(first[0] - second[0])


def within_of(within: Box, values: tuple[int, ...]) -> list[tuple[int, int]]:
    near = within.nearest(pack_whole(np.array(values, dtype=np.int64)))
    assert near is not None
    assert within.holds(near)
    assert within.nearest(near) is near
    return list(zip(values, unpack_whole(near).tolist(), strict=True))


@pytest.mark.parametrize("size", [1, 17])
def test_a_range_holds_its_ends_and_nothing_beyond(size: int) -> None:
    within, low, high = range_(size), np.arange(size) - 7, np.arange(size) * 3
    assert within.holds(pack_whole(low))
    assert within.holds(pack_whole(high))
    assert not within.holds(pack_whole(low - 1))
    assert not within.holds(pack_whole(high + 1))
    assert within.nearest(bytes(8 * size + 8)) is None
