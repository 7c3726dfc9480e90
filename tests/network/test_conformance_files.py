"""The packaged schema and vectors are what the messages, machines and rounds give."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest
from conformance_files import DECODE, FOLDER, TOLERANCE, plain, schema, vectors
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

SCHEMA = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
VECTORS = json.loads((FOLDER / "vectors.json").read_text(encoding="utf-8"))
REMEDY = "run make vectors; a changed message needs a new version of the protocol"


def test_the_schema_is_that_of_the_messages() -> None:
    assert json.loads(json.dumps(schema())) == SCHEMA, REMEDY


def test_the_vectors_are_what_machines_and_rounds_give() -> None:
    made, rounds = json.loads(json.dumps(vectors())), VECTORS["rounds"]
    for now, before in zip(made.pop("rounds"), rounds, strict=True):
        steps = zip(now.pop("steps"), before["steps"], strict=True)
        assert now == {key: value for key, value in before.items() if key != "steps"}, REMEDY
        for here, there in steps:  # another processor may round exp differently
            assert here == {k: pytest.approx(v, abs=TOLERANCE) for k, v in there.items()}, REMEDY
    assert made == {key: value for key, value in VECTORS.items() if key != "rounds"}, REMEDY


def violation(value: Any, rule: dict[str, Any]) -> str:
    """What of a value a schema forbids, for the keywords that ours has."""
    if "$ref" in rule:
        return violation(value, SCHEMA["$defs"][rule["$ref"].rpartition("/")[2]])
    if "anyOf" in rule:
        found = [violation(value, one) for one in rule["anyOf"]]
        return "" if "" in found else found[0]
    if "enum" in rule:
        return "" if value in rule["enum"] else "enum"
    kinds: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
        "boolean": bool, "null": type(None),
    }  # fmt: skip
    kind = rule["type"]
    if not isinstance(value, kinds[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return "type"
    if kind == "object":
        names = rule["properties"]
        if not set(rule["required"]) <= set(value) <= set(names) or rule["additionalProperties"]:
            return "fields"
        return next(filter(None, (violation(v, names[name]) for name, v in value.items())), "")
    if kind == "array":
        items = rule.get("prefixItems") or [rule["items"]] * len(value)
        if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
            return "length"
        return next(filter(None, map(violation, value, items)), "")
    if kind == "string":
        long = not rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", len(value))
        return "length" if long else ""
    if kind in ("boolean", "null"):
        return ""
    low, high = rule.get("minimum", -1e999), rule.get("maximum", 1e999)
    inside = low <= value <= high and value < rule.get("exclusiveMaximum", 1e999)
    return "" if inside else "range"


@pytest.mark.parametrize("case", VECTORS["frames"]["good"], ids=lambda case: case["name"])
def test_good_vectors_satisfy_the_schema(case: dict[str, Any]) -> None:
    side = {"agent": "FromAgent", "cloud": "FromCloud"}[case["from"]]
    assert violation(case["content"], {"$ref": f"#/$defs/{side}"}) == ""


@pytest.mark.parametrize("case", VECTORS["frames"]["bad"], ids=lambda case: case["name"])
def test_bad_vectors_are_refused_and_violate_the_schema(case: dict[str, Any]) -> None:
    frame = bytes.fromhex(case["hex"])
    assert case["code"] == "malformed"
    with pytest.raises(MalformedError) as caught:
        DECODE[case["from"]](frame)
    assert caught.value.__cause__ is None  # a cause would quote what was sent
    try:
        content = msgpack.unpackb(frame)
    except ValueError:
        return  # no MessagePack at all
    side = {"agent": "FromAgent", "cloud": "FromCloud"}[case["from"]]
    in_json = {"a configuration as bytes", "values as a text"}  # bytes are texts there, too
    found = violation(plain(content), {"$ref": f"#/$defs/{side}"})
    assert bool(found) != (case["name"] in in_json)


def test_the_wheel_has_both_files() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["sottovoce.network.conformance"]
    packed = {path.name for pattern in patterns for path in FOLDER.glob(pattern)}
    assert packed == {"schema.json", "vectors.json"}


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
