"""Many rounds in slices, between which they can be watched, interrupted, saved and resumed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import InputError
from sottovoce.kernels.run_kernel import Task
from sottovoce.problem.agents import Array
from sottovoce.progress import Progress
from sottovoce.simulation.request import SimulationRequest
from sottovoce.simulation.result import read_npz, write_npz
from sottovoce.simulation.scatter import interruptible

_SLICE_SECONDS, _SAVE_SECONDS = 0.25, 10.0
_FIRST_SLICE, _LONGEST_SLICE = 64, 1 << 14  # the longest still has its steps in the cache


class RunDriver(Protocol):
    """Runs in the making, whatever the shape of the problem."""

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """What takes all runs through rounds ``done + 1 .. until``, at the same time if several.

        ``steps`` has two numbers per round, as of ``SimulationRequest.steps``.
        """
        ...

    def arrays(self) -> dict[str, Array]:
        """Everything that rounds change."""
        ...

    def final(self) -> dict[str, NDArray[np.generic]]:
        """Where every run ended, a row each, as a ``Result`` has it.

        The answer ``x, price``; the last iterate ``last_x, last_price``; ``failed``; with a plan
        and prices ``released``, the average of the releases.
        """
        ...

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks."""
        ...

    def released(self, rounds: int) -> Array:
        """The released numbers of the first ``rounds`` rounds."""
        ...


@final
class Checkpoint:
    """A file that is rewritten now and then with all that rounds change.

    Args:
        path: the file; None for none.
        request: a file of another request is refused.
        engine: what to keep.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, request: SimulationRequest, engine: RunDriver
    ) -> None:
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        if not self._path.parent.is_dir():
            raise InputError(f"checkpoint must lie in a folder that exists, got {self._path}")
        self._identity, self._arrays = request.identity(), engine.arrays()
        self._saved = perf_counter()

    def resume(self) -> int:
        """Fill the arrays from the file, if there is one, and return the rounds it had done."""
        if self._path is None or not self._path.exists():
            return 0
        meta, arrays = read_npz(self._path, kind="checkpoint")
        if meta["identity"] != self._identity:
            raise InputError(
                f"checkpoint {self._path} must belong to the same problem, plan, algorithm and "
                "arguments, got one of another simulation: remove it or name another file"
            )
        for name, array in self._arrays.items():
            np.copyto(array, arrays[name])
        return int(meta["done"])

    def save(self, done: int, *, now: bool = False) -> None:
        """Write the file if the last time was a while ago, or in any case if ``now``."""
        if self._path is not None and (now or perf_counter() - self._saved > _SAVE_SECONDS):
            meta = {"kind": "checkpoint", "identity": self._identity, "done": done}
            write_npz(self._path, meta, self._arrays)
            self._saved = perf_counter()


def drive(
    engine: RunDriver,
    request: SimulationRequest,
    checkpoint: str | os.PathLike[str] | None,
    *,
    threads: int,
    tell: Progress,
) -> tuple[int, float]:
    """Advance all runs to the last round, in slices of about a quarter of a second.

    Slices do not change results. Ctrl-C ends after the slice at hand.

    Returns:
        The rounds done, and the seconds that they took.
    """
    keeper, rounds = Checkpoint(checkpoint, request, engine), request.rounds
    done, start, size = keeper.resume(), perf_counter(), _FIRST_SLICE
    with ThreadPoolExecutor(threads) as pool, interruptible() as stopped:
        tell(f"round {done:,} of {rounds:,}", done / rounds)
        while done < rounds and not stopped.is_set():
            until = min(rounds, done + size)
            began = perf_counter()
            steps = request.steps(np.arange(done + 1, until + 1))
            _perform(engine.tasks(done, until, steps), pool)
            done = until
            size = _next_size(size, perf_counter() - began)
            keeper.save(done)
            tell(f"round {done:,} of {rounds:,}", done / rounds)
    seconds = perf_counter() - start
    keeper.save(done, now=True)
    return done, seconds


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
