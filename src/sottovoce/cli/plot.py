"""``sottovoce plot``: the convergence figure of a result file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.console import console


def plot(
    result: Annotated[Path, typer.Argument(help="a result file, .npz")],
    out: Annotated[
        Path | None, typer.Option("--out", help="the image; beside the result if not given")
    ] = None,
) -> None:
    """Draw a result's errors over the rounds, with the ensemble's band.

    Example: sottovoce plot out/result.npz --out convergence.svg
    """
    from sottovoce.simulation.result import Result

    target = result.with_suffix(".png") if out is None else out
    Result.load(result).plot(target)
    console.print(f"wrote {target}", soft_wrap=True)
