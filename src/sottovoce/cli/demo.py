"""``sottovoce demo``: a real cloud and real agents on this machine, from keys to figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    folder: Annotated[
        Path | None, typer.Option(help="a problem folder; the paper's problem if not given")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds to run")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for keys, store, states and figure")
    ] = None,
) -> None:
    """Run a cloud and its agents as processes on this machine, with mutual TLS and real noise.

    Example: sottovoce demo --out out
    """
    from sottovoce.cli.demonstrate import demonstrate

    demonstrate(folder, rounds, out)
