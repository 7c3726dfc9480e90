from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from sottovoce.network import Straggler
from sottovoce.network.protocol.actions import (
    Action,
    Close,
    Commit,
    Halt,
    Incident,
    Party,
    Record,
    Send,
    Setup,
    Wait,
)
from sottovoce.network.protocol.cloud_machine import CloudMachine, CloudPhase
from sottovoce.network.protocol.codec import (
    Box,
    MalformedError,
    decode_from_agent,
    encode,
    pack,
    pack_whole,
)
from sottovoce.network.protocol.messages import (
    Code,
    Contribution,
    Done,
    Error,
    Hello,
    Round,
    State,
    Welcome,
)
from sottovoce.network.protocol.receipt import ReceiptSigner, next_digest

CONFIG = "{}"
HASH = hashlib.sha256(CONFIG.encode()).digest()
KEY = b"k" * 32
ROUNDS = 5


DIMS = {1: 1, 2: 2, 3: 1}
SUMS = {1: [0], 2: [0, 1], 3: [1]}
COLUMNS = {1: [0], 2: [1, 2], 3: [3]}


def party(agents: tuple[int, ...], *, states: bool) -> Party:
    """States in [-1, 1]; an agent adds -10 to 10 steps to each of its sums; one entry is 2's."""
    columns = np.array([c for a in agents for c in COLUMNS[a]])
    sums = np.array(sorted({o for a in agents for o in SUMS[a]}))
    count = np.array([sum(o in SUMS[a] for a in agents) for o in sums])
    lower, upper = -np.ones(columns.size), np.ones(columns.size)
    entries = np.array([0] if states and 2 in agents else [], dtype=np.int64)
    return Party(
        agents=agents,
        places=np.array(agents) - 1,
        lower=lower,
        upper=upper,
        sums=sums[:0] if states else sums,
        grid=np.full(0 if states else sums.size, 0.25),
        least=-10 * count[: 0 if states else None],
        most=10 * count[: 0 if states else None],
        range=Box(lower, upper) if states else Box(-10 * count, 10 * count),
        columns=columns,
        owners=np.repeat(agents, [DIMS[a] for a in agents]) if states else None,
        entries=entries,
        rows=entries,
        entry_columns=np.searchsorted(columns, [2] if entries.size else []),
    )


def setup(*, states: bool = False) -> Setup:
    """Three agents of dimensions 1, 2, 1; with states agent 2 is sent d g_1 / d x_2[2]."""
    return Setup(
        config=CONFIG,
        rounds=ROUNDS,
        agents=3,
        states=states,
        prices=2,
        party=partial(party, states=states),
    )


def said(record: Record) -> dict[int, list[float]]:
    """What was used of every party, by its first agent."""
    kinds = ["<i8" if part.party.owners is None else "<f8" for part in record.parts]
    return {
        part.party.agents[0]: np.frombuffer(part.data, kind).tolist()
        for part, kind in zip(record.parts, kinds, strict=True)
    }


class Table:
    """A machine, the rounds committed for it, and everything it asked for."""

    def __init__(self, *, straggler: Straggler = "wait", states: bool = False) -> None:
        self.records: dict[int, Record] = {}
        self.notary = ReceiptSigner(KEY, HASH)
        self.setup = setup(states=states)
        self.machine = CloudMachine(self.setup, self.notary, self._digest, straggler=straggler)
        self.actions: list[Action] = []
        self.wait = 0.0

    def _digest(self, k: int) -> bytes | None:
        return self.records[k].digest if k in self.records else None

    def restarted(self, **settings: Any) -> Table:
        """The same run in another process."""
        again = Table(states=self.setup.states)
        again.records = self.records
        last = self.records[max(self.records)]
        known: dict[str, Any] = {"last": last, "straggler": "hold", **settings}
        again.machine = CloudMachine(self.setup, self.notary, again._digest, **known)
        return again

    def do(self, actions: list[Action]) -> list[Action]:
        """Collect actions; commit rounds with made-up noise as they are asked for."""
        found: list[Action] = []
        queue = list(actions)
        while queue:
            action = queue.pop(0)
            found.append(action)
            if isinstance(action, Commit):
                queue += self.machine.committed(self.record(action), self.wait)
        self.actions += found
        return found

    def record(self, action: Commit) -> Record:
        assert sorted(a for p in action.parts for a in p.party.agents) == [1, 2, 3]
        return self.committed(action)

    def committed(self, action: Commit) -> Record:
        last = self.records.get(action.k - 1)
        price = np.full(2, float(action.k))
        digest = next_digest(HASH if last is None else last.digest, action.k, pack(price), b"noise")
        record = Record(
            k=action.k,
            parts=action.parts,
            sent_price=price,
            price=price,
            answer=price / 2,
            released=np.zeros(0),
            y=np.array([0.25 * action.k]),
            digest=digest,
            held=action.held,
        )
        assert action.k not in self.records, "a round was released twice"
        self.records[action.k] = record
        return record

    def join(self, peer: int, *agents: int, k: int = 0) -> list[Action]:
        self.machine.connect(peer, set(agents))
        receipt = self.notary.receipt(k, self.records[k].digest) if k else b""
        return self.do(self.machine.receive(peer, hello(*agents, round=k, receipt=receipt)))

    def send(self, peer: int, k: int, *values: float) -> list[Action]:
        return self.do(self.machine.receive(peer, self.message(k, *values)))

    def message(self, k: int, *values: float) -> Contribution | State:
        if self.setup.states:
            return State(round=k, x=pack(np.array(values)))
        return Contribution(round=k, values=pack_whole(np.array(values, dtype=np.int64)))

    def seat_all(self) -> None:
        self.join(1, 1)
        self.join(2, 2)
        self.join(3, 3)

    def round(self, k: int) -> list[Action]:
        self.send(1, k, 1)
        self.send(2, k, *((0, 1) if self.setup.states else (2, 3)))
        return self.send(3, k, 1 if self.setup.states else 4)


def hello(*agents: int, **changes: Any) -> Hello:
    words: dict[str, Any] = {"agents": list(agents), "config": b"", "round": 0, "receipt": b""}
    return Hello(**(words | changes))


def messages(actions: list[Action], peer: int) -> Iterator[Any]:
    return (a.message for a in actions if isinstance(a, Send) and peer in a.peers)


def codes(actions: list[Action]) -> list[Code]:
    return [a.code for a in actions if isinstance(a, Incident)]


@pytest.fixture
def table() -> Table:
    made = Table()
    made.seat_all()
    return made


@pytest.fixture
def papers() -> Table:
    """With the paper's release."""
    made = Table(states=True)
    made.seat_all()
    return made


def test_an_agent_is_sent_its_own_gradient_entries_only(papers: Table) -> None:
    actions = papers.round(1)
    assert [next(messages(actions, p)).y for p in (1, 2, 3)] == [b"", pack(np.array([0.25])), b""]
    (welcome,) = messages(Table(states=True).join(2, 2), 2)
    assert isinstance(welcome, Welcome)
    assert (welcome.rows, welcome.columns, welcome.sums) == ([0], [1], [])


def test_the_run_ends_with_done_after_the_last_round_and_collects_no_more(table: Table) -> None:
    for k in range(1, ROUNDS):
        table.round(k)
    actions = table.round(ROUNDS)
    first, message = messages(actions, 1)
    assert isinstance(first, Round)
    assert message == Done(
        rounds=ROUNDS, price=pack(np.full(2, ROUNDS / 2)), confirmed=None, wait=0.0
    )
    assert table.machine.phase is CloudPhase.DONE
    assert sorted(table.records) == list(range(1, ROUNDS + 1))
    assert [type(m) for m in messages(table.send(1, ROUNDS + 1, 1), 1)] == [Done]
    again = table.restarted()
    assert again.machine.phase is CloudPhase.DONE
    assert [type(m) for m in messages(again.join(1, 1), 1)] == [Welcome, Round, Done]


@pytest.mark.parametrize("known", [True, False])
def test_a_second_different_contribution_is_refused_and_recorded(table: Table, known: bool) -> None:
    if known:
        table.round(1)
    else:
        table.send(2, 1, 2, 3)
    actions = table.send(2, 1, 2, 4)
    assert codes(actions) == [Code.CONFLICT]
    assert not [a for a in actions if isinstance(a, Commit)]
    if not known:
        table.send(1, 1, 1)
        table.send(3, 1, 4)
    assert said(table.records[1]) == {1: [1], 2: [2, 3], 3: [4]}


@pytest.mark.parametrize(
    ("value", "used", "states"),
    [
        *((value, used, False) for value, used in ((11, 10), (-11, -10))),
        *((value, used, False) for value, used in ((2**63 - 1, 10), (-(2**63), -10))),
        *((x, used, True) for x, used in ((np.nan, 0.0), (np.inf, 1.0), (-np.inf, -1.0))),
        *((x, used, True) for x, used in ((1.0 + 2**-52, 1.0), (-1.1, -1.0))),
    ],
)
def test_what_is_out_of_range_is_clipped_and_recorded(
    value: float, used: float, states: bool
) -> None:
    table = Table(states=states)
    table.seat_all()
    actions = table.send(1, 1, value)
    assert actions == [Incident(code=Code.CLIPPED, agents=(1,), k=1)]  # nothing that anybody hears
    table.send(2, 1, 0, 1)
    last = table.send(3, 1, 1)
    assert said(table.records[1]) == {1: [used], 2: [0, 1], 3: [1]}
    assert [type(m) for m in messages(last, 1)] == [Round]


def test_of_a_gateway_with_states_only_the_clipped_agents_are_named() -> None:
    table = Table(states=True)
    table.join(1, 1, 2, 3)
    (incident,) = [a for a in table.send(1, 1, 0.1, 0.2, 9.0, -9.0) if isinstance(a, Incident)]
    assert incident == Incident(code=Code.CLIPPED, agents=(2, 3), k=1)
    assert said(table.records[1]) == {1: [0.1, 0.2, 1.0, -1.0]}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("states", "value"), [(False, 99), (True, 7.0), (True, np.nan)])
def test_what_was_clipped_is_the_same_sent_again(
    states: bool, value: float, restarted: bool
) -> None:
    table = Table(states=states)
    table.seat_all()
    assert codes(table.send(1, 1, value)) == [Code.CLIPPED]
    assert Code.CONFLICT not in codes(table.send(1, 1, value))
    table.send(2, 1, 0, 1)
    sent = encode(next(messages(table.send(3, 1, 1), 1)))
    if restarted:
        table = table.restarted()
        table.join(1, 1)
    actions = table.send(1, 1, value)
    assert codes(actions) == []
    assert [encode(m) for m in messages(actions, 1)] == [sent]
    assert codes(table.send(1, 1, -1)) == [Code.CONFLICT]


def test_agents_that_come_back_in_other_company_are_counted_once(table: Table) -> None:
    table.send(1, 1, 1)
    table.send(2, 1, 2, 3)
    table.join(9, 2, 3)  # agent 2 speaks with agent 3 from now on
    last = table.send(9, 1, 5, 6)
    assert any(isinstance(a, Commit) for a in last)
    assert said(table.records[1]) == {1: [1], 2: [5, 6]}


def test_a_total_that_cannot_be_taken_apart_makes_way(table: Table) -> None:
    table.join(9, 1, 2)
    table.send(9, 1, 3, 3)
    table.join(2, 2)  # and agent 1 is with nobody now
    table.send(2, 1, 2, 3)
    assert table.send(3, 1, 4) == []  # agent 1 is missing: nothing of the old total is used
    table.join(1, 1)
    table.send(1, 1, 1)
    assert said(table.records[1]) == {1: [1], 2: [2, 3], 3: [4]}


def test_a_repeated_total_of_another_company_is_answered_and_not_judged(table: Table) -> None:
    sent = encode(next(messages(table.round(1), 1)))
    table.join(9, 1, 2)
    actions = table.send(9, 1, 7, 7)
    assert codes(actions) == []
    assert [encode(m) for m in messages(actions, 9)] == [sent]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"config": b"x" * 32}, Code.OTHER_RUN),
        ({"agents": [1, 1]}, Code.MALFORMED),
        ({"agents": [4]}, Code.NOT_YOURS),  # there is none of this number
        ({"agents": [2]}, Code.NOT_YOURS),  # it speaks for another
        ({"round": 7}, Code.MALFORMED),
        ({"round": 7, "receipt": b"r" * 64}, Code.FORGED_RECEIPT),
        ({"round": 7, "receipt": b"r"}, Code.FORGED_RECEIPT),
    ],
)
def test_a_wrong_hello_closes_the_connection(
    table: Table, changes: dict[str, Any], code: Code
) -> None:
    table.machine.connect(9, {1, 4})
    actions = table.do(table.machine.receive(9, hello(1, **changes)))
    assert codes(actions) == [code]
    assert actions[-1] == Close(peer=9, code=code)
    table.round(1)
    assert table.machine.round == 2


def test_a_liar_cannot_halt_the_run_but_a_genuine_receipt_does(table: Table) -> None:
    table.round(1)
    table.round(2)
    receipt = table.notary.receipt(2, table.records[2].digest)
    forged = receipt[:32] + bytes(32)
    table.machine.connect(9, {1})
    lie = table.do(table.machine.receive(9, hello(1, round=2, receipt=forged)))
    assert codes(lie) == [Code.FORGED_RECEIPT]
    del table.records[2]  # the store is rolled back to round 1
    table.machine.connect(10, {1})
    truth = table.do(table.machine.receive(10, hello(1, round=2, receipt=receipt)))
    assert any(isinstance(a, Halt) for a in truth)
    assert table.machine.phase is CloudPhase.HALTED
    assert {a.peer for a in truth if isinstance(a, Close)} >= {2, 3, 10}
    assert codes(table.join(11, 2))[-1] is Code.HALTED


def test_a_fork_of_the_history_halts_the_run(table: Table) -> None:
    table.round(1)
    other = Table().notary.receipt(1, hashlib.sha256(b"another round 1").digest())
    table.machine.connect(9, {1})
    actions = table.do(table.machine.receive(9, hello(1, round=1, receipt=other)))
    assert any(isinstance(a, Halt) for a in actions)


def test_the_newest_connection_of_an_agent_counts(table: Table) -> None:
    actions = table.join(9, 1)
    assert Close(peer=1, code=Code.REPLACED) in actions
    table.send(9, 1, 1)
    table.send(2, 1, 2, 3)
    table.send(3, 1, 4)
    assert table.machine.round == 2


def test_at_a_deadline_the_last_words_of_the_silent_count_again() -> None:
    table = Table(straggler="hold")
    table.seat_all()
    assert table.do(table.machine.deadline(1)) == [Wait(k=1)]
    table.round(1)
    assert table.do(table.machine.deadline(2)) == [Wait(k=2)]  # nobody has spoken yet
    table.send(1, 2, 5)
    table.send(3, 2, 6)
    table.do(table.machine.deadline(2))
    assert table.records[2].held == {2}
    assert said(table.records[2]) == {1: [5], 2: [2, 3], 3: [6]}
    late = table.send(2, 2, 9, 9)
    assert codes(late) == [Code.LATE]
    assert [type(m) for m in messages(late, 2)] == [Error, Round]
    table.send(2, 3, 7, 7)
    table.send(1, 3, 5)
    table.send(3, 3, 6)
    assert table.records[3].held == frozenset()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_gateways_total_is_held_as_a_whole_or_waited_for(restarted: bool) -> None:
    table = Table(straggler="hold")
    table.join(1, 1, 2)
    table.join(3, 3)
    table.send(1, 1, 3, 3)
    table.send(3, 1, 4)
    if restarted:
        table = table.restarted()
        table.join(3, 3)
    table.send(3, 2, 5)
    table.do(table.machine.deadline(2))
    assert table.records[2].held == {1, 2}
    assert said(table.records[2]) == {1: [3, 3], 3: [5]}
    table.join(9, 1)  # alone now: nobody knows what agent 2 would add
    table.send(9, 3, 1)
    assert table.do(table.machine.deadline(3)) == [
        Wait(k=3)
    ]  # though agent 3's last words are known
    table.send(3, 3, 6)
    assert table.do(table.machine.deadline(3)) == [Wait(k=3)]
    table.join(10, 2)
    table.send(10, 3, 2, 2)
    assert said(table.records[3]) == {1: [1], 2: [2, 2], 3: [6]}


def fuzz(table: Table, inputs: int, seed: int) -> dict[type, int]:
    """Mutated and shuffled messages from several peers; returns how often each action came."""
    rng = random.Random(seed)  # noqa: S311
    counts: dict[type, int] = {}
    for number in range(inputs):
        peer = rng.randrange(6)
        if not table.machine.agents_of(peer):
            table.machine.connect(peer, {1 + peer % 3, 1 + (peer + 1) % 3})
        frame = bytearray(encode(_random_message(rng, table, table.machine.agents_of(peer))))
        for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 3))):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        try:
            actions = table.machine.receive(peer, decode_from_agent(bytes(frame)))
        except MalformedError:
            actions = table.machine.refuse(peer, Code.MALFORMED)
        for action in table.do(actions):
            counts[type(action)] = counts.get(type(action), 0) + 1
        table.actions.clear()
        if number % 97 == 0:
            table.machine.disconnect(peer)
        speakers = [a for p in range(6) for a in table.machine.agents_of(p)]
        assert sorted(table.machine.present) == sorted(speakers)  # on one connection each
    return counts


def _random_message(
    rng: random.Random, table: Table, agents: tuple[int, ...]
) -> Hello | Contribution | State:
    k = max(0, table.machine.round + rng.choice((-2, -1, 0, 0, 0, 0, 1)))
    if rng.random() < (0.95 if agents else 0.1):
        own = {o for a in agents for o in (COLUMNS if table.setup.states else SUMS)[a]}
        values = (0,) * 16 + (1, -1, 99, -99)
        size = len(own) + rng.choice((0, 0, 0, 0, 1))
        return table.message(max(1, k), *(rng.choice(values) for _ in range(size)))
    known = table.records.get(k)
    genuine = known is not None and rng.random() < 0.8
    receipt = table.notary.receipt(k, known.digest) if genuine and known is not None else b""
    chosen = sorted(rng.sample(range(1, 4), rng.randint(1, 2)))
    return hello(*chosen, round=k if genuine else 0, receipt=receipt)


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize(
    "seeds", [20, pytest.param(500, marks=(pytest.mark.slow, pytest.mark.timeout(1800)))]
)
def test_fuzzed_peers_never_break_the_machine_nor_repeat_a_round(states: bool, seeds: int) -> None:
    reached = 0
    for seed in range(seeds):
        table = Table(straggler="hold", states=states)
        counts = fuzz(table, 1_000, seed)
        assert Halt not in counts  # genuine receipts of known rounds prove nothing wrong
        assert sorted(table.records) == list(range(1, len(table.records) + 1))
        for record in table.records.values():
            assert all(part.party.range.holds(part.data) for part in record.parts)
        reached += len(table.records)
    assert reached > seeds  # the fuzz gets through the door, not only to it


def spoke(actions: list[Action], peer: int) -> int:
    (welcome,) = (m for m in messages(actions, peer) if isinstance(m, Welcome))
    return welcome.spoke


def test_a_welcome_says_up_to_where_an_average_must_reach(table: Table) -> None:
    assert spoke(table.join(9, 1), 9) == 0
    table.join(1, 1)
    table.round(1)
    table.machine.disconnect(2)
    assert spoke(table.join(4, 2), 4) == 1
    table.send(4, 2, 2, 3)
    table.machine.disconnect(4)
    assert spoke(table.join(5, 2), 5) == 2  # its words of the round at hand count


@pytest.mark.parametrize("restarted", [False, True])
def test_who_was_held_has_no_gap_where_it_was_silent(restarted: bool) -> None:
    table = Table(straggler="hold")
    table.seat_all()
    table.round(1)
    table.machine.disconnect(2)
    for k in (2, 3):
        table.send(1, k, 1)
        table.send(3, k, 4)
        table.do(table.machine.deadline(k))
    assert table.records[3].held == {2}
    if restarted:
        table = table.restarted(silent={2: 1})
        table.join(1, 1, k=3)
    assert spoke(table.join(4, 2, k=1), 4) == 1
    assert spoke(table.join(5, 1, k=3), 5) == 3


@pytest.mark.parametrize("gap", [(1, 2, 1, 1), (3, 3, 1, 1), (2, 2, 1, 2), (2, 2, 2, 1)])
def test_gaps_of_others_or_to_come_are_malformed(
    table: Table, gap: tuple[int, int, int, int]
) -> None:
    values = pack_whole(np.array([2, 3]))
    said = Contribution(round=1, values=values, missed=[gap])
    assert codes(table.do(table.machine.receive(2, said))) == [Code.MALFORMED]
    table.join(4, 2)
    said = Contribution(round=1, values=values, missed=[(2, 2, 1, 1)])
    assert codes(table.do(table.machine.receive(4, said))) == []


def test_who_hears_of_the_end_late_waits_less_and_applies_at_the_same_time() -> None:
    now = [100.0]
    table = Table()
    table.machine = CloudMachine(table.setup, table.notary, table._digest, clock=lambda: now[0])
    table.wait = 5.0
    table.seat_all()
    for k in range(1, ROUNDS):
        table.round(k)
    now[0] = 200.0
    waits = [m.wait for m in messages(table.round(ROUNDS), 1) if isinstance(m, Done)]
    for later, left in ((3.0, 2.0), (9.0, 0.0)):
        now[0] = 200.0 + later
        table.machine.disconnect(1)
        (done,) = (m for m in messages(table.join(1, 1), 1) if isinstance(m, Done))
        waits.append(done.wait)
        assert done.wait == left
    assert waits == [5.0, 2.0, 0.0]
