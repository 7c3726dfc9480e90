"""``sottovoce demo``: a real cloud and real agents on this machine, from keys to figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import Feasible
from sottovoce.errors import InputError


def demo(
    folder: Annotated[
        Path | None, typer.Option(help="a problem folder; the paper's problem if not given")
    ] = None,
    fleet: Annotated[
        int | None, typer.Option(min=1, help="so many chargers behind four gateways instead")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds to run")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for keys, store, states and figure")
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", help="a cloud in two halves: start a helper too")
    ] = False,
    feasible: Feasible = None,
    page: Annotated[
        bool, typer.Option("--page", help="show the run in a browser: a link is printed")
    ] = False,
) -> None:
    """Run a cloud and its agents as processes on this machine, with mutual TLS and real noise.

    With --page the agents start when the page is open, or after a minute. The link works once, and
    on this machine alone.

    Example: sottovoce demo --out out
    """
    if fleet is not None:
        if folder is not None:
            raise InputError("folder must be left out with --fleet, which has a problem of its own")
        if split:
            raise InputError("--split must be left out with --fleet, got both: run one of them")
        from sottovoce.cli.demo_fleet import demonstrate_fleet

        demonstrate_fleet(fleet, rounds, out, feasible=feasible, page=page)
        return
    from sottovoce.cli.demonstrate import demonstrate

    demonstrate(folder, rounds, out, split=split, feasible=feasible, page=page)
