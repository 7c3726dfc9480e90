"""Tables of numbers beside a problem's TOML files: a header of names, then a line per agent."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.errors import ProblemError
from sottovoce.problem.groups import Array

AGENT = "agent"
"""The column of agents' numbers, from 1; without it a table has a line for every agent in order."""

_PLACE = re.compile(r"at row (\d+), column (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """Columns of numbers by name."""

    path: str  # where it was read, for messages
    columns: Mapping[str, Array]  # one array per column, all of one length

    @property
    def lines(self) -> int:
        """How many lines it has below the header."""
        return min((column.size for column in self.columns.values()), default=0)

    def numbers(self, agents: range) -> NDArray[np.int64]:
        """The numbers of the agents of its lines, which must be among ``agents``, each once."""
        if AGENT not in self.columns:
            if self.lines != len(agents):
                raise ProblemError(
                    f"{self.path} must have a line for each of {len(agents):,} agents, or a column "
                    f"{AGENT!r} with their numbers, got {self.lines:,} lines"
                )
            return np.arange(agents.start, agents.stop)
        numbers = self.columns[AGENT].astype(np.int64)
        expected = (numbers >= agents.start) & (numbers < agents.stop)
        if not np.array_equal(numbers, self.columns[AGENT]) or not expected.all():
            raise ProblemError(
                f"{self.path}: column {AGENT!r} must have integers from {agents.start} to "
                f"{agents.stop - 1}, got another number in line {int(np.argmin(expected)) + 2}"
            )
        if np.unique(numbers).size < numbers.size:
            raise ProblemError(f"{self.path}: column {AGENT!r} must name each agent once")
        return numbers

    def block(self, name: str, dim: int) -> Array | None:
        """The column ``name``, or the columns ``name[1]`` to ``name[dim]``, shape (lines, d)."""
        wanted = [name] if dim == 1 and name in self.columns else _components(name, dim)
        missing = [column for column in wanted if column not in self.columns]
        if len(missing) == len(wanted):
            return None
        if missing:
            raise ProblemError(f"{self.path} must have a column {missing[0]!r}, got none")
        return np.stack([self.columns[column] for column in wanted], axis=1)

    def parameters(self, reserved: tuple[str, ...]) -> dict[str, Array]:
        """The other columns by name, those of a vector as one array (lines, p)."""
        parameters: dict[str, Array] = {}
        for column in self.columns:
            name = column.partition("[")[0]
            if name in (AGENT, *reserved) or name in parameters:
                continue
            matching = [c for c in self.columns if c == name or c.startswith(f"{name}[")]
            if matching == [name]:
                parameters[name] = self.columns[name]
                continue
            block = self.block(name, len(matching)) if name not in matching else None
            if block is None:
                raise ProblemError(
                    f"{self.path}: columns of {name} must be {name!r}, or {name}[1] to "
                    f"{name}[{len(matching)}], got {', '.join(matching):.60}"
                )
            parameters[name] = block
        return parameters


def read_table(path: Path) -> tuple[Table, str | None]:
    """Read a table from CSV with its text, or from Parquet, which has none, if pyarrow is there."""
    # No message quotes a number, since tables may be private.
    if path.suffix not in (".csv", ".parquet"):
        raise ProblemError(f"a table must be called *.csv or *.parquet, got {path.name}")
    if not path.is_file():
        raise ProblemError(f"{path} must exist, got no such file: copy it beside the TOML file")
    try:
        read = _read_parquet if path.suffix == ".parquet" else _read_csv
        names, columns, text = read(path)
    except OSError as error:
        raise ProblemError(f"{path} must be readable, got {error.strerror or 'no table'}") from None
    if len(set(names)) < len(names) or not all(names):
        raise ProblemError(f"{path}: names of columns must differ and not be empty")
    for name, column in zip(names, columns, strict=True):
        if not np.isfinite(column).all():
            line = int(np.argmin(np.isfinite(column))) + 2
            raise ProblemError(f"{path}, line {line}: column {name!r} must be finite")
    return Table(path=str(path), columns=dict(zip(names, columns, strict=True))), text


def write_table(columns: Mapping[str, ArrayLike]) -> str:
    """Return columns as CSV that reads back to the same bits; integers without a point."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    lists = [np.asarray(column).tolist() for column in columns.values()]
    writer.writerows(zip(*lists, strict=True))
    return out.getvalue()


def columns_of(name: str, block: Array) -> dict[str, Array]:
    """Return an array (lines, d) as the column ``name``, or columns ``name[1]`` and on."""
    if block.shape[1] == 1:
        return {name: block[:, 0]}
    return {label: block[:, c] for c, label in enumerate(_components(name, block.shape[1]))}


def _components(name: str, dim: int) -> list[str]:
    return [f"{name}[{c + 1}]" for c in range(dim)]


def _read_csv(path: Path) -> tuple[list[str], list[Array], str]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProblemError(f"{path} must be UTF-8 text, got other bytes") from None
    header, _, body = text.partition("\n")
    # Spreadsheets begin a file with a mark of its encoding, or write semicolons between columns.
    names = [name.strip() for name in next(csv.reader([header.strip("\r\ufeff")]), [])]
    if len(names) == 1 and ";" in names[0]:
        raise ProblemError(f"{path} must have commas between its columns, got semicolons")
    if not names:
        raise ProblemError(f"{path} must begin with a line of column names, got none")
    if not body.strip():
        return names, [np.zeros(0) for _ in names], text
    try:
        rows = np.loadtxt(io.StringIO(body), delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        place = _PLACE.search(str(error))
        where = "" if place is None else f" (line {int(place[1]) + 2}, column {int(place[2])})"
        raise ProblemError(
            f"{path} must have {len(names)} numbers in every line, got something else{where}"
        ) from None
    if rows.shape[1] != len(names):
        raise ProblemError(
            f"{path} must have {len(names)} numbers in every line, as its header has names, got "
            f"{rows.shape[1]}"
        )
    return names, list(np.ascontiguousarray(rows.T)), text


def _read_parquet(path: Path) -> tuple[list[str], list[Array], None]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ProblemError(
            f"{path} needs pyarrow to be read, got none: install sottovoce[parquet], or write the "
            "table as CSV"
        ) from None
    try:
        table = parquet.read_table(path)
        columns = [table.column(name).to_numpy().astype(np.float64) for name in table.column_names]
    except (pyarrow.ArrowException, TypeError, ValueError):
        raise ProblemError(f"{path} must be a Parquet file of numbers, got another") from None
    return list(table.column_names), columns, None
