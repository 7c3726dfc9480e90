"""The fence: every round of a run passes once, whatever copies of its store there are."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from databases import file_of
from sottovoce.errors import PrivacyError, RollbackError, UnavailableError
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.fence import Fence, ledger_transaction
from sottovoce.privacy.ledger import Ledger

WITHIN_1 = Protected("trajectory", 1.0)
COST = [Charge(agent="pump", protected=WITHIN_1, mu=0.1, allowance=0.0)]

Store = dict[int, bytes]
"""A stand-in for a cloud's store: the digest of every round it holds."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger")
    made.grant("pump", 1.0, 1e-6, hide="trajectory", radius=1.0)
    return made


def begin(ledger: Ledger, store: Store) -> Fence:
    return ledger.begin("run", COST, rounds=max(store, default=0), digest=store.get)


def release(fence: Fence, store: Store, k: int, noise: str) -> None:
    """Commit in the store, then raise the fence; what follows would be the first byte."""
    store[k] = f"round {k} {noise}".encode()
    fence.rise(k, store[k])


def test_a_run_passes_round_by_round_and_goes_on_after_a_restart(ledger: Ledger) -> None:
    store: Store = {}
    for k in range(1, 6):
        fence = begin(ledger, store)
        release(fence, store, k, "once")
        fence.close()
    assert ledger.spent("pump") == 0.1
    assert len(ledger.history()) == 1


def test_a_store_behind_the_fence_is_refused(ledger: Ledger) -> None:
    store: Store = {}
    fence = begin(ledger, store)
    copies = [dict(store)]
    for k in range(1, 4):
        release(fence, store, k, "once")
        copies.append(dict(store))
    fence.close()
    for copy in copies[:-1]:
        with pytest.raises(RollbackError, match=rf"got {len(copy)} of 3: it is a copy or an old"):
            begin(ledger, copy)
    begin(ledger, copies[-1]).close()


def test_a_crash_between_store_and_fence_is_mended_before_anything_is_sent(ledger: Ledger) -> None:
    store: Store = {}
    fence = begin(ledger, store)
    release(fence, store, 1, "once")
    fence.close()
    store[2] = b"committed, then killed"
    fence = begin(ledger, store)
    with pytest.raises(RollbackError, match="got 1 of 2"):
        begin(ledger, {1: store[1]})
    release(fence, store, 3, "once")
    fence.close()


def test_of_two_clouds_on_two_copies_one_releases_a_round(ledger: Ledger) -> None:
    original: Store = {}
    first = begin(ledger, original)
    release(first, original, 1, "once")
    copy = dict(original)
    second = begin(ledger, copy)
    release(second, copy, 2, "by the copy")
    with pytest.raises(RollbackError, match=r"round 2 of run 'run' must be released once"):
        release(first, original, 2, "by the original")
    with pytest.raises(RollbackError):
        first.rise(2, original[2])  # and does not try its luck again
    release(second, copy, 3, "by the copy")
    first.close()
    second.close()


def test_a_copy_that_committed_but_never_sent_does_not_pass(ledger: Ledger) -> None:
    original: Store = {}
    fence = begin(ledger, original)
    release(fence, original, 1, "once")
    fence.close()
    copy = dict(original)
    original[2] = b"committed, then killed"
    fence = begin(ledger, copy)
    release(fence, copy, 2, "by the copy")
    fence.close()
    with pytest.raises(RollbackError, match="must hold round 2 as it was released"):
        begin(ledger, original)
    original[3] = b"went on without the ledger"
    with pytest.raises(RollbackError, match="must hold round 2 as it was released"):
        begin(ledger, original)


def test_a_ledger_behind_the_store_is_refused(ledger: Ledger) -> None:
    store: Store = {}
    fence = begin(ledger, store)
    release(fence, store, 1, "once")
    fence.close()
    store |= {2: b"without", 3: b"the ledger"}
    with pytest.raises(
        PrivacyError, match=r"the ledger must know all 3 rounds.*but the last, got 1"
    ):
        begin(ledger, store)


def test_a_run_with_rounds_that_the_ledger_never_saw_is_refused(ledger: Ledger) -> None:
    with pytest.raises(PrivacyError, match="must know run 'run', which has released 1 rounds"):
        begin(ledger, {1: b"without a ledger"})
    assert ledger.history() == ()


def test_the_fence_rises_by_one_round_and_never_falls(ledger: Ledger) -> None:
    fence = begin(ledger, {})
    for k in (0, 2, -1):
        with pytest.raises(PrivacyError, match="must rise by one round"):
            fence.rise(k, b"other")
    fence.rise(1, b"one")
    with pytest.raises(PrivacyError, match="must rise by one round"):
        fence.rise(1, b"one")
    fence.close()


def test_a_ledger_replaced_under_a_running_cloud_stops_it(ledger: Ledger, tmp_path: Path) -> None:
    fence = begin(ledger, {})
    fence.rise(1, b"one")
    file_of(ledger).rename(tmp_path / "saved")
    with pytest.raises(UnavailableError, match="cannot be used now"):
        fence.rise(2, b"two")
    Ledger(file_of(ledger))
    with pytest.raises(PrivacyError, match="was replaced while a run used it"):
        fence.rise(2, b"two")
    fence.close()


def test_of_many_racing_copies_exactly_one_releases_every_round(ledger: Ledger) -> None:
    store: Store = {}
    begin(ledger, store).close()
    passed: list[tuple[int, int]] = []
    together = threading.Barrier(4)

    def cloud(name: int) -> None:
        own: dict[int, bytes] = {}
        fence = begin(ledger, own)
        together.wait()
        for k in range(1, 20):
            try:
                release(fence, own, k, f"by {name}")
            except RollbackError:
                break
            passed.append((k, name))
        fence.close()

    threads = [threading.Thread(target=cloud, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(k for k, _ in passed) == list(range(1, 20))
    assert len({name for _, name in passed}) == 1


def test_a_ledger_that_is_locked_can_be_tried_again(ledger: Ledger) -> None:
    fence: Any = begin(ledger, {})
    fence._database.execute("PRAGMA busy_timeout = 0")
    with (
        ledger_transaction(ledger.address, write=True),
        pytest.raises(UnavailableError, match="locked"),
    ):
        fence.rise(1, b"one")
    fence.rise(1, b"one")
    fence.close()


def test_a_rise_waits_for_the_disk(ledger: Ledger) -> None:
    fence: Any = begin(ledger, {})
    assert fence._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert fence._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    fence.close()
