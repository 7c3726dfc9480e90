"""Background tasks that live as long as the process: if one ends by itself, the process must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, final

from sottovoce.errors import SottovoceError
from sottovoce.network.errors import CrashedError


@final
class Supervisor:
    """Starts background tasks and reports the first that ends before it was told to.

    A task that nobody awaits dies in silence, and what it guarded is no longer guarded.

    Args:
        failed: called with the reason when a task has ended, whatever it ended with.
    """

    def __init__(self, failed: Callable[[SottovoceError], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, which must not end before ``stop``."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, name))

    async def stop(self) -> None:
        """End all tasks and wait until they have."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self._stopping:
            return
        if isinstance(error, SottovoceError):
            self._failed(error)
            return
        # The type alone: an error's text may quote what it was working on.
        kind = "nothing" if error is None else type(error).__name__
        self._failed(CrashedError(f"the background task {name!r} must not end, got {kind}: "
                                  "start again to continue"))  # fmt: skip
