"""``sottovoce check-setup`` names what is missing, for every role, and nothing private."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from network_harness import plan_for, serving

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.cli import main, services, setup_checks
from sottovoce.cli.serve import SeriesOptions, ServiceOptions
from sottovoce.cli.services import AgentOptions, CloudOptions, HelperOptions, RelayOptions
from sottovoce.cli.setup_checks import CHECKS, carry_out
from sottovoce.network import identity
from sottovoce.network.setup import make_config
from sottovoce.network.store import SERIES, CloudStore, SeriesNote
from sottovoce.privacy.ledger import Ledger
from sottovoce.problem import gallery
from sottovoce.problem.problem import Problem

PAPER = Path(__file__).parents[2] / "examples" / "paper"
NAMES = [f"x{i}" for i in range(1, 8)]


def row(role: str, name: str, options: Any) -> tuple[str, str]:
    """Status and detail of one check."""
    for check in CHECKS[role][1](options):
        if check[0] == name:
            found = carry_out(check)
            return found["status"], found["detail"]
    raise AssertionError(name)


@pytest.fixture
def place(keys: Path, tmp_path: Path) -> Path:
    """A folder of this user's alone with the cloud's keys."""
    tmp_path.chmod(0o700)
    shutil.copytree(keys, tmp_path / "k")
    return tmp_path


@pytest.fixture
def cloud(place: Path) -> Callable[..., tuple[str, str]]:
    """One check of a cloud in that folder."""

    def check(name: str, **changed: Any) -> tuple[str, str]:
        given = {"keys": place / "k", "store": str(place / "run.db"), "listen": "127.0.0.1:0"}
        return row("cloud", name, CloudOptions(problem=PAPER, **{**given, **changed}))

    return check


@pytest.fixture
def agent(place: Path) -> Callable[..., tuple[str, str]]:
    """One check of agent 3, whose files are its own."""
    shutil.copytree(PAPER, place / "problem")
    file = place / "problem" / "agents" / "3.toml"
    file.chmod(0o600)

    def check(name: str, **changed: Any) -> tuple[str, str]:
        given = {"keys": place / "k" / "agents" / "3", "cloud": "wss://127.0.0.1:1"}
        return row("agent", name, AgentOptions(file=file, **{**given, **changed}))

    return check


def run_main(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["sottovoce", "check-setup", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_cloud_that_lacks_nothing_and_one_that_lacks_a_budget(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = place / "cloud.toml"
    config.write_text(
        f"keys = '{place / 'k'}'\nstore = '{place / 'run.db'}'\nledger = '{place / 'l.db'}'\n"
        "listen = '127.0.0.1:0'\nhealth-listen = '127.0.0.1:0'\nrounds = 20\n"
    )
    words = ("cloud", PAPER, "--config", config, "--json")
    assert run_main(monkeypatch, *words) == 1
    rows = json.loads(capsys.readouterr().out)
    assert {r["check"]: r["status"] for r in rows if r["status"] != "ok"} == {"budgets": "missing"}
    assert not (place / "l.db").exists()
    assert not (place / "run.db").exists()
    Ledger(place / "l.db").grant(NAMES, 2, 0.05, hide="trajectory", radius=1)
    assert run_main(monkeypatch, *words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["status"] for r in rows} == {"ok"}
    assert [r["check"] for r in rows] == [
        "problem", "keys", "certificate", "port of listen", "port of health-listen", "round key",
        "folder and disk", "store", "promise", "budgets",
    ]  # fmt: skip


def test_a_service_of_series_names_what_each_of_them_lacks(place: Path) -> None:
    shutil.copytree(PAPER, place / "problem")
    (place / "now.toml").write_text("cap = 1\n")
    file = place / "service.toml"
    shared = "problem = 'problem'\nkeys = 'k'\nlisten = '127.0.0.1:0'\nledger = 'l.db'\n"
    other = f"[series.b]\nstore = 'b.db'\npublic = 'now.toml'\n{shared}"
    file.write_text(f"[series.a]\nstore = 'a.db'\n{shared}{other}")
    ledger = Ledger(place / "l.db")
    assert row("serve", "a: budgets", ServiceOptions(file=file))[0] == "missing"
    ledger.grant(NAMES[:6], 2, 0.05, hide="trajectory", radius=1)
    status, detail = row("serve", "a: budgets", ServiceOptions(file=file))
    assert (status, detail.startswith("1 agents would sit out")) == ("warning", True)
    ledger.grant(NAMES[6:], 2, 0.05, hide="trajectory", radius=1)
    assert row("serve", "a: budgets", ServiceOptions(file=file))[0] == "ok"
    # What is planned has the numbers that the run would have.
    assert "cap" in row("serve", "b: promise", ServiceOptions(file=file))[1]
    assert row("serve", "a: public data", ServiceOptions(file=file)) == ("ok", "none")
    assert "cap" in row("serve", "b: public data", ServiceOptions(file=file))[1]
    assert row("serve", "b: public data", ServiceOptions(file=file))[0] == "missing"


def test_budgets_that_are_spent_are_missing_and_none_at_all_is_a_warning(
    cloud: Callable[..., tuple[str, str]], place: Path
) -> None:
    assert cloud("budgets")[0] == "warning"
    Ledger(place / "l.db").grant(NAMES, 0.01, 0.05, hide="trajectory", radius=1)
    status, detail = cloud("budgets", ledger=str(place / "l.db"))
    assert status == "missing"
    assert " agents cannot afford this run: " in detail


def test_a_ledger_or_store_of_another_schema_is_missing(
    cloud: Callable[..., tuple[str, str]], place: Path
) -> None:
    Ledger(place / "l.db")
    CloudStore(place / "run.db").close()
    assert cloud("store")[0] == "ok"
    for name in ("l.db", "run.db"):
        with sqlite3.connect(place / name) as database:
            database.execute("PRAGMA user_version = 99")
    assert "got 99" in cloud("store")[1]
    assert cloud("budgets", ledger=str(place / "l.db"))[0] == "missing"
    assert "got 99" in cloud("budgets", ledger=str(place / "l.db"))[1]


def test_a_store_that_halted_or_is_lost_or_of_another_role_is_missing(
    cloud: Callable[..., tuple[str, str]], agent: Callable[..., tuple[str, str]], place: Path
) -> None:
    store = CloudStore(place / "run.db")
    store.end("halted", "rolled back")
    store.close()
    assert cloud("store")[0] == "missing"
    assert agent("state", state=place / "run.db")[0] == "missing"
    (place / "run.db").unlink()
    assert "has lost its run" in cloud("store")[1]
    assert cloud("store", store=str(place / "new.db")) == ("ok", f"{place / 'new.db'} will be made")


def stored(options: SeriesOptions) -> str:
    checks = dict(setup_checks._of_store(options.store, "cloud", options))
    return carry_out(("store", checks["store"]))["status"]


def test_a_store_of_a_run_that_is_over_or_of_a_series_is_not_that_of_a_run_to_come(
    cloud: Callable[..., tuple[str, str]], place: Path
) -> None:
    plan = plan_for(gallery.paper())
    config = make_config(plan, DualAveraging(), rounds=5, noise="secure", run_id="r")
    store = CloudStore(place / "run.db")
    store.pin(config)
    store.end("done")
    store.close()
    status, detail = cloud("store")
    assert (status, "are over" in detail) == ("warning", True)
    note = msgspec.msgpack.encode(SeriesNote(name="a", origin="o", created=0.0, number=2))
    store = CloudStore(place / "series.db")
    store.put(SERIES, note)
    store.close()
    assert cloud("store", store=str(place / "series.db"))[0] == "missing"
    given: dict[str, Any] = {"problem": PAPER, "keys": place / "k"}
    given |= {"store": str(place / "series.db")}
    for runs, status in ((None, "ok"), (3, "ok"), (2, "warning")):
        assert stored(SeriesOptions(**given, runs=runs)) == status
    assert stored(SeriesOptions(**given | {"store": str(place / "run.db")})) == "missing"


def test_a_bad_deadline_is_refused_before_anything_is_planned(
    cloud: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "load", lambda *_, **__: pytest.fail("it plans"))
    for bad in ({"deadline": "soon"}, {"deadline": "0s"}, {"apply_after": "1 h"}, {"stall": "0"}):
        assert cloud("promise", **bad)[0] == "missing"


def test_keys_that_others_read_or_that_are_gone_are_missing(
    cloud: Callable[..., tuple[str, str]], agent: Callable[..., tuple[str, str]], place: Path
) -> None:
    assert {cloud("keys")[0], agent("keys")[0], cloud("round key")[0]} == {"ok"}
    (place / "k" / "server.key").chmod(0o644)
    (place / "k" / "agents" / "3" / "key.pem").unlink()
    (place / "k" / "round.key").write_bytes(b"short")
    for check, name in ((cloud, "keys"), (agent, "keys"), (cloud, "round key")):
        assert check(name)[0] == "missing"
    assert "chmod 600" in cloud("keys")[1]


def test_a_certificate_of_another_agent_or_role_is_missing(
    agent: Callable[..., tuple[str, str]], place: Path
) -> None:
    assert agent("certificate for the cloud")[0] == "ok"
    status, detail = agent("certificate for the cloud", keys=place / "k" / "operator")
    assert (status, "must speak for 3, got ['sottovoce:operator']" in detail) == ("missing", True)
    helper = HelperOptions(problem=PAPER, keys=place / "k", store=str(place / "h.db"))
    assert row("helper", "certificate", helper)[0] == "missing"
    identity.create_keys(place / "other", agents=1)
    shutil.copy(place / "k" / "server.pem", place / "other" / "server.pem")
    options = CloudOptions(problem=PAPER, keys=place / "other", store=str(place / "run.db"))
    assert "must be of the authority" in row("cloud", "certificate", options)[1]
    assert agent("cloud and clock", cloud="wss://127.0.0.1:port")[0] == "missing"
    beside = place / "k" / "agents" / "3"
    relay = RelayOptions(problem=PAPER, cloud="wss://127.0.0.1:1", agents="3", keys=beside)
    name = "certificate for the cloud"
    assert row("relay", name, relay)[0] == "ok"
    assert row("relay", name, replace(relay, agents="3-4"))[0] == "missing"


@pytest.mark.parametrize(
    ("days", "status", "words"),
    [(-2, "missing", "not good yet"), (380, "warning", "ends in 1"), (398, "missing", "ended on")],
)
def test_certificates_are_held_against_this_machines_clock(
    days: int,
    status: str,
    words: str,
    agent: Callable[..., tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time() + 86400 * days
    monkeypatch.setattr(time, "time", lambda: now)
    found, detail = agent("certificate for the cloud")
    assert (found, words in detail) == (status, True)


def test_a_port_in_use_is_missing(cloud: Callable[..., tuple[str, str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = f"127.0.0.1:{taken.getsockname()[1]}"
        assert cloud("port of listen", listen=text)[0] == "missing"
        assert cloud("port of health-listen", health_listen=text)[0] == "missing"
    assert cloud("port of listen", listen=text)[0] == "ok"


def test_a_disk_without_room_and_a_folder_that_others_read(
    cloud: Callable[..., tuple[str, str]], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cloud("folder and disk")[0] == "ok"
    place.chmod(0o755)
    assert cloud("folder and disk")[0] == "warning"
    for free, status in ((setup_checks.LITTLE_SPACE - 1, "warning"), (1, "missing")):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert cloud("folder and disk")[0] == status
    assert cloud("folder and disk", store=str(place / "none" / "run.db"))[0] == "missing"


def test_problems_that_do_not_load_and_promises_that_cannot_be_kept_are_missing(
    cloud: Callable[..., tuple[str, str]], place: Path
) -> None:
    helper = HelperOptions(problem=PAPER, keys=place / "k", store=str(place / "h.db"))
    assert row("helper", "problem", replace(helper, problem=place))[0] == "missing"
    assert cloud("promise", straggler="hold")[0] == "missing"
    assert "mask.key" in row("helper", "masks", helper)[1]


def test_a_private_file_that_does_not_load_is_not_quoted(
    agent: Callable[..., tuple[str, str]], place: Path
) -> None:
    assert [agent(name)[0] for name in ("problem", "private files")] == ["ok", "ok"]
    file = place / "problem" / "agents" / "3.toml"
    file.write_text('objective = "canary31415 * x3**2 + )"\n')
    file.chmod(0o644)
    status, detail = agent("problem")
    assert (status, "canary31415" in detail) == ("missing", False)
    assert agent("private files")[0] == "warning"


@pytest.fixture
def reached(place: Path, paper: Problem) -> Callable[[Callable[[str], Any]], Any]:
    """Calls a function with the address of a cloud that serves meanwhile."""

    def during(call: Callable[[str], Any]) -> Any:
        async def main() -> Any:
            store = place / "reached.db"
            async with serving(plan_for(paper), place / "k", store, rounds=5) as cloud:
                return await asyncio.to_thread(call, f"wss://127.0.0.1:{cloud.port}")

        return asyncio.run(main())

    return during


def test_the_other_sides_certificate_and_clock_are_checked(
    agent: Callable[..., tuple[str, str]],
    reached: Callable[[Callable[[str], Any]], Any],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert agent("cloud and clock")[0] == "warning"  # no one listens
    assert reached(lambda url: agent("cloud and clock", cloud=url))[0] == "ok"
    identity.create_keys(place / "other", agents=3)
    other = place / "other" / "agents" / "3"
    status, detail = reached(lambda url: agent("cloud and clock", cloud=url, keys=other))
    assert (status, "CERTIFICATE_VERIFY_FAILED" in detail) == ("missing", True)
    shutil.copy(place / "k" / "ca.pem", other / "ca.pem")
    assert reached(lambda url: agent("cloud and clock", cloud=url, keys=other))[0] == "missing"
    identity.revoke_certificate(place / "k", place / "k" / "agents" / "3" / "cert.pem")
    revoked = reached(lambda url: agent("cloud and clock", cloud=url))
    assert (revoked[0], "refuses" in revoked[1]) == ("missing", True)
    (place / "k" / "revoked.txt").write_text("")
    monkeypatch.setattr(setup_checks, "time", SimpleNamespace(time=lambda: 0.0))
    late = reached(lambda url: agent("cloud and clock", cloud=url))
    assert (late[0], "clocks here and at" in late[1]) == ("warning", True)
