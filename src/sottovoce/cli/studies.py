"""``sottovoce compare``, ``audit`` and ``paper``: studies of algorithms, deployments, the paper."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from sottovoce.cli.console import errors, json_of, show_result
from sottovoce.cli.options import (
    AlgorithmName,
    Cluster,
    Json,
    Method,
    PrivacyOptions,
    ProblemName,
    RunOptions,
    algorithm_for,
    load,
    make_folder,
    numbers,
    on_cluster,
    with_options,
)
from sottovoce.errors import InputError
from sottovoce.privacy.trust import ViewName
from sottovoce.progress import shown

if TYPE_CHECKING:
    from sottovoce.problem.problem import Problem

_RUNS, _ROUNDS = 400, 30


@with_options
def compare_command(
    problem: ProblemName,
    promise: PrivacyOptions,
    rounds: Annotated[str, typer.Option(help="numbers of rounds")] = "500,2000,10000",
    runs: Annotated[int, typer.Option(min=1, help="independent runs of each")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="run r depends on (seed, r) alone")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="folder for compare.png and compare.json")
    ] = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Compare algorithms and plans with each other and with the statistical limit.

    Ctrl-C ends early with what has been computed. With --out more numbers of rounds are run, for
    the curves of the figure.

    Example: sottovoce compare examples/paper --rounds 500,2000,10000 --out out
    """
    make_folder(out)
    with on_cluster(cluster) as executor, shown(f"reading {problem}") as tell:
        from sottovoce.study.compare import compare, curve_rounds

        asked, stated = _counts(rounds), load(problem)
        known = [algorithm_for(stated, name) for name in ("dual-averaging", "tikhonov")]
        comparison = compare(
            stated,
            **promise.values(),
            rounds=asked if out is None else curve_rounds(asked),
            runs=runs,
            seed=seed,
            algorithms={type(algorithm).__name__: algorithm for algorithm in known},
            progress=tell,
            executor=executor,
        )
    data = comparison.data(asked)
    show_result(data, comparison.table(asked), json=json)
    if out is not None:
        (out / "compare.json").write_text(json_of(data), encoding="utf-8")
        errors.print(f"data: {out / 'compare.json'}", soft_wrap=True)
        if comparison.rows:
            comparison.plot(out / "compare.png")
            errors.print(f"figure: {out / 'compare.png'}", soft_wrap=True)


def _counts(text: str) -> list[int]:
    wanted = "rounds must be whole numbers of at least 1, separated by commas, "
    try:
        counts = numbers(text, "rounds")
    except InputError as error:
        raise InputError(f"{wanted}got --rounds {text!r}") from error
    if not all(count >= 1 and count == int(count) for count in counts):
        raise InputError(f"{wanted}got --rounds {text!r}")
    return sorted({int(count) for count in counts})


@with_options
def audit_command(
    problem: ProblemName,
    promise: PrivacyOptions,
    agent: Annotated[
        str | None,
        typer.Option(help="whose behaviour to tell: a label, or a number from 1; the worst-off "
                     "by default"),
    ] = None,
    runs: Annotated[int | None, typer.Option(min=100, help=f"games per world ({_RUNS})")] = None,
    rounds: Annotated[int | None, typer.Option(min=2, help=f"rounds per game ({_ROUNDS})")] = None,
    method: Method = "joint",
    algorithm: AlgorithmName = None,
    view: Annotated[
        str | None, typer.Option(help="of a split cloud: attack as cloud, helper or outside")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="check the noise of this run instead of playing")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the figure")] = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Attack what is deployed: play the distinguishing game on its messages, and test its noise.

    Exit code 1 if more is told than claimed, or if the noise is not the noise that was stated.

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
    make_folder(out)
    with on_cluster(cluster) as executor, shown(f"reading {problem}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.study.audit import audit

        stated, length = load(problem), rounds or _ROUNDS
        plan = promise.plan(
            stated,
            certify(stated, progress=tell),
            rounds=_covered(stated, promise.hide, length),
            method=method,
            split=view is not None,
            progress=tell,
        )
        # The paper's release goes with the paper's algorithm.
        chosen = algorithm or ("tikhonov" if method == "paper" else None)
        report = audit(
            stated,
            plan,
            agent=None if agent is None else _place(stated, agent),
            runs=runs or _RUNS,
            rounds=length,
            algorithm=algorithm_for(stated, chosen),
            progress=tell,
            executor=executor,
            view=_view(view),
        )
    show_result(report.data(), report.table(), "", report.noise.table(), json=json)
    if out is not None:
        report.plot(out / "audit.png")
        errors.print(f"figure: {out / 'audit.png'}")
    if not report.passed:
        raise typer.Exit(1)


def _place(problem: Problem, text: str) -> int:
    """The place, from 0, of an agent that the command line names by its label or from 1."""
    from sottovoce.arguments import whole
    from sottovoce.errors import ProblemError

    labels = problem.cloud.agent_labels()
    if text in labels:
        return labels.index(text)
    number = int(text) if text.isdecimal() else text
    return whole("agent", number, least=1, most=len(labels), error=ProblemError) - 1


def _view(name: str | None) -> ViewName:
    views: tuple[ViewName, ...] = get_args(ViewName)
    for known in views:
        if (name or "outside") == known:
            return known
    raise InputError(f"--view must be one of {', '.join(views)}, got {name!r:.60}")


def _covered(problem: Problem, hide: str | None, rounds: int) -> int | None:
    """The rounds to plan for: those that are played, unless rounds cost nothing."""
    from sottovoce.privacy.adjacency import Trajectory

    kind = hide or problem.privacy.get("hide", Trajectory.kind)
    return None if kind == Trajectory.kind else rounds


def _audit_store(
    folder: str, store: Path, promise: PrivacyOptions, method: str, *, json: bool
) -> None:
    """Check the noise of a finished run; problem.toml is enough, as for the cloud."""
    with shown(f"reading {folder}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.network.observe.run_summary import summarise
        from sottovoce.problem.files.load import read_public
        from sottovoce.study.noise import audit_store

        config = summarise(store).config
        problem = read_public(folder)
        certificate = certify(problem.cloud, progress=tell)
        covered = None if config is None else int(config.promise["rounds"])
        # As the cloud plans: with the margins of problem.toml.
        plan = RunOptions(**asdict(promise)).plan(
            problem, certificate, rounds=covered, method=method, progress=tell
        )
        tell("checking the noise of the run")
        report = audit_store(plan, store)
    show_result(report.data(), report.noise.table(report.title), json=json)
    if not report.noise.passed:
        raise typer.Exit(1)


def paper_command(
    runs: Annotated[int, typer.Option(min=1, help="seeds to simulate")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="first seed of the ensemble")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="folder for the figure; none is drawn without it")
    ] = None,
    json: Json = False,
) -> None:
    """Put every published figure beside the recomputed one, and simulate with the published noise.

    Example: sottovoce paper --runs 32 --out out
    """
    make_folder(out)
    with shown("the paper's problem") as tell:
        from sottovoce.paper.paper_tables import ensemble_data, paper_figure, paper_tables
        from sottovoce.paper.reproduction import PUBLISHED, QUANTILES, STEPS, reproduce

        study = reproduce(runs=runs, seed=seed, progress=tell)
    ensemble = {"runs": runs, "seed": seed, **ensemble_data(study.ensemble, QUANTILES)}
    data = {
        "published": PUBLISHED,
        "recomputed": study.recomputed,
        "exact_sigma": study.exact_sigma,
        "column_sensitivity_g": study.column_sensitivity_g,
        "limit": {"x": study.limit_x, "mu": study.limit_mu, "rounds": STEPS[-1]},
        "ensemble": ensemble,
    }
    tables = paper_tables(PUBLISHED, study.recomputed, study.ensemble, QUANTILES)
    words = (
        f"Exact Gaussian sigma per unit of sensitivity: {study.exact_sigma:.10f} "
        f"(kappa wastes {study.recomputed['kappa'] / study.exact_sigma - 1:.0%}).\n"
        f"One agent alone moves g by at most {study.column_sensitivity_g:.6f}, not by K_g.\n"
        f"Statistical limit of {STEPS[-1]:,} rounds with the published noise, root mean "
        f"square: {study.limit_x:.2f} in x and {study.limit_mu:.2f} in mu. The published "
        "errors lie far below it."
    )
    show_result(data, *tables, words, json=json)
    if out is not None:
        paper_figure(study.result, PUBLISHED["errors"], out / "paper.png")
        errors.print(f"figure: {out / 'paper.png'}")
