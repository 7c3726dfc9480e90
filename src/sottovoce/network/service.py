"""What the processes of a cloud, a relay and a helper share: peers, files, and how they end."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Generic, TypeVar, final

from aiohttp import web

from sottovoce.arguments import path_of
from sottovoce.errors import SottovoceError
from sottovoce.network import LINGER_SECONDS
from sottovoce.network.failures import LeasedError
from sottovoce.network.identity.certificates import Authorization
from sottovoce.network.journal import Journal
from sottovoce.network.journal_place import POLL_SECONDS, utc
from sottovoce.network.observe.logs import note
from sottovoce.network.observe.operator_pages import ENDED_WRONG, FATAL, Metrics, serve_health
from sottovoce.network.process import Supervisor
from sottovoce.network.protocol.collected import agent_ranges
from sottovoce.network.runner import Outcome
from sottovoce.network.transport.server import Server
from sottovoce.privacy.charge import Charge
from sottovoce.privacy.fence import Fence
from sottovoce.privacy.ledger import Ledger

TICK_SECONDS: Final = 1.0

RECENT: Final = 100  # rounds over which those who answered last are counted

NAMED: Final = 100
"""Agents named on a page; a page must stay readable where a whole fleet is missing."""

Result = TypeVar("Result")


@dataclass(eq=False, repr=False)
class Service(ABC, Generic[Result]):
    """A process that others connect to.

    A role opens its files and listens in ``_start``, checks the run in ``_every_second``, and
    returns in ``_result`` how it ended.
    """

    _: KW_ONLY
    keys: str | os.PathLike[str]
    listen: tuple[str, int] = ("127.0.0.1", 0)
    health_listen: tuple[str, int] | None = None

    def _prepare(self, agents: Sequence[int] = ()) -> None:
        """Make what a run of these agents, from 1, needs."""
        self._attendance = Attendance(agents)
        self._metrics = Metrics()
        self._outcome = Outcome(agents)
        self._supervisor = Supervisor(self._outcome.fail)
        self._folder = path_of("keys", self.keys)
        self._authorization: Authorization
        self._store: Journal | None = None
        self._fence: Fence | None = None
        self._standby = False  # whether it has waited for a lease
        self.opened = asyncio.Event()
        """Set when it listens: a relay does once it has heard of its run."""
        self._server: Server
        self._health: web.AppRunner | None = None

    @abstractmethod
    async def _start(self) -> None:
        """Open the files, and listen."""

    @abstractmethod
    def _every_second(self) -> None:
        """Every second, besides what all services do."""

    @abstractmethod
    def _result(self) -> Result:
        """How the run ended."""

    def _troubles(self) -> dict[str, str]:
        """What is wrong now: the reason of every code."""
        failed = {} if self._outcome.failure is None else {FATAL: ENDED_WRONG}
        waits = "standby" if self._standby else "not-listening"
        return failed if self.opened.is_set() else {**failed, waits: "it does not listen"}

    async def _healthz(self, _: web.Request) -> web.Response:
        troubles = [{"code": code, "reason": text} for code, text in self._troubles().items()]
        page = {"healthy": not troubles, "troubles": troubles}
        return web.json_response(page, status=503 if troubles else 200)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    async def run(self, *, linger: float = LINGER_SECONDS) -> Result:
        """Serve until the run is over and every agent knows, or ``linger`` seconds longer.

        Raises:
            HaltedError: the store was rolled back.
            DivergedError: prices diverged.
            StoreError: the store is damaged, or has lost rounds that were released.
            DiskError, UnavailableError: store or ledger cannot be written now; start again.
            BusyError: another process has the store or the port, or took over the store's lease.
            BudgetError: the ledger has no room for the run.
            RollbackError: the ledger knows rounds that the store does not hold as they were sent.
            RefusedError: the cloud refuses this relay, or is not the cloud it used to be.
            ExpiredError: its certificate has expired.
        """
        await self.start()
        try:
            return await self.finished(linger=linger)
        finally:
            await self.stop()

    async def start(self) -> None:
        """Open the files, and listen, as soon as no other process has the lease of the store.

        What fails leaves nothing open.
        """
        try:
            if self.health_listen is not None:
                self._health = await serve_health(
                    self.health_listen, self._troubles, self._metrics.page
                )
            self._authorization = Authorization(self._folder)
            while not await self._started():
                await asyncio.sleep(POLL_SECONDS)
        except BaseException:
            if self._health is not None:
                await self._health.cleanup()
            self._close_files()
            raise
        self._supervisor.start("tick", self._tick())

    async def _started(self) -> bool:
        """Start; False while another process has the lease of the store."""
        try:
            try:
                await self._start()
            except SottovoceError:
                if self._store is not None:
                    # Who took the lease over meanwhile has gone on: that is no damage.
                    self._store.flush()
                raise
        except LeasedError as error:
            if not self._standby:
                note("standby", reason=str(error))
            self._standby = True
            self._close_files()  # the lease may have been lost after the store was opened
            self._fence = self._store = None
            return False
        return True

    async def finished(self, *, linger: float = LINGER_SECONDS) -> Result:
        """Wait for the end of the run."""
        await self._outcome.wait(linger=linger)
        return self._result()

    async def stop(self) -> None:
        """Close every connection and give the files back."""
        try:
            await self._supervisor.stop()
            if self._health is not None:
                await self._health.cleanup()
            if self.opened.is_set():
                await self._server.close()
        finally:
            self._close_files()

    def _charge(
        self, ledger: Ledger | None, charges: Sequence[Charge], run_id: str, role: str
    ) -> None:
        """Take the run's place in the ledger: every round is fenced off there from now on."""
        store = self._store
        if ledger is None or store is None:
            return
        fence = ledger.begin(
            run_id,
            charges,
            rounds=store.released,
            digest=store.digest,
            note=f"sottovoce {role}",
        )
        if not store.join(fence):
            self._fence = fence

    async def _serve(self, server: Server, k: int) -> None:
        """Listen, as round k is collected."""
        server.app.router.add_get("/healthz", self._healthz)
        await server.open(self.listen, self._supervisor)
        self._server = server
        self.opened.set()
        self._metrics.start()
        note("listening", port=server.port, round=k)

    async def _tick(self) -> None:
        """Every second: write incidents, prolong the lease; drop peers revoked, expired or late."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._store is not None:
                self._store.flush()
            if self.opened.is_set():
                self._server.check()
                self._every_second()

    def _close_files(self) -> None:
        """Close the ledger's fence and the store, the store even if the fence fails."""
        try:
            if self._fence is not None:
                self._fence.close()
        finally:
            if self._store is not None:
                self._store.close()


@final
class Attendance:
    """Who is missing and since when, and who delayed the last rounds: identities, never states."""

    def __init__(self, agents: Sequence[int]) -> None:
        self._agents = agents
        self._since = dict.fromkeys(agents, time.time())
        self._last: deque[tuple[int, ...]] = deque(maxlen=RECENT)

    def update(self, present: set[int]) -> None:
        """Log who has come and gone since the last look; a fleet is counted when some have."""
        now = time.time()
        absent = [a for a in self._agents if a not in present and a not in self._since]
        returned = [a for a in self._since if a in present]
        self._since.update(dict.fromkeys(absent, now))
        for agent in returned:
            del self._since[agent]
        if absent:
            note("agents-absent", level=logging.WARNING, agents=absent, missing=self.missing)
        if returned:
            note("agents-present", agents=returned, missing=self.missing)

    def completed(self, agents: Sequence[int]) -> None:
        """A round is complete; these agents were the last, or were held."""
        self._last.append(tuple(agents))

    @property
    def missing(self) -> int:
        """How many agents are absent."""
        return len(self._since)

    def absent(self) -> list[dict[str, Any]]:
        """Return who is missing since when (UTC), or since the start, the longest first."""
        now = time.time()
        longest = sorted(self._since.items(), key=lambda item: (item[1], item[0]))
        return [
            {"agent": agent, "since": utc(since), "seconds": round(max(0.0, now - since), 3)}
            for agent, since in longest[:NAMED]
        ]

    def last_to_answer(self) -> list[dict[str, Any]]:
        """Return whom all others waited for in the last 100 rounds, the most frequent first.

        "agents" are those on one connection, such as "1-250", or those held in a round.
        """
        counts = Counter(self._last).most_common(NAMED)
        return [{"agents": _named(agents), "rounds": rounds} for agents, rounds in counts]


def _named(agents: tuple[int, ...]) -> str:
    """Agents as ranges, ``1-3,7``."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in agent_ranges(agents))
