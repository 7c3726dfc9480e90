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

from sottovoce.engine.formulas import Fleet, Sum
from sottovoce.formula.expression import Expression
from sottovoce.problem.agents import Group, read_only
from sottovoce.problem.form import form_of, key_of
from sottovoce.problem.linear import coefficients
from sottovoce.problem.local import LocalSet
from sottovoce.problem.problem import CloudView

_STATES = 32  # scalar states of named agents from which they are put together by form
_WEIGHTS = 256  # the same for numbers in linear rows
_DENSE = 0.25  # share of weights that are not 0 from which all are kept


def by_form(cloud: CloudView) -> bool:
    """Whether named agents are put together by form: a public rule, as each must follow it.

    Few agents are written into a kernel one by one, which compiles faster than a fleet for each.
    """
    states = sum(group.dim for group in cloud.groups if group.count == 1)
    weights = sum(f.linear.weights.nnz for f in cloud.sums.families if f.linear is not None)
    return cloud.sums.free and (states >= _STATES or weights >= _WEIGHTS)


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
    keys, numbers = [], list[float]()
    for formula in (fleet.objective, *(h for _, h in bent), *kept, *equal):
        key, values = key_of(formula, place)
        keys.append(key)
        numbers += values
    rows = tuple(row for row, _ in bent)
    counts = (len(kept), len(equal))
    return (fleet.group.dim, tuple(keys), rows, tuple(sorted(weights)), counts), numbers, weights


def _stacked(members: Sequence[tuple[Fleet, Any, list[float], _Weighted]]) -> Fleet:
    (first, key, _, _) = members[0]
    dim, keys, rows, used, counts = key
    form = form_of(keys, dim)
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
        local=_kept(
            [fleet.local for fleet, _, _, _ in members], form.formulas[1 + len(rows) :], counts
        ),
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
