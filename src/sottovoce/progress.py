"""Signs of life: what long work tells whoever waits for it, and how standard error shows it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE_SECONDS = 2.0
"""Work that takes less than this is not worth a word."""


class Progress(Protocol):
    """Whoever waits for long work; it is told, and never asked."""

    def __call__(self, doing: str, share: float | None = None) -> None:
        """Hear what is being done now, and the share of it that is done, if that is known."""
        ...


def silent(doing: str, share: float | None = None) -> None:
    """Hear and show nothing."""


@contextmanager
def watched(wanted: bool | Progress | None) -> Iterator[Progress]:
    """Return whom to tell, for work that may be told ``progress=``.

    Args:
        wanted: somebody to tell; True to show it on standard error once it has taken two seconds,
            False not to, None to show it where standard error is a terminal.
    """
    if callable(wanted):
        yield wanted
        return
    if wanted is None:
        from rich.console import Console

        wanted = Console(stderr=True).is_terminal
    if not wanted:
        yield silent
        return
    with shown() as tell:
        yield tell


@contextmanager
def shown(doing: str = "", *, patience: float = PATIENCE_SECONDS) -> Iterator[Progress]:
    """Show on standard error what is being done, once it has taken ``patience`` seconds.

    A terminal has one line that changes and goes away at the end; a pipe or a journal gets a line
    every two seconds at most.

    Args:
        doing: what is done first.
        patience: seconds; 0 shows it at once.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    sign: _Bar | _Lines = _Bar(console) if console.is_terminal else _Lines(console)
    sign.tell(doing)
    timer = threading.Timer(patience, sign.start)
    timer.daemon = True
    if patience > 0:
        timer.start()
    else:
        sign.start()
    try:
        yield sign.tell
    finally:
        timer.cancel()
        sign.stop()


@final
class _Bar:
    """A line of a terminal that changes in place."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        words = TextColumn("{task.description}", markup=False)
        columns = (SpinnerColumn(), words, BarColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None)

    def tell(self, doing: str, share: float | None = None) -> None:
        """Show it."""
        total = None if share is None else 1.0
        self._bar.update(self._task, description=doing, completed=share or 0.0, total=total)

    def start(self) -> None:
        """Appear."""
        self._bar.start()

    def stop(self) -> None:
        """Go away."""
        self._bar.stop()


@final
class _Lines:
    """Lines where nothing can be taken back, two seconds apart at least.

    What is told too early for a line of its own waits: if it is still being done when the two
    seconds are over, it is printed then, so that no work goes on under the name of another.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._line, self._said, self._last = "", "", 0.0
        self._started = False
        self._waiting: threading.Timer | None = None

    def tell(self, doing: str, share: float | None = None) -> None:
        """Print it, or let it wait if something was printed just now."""
        with self._lock:
            self._line = doing if share is None else f"{doing}: {share:.0%}"
            if not self._started:
                return
            left = PATIENCE_SECONDS - (monotonic() - self._last)
            if left <= 0:
                self._print()
            elif self._waiting is None:
                self._waiting = threading.Timer(left, self._late)
                self._waiting.daemon = True
                self._waiting.start()

    def start(self) -> None:
        """Print from now on."""
        with self._lock:
            self._started = True
            self._print()

    def stop(self) -> None:
        """Print no more."""
        with self._lock:
            self._started = False
            self._forget()

    def _late(self) -> None:
        with self._lock:
            if self._started:
                self._print()

    def _forget(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = None

    def _print(self) -> None:
        self._forget()
        self._last = monotonic()
        if self._line and self._line != self._said:
            self._said = self._line
            self._console.print(self._line, markup=False, soft_wrap=True)
