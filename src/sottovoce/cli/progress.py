"""Signs of life for work that takes longer than two seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from sottovoce.cli.console import errors

_PATIENCE = 2.0


class _Sign(Protocol):
    """Something of Rich's that can be shown and taken away again."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner with ``what`` on standard error once the work has taken two seconds."""
    with _patiently(errors.status(f"{what} ...")):
        yield


@contextmanager
def counting() -> Iterator[Callable[[str, float], None]]:
    """Show what runs and the share that is done, likewise."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    bar = Progress(*columns, console=errors, transient=True)
    task = bar.add_task("", total=1.0)
    with _patiently(bar):
        yield lambda words, done: bar.update(task, description=words, completed=done)


@contextmanager
def _patiently(sign: _Sign) -> Iterator[None]:
    timer = threading.Timer(_PATIENCE, sign.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        sign.stop()
