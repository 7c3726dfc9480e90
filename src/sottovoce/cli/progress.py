"""Signs of life for work that takes longer than two seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sottovoce.cli.console import errors

_PATIENCE = 2.0


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner with ``what`` on standard error once the work has taken two seconds."""
    status = errors.status(f"{what} ...")
    timer = threading.Timer(_PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        status.stop()
