"""The helper's machine: a round is answered once, about certified agents that count once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from sottovoce.network.protocol.actions import AnswerRound, Close, Halt, Incident, JournalRow, Send
from sottovoce.network.protocol.cloud_machine import CloudPhase
from sottovoce.network.protocol.codec import decode_from_helper, decode_to_helper, encode
from sottovoce.network.protocol.helper_machine import HelperMachine
from sottovoce.network.protocol.messages import (
    Answer,
    Ask,
    Code,
    Introduce,
    Open,
    Opened,
    Pledged,
    Refusal,
)
from sottovoce.network.protocol.receipt import ReceiptSigner, next_digest

CONFIG, RUN = hashlib.sha256(b"run").digest(), "run"
KEYS = {1: b"a" * 32, 2: b"b" * 32, 3: b"c" * 32}
ONE, TWO, NEW = b"1" * 16, b"2" * 16, b"3" * 16


class Run:
    """What the helper goes by."""

    config_hash = CONFIG

    def __init__(self, rounds: int, hold: bool) -> None:
        self.rounds, self.hold = rounds, hold

    def certified(self, agents: Sequence[int], mask: bytes) -> bool:
        """Key a speaks for agents 1 and 2, b for agent 2, c for agent 3."""
        allowed = {KEYS[1]: {1, 2}, KEYS[2]: {2}, KEYS[3]: {3}}.get(mask, set())
        return set(agents) <= allowed

    def pledge(self, agents: tuple[int, ...], key: bytes) -> bytes:
        return b"signed"


class Half:
    """A machine, and what a driver does for it: numbers that name the question."""

    def __init__(self, *rows: JournalRow, rounds: int = 3, hold: bool = False) -> None:
        run = Run(rounds, hold)
        self.notary = ReceiptSigner(bytes(32), CONFIG)
        self.committed = list(rows)
        self.machine = HelperMachine(
            lambda config: run if config == RUN else Code.OTHER_RUN,
            bytes(32),
            lambda k: self.committed[k - 1].digest if k <= len(self.committed) else None,
            rows[-1] if rows else None,
        )
        self.drawn = 0

    def say(self, message: Any) -> list[Any]:
        """What comes back, messages as they travel, and what is done besides."""
        found: list[Any] = []
        queue: list[Any] = list(self.machine.receive(1, decode_to_helper(encode(message))))
        while queue:
            action = queue.pop(0)
            if isinstance(action, AnswerRound):
                queue = self.machine.committed(self._answered(action)) + queue
            elif isinstance(action, Send):
                found.append(decode_from_helper(encode(action.message)))
            else:
                found.append(action)
        return found

    def _answered(self, action: AnswerRound) -> JournalRow:
        self.drawn += 1  # noise that never comes twice
        values = self.drawn.to_bytes(8, "little")
        digest = next_digest(action.previous, action.k, action.question, values)
        answered = JournalRow(k=action.k, context=action.question, release=values, digest=digest)
        self.committed.append(answered)
        return answered

    def open(self) -> Half:
        self.machine.connect(1)
        assert isinstance(self.say(Open(config=RUN))[0], Opened)
        self.say(Introduce(number=1, agents=[1], mask=KEYS[1]))
        self.say(Introduce(number=2, agents=[2], mask=KEYS[2]))
        self.say(Introduce(number=3, agents=[3], mask=KEYS[3]))
        return self

    def ask(self, k: int, *taken: tuple[int, bytes, int], receipt: bytes | None = None) -> Any:
        last = self.machine.last
        if receipt is None:
            known = last is not None and last.k == k - 1
            receipt = self.notary.receipt(last.k, last.digest) if known and last else b""
        found = self.say(Ask(round=k, taken=list(taken), receipt=receipt))
        return found[0] if len(found) == 1 else found


def refused(found: Any) -> Code:
    assert isinstance(found[-1], Close)
    assert isinstance(found[-2], Refusal)
    assert isinstance(found[-3], Incident)  # every refusal is written down
    assert found[-3].code is found[-2].code
    code: Code = found[-2].code
    return code


def test_a_round_is_answered_once_and_the_same_question_gets_the_same_bytes() -> None:
    half = Half().open()
    both = ((1, ONE, 1), (2, TWO, 1))
    first = half.ask(1, *both)
    assert isinstance(first, Answer)
    assert half.ask(1, *both) == first
    assert len(half.committed) == 1
    half.machine.connect(1)  # the cloud comes back and gives other numbers
    half.say(Open(config=RUN))
    half.say(Introduce(number=5, agents=[2], mask=KEYS[2]))
    half.say(Introduce(number=8, agents=[1], mask=KEYS[1]))
    assert half.ask(1, (5, TWO, 1), (8, ONE, 1)) == first
    assert len(half.committed) == 1


@pytest.mark.parametrize(
    "other",
    [
        [(1, ONE, 1)],  # a subset: the difference of two answers would be one agent's mask
        [(1, ONE, 1), (2, NEW, 1)],  # another session
        [(1, ONE, 1), (2, TWO, 1), (3, NEW, 1)],  # one agent more
    ],
)
def test_another_question_about_an_answered_round_is_refused_and_recorded(other: Any) -> None:
    half = Half().open()
    half.ask(1, (1, ONE, 1), (2, TWO, 1))
    assert refused(half.ask(1, *other)) is Code.CONFLICT
    assert len(half.committed) == 1


def test_no_agent_counts_twice_in_a_round() -> None:
    half = Half().open()
    half.say(
        Introduce(number=4, agents=[1, 2], mask=KEYS[1])
    )  # a gateway that speaks for 2 as well
    assert refused(half.ask(1, (2, TWO, 1), (4, ONE, 1))) is Code.MALFORMED
    half.open()
    assert refused(half.ask(1, (1, ONE, 1), (1, NEW, 1))) is Code.MALFORMED
    assert not half.committed


def test_two_gateways_with_one_certificate_and_other_agents_take_part_together() -> None:
    half = Half().open()
    half.say(Introduce(number=4, agents=[2], mask=KEYS[1]))
    assert isinstance(half.ask(1, (1, ONE, 1), (4, TWO, 1)), Answer)


def test_only_certified_keys_take_part_and_get_a_pledge() -> None:
    half = Half().open()
    assert half.say(Introduce(number=7, agents=[1, 2], mask=KEYS[1])) == [
        Pledged(number=7, pledge=b"signed")
    ]
    for agents, mask in (([1], KEYS[2]), ([1, 2, 3], KEYS[1]), ([2, 1], KEYS[1]), ([1], b"x" * 32)):
        recorded, answer = half.say(Introduce(number=9, agents=agents, mask=mask))
        assert recorded.code is Code.NOT_YOURS
        assert answer == Refusal(code=Code.NOT_YOURS, number=9)
    assert refused(half.ask(1, (9, ONE, 1))) is Code.MALFORMED  # whoever was refused is unknown


def test_rounds_follow_each_other_to_the_last() -> None:
    half = Half(rounds=2).open()
    assert refused(half.ask(2, (1, ONE, 2), receipt=b"")) is Code.FUTURE_ROUND
    half.open().ask(1, (1, ONE, 1))
    half.ask(2, (1, ONE, 2))
    assert half.machine.phase is CloudPhase.DONE
    assert refused(half.ask(1, (1, ONE, 1), receipt=b"")) is Code.OLD_ROUND
    assert refused(half.open().ask(3, (1, ONE, 3))) is Code.UNEXPECTED
    assert [answered.k for answered in half.committed] == [1, 2]


@pytest.mark.parametrize("hold", [False, True])
def test_an_older_contribution_counts_again_only_where_the_promise_covers_it(hold: bool) -> None:
    half = Half(hold=hold).open()
    half.ask(1, (1, ONE, 1))
    found = half.ask(2, (1, ONE, 1))
    assert isinstance(found, Answer) if hold else refused(found) is Code.MALFORMED
    ahead = half.open().ask(k := len(half.committed) + 1, (1, ONE, k + 1))
    assert refused(ahead) is Code.MALFORMED  # a later round's mask, never


def test_a_store_that_forgot_an_answer_is_halted_by_a_genuine_receipt_alone() -> None:
    full = Half().open()
    full.ask(1, (1, ONE, 1))
    full.ask(2, (1, ONE, 2))
    genuine = full.notary.receipt(2, full.committed[1].digest)
    old = Half(full.committed[0]).open()  # rolled back by one round
    forged = genuine[:-1] + bytes([genuine[-1] ^ 1])
    assert refused(old.ask(3, (1, ONE, 3), receipt=forged)) is Code.FORGED_RECEIPT
    assert old.machine.phase.name == "COLLECTING"
    found = old.open().ask(3, (1, ONE, 3), receipt=genuine)
    assert isinstance(found[0], Halt)
    assert refused(found) is Code.HALTED
    assert old.machine.phase is CloudPhase.HALTED
    old.machine.connect(1)
    assert refused(old.say(Open(config=RUN))) is Code.HALTED


def test_a_store_that_answered_otherwise_is_halted_too() -> None:
    first, second = Half().open(), Half().open()
    first.ask(1, (1, ONE, 1))
    second.ask(1, (1, NEW, 1))
    receipt = first.notary.receipt(1, first.committed[0].digest)
    assert isinstance(second.ask(2, (1, ONE, 2), receipt=receipt)[0], Halt)


def test_whatever_is_out_of_turn_is_refused() -> None:
    half = Half()
    half.machine.connect(1)
    ask = Ask(round=1, taken=[(1, ONE, 1)], receipt=b"")
    assert refused(half.say(ask)) is Code.UNEXPECTED
    assert refused(half.say(Open(config="other"))) is Code.OTHER_RUN
    half.open()
    assert refused(half.say(Open(config=RUN))) is Code.UNEXPECTED
    recorded, reply, _ = half.machine.refuse(1, Code.MALFORMED)
    assert isinstance(recorded, Incident)
    assert reply == Send(peers=(1,), message=Refusal(code=Code.MALFORMED, number=0))
