from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import pytest

from sottovoce.network.protocol.actions import (
    Apply,
    LocalStep,
    Memory,
    Reconnect,
    Save,
    SendUp,
    Stop,
)
from sottovoce.network.protocol.agent_machine import AgentMachine
from sottovoce.network.protocol.codec import (
    MalformedError,
    decode_from_cloud,
    encode,
    pack,
    pack_whole,
)
from sottovoce.network.protocol.messages import LASTING, Code, Contribution, Error, Round, Welcome

CONFIG = hashlib.sha256(b"{}").digest()
START = Memory(x=pack(np.array([5.0])), answer=pack(np.array([5.0])))


def welcome(**changes: Any) -> Welcome:
    words: dict[str, Any] = {
        "config": "{}",
        "round": 1,
        "rounds": 9,
        "spoke": 0,
        "states": False,
        "prices": 2,
        "lower": pack(np.array([-2.0])),
        "upper": pack(np.array([2.0])),
        "sums": [1],
        "grid": pack(np.array([0.5])),
        "least": pack_whole(np.array([-9])),
        "most": pack_whole(np.array([9])),
        "rows": [],
        "columns": [],
    }
    return Welcome(**(words | changes))


def round_(k: int, **changes: Any) -> Round:
    words: dict[str, Any] = {
        "round": k,
        "price": pack(np.array([0.5, -1.0])),
        "y": b"",
        "receipt": bytes([k]) * 64,
    }
    return Round(**(words | changes))


class Steps:
    """Contributes 4, then 2; steps to 1 with an answer of 1.5."""

    keeps = False

    def __init__(self, welcome: Welcome, first: int = 4) -> None:
        self.states, self.first = welcome.states, first
        self.heard: list[Any] = []

    def begin(self, x: Any) -> Any:
        return x

    def contributions(self, x: Any) -> Any:
        return None if self.states else np.array([self.first])

    def __call__(self, k: int, x: Any, answer: Any, price: Any, y: Any, **more: Any) -> LocalStep:
        self.heard.append((k, price.tolist()))
        values = None if self.states else np.array([2])
        nobody = np.zeros(0, dtype=np.int64)
        return LocalStep(
            x=np.array([1.0]), answer=np.array([1.5]), proximal=x, values=values, failed=nobody
        )


def agent(memory: Memory = START, wrong: str | None = None, first: int = 4) -> AgentMachine:
    machine = AgentMachine((3,), memory, lambda welcome: wrong, lambda said: Steps(said, first))
    machine.connected()
    return machine


def joined(**changes: Any) -> AgentMachine:
    machine = agent()
    machine.hear(welcome(**changes))
    return machine


def stop(actions: list[Any]) -> Code:
    (action,) = actions
    assert isinstance(action, Stop)
    return action.code


def test_the_start_is_projected_and_saved_before_it_is_contributed() -> None:
    save, send = agent().hear(welcome())
    x, sent = pack(np.array([2.0])), pack_whole(np.array([4]))
    assert save == Save(memory=Memory(config=CONFIG, x=x, answer=x, sent=sent))
    assert send == SendUp(message=Contribution(round=1, values=sent))


def test_a_round_makes_it_step_save_and_send_in_this_order() -> None:
    machine = joined()
    apply, save, send = machine.hear(round_(1))
    assert isinstance(apply, Apply)
    assert (apply.k, apply.answer.tolist(), apply.failed) == (1, [1.5], ())
    assert machine._steps.heard == [(1, [0.5, -1.0])]  # type: ignore[attr-defined]
    assert isinstance(save, Save)
    assert (save.memory.round, save.memory.receipt) == (1, bytes([1]) * 64)
    assert save.memory.answer == pack(np.array([1.5]))
    assert send == SendUp(message=Contribution(round=2, values=pack_whole(np.array([2]))))


def test_what_was_said_of_a_round_is_said_again_byte_for_byte() -> None:
    again = agent(joined().memory, first=5)  # as after an upgrade that rounds in another way
    _, send = again.hear(welcome())
    assert send == SendUp(message=Contribution(round=1, values=pack_whole(np.array([4]))))


@pytest.mark.parametrize(
    "changes",
    [
        {"sums": [1, 1], "grid": pack(np.ones(2)), "least": bytes(16), "most": bytes(16)},
        {"sums": [2]},
        {"sums": []},
        {"grid": pack(np.array([0.0]))},
        {"grid": pack(np.array([np.nan]))},
        {"least": b""},
        {"most": bytes(16)},
        {"lower": b""},
        {"rows": [0]},
        {"rows": [2], "columns": [0]},
        {"rows": [0], "columns": [1]},
    ],
)
def test_a_welcome_whose_parts_do_not_fit_ends_the_connection(changes: dict[str, Any]) -> None:
    assert agent().hear(welcome(**changes)) == [Reconnect(code=Code.MALFORMED)]


def test_a_run_with_another_configuration_is_refused() -> None:
    machine = agent(Memory(config=b"c" * 32, round=1, receipt=b"r" * 64, x=START.x, answer=START.x))
    assert stop(machine.hear(welcome(round=2))) is Code.OTHER_RUN
    assert stop(agent(wrong="not mine").hear(welcome())) is Code.OTHER_RUN


@pytest.mark.parametrize(
    "message",
    [
        round_(1, price=b"1234567"),
        round_(1, price=pack(np.array([np.nan, 0.0]))),
        round_(1, price=pack(np.array([-np.inf, 0.0]))),
        round_(1, price=b""),
        round_(1, y=pack(np.array([1.0]))),
        round_(1, receipt=b""),
    ],
)
def test_nonsense_from_the_cloud_ends_the_connection(message: Round) -> None:
    assert joined().hear(message) == [Reconnect(code=Code.MALFORMED)]


def test_the_papers_multipliers_are_never_negative() -> None:
    assert joined(states=True).hear(round_(1)) == [Reconnect(code=Code.MALFORMED)]


@pytest.mark.parametrize("code", sorted(Code))
def test_refusals_that_last_stop_the_agent_and_others_do_not(code: Code) -> None:
    actions = joined().hear(Error(code=code, round=1))
    assert any(isinstance(a, Stop) for a in actions) == (code in LASTING)


def test_fuzzed_clouds_never_break_the_agent() -> None:
    rng = random.Random(3)  # noqa: S311
    stepped = 0
    for _ in range(3_000):
        machine = agent()
        for _ in range(6):
            message = rng.choice((welcome(), round_(rng.randint(1, 3)), Error(code="x", round=1)))
            frame = bytearray(encode(message))
            for _ in range(rng.choice((0, 0, 1, 2))):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
            try:
                actions = machine.hear(decode_from_cloud(bytes(frame)))
            except MalformedError:
                continue
            stepped += any(isinstance(a, Apply) for a in actions)
    assert stepped > 100
