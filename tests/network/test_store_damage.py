"""Bit rot, lost files and truncation: a store says what was written, or refuses to speak."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import plan_for

from databases import sqlite
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network.failures import StoreError
from sottovoce.network.protocol.actions import Part, Record
from sottovoce.network.protocol.codec import pack, pack_release, pack_whole
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import next_digest
from sottovoce.network.setup import make_config, parties_of
from sottovoce.network.store import CloudStore, answers, summarise
from sottovoce.privacy.sampler import Released
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem

PLAN = plan_for(gallery.paper())
ROUNDS = 12
FLIPS = 200
"""Flips in each of the two ways a store lies on disk."""


def fill(store: CloudStore, problem: Problem, rounds: int = ROUNDS) -> None:
    """A run with a configuration, rounds whose every field differs, and incidents."""
    config = make_config(
        plan_for(problem), DualAveraging(), rounds=100, noise="secure", run_id=store.run.run_id
    )
    store.pin(config)
    digest, rng = store.digest(store.released) or config.hash, np.random.default_rng(rounds)
    for k in range(store.released + 1, rounds + 1):
        price, steps = rng.random(6), rng.integers(-(2**40), 2**40, 6)
        released = Released(
            values=np.array(steps * 0.5, dtype=np.float64), multiples=steps, grid=np.full(6, 0.5)
        )
        digest = next_digest(digest, k, pack(price), pack_release(released))
        record = Record(
            k=k,
            parts=said(rng, k),
            sent_price=price,
            price=price,
            answer=price,
            released=np.zeros(0),
            y=np.zeros(0),
            digest=digest,
            held=frozenset({k % 7 + 1}),
            missed=((1, 3, 1, k),),
        )
        store.incident(Code.CONFLICT, (k % 3 + 1,), k)
        store.commit(record, released)


def said(rng: np.random.Generator, k: int) -> tuple[Part, ...]:
    """Something new of everybody, in company that changes."""
    companies = [(1, 2, 3), (4, 5, 6, 7)] if k % 2 else [(1,), (2, 3, 4, 5, 6, 7)]
    parties = map(parties_of(PLAN), companies)
    return tuple(
        Part(party=p, data=pack_whole(rng.integers(-(2**40), 2**40, p.sums.size))) for p in parties
    )


def everything(path: Path) -> dict[str, Any]:
    """All that a cloud, an operator or an agent can be told from a store."""
    summary, reported = summarise(path), answers(path)
    store = CloudStore(path)
    try:
        return {
            "run": (store.run.run_id, store.run.status, store.run.reason),
            "summary": summary,
            "answers": reported.tobytes(),
            "said": [(part.party.agents, part.data) for part in store.parts(parties_of(PLAN))],
            "rounds": list(store.rounds()),
            "digests": [store.digest(k) for k in range(1, store.released + 1)],
        }
    finally:
        store.close()


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, paper: Problem) -> Path:
    folder = tmp_path_factory.mktemp("closed")
    store = CloudStore(folder / "run.db")
    fill(store, paper)
    store.close()
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, paper: Problem) -> Path:
    """The folder of a store as a killed process leaves it: with a write-ahead log."""
    folder, copy = tmp_path_factory.mktemp("open"), tmp_path_factory.mktemp("killed")
    store = CloudStore(folder / "run.db")
    fill(store, paper, ROUNDS // 2)
    store._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    store.close()
    store = CloudStore(folder / "run.db")
    fill(store, paper)
    for name in ("run.db", "run.db-wal", "run.db.mark"):
        shutil.copy(folder / name, copy / name)
    store.close()
    log = copy / "run.db-wal"
    log.write_bytes(log.read_bytes().rstrip(b"\0"))  # what was written: a bit beyond is nobody's
    return copy


def outcomes(folder: Path, scratch: Path, seed: int) -> tuple[int, int]:
    """Flip one random bit at a time; count refusals, and answers that differ."""
    rng = random.Random(seed)  # noqa: S311
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}
    where = [(name, i) for name, data in files.items() for i in range(len(data))]
    for name, data in files.items():
        (scratch / name).write_bytes(data)
    want = everything(scratch / "run.db")
    refused = silent = 0
    for _ in range(FLIPS):
        for old in scratch.iterdir():
            old.unlink()
        name, place = rng.choice(where)
        for each, data in files.items():
            (scratch / each).write_bytes(data)
        broken = bytearray(files[name])
        broken[place] ^= 1 << rng.randrange(8)
        (scratch / name).write_bytes(broken)
        try:
            silent += everything(scratch / "run.db") != want
        except StoreError:
            refused += 1
    return refused, silent


@pytest.mark.parametrize("way", ["closed", "killed"])
def test_no_flipped_bit_is_ever_sent_out_or_told(
    way: str, closed: Path, killed: Path, tmp_path: Path
) -> None:
    refused, silent = outcomes({"closed": closed, "killed": killed}[way], tmp_path, seed=len(way))
    assert silent == 0
    assert refused > FLIPS // 10  # the rest hit free space


@pytest.mark.parametrize("column", ["said", "context", "release", "digest", "attendance"])
def test_a_flipped_bit_of_the_last_round_is_found(
    column: str, closed: Path, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(closed, tmp_path, dirs_exist_ok=True)) / "run.db"
    ((value,),) = sqlite(store, f"SELECT {column} FROM rounds WHERE k = {ROUNDS}")  # noqa: S608
    write = f"UPDATE rounds SET {column} = ? WHERE k = {ROUNDS}"  # noqa: S608
    sqlite(store, write, bytes([value[0] ^ 1]) + value[1:])
    with pytest.raises(StoreError, match=f"round {ROUNDS}"):
        CloudStore(store)


def test_a_round_that_rots_meanwhile_is_no_proof_of_rollback(closed: Path, tmp_path: Path) -> None:
    shutil.copytree(closed, tmp_path, dirs_exist_ok=True)
    store = CloudStore(tmp_path / "run.db")
    store._database.execute("UPDATE rounds SET digest = zeroblob(32) WHERE k = 3")
    store._database.execute("DELETE FROM rounds WHERE k = 5")
    assert store.digest(2) is not None
    assert store.digest(ROUNDS + 1) is None
    for k in (3, 5):
        with pytest.raises(StoreError, match="damaged"):
            store.digest(k)
    store.close()


def delete_wal(folder: Path) -> None:
    (folder / "run.db-wal").unlink()


def truncate_wal(folder: Path) -> None:
    data = (folder / "run.db-wal").read_bytes()
    (folder / "run.db-wal").write_bytes(data[: len(data) // 2])


def empty(folder: Path) -> None:
    (folder / "run.db").write_bytes(b"")
    delete_wal(folder)


def delete(folder: Path) -> None:
    (folder / "run.db").unlink()
    delete_wal(folder)


def truncate(folder: Path) -> None:
    data = (folder / "run.db").read_bytes()
    (folder / "run.db").write_bytes(data[: len(data) // 2])
    delete_wal(folder)


@pytest.mark.parametrize("lose", [delete_wal, truncate_wal, empty, delete, truncate])
def test_a_store_that_lost_rounds_it_once_had_is_refused_unless_new_is_said(
    lose: Callable[[Path], None], killed: Path, tmp_path: Path
) -> None:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    before = everything(shutil.copytree(killed, tmp_path / "whole") / "run.db")
    lose(tmp_path)
    for _ in range(2):  # a refusal mends nothing
        with pytest.raises(StoreError, match="--new"):
            CloudStore(tmp_path / "run.db")
    store = CloudStore(tmp_path / "run.db", new=True)
    assert store.released == 0
    assert store.run.run_id != before["run"][0]
    store.close()
    CloudStore(tmp_path / "run.db").close()


def test_new_does_not_throw_away_a_run_that_is_whole(closed: Path, tmp_path: Path) -> None:
    shutil.copytree(closed, tmp_path, dirs_exist_ok=True)
    with pytest.raises(StoreError, match="whole"):
        CloudStore(tmp_path / "run.db", new=True)
    assert len(everything(tmp_path / "run.db")["rounds"]) == ROUNDS


def test_a_marker_that_was_emptied_is_damaged_and_not_none(closed: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(closed, tmp_path / "copy"))
    (copy / "run.db.mark").write_bytes(b"")
    with pytest.raises(StoreError, match=r"run\.db\.mark is damaged"):
        CloudStore(copy / "run.db")


def test_a_halt_that_was_lost_is_missed(closed: Path, tmp_path: Path) -> None:
    shutil.copytree(closed, tmp_path, dirs_exist_ok=True)
    store = CloudStore(tmp_path / "run.db")
    store.end("halted", "rolled back")
    store.close()
    shutil.copy(closed / "run.db", tmp_path / "run.db")
    with pytest.raises(StoreError, match="halted"):
        CloudStore(tmp_path / "run.db")


def test_erased_contributions_leave_no_checksum_behind(closed: Path) -> None:
    rows = sqlite(closed / "run.db", "SELECT said, said_seal FROM rounds ORDER BY k")
    assert rows[:-1] == [(None, None)] * (ROUNDS - 1)
    assert all(rows[-1])


@pytest.mark.parametrize("read", [CloudStore, summarise])
def test_emptied_notes_hide_no_incident(read: Any, closed: Path, tmp_path: Path) -> None:
    shutil.copytree(closed, tmp_path, dirs_exist_ok=True)
    sqlite(tmp_path / "run.db", "DELETE FROM notes")
    with pytest.raises(StoreError, match="whose it is"):
        read(tmp_path / "run.db")
