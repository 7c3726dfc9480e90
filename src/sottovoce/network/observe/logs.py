"""One JSON object per line: what happened, to which agents, in which round. Never a value."""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Final

_LOGGER: Final = logging.getLogger("sottovoce.network")


def note(event: str, *, level: int = logging.INFO, **fields: int | str | list[int]) -> None:
    """Log an event; fields are numbers of agents and rounds, codes and addresses."""
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, event, extra={"fields": fields})


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
