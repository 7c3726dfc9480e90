"""``simulate``: rounds of an algorithm on a problem, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps, require_algorithm
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.steering import steering
from sottovoce.arguments import array, entries, instance, whole
from sottovoce.errors import InputError
from sottovoce.kernels.core.plain import LANES
from sottovoce.privacy.releases import release_of
from sottovoce.problem.agents import Array
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, silent, watched
from sottovoce.simulation.agents import agents
from sottovoce.simulation.assessment import SADDLE_STATES, Origin
from sottovoce.simulation.checkpoint import Checkpoint, checkpoint_path
from sottovoce.simulation.drive import Drive, Engine, Final, drive
from sottovoce.simulation.own_set import require_no_rows
from sottovoce.simulation.parts import joined, parts
from sottovoce.simulation.result import Result, Trace, Transcript
from sottovoce.simulation.runs import Runs
from sottovoce.simulation.scatter import executor_of, scatter
from sottovoce.simulation.setting import Setting, setting

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import NoisePlan


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
    f_i + lambda(k+1)'h_i``, damped; or gradient steps of both. Noise is
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
            must not be worked out from anybody's state, since nothing hides them.
        record: after how many rounds to measure; by default about 1,000, log-spaced.
        transcript: whether to keep every released number (small solves only).
        checkpoint: a file to save to every few seconds and to go on from if it exists.
        threads: at most so many; the processor's by default. Results do not depend on it.
        progress: whether to show what is being done once it has taken two seconds, by default on a
            terminal; or somebody to tell.
        saddle: x_hat and the prices there if known; otherwise computed for problems that are not
            large.
        executor: where to run, a ``concurrent.futures.Executor`` or a Dask client; here by
            default. Results do not depend on it. Interrupted, the runs that are complete are kept.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    steps = DualAveraging() if algorithm is None else require_algorithm(algorithm)
    gradient = isinstance(steps, GradientSteps)
    if gradient:
        require_no_rows(problem.local)
    team = _threads(threads)
    if plan is not None:
        _require_plan(plan)
    pool = None if executor is None else _executor(executor, checkpoint)
    with watched(progress) as tell:
        name = problem.fingerprint  # now: hashing a large fleet takes memory that states need later
        tell("finding the saddle point")
        request = setting(
            problem,
            plan,
            steps,
            rounds=_rounds(rounds, plan),
            runs=runs,
            seed=seed,
            x0=x0,
            mu0=mu0,
            record=record,
            transcript=transcript,
            saddle=_saddle(problem, saddle, gradient=gradient),
        )
        asked = _Asked(problem=problem, name=name, plan=plan, algorithm=steps, setting=request)
        if pool is not None:
            found = _scattered(asked, pool, threads or 1, tell)
        else:
            found = _execute(asked, team, tell, checkpoint)
        # Only now: parts of an ensemble need not carry the problem home with them.
        return replace(found, origin=Origin(problem=problem, plan=plan, gradient=gradient))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """A checked request with all that it is about, ready to be sent anywhere."""

    problem: Problem
    name: str
    plan: NoisePlan | None
    algorithm: Algorithm
    setting: Setting


def _execute(
    asked: _Asked, threads: int, tell: Progress, checkpoint: str | os.PathLike[str] | None = None
) -> Result:
    """Run all rounds here."""
    problem, plan = asked.problem, asked.plan
    steps, request = asked.algorithm, asked.setting
    tell("laying out agents")
    engine = _engine(problem, steps, request, threads)
    keeper = None
    if checkpoint is not None:
        keeper = Checkpoint(
            path=checkpoint_path(checkpoint),
            identity=_identity(problem, steps, request),
            arrays=engine.arrays(),
        )
    ended = drive(
        engine,
        _schedule(steps, request, steered=plan is not None and plan.feasible is not None),
        done=0 if keeper is None else keeper.resume(),
        rounds=request.rounds,
        threads=threads,
        tell=tell,
        save=(lambda done: None) if keeper is None else keeper.save,
    )
    if keeper is not None:
        keeper.save(ended.done, now=True)
    return _result(problem, asked.name, asked.plan, steps, request, engine, ended)


def _executor(given: Any, checkpoint: Any) -> Executor:
    if checkpoint is not None:
        raise InputError(
            "checkpoint must be left out with executor, got both: parts of an ensemble are short"
        )
    return executor_of(given)


def _scattered(asked: _Asked, executor: Executor, threads: int, tell: Progress) -> Result:
    """Run the rounds where an executor wants to, some of the runs in each task."""
    began, runs = perf_counter(), asked.setting.runs
    lanes = isinstance(asked.algorithm, GradientSteps)
    tasks = [(part, threads) for part in parts(runs, least=LANES if lanes else 1)]
    done = scatter(executor, _part, asked, tasks, tell=tell, doing=f"{runs:,} runs elsewhere")
    return joined(done.answers, interrupted=done.interrupted, seconds=perf_counter() - began)


def _part(asked: _Asked, task: tuple[range, int]) -> Result:
    """Some of the runs, in whatever process; each depends on (seed, r) alone."""
    numbers, threads = task
    some = replace(asked.setting, first=numbers.start, runs=len(numbers))
    return _execute(replace(asked, setting=some), threads, silent)


def _engine(problem: Problem, steps: Algorithm, request: Setting, threads: int) -> Engine:
    gradient = isinstance(steps, GradientSteps)
    if gradient and any(code is not None for code in problem.code):
        raise InputError(
            "an objective that is code needs an algorithm with prices, got gradient steps: use the "
            "default algorithm"
        )
    if isinstance(steps, GradientSteps) and all(group.count == 1 for group in problem.groups):
        engine: Engine = release_of(steps.release).engine(problem, request)
        return engine
    return Runs(agents(problem, request.domain, gradient=gradient), steps, request, threads)


def _schedule(algorithm: Algorithm, s: Setting, *, steered: bool) -> Callable[[Any], Array]:
    """The numbers of each round: an algorithm's steps, or the answer's weights and the steering."""
    if isinstance(algorithm, GradientSteps):
        return algorithm.schedule

    def numbers(k: Any) -> Array:
        share = algorithm.share(k, s.rounds, noisy=s.gridded)
        steer = steering(k, s.rounds) if steered else np.zeros(share.shape)
        return np.stack([share, steer], axis=1)

    return numbers


def _saddle(
    problem: Problem, given: tuple[ArrayLike, ArrayLike] | None, *, gradient: bool
) -> tuple[Array, Array] | None:
    if given is None:
        from sottovoce.certificate.optimum import known_saddle, saddle_prices

        found = known_saddle(problem, most=SADDLE_STATES)
        if found is None:
            return None
        prices = found.mu if gradient else saddle_prices(problem, found)
        return np.array(found.x), np.array(prices)
    rows = problem.rows if gradient else problem.cloud.sums.count
    wanted = f"a pair of {problem.size} states and {rows} prices"
    pair = entries("saddle", given, wanted)
    if len(pair) != 2:
        raise InputError(f"saddle must be {wanted}, got {len(pair)} entries")
    x, prices = (array("saddle", part, wanted) for part in pair)
    if x.shape != (problem.size,) or prices.shape != (rows,):
        raise InputError(
            f"saddle must be a pair of {problem.size} states and {rows} prices, got shapes "
            f"{x.shape} and {prices.shape}"
        )
    return x, prices


def _require_plan(given: Any) -> None:
    from sottovoce.privacy.noise_plan import NoisePlan

    instance("plan", given, NoisePlan, "sv.plan(certificate, ...)")


def _rounds(rounds: int | None, plan: NoisePlan | None) -> int:
    if rounds is not None:
        return rounds
    if plan is None:
        raise InputError("rounds must be given without a plan, got none: say rounds=1000")
    return plan.named_rounds()


def _threads(given: int | None) -> int:
    if given is not None:
        return whole("threads", given, least=1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _identity(problem: Problem, algorithm: Algorithm, s: Setting) -> str:
    return fingerprint(
        problem.fingerprint,
        repr(algorithm),
        (s.rounds, s.runs, s.first, s.seed, s.transcript, s.noise.rows),
        np.array(list(s.noise.entries), dtype=np.int64),
        (s.start, s.price0, s.domain, s.sigma, s.saddle, s.marks),
        (s.public.lower, s.public.upper, s.public.unit, s.public.noisy),
    )


def _result(
    problem: Problem,
    name: str,
    plan: Any,
    algorithm: Algorithm,
    s: Setting,
    engine: Engine,
    ended: Drive,
) -> Result:
    final = engine.final()
    reached = int(np.searchsorted(s.marks, ended.done, side="right"))
    hat_x, hat_price = (None, None) if s.saddle is None else s.saddle
    return Result(
        x=final.x,
        price=final.price,
        last_x=final.last_x,
        last_price=final.last_price,
        rounds=ended.done,
        requested=s.rounds,
        seed=s.seed,
        algorithm=repr(algorithm),
        noise="none: nothing is private" if plan is None else _noise_words(s),
        fingerprint=name,
        failed=final.failed,
        released=final.released,
        confirmed=_confirmed(plan, final, ended),
        interrupted=ended.interrupted,
        seconds=ended.seconds,
        saddle_x=hat_x,
        saddle_price=hat_price,
        trace=Trace(k=s.marks[:reached].copy(), **engine.trace(reached)),
        transcript=_transcript(s, engine, ended.done) if s.transcript else None,
    )


def _confirmed(plan: NoisePlan | None, final: Final, ended: Drive) -> NDArray[np.bool_] | None:
    """Which answers may be applied; a run that failed or was cut short has none."""
    if plan is None or plan.feasible is None or final.released is None:
        return None
    fine = plan.feasible.confirmed(final.released) & (final.failed == 0)
    return np.asarray(fine & (not ended.interrupted))


def _noise_words(s: Setting) -> str:
    gradients = f" and {len(s.noise.entries)} gradient entries" if s.noise.entries else ""
    return (
        f"simulated: {len(s.noise.rows)} sums{gradients} per round, repeatable from the seed, "
        "hence not private"
    )


def _transcript(s: Setting, engine: Engine, done: int) -> Transcript:
    released, rows = engine.released(done), s.price0.size
    entries = np.array(list(s.noise.entries), dtype=np.int64).reshape(-1, 2)
    return Transcript(
        y=released[:, :, :rows].copy(),
        gradients=released[:, :, rows:].copy(),
        rows=entries[:, 0].copy(),
        columns=entries[:, 1].copy(),
    )
