"""Named agents of one form as one fleet, and one of them by itself, to the same bits.

What an agent computes depends on its own formulas alone, never on who else there is: numbers are
parameters, and a contribution that is a number times one component is a weight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sparse

from sottovoce.formula.canonical import multiply, substitute
from sottovoce.formula.expression import ONE, Expression, number
from sottovoce.problem.agents import Group, read_only
from sottovoce.problem.form import form_of, key_of
from sottovoce.problem.linear import coefficients
from sottovoce.problem.local import LocalSet
from sottovoce.simulation.formulas import Fleet, Sum

_FEW_ROWS = 4  # of an own set, two of which may be the two sides of one
_DENSE = 0.25  # share of weights that are not 0 from which all are kept


def in_form(fleet: Fleet) -> Fleet:
    """Return a named agent, a fleet of one with numbers in its formulas, in its form."""
    return _stacked([(fleet, *_read(fleet))])


def alike(fleets: Iterable[Fleet]) -> list[Fleet]:
    """Put named agents together that differ in numbers only and add to the same rows by formulas.

    Args:
        fleets: the agents, each a fleet of one.
    """
    found: defaultdict[Any, list[Any]] = defaultdict(list)
    for fleet in fleets:
        key, *rest = _read(fleet)
        found[key].append((fleet, key, *rest))
    return [_stacked(members) for members in found.values()]


_Weighted = dict[int, dict[int, float]]
"""The weight of every component, by row."""


def _read(fleet: Fleet) -> tuple[Any, list[float], _Weighted]:
    """The key of an agent's form, its numbers and its weights."""
    place = {s: c for c, s in enumerate(fleet.group.symbols)}
    weights: _Weighted = {}
    bent: list[tuple[int, Expression]] = []
    for part in fleet.sums:
        if part.table:
            for c in range(fleet.group.dim):
                at = slice(*part.weights.indptr[c : c + 2])
                own = (part.weights.indices[at].tolist(), part.weights.data[at].tolist())
                weights |= {c: dict(zip(*own, strict=True))} if at.stop > at.start else {}
            continue
        read = coefficients(part.terms[0])
        if read is not None and len(read[0]) == 1 and read[1] == 0.0:
            ((symbol, weight),) = read[0].items()
            weights.setdefault(place[symbol], {})[part.row] = weight
        else:
            bent.append((part.row, part.terms[0]))
    kept = () if fleet.local is None else fleet.local.inequalities
    equal = () if fleet.local is None else fleet.local.equalities
    keys: list[Expression] = []
    numbers: list[float] = []
    first = 0
    for formula in (fleet.objective, *(h for _, h in bent), *kept, *equal):
        first = len(numbers) if len(keys) == 1 + len(bent) else first
        key, values = key_of(formula, place)
        keys.append(key)
        numbers += values
    rows = tuple(row for row, _ in bent)
    counts = (len(kept), len(equal))
    again = _repeated(numbers, first) if 1 < sum(counts) <= _FEW_ROWS else ()
    used = tuple(sorted(weights))
    return (fleet.group.dim, tuple(keys), rows, used, counts, again), numbers, weights


_Repeated = tuple[tuple[int, int, float], ...]
"""A number's place, the place of the number that it repeats (-1: it is 1), and its sign then."""


def _repeated(numbers: Sequence[float], first: int) -> _Repeated:
    """Numbers of few own rows that are others again, up to their sign: rows may be parallel."""
    known, found = {1.0: -1}, []
    for place in range(first, len(numbers)):
        at = known.setdefault(abs(numbers[place]), place)
        if at != place:
            same = numbers[place] == (1.0 if at < 0 else numbers[at])
            found.append((place, at, 1.0 if same else -1.0))
    return tuple(found)


def _stacked(members: Sequence[tuple[Fleet, Any, list[float], _Weighted]]) -> Fleet:
    (first, key, _, _) = members[0]
    dim, keys, rows, used, counts, again = key
    form = form_of(keys, dim)
    same = {
        form.parameters[place]: multiply(number(sign), ONE if at < 0 else form.parameters[at])
        for place, at, sign in again
    }
    own_rows = [substitute(row, same) for row in form.formulas[1 + len(rows) :]]
    numbers = np.array([values for _, _, values, _ in members]).reshape(len(members), -1)
    groups = [fleet.group for fleet, _, _, _ in members]
    group = Group(
        name=first.group.name,
        count=len(members),
        symbols=form.symbols,
        lower=read_only(np.concatenate([g.lower for g in groups])),
        upper=read_only(np.concatenate([g.upper for g in groups])),
        parameters=dict(zip(form.parameters, numbers.T.copy(), strict=True)),
    )
    sums = [
        Sum(row=row, terms=(h,), weights=None)
        for row, h in zip(rows, form.formulas[1 : 1 + len(rows)], strict=True)
    ]
    if used:
        sums.append(_linear(used, form.symbols, [weights for _, _, _, weights in members]))
    return Fleet(
        group=group,
        column=first.column,
        objective=form.formulas[0],
        sums=tuple(sums),
        places=tuple(place for fleet, _, _, _ in members for place in fleet.places),
        local=_kept([fleet.local for fleet, _, _, _ in members], own_rows, counts),
    )


def _kept(
    local: Sequence[LocalSet | None], formulas: Sequence[Expression], counts: tuple[int, int]
) -> LocalSet | None:
    """What agents of one form keep to: their rows by form, and each its own bounds."""
    own = [one for one in local if one is not None]
    if len(own) < len(local):
        return None
    inequalities, _ = counts
    return replace(
        own[0],
        inequalities=tuple(formulas[:inequalities]),
        equalities=tuple(formulas[inequalities:]),
        lower=read_only(np.concatenate([one.lower for one in own])),
        upper=read_only(np.concatenate([one.upper for one in own])),
    )


def _linear(
    used: Sequence[int], symbols: Sequence[Expression], members: Sequence[_Weighted]
) -> Sum:
    """What is linear: the weight of component ``used[t]`` of agent i in column ``i T + t``."""
    columns = [weights[c] for weights in members for c in used]
    row = np.fromiter(chain.from_iterable(columns), dtype=np.int64)
    values = np.fromiter(chain.from_iterable(c.values() for c in columns), dtype=np.float64)
    column = np.repeat(np.arange(len(columns)), [len(c) for c in columns])
    shape = (int(row.max()) + 1, len(columns))
    matrix: Any = sparse.csr_array((values, (row, column)), shape=shape)
    if len(used) == 1 and matrix.nnz >= _DENSE * shape[0] * shape[1]:
        matrix = matrix.toarray()
    terms = tuple(symbols[c] for c in used)
    return Sum(row=0, terms=terms, weights=matrix, table=len(used) > 1)
