"""``sottovoce tradeoff``: what each epsilon buys, before anything is run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.cluster import cluster as on_cluster
from sottovoce.cli.console import console, errors, print_json
from sottovoce.cli.options import Cluster, Delta, HideOption, Json, Radius, make_folder
from sottovoce.errors import InputError
from sottovoce.progress import shown


def tradeoff(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml and agents/")],
    epsilon: Annotated[str, typer.Option(help="values of epsilon")] = "0.1,0.5,1,2",
    delta: Delta = None,
    radius: Radius = None,
    hide: HideOption = None,
    rounds: Annotated[str, typer.Option(help="numbers of rounds")] = "500,2000,10000",
    out: Annotated[Path | None, typer.Option(help="folder for the figure")] = None,
    cluster: Cluster = None,
    json: Json = False,
) -> None:
    """Show the noise, the offset that stays hidden and the accuracy to expect.

    Example: sottovoce tradeoff examples/paper --epsilon 0.1,0.5,1,2 --out out
    """
    from sottovoce.cli.request import numbers
    from sottovoce.problem.folder import load_problem
    from sottovoce.report.tradeoff import tradeoff_figure, tradeoff_table
    from sottovoce.study.tradeoff import tradeoff as study

    make_folder(out)
    problem = load_problem(folder)
    settings = problem.privacy
    kind = hide or str(settings.get("hide", "trajectory"))
    given = delta if delta is not None else settings.get("delta")
    if given is None:
        raise InputError(
            "delta must be given, got none: use --delta, or write it under [privacy] in "
            "problem.toml"
        )
    d = numbers(str(given), "delta")
    b = radius if radius is not None else settings.get("radius")
    radii = None if kind == "everything" or b is None else numbers(str(b), "radius")
    counts = numbers(rounds, "rounds")
    if any(count != int(count) for count in counts):
        raise InputError(f"rounds must be whole numbers, got {rounds}")
    with on_cluster(cluster) as executor, shown() as tell:
        rows = study(
            problem,
            epsilons=numbers(epsilon, "epsilon"),
            rounds=[int(count) for count in counts],
            delta=d[0],
            radius=radii[0] if radii is not None and len(radii) == 1 else radii,
            hide=kind,
            progress=tell,
            executor=executor,
        )
    if json:
        print_json([asdict(row) for row in rows])
    else:
        console.print(tradeoff_table(rows))
    if out is not None:
        tradeoff_figure(rows, out / "tradeoff.png")
        errors.print(f"figure: {out / 'tradeoff.png'}")
