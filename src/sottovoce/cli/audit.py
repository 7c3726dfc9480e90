"""``sottovoce audit``: attack our own transcript and compare with the claim."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

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
from sottovoce.problem.folder import load_problem
from sottovoce.report.audit import audit_figure, audit_table
from sottovoce.study.audit import audit as study


def audit(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml and agents/")],
    agent: Annotated[
        int | None, typer.Option(min=1, help="whose behaviour to tell; the worst-off by default")
    ] = None,
    runs: Annotated[int, typer.Option(min=100, help="games per world")] = 20_000,
    rounds: Annotated[int, typer.Option(min=2, help="rounds per game")] = 20,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    epsilon: Epsilon = None,
    delta: Delta = None,
    radius: Radius = None,
    adjacency: AdjacencyOption = None,
    method: Method = "joint",
    algorithm: AlgorithmName = None,
    out: Annotated[Path | None, typer.Option(help="folder for the figure")] = None,
    json: Json = False,
) -> None:
    """Play the distinguishing game on the closed loop and report what an attacker can prove.

    Exit code 1 if the measured lower bound exceeds the claim.

    Example: sottovoce audit examples/paper --agent 6 --out out
    """
    make_folder(out)
    problem = load_problem(folder)
    with working("certifying, planning and playing"):
        made = make_plan(
            problem,
            certify(problem),
            epsilon=epsilon,
            delta=delta,
            radius=radius,
            adjacency=adjacency,
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
            seed=seed,
            algorithm=algorithm_for(problem, algorithm),
        )
    if json:
        print_json(asdict(found) | {"passed": found.passed})
    else:
        console.print(audit_table(found))
    if out is not None:
        audit_figure(found, out / "audit.png")
        errors.print(f"figure: {out / 'audit.png'}")
    if not found.passed:
        raise typer.Exit(1)
