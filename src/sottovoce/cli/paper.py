"""``sottovoce paper``: hold the paper to account, number by number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.console import console, errors, print_json
from sottovoce.cli.options import make_folder
from sottovoce.progress import shown

if TYPE_CHECKING:
    from sottovoce.paper.reproduction import Reproduction


def paper_command(
    runs: Annotated[int, typer.Option(min=1, help="seeds to simulate")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="first seed of the ensemble")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="folder for the figure; none is drawn without it")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False,
) -> None:
    """Put every published figure beside the recomputed one, and simulate with the published noise.

    Example: sottovoce paper --runs 32 --out out
    """
    make_folder(out)
    with shown("the paper's problem") as tell:
        from sottovoce.paper.paper_tables import paper_figure, paper_tables
        from sottovoce.paper.reproduction import PUBLISHED, QUANTILES, STEPS, reproduce

        found = reproduce(runs=runs, seed=seed, progress=tell)
    if json:
        print_json(_data(found, runs, seed))
    else:
        for table in paper_tables(PUBLISHED, found.recomputed, found.ensemble, QUANTILES):
            console.print(table)
        console.print(
            f"Exact Gaussian sigma per unit of sensitivity: {found.exact_sigma:.10f} "
            f"(kappa wastes {found.recomputed['kappa'] / found.exact_sigma - 1:.0%}).\n"
            f"One agent alone moves g by at most {found.column_sensitivity_g:.6f}, not by K_g.\n"
            f"Statistical limit of {STEPS[-1]:,} rounds with the published noise, root mean "
            f"square: {found.limit_x:.2f} in x and {found.limit_mu:.2f} in mu. The published "
            "errors lie far below it."
        )
    if out is not None:
        path = out / "paper.png"
        paper_figure(found.result, PUBLISHED["errors"], path)
        errors.print(f"figure: {path}")


def _data(found: Reproduction, runs: int, seed: int) -> dict[str, object]:
    from sottovoce.paper.paper_tables import ensemble_data
    from sottovoce.paper.reproduction import PUBLISHED, QUANTILES, STEPS

    return {
        "published": PUBLISHED,
        "recomputed": found.recomputed,
        "exact_sigma": found.exact_sigma,
        "column_sensitivity_g": found.column_sensitivity_g,
        "limit": {"x": found.limit_x, "mu": found.limit_mu, "rounds": STEPS[-1]},
        "ensemble": {
            "runs": runs,
            "seed": seed,
            **ensemble_data(found.ensemble, QUANTILES),
        },
    }
