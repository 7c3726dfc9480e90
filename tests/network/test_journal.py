"""What a helper writes down stays: torn ends are forgotten, damage is refused, loss is noticed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from sottovoce.network.config import RunConfig
from sottovoce.network.errors import BusyError, HaltedError, StoreError
from sottovoce.network.helper_store import HelperStore
from sottovoce.network.journal import Journal
from sottovoce.network.protocol.helper import Answered
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import next_digest

CONFIG = RunConfig(
    run_id="r", problem="p", plan="n", algorithm={}, rounds=9, noise="secure", promise={}
).text


def answered(store: HelperStore, k: int) -> Answered:
    last = store.last
    before = hashlib.sha256(CONFIG.encode()).digest() if last is None else last.digest
    question, values = hashlib.sha256(bytes([k])).digest(), bytes([k]) * 16
    digest = next_digest(before, k, question, values)
    return Answered(k=k, question=question, values=values, digest=digest, previous=before)


def filled(path: Path, rounds: int) -> Answered:
    store = HelperStore(path)
    if not store.config:
        store.pin(CONFIG, 2)
    for k in range((store.last.k if store.last else 0) + 1, rounds + 1):
        store.commit(answered(store, k))
    assert store.last is not None
    last = store.last
    store.close()
    return last


def test_a_journal_gives_back_what_it_was_given(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", b"svtest_1")
    assert journal.heading == ""
    journal.begin("heading", 5)
    bodies = [bytes([i % 256]) * 5 for i in range(300)]
    for body in bodies:
        journal.append(body)
    assert list(journal.records()) == bodies
    journal.close()
    again = Journal(tmp_path / "j", b"svtest_1")
    assert (again.heading, again.count, list(again.records())) == ("heading", 300, bodies)
    again.append(b"after")
    assert list(again.records())[-1] == b"after"
    again.close()
    with pytest.raises(StoreError, match="is not"):
        Journal(tmp_path / "j", b"svother1")


@pytest.mark.parametrize("cut", [1, 10, 20, 21])
def test_a_torn_end_is_forgotten_and_a_broken_middle_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    journal = Journal(path, b"svtest_1")
    journal.begin("h", 5)
    for i in range(4):
        journal.append(bytes([i + 1]) * 5)
    begin, step = journal._begin, 21
    journal.close()
    data = bytearray(path.read_bytes())
    last = begin + 3 * step
    torn = bytearray(data)
    torn[last + step - cut : last + step] = bytes(cut)  # the end of the last record never arrived
    path.write_bytes(torn)
    after = Journal(path, b"svtest_1")
    assert after.count == 3
    after.close()
    data[begin + step + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        Journal(path, b"svtest_1")


def test_a_store_goes_on_where_it_was_and_belongs_to_one_helper(tmp_path: Path) -> None:
    last = filled(tmp_path / "helper.db", 5)
    store = HelperStore(tmp_path / "helper.db")
    assert store.last == last
    assert store.run_id == "r"
    assert store.digest(5) == last.digest
    assert store.digest(4) == last.previous
    assert store.digest(3) is store.digest(6) is None
    with pytest.raises(BusyError):
        HelperStore(tmp_path / "helper.db")
    store.refused(Code.CONFLICT, (), 5)
    store.close()
    (line,) = (tmp_path / "helper.db.refused").read_text().splitlines()
    assert json.loads(line)["code"] == "conflict"


def test_a_store_behind_its_mark_is_halted_and_a_halt_is_for_good(tmp_path: Path) -> None:
    path = tmp_path / "helper.db"
    filled(path, 3)
    shutil.copy(path, tmp_path / "old")
    filled(path, 6)
    shutil.copy(path, tmp_path / "new")
    shutil.copy(tmp_path / "old", path)
    with pytest.raises(HaltedError, match="rolled back"):
        HelperStore(path)
    path.unlink()
    with pytest.raises(HaltedError, match="rolled back"):
        HelperStore(path)
    shutil.copy(tmp_path / "new", path)
    store = HelperStore(path)
    store.halt("somebody proved it")
    store.close()
    with pytest.raises(HaltedError, match="somebody proved it"):
        HelperStore(path)
    path.with_name("helper.db.halted").unlink()
    with pytest.raises(HaltedError, match="rolled back"):  # the mark remembers
        HelperStore(path)
