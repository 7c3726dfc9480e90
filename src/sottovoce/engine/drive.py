"""Many rounds in slices, so that somebody can watch, interrupt and resume them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sottovoce.problem.agents import Array

_SLICE_SECONDS = 0.25
_FIRST_SLICE, _LONGEST_SLICE = 64, 1 << 14  # the longest still has its steps in the cache
_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Final:
    """Where runs ended, one row per run: the answer, the last iterate, the round of failure or 0.

    The answer is the average of the iterates if the algorithm makes one.
    """

    x: Array
    price: Array
    last_x: Array
    last_price: Array
    failed: Any


class Engine(Protocol):
    """Runs in the making, whatever the shape of the problem."""

    def advance(self, pool: Executor, done: int, until: int, steps: Array) -> list[Future[None]]:
        """Start all runs on rounds ``done + 1 .. until``."""
        ...

    def arrays(self) -> dict[str, Any]:
        """Everything that rounds change."""
        ...

    def final(self) -> Final:
        """Where every run ended."""
        ...

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks."""
        ...

    def released(self, rounds: int) -> Array:
        """The released numbers of the first ``rounds`` rounds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """How a drive ended: rounds done, whether somebody stopped it, and the seconds it took."""

    done: int
    interrupted: bool
    seconds: float


def drive(
    engine: Engine,
    schedule: Callable[[Any], Array],
    *,
    done: int,
    rounds: int,
    threads: int,
    progress: bool | None,
    save: Callable[[int], None],
) -> Drive:
    """Advance all runs from ``done`` to ``rounds``, in slices of about a quarter of a second.

    ``schedule`` gives the numbers of rounds k, a row each. Slices do not change results. Ctrl-C
    ends after the slice at hand. ``save`` is called after every slice with the rounds done.
    """
    start, first, size = perf_counter(), done, _FIRST_SLICE
    with (
        ThreadPoolExecutor(threads) as pool,
        _interruptible() as stopped,
        _watched(progress, rounds) as show,
    ):
        while done < rounds and not stopped.is_set():
            until = min(rounds, done + size)
            began = perf_counter()
            steps = schedule(np.arange(done + 1, until + 1)).ravel()
            for future in engine.advance(pool, done, until, steps):
                future.result()
            done = until
            now = perf_counter()
            size = _next_size(size, now - began)
            save(done)
            show(done, (now - start) * (rounds - first) / (done - first))
    return Drive(done=done, interrupted=done < rounds, seconds=perf_counter() - start)


def _next_size(size: int, seconds: float) -> int:
    wanted = size * min(4.0, _SLICE_SECONDS / max(seconds, 1e-9))
    return int(np.clip(wanted, 1, _LONGEST_SLICE))


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag; the second one interrupts as usual."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _watched(wanted: bool | None, rounds: int) -> Iterator[Callable[[int, float], None]]:
    """Show a bar on the terminal for whatever is expected to take more than two seconds."""
    console = Console(stderr=True)
    if wanted is False or (wanted is None and not console.is_terminal):
        yield lambda done, expected: None
        return
    columns = (TextColumn("rounds"), BarColumn(), TextColumn("{task.completed:,}/{task.total:,}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task("rounds", total=rounds)

    def show(done: int, expected: float) -> None:
        bar.update(task, completed=done)
        if expected > _PATIENCE_SECONDS and not bar.live.is_started:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()
