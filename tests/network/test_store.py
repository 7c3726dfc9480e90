from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import numpy as np
import pytest
from network_harness import plan_for

from databases import sqlite
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network.config import RunConfig
from sottovoce.network.failures import BusyError, DiskError, StoreError
from sottovoce.network.protocol.actions import Part, Record
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
def test_what_was_said_is_erased_with_the_next_round_or_the_end_unless_asked_for(
    tmp_path: Path, keep: bool, end: str
) -> None:
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


def test_a_summary_can_be_read_while_a_cloud_writes_and_says_nothing_that_agents_said(
    tmp_path: Path, paper: Problem
) -> None:
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
