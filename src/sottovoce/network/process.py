"""A process of the network: its event loop, how it ends, and its background tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, final

from sottovoce.errors import SottovoceError
from sottovoce.network.failures import CrashedError

Answer = TypeVar("Answer")

TLS_CLOSE_SECONDS = 0.25
"""TLS closes both ways after a connection was closed; the loop must still run then, seconds."""

END_SIGNALS: Final = ("SIGTERM", "SIGHUP")
"""Signals that ask a process to end: by systemd, and by a terminal that is closed."""


def run(start: Callable[[], Awaitable[Answer]]) -> Answer:
    """Run what ``start`` returns in a loop of uvloop, or of asyncio where there is none (Windows).

    A signal that asks for the end cancels it, so that it closes what it has opened; the process
    then dies of that signal, so that its sender sees it obeyed.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        from uvloop import new_event_loop as factory
    received: list[signal.Signals] = []
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_run_until_signal(start, received))
    finally:
        if received:
            signal.signal(received[0], signal.SIG_DFL)
            os.kill(os.getpid(), received[0])


async def _run_until_signal(
    start: Callable[[], Awaitable[Answer]], received: list[signal.Signals]
) -> Answer:
    async def main() -> Answer:
        return await start()

    task, loop = asyncio.create_task(main()), asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()
        for name in END_SIGNALS:
            loop.remove_signal_handler(signal.Signals[name])  # who asks twice does not want to wait

    if os.name == "posix" and threading.current_thread() is threading.main_thread():
        for name in END_SIGNALS:
            number = signal.Signals[name]
            loop.add_signal_handler(number, end, number)
    try:
        return await task
    finally:
        await asyncio.sleep(TLS_CLOSE_SECONDS)


def end_with_parent() -> None:
    """Have a process of ``multiprocessing`` end with the one that started it, however that ends.

    A pool of ``concurrent.futures`` would outlive a process that is killed.
    """
    from multiprocessing import parent_process

    parent = parent_process()
    assert parent is not None  # noqa: S101  it was started by another

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@final
class Supervisor:
    """Starts background tasks and tells ``failed`` of each that ends before ``stop``, and why.

    A task that is not awaited fails silently.
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
