"""A day of a car park: 1,000 cars that come and go, prices, and what is left for them by the hour.

All figures are round numbers of the size of workplaces with chargers; none was tuned to the
solution. What a car knows of itself is private; prices and the connection's limit are public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sottovoce as sv

Array = NDArray[np.float64]
Public = Mapping[str, Any]

CARS = 1_000
FIRST, RUNS, HORIZON = 5, 18, 12  # a run at 5:00 and every hour after, each for 12 hours
LARGEST_KW = 22.0
WEAR = 0.002  # euro for a kW drawn for an hour, squared
CONNECTION_KW = 2_700.0

# By the hour from midnight: euro per kWh, and the building's own load in kW.
# fmt: off
PRICE = np.array([
    0.080, 0.074, 0.070, 0.068, 0.069, 0.075, 0.092, 0.115, 0.120, 0.108, 0.095, 0.088,
    0.082, 0.078, 0.080, 0.088, 0.102, 0.125, 0.145, 0.150, 0.138, 0.118, 0.102, 0.090])
BUILDING_KW = np.array([
    400, 390, 380, 380, 390, 420, 500, 650, 800, 900, 950, 980,
    1000, 980, 960, 940, 900, 850, 750, 650, 580, 520, 470, 430.0])
# fmt: on
LIMIT = CONNECTION_KW - BUILDING_KW  # kW for all cars together
DAY = np.arange(FIRST, FIRST + RUNS)


def public(hour: int) -> dict[str, Any]:
    """Return the public numbers of the run at ``hour``."""
    planned = (hour + np.arange(HORIZON)) % 24
    return {"hour": hour, "price": PRICE[planned].tolist(), "capacity": LIMIT[planned].tolist()}


@dataclass(frozen=True)
class Cars:
    """What cars know of themselves, a number each."""

    connector: Array  # kW
    come: Array  # the first hour of their stay
    leave: Array  # the first hour after it
    need: Array  # kWh until then

    @staticmethod
    def drawn(seed: int = 0) -> Cars:
        """Draw cars of which three in four stay for a working day, and the others visit."""
        rng = np.random.default_rng(seed)
        works = rng.random(CARS) < 0.75
        come = np.where(works, rng.normal(8.0, 1.2, CARS), rng.uniform(8.0, 18.0, CARS))
        stay = np.where(works, rng.normal(8.5, 1.2, CARS), rng.uniform(2.0, 5.0, CARS))
        come = np.clip(np.floor(come), FIRST, FIRST + RUNS - 3)
        leave = np.minimum(come + np.clip(np.round(stay), 2, HORIZON - 1), FIRST + RUNS)
        connector = rng.choice([3.7, 7.4, 11.0, 22.0], CARS, p=[0.15, 0.45, 0.30, 0.10])
        middle, spread = np.where(works, np.log(14.0), 2.0), np.where(works, 0.5, 0.4)
        wanted = rng.lognormal(middle, spread)
        return Cars(connector, come, leave, np.minimum(wanted, 0.8 * connector * (leave - come)))

    def power(self, hours: NDArray[np.int64], known_at: float = np.inf) -> Array:
        """Return the most that each car can draw in each hour, 0 for who has not come yet, kW."""
        parked = (hours >= self.come[:, None]) & (hours < self.leave[:, None])
        return np.where(parked & (self.come <= known_at)[:, None], self.connector[:, None], 0.0)


def charging(price: Array, limit: Array, need: Array, most: Array, **more: Any) -> sv.Problem:
    """Return the problem: each car gets what it needs within its stay, all keep the limit."""
    ev = sv.agents(
        CARS, dim=len(price), lower=0.0, upper=LARGEST_KW, name="car",
        parameters={"need": need, "most": most},
    )  # fmt: skip
    return sv.Problem(
        objectives=sum(p * x + WEAR * x**2 for p, x in zip(price, ev.x, strict=True)),
        constraints={"capacity": sv.total(ev.x) <= limit},
        local=[sum(ev.x) == ev["need"], ev.x <= ev["most"]],
        **more,
    )


@dataclass
class Lot:
    """The cars of some places through the day; of all others it knows nothing.

    Attributes:
        places: which of the 1,000 cars these are, from 0.
        drawn: the power that each has drawn in each hour of the day so far, kW.
    """

    cars: Cars
    places: NDArray[np.int64] = field(default_factory=lambda: np.arange(CARS))

    def __post_init__(self) -> None:
        self.drawn = np.zeros((CARS, RUNS))
        self._plan = np.zeros((CARS, HORIZON))  # from hour ``_next`` on
        self._next = FIRST

    def problem(self, public: Public) -> sv.Problem:
        """Return what these cars need now, under the public numbers of a run.

        Without an answer a car draws what its last plan said, or the same power while it stays.
        """
        hour = int(public["hour"])
        while self._next < hour:  # a run without an answer
            self.apply(self.safe)
        most = np.zeros((CARS, HORIZON))
        most[self.places] = self.cars.power(hour + np.arange(HORIZON), hour)[self.places]
        left = np.maximum(self.cars.need - self.drawn.sum(axis=1), 0.0)
        left = np.minimum(left, most.sum(axis=1))  # less than it needs if its gateway came late
        plan = np.clip(self._plan, 0.0, most)
        follows = np.abs(plan.sum(axis=1) - left) < 1e-6
        need = np.where(follows, plan.sum(axis=1), left)
        even = np.minimum((need / np.maximum((most > 0).sum(axis=1), 1))[:, None], most)
        self._plan = np.where(follows[:, None], plan, even)
        price, limit = np.array(public["price"]), np.array(public["capacity"])
        return charging(price, limit, need, most, fallback=[self._plan])

    @property
    def safe(self) -> Array:
        """What these cars draw without an answer, kW in each hour of the plan."""
        return self._plan[self.places]

    def apply(self, plan: Array) -> None:
        """Draw the first hour of a plan of these cars, and keep the rest."""
        self.drawn[self.places, self._next - FIRST] = plan[:, 0]
        self._plan[self.places] = np.pad(plan[:, 1:], ((0, 0), (0, 1)))
        self._next += 1


def cost(drawn: Array) -> float:
    """Return what a day of all cars costs, euro."""
    return float(PRICE[DAY] @ drawn.sum(axis=0) + WEAR * (drawn**2).sum())
