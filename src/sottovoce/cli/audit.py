"""``sottovoce audit``: attack our own transcript and compare with the claim."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from sottovoce.cli.cluster import cluster as on_cluster
from sottovoce.cli.console import console, errors, print_json
from sottovoce.cli.options import (
    AlgorithmName,
    Cluster,
    Delta,
    Epsilon,
    HideOption,
    Json,
    Method,
    Radius,
    make_folder,
)
from sottovoce.errors import InputError
from sottovoce.privacy.trust import ViewName
from sottovoce.progress import shown

if TYPE_CHECKING:
    from sottovoce.problem.problem import Problem
    from sottovoce.study.audit import Audit

_RUNS, _ROUNDS = 400, 30
_PAPERS = {"paper": "tikhonov"}  # what the paper's release goes with


def audit(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml and agents/")],
    agent: Annotated[
        int | None, typer.Option(min=1, help="whose behaviour to tell; the worst-off by default")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=100, help=f"games per world ({_RUNS})")] = None,
    rounds: Annotated[int | None, typer.Option(min=2, help=f"rounds per game ({_ROUNDS})")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    radius: Radius = None,
    hide: HideOption = None,
    method: Method = "joint",
    algorithm: AlgorithmName = None,
    view: Annotated[
        str | None,
        typer.Option(help="of a split cloud: attack as cloud, helper or outside"),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="check the noise of this run instead of playing")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the figure")] = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Attack what is deployed: play the distinguishing game on its messages, and test its noise.

    Exit code 1 if more is told than claimed, or if the noise is not the noise that was stated.

    Example: sottovoce audit examples/paper --agent 6 --out out
    """
    asked: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "radius": radius,
        "hide": hide,
        "method": method,
    }
    if store is not None:
        of_the_game = {"agent": agent, "runs": runs, "rounds": rounds, "algorithm": algorithm,
                       "out": out, "cluster": cluster, "view": view}  # fmt: skip
        _require_none(of_the_game)
        _of_store(folder, store, asked, json=json)
        return
    make_folder(out)
    games, length = runs or _RUNS, rounds or _ROUNDS
    with on_cluster(cluster) as executor, shown(f"reading {folder}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli.request import algorithm_for, make_plan
        from sottovoce.problem.files.load import load_problem
        from sottovoce.report.audit import audit_figure, audit_table, noise_table
        from sottovoce.study.audit import audit as study

        problem = load_problem(folder)
        covered = _covered(problem, hide, length)
        certificate = certify(problem, progress=tell)
        split = view is not None
        made = make_plan(
            problem, certificate, **asked, rounds=covered, split=split, margins=False, progress=tell
        )
        whom = agent if agent is not None else int(made.gdp_mu.argmax()) + 1
        found = study(
            problem,
            made,
            agent=whom,
            runs=games,
            rounds=length,
            algorithm=algorithm_for(problem, algorithm or _PAPERS.get(method)),
            progress=tell,
            executor=executor,
            view=_view(view),
        )
    if json:
        print_json(_plain(found))
    else:
        console.print(audit_table(found), noise_table(found.noise))
    if out is not None:
        audit_figure(found, out / "audit.png")
        errors.print(f"figure: {out / 'audit.png'}")
    if not found.passed:
        raise typer.Exit(1)


def _view(name: str | None) -> ViewName:
    for known in get_args(ViewName):
        if name == known:
            return cast("ViewName", known)
    if name is None:
        return "outside"
    raise InputError(f"--view must be one of {', '.join(get_args(ViewName))}, got {name!r:.60}")


def _covered(problem: Problem, hide: str | None, rounds: int) -> int | None:
    """The rounds to plan for: those that are played, unless rounds cost nothing."""
    from sottovoce.privacy.adjacency import Trajectory

    kind = hide or problem.privacy.get("hide", Trajectory.kind)
    return None if kind == Trajectory.kind else rounds


def _require_none(of_the_game: dict[str, Any]) -> None:
    given = [name for name, value in of_the_game.items() if value is not None]
    if given:
        raise InputError(
            f"--{given[0]} must not be given with --store, which plays no game: leave it out"
        )


def _of_store(folder: Path, store: Path, asked: dict[str, Any], *, json: bool) -> None:
    """Check the noise of a run that was; problem.toml is enough, as for the cloud."""
    with shown(f"reading {folder}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli.request import make_plan
        from sottovoce.network.observe.run_summary import summarise
        from sottovoce.problem.files.load import read_public
        from sottovoce.report.audit import noise_table
        from sottovoce.study.store_audit import audit_store

        config = summarise(store).config
        covered = None if config is None else int(config.promise["rounds"])
        problem = read_public(folder)
        certificate = certify(problem.cloud, progress=tell)
        made = make_plan(problem, certificate, rounds=covered, progress=tell, **asked)
        tell("checking the noise of the run")
        found = audit_store(made, store)
    if json:
        noise = asdict(found.noise) | {"passed": found.noise.passed}
        print_json(
            asdict(found)
            | {"noise": noise, "finished": found.finished, "passed": found.noise.passed}
        )
    else:
        console.print(noise_table(found.noise, found.title))
    if not found.noise.passed:
        raise typer.Exit(1)


def _plain(found: Audit) -> dict[str, Any]:
    noise = asdict(found.noise) | {"passed": found.noise.passed}
    return asdict(found) | {
        "played_share": found.played_share,
        "noise": noise,
        "passed": found.passed,
    }
