"""Writes the JSON Schema of all messages and the test vectors: ``make vectors``.

Everything comes from the messages, machines and rounds that a run has.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import numpy as np
from msgspec.structs import asdict, replace
from welcomes import welcome_to

import sottovoce as sv
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network.agent_group import AgentGroup
from sottovoce.network.config import read_config, welcome_objection
from sottovoce.network.local_round import LocalRound
from sottovoce.network.protocol import messages as m
from sottovoce.network.protocol.actions import Action, Finish, Memory, Reconnect, SendUp, Stop
from sottovoce.network.protocol.agent_machine import AgentMachine
from sottovoce.network.protocol.codec import (
    MalformedError,
    decode_from_agent,
    decode_from_cloud,
    encode,
    pack,
    pack_whole,
    unpack,
)
from sottovoce.problem import gallery

FOLDER = Path(sv.__file__).parent / "network" / "conformance"
GRID = 2.0**-10
TOLERANCE = 1e-9
DECODE = {"agent": decode_from_agent, "cloud": decode_from_cloud}


def plain(value: Any) -> Any:
    """A message, or anything else, as JSON has it: bytes in hexadecimal."""
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.to_builtins(value, builtin_types=(bytes,)))
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def in_hexadecimal(rule: dict[str, Any], kind: Any) -> None:
    """Turn what msgspec says of bytes, in base64, into lengths that are exact."""
    if isinstance(kind, msgspec.inspect.BytesType):
        rule.clear()
        rule |= {"type": "string", "contentEncoding": "base16", "pattern": "^([0-9a-f]{2})*$"}
        for name, length in (("minLength", kind.min_length), ("maxLength", kind.max_length)):
            rule |= {} if length is None else {name: 2 * length}
    elif isinstance(kind, msgspec.inspect.ListType):
        in_hexadecimal(rule["items"], kind.item_type)
    elif isinstance(kind, msgspec.inspect.TupleType):
        for one, item in zip(rule["prefixItems"], kind.item_types, strict=True):
            in_hexadecimal(one, item)


def schema() -> dict[str, Any]:
    """JSON Schema of every message, and of what each side may send."""
    sides = {
        "FromAgent": (m.Hello, m.Contribution, m.Masked, m.State),
        "FromCloud": (m.Welcome, m.Round, m.Done, m.Error),
        "ToHelper": (m.Open, m.Introduce, m.Ask),
        "FromHelper": (m.Opened, m.Pledged, m.Answer, m.Refusal),
    }
    listed = [kind for kinds in sides.values() for kind in kinds]
    _, components = msgspec.json.schema_components(listed, ref_template="#/$defs/{name}")
    unions = {
        side: {"anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds]}
        for side, kinds in sides.items()
    }
    for kind in listed:
        component = components[kind.__name__]
        component["description"] = " ".join(component["description"].split())
        for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
            in_hexadecimal(component["properties"][field.encode_name], field.type)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": m.PROTOCOLS[0],
        "description": "Messages are MessagePack maps; bytes (bin) are hexadecimal texts here. "
        "FromAgent and FromCloud are what each side may send, ToHelper and FromHelper likewise "
        f"between the halves of a split cloud ({m.HELPER_PROTOCOLS[0]}).",
        "$defs": unions | components,
    }


ROUND = {"type": "round", "round": 1, "price": bytes(8), "y": b"", "receipt": bytes(range(64))}
HELLO = {"type": "hello", "agents": [4], "config": b"", "round": 0, "receipt": b""}
SAID = {"type": "contribution", "round": 3, "values": (5).to_bytes(8, "little")}
DONE = {"type": "done", "rounds": 9, "price": bytes(8), "confirmed": None, "wait": 0.5}
WELCOME = {
    "type": "welcome", "config": "{}", "round": 1, "rounds": 9, "spoke": 0, "states": False,
    "prices": 1, "lower": bytes(8), "upper": bytes(8), "sums": [0], "grid": bytes(8),
    "least": bytes(8), "most": bytes(8), "rows": [], "columns": [],
}  # fmt: skip

GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "a first hello": ("agent", HELLO),
    "a hello of a gateway that comes back": (
        "agent",
        HELLO
        | {"agents": [1, 2, 2**53 - 1], "config": b"c" * 32, "round": 7, "receipt": b"r" * 64},
    ),
    "a hello with a key for masks": ("agent", HELLO | {"mask": b"m" * 32}),
    "a contribution": ("agent", SAID),
    "a contribution with gaps": ("agent", SAID | {"missed": [[1, 4, 2, 9]] * 16}),
    "a masked contribution": ("agent", SAID | {"type": "masked", "session": bytes(16)}),
    "a state": ("agent", {"type": "state", "round": 1, "x": bytes(16)}),
    "a welcome": ("cloud", WELCOME),
    "a welcome of a split cloud": ("cloud", WELCOME | {"pledge": b"p" * 72}),
    "a round": ("cloud", ROUND),
    "the end without a test": ("cloud", DONE),
    "the end with an integer to wait": ("cloud", DONE | {"confirmed": True, "wait": 600}),
    "a refusal": ("cloud", {"type": "error", "code": "old-round", "round": 12}),
}


def without(message: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != name}


BAD: dict[str, tuple[str, Any]] = {
    "nothing": ("agent", b""),
    "a byte that MessagePack does not have": ("agent", b"\xc1"),
    "a map that ends too early": ("agent", msgpack.packb(SAID)[:-1]),
    "a byte after the message": ("agent", msgpack.packb(SAID) + b"\x00"),
    "an array": ("agent", ["contribution", 3, bytes(8)]),
    "a length of 4 GiB": ("agent", b"\xdf\xff\xff\xff\xff"),
    "no type": ("agent", without(SAID, "type")),
    "a type that there is not": ("agent", SAID | {"type": "greeting"}),
    "a type of the other side": ("agent", ROUND),
    "a type that is no text": ("agent", SAID | {"type": 1}),
    "a field too few": ("agent", without(SAID, "values")),
    "a field too many": ("agent", SAID | {"comment": ""}),
    "a hello of version 5": ("agent", HELLO | {"version": 5}),
    "a hello for nobody": ("agent", HELLO | {"agents": []}),
    "a hello of agent 0": ("agent", HELLO | {"agents": [0]}),
    "a hash of 33 bytes": ("agent", HELLO | {"config": bytes(33)}),
    "a receipt of 65 bytes": ("agent", HELLO | {"round": 1, "receipt": bytes(65)}),
    "a key of 33 bytes": ("agent", HELLO | {"mask": bytes(33)}),
    "round 0": ("agent", SAID | {"round": 0}),
    "a negative round": ("agent", SAID | {"round": -1}),
    "a round of 2^53": ("agent", SAID | {"round": 2**53}),
    "a round that is a boolean": ("agent", SAID | {"round": True}),
    "a round that is a text": ("agent", SAID | {"round": "3"}),
    "a round that is nil": ("agent", SAID | {"round": None}),
    "values as a list": ("agent", SAID | {"values": [5]}),
    "values as a text": ("agent", SAID | {"values": "5" * 8}),
    "17 gaps": ("agent", SAID | {"missed": [[1, 4, 2, 9]] * 17}),
    "a gap of three numbers": ("agent", SAID | {"missed": [[1, 4, 2]]}),
    "a session of 15 bytes": ("agent", SAID | {"type": "masked", "session": bytes(15)}),
    "a welcome of version 5": ("cloud", WELCOME | {"version": 5}),
    "a configuration as bytes": ("cloud", WELCOME | {"config": b"{}"}),
    "no prices": ("cloud", WELCOME | {"prices": 0}),
    "a negative sum": ("cloud", WELCOME | {"sums": [-1]}),
    "states that are a number": ("cloud", WELCOME | {"states": 0}),
    "a round without a receipt": ("cloud", without(ROUND, "receipt")),
    "a round with an unknown field": ("cloud", ROUND | {"note": b""}),
    "a price as numbers": ("cloud", ROUND | {"price": [0.0]}),
    "an end that nobody confirmed nor denied": ("cloud", without(DONE, "confirmed")),
    "a wait of ten minutes and a second": ("cloud", DONE | {"wait": 601}),
    "a negative wait": ("cloud", DONE | {"wait": -0.5}),
    "a code of 33 letters": ("cloud", {"type": "error", "code": "x" * 33, "round": 1}),
}  # fmt: skip


def frames() -> dict[str, Any]:
    """Frames that are messages, with their content, and frames that are none."""
    good, bad = [], []
    for name, (side, content) in GOOD.items():
        frame = msgpack.packb(content)
        message = DECODE[side](frame)
        good.append({"name": name, "from": side, "hex": frame.hex(), "content": plain(message)})
    for name, (side, content) in BAD.items():
        frame = content if isinstance(content, bytes) else msgpack.packb(content)
        try:
            DECODE[side](frame)
        except MalformedError:
            bad.append({"name": name, "from": side, "hex": frame.hex(), "code": m.Code.MALFORMED})
        else:
            raise AssertionError(f"{name} must be refused")
    return {"good": good, "bad": bad}


ROUNDED = [
    ("halves go to the even neighbour, down", 1.0, [0.5]),
    ("halves go to the even neighbour, up", 1.0, [1.5]),
    ("halves go to the even neighbour, 2.5", 1.0, [2.5]),
    ("negative halves too", 1.0, [-1.5]),
    ("there is no negative zero", 1.0, [-0.5]),
    ("just below a half", 1.0, [0.49999999999999994]),
    ("divide: the product with 1 / grid would be another number", 0.1, [2.0500000000000003]),
    ("a grid that is a power of two", GRID, [3.14159]),
    ("every agent alone, then the sum", 1.0, [0.5, 0.5, 0.5]),
    ("every agent alone, upwards", 1.0, [1.5, 1.5]),
    ("the sum is clipped to most, not the agents", 0.5, [500.0, 500.0]),
    ("the sum is clipped to least", 0.5, [-700.0, -1.0]),
]
LEAST, MOST = -1_300, 1_500


def rounding() -> list[dict[str, Any]]:
    """What agents of one connection contribute to one sum, whose part is their state."""
    cases = []
    for name, grid, values in ROUNDED:
        fleet = sv.agents(len(values), lower=-1e6, upper=1e6)
        problem = sv.Problem(objectives=fleet.x**2, constraints=[sv.total(fleet.x) <= 1.0])
        group = AgentGroup.of_problem(problem, range(len(values)))
        welcome = welcome_to(problem.cloud, list(group.agents), DualAveraging(), grid=[grid])
        ends = {"least": pack_whole(np.array([LEAST])), "most": pack_whole(np.array([MOST]))}
        steps = LocalRound(group, replace(welcome, **ends)).contributions(np.array(values))
        assert steps is not None
        case = {"name": name, "grid": grid, "contributions": values, "least": LEAST, "most": MOST}
        cases.append(case | {"value": int(steps[0]), "bytes": pack_whole(steps).hex()})
    return cases


def problems() -> dict[str, tuple[Any, Any, list[str], list[str]]]:
    """Agent 1 of each: the problem, its start, its objective and contributions as text."""
    pair = sv.agents(["one", "two"], lower=-10, upper=10)
    x, y = pair[0], pair[1]
    several = sv.agents(1, dim=3, lower=[-1.0, -4.0, 2.0], upper=[3.0, 4.0, 2.0])
    u = several.x
    parts = [sv.total(u[0]) <= 1.0, sv.total(u[1] + u[2]) <= 1.0]
    return {
        "a quadratic": (
            sv.Problem(objectives=[x**2 + x + 6, y**2], constraints=[sv.total(pair.x) <= 1]),
            [0.0], ["x**2 + x + 6"], ["x"],
        ),
        "a curved objective": (
            sv.Problem(
                objectives=[sv.exp(x) + x**4 / 4, y**2], constraints=[sv.total(pair.x) <= 1]
            ),
            [4.0], ["exp(x) + x**4 / 4"], ["x"],
        ),
        "a linear objective": (
            sv.Problem(objectives=[-2 * x, y**2], constraints=[sv.total(pair.x) <= 1]),
            [-20.0], ["-2*x"], ["x"],
        ),
        "a curved contribution": (
            sv.Problem(objectives=[(x - 3) ** 2, y**2], constraints=[sv.total(pair.x**2) <= 4]),
            [1.0], ["(x - 3)**2"], ["x**2"],
        ),
        "three components, the last fixed": (
            sv.Problem(
                objectives=(u[0] - 1) ** 2 + 3 * u[1] ** 2 - u[1] + u[2] ** 2, constraints=parts
            ),
            [0.0, 0.0, 0.0], ["(x0 - 1)**2", "3*x1**2 - x1", "x2**2"], ["x0", "x1 + x2"],
        ),
    }  # fmt: skip


PRICES = [0.5, 3.0, -1.0, 0.0, 0.25, 40.0, 1.0, -60.0, 2.0, 2.0]
ROUNDS = 20


def _failing(*_: Any) -> Any:
    raise ArithmeticError


def rounds() -> list[dict[str, Any]]:
    """Rounds of an agent: what it keeps and contributes, given prices."""
    cases = [_case(name, *stated) for name, stated in problems().items()]
    quadratic = problems()["a quadratic"]
    for hide in ("trajectory", "offset"):
        name = f"code that fails in round 3, where the run hides {hide}"
        cases.append(_case(name, *quadratic, hide=hide, fails=3))
    return cases


def _case(
    name: str,
    problem: Any,
    start: list[float],
    objective: list[str],
    contributions: list[str],
    *,
    hide: str = "trajectory",
    fails: int = 0,
) -> dict[str, Any]:
    group = AgentGroup.of_problem(problem, [0])
    count, algorithm = problem.cloud.sums.count, DualAveraging()
    grid = [GRID] * count
    welcome = welcome_to(
        problem.cloud, [1], algorithm, rounds=ROUNDS, grid=np.array(grid), hide=hide
    )
    local = LocalRound(group, welcome)
    lower, upper = unpack(welcome.lower), unpack(welcome.upper)
    x = answer = local.begin(np.clip(start, lower, upper))
    proximal, listed, since, whole = np.zeros(0), [], 1, local._parts[0]
    first = local.contributions(x)
    assert first is not None
    for k, scale in enumerate(PRICES, start=1):
        if k in (5, 6):
            continue  # rounds that the agent missed: it was held
        if "**" in contributions[0]:
            scale = abs(scale)  # the price of a curved contribution is never negative
        prices = scale * np.linspace(1.0, -0.5, count) if count > 1 else np.array([scale])
        local._parts[0] = (*whole[:2], _failing) if k == fails else whole
        if k == fails:  # the contribution of what comes instead is worked out all the same
            local.contributions = LocalRound(group, welcome).contributions  # type: ignore[method-assign]
        step = local(k, x, answer, prices, np.zeros(0), proximal=proximal, since=since)
        x, answer, proximal, since = step.x, step.answer, step.proximal, k + 1
        z, worth = proximal.reshape(2, -1)
        assert step.values is not None
        listed.append(
            {
                "round": k,
                "price": prices.tolist(),
                "fails": k == fails,
                "x": x.tolist(),
                "z": z.tolist(),
                "W": float(worth[0]),
                "answer": answer.tolist(),
                "values": step.values.tolist(),
            }
        )
    return {
        "name": name, "objective": objective, "contributions": contributions, "start": start,
        "lower": lower.tolist(), "upper": upper.tolist(), "theta": algorithm.theta,
        "rounds": ROUNDS, "hide": hide, "grid": grid, "first": first.tolist(), "steps": listed,
        "tolerance": TOLERANCE,
    }  # fmt: skip


class Talk:
    def __init__(self, saved: Memory | None = None) -> None:
        problem = gallery.paper()
        self.group = AgentGroup.of_problem(problem, [3])
        first = pack(self.group.start)
        described = welcome_to(problem.cloud, [4], DualAveraging(), rounds=ROUNDS)
        self.start = replace(
            described,
            sums=[2],
            grid=pack(np.array([GRID])),
            least=pack_whole(np.array([-10_241])),
            most=pack_whole(np.array([10_241])),
        )
        self.memory = Memory(x=first, answer=first) if saved is None else saved
        self.saved = None if saved is None else _kept(saved)
        self.machine = AgentMachine(
            (4,),
            self.memory,
            partial(welcome_objection, cloud=problem.cloud, allow_simulated=True),
            lambda welcome: LocalRound(self.group, welcome),
        )
        self.hello = plain(_said(self.machine.connected()))
        self.exchanges: list[dict[str, Any]] = []

    def hear(self, message: Any) -> Talk:
        frame = message if isinstance(message, bytes) else encode(message)
        try:
            heard = decode_from_cloud(frame)
        except MalformedError:
            outcome: dict[str, Any] = {"do": "reconnect"}
        else:
            outcome = _outcome(self.machine.hear(heard))
        self.exchanges.append({"hear": frame.hex(), **outcome})
        return self

    def ended(self, name: str) -> dict[str, Any]:
        """The conversation, and the hello of the next connection, if there is one."""
        after = None
        if self.exchanges[-1]["do"] not in ("stop", "done"):
            self.machine.lost()
            after = plain(_said(self.machine.connected()))
        return {
            "name": name, "saved": self.saved, "hello": self.hello,
            "exchanges": self.exchanges, "next_hello": after,
        }  # fmt: skip


def _kept(memory: Memory) -> dict[str, Any]:
    z, worth = unpack(memory.proximal).reshape(2, -1)
    kept = without(plain(asdict(memory)), "proximal")
    return kept | {
        "x": unpack(memory.x).tolist(),
        "answer": unpack(memory.answer).tolist(),
        "z": z.tolist(),
        "W": float(worth[0]),
    }


def _said(actions: list[Action]) -> Any:
    said = [action.message for action in actions if isinstance(action, SendUp)]
    return said[0] if said else None


def _outcome(actions: list[Action]) -> dict[str, Any]:
    for action in actions:
        if isinstance(action, Stop):
            return {"do": "stop"}
        if isinstance(action, Reconnect):
            return {"do": "reconnect"}
        if isinstance(action, Finish):
            return {"do": "done", "confirmed": action.confirmed}
    said = _said(actions)
    return {"do": "wait"} if said is None else {"do": "say", "say": plain(said)}


def round_(k: int, price: float = 1.0, mark: int = 0) -> m.Round:
    return m.Round(
        round=k,
        price=pack(np.array([0.0, 7.0, price, -7.0])),
        y=b"",
        receipt=bytes([k + mark]) * 64,
    )


def conversations() -> list[dict[str, Any]]:
    """What an agent does with what it hears: reconnection, receipts, repetitions, gaps, the end."""
    welcome = Talk().start
    played = Talk().hear(welcome)
    for k in range(1, 4):
        played.hear(round_(k, 0.5 * k))
    memory = played.machine.memory

    def back(c: int, *, spoke: int | None = None, saved: Memory = memory, **changes: Any) -> Talk:
        spoke = c - 1 if spoke is None else spoke
        return Talk(saved).hear(replace(welcome, round=c, spoke=spoke, **changes))

    def new(**changes: Any) -> Talk:
        return Talk().hear(replace(welcome, **changes))

    def error(code: m.Code) -> m.Error:
        return m.Error(code=code, round=4)

    last = replace(memory, round=ROUNDS)
    other = read_config(welcome.config)
    other_run = replace(other, run_id="another").text
    other_problem = replace(other, problem="another").text
    other_steps = replace(other, algorithm={"name": "GradientDescent"}).text
    over = m.Done(rounds=ROUNDS, price=bytes(32), confirmed=None, wait=0.0)
    confirmed = replace(over, confirmed=True)
    extra = msgpack.packb(msgpack.unpackb(encode(round_(4))) | {"note": 1})
    bad_price = replace(round_(4), price=pack(np.array([0.0, 0.0, np.nan, 0.0])))
    return [
        played.ended("a new agent plays three rounds; the next hello shows the last receipt"),
        new(round=3, spoke=0).hear(round_(2)).ended("a new agent in a run that has begun"),
        back(4).ended("k = 3, c = 4: the same bytes again"),
        back(4, spoke=4).ended("k = 3, c = 4, and the cloud has its contribution: the same bytes"),
        back(6, spoke=4).hear(round_(5)).ended("k = 3, c = 6: wait for round 5; held, so no gap"),
        back(3).ended("k = 3, c = 3: the cloud has lost a round"),
        back(1, spoke=0).ended("k = 3, c = 1: the cloud has lost rounds"),
        back(ROUNDS + 1, saved=last).hear(over).ended("k = T: nothing more is sent"),
        back(ROUNDS, saved=last).ended("k = T, c = T: the cloud has lost the last round"),
        back(4, config=other_run).ended("another run than before"),
        back(4).hear(round_(3)).hear(round_(4)).ended("a round that was received before"),
        back(4).hear(round_(3, mark=9)).ended("two different rounds of one number"),
        back(6, spoke=5).hear(round_(5)).ended("an older state file: rounds 5 to 5 are a gap"),
        back(6, spoke=5).hear(round_(5)).hear(confirmed).ended("a gap: not confirmed here"),
        new(round=4, spoke=3).hear(round_(3)).ended("a lost state file: rounds 1 to 3 are a gap"),
        back(4).hear(confirmed).ended("the answer is confirmed"),
        back(4).hear(error(m.Code.CONFLICT)).hear(round_(4)).ended("conflict: wait"),
        back(4).hear(error(m.Code.OLD_ROUND)).ended("old-round: wait"),
        back(4).hear(error(m.Code.LATE)).ended("late: wait"),
        back(4).hear(error(m.Code.FUTURE_ROUND)).ended("future-round: reconnect"),
        back(4).hear(error(m.Code.FLOOD)).ended("flood: reconnect"),
        back(4).hear(error(m.Code.NOT_YOURS)).ended("not-yours: stop"),
        back(4).hear(error(m.Code.HALTED)).ended("halted: stop"),
        back(4).hear(error(m.Code.REPLACED)).ended("replaced: stop"),
        back(4).hear(replace(welcome, round=4)).ended("a second welcome"),
        Talk(memory).hear(round_(4)).ended("a round before the welcome"),
        back(4).hear(extra).ended("a round with an unknown field"),
        back(4).hear(b"\xc1").ended("a frame that is no message"),
        back(4).hear(bad_price).ended("a price that is NaN"),
        back(4).hear(replace(round_(4), price=bytes(40))).ended("a price too many"),
        back(4).hear(replace(round_(4), receipt=bytes(63))).ended("a receipt of 63 bytes"),
        new(config="{").ended("a configuration that is no JSON"),
        new(config=other_problem).ended("another problem"),
        new(config=other_steps).ended("an unknown algorithm"),
        new(rounds=ROUNDS + 1).ended("other rounds than in the configuration"),
        new(lower=bytes(16)).ended("bounds for another state"),
        new(lower=bytes(7)).ended("bounds of seven bytes"),
        new(sums=[2, 2]).ended("a sum twice"),
        new(sums=[4]).ended("a sum without a price"),
        new(grid=pack(np.array([0.0]))).ended("a grid of 0"),
        new(least=b"").ended("a sum without a range"),
    ]


class Script:
    """What ``conformance cloud`` sends to an agent, and what ours answers on each connection."""

    PRICES = (0.5, -1.0, 3.0, 0.0, 0.25, 40.0, 1.0, -60.0, 2.0, 2.0)

    def __init__(self) -> None:
        talk = Talk()
        self.machine, self.welcome = talk.machine, talk.start
        self.machine.lost()
        self.steps: list[dict[str, Any]] = []

    def meet(self, check: str) -> None:
        """The agent connects."""
        self.machine.lost()
        hello = encode(_said(self.machine.connected())).hex()
        self.steps.append({"check": check, "do": "say", "say": hello})

    def hear(self, check: str, message: Any) -> None:
        """The agent answers, or waits."""
        said = _said(self.machine.hear(message))
        step = {"check": check, "hear": encode(message).hex(), "do": "wait"}
        self.steps.append(step if said is None else step | {"do": "say", "say": encode(said).hex()})

    def leave(self, check: str, frame: Any) -> None:
        """The agent closes the connection, and is not to be changed."""
        raw = frame if isinstance(frame, bytes | str) else encode(frame)
        heard = {"text": raw} if isinstance(raw, str) else {"hear": raw.hex()}
        self.steps.append({"check": check, **heard, "do": "leave", "lose": True})

    def lose(self) -> None:
        """The connection is lost after this step."""
        self.steps[-1]["lose"] = True

    def at(self, c: int) -> m.Welcome:
        return replace(self.welcome, round=c, spoke=c - 1)

    def round(self, k: int) -> m.Round:
        price = np.zeros(4)
        price[2] = self.PRICES[k % len(self.PRICES) - 1]
        return m.Round(round=k, price=pack(price), y=b"", receipt=bytes([k]) * 64)

    def wrong(self, k: int) -> dict[str, Any]:
        """What an agent must not take for round k, by name."""
        fields = msgpack.unpackb(encode(self.round(k)))
        return {
            "a frame that is no message": b"\xc1",
            "an unknown field": msgpack.packb(fields | {"note": 1}),
            "a text frame": "round",
            "a price that is NaN": replace(self.round(k), price=pack(np.full(4, np.nan))),
            "a price too few": replace(self.round(k), price=bytes(24)),
            "a receipt of 63 bytes": replace(self.round(k), receipt=bytes(63)),
            "future-round": m.Error(code=m.Code.FUTURE_ROUND, round=k),
        }

    def played(self) -> dict[str, list[dict[str, Any]]]:
        """The run, and what follows when the agent is started again."""
        self.meet("hello of a new agent")
        self.hear("the contribution of its start", self.welcome)
        for k in range(1, 4):
            self.hear(f"the contribution after round {k}", self.round(k))
        self.hear("a repeated round is ignored", self.round(3))
        self.hear("conflict: it waits", m.Error(code=m.Code.CONFLICT, round=4))
        self.lose()
        self.meet("after a lost connection it shows the last receipt")
        self.hear("the contribution is repeated, byte for byte", self.at(4))
        self.hear("the contribution after round 4", self.round(4))
        for k, name in enumerate(self.wrong(1), start=5):
            self.leave(f"{name}: it leaves", self.wrong(k)[name])
            self.meet(f"after {name} it shows the last receipt")
            self.hear(f"after {name} it repeats its contribution", self.at(k))
            self.hear(f"the contribution after round {k}", self.round(k))
        self.lose()
        self._end(4 + len(self.wrong(1)) + 2)
        run, self.steps = self.steps, []
        self.meet("started again, it shows the last receipt")
        self.leave("a cloud that lost rounds is left", self.at(3))
        return {"run": run, "again": self.steps}

    def _end(self, missed: int) -> None:
        self.meet("hello with one contribution outstanding")
        ahead = replace(self.welcome, round=missed + 1, spoke=missed)
        self.hear("the cloud is ahead: it waits", ahead)
        self.hear("a round that it did not contribute to: a gap", self.round(missed))
        for k in range(missed + 1, ROUNDS):
            self.hear(f"the contribution after round {k}", self.round(k))
        self.hear("nothing is sent after the last round", self.round(ROUNDS))
        done = m.Done(rounds=ROUNDS, price=bytes(32), confirmed=None, wait=0.0)
        self.leave("it leaves when the run is over", done)


def vectors() -> dict[str, Any]:
    return {
        "protocol": m.PROTOCOLS[0],
        "fingerprint": gallery.paper().cloud.fingerprint,
        "frames": frames(),
        "rounding": rounding(),
        "rounds": rounds(),
        "conversations": conversations(),
        "script": Script().played(),
    }


def a_line_per_case(value: Any) -> str:
    """JSON with a line for every element of a list."""
    if isinstance(value, dict):
        fields = (f"{json.dumps(name)}: {a_line_per_case(one)}" for name, one in value.items())
        return "{" + ",\n".join(fields) + "}"
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


if __name__ == "__main__":
    shown = json.dumps(schema(), indent=1)
    for name, content in (("schema", shown), ("vectors", a_line_per_case(vectors()))):
        (FOLDER / f"{name}.json").write_text(content + "\n", encoding="utf-8")
