"""An ensemble in parts: some of its runs each, put together to the same bits as all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from sottovoce.simulation.result import Result, Trace, Transcript

_PARTS = 16


def parts(runs: int, least: int) -> list[range]:
    """Return the runs 0 .. runs-1 as about 16 ranges of at least ``least`` runs.

    More than there are workers, so that the last ones are not waited for long; few, as each costs
    a kernel's loading.
    """
    size = max(-(-runs // _PARTS), least)
    return [range(first, min(first + size, runs)) for first in range(0, runs, size)]


def joined(results: Sequence[Result], *, interrupted: bool, seconds: float) -> Result:
    """Return the runs of all parts as one result.

    Raises:
        KeyboardInterrupt: if there is none, because somebody stopped it before the first was done.
    """
    whole = [result for result in results if not result.interrupted]
    if not whole:
        raise KeyboardInterrupt
    first = whole[0]
    runs: dict[str, Any] = {
        name: np.concatenate([getattr(result, name) for result in whole])
        for name in ("x", "price", "last_x", "last_price", "failed", "released", "confirmed")
        if getattr(first, name) is not None
    }
    measured: dict[str, Any] = {
        field.name: np.concatenate([getattr(result.trace, field.name) for result in whole])
        for field in fields(Trace)
        if field.name != "k"
    }
    return replace(
        first,
        **runs,
        interrupted=interrupted or len(whole) < len(results),
        seconds=seconds,
        trace=Trace(k=first.trace.k, **measured),
        transcript=_transcript([r.transcript for r in whole if r.transcript is not None]),
    )


def _transcript(kept: Sequence[Transcript]) -> Transcript | None:
    if not kept:
        return None
    return replace(
        kept[0],
        y=np.concatenate([one.y for one in kept]),
        gradients=np.concatenate([one.gradients for one in kept]),
    )
