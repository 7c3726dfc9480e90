"""The ``sottovoce`` command and how its errors look."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import typer

from sottovoce.cli.console import errors
from sottovoce.errors import SottovoceError

COMMANDS = (
    "check",
    "plan",
    "tradeoff",
    "compare",
    "solve",
    "plot",
    "audit",
    "cloud",
    "helper",
    "agent",
    "gateway",
    "relay",
    "status",
    "demo",
    "paper",
)
GROUPS = ("identity", "ledger")


def application(asked: str | None = None) -> typer.Typer:
    """Return the command line with all commands, or with the one asked for alone.

    An agent on a small device then loads what an agent needs and nothing else.
    """
    app = _empty()
    known = asked in (*COMMANDS, *GROUPS)
    for name in (*COMMANDS, *GROUPS):
        if known and name != asked:
            continue
        found = _load(name)
        if name in GROUPS:
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def listing() -> typer.Typer:
    """Return the commands by name and purpose, for ``--help``: options are nobody's concern yet."""
    app = _empty()
    for name in (*COMMANDS, *GROUPS):
        found = _load(name)
        app.command(name, help=found.info.help if name in GROUPS else found.__doc__)(lambda: None)
    return app


def _empty() -> typer.Typer:
    app = typer.Typer(
        name="sottovoce",
        help="Differentially private, cloud-based, constrained multi-agent optimization.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_several)
    return app


def _load(name: str) -> Any:
    return getattr(import_module(f"sottovoce.cli.{name}"), name)


def _several() -> None:
    """Differentially private, cloud-based, constrained multi-agent optimization."""
    # A callback makes Typer keep the command's name even where only one command is loaded.


def main() -> None:
    """Run the command line; an error becomes one line and the exit code that it has in a table."""
    try:
        words = sys.argv[1:]
        (listing() if words in ([], ["--help"]) else application(words[0]))()
    except SottovoceError as error:
        errors.print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
        errors.print(str(error), markup=False, soft_wrap=True)
        from sottovoce.cli.exits import exit_code  # only then: it loads the network's errors

        sys.exit(exit_code(error))
