"""Every machine goes where its table says and refuses the rest; the page has the tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_agent_machine import agent as greeting
from test_agent_machine import round_, welcome
from test_cloud_machine import ROUNDS, Table, hello
from test_helper_machine import ONE, Half
from test_relay import BELOW, Tree

from sottovoce.network.protocol.actions import Commit, Halt, Reconnect
from sottovoce.network.protocol.agent_machine import AgentMachine
from sottovoce.network.protocol.client_machine import AGENT_TRANSITIONS, ClientMachine, ClientPhase
from sottovoce.network.protocol.client_machine import TRANSITIONS as CLIENT
from sottovoce.network.protocol.cloud_machine import RELAY_TRANSITIONS, TRANSITIONS, CloudPhase
from sottovoce.network.protocol.helper_machine import HELPER_TRANSITIONS
from sottovoce.network.protocol.messages import Ask, Code, Done, Error
from sottovoce.problem import gallery

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
CLOUDS = {"cloud": TRANSITIONS, "relay": RELAY_TRANSITIONS}


@pytest.mark.parametrize(
    ("who", "table"),
    [
        ("of a cloud", TRANSITIONS),
        ("of a helper", HELPER_TRANSITIONS),
        ("of a relay", RELAY_TRANSITIONS),
        ("of an agent", AGENT_TRANSITIONS),
        ("of a relay, towards the cloud", CLIENT),
    ],
)
def test_a_table_is_the_one_on_the_page(who: str, table: Mapping[tuple[Any, str], Any]) -> None:
    _, _, rest = PAGE.read_text().partition("## The machines as tables")
    (rows,) = (part.split("\n") for part in rest.split("\n\n") if f"| {who} |" in part)
    head, _, *cells = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    documented = {
        (before, row[1]): row[2]
        for row in cells
        for before in row[0].split(", ")
        if row[head.index(who)]
    }
    assert documented == {(p.name, event): after.name for (p, event), after in table.items()}


def cloud(phase: CloudPhase, role: str) -> tuple[Any, Mapping[str, Callable[[], Any]]]:
    table = Table(straggler="fallback")
    machine = table.machine
    table.seat_all()
    for k in range(1, ROUNDS + 1 if phase is CloudPhase.DONE else 2):
        table.round(k)
    if phase in (CloudPhase.COMMITTING, CloudPhase.HALTED):
        machine.deadline(machine.round)
    if phase is CloudPhase.HALTED:
        machine.failed()
    machine.transitions = dict(CLOUDS[role])

    def commit(k: int) -> Any:
        parts, nobody = table.records[1].parts, frozenset[int]()
        table.records.pop(k, None)
        return machine.committed(table.committed(Commit(k=k, parts=parts, held=nobody)))

    def proof() -> Any:
        receipt = table.notary.receipt(ROUNDS + 1, bytes(32))
        machine.connect(9, {1})
        return machine.receive(9, hello(1, round=ROUNDS + 1, receipt=receipt))

    return machine, {
        "full": lambda: machine.deadline(machine.round),
        "committed": lambda: commit(2),
        "finished": lambda: commit(ROUNDS),
        "failed": machine.failed,
        "rolled_back": proof,
    }


def helper(phase: CloudPhase, _: str) -> tuple[Any, Mapping[str, Callable[[], Any]]]:
    half = Half(rounds=3).open()
    for k in range(1, 4 if phase is CloudPhase.DONE else 2):
        half.ask(k, (1, ONE, k))
    machine = half.machine

    def asked(k: int, receipt: bytes = b"") -> Any:
        return machine.receive(1, Ask(round=k, taken=[(1, ONE, k)], receipt=receipt))

    def proof() -> Any:
        return asked(9, half.notary.receipt(8, bytes(32)))

    if phase is CloudPhase.COMMITTING:
        asked(2)
    if phase is CloudPhase.HALTED:
        proof()

    def commit(k: int) -> Any:
        row = half.committed[0]
        return machine.committed(type(row)(k, row.context, row.release, row.digest))

    return machine, {
        "full": lambda: asked(machine.done + 1),
        "committed": lambda: commit(2),
        "finished": lambda: commit(3),
        "rolled_back": proof,
    }


def again(machine: AgentMachine) -> Any:
    if machine.phase is not ClientPhase.DONE:
        raise LookupError  # nothing but the handler of a goodbye asks for the next run
    return machine.next_run()


def client(phase: ClientPhase, role: str) -> tuple[Any, Mapping[str, Callable[[], Any]]]:
    tree = Tree(gallery.paper())
    machine: ClientMachine = tree.relay if role == "relay" else greeting()
    first = tree.welcome(*BELOW) if role == "relay" else welcome()
    last, price = first.rounds, bytes(8 * first.prices)
    if role == "agent":
        machine.lost()
    done = Done(rounds=last, price=price, confirmed=None, wait=0.0)

    def told(k: int) -> Any:
        return machine.hear(round_(k, price=price))

    if phase is not ClientPhase.OFFLINE:
        machine.connected()
    if phase > ClientPhase.GREETING:
        machine.hear(first)
        for k in range(1, last + 1):  # a relay wants all of them before the end
            told(k)
    if phase is ClientPhase.DONE:
        machine.hear(done)
    if phase is ClientPhase.STOPPED:
        machine.hear(Error(code=Code.REVOKED, round=1))
    return machine, {
        "connected": machine.connected,
        "lost": machine.lost,
        **({"again": partial(again, machine)} if isinstance(machine, AgentMachine) else {}),
        "welcome": lambda: machine.hear(first),
        "round": lambda: told(1),
        "done": lambda: machine.hear(done),
        "error": lambda: machine.hear(Error(code=Code.LATE, round=1)),
        "stop": lambda: machine.hear(Error(code=Code.REVOKED, round=1)),
    }


MACHINES: list[Any] = [
    (cloud, "cloud", TRANSITIONS),
    (cloud, "relay", RELAY_TRANSITIONS),
    (helper, "helper", HELPER_TRANSITIONS),
    (client, "agent", AGENT_TRANSITIONS),
    (client, "relay", CLIENT),
]


@pytest.mark.parametrize(("make", "role", "table"), MACHINES)
def test_every_pair_of_phase_and_event_goes_where_the_table_says_or_is_refused(
    make: Any, role: str, table: Mapping[tuple[Any, str], IntEnum]
) -> None:
    phases = type(next(iter(table))[0])
    for phase in phases:
        for event in make(phase, role)[1]:
            machine, play = make(phase, role)
            assert machine.phase is phase
            try:
                actions = play[event]() or []
            except LookupError:
                actions = None
            if (phase, event) in table:
                assert machine.phase is table[phase, event], (phase, event)
                assert actions is not None
                assert Reconnect(code=Code.UNEXPECTED) not in actions
                continue
            assert machine.phase is phase, (phase, event)
            assert not any(isinstance(a, Commit | Halt) for a in actions or ()), (phase, event)
            if make is client:
                assert actions in (None, [Reconnect(code=Code.UNEXPECTED)]), (phase, event)
