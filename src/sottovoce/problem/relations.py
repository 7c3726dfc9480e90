"""Rows as people write them: comparisons, equalities, text, and arrays of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from sympy.core.relational import Equality, GreaterThan, LessThan, Relational
from sympy.logic.boolalg import BooleanAtom

from sottovoce.errors import ProblemError
from sottovoce.problem.constraints import Hard, hard
from sottovoce.problem.expressions import check_expression, sympified
from sottovoce.problem.printer import readable
from sottovoce.problem.text import parse_constraint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One row ``g(x) <= 0`` or ``g(x) = 0``.

    Attributes:
        g: the formula.
        equality: whether it must be 0.
        label: the row as it was written.
    """

    g: sp.Expr
    equality: bool
    label: str


def named_rows(given: Any, prefix: str) -> Iterator[tuple[str, Any]]:
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
            yield from ((label, hard(entry)) for label, entry in named_rows({name: row.row}, ""))
        elif isinstance(row, (np.ndarray, list, tuple)):
            flat = np.ravel(np.asarray(row, dtype=object))
            for k, entry in enumerate(flat):
                yield (name if flat.size == 1 else f"{name}[{k + 1}]"), entry
        else:
            yield name, row


def read_row(given: Any, symbols: Mapping[str, sp.Symbol], where: str) -> Row:
    """Read one row: a comparison with <= or >=, ``sv.equal``, text, or one that was read before.

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


def read_formula(given: Any, symbols: Mapping[str, sp.Symbol], where: str) -> tuple[sp.Expr, bool]:
    """Return g of a row ``g <= 0`` or ``g = 0``, and whether it must be 0; see ``read_row``."""
    if isinstance(given, Row):
        return given.g, given.equality
    if isinstance(given, Hard):
        return read_formula(given.row, symbols, where)
    equality = isinstance(given, Equality)
    if isinstance(given, str):
        g, equality = parse_constraint(given, symbols, where=where)
    elif isinstance(given, (bool, np.bool_, BooleanAtom)):
        raise ProblemError(
            f"{where} must name at least one agent, got a comparison that is always "
            f"{bool(given)}: remove it or mend it, and write an equality as sv.equal(left, right), "
            "because Python answers == at once"
        )
    elif isinstance(given, LessThan | GreaterThan):
        g = given.lts - given.gts
    elif isinstance(given, Equality):
        g = given.lhs - given.rhs
    else:
        kind = f"{given!r:.60}"
        if isinstance(given, Relational):
            kind = f"the relation {given.rel_op}, which leaves out its border: include it"
        raise ProblemError(f"{where} must be a comparison with <= or >=, or sv.equal, got {kind}")
    g = check_expression(g, symbols.values(), where)
    if not g.free_symbols:
        raise ProblemError(f"{where} must name at least one agent, got {given}: remove it")
    return g, equality


def _label(given: Any) -> str:
    """A row that was checked as people read it."""
    if isinstance(given, Hard):
        return _label(given.row)
    if isinstance(given, str):
        return given
    left, right = (readable(sympified(side)) for side in (given.lhs, given.rhs))
    return f"{left} {given.rel_op} {right}"
