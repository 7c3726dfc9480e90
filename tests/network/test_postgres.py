"""Journal and ledger in PostgreSQL: what holds of files holds there, and a lease besides."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from network_harness import (
    Site,
    completed,
    free_port,
    member,
    plan_for,
    reached,
    run,
    serving,
    some_rounds,
    taking_part,
    words_of,
)
from test_canary import CANARIES, spellings
from test_canary import problem as canary_problem
from test_store import record, released
from test_store_damage import fill
from typer.testing import CliRunner

from databases import Server, needs_postgres
from sottovoce.cli.accounts import grant_command
from sottovoce.cli.services import CloudOptions, status_command
from sottovoce.cli.setup_checks import CHECKS, carry_out
from sottovoce.errors import (
    BudgetError,
    InputError,
    PrivacyError,
    RollbackError,
    SottovoceError,
    UnavailableError,
)
from sottovoce.network import journal_place, run_service
from sottovoce.network.cloud import Cloud
from sottovoce.network.failures import DiskError, HaltedError, LeasedError, StoreError
from sottovoce.network.journal import Journal
from sottovoce.network.journal_place import LEASE_SECONDS, POLL_SECONDS, SCHEMA
from sottovoce.network.store import CloudStore, answers, check_store, summarise
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.ledger import Ledger
from sottovoce.problem.problem import Problem
from sottovoce.study.noise import audit_store

pytestmark = needs_postgres

ALL = list(range(1, 8))
PASSWORD = "hunter2"  # noqa: S105  part of every URL of the server
COST = [Charge(agent="pump", protected=Protected("trajectory", 1.0), mu=0.1, allowance=0.0)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server(free_port())
    yield started
    started.remove()


@pytest.fixture
def url(server: Server) -> str:
    return server.database()


def granted(url: str, problem: Problem) -> Ledger:
    ledger = Ledger(url)
    ledger.grant(problem.cloud.agent_labels(), 1.1, 0.05, hide="trajectory", radius=1.0)
    return ledger


def test_postgresql_stores_what_a_file_stores(url: str, tmp_path: Path, paper: Problem) -> None:
    places = [url, str(tmp_path / "run.db")]
    for place in places:
        store = CloudStore(place, keep_states=True)
        fill(store, paper)
        store.close()
        again = CloudStore(place)
        fill(again, paper, 14)
        again.close()
    first, second = ([row[:7] for row in _rounds(place)] for place in places)
    assert [row[0] for row in first] == list(range(1, 15))
    digests = [[row[3] for row in rows] for rows in (first, second)]
    assert digests[0] != digests[1]  # of two runs, each with its name
    assert [(*row[:3], *row[4:]) for row in first] == [(*row[:3], *row[4:]) for row in second]
    assert answers(places[0]).tolist() == answers(places[1]).tolist()
    told = [summarise(place) for place in places]
    assert [(t.rounds, t.held, t.status) for t in told] == [(14, 14, "running")] * 2


def _rounds(place: str) -> list[tuple[object, ...]]:
    with Journal.open(place) as journal:
        return [
            (r.k, r.context, r.release, r.digest, r.attendance, r.said, None)
            for r in journal.rounds()
        ]


def test_what_was_said_is_erased_with_the_next_round_and_the_end(server: Server, url: str) -> None:
    store = CloudStore(url)
    store.commit(record(1), released())
    store.commit(record(2), released())
    said = "SELECT k FROM rounds WHERE said IS NOT NULL OR said_seal IS NOT NULL"
    assert server.rows(url, said) == [(2,)]
    store.end("done")
    store.close()
    assert server.rows(url, said) == []


@pytest.mark.parametrize("column", ["context", "release", "digest", "attendance", "said"])
def test_a_changed_value_is_noticed_and_new_sets_the_tables_aside(
    server: Server, url: str, paper: Problem, column: str
) -> None:
    store = CloudStore(url, keep_states=True)
    fill(store, paper)
    store.close()
    change = "UPDATE rounds SET {0} = set_byte({0}, 0, 77) WHERE k = 5"
    server.rows(url, change.format(column))
    with pytest.raises(StoreError, match="round 5 is not as it was written"):
        CloudStore(url)
    fresh = CloudStore(url, new=True)
    assert fresh.released == 0
    fresh.close()
    tables = server.rows(url, "SELECT tablename FROM pg_tables WHERE tablename LIKE '%_lost_%'")
    assert len(tables) == 2
    CloudStore(url).close()


def test_stores_and_ledgers_of_another_schema_or_kind_are_refused(server: Server, url: str) -> None:
    CloudStore(url).close()
    Ledger(url)
    comment = "COMMENT ON TABLE {} IS '{}'"
    for table, words, refusal, kind in (
        ("rounds", f"sottovoce {0x53564F43} {SCHEMA - 1}", f"must have schema version {SCHEMA}", 0),
        ("rounds", "somebody's notes", "is not a store of a run", 0),
        ("accounts", f"sottovoce {int.from_bytes(b'svlg')} 1", "must have schema version 3", 1),
        ("accounts", "somebody's accounts", "is not a ledger", 1),
    ):
        server.rows(url, comment.format(table, words.replace("'", "''")))
        with pytest.raises((StoreError, PrivacyError), match=refusal) as caught:
            Ledger(url) if kind else CloudStore(url)
        assert PASSWORD not in str(caught.value)


def test_budgets_by_period_hold_and_an_older_ledger_is_brought_up_to_date(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, now = Ledger(url), [1_800_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    ledger.grant(["a"], 20.0, 1e-5, hide="offset", radius=1.0)
    server.rows(url, "DROP TABLE periods")
    stamp = f"sottovoce {int.from_bytes(b'svlg')} 2"
    server.rows(url, f"COMMENT ON TABLE accounts IS '{stamp}'")
    with pytest.raises(PrivacyError, match="must have schema version 3, got 2"):
        ledger.accounts()
    ledger = Ledger(url)
    ledger.grant_period(["a"], 1.0, 1e-5, per="hour")
    ledger.grant_period(["a"], 1.5, 1e-5, per="day")
    budget = ledger.account("a").periods[0].budget
    charge = Charge(agent="a", protected=Protected("offset", 1.0), mu=budget, allowance=budget)
    ledger.spend("one", [charge])
    for clock in (0.0, 3600.0, -7200.0):
        now[0] = 1_800_000_000.0 + clock
        with pytest.raises(BudgetError, match=r"per hour.*again at 2027-01-15T09:00:01Z"):
            ledger.spend("two", [charge])
    (told,) = ledger.forecast([charge])
    assert (told.runs, told.per) == (0, {"hour": 1, "day": 2})
    now[0] = 1_800_003_601.0
    ledger.spend("two", [charge])
    assert [p.per for p in ledger.account("a").periods] == ["hour", "day"]


def test_several_runs_share_a_database_by_schemas(url: str) -> None:
    one, two = CloudStore(f"{url}?schema=one"), CloudStore(f"{url}?schema=two")
    one.commit(record(1), released())
    assert (one.released, two.released) == (1, 0)
    one.close()
    two.close()
    assert summarise(f"{url}?schema=one").rounds == 1
    with pytest.raises(StoreError, match="is not a store"):
        summarise(f"{url}?schema=three")


def test_one_process_at_a_time_holds_the_lease_and_gives_it_back(url: str) -> None:
    first = CloudStore(url)
    with pytest.raises(
        LeasedError, match=r"must be leased by this cloud, got the lease of .* proc"
    ):
        CloudStore(url)
    first.commit(record(1), released())
    first.close()
    second = CloudStore(url)
    assert second.released == 1
    second.close()


def test_a_slow_start_keeps_its_lease(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_place, "LEASE_SECONDS", 0.3)
    slow = CloudStore(url)
    time.sleep(1.0)
    with pytest.raises(LeasedError):
        CloudStore(url)
    slow.flush()
    time.sleep(0.5)
    CloudStore(url).close()
    slow.close()


def test_who_lost_the_lease_can_write_nothing(server: Server, url: str) -> None:
    expire = "UPDATE lease SET expires = clock_timestamp()"
    with ExitStack() as opened:
        stale = opened.enter_context(closing(CloudStore(url)))
        stale.commit(record(1), released())
        stale.flush()  # from now on nothing prolongs it
        server.rows(url, expire)
        stale.commit(record(2), released())  # it expired, but nobody took it over
        server.rows(url, expire)
        new = opened.enter_context(closing(CloudStore(url)))
        writes: list[Callable[[], None]] = [
            lambda: stale.commit(record(3), released()),
            lambda: stale.end("halted", "an agent has a receipt of a round that it does not know"),
            lambda: stale.end("done"),
            lambda: stale.put("question", b"x"),
            stale.flush,
        ]
        for write in writes:
            with pytest.raises(LeasedError):
                write()
        new.commit(record(3), released())
        stale.close()
        new.commit(record(4), released())
    summary = summarise(url)
    assert (summary.rounds, summary.status) == (4, "running")


def test_a_process_stopped_within_a_transaction_keeps_no_lock(server: Server, url: str) -> None:
    stale = CloudStore(url)
    stale._database.begin(write=True)
    stale._place.hold(stale._database)  # and is stopped here, with the row locked
    began = time.monotonic()
    while True:
        try:
            new = CloudStore(url)
            break
        except (LeasedError, DiskError):
            assert time.monotonic() - began < 3 * LEASE_SECONDS
    new.commit(record(1), released())
    with pytest.raises(DiskError):
        stale.commit(record(1), released())
    stale.close()
    new.close()


def test_a_ledger_spends_refuses_and_fences_as_a_file_does(url: str, tmp_path: Path) -> None:
    histories = []
    for place in (url, tmp_path / "ledger.db"):
        ledger = Ledger(place)
        ledger.grant(["pump", "valve"], 1.0, 1e-6, hide="trajectory", radius=1.0)
        fence = ledger.begin("run", COST, rounds=0, digest=lambda k: None)
        fence.rise(1, b"one")
        with pytest.raises(RollbackError, match="got 0 of 1"):
            ledger.begin("run", COST, rounds=0, digest=lambda k: None)
        behind = ledger.begin("run", COST, rounds=1, digest={1: b"one"}.get)
        fence.rise(2, b"two")
        with pytest.raises(RollbackError, match="must be released once"):
            behind.rise(2, b"other")
        fence.close()
        behind.close()
        much = Charge(agent="pump", protected=Protected("trajectory", 1.0), mu=9, allowance=0)
        with pytest.raises(BudgetError, match="would exceed"):
            ledger.spend("next", [much])
        ledger.spend("next", COST)
        histories.append([(s.run_id, s.charge) for s in ledger.history()])
        assert ledger.spent("pump") == pytest.approx(0.1 * np.sqrt(2))
    assert histories[0] == histories[1]


async def test_rounds_and_fences_are_one_transaction(site: Site, server: Server, url: str) -> None:
    ledger = granted(url, site.problem)
    place = f"{url}?schema=run1"
    settings = {"rounds": 6, "ledger": ledger, "keep_states": True}
    async with serving(site.plan(), site.keys, place, **settings) as cloud:
        assert cloud._fence is None  # the journal raises it
        await completed(cloud, site.member(cloud, *ALL))
    transactions = server.rows(url, "SELECT xmin FROM run1.rounds WHERE k = 6")
    assert server.rows(url, "SELECT xmin, fence FROM runs") == [(*transactions[0], 6)]
    store = CloudStore(f"{url}?schema=run2")
    assert store.join(ledger.begin("r", site.plan().charges(), rounds=0, digest=lambda k: None))
    server.rows(url, "UPDATE runs SET fence = 1 WHERE run_id = 'r'")  # by another cloud
    with pytest.raises(RollbackError):
        store.commit(record(1), released())
    store.close()
    assert summarise(f"{url}?schema=run2").rounds == 0  # nothing is left of it


def test_a_restored_database_is_refused_by_ledger_or_marker(site: Site, server: Server) -> None:
    for kind, ledger in {
        "file": granted(str(site.folder / "ledger.db"), site.problem),
        "mark": None,
    }.items():
        folder, url = site.folder / kind, server.database()
        folder.mkdir()
        where = (site.problem, site.plan(), site.keys, folder)
        settings: dict[str, Any] = {"rounds": 6, "parties": [ALL], "ledger": ledger}
        mark = f"?mark={folder / 'run.mark'}" if ledger is None else ""
        run(some_rounds(*where, 2, store=url + mark, **settings))
        backup = server.database(copy_of=url)
        run(some_rounds(*where, 6, store=url + mark, **settings))
        expected = StoreError if ledger is None else RollbackError
        with pytest.raises(expected, match=r"rolled back|old backup"):
            run(some_rounds(*where, 6, store=backup + mark, **settings))


def test_an_agent_proves_a_ledger_rolled_back(site: Site, server: Server, url: str) -> None:
    granted(url, site.problem)

    def rounds(url: str, until: int) -> None:
        where = (site.problem, site.plan(), site.keys, site.folder)
        run(some_rounds(*where, until, store=url, rounds=6, parties=[ALL], ledger=Ledger(url)))

    rounds(url, 2)
    backup = server.database(copy_of=url)
    rounds(url, 6)
    with pytest.raises(HaltedError):  # as docs/how-to/scale.md says: only receipts are left
        rounds(backup, 6)


async def test_a_standby_says_so_and_listens_once_the_lease_is_given_back(
    url: str, paper: Problem, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    standby = Cloud(plan_for(paper), keys=keys, store=url, rounds=3)
    with caplog.at_level(logging.INFO):
        async with serving(plan_for(paper), keys, url, rounds=3):
            waiting = asyncio.create_task(standby.start())
            while "standby" not in caplog.text:
                await asyncio.sleep(0.01)
            await asyncio.sleep(2 * POLL_SECONDS)
            assert not standby.opened.is_set()
        await waiting
    assert caplog.text.count("standby") == 1
    assert standby.opened.is_set()
    await standby.stop()


async def test_a_cloud_that_loses_its_lease_while_it_starts_stands_by_and_blames_nobody(
    site: Site,
    server: Server,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another one that released a round meanwhile leaves a fence beyond what this one has read."""
    plan, ledger = site.plan(), granted(url, site.problem)
    settings: dict[str, Any] = {"rounds": 60, "ledger": ledger, "seed": 1}
    check = check_store
    other = Cloud(plan, keys=site.keys, store=url, **settings)
    everybody = member(site.problem, ALL, free_port(), site.keys, site.folder, allow_simulated=True)

    async def overtake() -> None:
        server.rows(url, "UPDATE lease SET token = '', expires = clock_timestamp()")
        await other.start()
        everybody.cloud = f"wss://127.0.0.1:{other.port}"
        async with taking_part(everybody):
            await reached(other, 3)
        await other.stop()

    def overtaken(*words: Any) -> None:
        monkeypatch.setattr(run_service, "check_store", check)
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(asyncio.run, overtake()).result()
        check(*words)

    monkeypatch.setattr(run_service, "check_store", overtaken)
    with caplog.at_level(logging.INFO):
        async with serving(plan, site.keys, url, **settings) as cloud:
            assert cloud.round >= 3
    assert caplog.text.count("standby") == 1


def test_nothing_private_reaches_the_database_or_the_logs(
    server: Server, url: str, keys: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stated = canary_problem(secret=True)
    plan, ledger = plan_for(stated), granted(url, stated)

    async def main() -> Any:
        settings: dict[str, Any] = {"rounds": 15, "seed": 3, "keep_states": True, "ledger": ledger}
        async with serving(plan, keys, url, **settings) as cloud:
            agents = [member(stated, [i], cloud, keys, tmp_path, allow_simulated=True) for i in ALL]
            return await completed(cloud, *agents)

    with caplog.at_level(logging.DEBUG):
        _, ended = run(main())
    assert ended[0].x.sum() >= CANARIES[0] - 1e-9  # the private rows did count
    server.rows(url, "CHECKPOINT")
    seen = {str(p): p.read_bytes() for p in server.data.rglob("*") if p.is_file()}
    with Journal.open(url) as journal:
        digests = [row.digest for row in journal.rounds()]
    assert all(any(digest in text for text in seen.values()) for digest in digests)
    seen["logs"] = b"".join(map(words_of, caplog.records))
    seen["server's log"] = server.log.read_bytes()
    for where, text in seen.items():
        for canary in spellings():
            assert canary not in text, where
    assert PASSWORD.encode() not in seen["logs"] + seen["server's log"]


WRONG = [
    "postgresql://sv:{}/x@127.0.0.1/db",
    "postgresql://sv:{}?x@127.0.0.1/db",
    "postgresql://sv:{}#x@127.0.0.1/db",
    "postgresql://sv:{}@x@127.0.0.1/db",
    "postgresql://sv:{}]@127.0.0.1/db",
    "postgresql://sv:{}%zz@127.0.0.1/db",
    "postgresql://sv:{}@127.0.0.1:port/db",
    "postgresql://sv:{}@127.0.0.1/db?schema=No",
    "postgresql://127.0.0.1:1/db?password={}&sslmode=unheard",
    "postgresql:///db?password={}&nonsense=1",
    "postgres:{}",
    "postgresql://sv:{}@127.0.0.1:1/db",
]


@pytest.mark.parametrize("text", WRONG)
def test_no_message_shows_a_password(text: str, caplog: pytest.LogCaptureFixture) -> None:
    url = text.format(PASSWORD)
    for use in (CloudStore, Ledger, summarise):
        with pytest.raises(SottovoceError) as caught:
            use(url)
        shown = "".join(traceback.format_exception(caught.value, chain=True)[-1:])
        assert PASSWORD not in shown + repr(caught.value) + caplog.text
        assert caught.value.__cause__ is None  # nor what a driver said of it


def test_commands_take_urls_and_show_no_password(url: str, paper: Problem, tmp_path: Path) -> None:
    ledger, runner = typer.Typer(), CliRunner()
    ledger.command()(grant_command)
    words = ["--agent", "x1", "--epsilon", "1", "--delta", "0.05", "--hide", "everything"]
    shown = [runner.invoke(ledger, [url, *words])]
    store = CloudStore(url, keep_states=True)
    fill(store, paper)
    status = typer.Typer()
    status.command()(status_command)
    shown.append(runner.invoke(status, [url]))
    store.end("halted", "for a test")
    store.close()
    shown.append(runner.invoke(status, [url, "--json"]))
    assert [result.exit_code for result in shown] == [0, 0, 1]
    assert "x1" in shown[0].output
    assert "12 of 100" in shown[1].output
    with pytest.raises(InputError, match="must belong to this plan") as caught:
        audit_store(plan_for(paper, sigma=5.0), url)
    text = "".join(result.output for result in shown) + str(caught.value)
    assert PASSWORD not in text
    with pytest.raises(HaltedError) as halted:
        CloudStore(url)
    assert PASSWORD not in str(halted.value)


def test_without_psycopg_the_extra_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError, match=r"needs psycopg, got none: install sottovoce\[postgres\]"):
        CloudStore(url)


def test_a_server_that_does_not_wait_for_its_disk_is_refused() -> None:
    server = Server(free_port(), "fsync=off")
    try:
        for use in (CloudStore, Ledger):
            with pytest.raises(InputError, match="must have fsync = on"):
                use(server.database())
    finally:
        server.remove()


def test_a_lost_connection_ends_a_write_with_a_passing_error(server: Server, url: str) -> None:
    store, ledger = CloudStore(url), Ledger(url)
    ledger.grant("pump", 1.0, 1e-6, hide="trajectory", radius=1.0)
    fence = ledger.begin("run", COST, rounds=0, digest=lambda k: None)
    server.stop()
    try:
        with pytest.raises(DiskError, match="nothing was sent"):
            store.commit(record(1), released())
        with pytest.raises(UnavailableError, match="nothing may be released"):
            fence.rise(1, b"one")
        with pytest.raises(UnavailableError):
            ledger.spend("run", COST)
    finally:
        server.start()
    store.close()
    fence.close()
    time.sleep(LEASE_SECONDS)  # a lost connection could not give the lease back
    again = CloudStore(url)
    assert again.released == 0
    again.close()


def test_check_setup_looks_at_store_and_ledger_and_makes_neither(
    url: str, server: Server, tmp_path: Path, keys: Path
) -> None:
    paper = Path(__file__).parents[2] / "examples" / "paper"
    options = CloudOptions(problem=paper, keys=keys, store=url, ledger=url, rounds=20)

    def row(name: str) -> tuple[str, str]:
        checks = dict(CHECKS["cloud"][1](options))
        found = carry_out((name, checks[name]))
        assert PASSWORD not in found["detail"]
        return found["status"], found["detail"]

    assert [row("store")[0], row("budgets")[0]] == ["ok", "missing"]
    assert server.rows(url, "SELECT nspname FROM pg_namespace WHERE nspname = 'sottovoce'") == []
    CloudStore(url).close()
    names = [f"x{i}" for i in ALL]
    Ledger(url).grant(names, 1.1, 0.05, hide="trajectory", radius=1.0)
    assert "is of a run, running" in row("store")[1]
    assert row("budgets")[0] == "ok"
    options = CloudOptions(problem=paper, keys=keys, store=url.replace(str(server.port), "1"))
    assert row("store")[0] == "missing"
