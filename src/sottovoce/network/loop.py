"""Run a coroutine on the fastest event loop there is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")

FAREWELL_SECONDS = 0.25
"""TLS says goodbye after a connection was closed; the loop must still be there to hear it."""


def run(main: Coroutine[Any, Any, Answer]) -> Answer:
    """Run ``main`` with uvloop, or with asyncio where there is none (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_to_the_end(main))
    return uvloop.run(_to_the_end(main))


async def _to_the_end(main: Coroutine[Any, Any, Answer]) -> Answer:
    try:
        return await main
    finally:
        await asyncio.sleep(FAREWELL_SECONDS)
