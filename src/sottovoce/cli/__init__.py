"""The command line: read options, call the library, print.

No mathematics and no decision about privacy lives here. A module that defines commands imports
nothing heavy before one runs, so that ``--help`` and small devices stay fast.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer
from typer.main import get_command

from sottovoce.cli.console import errors
from sottovoce.errors import SottovoceError

_STUDIES = ("check", "plan", "advise", "compare", "simulate", "plot", "audit", "paper")
_SERVICES = ("cloud", "helper", "agent", "gateway", "relay", "status")
COMMANDS = {
    **dict.fromkeys(_STUDIES, "studies"),
    **dict.fromkeys(_SERVICES, "services"),
    "serve": "serve",
    "demo": "demo",
}
"""The module of every command, where it is ``NAME_command``."""

GROUPS = {
    "identity": "accounts",
    "ledger": "accounts",
    "run": "serve",
    "conformance": "conformance",
    "check-setup": "setup_checks",
}
"""The module of every group of commands, where it is ``NAME_group``."""

_GARBAGE_THRESHOLD = 50_000  # new objects after which Python collects garbage


def application(command: str | None = None) -> typer.Typer:
    """Return the command line with all commands, or with one alone.

    An agent on a small device then loads what an agent needs and nothing else.
    """
    app = typer.Typer(
        name="sottovoce",
        help="Differentially private, cloud-based, constrained multi-agent optimization.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    is_known = command in COMMANDS or command in GROUPS
    for name in (*COMMANDS, *GROUPS):
        if is_known and name != command:
            continue
        if name in GROUPS:
            app.add_typer(_load(name), name=name)
        else:
            app.command(name)(_load(name))
    return app


def _load(name: str) -> Any:
    group = name in GROUPS
    module = import_module(f"sottovoce.cli.{(GROUPS if group else COMMANDS)[name]}")
    return getattr(module, f"{name.replace('-', '_')}_group" if group else f"{name}_command")


def _version(wanted: bool) -> None:
    if wanted:
        import sottovoce

        typer.echo(f"sottovoce {sottovoce.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Differentially private, cloud-based, constrained multi-agent optimization."""
    # A callback makes Typer keep the command's name even where only one command is loaded.


def convert_plainly(command: Any) -> None:
    """Convert the texts of options here: Typer would load pydantic, 14 MB of every process.

    The attribute is Typer's own; a version that does not know it converts as it always did.
    """
    for child in getattr(command, "commands", {}).values():
        convert_plainly(child)
    for parameter in command.get_params(typer.Context(command)):
        descriptor = getattr(parameter, "type_descriptor", None)
        if descriptor is not None and not descriptor.is_ranged:
            parameter._runtime_param = _Conversion(descriptor.annotation)


class _Conversion(NamedTuple):
    kind: Any

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None or get_origin(self.kind) is list:
            return value
        if get_origin(self.kind) is Literal and value not in get_args(self.kind):
            choices = ", ".join(map(repr, get_args(self.kind)))
            raise typer.BadParameter(f"{value!r} is not one of {choices}.", ctx, param)
        try:
            return value if get_origin(self.kind) is Literal else self.kind(value)
        except ValueError:
            raise typer.BadParameter(
                f"{value!r} is not a valid {self.kind.__name__}.", ctx, param
            ) from None


def main() -> None:
    """Run the command line; an error becomes one line and its exit code."""
    # What a command loads stays: looking through it after every 700 objects is a tenth of a start.
    gc.set_threshold(_GARBAGE_THRESHOLD)
    try:
        command = get_command(application(*sys.argv[1:2]))
        convert_plainly(command)
        command()
    except SottovoceError as error:
        errors.print(f"[bold red]error:[/] {type(error).__name__}: ", end="")
        errors.print(str(error), markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
