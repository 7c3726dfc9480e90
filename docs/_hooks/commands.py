"""Write the reference of every command from the command line itself, while the pages are built."""

from __future__ import annotations

from typing import Any

from typer.main import get_command

MARK = "<!-- every command is written here from the command line itself -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where a page asks for them."""
    return markdown.replace(MARK, every_command()) if MARK in markdown else markdown


def every_command() -> str:
    """Return a section for every command: what it does, an example, arguments and options."""
    from sottovoce.cli import application

    found = []
    for name, command in get_command(application()).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        if inner is None:
            found.append(_section(f"sottovoce {name}", command))
        else:
            found += [_section(f"sottovoce {name} {sub}", one) for sub, one in inner.items()]
    return "\n".join(found)


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    text, _, example = command.help.partition("Example: ")
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    lines = [f"## `{name}`", "", _paragraphs(text), "", "```sh", usage, "```", ""]
    if example:
        lines += ["For example:", "", "```sh", " ".join(example.split()), "```", ""]
    rows = [(p.param_type_name, p.get_help_record(context)) for p in command.get_params(context)]
    for kind in ("argument", "option"):
        shown = [row for found, row in rows if found == kind and row is not None]
        if shown:
            lines += [f"| {kind} | meaning |", "|---|---|"]
            lines += [f"| `{_cell(names)}` | {_cell(meaning)} |" for names, meaning in shown]
            lines.append("")
    return "\n".join(lines)


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
