"""Run a coroutine on the fastest event loop there is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


def run(main: Coroutine[Any, Any, Answer]) -> Answer:
    """Run ``main`` with uvloop, or with asyncio where there is none (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
