from __future__ import annotations

import hashlib
import random
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from network_harness import plan_for

from databases import sqlite
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.errors import NetworkError
from sottovoce.network.agent import AgentStore
from sottovoce.network.config import RunConfig
from sottovoce.network.failures import BusyError, DiskError, HaltedError, StoreError
from sottovoce.network.journal import Journal
from sottovoce.network.journal_place import SCHEMA
from sottovoce.network.protocol.actions import JournalRow, Memory, Part, Record
from sottovoce.network.protocol.codec import pack, pack_release, pack_whole
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.setup import make_config, parties_of
from sottovoce.network.store import CloudStore, answers, attendance_in, summarise, transcript
from sottovoce.privacy.sampler import Released
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem

UNPINNED = hashlib.sha256(b"").digest()


def config(problem: Problem, store: CloudStore, **changes: object) -> RunConfig:
    settings = {"rounds": 10, "noise": "secure", "run_id": store.run.run_id} | changes
    return make_config(plan_for(problem), DualAveraging(), **settings)  # type: ignore[arg-type]


PLAN = plan_for(gallery.paper())


def record(k: int, said: int = 5, first: bytes = UNPINNED, *companies: tuple[int, ...]) -> Record:
    """Round k of a run whose chain begins with ``first``."""
    previous, price = first, np.ones(2)
    for j in range(1, k + 1):
        previous = next_digest(previous, j, pack(price), pack_release(released()))
    parties = map(parties_of(PLAN), companies or [(1, 2), (3, 4, 5, 6, 7)])
    return Record(
        k=k,
        parts=tuple(Part(party=p, data=pack_whole(p.sums + said)) for p in parties),
        sent_price=price,
        price=price,
        answer=price,
        released=np.zeros(0),
        y=np.zeros(0),
        digest=previous,
        held=frozenset({1, 2}),
    )


def released() -> Released:
    return Released(
        values=np.array([2.0, 4.0]), multiples=np.array([1, 2]), grid=np.array([2.0, 2.0])
    )


def test_a_round_survives_in_every_field(tmp_path: Path) -> None:
    store = CloudStore(tmp_path / "run.db")
    store.commit(record(1), released())
    store.commit(record(2, 6, UNPINNED, (1,), (2,), (3, 4, 5, 6, 7)), released())
    store.close()
    again = CloudStore(tmp_path / "run.db")
    first, last = again.rounds()
    want = record(2, 6, UNPINNED, (1,), (2,), (3, 4, 5, 6, 7))
    assert (first.k, first.said) == (1, None)
    assert (last.k, last.digest, last.context) == (2, want.digest, pack(want.price))
    assert last.release == pack_release(released())
    assert attendance_in(last) == (tuple(sorted(want.held)), (), True)
    assert [(p.party.agents, p.data) for p in again.parts(parties_of(PLAN))] == [
        (p.party.agents, p.data) for p in want.parts
    ]
    assert again.released == 2
    assert again.digest(1) == first.digest
    assert again.digest(3) is None
    again.commit(record(3), released())  # of a company that is known from round 1
    again.close()
    assert CloudStore(tmp_path / "run.db").released == 3


def test_releases_are_stored_as_integers_and_never_overwritten(tmp_path: Path) -> None:
    store = CloudStore(tmp_path / "run.db")
    store.commit(record(1), released())
    with pytest.raises(StoreError):
        store.commit(record(1, 6), released())
    store.close()
    ((blob,),) = sqlite(tmp_path / "run.db", "SELECT release FROM rounds WHERE k = 1")
    assert np.frombuffer(blob, dtype="<i8").tolist() == [1, 2]


def test_every_commit_waits_for_the_disk(tmp_path: Path) -> None:
    for _ in ("new", "opened again"):
        store = CloudStore(tmp_path / "run.db")
        pragmas = ("journal_mode", "synchronous", "secure_delete")
        found = [store._database.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
        assert found == ["wal", 2, 1]  # 2: FULL, the write-ahead log is synced at every commit
        store.close()


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("end", ["next round", "done", "halted", "failed"])
def test_what_was_said_is_erased_with_the_next_round(tmp_path: Path, keep: bool, end: str) -> None:
    store = CloudStore(tmp_path / "run.db", keep_states=keep)
    canary = 1234567890123
    store.commit(record(1, canary), released())
    if end == "next round":
        store.commit(record(2), released())
    else:
        store.end(end, "it had to")  # type: ignore[arg-type]
    store.close()
    kept = pack_whole(np.array([canary])) in (tmp_path / "run.db").read_bytes()
    assert kept == keep
    said = transcript(tmp_path / "run.db").said
    assert (said is not None) == keep
    if said is not None:
        assert said[0] == tuple((p.party.agents, p.data) for p in record(1, canary).parts)


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    store = CloudStore(tmp_path / "run.db")
    store.commit(record(1), released())
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    store.close()


def test_a_store_is_pinned_to_one_configuration(tmp_path: Path, paper: Problem) -> None:
    store = CloudStore(tmp_path / "run.db")
    store.pin(config(paper, store))
    store.close()
    store = CloudStore(tmp_path / "run.db")
    store.pin(config(paper, store))
    for changes, word in (({"rounds": 11}, "rounds"), ({"noise": "simulated"}, "noise")):
        with pytest.raises(StoreError, match=word):
            store.pin(config(paper, store, **changes))
    store.close()


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"not a database at all, but somebody's notes")
    with pytest.raises(StoreError):
        CloudStore(path)
    with pytest.raises(StoreError):
        CloudStore(path, new=True)
    assert path.read_bytes().startswith(b"not a database")
    with pytest.raises(StoreError):
        summarise(path)


def test_a_summary_says_nothing_that_agents_said(tmp_path: Path, paper: Problem) -> None:
    store = CloudStore(tmp_path / "run.db")
    store.pin(config(paper, store))
    store.incident(Code.CONFLICT, (3,), 1)
    store.commit(record(1, 987654321, config(paper, store).hash), released())
    summary = summarise(tmp_path / "run.db")
    assert (summary.status, summary.rounds, summary.held) == ("running", 1, 2)
    assert summary.incidents == {"conflict": 1}
    assert "98765" not in repr(summary)
    assert answers(tmp_path / "run.db").tolist() == [[0.0, 0.0]]  # that led to the first release
    store.close()


def test_a_flood_of_incidents_takes_one_row_and_hides_no_conflict(tmp_path: Path) -> None:
    store = CloudStore(tmp_path / "run.db")
    for k in range(120_000):
        store.incident(Code.FLOOD, (k % 8, 9), 1)
        if k % 30_000 == 0:
            store.flush()
    store.incident(Code.CONFLICT, (3,), 2)
    store.close()
    assert summarise(tmp_path / "run.db").incidents == {"flood": 120_000, "conflict": 1}
    assert (tmp_path / "run.db").stat().st_size < 100_000


def test_a_symlinked_store_path_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    store = CloudStore(tmp_path / "here" / "run.db")
    (tmp_path / "there").symlink_to(tmp_path / "here")
    (tmp_path / "other.db").symlink_to(tmp_path / "here" / "run.db")
    for path in (tmp_path / "there" / "run.db", tmp_path / "other.db"):
        with pytest.raises(BusyError, match="another cloud"):
            CloudStore(path)
    store.commit(record(1), released())
    store.close()
    again = CloudStore(tmp_path / "other.db")
    assert again.digest(1) == record(1).digest
    again.close()
    assert not list(tmp_path.glob("other.db?*"))


def test_a_disk_that_is_full_is_told_from_a_store_that_is_damaged(tmp_path: Path) -> None:
    store = CloudStore(tmp_path / "run.db")
    pages = store._database.execute("PRAGMA page_count").fetchone()[0]
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    k = 1
    with pytest.raises(DiskError, match="full"):  # noqa: PT012  which round finds it is SQLite's
        for k in range(1, 200):
            store.commit(record(k), released())
    store._database.execute("PRAGMA max_page_count = 1000000")
    store.commit(record(k), released())
    store.close()
    again = CloudStore(tmp_path / "run.db")
    assert again.digest(k) == record(k).digest
    again.close()


# --- What a helper and an agent keep: they go on from it, and damage or an old copy is noticed ---


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


@pytest.mark.parametrize("way", ["flip", "cut", "no log"])
def test_a_damaged_state_file_gives_a_memory_or_a_refusal(way: str, tmp_path: Path) -> None:
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
