"""Results as pandas tables; pandas is nothing that a run needs, so it is asked for only here."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from sottovoce.errors import InputError
from sottovoce.simulation.result import Result, Trace

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_STATES = 100_000


def frame(result: Result, what: str) -> DataFrame:
    """Return a result as a table, see ``Result.to_frame``."""
    if what not in ("answers", "trace"):
        raise InputError(f"what must be 'answers' or 'trace', got {what!r:.60}")
    try:
        import pandas as pd
    except ImportError as error:
        raise InputError(
            "to_frame must have pandas, got none: pip install 'sottovoce[frame]'"
        ) from error
    return pd.DataFrame(_answers(result) if what == "answers" else _trace(result))


def _answers(result: Result) -> dict[str, Any]:
    found, states = result.assessment(), result.x.shape[1]
    if states > _MOST_STATES:
        raise InputError(
            f"to_frame must have at most {_MOST_STATES:,} states, got {states:,}: use Result.x"
        )
    columns: dict[str, Any] = {
        "run": np.arange(1, result.runs + 1),
        "failed": result.failed > 0,
        "objective": found.objective,
    }
    columns |= dict(zip(found.state_labels(), result.x.T, strict=True))
    columns |= {f"g: {n}": g for n, g in zip(found.row_labels, found.rows.T, strict=True)}
    prices = zip(found.price_labels, result.price.T, strict=True)
    return columns | {f"price: {name}": price for name, price in prices}


def _trace(result: Result) -> dict[str, Any]:
    k = result.trace.k
    columns: dict[str, Any] = {
        "run": np.repeat(np.arange(1, result.runs + 1), k.size),
        "k": np.tile(k, result.runs),
    }
    names = [field.name for field in fields(Trace) if field.name != "k"]
    return columns | {name: getattr(result.trace, name).ravel() for name in names}
