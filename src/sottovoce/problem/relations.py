"""Rows as people write them: comparisons, equalities, text, and arrays of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.errors import ProblemError
from sottovoce.formula.expression import Expression, Relation
from sottovoce.formula.parse import check_expression, parse_constraint
from sottovoce.problem.constraints import Hard, hard


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One row ``g(x) <= 0`` or ``g(x) = 0``.

    Attributes:
        g: the formula.
        equality: whether it must be 0.
        label: the row as it was written.
    """

    g: Expression
    equality: bool
    label: str


def labelled_rows(given: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and the rows of a mapping or a list; arrays of rows are written out.

    Args:
        given: a mapping from names to rows, a list of rows, or one row.
        prefix: rows of a list are called ``prefix1``, ``prefix2``, ...
    """
    if isinstance(given, Mapping):
        pairs = [(str(name), row) for name, row in given.items()]
    else:
        listed = list(given) if isinstance(given, (list, tuple)) else [given]
        pairs = [(f"{prefix}{j + 1}", row) for j, row in enumerate(listed)]
    for name, row in pairs:
        if isinstance(row, Hard):
            yield from ((label, hard(entry)) for label, entry in labelled_rows({name: row.row}, ""))
        elif isinstance(row, (np.ndarray, list, tuple)):
            flat = np.ravel(np.asarray(row, dtype=object))
            for k, entry in enumerate(flat):
                yield (name if flat.size == 1 else f"{name}[{k + 1}]"), entry
        else:
            yield name, row


def read_row(given: Any, symbols: Mapping[str, Expression], where: str) -> Row:
    """Read one row: a comparison with <=, >= or ==, text, or one that was read before.

    Args:
        given: the row.
        symbols: what it may name.
        where: what it is, for errors.

    Raises:
        ProblemError: if it is anything else, or names nothing.
    """
    if isinstance(given, Row):
        return given
    g, equality = read_formula(given, symbols, where)
    return Row(g=g, equality=equality, label=_label(given))


def read_formula(
    given: Any, symbols: Mapping[str, Expression], where: str
) -> tuple[Expression, bool]:
    """Return g of a row ``g <= 0`` or ``g = 0``, and whether it must be 0; see ``read_row``."""
    if isinstance(given, Row):
        return given.g, given.equality
    if isinstance(given, Hard):
        return read_formula(given.row, symbols, where)
    if isinstance(given, str):
        g, equality = parse_constraint(given, symbols, where=where)
    elif isinstance(given, bool | np.bool_):
        raise ProblemError(
            f"{where} must name at least one agent, got a comparison that is always "
            f"{bool(given)}: remove it or mend it"
        )
    elif isinstance(given, Relation):
        g, equality = check_expression(given.g, symbols.values(), where), given.equality
    else:
        raise ProblemError(f"{where} must be a comparison with <=, >= or ==, got {given!r:.60}")
    if not g.symbols:
        raise ProblemError(f"{where} must name at least one agent, got {given}: remove it")
    return g, equality


def _label(given: Any) -> str:
    """A row that was checked as people read it."""
    if isinstance(given, Hard):
        return _label(given.row)
    return given if isinstance(given, str) else repr(given)
