"""Problems written as folders that ``problem.folder`` reads back unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.arguments import instance, path_of
from sottovoce.errors import ProblemError
from sottovoce.problem.folder import FORMAT
from sottovoce.problem.printer import write_constraint, write_expression
from sottovoce.problem.problem import Problem

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def save_problem(problem: Problem, folder: str | Path) -> None:
    """Write a problem as a folder; one that was read from files is written back unchanged.

    Reading the folder again gives the same problem. Fleets have no file form: state them in
    Python.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    root = path_of("folder", folder)
    files = problem.source if problem.source is not None else _write(problem)
    for path in files:
        if (root / path).exists() and (root / path).read_text(encoding="utf-8") != files[path]:
            raise ProblemError(
                f"{root / path} exists already with other content: choose a new folder"
            )
    try:
        _write_files(root, files)
    except OSError as error:
        raise ProblemError(f"{root} must be a folder to write to, got {error.strerror}") from None


def _write_files(root: Path, files: Mapping[str, str]) -> None:
    (root / "agents").mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (root / path).write_text(text, encoding="utf-8")
        if path.startswith("agents/"):
            (root / path).chmod(0o600)


def _write(problem: Problem) -> dict[str, str]:
    lines = [f"format = {FORMAT}"]
    for group in problem.groups:
        if group.count != 1:
            raise ProblemError(
                f"only agents stated one by one can be written as files, got the fleet "
                f"{group.name} of {group.count}"
            )
        lines += ["", "[[agents]]", f"name = {_quoted(group.name)}"]
        lines += [f"dim = {group.dim}"] if group.dim > 1 else []
        lines += [f"lower = {_bounds(group.lower)}", f"upper = {_bounds(group.upper)}"]
    for constraint in (*problem.constraints, *problem.cloud.own):
        lines += ["", "[[constraints]]", f"name = {_quoted(constraint.name)}"]
        text = write_constraint(constraint.rest[0], equality=constraint.equality)
        lines += [f"expression = {_quoted(text)}"]
    for name, table in (("privacy", problem.privacy), ("schedule", problem.schedule)):
        if table:
            lines += ["", f"[{name}]", *(f"{k} = {_setting(v)}" for k, v in table.items())]
    files = {"problem.toml": "\n".join(lines) + "\n"}
    for i, group in enumerate(problem.groups):
        lines = [
            f"agent = {_quoted(group.name)}",
            f"objective = {_quoted(write_expression(problem.objectives[i]))}",
            f"start = {_bounds(problem.start[i])}",
        ]
        rows = problem.local[i].of_agent(group, 0).stated
        if rows:
            texts = (write_constraint(row.g, equality=row.equality) for row in rows)
            lines += ["local = [", *(f"  {_quoted(text)}," for text in texts), "]"]
        files[f"agents/{i + 1}.toml"] = "\n".join(lines) + "\n"
    return files


def _bounds(values: Any) -> str:
    flat = [repr(float(v)) for v in np.ravel(values)]
    return flat[0] if len(flat) == 1 else f"[{', '.join(flat)}]"


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_setting, value))}]"
    return repr(value)


def _quoted(text: str) -> str:
    """A text as TOML's basic string, whatever letters it has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ProblemError(f"a name must be text that UTF-8 can write, got {text!r:.60}") from None
    letters = (_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return f'"{"".join(letters)}"'
