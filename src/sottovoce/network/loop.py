"""Run a coroutine on the fastest event loop there is, and end it cleanly when asked to."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

Answer = TypeVar("Answer")

FAREWELL_SECONDS = 0.25
"""TLS says goodbye after a connection was closed; the loop must still be there to hear it."""

ENDING: Final = ("SIGTERM", "SIGHUP")
"""Signals that ask a process to end: by systemd, and by a terminal that is closed."""


def run(main: Coroutine[Any, Any, Answer]) -> Answer:
    """Run ``main`` with uvloop, or with asyncio where there is none (Windows).

    A signal that asks for the end cancels ``main``, which closes what it has opened; the process
    then dies of that signal, so that whoever sent it sees it obeyed.
    """
    heard: list[signal.Signals] = []
    try:
        try:
            import uvloop
        except ImportError:
            return asyncio.run(_to_the_end(main, heard))
        return uvloop.run(_to_the_end(main, heard))
    finally:
        if heard:
            signal.signal(heard[0], signal.SIG_DFL)
            os.kill(os.getpid(), heard[0])


async def _to_the_end(main: Coroutine[Any, Any, Answer], heard: list[signal.Signals]) -> Answer:
    task = asyncio.ensure_future(main)
    if os.name == "posix" and threading.current_thread() is threading.main_thread():
        loop = asyncio.get_running_loop()
        for name in ENDING:
            number = signal.Signals[name]
            loop.add_signal_handler(number, _end, loop, number, task, heard)
    try:
        return await task
    finally:
        await asyncio.sleep(FAREWELL_SECONDS)


def _end(
    loop: asyncio.AbstractEventLoop,
    number: signal.Signals,
    task: asyncio.Future[Any],
    heard: list[signal.Signals],
) -> None:
    heard.append(number)
    task.cancel()
    for name in ENDING:
        loop.remove_signal_handler(signal.Signals[name])  # who asks twice does not want to wait
