"""Total order of canonical formulas: by names, degree and structure, the same on every machine."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from hashlib import blake2b
from itertools import pairwise

from sottovoce.formula.expression import Expression, Op

_DIGITS = re.compile("[0-9]+")


def in_order(exprs: Iterable[Expression]) -> list[Expression]:
    """Sort canonical nodes: by names, then degree, then structure without numbers, then numbers.

    The order is the same in every process and on every machine, and for formulas that differ in
    coefficients only.
    """
    ordered = list(exprs)
    if len(ordered) > 1:
        ordered.sort(key=_name_key)
        if any(a._key == b._key for a, b in pairwise(ordered)):
            ordered.sort(key=lambda e: (_name_key(e), _digests(e)))
    return ordered


def name_keys(expr: Expression) -> tuple[str, ...]:
    """Keys of the names in a formula, sorted; their numbers compare as numbers: x2, x10."""
    inner: tuple[str, ...] = _name_key(expr)[1]
    return inner


def _name_key(expr: Expression) -> tuple[bool, tuple[str, ...], float]:
    if expr._key is None:
        if expr.op == Op.SYMBOL:
            name = _DIGITS.sub(lambda digits: f"{len(digits[0]):04}{digits[0]}", expr.value)
            expr._key = False, (name,), -1.0
            return expr._key
        below = [_name_key(a)[1] for a in expr.args if a.op != Op.NUMBER]
        inner = below[0] if len(below) == 1 else tuple(sorted({n for b in below for n in b}))
        expr._key = not inner, inner, -_degree(expr)
    return expr._key


def _degree(expr: Expression) -> float:
    """The degree of a monomial; 0 of anything else."""
    if expr.op == Op.MUL:
        return math.fsum(_degree(f) for f in expr.args)
    if expr.op == Op.POW:
        return float(expr.value) * _degree(expr.args[0])
    return float(expr.op == Op.SYMBOL)


def _digests(expr: Expression) -> tuple[bytes, bytes]:
    """Hashes of the structure without numbers, and with them; exponents count in both."""
    if expr._digests is None:
        value = expr.value.hex() if isinstance(expr.value, float) else expr.value
        kind = f"{expr.op} {'' if value is None else value};".encode()
        below = [_digests(a) for a in expr.args]
        bare = b"number" if expr.op == Op.NUMBER else kind
        parts = (b"".join([bare, *(s for s, _ in below)]), b"".join([kind, *(w for _, w in below)]))
        shape, full = (blake2b(part, digest_size=16).digest() for part in parts)
        expr._digests = shape, full
    return expr._digests


def digest(expr: Expression) -> bytes:
    """A hash of the structure of a canonical formula, numbers included."""
    return _digests(expr)[1]
