"""The command line, run in this process through the entry point that is installed."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.cli import main

PAPER = Path(__file__).parents[2] / "examples" / "paper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


COMMAND = (sys.executable, "-c", "from sottovoce.cli import main; main()")
"""The command in a process of its own."""


@contextlib.contextmanager
def _as_command(words: Sequence[str]) -> Iterator[None]:
    argv, threshold, columns = sys.argv, gc.get_threshold(), os.environ.get("COLUMNS")
    loggers = [logging.getLogger(), logging.getLogger("sottovoce")]
    before = [(one, one.level, list(one.handlers), one.propagate) for one in loggers]
    sys.argv, os.environ["COLUMNS"] = ["sottovoce", *words], "110"
    try:
        yield
    finally:
        sys.argv = argv
        gc.set_threshold(*threshold)
        for one, level, handlers, propagate in before:
            one.level, one.handlers, one.propagate = level, handlers, propagate
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


def run_cli(*words: Any) -> Ran:
    """Run a command in this process, through the entry point that is installed."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        _as_command([str(word) for word in words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())
