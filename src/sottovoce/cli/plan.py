"""``sottovoce plan``: the noise of every output and the promise it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.console import console, print_json
from sottovoce.cli.options import (
    Delta,
    EachRow,
    Epsilon,
    Feasible,
    HideOption,
    Json,
    Method,
    Radius,
    Rounds,
    Split,
    Strict,
)
from sottovoce.progress import shown


def plan(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml and agents/")],
    epsilon: Epsilon = None,
    delta: Delta = None,
    radius: Radius = None,
    hide: HideOption = None,
    feasible: Feasible = None,
    each_row: EachRow = False,
    rounds: Rounds = None,
    method: Method = "joint",
    allow_undernoised: Annotated[
        bool, typer.Option(help="with --method paper: plan even where the promise breaks")
    ] = False,
    split: Split = False,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Choose the noise of every released number so that every agent's promise is kept.

    What is not given is taken from the privacy table of problem.toml.

    Example: sottovoce plan examples/paper --epsilon 'ln(3)' --delta 0.05 --radius 1
    """
    with shown(f"reading {folder}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli.foresight import foresee, warn_if_useless
        from sottovoce.cli.request import make_plan
        from sottovoce.problem.files.load import load_problem
        from sottovoce.report.plan import plan_data

        problem = load_problem(folder)
        made = make_plan(
            problem,
            certify(problem, progress=tell),
            epsilon=epsilon,
            delta=delta,
            radius=radius,
            hide=hide,
            feasible=feasible,
            each_row=each_row,
            rounds=rounds,
            method=method,
            allow_undernoised=allow_undernoised,
            split=split,
            progress=tell,
        )
        tell("predicting what the answer will be worth")
        told = foresee(problem, made, made.rounds)
    warn_if_useless(told, strict=strict)
    if json:
        print_json(plan_data(made))
    else:
        console.print(str(made), markup=False, soft_wrap=True)
