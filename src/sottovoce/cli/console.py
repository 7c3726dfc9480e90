"""Where commands print: tables for people on the console, JSON for scripts on standard output."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

console = Console(highlight=False)
"""For people; Rich keeps tables readable in pipes and narrow terminals."""

errors = Console(stderr=True, highlight=False)
"""For messages and progress, so that standard output stays clean for results."""


def print_json(value: Any) -> None:
    """Print a value as JSON: arrays become lists, infinities and NaN become null."""
    json.dump(_plain(value), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
