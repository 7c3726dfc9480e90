"""Work in many places: tasks on any executor, answers in the order of the tasks."""

from __future__ import annotations

import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sottovoce.errors import InputError, SottovoceError
from sottovoce.progress import Progress

Task = TypeVar("Task")
Answer = TypeVar("Answer")

_LOOK_SECONDS = 0.2
_PARTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Scattered(Generic[Answer]):
    """What came back: answers of the first tasks without a gap, and whether that is not all."""

    answers: list[Answer]
    interrupted: bool


def executor_of(given: Any) -> Executor:
    """Return what was given as ``executor=``: one of ``concurrent.futures``, or a Dask client's.

    Raises:
        InputError: if it is something else.
    """
    if isinstance(given, Executor):
        return given
    if hasattr(given, "get_executor"):  # a Dask client; not imported, since few have it
        made = given.get_executor(pure=False)
        if isinstance(made, Executor):
            return made
    raise InputError(
        "executor must be a concurrent.futures.Executor or a Dask client, got "
        f"{type(given).__name__}"
    )


def parts(runs: int, least: int) -> list[range]:
    """Return the runs 0 .. runs-1 as about 16 ranges of at least ``least`` runs.

    More than there are workers, so that the last ones are not waited for long; few, as each costs
    a kernel's loading.
    """
    size = max(-(-runs // _PARTS), least)
    return [range(first, min(first + size, runs)) for first in range(0, runs, size)]


def scatter(
    executor: Executor,
    work: Callable[[Any, Task], Answer],
    shared: Any,
    tasks: Sequence[Task],
    *,
    tell: Progress,
    doing: str,
) -> Scattered[Answer]:
    """Return ``[work(shared, task) for task in tasks]``, computed by an executor in any order.

    Ctrl-C cancels what has not begun; a task that a killed worker leaves behind is the executor's
    to run again, as Dask does. ``work`` must be a function of a module.

    Args:
        executor: where to compute.
        work: what to compute.
        shared: what all tasks need; sent with each, and unpacked once per process.
        tasks: what tells them apart.
        tell: hears how many are done.
        doing: what to call them.

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
        futures += [executor.submit(_call, work, payload, task) for task in tasks]
        interrupted = _await(futures, tell, doing)
        return _gathered(futures, interrupted=interrupted)
    except BrokenExecutor as error:
        raise SottovoceError(
            f"executor must keep its workers, got {type(error).__name__}: start it anew; the same "
            "call gives the same result"
        ) from error
    finally:
        for future in futures:
            future.cancel()


def _await(futures: Sequence[Future[Any]], tell: Progress, doing: str) -> bool:
    """Wait until all are done, one has failed, or it is interrupted; return whether one did."""
    waiting = set(futures)
    with interruptible() as stopped:
        while waiting and not stopped.is_set():
            tell(doing, 1.0 - len(waiting) / len(futures))
            ended, waiting = wait(waiting, _LOOK_SECONDS, FIRST_COMPLETED)
            for future in ended:
                if future.exception() is not None:
                    return False
        return stopped.is_set()


def _gathered(futures: Sequence[Future[Answer]], *, interrupted: bool) -> Scattered[Answer]:
    answers = []
    for future in futures:
        if interrupted and not (future.done() and not future.cancelled()):
            break
        answers.append(future.result())
    return Scattered(answers=answers, interrupted=interrupted)


def _call(work: Callable[[Any, Task], Answer], payload: bytes, task: Task) -> Answer:
    return work(_unpacked(payload), task)


@lru_cache(maxsize=2)
def _unpacked(payload: bytes) -> Any:
    return pickle.loads(payload)  # noqa: S301 - packed above, by whoever runs the executor


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag; the second one interrupts as usual."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(number: int, frame: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, previous)
