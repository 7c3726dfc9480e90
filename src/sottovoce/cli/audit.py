"""``sottovoce audit``: attack our own transcript and compare with the claim."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sottovoce.certify.certificate import certify
from sottovoce.cli.console import console, errors, print_json
from sottovoce.cli.options import (
    AdjacencyOption,
    AlgorithmName,
    Delta,
    Epsilon,
    Json,
    Method,
    Radius,
    algorithm_for,
    make_folder,
    make_plan,
)
from sottovoce.cli.progress import working
from sottovoce.network.store import summarise
from sottovoce.problem.folder import load_problem, read_public
from sottovoce.report.audit import audit_figure, audit_table, noise_table
from sottovoce.study.audit import Audit
from sottovoce.study.audit import audit as study
from sottovoce.study.store_audit import audit_store


def audit(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml and agents/")],
    agent: Annotated[
        int | None, typer.Option(min=1, help="whose behaviour to tell; the worst-off by default")
    ] = None,
    runs: Annotated[int, typer.Option(min=100, help="games per world")] = 500,
    rounds: Annotated[int, typer.Option(min=2, help="rounds per game")] = 30,
    epsilon: Epsilon = None,
    delta: Delta = None,
    radius: Radius = None,
    adjacency: AdjacencyOption = None,
    method: Method = "joint",
    algorithm: AlgorithmName = None,
    store: Annotated[
        Path | None, typer.Option(help="check the noise of this finished run instead of playing")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the figure")] = None,
    json: Json = False,
) -> None:
    """Attack what is deployed: play the distinguishing game on its messages, and test its noise.

    Exit code 1 if more is told than claimed, or if the noise is not the noise that was stated.

    Example: sottovoce audit examples/paper --agent 6 --out out
    """
    make_folder(out)
    asked: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "radius": radius,
        "adjacency": adjacency,
    }
    if store is not None:
        _finished(folder, store, asked, json=json)
        return
    problem = load_problem(folder)
    with working("certifying, planning and playing"):
        made = make_plan(
            problem,
            certify(problem),
            **asked,
            rounds=None if adjacency in (None, "trajectory") else rounds,
            method=method,
        )
        whom = agent if agent is not None else int(np.argmax(made.gdp_mu)) + 1
        found = study(
            problem,
            made,
            agent=whom,
            runs=runs,
            rounds=rounds,
            algorithm=algorithm_for(problem, algorithm),
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


def _finished(folder: Path, store: Path, asked: dict[str, Any], *, json: bool) -> None:
    """Check the noise of a finished run; problem.toml is enough, as for the cloud."""
    config = summarise(store).config
    covered = None if config is None else int(config.promise["covered_rounds"])
    problem = read_public(folder)
    with working("certifying, planning and checking"):
        made = make_plan(problem, certify(problem.cloud), rounds=covered, **asked)
        found = audit_store(made, store)
    if json:
        print_json(asdict(found) | {"passed": found.passed})
    else:
        console.print(noise_table(found))
    if not found.passed:
        raise typer.Exit(1)


def _plain(found: Audit) -> dict[str, Any]:
    noise = asdict(found.noise) | {"passed": found.noise.passed}
    return asdict(found) | {
        "played_share": found.played_share,
        "noise": noise,
        "passed": found.passed,
    }
