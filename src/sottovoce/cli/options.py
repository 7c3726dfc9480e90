"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.errors import InputError

Epsilon = Annotated[
    str | None, typer.Option(help="privacy loss, e.g. 'ln(3)' or one per agent '1,1,2'")
]
Delta = Annotated[str | None, typer.Option(help="failure probability in (0, 1)")]
Radius = Annotated[
    str | None, typer.Option(help="b, how much is hidden: one number or one per agent '1,1,0.5'")
]
HideOption = Annotated[
    str | None,
    typer.Option(
        "--hide",
        help="what is hidden: trajectory (default; a change of b in total, so a constant offset of "
        "only b/sqrt(T)), offset (of b in every round) or everything (any behaviour within the "
        "public set)",
    ),
]
Feasible = Annotated[
    str | None,
    typer.Option(
        "--feasible",
        help="keep all constraints: confirmed answers violate one with probability 1 - p at most, "
        "e.g. 0.95",
    ),
]
EachRow = Annotated[
    bool,
    typer.Option("--each-row", help="with --feasible: for every constraint by itself"),
]
Rounds = Annotated[int | None, typer.Option(help="rounds the plan covers")]
Method = Annotated[str, typer.Option(help="joint, or paper for Theorems 2 and 3")]
AlgorithmName = Annotated[
    str | None,
    typer.Option("--algorithm", help="dual-averaging (default), or tikhonov: the paper's"),
]
Split = Annotated[
    bool,
    typer.Option("--split", help="a cloud and a helper that do not collude each add the noise"),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="run on a Dask cluster, e.g. tcp://host:8786")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="refuse where the answer is expected to be useless")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]


def make_folder(out: Path | None) -> None:
    """Make the folder for results at once: better to fail now than after all the work."""
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out must be a folder, got {out}: {error.strerror}") from error
