"""Run every benchmark: ``python -m benchmarks [NAME ...] [--write]``."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import llvmlite.binding as llvm

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
MARK = "<!-- measured: everything below is written by `make bench` with --write -->"


def main() -> None:
    modules = [m for m in iter_modules([str(HERE)]) if not m.ispkg]
    known = [m.name for m in modules if not m.name.startswith("_")]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known)}; all by default")
    parser.add_argument("--write", action="store_true", help="write the tables to docs")
    asked = parser.parse_args()
    tables = []
    for name in asked.names or known:
        module = import_module(f"benchmarks.{name}")
        tables.append(
            f"### {name.replace('_', ' ')}: {_first_line(module)}\n\n{table(module.run())}"
        )
        print(tables[-1], flush=True)
    if asked.write:
        text = PAGE.read_text("utf-8").partition(MARK)[0]
        PAGE.write_text(f"{text}{MARK}\n\n{_machine()}\n\n" + "\n".join(tables), "utf-8")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row[column]) for column in columns] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _first_line(module: Any) -> str:
    return str(module.__doc__).partition("\n")[0].rstrip(".")


def _machine() -> str:
    return (
        f"Measured on {llvm.get_host_cpu_name()}, {platform.system()}, Python "
        f"{platform.python_version()}, NumPy {version('numpy')}, Numba {version('numba')}. "
        "Ratios compare work timed within one run, the least time of several repetitions."
    )


if __name__ == "__main__":
    main()
