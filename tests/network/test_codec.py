from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.network.protocol.codec import (
    Box,
    MalformedError,
    decode_from_agent,
    decode_from_cloud,
    encode,
    pack,
    pack_whole,
    unpack,
    unpack_whole,
)
from sottovoce.network.protocol.messages import Contribution, Hello, State
from sottovoce.network.transport.limits import Limits


@pytest.mark.parametrize("frame", [b"\x91" * 100_000, b"\xc6\xff\xff\xff\xff"])
def test_hostile_frames_are_malformed_and_nothing_worse(frame: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        decode_from_agent(frame)
    assert caught.value.__cause__ is None  # a cause would quote what was sent


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_malformed(data: bytes) -> None:
    for decode in (decode_from_agent, decode_from_cloud):
        try:
            decode(data)
        except MalformedError:
            continue


@pytest.mark.parametrize(("agents", "dim"), [(1, 1), (1000, 1), (1000, 24)])
def test_the_largest_honest_frames_fit_the_limit(agents: int, dim: int) -> None:
    limit = Limits(agents=agents, numbers=agents * dim).frame
    numbers = [2**52 + a for a in range(agents)]
    hello = Hello(agents=numbers, config=b"c" * 32, round=2**52, receipt=b"r" * 64)
    state = State(round=2**52, x=bytes(8 * agents * dim))
    said = Contribution(round=2**52, values=bytes(8 * agents * dim))
    assert max(len(encode(m)) for m in (hello, state, said)) <= limit


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
