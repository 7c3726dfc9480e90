"""Distributed tasks on any executor, answers in the order of the tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, BrokenExecutor, Executor, Future, wait
from functools import lru_cache
from itertools import takewhile
from typing import Any, TypeVar

from sottovoce.errors import InputError, SottovoceError
from sottovoce.progress import Progress, interruptible

Task = TypeVar("Task")
Answer = TypeVar("Answer")

_POLL_SECONDS = 0.2  # between two checks for Ctrl-C
_ENSEMBLE_TASKS = 16  # of an ensemble: enough for a dozen workers


def executor_of(executor: Any) -> Executor:
    """Return what ``executor=`` names: one of ``concurrent.futures``, or a Dask client's."""
    if hasattr(executor, "get_executor"):  # a Dask client; not imported, since few have it
        executor = executor.get_executor(pure=False)
    if isinstance(executor, Executor):
        return executor
    raise InputError(
        "executor must be a concurrent.futures.Executor or a Dask client, got "
        f"{type(executor).__name__}"
    )


def split_runs(runs: int, least: int) -> list[range]:
    """Return the runs 0 .. runs-1 as about 16 ranges of at least ``least`` runs.

    More than there are workers, so that the last ones are not waited for long; few, as each costs
    a kernel's loading.
    """
    size = max(-(-runs // _ENSEMBLE_TASKS), least)
    return [range(first, min(first + size, runs)) for first in range(0, runs, size)]


def scatter(
    executor: Executor,
    work: Callable[[Any, Task], Answer],
    shared: Any,
    tasks: Sequence[Task],
    *,
    report: Progress,
    activity: str,
) -> tuple[list[Answer], bool]:
    """Return ``[work(shared, task) for task in tasks]``, computed by an executor in any order.

    Beside it whether it was interrupted: then only the answers before the first gap are there.
    Ctrl-C cancels what has not begun; a task that a killed worker leaves behind is the executor's
    to run again, as Dask does. ``work`` must be a function of a module.

    ``shared``, what all tasks need, is sent with each and unpacked once per process.

    Raises:
        InputError: if what must travel cannot.
        SottovoceError: if the executor lost its workers.
    """
    try:
        payload = pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"what an executor runs must be picklable, got {error}: define functions at the top "
            "of a module"
        ) from None
    futures: list[Future[Answer]] = []
    try:
        futures += [executor.submit(_unpack_and_call, work, payload, task) for task in tasks]
        waiting = set(futures)
        with interruptible() as stopped:
            while waiting and not stopped.is_set():
                report(activity, 1.0 - len(waiting) / len(futures))
                ended, waiting = wait(waiting, _POLL_SECONDS, FIRST_EXCEPTION)
                for future in ended:
                    future.result()  # raises what the task raised
        complete = takewhile(lambda future: future.done() and not future.cancelled(), futures)
        return [future.result() for future in complete], stopped.is_set()
    except BrokenExecutor as error:
        raise SottovoceError(
            f"executor must keep its workers, got {type(error).__name__}: start it anew; the same "
            "call gives the same result"
        ) from error
    finally:
        for future in futures:
            future.cancel()


def _unpack_and_call(work: Callable[[Any, Task], Answer], payload: bytes, task: Task) -> Answer:
    return work(_unpack(payload), task)


@lru_cache(maxsize=2)
def _unpack(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301 - packed above, by the process that runs the executor
