"""Problems ready to run: the paper's, classics with published optima, a coupled one, a fleet.

Those that are data stand in ``problems.toml``; fleets of chargers are drawn by ``chargers``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

from sottovoce.errors import ProblemError
from sottovoce.formula.parse import parse_number
from sottovoce.problem.agents import agents
from sottovoce.problem.gallery.chargers import chargers, smart_charging
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

_FLEETS: dict[str, Callable[[], Problem]] = {
    "chargers": chargers,
    "smart_charging": smart_charging,
    "valley_filling": partial(smart_charging, network="valley"),
    "peak_shaving": partial(smart_charging, network="peak"),
    "soft_limit": partial(smart_charging, network="soft"),
}
_OF_STATES = ("dim", "lower", "upper")
_OF_PROBLEM = ("objectives", "constraints", "start", "privacy", "schedule")
_BOOK = "Hock and Schittkowski (1981), problem {}; multipliers from the conditions of optimality"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOptimum:
    """A saddle point from the literature, or in closed form.

    Attributes:
        objective: the optimal ``sum_i f_i``.
        x: x-hat, one number per state.
        mu: mu-hat, one number per constraint.
        tolerance: how far, relative to ``1 + |value|``, the figures above may be off because they
            were printed with few digits.
        source: where the figures come from.
    """

    objective: float
    x: tuple[float, ...]
    mu: tuple[float, ...]
    tolerance: float
    source: str


def names() -> tuple[str, ...]:
    """Return the names that ``get`` takes."""
    return (*_data(), *_FLEETS)


def get(name: str) -> Problem:
    """Return the problem called ``name``, such as ``"paper"`` or ``"hs22"``, as it comes."""
    if _checked(name) in _FLEETS:
        return _FLEETS[name]()
    entry = _data()[name]
    x = agents(
        entry.get("names") or [f"x{i + 1}" for i in range(entry["agents"])],
        **{key: entry[key] for key in _OF_STATES if key in entry},
    )
    return Problem(agents=x, **{key: entry[key] for key in _OF_PROBLEM if key in entry})


def known(name: str) -> KnownOptimum | None:
    """Return the optimum of ``name`` that is known without this library, or None."""
    entry = _data().get(_checked(name), {}).get("optimum")
    if entry is None:
        return None
    return KnownOptimum(
        objective=_figure(entry["objective"]),
        x=tuple(map(_figure, entry["x"])),
        mu=tuple(map(_figure, entry["mu"])),
        tolerance=entry.get("tolerance", 1e-9),
        source=entry.get("source", _BOOK.format(name.removeprefix("hs"))),
    )


def paper() -> Problem:
    """Return the problem of the paper's simulation, with its privacy and step-size settings.

    Minimise ``(x1 - 9)^2 + x1 + (x2 + 4)^4 + (x3 - 1)^8 + x4^2 + x4 + 6 + (x5 + 3)^6
    + (x6 - 7)^2 + (x7 - 5)^2`` over ``[-10, 10]^7`` subject to four constraints. The objective is
    flat to fifth order at ``x5 = -3``, which is the optimum because the only constraint on x5 is
    slack there.
    """
    return get("paper")


def hock_schittkowski(number: int) -> Problem:
    """Return problem ``number`` of the book by Hock and Schittkowski (1981), if it is here."""
    name = f"hs{number}"
    if not isinstance(number, int) or name not in _data():
        numbers = (n.removeprefix("hs") for n in _data() if n.startswith("hs"))
        raise ProblemError(
            f"number must be one of {', '.join(numbers)}, got {number!r:.60}: "
            "the other problems are not convex, or not in this gallery"
        )
    return get(name)


def coupled() -> Problem:
    """Return two vehicles in the plane, a mast and a generator under coupled constraints.

    The vehicles p and q head for opposite corners but must stay in radio range,
    ``sqrt(1 + |p - q|^2) <= 3``; the mast h and the generator s share a stiff joint,
    ``(h + 10 s)^2 + p_1^2 <= 9``; and the soft maximum of loads, ``log(e^p_2 + e^q_1 + e^h) <= 2``,
    is bounded. At 0 all constraints hold strictly, and every objective is strongly convex, so the
    saddle point is unique.
    """
    return get("coupled")


def dispatch() -> Problem:
    """Return an economic dispatch: three generators that must add up to 850 MW, an equality."""
    return get("dispatch")


@cache
def _data() -> dict[str, dict[str, Any]]:
    """The problems that are data, by name."""
    return tomllib.loads(files(__package__).joinpath("problems.toml").read_text(encoding="utf-8"))


def _figure(value: float | str) -> float:
    return parse_number(value) if isinstance(value, str) else float(value)


def _checked(name: str) -> str:
    if not isinstance(name, str) or name not in names():
        raise ProblemError(f"name must be one of {', '.join(names())}, got {name!r:.60}")
    return name
