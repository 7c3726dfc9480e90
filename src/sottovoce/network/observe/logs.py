"""One JSON object per line: what happened, to which agents, in which round. Never a value."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Hashable, Sequence
from typing import Any, Final, final

LINES: Final = 5
PERIOD_SECONDS: Final = 60.0

_LOGGER: Final = logging.getLogger("sottovoce.network")
NAMED: Final = 16  # agents in a line, at most


def note(
    event: str,
    *,
    level: int = logging.INFO,
    agents: Sequence[int] | None = None,
    **fields: int | str,
) -> None:
    """Log an event; fields are numbers of agents, the first 16, and of rounds, codes, addresses."""
    if _LOGGER.isEnabledFor(level):
        named = {} if agents is None else {"agents": list(agents[:NAMED])}
        _LOGGER.log(level, event, extra={"fields": named | fields})


@final
class LogRateLimiter:
    """Lets a few lines of each kind through per minute, and counts the rest."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, int]] = {}

    def incident(self, code: str, agents: Sequence[int], k: int) -> None:
        """Log a refusal, by its code and the first agent of the connection."""
        unsaid = self.suppressed((code, agents[0] if agents else 0))
        if unsaid is not None:
            note("incident", code=code, agents=agents, round=k, unsaid=unsaid)

    def suppressed(self, kind: Hashable) -> int | None:
        """Return how many lines of this kind were left out before this one; None: leave it out."""
        now = time.monotonic()
        since, count = self._counts.get(kind, (now, 0))
        if now - since >= PERIOD_SECONDS:
            self._counts[kind] = (now, 1)
            return max(0, count - LINES)
        self._counts[kind] = (since, count + 1)
        return 0 if count < LINES else None


class JsonLines(logging.Formatter):
    """Formats records as JSON lines, also those of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        values: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        values.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[0] is not None:
            values["error"] = record.exc_info[0].__name__
        return json.dumps(values)


def configure(level: str) -> None:
    """Send logs as JSON lines to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
