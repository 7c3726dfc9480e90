"""The tables ``[privacy]`` and ``[schedule]``: which keys they have and what a value may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, TypeAlias

from sottovoce.errors import ProblemError
from sottovoce.formula.parse import parse_number

Setting: TypeAlias = "bool | int | float | str | list[float | str]"


def check_settings(name: str, given: Any) -> dict[str, Setting]:
    """Return the table ``[name]``, empty for None, as plain numbers, texts and lists."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ProblemError(f"[{name}] must be a table of settings, got {given!r:.60}")
    return {key: check_setting(name, key, value) for key, value in given.items()}


def check_setting(name: str, key: Any, value: Any) -> Setting:
    """Return one value of the table ``[name]`` as a plain number, text or list, or refuse it."""
    known = _TABLES[name]
    if key not in known:
        raise ProblemError(f"[{name}] may have {', '.join(known)}, got {key!r:.60}")
    return known[key](f"{key} of [{name}]", value)


def _number(what: str, value: Any) -> float | str:
    if isinstance(value, str):
        for part in value.split(","):
            parse_number(part, where=what)
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ProblemError(
            f"{what} must be a finite number, or text such as 'ln(3)', got {value!r:.60}"
        )
    return int(value) if isinstance(value, Integral) else float(value)


def _numbers(what: str, value: Any) -> float | str | list[float | str]:
    if isinstance(value, (list, tuple)):
        return [_number(what, entry) for entry in value]
    return _number(what, value)


def _count(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ProblemError(f"{what} must be a whole number of at least 1, got {value!r:.60}")
    return int(value)


def _switch(what: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ProblemError(f"{what} must be true or false, got {value!r:.60}")
    return value


def _one_of(*words: str) -> Callable[[str, Any], str]:
    def check(what: str, value: Any) -> str:
        if value not in words:
            raise ProblemError(f"{what} must be one of {', '.join(words)}, got {value!r:.60}")
        return str(value)

    return check


_TABLES: Mapping[str, Mapping[str, Callable[[str, Any], Setting]]] = {
    "privacy": {
        "epsilon": _numbers,
        "delta": _numbers,
        "radius": _numbers,
        "hide": _one_of("trajectory", "offset", "everything"),
        "rounds": _count,
        "feasible": _number,
        "each_row": _switch,
    },
    "schedule": {
        "algorithm": _one_of("dual-averaging", "tikhonov"),
        "gamma_bar": _number,
        "alpha_bar": _number,
        "c1": _number,
        "c2": _number,
        "rounds": _count,
    },
}
