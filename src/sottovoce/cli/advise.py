"""``sottovoce advise``: what to hide, how well and in how many rounds, before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.cluster import cluster as on_cluster
from sottovoce.cli.console import console, errors, print_json
from sottovoce.cli.options import Cluster, Delta, Json, Radius
from sottovoce.progress import shown


def advise(
    problem: Annotated[str, typer.Argument(help="folder of a problem, or gallery:NAME")],
    epsilon: Annotated[str, typer.Option(help="values of epsilon")] = "0.1,0.3,1,3",
    delta: Delta = None,
    radius: Radius = None,
    hide: Annotated[
        str | None,
        typer.Option(help="trajectory, offset or everything, or some: offset,everything"),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="rounds, if not what suits each")] = None,
    accuracy: Annotated[float, typer.Option(help="the error that is good enough")] = 0.01,
    feasible: Annotated[
        float, typer.Option(help="the probability with which constraints shall be kept")
    ] = 0.95,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="measure in 64 short simulated runs as well")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="an image file for the figure")] = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Show what each promise costs, and the one to write into problem.toml.

    For what is hidden (all three kinds unless --hide names one) and every epsilon: the noise in
    percent of each constraint's scale, the probability of a violation, what keeping all constraints
    costs, errors, rounds, and the fleet for which it all costs less than 1%.

    Example: sottovoce advise gallery:chargers --plot advice.png
    """
    with on_cluster(cluster) as executor, shown(f"reading {problem}") as tell:
        from sottovoce.cli.request import numbers, stated
        from sottovoce.study.advise import advise as study

        found = study(
            stated(problem),
            hide=None if hide is None else hide.split(","),
            radius=None if radius is None else _one(radius, "radius"),
            epsilons=numbers(epsilon, "epsilon"),
            delta=None if delta is None else _one(delta, "delta"),
            rounds=rounds,
            accuracy=accuracy,
            feasible=feasible,
            simulate=simulate,
            progress=tell,
            executor=executor,
        )
    from sottovoce.report.plain import rich_table
    from sottovoce.study.advice import advice_data

    if json:
        print_json(advice_data(found))
    else:
        for table in (found.table(), found.constraints()):
            console.print(table.title, markup=False, soft_wrap=True)
            console.print(rich_table(table))
            for note in table.notes:
                console.print(note, markup=False, soft_wrap=True)
        console.print(f"\n{found.words}", markup=False, soft_wrap=True)
        if found.line:
            console.print("For the top of problem.toml:\n", markup=False)
            console.print(found.line, markup=False, soft_wrap=True)
    if plot is not None:
        from sottovoce.report.advise import advice_figure
        from sottovoce.simulation.convergence import draw

        draw(advice_figure(found), plot)
        errors.print(f"figure: {plot}", soft_wrap=True)


def _one(text: str, name: str) -> float:
    from sottovoce.cli.request import numbers
    from sottovoce.errors import InputError

    found = numbers(text, name)
    if len(found) != 1:
        raise InputError(f"{name} must be one number for all agents, got {text!r:.60}")
    return found[0]
