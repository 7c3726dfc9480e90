"""Checks of arguments: a check returns the value in its own type, or raises what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError, ProblemError

_T = TypeVar("_T")
_LARGEST = 2**53  # beyond it not every integer is a float64


def whole(
    name: str,
    value: object,
    *,
    least: int = 0,
    most: int = _LARGEST,
    error: type[InputError] = InputError,
) -> int:
    """Return an integer from ``least`` to ``most``; 2.0 is one, True and 2.5 are none."""
    # NaN fails the comparison, before anything is made an integer.
    if not _is_number(value) or not least <= value <= most or int(value) != value:
        unbounded = most == _LARGEST and not (_is_number(value) and value > most)
        limit = f"of at least {least}" if unbounded else f"from {least} to {most}"
        raise error(f"{name} must be an integer {limit}, got {name}={value!r:.60}")
    return int(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def instance(name: str, value: object, kind: type[_T], remedy: str) -> _T:
    """Return a value of a type of sottovoce; ``remedy`` is how to make such a value."""
    if not isinstance(value, kind):
        raise InputError(
            f"{name} must be a {kind.__name__}, got {name}={value!r:.60}: use {remedy}"
        )
    return value


def real(name: str, value: object, requirement: str, holds: Callable[[float], bool]) -> float:
    """Return a number that meets a requirement, such as "positive and finite"."""
    if not _is_number(value) or not holds(float(value)):
        raise InputError(f"{name} must be {requirement}, got {name}={value!r:.60}")
    return float(value)


def entries(name: str, value: object, requirement: str) -> list[Any]:
    """Return the entries of a list, a tuple or another iterable."""
    if isinstance(value, str | bytes) or not np.iterable(value):
        raise InputError(f"{name} must be {requirement}, got {name}={value!r:.60}")
    return list(value)


def array(name: str, value: object, requirement: str) -> NDArray[np.float64]:
    """Return numbers as an array."""
    try:
        return float64_array(value)
    except (TypeError, ValueError, OverflowError):
        # Its type alone: states are private, and messages end up in logs.
        kind = f"{type(value).__name__} {getattr(value, 'dtype', '')}".rstrip()
        raise InputError(f"{name} must be {requirement}, got {kind}") from None


def float64_array(value: Any) -> NDArray[np.float64]:
    """Return a float64 copy of real numbers.

    Raises:
        TypeError, ValueError, OverflowError: for anything else, such as complex numbers, whose
            imaginary parts NumPy would drop.
    """
    if np.iscomplexobj(value):
        raise TypeError("numbers must be real, got complex ones")
    return np.array(value, dtype=np.float64)


def path_of(name: str, value: object) -> Path:
    """Return a path."""
    if not isinstance(value, str | PathLike):
        raise InputError(f"{name} must be a path, got {name}={value!r:.60}")
    return Path(value)


def websocket_address(name: str, value: object) -> str:
    """Return an address of the network, ``wss://host:port``."""
    with suppress(ValueError):  # a port that is not a number
        if isinstance(value, str) and value.startswith("wss://") and urlsplit(value).port != 0:
            return value
    raise InputError(f"{name} must be an address wss://host:port, got {value!r:.60}")


def agent_index(agent: object, count: int, labels: Callable[[], Sequence[str]]) -> int:
    """Return the index, from 0, of one of ``count`` agents, named by its label or its index.

    ``labels`` is called for a label only: a fleet has to make them.
    """
    if not isinstance(agent, str):
        return whole("agent", agent, most=count - 1, error=ProblemError)
    try:
        return labels().index(agent)
    except ValueError:
        raise ProblemError(
            f"agent must be a label, or an integer from 0 to {count - 1}, got {agent!r:.60}"
        ) from None
