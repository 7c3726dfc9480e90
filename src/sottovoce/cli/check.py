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

    Where constraints are to be kept, it also lists agents whose public fallback, the point nearest
    0, may violate one beside answers of others.

    Exit code 1 if an assumption of the paper's Theorem 1 fails.

    Example: sottovoce check examples/paper --json
    """
    with shown(f"reading {folder}") as tell:
        from sottovoce.certificate.certificate import certify
        from sottovoce.problem.files.load import load_problem
        from sottovoce.report.certificate import certificate_data, certificate_tables
        from sottovoce.report.fallbacks import fallback_words, unsafe_defaults

        problem = load_problem(folder)
        certificate = certify(problem, tighten=not original, progress=tell)
        hard = any(family.hard for family in problem.constraints)
        unsafe = unsafe_defaults(certificate) if hard or "feasible" in problem.privacy else []
    if json:
        print_json({**certificate_data(certificate), "unsafe_fallbacks": unsafe})
    else:
        for table in certificate_tables(certificate):
            console.print(table)
        if unsafe:
            console.print(fallback_words(unsafe))
    if not certificate.holds:
        raise typer.Exit(1)
