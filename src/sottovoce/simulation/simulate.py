"""``simulate``: rounds on a problem, in slices between which they are watched and saved."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps, require_algorithm
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.arguments import instance, whole
from sottovoce.errors import InputError
from sottovoce.kernels.core.plain import LANES
from sottovoce.kernels.run_kernel import Task
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.releases import release_of
from sottovoce.problem.agents import Array
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, silent, watched
from sottovoce.simulation.request import (
    SimulationRequest,
    known_pair,
    planned_rounds,
    recorded_rounds,
    require_simulable,
    start_prices,
    start_states,
)
from sottovoce.simulation.result import (
    QUANTITIES,
    Result,
    Trace,
    Transcript,
    read_npz,
    write_npz,
)
from sottovoce.simulation.runs import Layout, Runs, layout_of
from sottovoce.simulation.scatter import executor_of, interruptible, parts, scatter

_Part = TypeVar("_Part", Result, Trace, Transcript)
_SLICE_SECONDS, _SAVE_SECONDS = 0.25, 10.0
_DEFAULT: Algorithm = DualAveraging()
_FIRST, _LONGEST = 64, 1 << 14  # rounds of a slice; the longest still has its steps in the cache


def simulate(
    problem: Problem,
    plan: NoisePlan | None = None,
    *,
    rounds: int | None = None,
    runs: int = 1,
    seed: int = 0,
    algorithm: Algorithm | None = None,
    x0: ArrayLike | None = None,
    mu0: ArrayLike | None = None,
    record: ArrayLike | None = None,
    transcript: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: bool | Progress | None = None,
    saddle: tuple[ArrayLike, ArrayLike] | None = None,
    executor: Executor | Any = None,
) -> Result:
    """Run rounds k = 1, 2, ... from x(1) = x0 and prices 0.

    ``lambda(k+1) = cloud_round(s(x(k)) + w(k))``, then ``x_i(k+1) = argmin over X_i of
    f_i + lambda(k+1)'h_i``, proximal; or gradient steps of both. Noise is
    pseudo-random and repeatable, so a simulation keeps nothing private.

    Args:
        problem: what to solve.
        plan: the noise; without a plan there is none, and the result says so.
        rounds: how many rounds; by default those that the plan's ``hide`` names.
        runs: how many independent runs; run r depends on (seed, r) alone.
        seed: any integer that is not negative.
        algorithm: ``DualAveraging()`` by default; ``paper.Tikhonov()`` takes gradient steps.
        x0: all states in one vector, projected onto the plan's domain; the problem's start by
            default.
        mu0: for gradient steps, multipliers at the start, 0 by default. Plain numbers: they
            must not depend on an agent's state, since no noise hides them.
        record: after how many rounds to measure; by default about 1,000, log-spaced.
        transcript: whether to keep every released number (small solves only).
        checkpoint: a file to save to every few seconds and to resume from if it exists.
        threads: the largest number of threads; the processor's by default. Results do not depend
            on it.
        progress: whether to show what is being done once it has taken two seconds, by default on a
            terminal; or a callback.
        saddle: x_hat and the prices there if known; otherwise computed for problems that are not
            large.
        executor: where to run, a ``concurrent.futures.Executor`` or a Dask client; here by
            default. Results do not depend on it. Interrupted, the runs that are complete are kept.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    if plan is not None:
        instance("plan", plan, NoisePlan, "sv.plan(certificate, ...)")
    steps = _DEFAULT if algorithm is None else require_algorithm(algorithm)
    team, gradient = _threads(threads), isinstance(steps, GradientSteps)
    count = whole("rounds", planned_rounds(plan) if rounds is None else rounds, least=1)
    pool = None if executor is None else executor_of(executor)
    if pool is not None and checkpoint is not None:
        raise InputError(
            "checkpoint must be left out with executor, got both: parts of an ensemble are short"
        )
    require_simulable(problem, plan, steps, count)
    with watched(progress) as tell:
        # Now: hashing a large fleet takes memory that states need later.
        name = problem.fingerprint
        tell("finding the saddle point")
        request = SimulationRequest(
            problem=problem,
            plan=plan,
            algorithm=steps,
            rounds=count,
            runs=whole("runs", runs, least=1),
            seed=whole("seed", seed, most=2**128),
            start=start_states(problem, x0),
            price0=start_prices(problem, mu0, gradient=gradient),
            saddle=known_pair(problem, saddle, gradient=gradient),
            marks=recorded_rounds(record, count),
            transcript=transcript,
        )
        if pool is not None:
            result = _scattered(request, pool, threads or 1, tell)
        else:
            result = _execute(request, team, tell, checkpoint)
        # Only now: parts of an ensemble need not carry the problem back with them.
        return replace(result, origin=request, fingerprint=name)


def _execute(
    request: SimulationRequest,
    threads: int,
    tell: Progress,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Result:
    """Run all rounds here."""
    tell("laying out agents")
    layout = layout_of(request)
    engine: RunDriver
    if isinstance(request.algorithm, GradientSteps) and not layout.kernels:
        engine = release_of(request.algorithm.release).engine(request, layout)
    else:
        engine = Runs(request, layout, threads)
    keeper = None
    if checkpoint is not None:
        keeper = Checkpoint(checkpoint, _identity(request, layout), engine.arrays())
    done, seconds = _drive(engine, request, keeper, threads=threads, tell=tell)
    final: dict[str, Any] = dict(engine.final())
    records = int(np.searchsorted(request.marks, done, side="right"))
    traced = {name: engine.trace[:, :records, q].copy() for q, name in enumerate(QUANTITIES)}
    hat_x, hat_price = (None, None) if request.saddle is None else request.saddle
    return Result(
        **final,
        rounds=done,
        requested=request.rounds,
        seed=request.seed,
        algorithm=repr(request.algorithm),
        noise=layout.words,
        fingerprint="",
        confirmed=_confirmed(request, done, final.get("released"), final["failed"]),
        interrupted=done < request.rounds,
        seconds=seconds,
        saddle_x=hat_x,
        saddle_price=hat_price,
        trace=Trace(k=request.marks[:records].copy(), **traced),
        transcript=_transcript(layout, engine.transcript[:, :done]) if request.transcript else None,
    )


def _scattered(
    request: SimulationRequest, executor: Executor, threads: int, tell: Progress
) -> Result:
    """Run the rounds where an executor wants to, some of the runs in each task."""
    began, runs = perf_counter(), request.runs
    tasks = [(part, threads) for part in parts(runs, least=LANES if request.gradient else 1)]
    doing = f"{runs:,} runs elsewhere"
    results, interrupted = scatter(executor, _part, request, tasks, tell=tell, doing=doing)
    return _joined(results, interrupted=interrupted, seconds=perf_counter() - began)


def _part(request: SimulationRequest, task: tuple[range, int]) -> Result:
    """Some of the runs, in whatever process; each depends on (seed, r) alone."""
    numbers, threads = task
    some = replace(request, first=numbers.start, runs=len(numbers))
    return _execute(some, threads, silent)


def _joined(results: Sequence[Result], *, interrupted: bool, seconds: float) -> Result:
    """Return the runs of all parts as one result.

    Raises:
        KeyboardInterrupt: if there is none, because it was stopped before the first was done.
    """
    complete = [result for result in results if not result.interrupted]
    if not complete:
        raise KeyboardInterrupt
    first = complete[0]
    transcripts = [result.transcript for result in complete if result.transcript is not None]
    runs = ("x", "price", "last_x", "last_price", "failed", "released", "confirmed")
    return replace(
        _concatenated(complete, [name for name in runs if getattr(first, name) is not None]),
        interrupted=interrupted or len(complete) < len(results),
        seconds=seconds,
        trace=_concatenated([result.trace for result in complete], QUANTITIES),
        transcript=_concatenated(transcripts, ("y", "gradients")) if transcripts else None,
    )


def _concatenated(parts: Sequence[_Part], names: Sequence[str]) -> _Part:
    """The first part, with arrays of all."""
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in names
    }
    return replace(parts[0], **arrays)


def _threads(wanted: int | None) -> int:
    if wanted is not None:
        return whole("threads", wanted, least=1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _confirmed(
    request: SimulationRequest, done: int, released: Any, failed: NDArray[np.int64]
) -> NDArray[np.bool_] | None:
    """Which answers may be applied; a run that failed or was cut short has none."""
    plan = request.plan
    if plan is None or plan.feasible is None or released is None:
        return None
    fine = plan.feasible.confirmed(released) & (failed == 0)
    return np.asarray(fine & (done == request.rounds))


def _transcript(layout: Layout, released: Array) -> Transcript:
    entries = np.array(list(layout.entries), dtype=np.int64).reshape(-1, 2)
    y, gradients = np.split(released, [layout.sigma.size], axis=2)
    rows, columns = entries.T
    return Transcript(
        y=y.copy(), gradients=gradients.copy(), rows=rows.copy(), columns=columns.copy()
    )


def _identity(request: SimulationRequest, layout: Layout) -> str:
    """A hash of everything that results depend on."""
    s, entries, public = request, layout.entries, layout.public
    return fingerprint(
        s.problem.fingerprint,
        repr(s.algorithm),
        (s.rounds, s.runs, s.first, s.seed, s.transcript),
        (np.array(list(entries), dtype=np.int64), list(entries.values())),
        (s.start, s.price0, layout.domain, layout.sigma, s.saddle, s.marks),
        (public.lower, public.upper, public.unit, public.noisy),
    )


class RunDriver(Protocol):
    """Runs in the making, whatever the shape of the problem."""

    @property
    def trace(self) -> Array:
        """What was measured, shape (runs, marks, ``QUANTITIES``)."""
        ...

    @property
    def transcript(self) -> Array:
        """Every released number, shape (runs, rounds, numbers); no rounds if they are not kept."""
        ...

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


@final
class Checkpoint:
    """A file that is rewritten now and then with all that rounds change.

    Args:
        path: the file.
        identity: a file of another simulation is refused.
        arrays: what rounds change.
    """

    def __init__(
        self, path: str | os.PathLike[str], identity: str, arrays: dict[str, Array]
    ) -> None:
        self._path, self._identity, self._arrays = Path(path), identity, arrays
        self._saved = perf_counter()
        if not self._path.parent.is_dir():
            raise InputError(f"checkpoint must lie in a folder that exists, got {self._path}")

    def resume(self) -> int:
        """Fill the arrays from the file, if there is one, and return the rounds it had done."""
        if not self._path.exists():
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

    def save(self, done: int, *, now: bool) -> None:
        """Write the file if the last time was a while ago, or in any case if ``now``."""
        if now or perf_counter() - self._saved > _SAVE_SECONDS:
            meta = {"kind": "checkpoint", "identity": self._identity, "done": done}
            write_npz(self._path, meta, self._arrays)
            self._saved = perf_counter()


def _drive(
    engine: RunDriver,
    request: SimulationRequest,
    checkpoint: Checkpoint | None,
    *,
    threads: int,
    tell: Progress,
) -> tuple[int, float]:
    """Advance all runs to the last round, in slices of about a quarter of a second.

    Slices do not change results. Ctrl-C ends after the slice at hand.

    Returns:
        The rounds done, and the seconds that they took.
    """
    done, rounds, size = 0 if checkpoint is None else checkpoint.resume(), request.rounds, _FIRST
    start = perf_counter()
    with ThreadPoolExecutor(threads) as pool, interruptible() as stopped:
        tell(f"round {done:,} of {rounds:,}", done / rounds)
        while done < rounds and not stopped.is_set():
            until, began = min(rounds, done + size), perf_counter()
            tasks = engine.tasks(done, until, request.steps(np.arange(done + 1, until + 1)))
            if len(tasks) == 1:
                # Here: a thread takes longer to wake than small problems take for a slice.
                tasks[0]()
            else:
                list(pool.map(lambda task: task(), tasks))
            done, taken = until, perf_counter() - began
            size = _next_size(size, taken)
            if checkpoint is not None:
                checkpoint.save(done, now=False)
            tell(f"round {done:,} of {rounds:,}", done / rounds)
    seconds = perf_counter() - start
    if checkpoint is not None:
        checkpoint.save(done, now=True)
    return done, seconds


def _next_size(size: int, seconds: float) -> int:
    wanted = size * min(4.0, _SLICE_SECONDS / max(seconds, 1e-9))
    return int(max(1.0, min(wanted, _LONGEST)))
