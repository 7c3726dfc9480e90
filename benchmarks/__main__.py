"""Run every benchmark: ``python -m benchmarks [NAME ...] [--write]``."""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from sottovoce.kernels.variant import variant

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "explanation" / "performance.md"
MARK = "<!-- measured: everything below is written by `python -m benchmarks --write` -->"
_RUN = re.compile(r"^def run\(", re.MULTILINE)
_SECTION = re.compile(r"^### (\w+): ", re.MULTILINE)


def main() -> int:
    known = [p.stem for p in sorted(HERE.glob("[a-z]*.py")) if _RUN.search(p.read_text("utf-8"))]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--write", action="store_true", help="write the tables to docs")
    asked = parser.parse_args()
    failed = []
    for name in asked.names or known:
        began = perf_counter()
        try:
            module = import_module(f"benchmarks.{name}")
            text = f"### {name}: {_first_line(module)}\n\n{table(module.run())}"
        except Exception as error:  # the others are measured all the same
            failed.append(name)
            print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        print(text, flush=True)
        print(f"{name} took {perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        if asked.write:
            _write(getattr(module, "PAGE", PAGE), name, f"{text}\n{_machine()}\n")
    return 1 if failed else 0


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row[column]) for column in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _write(path: Path, name: str, section: str) -> None:
    """Put one section in its place on a page, and leave the others as they were measured."""
    page = path.read_text("utf-8")
    if MARK not in page:
        raise ValueError(f"{path} must have the line {MARK}")
    head, _, measured = page.partition(MARK)
    starts = [*(m.start() for m in _SECTION.finditer(measured)), len(measured)]
    parts = [measured[a:b].strip() for a, b in itertools.pairwise(starts)]
    sections = {part[4:].partition(":")[0]: part for part in parts} | {name: section.strip()}
    text = "\n\n".join(sections[key] for key in sorted(sections))
    path.write_text(f"{head}{MARK}\n\n{text}\n", "utf-8")


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _first_line(module: Any) -> str:
    return str(module.__doc__).partition("\n")[0].rstrip(".")


def _machine() -> str:
    return (
        f"{platform.machine()}, {variant()} kernels, {os.cpu_count()} processors, "
        f"{platform.system()}, Python {platform.python_version()}, NumPy {version('numpy')}; "
        f"load {os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    sys.exit(main())
