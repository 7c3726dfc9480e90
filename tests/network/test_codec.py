from __future__ import annotations

import random

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.network.protocol.codec import (
    MalformedError,
    decode_from_agent,
    decode_from_cloud,
    encode,
    frame_limit,
    pack,
    pack_whole,
    unpack,
    unpack_whole,
)
from sottovoce.network.protocol.messages import (
    VERSION,
    Contribution,
    Done,
    Error,
    Hello,
    Round,
    State,
    Welcome,
)

MESSAGES: list[Hello | Contribution | State] = [
    Hello(version=VERSION, agents=[1, 5], config=b"", round=0, receipt=b""),
    Contribution(round=3, values=b"\1" * 16),
    Contribution(round=3, values=b"\1" * 16, missed=[(1, 5, 1, 2)]),
    State(round=3, x=b"\0" * 8),
]
ANSWERS: list[Welcome | Round | Done | Error] = [
    Welcome(
        version=VERSION,
        config="{}",
        round=1,
        rounds=5,
        spoke=1,
        states=False,
        prices=3,
        lower=b"",
        upper=b"",
        sums=[0, 2],
        grid=b"\0" * 16,
        least=b"\0" * 16,
        most=b"\0" * 16,
        rows=[0],
        columns=[1],
    ),
    Round(round=2, price=b"\0" * 8, y=b"", receipt=b"r" * 64),
    Done(rounds=2, price=b"", confirmed=None, wait=0.5),
    Error(code="late", round=4),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_what_an_agent_says_survives_the_wire(message: Hello | Contribution | State) -> None:
    assert decode_from_agent(encode(message)) == message


@pytest.mark.parametrize("message", ANSWERS)
def test_what_the_cloud_says_survives_the_wire(message: Welcome | Round | Done | Error) -> None:
    assert decode_from_cloud(encode(message)) == message


def test_frames_are_plain_messagepack_maps_with_a_type() -> None:
    assert msgpack.unpackb(encode(Contribution(round=3, values=b"ab"))) == {
        "type": "contribution",
        "round": 3,
        "values": b"ab",
    }


def test_neither_side_accepts_the_other_sides_messages() -> None:
    with pytest.raises(MalformedError):
        decode_from_agent(encode(ANSWERS[1]))
    with pytest.raises(MalformedError):
        decode_from_cloud(encode(MESSAGES[1]))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb({"type": "state", "round": 1}),
        msgpack.packb({"type": "state", "round": 1, "x": b"", "more": 1}),
        msgpack.packb({"type": "state", "round": 0, "x": b""}),
        msgpack.packb({"type": "state", "round": 2**53, "x": b""}),
        msgpack.packb({"type": "state", "round": True, "x": b""}),
        msgpack.packb({"type": "state", "round": 1, "x": "text"}),
        msgpack.packb({"type": "contribution", "round": 1, "values": [1, 2]}),
        msgpack.packb({"type": "contribution", "round": 1, "x": b""}),
        msgpack.packb({"type": "nobody", "round": 1, "x": b""}),
        msgpack.packb({"round": 1, "x": b"", "type": ["state"]}),
        msgpack.packb(
            {
                "type": "hello",
                "version": VERSION,
                "agents": [],
                "config": b"",
                "round": 0,
                "receipt": b"",
            }
        ),
        msgpack.packb({"type": "state", "round": 1, "x": b""}) + b"\0",
    ],
)
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


def test_mutated_frames_decode_or_are_malformed() -> None:
    rng = random.Random(1)  # noqa: S311
    frames = [bytearray(encode(m)) for m in MESSAGES]
    accepted = 0
    for _ in range(20_000):
        data = bytearray(rng.choice(frames))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode_from_agent(bytes(data))
            accepted += 1
        except MalformedError:
            continue
    assert 0 < accepted < 20_000  # the mutations reach both sides of the check


def test_vectors_are_little_endian_float64() -> None:
    assert pack(np.array([1.0])) == b"\0\0\0\0\0\0\xf0\x3f"
    assert unpack(b"\0\0\0\0\0\0\xf0\x3f").tolist() == [1.0]
    with pytest.raises(MalformedError):
        unpack(b"1234567")


def test_contributions_are_little_endian_int64() -> None:
    assert pack_whole(np.array([-2, 1])) == b"\xfe" + b"\xff" * 7 + b"\1" + bytes(7)
    assert unpack_whole(b"\xfe" + b"\xff" * 7).tolist() == [-2]
    with pytest.raises(MalformedError):
        unpack_whole(b"1234567")


@pytest.mark.parametrize(("agents", "dim"), [(1, 1), (1000, 1), (1000, 24)])
def test_the_largest_honest_frames_fit_the_limit(agents: int, dim: int) -> None:
    limit = frame_limit(agents=agents, size=agents * dim)
    numbers = [2**52 + a for a in range(agents)]
    hello = Hello(version=VERSION, agents=numbers, config=b"c" * 32, round=2**52, receipt=b"r" * 64)
    state = State(round=2**52, x=bytes(8 * agents * dim))
    said = Contribution(round=2**52, values=bytes(8 * agents * dim))
    assert max(len(encode(m)) for m in (hello, state, said)) <= limit
