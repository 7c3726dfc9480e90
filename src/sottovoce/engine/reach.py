"""What plain functions are made of besides their own text: files and numbers of other modules."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np


def reach(given: Iterable[Any]) -> tuple[frozenset[Path], str]:
    """Return the files of all functions that some call, and the numbers and fields that they read.

    A name that is found may turn out to be another's of the same name, an attribute perhaps: then
    too much is named, never too little.

    Args:
        given: functions, and classes of named tuples.
    """
    files, values = set(), set()
    seen: set[Any] = set()
    left = [("", one) for one in given]
    while left:
        name, one = left.pop()
        if isinstance(one, FunctionType) and one not in seen:
            seen.add(one)
            files.add(Path(one.__code__.co_filename))
            left += [(f"{one.__module__}.{one.__name__}.{n}", value) for n, value in _names(one)]
        elif isinstance(one, int | float | tuple | np.generic):
            values.add(f"{name}={one!r}")
        elif hasattr(one, "_fields"):
            values.add(f"{one.__name__}{one._fields}")
    return frozenset(files), " ".join(sorted(values))


def _names(function: FunctionType) -> list[tuple[str, Any]]:
    names, known = function.__code__.co_names, function.__globals__
    found = [(name, known[name]) for name in names if name in known]
    for name, one in tuple(found):
        if isinstance(one, ModuleType):
            found += [(f"{name}.{n}", getattr(one, n)) for n in names if hasattr(one, n)]
    return found
