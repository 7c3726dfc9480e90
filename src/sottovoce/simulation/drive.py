"""Many rounds in slices, so that somebody can watch, interrupt and resume them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import numpy as np

from sottovoce.problem.agents import Array
from sottovoce.progress import Progress
from sottovoce.simulation.interrupt import interruptible

Task: TypeAlias = Callable[[], None]
"""Rounds of some runs, or a thread's part in those of one."""

_SLICE_SECONDS = 0.25
_FIRST_SLICE, _LONGEST_SLICE = 64, 1 << 14  # the longest still has its steps in the cache


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Final:
    """Where runs ended, one row per run: the answer, the last iterate, the round of failure or 0.

    The answer is the average of the released iterates if the algorithm makes one; ``released`` is
    that of the releases then, None without a plan.
    """

    x: Array
    price: Array
    last_x: Array
    last_price: Array
    failed: Any
    released: Array | None = None


class Engine(Protocol):
    """Runs in the making, whatever the shape of the problem."""

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """What takes all runs through rounds ``done + 1 .. until``, at the same time if several."""
        ...

    def arrays(self) -> dict[str, Any]:
        """Everything that rounds change."""
        ...

    def final(self) -> Final:
        """Where every run ended."""
        ...

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks."""
        ...

    def released(self, rounds: int) -> Array:
        """The released numbers of the first ``rounds`` rounds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """How a drive ended: rounds done, whether somebody stopped it, and the seconds it took."""

    done: int
    interrupted: bool
    seconds: float


def drive(
    engine: Engine,
    schedule: Callable[[Any], Array],
    *,
    done: int,
    rounds: int,
    threads: int,
    tell: Progress,
    save: Callable[[int], None],
) -> Drive:
    """Advance all runs from ``done`` to ``rounds``, in slices of about a quarter of a second.

    ``schedule`` gives the numbers of rounds k, a row each. Slices do not change results. Ctrl-C
    ends after the slice at hand. After every slice ``save`` is called with the rounds done, and
    ``tell`` hears of them.
    """
    start, size = perf_counter(), _FIRST_SLICE
    with ThreadPoolExecutor(threads) as pool, interruptible() as stopped:
        tell(f"round {done:,} of {rounds:,}", done / rounds)
        while done < rounds and not stopped.is_set():
            until = min(rounds, done + size)
            began = perf_counter()
            steps = schedule(np.arange(done + 1, until + 1)).ravel()
            _perform(engine.tasks(done, until, steps), pool)
            done = until
            size = _next_size(size, perf_counter() - began)
            save(done)
            tell(f"round {done:,} of {rounds:,}", done / rounds)
    return Drive(done=done, interrupted=done < rounds, seconds=perf_counter() - start)


def _perform(tasks: Sequence[Task], pool: Executor) -> None:
    if len(tasks) == 1:
        # Here: a thread takes longer to wake than small problems take for all rounds of a slice.
        tasks[0]()
        return
    for future in [pool.submit(task) for task in tasks]:
        future.result()


def _next_size(size: int, seconds: float) -> int:
    wanted = size * min(4.0, _SLICE_SECONDS / max(seconds, 1e-9))
    return int(max(1.0, min(wanted, _LONGEST_SLICE)))
