"""A run with a ledger: whatever is copied, killed or restored, every round is sent once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from network_harness import Site, completed, member, plan_for, reached, run, serving, some_rounds

from databases import file_of, sqlite
from sottovoce.errors import PrivacyError, RollbackError
from sottovoce.network import agent as agent_module
from sottovoce.network.cloud import Cloud
from sottovoce.network.protocol.codec import decode_from_cloud
from sottovoce.network.protocol.messages import FromCloud, Round
from sottovoce.network.store import CloudStore, summarise
from sottovoce.network.transport.server import Server
from sottovoce.privacy.fence import Fence
from sottovoce.privacy.ledger import Ledger
from sottovoce.problem.problem import Problem

ALL = list(range(1, 8))
ROUNDS = 6


@pytest.fixture
def ledger(paper: Problem, tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.db")
    made.grant(paper.cloud.agent_labels(), 1.1, 0.05, hide="trajectory", radius=1.0)
    return made


def fence(ledger: Ledger) -> int:
    ((k,),) = sqlite(file_of(ledger), "SELECT fence FROM runs")
    return int(k)


def begin(paper: Problem, keys: Path, store: Path, ledger: Ledger | None, *, rounds: int) -> None:
    """Start a run of ROUNDS and stop the cloud after at least so many of them."""

    settings: dict[str, Any] = {"rounds": ROUNDS, "ledger": ledger, "parties": [ALL]}
    run(some_rounds(paper, plan_for(paper), keys, store.parent, rounds, **settings))


def finish(paper: Problem, keys: Path, store: Path, ledger: Ledger | None, folder: Path) -> None:
    async def main() -> None:
        async with serving(plan_for(paper), keys, store, rounds=ROUNDS, ledger=ledger) as cloud:
            await completed(cloud, member(paper, ALL, cloud, keys, folder))

    run(main())


def fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_copied_store_is_refused_before_it_listens(site: Site, ledger: Ledger) -> None:
    begin(site.problem, site.keys, site.store, ledger, rounds=2)
    shutil.copy(site.store, site.folder / "copy.db")
    copied = summarise(site.folder / "copy.db").rounds
    assert copied < ROUNDS
    finish(site.problem, site.keys, site.store, ledger, site.folder)
    assert fence(ledger) == ROUNDS

    async def copy() -> None:
        cloud = Cloud(
            site.plan(), rounds=ROUNDS, keys=site.keys, store=site.folder / "copy.db", ledger=ledger
        )
        with pytest.raises(
            RollbackError, match=f"got {copied} of {ROUNDS}: it is a copy or an old"
        ):
            await cloud.start()
        assert not cloud.opened.is_set()

    run(copy())
    assert ledger.spent("x1") == 0.5
    finish(
        site.problem, site.keys, site.store, ledger, site.folder
    )  # the newest store is still welcome


def test_of_two_clouds_on_two_copies_one_sends_a_round(
    site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = site.plan()
    begin(site.problem, site.keys, site.store, ledger, rounds=0)
    shutil.copy(site.store, site.folder / "copy.db")
    heard: list[Round] = []

    def witnessed(frame: bytes) -> FromCloud:
        message = decode_from_cloud(frame)
        if isinstance(message, Round):
            heard.append(message)
        return message

    async def main() -> None:
        one = site.serving(plan, rounds=ROUNDS, ledger=ledger)
        two = serving(plan, site.keys, site.folder / "copy.db", rounds=ROUNDS, ledger=ledger)
        async with one as original, two as copy:
            await member(site.problem, ALL, original, site.keys, fresh(site.folder / "a")).run()
            monkeypatch.setattr(agent_module, "decode_from_cloud", witnessed)
            late = member(site.problem, ALL, copy, site.keys, fresh(site.folder / "b"))
            with pytest.raises(RollbackError, match=r"round 1 of run .* must be released once"):
                await completed(copy, late)

    run(main())
    assert summarise(site.store).rounds == ROUNDS
    assert heard == []
    with pytest.raises(RollbackError):  # nor later, with what it committed and never sent
        finish(site.problem, site.keys, site.folder / "copy.db", ledger, site.folder)


def test_a_crash_between_store_and_ledger_is_safe(
    site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    rise = Fence.rise

    def dies(self: Fence, k: int, digest: bytes) -> None:
        if k == 3:
            raise PrivacyError("killed")
        rise(self, k, digest)

    with monkeypatch.context() as patch:
        patch.setattr(Fence, "rise", dies)
        with pytest.raises(PrivacyError, match="killed"):
            finish(site.problem, site.keys, site.store, ledger, site.folder)
    assert (summarise(site.store).rounds, fence(ledger)) == (3, 2)

    async def restart() -> None:
        async with site.serving(rounds=ROUNDS, ledger=ledger):
            assert fence(ledger) == 3  # raised before anybody can connect

    run(restart())
    finish(site.problem, site.keys, site.store, ledger, site.folder)
    assert (summarise(site.store).rounds, fence(ledger)) == (ROUNDS, ROUNDS)


def test_a_round_is_in_the_store_then_in_the_ledger_then_sent(
    site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    commit, rise, post = CloudStore.commit, Fence.rise, Server.post

    def committed(self: CloudStore, record: Any, released: Any) -> None:
        commit(self, record, released)
        events.append(("store", record.k))

    def risen(self: Fence, k: int, digest: bytes) -> None:
        rise(self, k, digest)
        events.append(("fence", k))

    def posted(self: Server, action: Any) -> None:
        if isinstance(action.message, Round):
            events.append(("sent", action.message.round))
        post(self, action)

    monkeypatch.setattr(CloudStore, "commit", committed)
    monkeypatch.setattr(Fence, "rise", risen)
    monkeypatch.setattr(Server, "post", posted)
    finish(site.problem, site.keys, site.store, ledger, site.folder)
    order = [(what, k) for k in range(1, ROUNDS + 1) for what in ("store", "fence", "sent")]
    assert events == order


def test_a_run_that_went_on_without_its_ledger_is_refused(site: Site, ledger: Ledger) -> None:
    begin(site.problem, site.keys, site.store, None, rounds=2)
    with pytest.raises(PrivacyError, match=r"ledger must know run .* already"):
        finish(site.problem, site.keys, site.store, ledger, site.folder)
    assert ledger.history() == ()


def killed(paper: Problem, keys: Path, folder: Path, ledger: Ledger) -> Path:
    """The folder of a store as a cloud leaves it that is killed after its last round."""

    async def main() -> None:
        store = fresh(folder / "open") / "run.db"
        async with serving(plan_for(paper), keys, store, rounds=ROUNDS, ledger=ledger) as cloud:
            await member(paper, ALL, cloud, keys, folder).run()
            await reached(cloud, ROUNDS)
            shutil.copytree(folder / "open", folder / "killed")

    run(main())
    assert fence(ledger) == ROUNDS
    return folder / "killed"


async def released(paper: Problem, keys: Path, store: Path, ledger: Ledger) -> int:
    """Start a cloud again and return how many rounds it holds."""
    async with serving(plan_for(paper), keys, store, rounds=ROUNDS, ledger=ledger) as cloud:
        return cloud.round


def test_the_fence_notices_a_flipped_bit_in_a_log_without_mark(site: Site, ledger: Ledger) -> None:
    left = killed(site.problem, site.keys, site.folder, ledger)
    log = (left / "run.db-wal").read_bytes()
    head, frame = 32, 24 + 4096
    frames = (len(log.rstrip(b"\0")) - head) // frame + 1
    refused = 0
    for i in range(frames):
        copy = shutil.copytree(left, site.folder / str(i))
        broken = bytearray(log)
        broken[head + i * frame + 100] ^= 1
        (copy / "run.db-wal").write_bytes(broken)
        (copy / "run.db.mark").unlink()
        try:
            assert run(released(site.problem, site.keys, copy / "run.db", ledger)) == ROUNDS
        except RollbackError:
            refused += 1
    assert refused >= ROUNDS  # the rest hit what says that the run is over


def test_a_store_that_lost_log_and_mark_is_noticed_by_the_fence(site: Site, ledger: Ledger) -> None:
    left = killed(site.problem, site.keys, site.folder, ledger)
    (left / "run.db-wal").unlink()
    (left / "run.db.mark").unlink()
    with pytest.raises(RollbackError, match=f"got 0 of {ROUNDS}: it is a copy or an old"):
        run(released(site.problem, site.keys, left / "run.db", ledger))
    assert len({spend.run_id for spend in ledger.history()}) == 1
