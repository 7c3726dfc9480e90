"""``sottovoce check``: certify a problem and say what holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.console import console, print_json
from sottovoce.progress import shown


def check(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml and agents/")],
    original: Annotated[
        bool, typer.Option("--original", help="keep the original boxes, do not tighten them")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False,
) -> None:
    """Certify a problem: its assumptions, domain, sums and sensitivities.

    Exit code 1 if an assumption of the paper's Theorem 1 fails.

    Example: sottovoce check examples/paper --json
    """
    with shown(f"reading {folder}") as tell:
        from sottovoce.certify.certificate import certify
        from sottovoce.problem.folder import load_problem
        from sottovoce.report.certificate import certificate_data, certificate_tables

        certificate = certify(load_problem(folder), tighten=not original, progress=tell)
    if json:
        print_json(certificate_data(certificate))
    else:
        for table in certificate_tables(certificate):
            console.print(table)
    if not certificate.holds:
        raise typer.Exit(1)
