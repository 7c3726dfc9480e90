"""A cloud and its agents as processes on this machine, watched until the cloud has ended."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
from rich.live import Live
from rich.table import Table

from sottovoce.cli.console import errors
from sottovoce.errors import SottovoceError
from sottovoce.network import loop
from sottovoce.network.identity.tls import client_context
from sottovoce.network.observe.page.page_link import PageLink
from sottovoce.privacy.statement import up

Process: TypeAlias = "subprocess.Popen[bytes]"
Words: TypeAlias = "tuple[object, ...]"
"""A command and its arguments, without what says where the cloud is."""

POLL_SECONDS = 0.2
LINE_SECONDS = 2.0
LIMIT_SECONDS = 600.0
PAGE_SECONDS = 60.0
"""How long the others wait for somebody to open the page."""


def run_crew(
    cloud: Words,
    others: Sequence[Words],
    keys: Path,
    says: str,
    *,
    helper: Words | None = None,
    page: bool = False,
) -> None:
    """Run a cloud and whoever connects to it, show the run, and wait for all to end.

    Args:
        cloud: the words of ``sottovoce cloud``, without ``--listen``.
        others: the words of agents and gateways, without ``--cloud``.
        keys: the folder of the authority.
        says: who is starting, for people.
        helper: the words of ``sottovoce helper``, without ``--listen``, of a split cloud.
        page: print a link to the live page, and start the others when somebody looks.

    Raises:
        SottovoceError: if one of them fails, or takes more than ten minutes.
    """
    port, second = _free_port(), _free_port()
    ask = () if helper is None else ("--helper", f"wss://127.0.0.1:{second}")
    with _processes() as crew:
        crew.append(_start(*cloud, "--listen", f"127.0.0.1:{port}", *ask))
        if helper is not None:
            crew.append(_start(*helper, "--listen", f"127.0.0.1:{second}"))
        halves = len(crew)
        errors.print(f"{says} are starting on port {port}")
        watch = _watch_with_page if page else _watch
        loop.run(watch(keys / "operator", port, crew, others))
        for process in (crew[0], *crew[halves:]):  # a helper stays, in case the cloud asks again
            process.wait(60)
        _require_healthy(crew)


@contextmanager
def _processes() -> Iterator[list[Process]]:
    """The cloud first, a helper, then the others; whatever happens, none is left behind."""
    crew: list[Process] = []
    try:
        yield crew
    finally:
        for process in crew:
            if process.poll() is None:
                process.kill()
            process.wait()


def _start(*arguments: object) -> Process:
    code = "from sottovoce.cli import main; main()"
    words = [sys.executable, "-c", code, *map(str, arguments), "--log-level", "error"]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)  # noqa: S603  our own words


async def _watch_with_page(
    keys: Path, port: int, crew: list[Process], others: Sequence[Words]
) -> None:
    """Serve the page on this machine, and begin when somebody looks."""
    async with PageLink(keys, port) as link:
        connector = aiohttp.TCPConnector(ssl=client_context(keys))
        async with aiohttp.ClientSession(connector=connector) as session:
            while await _facts(session, port) is None:
                _require_healthy(crew)
                await asyncio.sleep(POLL_SECONDS)
        errors.print(f"open {link.url} (it works once)", soft_wrap=True, highlight=False)
        with suppress(TimeoutError):
            await asyncio.wait_for(link.opened.wait(), PAGE_SECONDS)
        await _watch(keys, port, crew, others)


async def _watch(keys: Path, port: int, crew: list[Process], others: Sequence[Words]) -> None:
    """Start the others, and show the run from the operator's page until the cloud has ended."""
    crew.extend(_start(*words, "--cloud", f"wss://127.0.0.1:{port}") for words in others)
    context = client_context(keys)
    began = time.monotonic()
    last: tuple[float, int] | None = None
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        with _shown() as show:
            while crew[0].poll() is None:
                if time.monotonic() - began > LIMIT_SECONDS:
                    raise SottovoceError("the demo takes too long: run fewer --rounds")
                _require_healthy(crew)
                facts = await _facts(session, port)
                now = time.monotonic()
                if facts is not None:
                    speed = _speed(last, now, facts["round"])
                    last = (now, facts["round"])
                    show(facts, speed)
                await asyncio.sleep(POLL_SECONDS)
    _require_healthy(crew)


async def _facts(session: aiohttp.ClientSession, port: int) -> dict[str, Any] | None:
    try:
        async with session.get(f"https://127.0.0.1:{port}/status") as answer:
            facts: dict[str, Any] = await answer.json()
            return facts
    except (aiohttp.ClientError, OSError):
        return None  # not up yet, or gone already


def _require_healthy(crew: list[Process]) -> None:
    for place, process in enumerate(crew):
        if process.poll() not in (None, 0):
            who = "cloud" if place == 0 else f"process {place}"
            raise SottovoceError(f"the {who} ended with code {process.returncode}")


def _speed(last: tuple[float, int] | None, now: float, k: int) -> float:
    return 0.0 if last is None or now <= last[0] else (k - last[1]) / (now - last[0])


@contextmanager
def _shown() -> Iterator[Callable[[dict[str, Any], float], None]]:
    """Show progress as a table that changes in place, or as lines where there is no terminal."""
    if not errors.is_terminal:
        yield _Lines().show
        return
    with Live(console=errors, refresh_per_second=8, transient=True) as live:
        yield lambda facts, speed: live.update(_progress(facts, speed))


class _Lines:
    """Progress as a line every two seconds."""

    def __init__(self) -> None:
        self.last = 0.0

    def show(self, facts: dict[str, Any], speed: float) -> None:
        """Print where the run is, unless a line was printed just now."""
        if time.monotonic() - self.last < LINE_SECONDS:
            return
        self.last = time.monotonic()
        errors.print(
            f"round {facts['round']:,} of {facts['rounds']:,}, {speed:,.0f} rounds/s, "
            f"{facts['connected']} of {facts['agents']} agents connected"
        )


def _progress(facts: dict[str, Any], speed: float) -> Table:
    table = Table(show_header=False)
    table.add_row("rounds", f"{facts['round']:,} of {facts['rounds']:,}")
    table.add_row("rounds/s", f"{speed:,.0f}")
    table.add_row("agents", f"{facts['connected']} of {facts['agents']} connected")
    table.add_row("prices", ", ".join(f"{price:.3f}" for price in facts["price"][:12]))
    table.add_row("budget", f"Gaussian-DP mu = {up(facts['gdp_mu'], 4)} for the whole run")
    return table


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
