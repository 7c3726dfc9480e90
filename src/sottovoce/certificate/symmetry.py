"""The same formula under other names: what was certified once is not certified again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from sottovoce.certificate.parts import uses
from sottovoce.certificate.spectral import spectral_supremum
from sottovoce.certificate.supremum import Supremum, supremum
from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import substitute
from sottovoce.formula.expression import Expression, symbol

Bounds = Mapping[Expression, tuple[float, float]]
Facts = Sequence[frozenset[Expression]] | None


def norm_supremum(
    components: Sequence[Expression], box: Bounds, *, nondecreasing: Facts, tolerance: float
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
    matrix: Sequence[Sequence[Expression]], box: Bounds, *, tolerance: float
) -> Supremum:
    """Certify ``sup |matrix(x)|_2`` (spectral) over a box, once for all renamings."""
    exprs, names = _renamed([entry for row in matrix for entry in row], box)
    return _spectral(exprs, len(matrix[0]), tuple(box[s] for s in names), tolerance)


def _renamed(
    exprs: Sequence[Expression], box: Bounds
) -> tuple[tuple[Expression, ...], dict[Expression, Expression]]:
    """Rename symbols by the roles they play; symmetric ones tie, and any order of them will do."""
    used = [s for s in box if any(s in e.symbols for e in exprs)]
    counts = [uses(e) for e in exprs]
    roles = {s: (tuple(count[s] for count in counts), box[s]) for s in used}
    ordered = sorted(used, key=lambda s: roles[s])
    names = {s: symbol(f"t{i}") for i, s in enumerate(ordered)}
    return tuple(substitute(e, names) for e in exprs), names


def _box(bounds: tuple[tuple[float, float], ...]) -> dict[Expression, tuple[float, float]]:
    return {symbol(f"t{i}"): ends for i, ends in enumerate(bounds)}


@lru_cache(maxsize=4096)
def _norm(
    components: tuple[Expression, ...],
    bounds: tuple[tuple[float, float], ...],
    facts: tuple[frozenset[Expression], ...] | None,
    tolerance: float,
) -> Supremum:
    return supremum(components, _box(bounds), nondecreasing=facts, tolerance=tolerance)


@lru_cache(maxsize=4096)
def _spectral(
    entries: tuple[Expression, ...],
    width: int,
    bounds: tuple[tuple[float, float], ...],
    tolerance: float,
) -> Supremum:
    matrix = [list(entries[i : i + width]) for i in range(0, len(entries), width)]
    return spectral_supremum(matrix, _box(bounds), tolerance=tolerance)
