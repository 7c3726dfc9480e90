"""Commands about a problem in one process: what it allows, simulations, comparisons, audits."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from sottovoce.cli.console import console, errors, json_of, show_result, warn_if_useless
from sottovoce.cli.options import (
    PrivacyOptions,
    ProblemName,
    RunOptions,
    algorithm_for,
    argument,
    draw_figure,
    load,
    numbers,
    one_number,
    option,
    run_rounds,
    study,
    with_options,
)
from sottovoce.errors import InputError

if TYPE_CHECKING:
    from sottovoce.problem.problem import Problem

_GAMES, _GAME_ROUNDS = 400, 30


@with_options
def check_command(
    problem: ProblemName,
    original: bool = option(False, "keep the original boxes, do not tighten them"),
    json: bool = False,
) -> None:
    """Certify a problem: its assumptions, domain, sums and sensitivities.

    Where constraints are to be kept, it also lists agents whose public fallback, the point nearest
    0, may violate one beside answers of others.

    Exit code 1 if an assumption of the paper's Theorem 1 fails.

    Example: sottovoce check examples/paper --json
    """
    with study(problem) as (report, _):
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli import reports

        loaded = load(problem)
        certificate = certify(loaded, tighten=not original, progress=report)
        hard = any(family.hard for family in loaded.constraints) or "feasible" in loaded.privacy
        unsafe = reports.unsafe_defaults(certificate) if hard else []
    data = reports.certificate_data(certificate) | {"unsafe_fallbacks": unsafe}
    show_result(data, *reports.certificate_tables(certificate), json=json)
    if unsafe and not json:
        console.print(reports.fallback_words(unsafe), style="yellow", markup=False)
    if not certificate.holds:
        raise typer.Exit(1)


@with_options
def plan_command(
    problem: ProblemName,
    promise: RunOptions,
    rounds: int | None = option(None, "rounds the plan covers"),
    method: str = "joint",
    allow_undernoised: bool = option(False, "with --method paper: plan even if a promise breaks"),
    split: bool = option(False, "a cloud and a helper that do not collude each add the noise"),
    public: bool = option(False, "without agents' files, as a cloud plans"),
    strict: bool = False,
    json: bool = False,
) -> None:
    """Choose the noise of every released number so that every agent's promise is kept.

    What is not given is taken from the privacy table of problem.toml.

    Example: sottovoce plan examples/paper --epsilon 'ln(3)' --delta 0.05 --radius 1
    """
    with study(problem) as (report, _):
        from sottovoce.cli.reports import plan_data
        from sottovoce.study.prediction import expect, predict_publicly

        loaded = load(problem, agents=() if public else None)
        plan = promise.plan(
            loaded,
            public=public,
            rounds=rounds,
            method=method,
            allow_undernoised=allow_undernoised,
            split=split,
            progress=report,
        )
        report("predicting what the answer will be worth")
        prediction = (
            predict_publicly(plan, plan.rounds) if public else expect(loaded, plan, plan.rounds)
        )
    warn_if_useless(prediction, strict=strict)
    show_result(plan_data(plan), str(plan), json=json)


@with_options
def advise_command(
    problem: ProblemName,
    epsilon: str = option("0.1,0.3,1,3", "values of epsilon"),
    delta: str | None = option(None, "failure probability in (0, 1)"),
    radius: str | None = option(None, "b, how much is hidden"),
    hide: str | None = option(None, "trajectory, offset or everything, or offset,everything"),
    rounds: int | None = option(None, "rounds, if not what suits each"),
    accuracy: float = option(0.01, "the error that is good enough"),
    feasible: float = option(0.95, "the probability with which constraints shall be kept"),
    simulate: bool = option(False, "measure in 64 short simulated runs as well"),
    plot: Path | None = option(None, "an image file for the figure"),
    cluster: str | None = None,
    json: bool = False,
) -> None:
    """Show what each promise costs, and the one to write into problem.toml.

    For what is hidden (all three kinds unless --hide names one) and every epsilon: the noise in
    percent of each constraint's scale, the probability of a violation, what keeping all constraints
    costs, errors, rounds, and the fleet for which it all costs less than 1%.

    Example: sottovoce advise gallery:chargers --plot advice.png
    """
    with study(problem, cluster) as (report, executor):
        from sottovoce.study.advise import advise

        advice = advise(
            load(problem),
            hide=None if hide is None else hide.split(","),
            radius=None if radius is None else one_number(radius, "radius"),
            epsilons=numbers(epsilon, "epsilon"),
            delta=None if delta is None else one_number(delta, "delta"),
            rounds=rounds,
            accuracy=accuracy,
            feasible=feasible,
            simulate=simulate,
            progress=report,
            executor=executor,
        )
    line = ("For the top of problem.toml:\n", advice.line) if advice.line else ()
    texts = (advice.table(), advice.constraints(), f"\n{advice.words}", *line)
    show_result(advice.data(), *texts, json=json)
    draw_figure(advice.plot, plot)


@with_options
def simulate_command(
    problem: ProblemName,
    promise: RunOptions,
    rounds: int | None = None,
    runs: int = 1,
    seed: int = 0,
    out: Path | None = option(None, "folder for result.npz and convergence.png"),
    algorithm: str | None = None,
    strict: bool = False,
    cluster: str | None = None,
    json: bool = False,
) -> None:
    """Simulate a problem with the noise that its privacy table or the options ask for.

    Without either there is no noise. Ctrl-C ends early with what has been computed. Noise comes
    from the seed: nothing is private.

    Example: sottovoce simulate examples/paper --rounds 20000 --runs 64 --out out
    """
    with study(problem, cluster, out, doing="certifying and planning", patience=0.0) as (
        report,
        executor,
    ):
        from sottovoce.cli.reports import result_data, result_table
        from sottovoce.simulation.simulate import simulate
        from sottovoce.study.prediction import expect

        loaded = load(problem)
        count = run_rounds(loaded, rounds)
        plan = None
        if loaded.privacy or promise.is_given:
            plan = promise.plan(loaded, rounds=count, progress=report)
            warn_if_useless(expect(loaded, plan, count), strict=strict)
        result = simulate(
            loaded,
            plan,
            rounds=count,
            runs=runs,
            seed=seed,
            algorithm=algorithm_for(loaded, algorithm),
            progress=report,
            executor=executor,
        )
    files = []
    if out is not None:
        files = [str(out / "result.npz"), str(out / "convergence.png")]
        result.save(files[0])
        result.plot(files[1])
    texts = (f"\n{result.summary()}\n", *(f"wrote {file}" for file in files))
    show_result(result_data(result) | {"files": files}, result_table(result), *texts, json=json)


@with_options
def plot_command(
    result: Path = argument("a result file, .npz"),
    out: Path | None = option(None, "the image; beside the result if not given"),
) -> None:
    """Draw a result's errors over the rounds, with the ensemble's band.

    Example: sottovoce plot out/result.npz --out convergence.svg
    """
    from sottovoce.simulation.result import Result

    target = result.with_suffix(".png") if out is None else out
    Result.load(result).plot(target)
    console.print(f"wrote {target}", soft_wrap=True)


@with_options
def compare_command(
    problem: ProblemName,
    promise: PrivacyOptions,
    rivals: str = option(
        "paper", "methods: paper, laplace, hhrw, ndmd, han, output, hindsight", "--with"
    ),
    rounds: str = option("500,2000,10000", "numbers of rounds"),
    runs: int = 64,
    seed: int = 0,
    out: Path | None = option(None, "folder for compare.png, compare.json and compare.bib"),
    cluster: str | None = None,
    json: bool = False,
) -> None:
    """Compare the default with rival methods at equal privacy, and with the asymptotic limit.

    Every method runs with the noise that its own theorem asks for, and with ours where that is
    less. Ctrl-C ends early with what has been computed. With --out more numbers of rounds are run,
    for the curves of the figure.

    Example: sottovoce compare examples/paper --with paper,hhrw,ndmd --rounds 500,2000 --out out
    """
    with study(problem, cluster, out) as (report, executor):
        from sottovoce.study.compare import compare, curve_rounds

        horizons = _read_rounds(rounds)
        comparison = compare(
            load(problem),
            **asdict(promise.promise()),
            rounds=horizons if out is None else curve_rounds(horizons),
            runs=runs,
            seed=seed,
            rivals=rivals.split(","),
            progress=report,
            executor=executor,
        )
    data = comparison.data(horizons)
    show_result(data, comparison.table(horizons), json=json)
    if out is not None:
        (out / "compare.json").write_text(json_of(data), encoding="utf-8")
        (out / "compare.bib").write_text(comparison.references, encoding="utf-8")
        errors.print(f"data: {out / 'compare.json'}, {out / 'compare.bib'}", soft_wrap=True)
        draw_figure(comparison.plot, out / "compare.png" if comparison.rows else None)


def _read_rounds(text: str) -> list[int]:
    from sottovoce.arguments import whole

    try:
        return sorted({whole("rounds", count, least=1) for count in numbers(text, "rounds")})
    except InputError as error:
        raise InputError(
            "rounds must be integers of at least 1, separated by commas, got --rounds " + repr(text)
        ) from error


@with_options
def audit_command(
    problem: ProblemName,
    promise: PrivacyOptions,
    agent: str | None = option(
        None,
        "whose behaviour to distinguish: a label, or a number from 1; the worst-off by default",
    ),
    runs: int | None = option(None, f"games per world ({_GAMES})"),
    rounds: int | None = option(None, f"rounds per game ({_GAME_ROUNDS})"),
    method: str = "joint",
    algorithm: str | None = None,
    view: Literal["cloud", "helper", "outside"] | None = option(
        None, "of a split cloud: attack as one of these"
    ),
    store: str | None = option(None, "check the noise of this run instead of playing"),
    out: Path | None = option(None, "folder for the figure"),
    cluster: str | None = None,
    json: bool = False,
) -> None:
    """Attack what is deployed: play the distinguishing game on its messages, and test its noise.

    Exit code 1 if more is revealed than claimed, or if the noise is not the noise that was stated.

    Example: sottovoce audit examples/paper --agent 6 --out out
    """
    if store is not None:
        for name, value in {"agent": agent, "runs": runs, "rounds": rounds, "algorithm": algorithm,
                            "out": out, "cluster": cluster, "view": view}.items():  # fmt: skip
            if value is not None:
                raise InputError(
                    f"--{name} must not be given with --store, which plays no game: leave it out"
                )
        _audit_store(problem, store, promise, method, json=json)
        return
    with study(problem, cluster, out) as (report, executor):
        from sottovoce.privacy.adjacency import Trajectory
        from sottovoce.study.audit import audit

        loaded, game_rounds = load(problem), _GAME_ROUNDS if rounds is None else rounds
        kind = promise.hide or loaded.privacy.get("hide", Trajectory.kind)
        plan = promise.plan(
            loaded,
            # Under a trajectory rounds are free: the plan covers those of the problem.
            rounds=None if kind == Trajectory.kind else game_rounds,
            method=method,
            split=view is not None,
            progress=report,
        )
        audited = audit(
            loaded,
            plan,
            agent=None if agent is None else _find_agent(loaded, agent),
            runs=_GAMES if runs is None else runs,
            rounds=game_rounds,
            algorithm=algorithm_for(loaded, algorithm, method=method),
            progress=report,
            executor=executor,
            view=view or "outside",
        )
    show_result(audited.data(), audited.table(), "", audited.noise.table(), json=json)
    draw_figure(audited.plot, None if out is None else out / "audit.png")
    if not audited.passed:
        raise typer.Exit(1)


def _find_agent(problem: Problem, text: str) -> int:
    """The index, from 0, of an agent that the command line names by its label or from 1."""
    from sottovoce.arguments import whole
    from sottovoce.errors import ProblemError

    labels = problem.cloud.agent_labels()
    if text in labels:
        return labels.index(text)
    number = int(text) if text.isdecimal() else text
    return whole("agent", number, least=1, most=len(labels), error=ProblemError) - 1


def _audit_store(
    folder: str, store: str, promise: PrivacyOptions, method: str, *, json: bool
) -> None:
    """Check the noise of a finished run; problem.toml is enough, as for the cloud."""
    with study(folder) as (report, _):
        from sottovoce.network.store import summarise
        from sottovoce.study.noise import audit_store

        config = summarise(store).config
        run = {} if config is None else config.promise
        # As the cloud planned: with its margins, which the store names, or those of problem.toml.
        margins = run.get("feasible") or {}
        probability = repr(margins["probability"]) if margins else None
        each_row = bool(margins.get("each_row", False))
        options = RunOptions(**asdict(promise), feasible=probability, each_row=each_row)
        plan = options.plan(
            load(folder, agents=()), public=True, rounds=run.get("rounds"), method=method,
            progress=report,
        )  # fmt: skip
        report("checking the noise of the run")
        audited = audit_store(plan, store)
    show_result(audited.data(), audited.noise.table(audited.title), json=json)
    if not audited.noise.passed:
        raise typer.Exit(1)


@with_options
def paper_command(
    runs: int = option(32, "seeds to simulate"),
    seed: int = option(0, "first seed of the ensemble"),
    out: Path | None = option(None, "folder for the figure; none is drawn without it"),
    json: bool = False,
) -> None:
    """Put every published figure beside the recomputed one, and simulate with the published noise.

    Example: sottovoce paper --runs 32 --out out
    """
    with study("the paper's problem", out=out) as (report, _):
        from sottovoce.paper.reproduction import reproduce

        reproduced = reproduce(runs=runs, seed=seed, progress=report)
    show_result(reproduced.data(), *reproduced.tables(), json=json)
    draw_figure(reproduced.plot, None if out is None else out / "paper.png")
