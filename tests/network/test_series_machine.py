"""Agents that come back before an interrupted run goes on wait for it, and keep their place."""

from __future__ import annotations

import pytest

from sottovoce.network.protocol.actions import Close
from sottovoce.network.protocol.messages import Code, Hello
from sottovoce.network.protocol.series_machine import SeriesMachine

RUN = b"c" * 32


def hello(config: bytes, k: int = 7) -> Hello:
    return Hello(agents=[1], config=config, round=k, receipt=b"r" * 32)


def codes(actions: list[object]) -> list[Code]:
    return [action.code for action in actions if isinstance(action, Close)]


@pytest.fixture
def machine() -> SeriesMachine:
    """A series whose run was interrupted, and a peer for agent 1."""
    machine = SeriesMachine(3)
    machine.interrupted = RUN
    machine.connect(1, {1})
    return machine


def test_who_knows_the_interrupted_run_waits_for_it(machine: SeriesMachine) -> None:
    assert machine.receive(1, hello(RUN)) == []
    assert machine.waiting == {1}


def test_who_waits_gives_the_run_up_if_it_does_not_go_on(machine: SeriesMachine) -> None:
    machine.receive(1, hello(RUN))
    machine.connect(2, {2})
    machine.receive(2, Hello(agents=[2], config=b"", round=0, receipt=b""))
    assert codes([*machine.give_up()]) == [Code.OVER]
    assert machine.waiting == {2}
    machine.connect(3, {1})
    assert codes([*machine.receive(3, hello(RUN))]) == [Code.OVER]


def test_another_run_is_over_and_rounds_without_a_run_are_malformed(machine: SeriesMachine) -> None:
    assert codes([*machine.receive(1, hello(b"d" * 32))]) == [Code.OVER]
    machine.connect(2, {1})
    assert codes([*machine.receive(2, hello(b""))]) == [Code.MALFORMED]
    machine.connect(3, {2})
    assert codes([*machine.receive(3, hello(RUN))]) == [Code.NOT_YOURS]
