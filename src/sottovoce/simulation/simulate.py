"""``simulate``: rounds on a problem, in slices between which they are watched and saved."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithm.algorithm import (
    Algorithm,
    GradientSteps,
    require_algorithm,
    require_release,
)
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.arguments import array, entries, instance, whole
from sottovoce.errors import InputError
from sottovoce.kernels.core.plain import LANES
from sottovoce.privacy.averaging import answer_shares
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.groups import Array
from sottovoce.problem.local import read_start, require_no_rows
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, interruptible, silent, watched
from sottovoce.simulation.result import (
    QUANTITIES,
    SADDLE_STATES,
    Result,
    Trace,
    Transcript,
    read_npz,
    write_npz,
)
from sottovoce.simulation.runs import Layout, Runs, Saddle, SimulationRequest, layout_of
from sottovoce.simulation.scatter import executor_of, scatter, split_runs

_Part = TypeVar("_Part", Result, Trace, Transcript)
_SLICE_SECONDS = 0.25  # between checks for Ctrl-C, reports of progress and checkpoints
_FIRST_SLICE = 64  # rounds
_SAVE_SECONDS = 10.0  # between two savings of a checkpoint
_LONGEST_SLICE = 1 << 14  # rounds, whose steps still fit in the cache
_DEFAULT_RECORDS = 1000
_MOST_TRANSCRIPT_NUMBERS = 100_000_000
_COMPARED_ROUNDS = 100_000  # whose weights are compared with those that margins are for
_DEFAULT_ALGORITHM: Algorithm = DualAveraging()
_PER_RUN_ARRAYS = ("x", "price", "last_x", "last_price", "failed", "released", "confirmed")
"""The fields of a ``Result`` with an entry per run."""


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
    warm_start: Result | PriceMemory | None = None,
    record: ArrayLike | None = None,
    transcript: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: bool | Progress | None = None,
    saddle: tuple[ArrayLike, ArrayLike] | None = None,
    executor: Executor | Any = None,
) -> Result:
    """Run rounds k = 1, 2, ... from x(1) = x0 and prices 0, or those of ``warm_start``.

    ``lambda(k+1) = cloud_round(s(x(k)) + w(k))``, then ``x_i(k+1) = argmin over X_i of
    f_i + lambda(k+1)'h_i``, proximal; or gradient steps of both. The noise comes from a seed, so a
    simulation keeps nothing private.

    Args:
        problem: what to solve.
        plan: the noise; without a plan there is none, and the result says so.
        rounds: how many rounds; by default those that the plan's ``hide`` names.
        runs: how many independent runs; run r depends on (seed, r) alone.
        seed: any integer that is not negative.
        algorithm: ``DualAveraging()`` by default; ``paper.Tikhonov()`` takes gradient steps.
        x0: all states in one vector, projected onto the plan's domain; by default the problem's.
        mu0: multipliers at the start of gradient steps, 0 by default; they must not depend on an
            agent's state, since no noise hides them.
        warm_start: an earlier result with the same sums, or its ``warm_start(shift=...)``: prices
            and what was learnt of them, of its first run, for all runs. Agents begin anew.
        record: after how many rounds to measure; by default about 1,000, log-spaced.
        transcript: whether to keep every released number.
        checkpoint: a file to save to every few seconds and to resume from if it exists.
        threads: how many at most; by default the processor's. Results do not depend on it.
        progress: whether to show progress after two seconds, by default on a terminal; or a
            callback.
        saddle: x_hat and the prices there if known; else computed unless the problem is large.
        executor: where to run, a ``concurrent.futures.Executor`` or a Dask client; here by
            default. Results do not depend on it. Interrupted, the runs that are complete are kept.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    chosen = _DEFAULT_ALGORITHM if algorithm is None else require_algorithm(algorithm)
    thread_count, gradient = _count_threads(threads), isinstance(chosen, GradientSteps)
    pool = None if executor is None else executor_of(executor)
    if pool is not None and checkpoint is not None:
        raise InputError(
            "checkpoint must be left out with executor, got both: parts of an ensemble are short"
        )
    round_count = _count_rounds(plan, rounds)
    _require_simulable(problem, plan, chosen, round_count)
    warm = warm_start.warm_start() if isinstance(warm_start, Result) else warm_start
    if warm is not None:
        instance("warm_start", warm, PriceMemory, "an earlier result of sv.simulate")
        warm.require_use(chosen, problem.cloud.sums.labels)
    request = SimulationRequest(
        problem=problem,
        plan=plan,
        algorithm=chosen,
        rounds=round_count,
        runs=whole("runs", runs, least=1),
        seed=whole("seed", seed, most=2**128),
        start=problem.start if x0 is None else _read_start_states(problem, x0),
        price0=_check_start_prices(problem, mu0, gradient=gradient),
        marks=_check_recorded_rounds(record, round_count),
        transcript=transcript,
        warm=warm,
    )
    with watched(progress) as report:
        report("laying out agents")
        # Before the saddle point, whose refusal would blame the constraints for empty boxes.
        layout = layout_of(problem, plan, gradient=gradient, lanes=request.lanes)
        if transcript:
            _require_short_transcript(request, layout)
        report("finding the saddle point")
        request = replace(request, saddle=_find_saddle(problem, saddle, gradient=gradient))
        if pool is not None:
            result = _execute_distributed(request, pool, threads or 1, report)
        else:
            result = _execute(request, layout, thread_count, report, checkpoint)
        # Only now: parts of an ensemble need not carry the problem back with them.
        return replace(result, origin=request)


def _count_rounds(plan: NoisePlan | None, rounds: int | None) -> int:
    """Return how many rounds to simulate, by default those that the plan names."""
    if plan is not None:
        instance("plan", plan, NoisePlan, "sv.plan(certificate, ...)")
        rounds = plan.named_rounds() if rounds is None else rounds
    elif rounds is None:
        raise InputError("rounds must be given without a plan, got none: say rounds=1000")
    return whole("rounds", rounds, least=1)


def _require_short_transcript(request: SimulationRequest, layout: Layout) -> None:
    rounds, runs, outputs = request.rounds, request.runs, layout.released
    if rounds * runs * outputs > _MOST_TRANSCRIPT_NUMBERS:
        raise InputError(
            f"transcript must have at most {_MOST_TRANSCRIPT_NUMBERS:,} numbers, got rounds x runs "
            f"x outputs = {rounds} x {runs} x {outputs}: ask for fewer rounds or runs"
        )


def _require_simulable(
    problem: Problem, plan: NoisePlan | None, algorithm: Algorithm, rounds: int
) -> None:
    """Refuse an algorithm or a plan that does not fit the problem, or each other."""
    if isinstance(algorithm, GradientSteps):
        require_steppable(problem)
    if plan is None:
        return
    plan.require_problem(problem)
    if rounds > plan.rounds:
        raise InputError(
            f"rounds must be at most what the plan covers ({plan.rounds:,}), got {rounds:,}: plan "
            f"again with hide=sv.Trajectory(..., rounds={rounds})"
        )
    require_release(plan, algorithm, simulated=True)
    if plan.feasible is not None:
        _require_averages(plan, algorithm, rounds)


def require_steppable(problem: Problem) -> None:
    """Refuse gradient steps where the paper's algorithm has none: local rows, equalities, code."""
    require_no_rows(problem.local)
    if problem.cloud.cost is not None:
        raise InputError("gradient steps know no public cost, got one: use the default algorithm")
    if any(family.equality for family in problem.constraints):
        raise InputError("gradient steps know no equalities, got one: use the default algorithm")
    if any(code is not None for code in problem.code):
        raise InputError(
            "an objective that is code needs an algorithm with prices, got gradient steps: use "
            "the default algorithm"
        )


def _require_averages(plan: NoisePlan, algorithm: Algorithm, rounds: int) -> None:
    """Refuse answers that are other averages than the plan's margins are for."""
    if rounds != plan.rounds:
        raise InputError(
            f"rounds must be what the plan covers ({plan.rounds:,}) with feasible, whose margins "
            f"are for an average of so many, got {rounds:,}: plan again with them in hide="
        )
    if isinstance(algorithm, GradientSteps):
        raise InputError(
            "feasible needs an algorithm with prices, whose answer is an average of what was "
            "released, got gradient steps: use the default algorithm"
        )
    first = np.arange(1, min(rounds, _COMPARED_ROUNDS) + 1)
    if not np.array_equal(algorithm.share(first, rounds, noisy=True), answer_shares(first, rounds)):
        raise InputError(
            "feasible needs the default weights of rounds, got others: let share of "
            f"{type(algorithm).__name__} return answer_shares(k, rounds) of "
            "sottovoce.privacy.averaging"
        )


# The saddle point belongs to the problem, with prices or with multipliers.
_saddles: WeakKeyDictionary[Problem, dict[bool, Saddle | None]] = WeakKeyDictionary()


def _find_saddle(
    problem: Problem, pair: tuple[ArrayLike, ArrayLike] | None, *, gradient: bool
) -> Saddle | None:
    """Return x_hat and the prices there: the pair given, or computed for problems not too large."""
    if pair is not None:
        count = problem.rows if gradient else problem.cloud.sums.count
        return _check_saddle(problem, pair, count)
    saddles = _saddles.setdefault(problem, {})
    if gradient not in saddles:
        from sottovoce.certificate.optimum import known_saddle, saddle_prices

        optimum, saddle = known_saddle(problem, most=SADDLE_STATES), None
        if optimum is not None:
            prices = optimum.mu if gradient else saddle_prices(problem, optimum)
            saddle = np.array(optimum.x), np.array(prices)
        saddles[gradient] = saddle
    return saddles[gradient]


def _check_saddle(problem: Problem, pair: tuple[ArrayLike, ArrayLike], rows: int) -> Saddle:
    requirement = f"a pair of {problem.size} states and {rows} prices"
    both = entries("saddle", pair, requirement)
    if len(both) != 2:
        raise InputError(f"saddle must be {requirement}, got {len(both)} entries")
    x, prices = (array("saddle", values, requirement) for values in both)
    if x.shape != (problem.size,) or prices.shape != (rows,):
        raise InputError(f"saddle must be {requirement}, got shapes {x.shape} and {prices.shape}")
    return x, prices


def _read_start_states(problem: Problem, x0: ArrayLike) -> tuple[Array, ...]:
    """Take one vector of all states apart by group."""
    states = zip(problem.cloud.split_states("x0", x0), problem.groups, strict=True)
    return tuple(read_start(x, group, "x0") for x, group in states)


def _check_start_prices(problem: Problem, mu0: ArrayLike | None, *, gradient: bool) -> Array:
    """Return the prices at the start, which are 0, or the multipliers of gradient steps."""
    if mu0 is not None and not gradient:
        raise InputError(
            "mu0 must be left out unless the algorithm is sv.paper.Tikhonov(): prices start at 0"
        )
    if not gradient:
        return np.zeros_like(problem.cloud.sums.lower)
    mu = np.zeros(problem.rows) if mu0 is None else array("mu0", mu0, "plain numbers")
    if mu.shape != (problem.rows,):
        raise InputError(
            f"mu0 must be {problem.rows} numbers, one per constraint, got shape {mu.shape}"
        )
    if not np.all((mu >= 0) & np.isfinite(mu)):
        raise InputError(f"mu0 must be finite and not negative, got {mu.min():g}")
    return mu


def _check_recorded_rounds(record: ArrayLike | None, rounds: int) -> NDArray[np.int64]:
    """Return after how many rounds to measure, in order; by default about 1,000, log-spaced."""
    if record is None:
        spaced = np.round(np.geomspace(1, rounds, _DEFAULT_RECORDS))
        return np.unique(np.concatenate([[0], spaced]).astype(np.int64))
    marks = np.unique(array("record", record, f"a list of rounds in 0..{rounds}"))
    wrong = ~((marks >= 0) & (marks <= rounds) & (marks == np.floor(marks)))  # NaN is wrong too
    if np.any(wrong):
        raise InputError(
            f"record must list rounds as integers in 0..{rounds}, got {marks[wrong][0]:g}"
        )
    return marks.astype(np.int64)


def _execute(
    request: SimulationRequest,
    layout: Layout,
    threads: int,
    report: Progress,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Result:
    """Run all rounds in this process."""
    engine = Runs(request, layout, threads)
    saved_state = None
    if checkpoint is not None:
        saved_state = Checkpoint(checkpoint, _hash_request(request, layout), engine.arrays())
    done, seconds = _advance_in_slices(engine, request, saved_state, threads=threads, report=report)
    final: dict[str, Any] = dict(engine.final())
    feasible, confirmed = None if request.plan is None else request.plan.feasible, None
    if feasible is not None:  # a run that failed or was cut short has no answer to apply
        is_finished = (final["failed"] == 0) & (done == request.rounds)
        confirmed = feasible.confirmed(final["released"]) & is_finished
    records = int(np.searchsorted(request.marks, done, side="right"))
    quantities = np.moveaxis(engine.trace[:, :records], 2, 0).copy()
    hat_x, hat_price = (None, None) if request.saddle is None else request.saddle
    return Result(
        **final,
        rounds=done,
        requested=request.rounds,
        seed=request.seed,
        algorithm=repr(request.algorithm),
        noise=layout.noise,
        confirmed=confirmed,
        interrupted=done < request.rounds,
        seconds=seconds,
        saddle_x=hat_x,
        saddle_price=hat_price,
        trace=Trace(
            k=request.marks[:records].copy(), **dict(zip(QUANTITIES, quantities, strict=True))
        ),
        memory=engine.price_memory(done),
        transcript=_make_transcript(layout, engine.transcript[:, :done])
        if request.transcript
        else None,
    )


def _execute_distributed(
    request: SimulationRequest, executor: Executor, threads: int, report: Progress
) -> Result:
    """Run the rounds on an executor, some of the runs in each task."""
    began, runs = perf_counter(), request.runs
    tasks = [(part, threads) for part in split_runs(runs, least=LANES if request.gradient else 1)]
    words = f"{runs:,} runs elsewhere"
    results, interrupted = scatter(
        executor, _run_part, request, tasks, report=report, activity=words
    )
    complete = [result for result in results if not result.interrupted]
    if not complete:
        raise KeyboardInterrupt
    transcripts = [result.transcript for result in complete if result.transcript is not None]
    return replace(
        _concatenate(complete, [n for n in _PER_RUN_ARRAYS if getattr(complete[0], n) is not None]),
        interrupted=interrupted or len(complete) < len(results),
        seconds=perf_counter() - began,
        trace=_concatenate([result.trace for result in complete], QUANTITIES),
        transcript=_concatenate(transcripts, ("y", "gradients")) if transcripts else None,
    )


def _run_part(request: SimulationRequest, task: tuple[range, int]) -> Result:
    """Some of the runs, in any process; each depends on (seed, r) alone."""
    numbers, threads = task
    some = replace(request, first=numbers.start, runs=len(numbers))
    layout = layout_of(some.problem, some.plan, gradient=some.gradient, lanes=some.lanes)
    return _execute(some, layout, threads, silent)


def _concatenate(parts: Sequence[_Part], names: Sequence[str]) -> _Part:
    """The first part, with arrays of all."""
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in names
    }
    return replace(parts[0], **arrays)


def _count_threads(threads: int | None) -> int:
    if threads is not None:
        return whole("threads", threads, least=1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_transcript(layout: Layout, released: Array) -> Transcript:
    rows, columns = np.array(layout.noisy, dtype=np.int64).reshape(-1, 2).T.copy()
    y, gradients = np.split(released, [layout.release.sigma.size], axis=2)
    return Transcript(y=y.copy(), gradients=gradients.copy(), rows=rows, columns=columns)


def _hash_request(request: SimulationRequest, layout: Layout) -> str:
    """A hash of everything that results depend on."""
    s, public = request, layout.public
    return fingerprint(
        s.problem.fingerprint,
        repr(s.algorithm),
        (s.rounds, s.runs, s.lanes, s.first, s.seed, s.transcript),
        (layout.noisy, layout.release.entries, layout.release.sigma),
        (s.start, s.price0, layout.domain, s.saddle, s.marks),
        (public.lower, public.upper, public.unit, public.noise),
        None if s.warm is None else s.warm.fingerprint,
    )


def _advance_in_slices(
    engine: Runs,
    request: SimulationRequest,
    checkpoint: Checkpoint | None,
    *,
    threads: int,
    report: Progress,
) -> tuple[int, float]:
    """Advance all runs to the last round, in slices of about a quarter of a second.

    Slices do not change results. Ctrl-C ends after the slice at hand. Returned are the rounds done
    and their seconds.
    """
    rounds, size = request.rounds, _FIRST_SLICE
    done = 0 if checkpoint is None else checkpoint.resume()
    start = perf_counter()
    with ThreadPoolExecutor(threads) as pool, interruptible() as stopped:
        report(f"round {done:,} of {rounds:,}", done / rounds)
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
            report(f"round {done:,} of {rounds:,}", done / rounds)
    seconds = perf_counter() - start
    if checkpoint is not None:
        checkpoint.save(done, now=True)
    return done, seconds


def _next_size(size: int, seconds: float) -> int:
    return int(np.clip(size * min(4.0, _SLICE_SECONDS / max(seconds, 1e-9)), 1, _LONGEST_SLICE))


@final
class Checkpoint:
    """A file that is rewritten every few seconds with the ``arrays`` that rounds change.

    A file of another ``identity`` belongs to another simulation and is refused.
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
        for name, target in self._arrays.items():
            np.copyto(target, arrays[name])
        return int(meta["done"])

    def save(self, done: int, *, now: bool) -> None:
        """Write the file if the last time was a while ago, or in any case if ``now``."""
        if now or perf_counter() - self._saved > _SAVE_SECONDS:
            meta = {"kind": "checkpoint", "identity": self._identity, "done": done}
            write_npz(self._path, meta, self._arrays)
            self._saved = perf_counter()
