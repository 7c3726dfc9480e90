"""Whether a run has ended, how, and who has heard of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import final

from sottovoce.errors import SottovoceError
from sottovoce.network.observe.logs import note


@final
class Outcome:
    """The end of one run, for those who wait for it.

    Args:
        agents: those who must hear of it, from 1.
    """

    def __init__(self, agents: Sequence[int]) -> None:
        self.failure: SottovoceError | None = None
        self._everybody = agents
        self._told: set[int] = set()
        self._ended = asyncio.Event()
        self._heard = asyncio.Event()

    def end(self) -> None:
        """The last round was released."""
        self._ended.set()

    def fail(self, error: SottovoceError) -> None:
        """The run cannot go on; the first reason counts."""
        if self.failure is None:
            self.failure = error
            note("failed", level=logging.ERROR, error=type(error).__name__)
        self._ended.set()
        self._heard.set()  # nobody is waited for after a failure

    def tell(self, agents: Iterable[int]) -> None:
        """These agents are told of the end."""
        self._told.update(agents)
        if len(self._told) == len(self._everybody):
            self._heard.set()

    async def wait(self, *, linger: float) -> None:
        """Wait for the end, and for ``linger`` seconds at most until every agent has heard of it.

        Raises:
            SottovoceError: why the run failed.
        """
        await self._ended.wait()
        self._raise()
        try:
            async with asyncio.timeout(linger):
                await self._heard.wait()
        except TimeoutError:
            untold = sorted(set(self._everybody) - self._told)
            note("agents missed the end", agents=untold[:16])
        self._raise()

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure
