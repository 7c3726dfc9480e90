"""Problems ready to run: the paper's, classics with published optima, a coupled one, a fleet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sottovoce.errors import ProblemError
from sottovoce.problem.gallery.chargers import chargers, smart_charging
from sottovoce.problem.gallery.coupled import coupled
from sottovoce.problem.gallery.dispatch import KNOWN as _KNOWN_DISPATCH
from sottovoce.problem.gallery.dispatch import dispatch
from sottovoce.problem.gallery.hock_schittkowski import KNOWN as _KNOWN_HOCK_SCHITTKOWSKI
from sottovoce.problem.gallery.hock_schittkowski import NUMBERS as _NUMBERS
from sottovoce.problem.gallery.hock_schittkowski import hock_schittkowski
from sottovoce.problem.gallery.optimum import KnownOptimum
from sottovoce.problem.gallery.paper import KNOWN as _KNOWN_PAPER
from sottovoce.problem.gallery.paper import paper
from sottovoce.problem.problem import Problem

__all__ = [
    "KnownOptimum",
    "chargers",
    "coupled",
    "dispatch",
    "get",
    "hock_schittkowski",
    "known",
    "names",
    "paper",
    "smart_charging",
]

_PROBLEMS: dict[str, Callable[[], Problem]] = {
    "paper": paper,
    **{f"hs{number}": partial(hock_schittkowski, number) for number in _NUMBERS},
    "coupled": coupled,
    "dispatch": dispatch,
    "chargers": chargers,
    "smart_charging": smart_charging,
}
_KNOWN = {
    "paper": _KNOWN_PAPER,
    "dispatch": _KNOWN_DISPATCH,
    **{f"hs{number}": optimum for number, optimum in _KNOWN_HOCK_SCHITTKOWSKI.items()},
}


def names() -> tuple[str, ...]:
    """Return the names that ``get`` takes."""
    return tuple(_PROBLEMS)


def get(name: str) -> Problem:
    """Return the problem called ``name``, such as ``"paper"`` or ``"hs22"``, as it comes."""
    return _PROBLEMS[_checked(name)]()


def known(name: str) -> KnownOptimum | None:
    """Return the optimum of ``name`` that is known without this library, or None."""
    return _KNOWN.get(_checked(name))


def _checked(name: str) -> str:
    if not isinstance(name, str) or name not in _PROBLEMS:
        raise ProblemError(f"name must be one of {', '.join(_PROBLEMS)}, got {name!r:.60}")
    return name
