"""Exit codes: errors, refusals, documents and systemd units must agree."""

from __future__ import annotations

import configparser
import re
import socket
import sqlite3
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from sottovoce import cli, errors
from sottovoce.cli import application, main
from sottovoce.errors import BudgetError, Exit, PrivacyError, SottovoceError
from sottovoce.network import failures as network_errors
from sottovoce.network import identity
from sottovoce.network.agent import AgentStore
from sottovoce.network.failures import DivergedError, RefusedError
from sottovoce.network.identity.tls import client_context
from sottovoce.network.protocol.actions import Memory
from sottovoce.network.protocol.messages import Code
from sottovoce.network.store import CloudStore
from sottovoce.privacy.fence import ledger_errors
from sottovoce.problem import gallery
from sottovoce.problem.files.save import save_problem

DOCS = Path(__file__).parents[2] / "docs"
RESTART = {
    Exit.DONE: False,
    Exit.NO: True,
    Exit.PERSON: False,
    Exit.AGAIN: True,
    Exit.EXPIRED: True,
}
"""Whether a unit starts the process again; an expired one comes back as soon as it is renewed."""

START = Memory(x=b"\0" * 8, answer=b"\0" * 8)


def units() -> list[configparser.ConfigParser]:
    """The units of the wheel, without the lines that go on."""
    read = []
    for file in sorted((Path(cli.__file__).parent / "systemd").iterdir()):
        unit = configparser.ConfigParser(interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read_string(file.read_text().replace("\\\n", ""))
        read.append(unit)
    return read


def restarts(service: configparser.SectionProxy, code: int) -> bool:
    """What systemd does: see RestartPreventExitStatus= in systemd.service(5)."""
    prevented = service.get("RestartPreventExitStatus", "").split()
    return service["Restart"] == "on-failure" and code != 0 and str(code) not in prevented


def test_units_restart_what_time_or_a_restart_can_mend_and_nothing_else() -> None:
    assert len(units()) == 2
    for unit in units():
        found = {code: restarts(unit["Service"], code) for code in Exit}
        assert found == RESTART
        assert unit["Unit"]["StartLimitIntervalSec"] == "0"  # never gives up
        assert int(unit["Service"]["RestartSec"]) >= 5
        _, role, *words = unit["Service"]["ExecStart"].split()
        known = get_command(application()).commands[role].params  # type: ignore[attr-defined]
        assert {w for w in words if w.startswith("--")} <= {o for p in known for o in p.opts}


def test_the_documents_list_every_code() -> None:
    text = (DOCS / "how-to" / "deploy.md").read_text()
    listed = re.findall(r"^\| \[?(\d+)\]?.* \|.*\| (.*) \|$", text, re.MULTILINE)
    assert [int(code) for code, _ in listed] == sorted(Exit)
    for code, what in listed:
        assert what.startswith("start it again") == RESTART[Exit(int(code))]
        assert int(code) == 0 or (DOCS / "reference" / "exit-codes" / f"{code}.md").is_file()


def every_error() -> set[type[SottovoceError]]:
    return {
        kind
        for module in (errors, network_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, SottovoceError) and kind is not RefusedError
    }


def test_every_error_has_a_code() -> None:
    made = {
        kind: DivergedError(1) if kind is DivergedError else kind("x") for kind in every_error()
    }
    found = {kind.__name__: error.exit_code for kind, error in made.items()}
    passing = {name for name, code in found.items() if code is Exit.AGAIN}
    assert passing == {
        "BusyError", "CrashedError", "DiskError", "LeasedError", "UnavailableError"
    }  # fmt: skip
    assert {name for name, code in found.items() if code is Exit.EXPIRED} == {"ExpiredError"}
    assert set(found.values()) == {Exit.PERSON, Exit.AGAIN, Exit.EXPIRED}
    assert {code: RefusedError(code, "x").exit_code for code in Code} == dict.fromkeys(
        Code, Exit.PERSON
    ) | {Code.REPLACED: Exit.AGAIN, Code.EXPIRED: Exit.EXPIRED}


@pytest.mark.parametrize(
    ("code", "exit_code"), [(sqlite3.SQLITE_FULL, Exit.AGAIN), (sqlite3.SQLITE_ERROR, Exit.PERSON)]
)
def test_a_ledger_on_a_full_disk_is_tried_again_and_a_spent_one_not(
    code: int, exit_code: Exit
) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = code
    with pytest.raises(PrivacyError) as caught, ledger_errors("budget.db"):
        raise error
    assert caught.value.exit_code is exit_code
    assert BudgetError("spent").exit_code is Exit.PERSON


def code_of(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["sottovoce", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "k"
    identity.create_keys(folder, agents=7)
    return folder


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problem")
    save_problem(gallery.paper(), folder)
    return folder


def test_a_cloud_ends_with_75_while_its_port_its_store_or_revoked_txt_is_not_to_be_had(
    keys: Path,
    problem: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        words = ("cloud", problem, "--keys", keys, "--store", tmp_path / "run.db", "--listen")
        assert code_of(monkeypatch, *words, listen) == Exit.AGAIN
    assert "Traceback" not in capfd.readouterr().err
    store = CloudStore(tmp_path / "run.db")
    assert code_of(monkeypatch, *words, "127.0.0.1:0") == Exit.AGAIN
    store.close()
    (keys / "revoked.txt").rename(tmp_path / "aside")
    assert code_of(monkeypatch, *words, "127.0.0.1:0") == Exit.AGAIN
    (tmp_path / "aside").rename(keys / "revoked.txt")
    assert code_of(monkeypatch, *words, "127.0.0.1:0", "--rounds", "7") == Exit.PERSON


def test_a_second_start_of_the_same_agent_ends_with_75(
    keys: Path, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = AgentStore(tmp_path / "3.state", START)
    words = ("agent", problem / "agents" / "3.toml", "--keys", keys / "agents" / "3", "--state")
    address = ("--cloud", "wss://127.0.0.1:1")
    assert code_of(monkeypatch, *words, tmp_path / "3.state", *address) == Exit.AGAIN
    first.close()


def test_a_certificate_that_has_ended_has_a_code_of_its_own(
    keys: Path, problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity.issue_keys(keys, agents=range(9, 10), days=0)
    words = ("agent", problem / "agents" / "3.toml", "--keys", keys / "agents" / "9", "--state")
    address = ("--cloud", "wss://127.0.0.1:1")
    assert code_of(monkeypatch, *words, tmp_path / "3.state", *address) == Exit.EXPIRED
    client_context(keys / "agents" / "3")


# --- Options of a role come from the command line, else the environment, else a file ---


PAPER = Path(__file__).parents[2] / "examples" / "paper"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> object:
    """What a relay says of options that it refuses."""

    def run(*words: object) -> str:
        relay = ["sottovoce", "relay", PAPER, "--agents", "1-2", "--cloud", "wss://h:1", *words]
        monkeypatch.setattr("sys.argv", [str(word) for word in relay])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return run


def test_the_command_line_comes_first_then_the_environment_then_the_file(
    refused: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(refused)
    file = tmp_path / "relay.toml"
    file.write_text('listen = "of-the-file"\nkeys = "nowhere"\nlog-level = "error"\n')
    assert "of-the-file" in refused("--config", file)
    monkeypatch.setenv("SOTTOVOCE_CONFIG", str(file))
    assert "of-the-file" in refused()
    monkeypatch.setenv("SOTTOVOCE_LISTEN", "of-the-environment")
    assert "of-the-environment" in refused()
    assert "of-the-command" in refused("--listen", "of-the-command")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("strict = true\n", "got 'strict': known are agents, cloud, config"),
        ("listen = \n", "--config must be TOML"),
        (None, "--config must be a readable file"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(
    refused: object, tmp_path: Path, text: str | None, named: str
) -> None:
    assert callable(refused)
    file = tmp_path / "relay.toml"
    if text is not None:
        file.write_text(text)
    assert named in " ".join(refused("--config", file).split())
