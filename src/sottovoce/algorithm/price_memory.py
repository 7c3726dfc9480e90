"""What a cloud's run knows of prices: where the next run of a series may begin.

Prices and the learnt slope are functions of noisy sums that were released: using them again costs
no privacy. They are of no use for agents' states: those begin anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.arguments import whole
from sottovoce.errors import InputError
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.groups import Array, read_only

REMEMBERED: Final = 0.5
"""The share of its weight that what was learnt keeps in the next run: all of it is slow to follow a
drift, none of it loses the slope."""
MOST_ROUNDS: Final = 100
"""Rounds that count as done: past those in which prices look for their unit, and few enough that
every round still learns a slope."""

_ENTRY: Final = re.compile(r"(.*)\[\d+\]")


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PriceMemory:
    """Prices after a run and what its cloud learnt, in the units of the sums.

    Attributes:
        labels: what people call the sums, in order.
        rounds: rounds that this was learnt in, those of earlier runs included.
        count: n, how long the model has been right.
        price: the prices of the answer, the first of the next run.
        mean_price: lbar, the recent mean of prices.
        mean_sum: ybar, that of releases.
        aim: u, the point of C last aimed at.
        covariance: C_l, of prices; its diagonal beyond 24 sums.
        response: E, of sums and prices, likewise.
        slope: B, likewise.
    """

    labels: tuple[str, ...]
    rounds: int
    count: float
    price: Array
    mean_price: Array
    mean_sum: Array
    aim: Array
    covariance: Array
    response: Array
    slope: Array

    @property
    def begun(self) -> int:
        """How many rounds count as done."""
        return min(self.rounds, MOST_ROUNDS)

    @property
    def fingerprint(self) -> str:
        """A hash of all of it: the configuration of a run names it."""
        return fingerprint(*(getattr(self, field.name) for field in fields(self)))

    def shifted(self, steps: int) -> PriceMemory:
        """Return it for a horizon that has moved on by so many steps.

        Where sums are a list, ``name[1], name[2], ...``, entry i becomes entry ``i - steps``, and
        what falls out at the beginning comes back at the end: of a day of hours the first becomes
        the same hour of the next day.
        """
        places, lists = np.arange(len(self.labels), dtype=np.int64), dict[str, list[int]]()
        for place, label in enumerate(self.labels):
            if entry := _ENTRY.fullmatch(label):
                lists.setdefault(entry[1], []).append(place)
        longest = max(map(len, lists.values()), default=1)
        if longest == 1:
            raise InputError(
                f"shift must be for sums that are a list, name[1], name[2], ..., got "
                f"{_listed(self.labels)}: leave shift out"
            )
        steps = whole("shift", steps, most=longest - 1)
        for members in lists.values():
            places[members] = np.roll(members, -steps)
        moved: dict[str, Any] = {
            field.name: _permuted(value, places)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), np.ndarray)
        }
        return replace(self, **moved)

    def require_use(self, algorithm: object, labels: Sequence[str]) -> None:
        """Refuse an algorithm that cannot begin with it, or a problem with other sums."""
        if not isinstance(algorithm, DualAveraging):
            raise InputError(
                f"warm_start must be for sv.DualAveraging(), got {algorithm!r:.60}: begin without "
                "warm_start, or use the default algorithm"
            )
        if self.labels != tuple(labels):
            raise InputError(
                f"warm_start must be of a run with the same sums, {_listed(labels)}, got "
                f"{_listed(self.labels)}: begin without warm_start"
            )


def _permuted(values: Array, places: NDArray[np.int64]) -> Array:
    return read_only(values[np.ix_(places, places)] if values.ndim == 2 else values[places])


def _listed(labels: Sequence[str]) -> str:
    more = f", ... ({len(labels)})" if len(labels) > 3 else ""
    return ", ".join(labels[:3]) + more
