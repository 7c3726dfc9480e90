"""What a helper and an agent keep: they go on from it, and damage or an old copy is noticed."""

from __future__ import annotations

import hashlib
import random
import shutil
import stat
from pathlib import Path

import pytest

from databases import sqlite
from sottovoce.errors import NetworkError
from sottovoce.network.agent import AgentStore
from sottovoce.network.config import RunConfig
from sottovoce.network.failures import BusyError, HaltedError, StoreError
from sottovoce.network.journal import Journal
from sottovoce.network.journal_place import SCHEMA
from sottovoce.network.protocol.actions import JournalRow, Memory
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.store import CloudStore, summarise

CONFIG = RunConfig(
    run_id="r",
    problem="p",
    plan="n",
    algorithm={"name": "DualAveraging"},
    rounds=9,
    noise="secure",
    promise={},
).text
START = Memory(x=b"\0" * 8, answer=b"\0" * 8)


def helpers(path: Path) -> Journal:
    return Journal(path, "helper", keep=True)


def filled(path: Path, rounds: int) -> JournalRow:
    store = helpers(path)
    store.bind(CONFIG)
    for k in range(store.released + 1, rounds + 1):
        before = store.digest(k - 1) or hashlib.sha256(CONFIG.encode()).digest()
        question, values = hashlib.sha256(bytes([k])).digest(), bytes([k]) * 16
        digest = next_digest(before, k, question, values)
        store.append(JournalRow(k=k, context=question, release=values, digest=digest))
    assert store.last is not None
    last = store.last
    store.close()
    return last


def test_a_helper_goes_on_where_it_was_and_owns_its_store(tmp_path: Path) -> None:
    last = filled(tmp_path / "helper.db", 5)
    store = helpers(tmp_path / "helper.db")
    assert store.last == last
    assert store.run.config == CONFIG
    assert store.digest(5) == last.digest
    assert store.digest(6) is None
    with pytest.raises(BusyError, match="another helper"):
        helpers(tmp_path / "helper.db")
    store.incident(Code.CONFLICT, (), 5)
    store.close()
    summary = summarise(tmp_path / "helper.db")
    assert (summary.rounds, summary.price, summary.incidents) == (5, (), {"conflict": 1})


def test_a_store_behind_its_mark_is_refused_and_a_halt_is_for_good(tmp_path: Path) -> None:
    path = tmp_path / "helper.db"
    filled(path, 3)
    shutil.copy(path, tmp_path / "old")
    filled(path, 6)
    shutil.copy(path, tmp_path / "new")
    shutil.copy(tmp_path / "old", path)
    with pytest.raises(StoreError, match="rolled back"):
        helpers(path)
    path.unlink()
    with pytest.raises(StoreError, match="rolled back"):
        helpers(path)
    shutil.copy(tmp_path / "new", path)
    store = helpers(path)
    store.end("halted", "somebody proved it")
    store.close()
    with pytest.raises(HaltedError, match="somebody proved it"):
        helpers(path)
    shutil.copy(tmp_path / "new", path)
    with pytest.raises(StoreError, match="halted for good"):  # the marker remembers
        helpers(path)


def test_files_of_another_role_or_another_version_are_refused(tmp_path: Path) -> None:
    filled(tmp_path / "helper.db", 1)
    AgentStore(tmp_path / "3.state", START).close()
    with pytest.raises(StoreError, match="file of a cloud, got that of a helper"):
        CloudStore(tmp_path / "helper.db")
    with pytest.raises(StoreError, match="file of a helper, got that of an agent"):
        helpers(tmp_path / "3.state")
    sqlite(tmp_path / "3.state", f"PRAGMA user_version = {SCHEMA - 1}")
    with pytest.raises(StoreError, match=f"schema version {SCHEMA}, got {SCHEMA - 1}"):
        AgentStore(tmp_path / "3.state", START)


def memory(k: int) -> Memory:
    return Memory(
        config=hashlib.sha256(b"").digest(),
        round=k,
        receipt=bytes([k]) * 64,
        x=bytes([k]) * 8,
        answer=bytes([k + 1]) * 8,
        sent=bytes([k + 2]) * 24,
    )


def test_an_agent_goes_on_from_its_last_round(tmp_path: Path) -> None:
    path = tmp_path / "3.state"
    saved = AgentStore(path, START)
    assert saved.memory == START
    for k in range(5):
        saved.save(memory(k))
    saved.close()
    again = AgentStore(path, START)
    assert again.memory == memory(4)
    again.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("way", ["flip", "cut", "no log"])
def test_a_damaged_state_file_gives_a_memory_of_the_agent_or_a_refusal(
    way: str, tmp_path: Path
) -> None:
    live = tmp_path / "live"
    live.mkdir()
    saved = AgentStore(live / "s", START)
    memories = [START] + [memory(k) for k in range(1, 30)]
    for one in memories[1:]:
        saved.save(one)
    files = {name: (live / name).read_bytes() for name in ("s", "s-wal")}
    saved.close()
    rng, refused, kept = random.Random(5), 0, 0  # noqa: S311
    for _ in range(60):
        for old in tmp_path.glob("s*"):
            old.unlink()
        broken = dict(files)
        if way == "no log":
            del broken["s-wal"]
        else:
            name = rng.choice(list(files))
            data, place = bytearray(files[name]), rng.randrange(len(files[name]))
            if way == "flip":
                data[place] ^= 1 << rng.randrange(8)
            broken[name] = bytes(data if way == "flip" else data[:place])
        for name, body in broken.items():
            (tmp_path / name).write_bytes(body)
        try:
            again = AgentStore(tmp_path / "s", START)
        except StoreError:
            refused += 1
            continue
        assert again.memory in memories
        kept += again.memory == memories[-1]
        again.close()
    if way == "flip":
        assert kept > 20  # most bits are of pages that a newer one replaces
    assert refused or kept < 60


def test_a_file_of_other_agents_is_refused(tmp_path: Path) -> None:
    saved = AgentStore(tmp_path / "s", START)
    saved.save(memory(1))
    saved.close()
    with pytest.raises(NetworkError, match="other agents"):
        AgentStore(tmp_path / "s", Memory(x=b"\0" * 16, answer=b"\0" * 16))
