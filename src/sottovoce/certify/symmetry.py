"""The same formula under other names: what was certified once is not certified again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import sympy as sp

from sottovoce.certify.spectral import spectral_supremum
from sottovoce.certify.supremum import Supremum, supremum
from sottovoce.errors import CertificateError

Bounds = Mapping[sp.Symbol, tuple[float, float]]
Facts = Sequence[frozenset[sp.Symbol]] | None


def norm_supremum(
    components: Sequence[sp.Expr], box: Bounds, *, nondecreasing: Facts, tolerance: float
) -> Supremum:
    """Certify ``sup |components(x)|_2`` over a box, once for all renamings of the symbols.

    Args: as for ``supremum``.
    """
    exprs, names = _renamed(components, box)
    facts = None
    if nondecreasing is not None:
        facts = tuple(frozenset(names[s] for s in fact if s in names) for fact in nondecreasing)
    try:
        return _norm(exprs, tuple(box[s] for s in names), facts, tolerance)
    except CertificateError:
        # Once more under the names people know, so that the refusal says which state to bound.
        return supremum(components, box, nondecreasing=nondecreasing, tolerance=tolerance)


def matrix_supremum(
    matrix: Sequence[Sequence[sp.Expr]], box: Bounds, *, tolerance: float
) -> Supremum:
    """Certify ``sup |matrix(x)|_2`` (spectral) over a box, once for all renamings."""
    exprs, names = _renamed([entry for row in matrix for entry in row], box)
    return _spectral(exprs, len(matrix[0]), tuple(box[s] for s in names), tolerance)


def _renamed(
    exprs: Sequence[sp.Expr], box: Bounds
) -> tuple[tuple[sp.Expr, ...], dict[sp.Symbol, sp.Symbol]]:
    """Rename symbols by the roles they play; symmetric ones tie, and any order of them will do."""
    used = [s for s in box if any(s in e.free_symbols for e in exprs)]
    roles = {s: (tuple(int(e.count(s)) for e in exprs), box[s]) for s in used}
    ordered = sorted(used, key=lambda s: roles[s])
    names = {s: sp.Symbol(f"t{i}") for i, s in enumerate(ordered)}
    return tuple(e.xreplace(names) for e in exprs), names


def _box(bounds: tuple[tuple[float, float], ...]) -> dict[sp.Symbol, tuple[float, float]]:
    return {sp.Symbol(f"t{i}"): ends for i, ends in enumerate(bounds)}


@lru_cache(maxsize=4096)
def _norm(
    components: tuple[sp.Expr, ...],
    bounds: tuple[tuple[float, float], ...],
    facts: tuple[frozenset[sp.Symbol], ...] | None,
    tolerance: float,
) -> Supremum:
    return supremum(components, _box(bounds), nondecreasing=facts, tolerance=tolerance)


@lru_cache(maxsize=4096)
def _spectral(
    entries: tuple[sp.Expr, ...],
    width: int,
    bounds: tuple[tuple[float, float], ...],
    tolerance: float,
) -> Supremum:
    matrix = [list(entries[i : i + width]) for i in range(0, len(entries), width)]
    return spectral_supremum(matrix, _box(bounds), tolerance=tolerance)
