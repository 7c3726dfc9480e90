"""Problems ready to run: the paper's, classics with published optima, a coupled one, a fleet.

Those that are data stand in ``problems.toml``; fleets of chargers are drawn from a seed. All
figures of these are round numbers of the size found in public statistics for European homes; none
was tuned to the solution.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np

from sottovoce.arguments import whole
from sottovoce.errors import ProblemError
from sottovoce.formula.functions import maximum, pos, sum_squares
from sottovoce.formula.parse import parse_number
from sottovoce.problem.agents import agents
from sottovoce.problem.constraints import total
from sottovoce.problem.groups import Array
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

FIRST_HOUR = 17
CONNECTOR_KW = (3.7, 7.4, 11.0, 22.0)
CONNECTOR_SHARE = (0.15, 0.45, 0.30, 0.10)
NETWORK_KW_PER_HOME = 2.0
"""What low-voltage networks are commonly designed to carry per home, diversity included."""

# By the hour of the day, from midnight: a working day's household load in kW per home, and a
# day-ahead price in euro per kWh.
# fmt: off
HOME_KW = (0.35, 0.30, 0.28, 0.27, 0.27, 0.30, 0.42, 0.60, 0.62, 0.55, 0.52, 0.52,
           0.56, 0.54, 0.50, 0.50, 0.56, 0.72, 0.90, 0.98, 0.92, 0.80, 0.62, 0.46)
PRICE = (0.080, 0.074, 0.070, 0.068, 0.069, 0.075, 0.092, 0.115, 0.120, 0.108, 0.095, 0.088,
         0.082, 0.078, 0.080, 0.088, 0.102, 0.125, 0.145, 0.150, 0.138, 0.118, 0.102, 0.090)
# fmt: on
NETWORKS = ("capacity", "valley", "peak", "soft")
VALLEY, PEAK, SOFT = 0.05, 2.0, 0.1
"""Euro per kW squared and home, per kW, and per kWh: of the size of network tariffs."""
SOFT_KW_PER_HOME = 1.0
WEAR = 0.002  # cost of a kW drawn for an hour, squared, in euro: losses and the battery's ageing

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


def chargers(n: int = 100, *, seed: int = 0, hours: int = 24) -> Problem:
    """Return n chargers that plan ``hours`` hours from 17:00, ``x_i[t]`` kW in hour t.

    ``f_i(x) = sum_t (price_t x[t] + wear x[t]^2) + value_i (sum_t x[t] - need_i)^2`` over
    ``0 <= x[t] <= limit_i`` while the car is parked and ``x[t] = 0`` while it is away, subject to
    ``sum_i x_i[t] <= capacity[t]``: what the network leaves after n homes' own load.

    Args:
        n: number of chargers, one per home; a million takes a second or two to state.
        seed: draws connectors, arrivals, departures, energy needs and their urgency.
        hours: length d of the plan; every state has this dimension.
    """
    n = whole("n", n, least=1, error=ProblemError)
    hours = whole("hours", hours, least=1, most=100_000, error=ProblemError)
    seed = whole("seed", seed, error=ProblemError)
    rng = np.random.default_rng(seed)
    limit = rng.choice(CONNECTOR_KW, size=n, p=CONNECTOR_SHARE)
    arrival = np.clip(np.floor(rng.normal(1.0, 1.5, n)), 0, hours - 1)
    departure = np.clip(np.floor(rng.normal(14.5, 1.2, n)), arrival + 1, hours)
    wanted = np.clip(rng.lognormal(np.log(8.0), 0.6, n), 1.0, 60.0)
    ev = agents(
        n,
        name="ev",
        dim=hours,
        lower=0.0,
        upper=_limits(limit, arrival, departure, hours),
        parameters={
            "need": np.minimum(wanted, 0.9 * limit * (departure - arrival)),
            "value": rng.uniform(0.2, 0.5, n),
        },
    )
    x = list(np.atleast_1d(ev.x))
    clock = (FIRST_HOUR + np.arange(hours)) % 24
    price = np.take(PRICE, clock)
    cost = sum((p * x_t + WEAR * x_t**2 for p, x_t in zip(price, x, strict=True)))
    unmet = (sum(x) - ev["need"]) ** 2
    capacity = n * (NETWORK_KW_PER_HOME - np.take(HOME_KW, clock))
    return Problem(
        objectives=cost + ev["value"] * unmet,
        constraints={"capacity": total(x) <= capacity},
        start=[0.0],
    )


def smart_charging(
    n: int = 100, *, seed: int = 0, hours: int = 24, network: str = "capacity"
) -> Problem:
    """Return the same chargers with what each must reach as its own private set.

    ``f_i(x) = sum_t (price_t x[t] + wear x[t]^2)`` with ``sum_t x[t] = need_i`` exactly and
    ``x[t] <= limit_i[t]``, which is 0 while the car is away: energy needs, connectors and when
    cars are parked stay with the charger. Public is that no charger draws more than 22 kW, and
    what the load ``l_t = n home_t + sum_i x_i[t]`` costs the network:

        capacity    nothing, but ``l_t <= 2 n`` kW
        valley      ``0.05 sum_t l_t^2 / n`` euro: the load fills the valley of the night
        peak        2 euro per kW of ``max_t l_t``
        soft        0.1 euro per kWh of ``l_t`` above 1 kW per home

    Args:
        n: number of chargers, one per home.
        seed: draws connectors, arrivals, departures and energy needs.
        hours: length d of the plan, two at least.
        network: what the load must keep to, or costs, as above.
    """
    if network not in NETWORKS:
        raise ProblemError(f"network must be one of {', '.join(NETWORKS)}, got {network!r:.60}")
    base = chargers(n, seed=seed, hours=whole("hours", hours, least=2, error=ProblemError))
    capacity = -base.constraints[0].offset
    need = {s.name: values for s, values in base.groups[0].parameters.items()}["need"]
    parameters = {"need": need, "limit": base.groups[0].upper}
    ev = agents(n, name="ev", dim=hours, lower=0.0, upper=max(CONNECTOR_KW), parameters=parameters)
    del base, parameters  # a million chargers' limits are 0.2 GB
    x = list(ev.x)
    price = np.take(PRICE, (FIRST_HOUR + np.arange(hours)) % 24)
    cost = sum((p * x_t + WEAR * x_t**2 for p, x_t in zip(price, x, strict=True)))
    window = zip(x, ev["limit"], strict=True)
    load = n * NETWORK_KW_PER_HOME - capacity + total(x)
    stated: dict[str, Any] = {"constraints": {"capacity": total(x) <= capacity}}
    if network == "valley":
        stated = {"cost": VALLEY / n * sum_squares(load)}
    elif network == "peak":
        stated = {"cost": PEAK * maximum(*load)}
    elif network == "soft":
        stated = {"cost": SOFT * sum(pos(load - n * SOFT_KW_PER_HOME))}
    return Problem(
        objectives=cost,
        **stated,
        local=[sum(x) == ev["need"], *(x_t <= limit for x_t, limit in window)],
    )


def _limits(limit: Array, arrival: Array, departure: Array, hours: int) -> Array:
    slot = np.arange(hours, dtype=np.float32)
    parked = slot >= arrival.astype(np.float32)[:, np.newaxis]
    parked &= slot < departure.astype(np.float32)[:, np.newaxis]
    return limit[:, np.newaxis] * parked


_FLEETS: dict[str, Callable[[], Problem]] = {
    "chargers": chargers,
    "smart_charging": smart_charging,
    "valley_filling": partial(smart_charging, network="valley"),
    "peak_shaving": partial(smart_charging, network="peak"),
    "soft_limit": partial(smart_charging, network="soft"),
}
