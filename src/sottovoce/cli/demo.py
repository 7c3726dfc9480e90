"""``sottovoce demo``: a cloud and its agents as processes on this machine, from keys to figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.options import with_options
from sottovoce.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What to run."""

    folder: Annotated[
        Path | None, typer.Option(help="a problem folder; the paper's problem if not given")
    ] = None
    fleet: Annotated[
        int | None, typer.Option(min=1, help="so many chargers behind four gateways instead")
    ] = None
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds to run")] = None
    out: Annotated[Path | None, typer.Option(help="folder for keys, store, states and figure")] = (
        None
    )
    split: Annotated[
        bool, typer.Option("--split", help="a cloud in two halves: start a helper too")
    ] = False
    feasible: Annotated[
        str | None,
        typer.Option(
            help="keep all constraints: confirmed answers violate one with probability 1 - p at "
            "most, e.g. 0.95"
        ),
    ] = None
    page: Annotated[
        bool, typer.Option("--page", help="show the run in a browser: a link is printed")
    ] = False


@with_options
def demo_command(options: DemoOptions) -> None:
    """Run a cloud and its agents as processes on this machine, with mutual TLS and real noise.

    With --page the agents start when the page is open, or after a minute. The link works once, and
    on this machine alone.

    Example: sottovoce demo --out out
    """
    if options.fleet is not None and options.folder is not None:
        raise InputError("folder must be left out with --fleet, which has a problem of its own")
    if options.fleet is not None and options.split:
        raise InputError("--split must be left out with --fleet, got both: run one of them")
    from sottovoce.cli.demo_run import run_demo

    run_demo(options)
