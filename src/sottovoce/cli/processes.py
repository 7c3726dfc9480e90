"""A cloud and its agents as processes on this machine, until the cloud has ended."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp

from sottovoce.cli.console import errors
from sottovoce.errors import SottovoceError
from sottovoce.network import process as network_process
from sottovoce.network.identity.tls import client_context
from sottovoce.network.observe.page.page_link import PageLink
from sottovoce.progress import Progress, shown

Process: TypeAlias = "subprocess.Popen[bytes]"
Words: TypeAlias = "tuple[object, ...]"
"""A command and its arguments, without the cloud's address."""

POLL_SECONDS = 0.2
LIMIT_SECONDS = 600.0
PAGE_SECONDS = 60.0
"""How long agents wait until the page is opened."""


def run_processes(
    cloud: Words,
    agents: Sequence[Words],
    keys: Path,
    parties: str,
    *,
    helper: Words | None = None,
    page: bool = False,
) -> None:
    """Run a cloud and whatever connects to it, show the run, and wait for all to end.

    Args:
        cloud: the words of ``sottovoce cloud``, without ``--listen``.
        agents: the words of agents and gateways, without ``--cloud``.
        keys: the folder of the authority.
        parties: which processes start, for people.
        helper: the words of ``sottovoce helper``, without ``--listen``, of a split cloud.
        page: print a link to the live page, and start the agents when it is opened.

    Raises:
        SottovoceError: if one of them fails, or takes more than ten minutes.
    """
    port, second = _free_port(), _free_port()
    address = () if helper is None else ("--helper", f"wss://127.0.0.1:{second}")
    with _processes() as running:
        running.append(_start(*cloud, "--listen", f"127.0.0.1:{port}", *address))
        if helper is not None:
            running.append(_start(*helper, "--listen", f"127.0.0.1:{second}"))
        halves = len(running)
        errors.print(f"{parties} are starting on port {port}")
        watch = _watch_with_page if page else _watch
        network_process.run(watch(keys / "operator", port, running, agents))
        for process in (running[0], *running[halves:]):  # a helper stays: the cloud may ask again
            process.wait(60)
        _require_healthy(running)


@contextmanager
def _processes() -> Iterator[list[Process]]:
    """The cloud first, a helper, then agents; whatever happens, all are ended."""
    running: list[Process] = []
    try:
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()


def _start(*arguments: object) -> Process:
    code = "from sottovoce.cli import main; main()"
    words = [sys.executable, "-c", code, *map(str, arguments), "--log-level", "error"]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)  # noqa: S603  our own words


async def _watch_with_page(
    keys: Path, port: int, running: list[Process], agents: Sequence[Words]
) -> None:
    """Serve the page on this machine, and start agents when it is opened."""
    async with PageLink(keys, port) as link:
        async with _session(keys) as session:
            while await _status(session, port) is None:
                _require_healthy(running)
                await asyncio.sleep(POLL_SECONDS)
        errors.print(f"open {link.url} (it works once)", soft_wrap=True, highlight=False)
        with suppress(TimeoutError):
            await asyncio.wait_for(link.opened.wait(), PAGE_SECONDS)
        await _watch(keys, port, running, agents)


async def _watch(keys: Path, port: int, running: list[Process], agents: Sequence[Words]) -> None:
    """Start the agents, and show the run from the operator's status until the cloud has ended."""
    running.extend(_start(*words, "--cloud", f"wss://127.0.0.1:{port}") for words in agents)
    began = last = time.monotonic()
    k = 0
    async with _session(keys) as session:
        with shown(patience=0.0) as tell:
            while running[0].poll() is None:
                if time.monotonic() - began > LIMIT_SECONDS:
                    raise SottovoceError("the demo takes too long: run fewer --rounds")
                _require_healthy(running)
                status = await _status(session, port)
                if status is not None:
                    now = time.monotonic()
                    _tell(tell, status, (status["round"] - k) / (now - last))
                    k, last = status["round"], now
                await asyncio.sleep(POLL_SECONDS)
    _require_healthy(running)


def _tell(tell: Progress, status: dict[str, Any], speed: float) -> None:
    tell(
        f"round {status['round']:,} of {status['rounds']:,}, {speed:,.0f} rounds/s, "
        f"{status['connected']} of {status['agents']} agents connected",
        status["round"] / status["rounds"],
    )


def _session(keys: Path) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_context(keys)))


async def _status(session: aiohttp.ClientSession, port: int) -> dict[str, Any] | None:
    try:
        async with session.get(f"https://127.0.0.1:{port}/status") as answer:
            status: dict[str, Any] = await answer.json()
            return status
    except (aiohttp.ClientError, OSError):
        return None  # not up yet, or gone already


def _require_healthy(running: list[Process]) -> None:
    for place, process in enumerate(running):
        if process.poll() not in (None, 0):
            name = "cloud" if place == 0 else f"process {place}"
            raise SottovoceError(f"the {name} ended with code {process.returncode}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
