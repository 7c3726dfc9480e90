"""Functions of formulas that work on arrays of formulas too, entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def entrywise(*, least: int = 1) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of formulas work on arrays of them, on states and on ``A @ x``.

    Args:
        least: how many arguments it takes for that; of one array ``maximum`` finds the largest.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def either(*arguments: P.args, **settings: P.kwargs) -> R:
            if len(arguments) >= least and any(map(_is_array, arguments)):
                each: Any = np.frompyfunc(function, len(arguments), 1)
                return cast(R, each(*arguments))
            return function(*arguments, **settings)

        return either

    return decorate


def _is_array(value: object) -> bool:
    """Whether NumPy's functions work on something entry by entry; a formula has no entries."""
    return hasattr(value, "__array_ufunc__") and hasattr(value, "__len__")
