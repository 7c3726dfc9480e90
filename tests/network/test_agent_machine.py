from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import pytest

from sottovoce.network.protocol.agent import (
    AgentMachine,
    Finish,
    Hangup,
    Join,
    Memory,
    Phase,
    Save,
    Send,
    Stop,
    Think,
)
from sottovoce.network.protocol.codec import MalformedError, decode_from_cloud, encode, pack
from sottovoce.network.protocol.messages import (
    LASTING,
    VERSION,
    Code,
    Done,
    Error,
    Hello,
    Round,
    State,
    Welcome,
)

CONFIG = hashlib.sha256(b"{}").digest()
START = Memory(x=pack(np.array([5.0])), answer=pack(np.array([5.0])))


def welcome(**changes: Any) -> Welcome:
    words: dict[str, Any] = {
        "version": VERSION,
        "config": "{}",
        "round": 1,
        "lower": pack(np.array([-2.0])),
        "upper": pack(np.array([2.0])),
        "rows": [],
        "columns": [],
        "slopes": b"",
    }
    return Welcome(**(words | changes))


def round_(k: int, **changes: Any) -> Round:
    words: dict[str, Any] = {
        "round": k,
        "mu": pack(np.array([0.5, 0.0])),
        "y": b"",
        "receipt": bytes([k]) * 64,
    }
    return Round(**(words | changes))


def agent(memory: Memory = START, wrong: str | None = None) -> AgentMachine:
    machine = AgentMachine((3,), memory, 2, lambda config: wrong)
    machine.connected()
    return machine


def joined() -> AgentMachine:
    machine = agent()
    machine.receive(welcome())
    return machine


def stop(actions: list[Any]) -> Code:
    (action,) = actions
    assert isinstance(action, Stop)
    return action.code


def test_hello_shows_how_far_the_agent_got() -> None:
    memory = Memory(config=CONFIG, round=7, receipt=b"r" * 64, x=START.x, answer=START.x)
    machine = AgentMachine((3,), memory, 2, lambda config: None)
    (action,) = machine.connected()
    assert action == Send(
        message=Hello(version=VERSION, agents=[3], config=CONFIG, round=7, receipt=b"r" * 64)
    )


def test_the_start_is_projected_and_saved_before_it_is_sent() -> None:
    join, save, send = agent().receive(welcome())
    assert isinstance(join, Join)
    assert save == Save(
        memory=Memory(config=CONFIG, x=pack(np.array([2.0])), answer=pack(np.array([2.0])))
    )
    assert send == Send(message=State(round=1, x=pack(np.array([2.0]))))


def test_a_round_makes_it_think_save_and_send_in_this_order() -> None:
    machine = joined()
    (think,) = machine.receive(round_(1))
    assert isinstance(think, Think)
    assert (think.k, think.mu.tolist()) == (1, [0.5, 0.0])
    save, send = machine.stepped(np.array([1.0]), np.array([1.5]))
    assert isinstance(save, Save)
    assert (save.memory.round, save.memory.receipt) == (1, bytes([1]) * 64)
    assert save.memory.answer == pack(np.array([1.5]))
    assert send == Send(message=State(round=2, x=pack(np.array([1.0]))))


def test_a_round_seen_before_is_ignored_and_another_of_its_number_stops_the_agent() -> None:
    machine = joined()
    machine.receive(round_(1))
    machine.stepped(np.array([1.0]), np.array([1.5]))
    assert machine.receive(round_(1)) == []
    assert stop(machine.receive(round_(1, receipt=b"z" * 64))) is Code.HALTED


def test_a_cloud_that_forgot_a_round_is_not_served() -> None:
    machine = agent(Memory(config=CONFIG, round=4, receipt=b"r" * 64, x=START.x, answer=START.x))
    assert stop(machine.receive(welcome(round=4))) is Code.HALTED


def test_a_run_with_another_configuration_is_refused() -> None:
    machine = agent(Memory(config=b"c" * 32, round=1, receipt=b"r" * 64, x=START.x, answer=START.x))
    assert stop(machine.receive(welcome(round=2))) is Code.OTHER_RUN
    assert stop(agent(wrong="not mine").receive(welcome())) is Code.OTHER_RUN
    assert stop(agent().receive(welcome(version=9))) is Code.VERSION


def test_it_waits_when_the_cloud_is_ahead_and_then_catches_up() -> None:
    machine = agent(Memory(config=CONFIG, round=4, receipt=b"r" * 64, x=START.x, answer=START.x))
    assert [type(a) for a in machine.receive(welcome(round=6))] == [Join, Save]
    assert isinstance(machine.receive(round_(5))[0], Think)


@pytest.mark.parametrize(
    "message",
    [
        round_(1, mu=b"1234567"),
        round_(1, mu=pack(np.array([np.nan, 0.0]))),
        round_(1, mu=pack(np.array([-1.0, 0.0]))),
        round_(1, mu=b""),
        round_(1, y=pack(np.array([1.0]))),
        round_(1, receipt=b""),
    ],
)
def test_nonsense_from_the_cloud_ends_the_connection(message: Round) -> None:
    assert joined().receive(message) == [Hangup(code=Code.MALFORMED)]


@pytest.mark.parametrize("code", sorted(Code))
def test_refusals_that_last_stop_the_agent_and_others_do_not(code: Code) -> None:
    actions = joined().receive(Error(code=code, round=1))
    assert any(isinstance(a, Stop) for a in actions) == (code in LASTING)


def test_done_ends_it_and_a_lost_connection_does_not() -> None:
    machine = joined()
    machine.lost()
    machine.connected()
    machine.receive(welcome())
    (finish,) = machine.receive(Done(rounds=3, mu=pack(np.array([1.0, 2.0]))))
    assert isinstance(finish, Finish)
    machine.lost()
    assert machine.phase is Phase.DONE


def test_fuzzed_clouds_never_break_the_agent() -> None:
    rng = random.Random(3)  # noqa: S311
    thought = 0
    for _ in range(3_000):
        machine = agent()
        for _ in range(6):
            message = rng.choice((welcome(), round_(rng.randint(1, 3)), Error(code="x", round=1)))
            frame = bytearray(encode(message))
            for _ in range(rng.choice((0, 0, 1, 2))):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
            try:
                actions = machine.receive(decode_from_cloud(bytes(frame)))
            except MalformedError:
                continue
            if any(isinstance(a, Think) for a in actions):
                thought += 1
                machine.stepped(np.array([0.0]), np.array([0.0]))
    assert thought > 100


def test_an_agent_that_gets_conflict_waits_for_the_next_round() -> None:
    machine = joined()
    assert machine.receive(Error(code=Code.CONFLICT, round=1)) == []
    assert machine.phase is Phase.WAITING
    (think,) = machine.receive(round_(1))
    assert isinstance(think, Think)
