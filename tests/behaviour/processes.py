"""A cloud and agents as real processes on this machine, by the command line alone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import problems as p
from commands import COMMAND, run_cli

PATIENCE = 150.0
"""Seconds after which a process that should have ended is taken for stuck."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Network:
    """The processes of one test: started here, ended here, whatever happens."""

    def __init__(self, folder: Path, files: dict[str, Any] = p.BAKERIES) -> None:
        self.folder = folder
        self.problem = p.write_folder(folder / "problem", files)
        self.keys, self.store = folder / "keys", folder / "run.db"
        self.port = free_port()
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._started:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait(timeout=30)

    @property
    def address(self) -> str:
        return f"wss://127.0.0.1:{self.port}"

    def make_keys(self, *more: str) -> None:
        done = run_cli("identity", "init", "--dir", self.keys, "--agents", "3", *more)
        assert done.code == 0, done.err

    def start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        """Start a command; what it says goes to files called after it."""
        out, err = (self.folder / f"{name}.{kind}" for kind in ("out", "err"))
        with out.open("ab") as standard, err.open("ab") as errors:
            process = subprocess.Popen(
                [*COMMAND, *map(str, words)],
                stdout=standard, stderr=errors, stdin=subprocess.DEVNULL,
                env=os.environ | {"COLUMNS": "200"},
            )  # fmt: skip
        self._started.append(process)
        return process

    def cloud(self, *more: object, rounds: int = 60) -> subprocess.Popen[bytes]:
        listen = f"127.0.0.1:{self.port}"
        return self.start(
            "cloud", "cloud", self.problem, "--keys", self.keys, "--store", self.store,
            "--listen", listen, "--rounds", rounds, "--linger", "5", *more,
        )  # fmt: skip

    def agent(self, number: int, *more: object) -> subprocess.Popen[bytes]:
        return self.start(
            f"agent{number}", "agent", self.problem / "agents" / f"{number}.toml",
            "--keys", self.keys / "agents" / str(number), "--cloud", self.address,
            "--out", self.folder / f"{number}.json", *more,
        )  # fmt: skip

    def gateway(self, agents: str = "1-3", *more: object) -> subprocess.Popen[bytes]:
        return self.start(
            "gateway", "gateway", self.problem, "--agents", agents,
            "--keys", self.keys / "agents" / agents, "--cloud", self.address,
            "--out", self.folder / "answers.json", *more,
        )  # fmt: skip

    def flood(self, kind: str, seconds: float) -> None:
        """Flood the cloud's port with the keys of agent 9, who has no part in the run."""
        script, keys = Path(__file__).parents[1] / "network" / "flood_process.py", self.keys
        words = (script, kind, self.port, keys / "agents" / "9", seconds)
        flood = subprocess.Popen([sys.executable, *map(str, words)], stdout=subprocess.DEVNULL)
        self._started.append(flood)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.err"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def status(self) -> Any:
        """What ``status`` tells scripts of the store; None before there is one."""
        done = run_cli("status", self.store, "--json")
        return done.json if done.out else None

    def wait_for_round(self, round_: int) -> int:
        """Wait until so many rounds are in the store."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            facts = self.status() if self.store.exists() else None
            if facts is not None and facts["rounds"] >= round_:
                return int(facts["rounds"])
            time.sleep(0.05)
        raise AssertionError(f"round {round_} did not come: {self.log('cloud')[-2000:]}")


def ended(*processes: subprocess.Popen[bytes], patience: float = PATIENCE) -> list[int]:
    """The exit codes of processes that end by themselves."""
    until = time.monotonic() + patience
    return [process.wait(timeout=max(0.1, until - time.monotonic())) for process in processes]


def answer(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def copy_store(store: Path, target: Path) -> Sequence[Path]:
    """Copy a store with the files beside it."""
    target.mkdir(parents=True, exist_ok=True)
    copied = []
    for path in store.parent.glob(f"{store.name}*"):
        if not path.name.endswith(".lock"):
            (target / path.name).write_bytes(path.read_bytes())
            copied.append(target / path.name)
    return copied
