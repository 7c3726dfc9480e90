"""Progress of long work: a bar in a terminal, throttled lines on a pipe, a callback; Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE_SECONDS = 2.0
"""Work that takes less is not reported; lines on a pipe are at least so far apart."""


class Progress(Protocol):
    """A progress callback."""

    def __call__(self, doing: str, share: float | None = None) -> None:
        """Take the work in progress, and the share of it that is complete, if that is known."""
        ...


def silent(doing: str, share: float | None = None) -> None:
    """Show nothing."""


@contextmanager
def watched(progress: bool | Progress | None) -> Iterator[Progress]:
    """Return the callback that an argument ``progress=`` asks for.

    True shows progress on standard error once the work has taken two seconds, False does not, None
    shows it where standard error is a terminal.
    """
    if progress is None:
        progress = sys.stderr is not None and sys.stderr.isatty()
    if callable(progress):
        yield progress
    elif progress:
        with shown() as report:
            yield report
    else:
        yield silent


@contextmanager
def interruptible() -> Iterator[threading.Event]:
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
def shown(doing: str = "", *, patience: float = PATIENCE_SECONDS) -> Iterator[Progress]:
    """Show progress on standard error once the work has taken ``patience`` seconds.

    A terminal has one line that changes in place and is removed at the end; a pipe or a journal
    gets a line every two seconds at most. ``doing`` is the first work; a patience of 0 shows it at
    once.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    report, show, stop = _bar(console) if console.is_terminal else _lines(console)
    over = threading.Event()

    def refresh() -> None:
        pause = patience
        while not over.wait(pause):
            show()
            pause = PATIENCE_SECONDS

    report(doing)
    if patience <= 0:
        show()
        patience = PATIENCE_SECONDS
    thread = threading.Thread(target=refresh, daemon=True)
    thread.start()
    try:
        yield report
    finally:
        over.set()
        thread.join()
        stop()


_Display = tuple[Progress, Callable[[], None], Callable[[], None]]
"""A callback, what shows its last call, and what removes it."""


def _bar(console: Console) -> _Display:
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    words = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), words, BarColumn(), TimeRemainingColumn())
    bar = Bar(*columns, console=console, transient=True)
    task = bar.add_task("", total=None)

    def report(doing: str, share: float | None = None) -> None:
        total = None if share is None else 1.0
        bar.update(task, description=doing, completed=share or 0.0, total=total)

    return report, bar.start, bar.stop


def _lines(console: Console) -> _Display:
    line = printed = ""

    def report(doing: str, share: float | None = None) -> None:
        nonlocal line
        line = doing if share is None else f"{doing}: {share:.0%}"

    def show() -> None:
        nonlocal printed
        if line != printed:
            printed = line
            console.print(printed, markup=False, soft_wrap=True)

    return report, show, lambda: None
