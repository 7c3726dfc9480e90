"""How far a float64 evaluation of a formula can be off, for every point of a box.

Noise hides a number only if adjacent inputs move it by no more than the sensitivity; what rounding
adds to that movement is bounded here and paid for in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sparse
import sympy as sp

from sottovoce.certify.gradients import GradientEntry
from sottovoce.certify.interval import Interval, evaluate, exponent_of, operands, raised
from sottovoce.certify.kink_errors import is_kink, kink_error
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.constraints import FleetSum
from sottovoce.problem.problem import CloudView

_UNIT = 2.0**-53
# What an operation may lose besides, near zero. Subnormal numbers are 2^-1074 apart; the smallest
# normal number also covers a processor that some library has set to flush them to zero.
_UNDERFLOW = 2.0**-1022
_OVERFLOW = 2.0**1000  # a partial result beyond this may leave the range of float64
_LARGEST_LOG = 750.0  # of any positive float64, in size
_LIBRARY = 16.0  # ulps that exp, log and real powers may err by, with room to spare
_UP = 1.0 + 2.0**-46  # more than all the roundings of these bounds themselves
_SUM_UP = 1.0 + 2.0**-20  # the same for sums over a fleet of billions


def evaluation_error(expr: sp.Expr, box: Mapping[sp.Symbol, Interval]) -> Array:
    """Bound ``|fl(expr(x)) - expr(x)|`` over every box, whatever order sums and products take.

    With unit roundoff u, underflow t = 2^-1022, magnitudes M and errors e of the operands: a sum
    of k terms errs by ``sum e + k u sum (M + e) + k t``, a product by ``prod (M + e) - prod M +
    k u prod (M + e) + k t prod max(1, M + e)``, a function by its steepest slope times e plus a few
    u of its value plus t, a power x^n by multiplications plus 4 n t. Inputs are exact doubles that
    may count as 0 if they are subnormal; constants are rounded once.

    Returns:
        One bound per box; infinite where none exists, or where a partial result may overflow.
    """
    ranges = evaluate(expr, box)
    errors: dict[sp.Expr, Array] = {}
    with np.errstate(all="ignore"):
        for node, value in ranges.items():
            inner = [(ranges[c], errors[c]) for c in operands(node)]
            error = np.asarray(_node_error(node, value.magnitude, inner) * _UP)
            errors[node] = np.where(np.isnan(error), np.inf, error)
    return errors[expr]


def _node_error(
    node: sp.Expr, size: Array, inner: Sequence[tuple[Interval, Array]]
) -> Array | float:
    if node.is_Symbol:
        return np.full(1, _UNDERFLOW)
    if node.is_Number or node.is_NumberSymbol:
        return size * _UNIT
    if node.is_Add:
        reach = sum(value.magnitude + error for value, error in inner)
        lost = len(inner) * (_UNIT * reach + _UNDERFLOW)
        return np.asarray(sum(error for _, error in inner) + lost)
    if node.is_Mul:
        return _product_error(inner)
    if is_kink(node):
        return kink_error(node, size, inner)
    base, error = inner[0]
    wide = Interval(lower=base.lower - error, upper=base.upper + error)
    if node.is_Pow:
        return _power_error(wide, error, exponent_of(node))
    if isinstance(node, sp.exp):
        top = wide.exp().magnitude
        return np.asarray(top * error + _LIBRARY * _UNIT * top + _UNDERFLOW)
    lost = _LIBRARY * _UNIT * wide.log().magnitude + _UNDERFLOW
    return np.asarray(wide.reciprocal().magnitude * error + lost)


def _product_error(inner: Sequence[tuple[Interval, Array]]) -> Array:
    product, exact, grown = np.ones(1), np.ones(1), np.ones(1)
    for value, error in inner:
        most = value.magnitude + error
        product, exact = product * most, exact * value.magnitude
        grown = grown * np.maximum(most, 1.0)
    # The subtraction cancels, so that its own rounding counts in full.
    rounded = product - exact + 8 * len(inner) * _UNIT * product
    # A partial product that underflowed may be enlarged by the other factors.
    return np.where(grown < _OVERFLOW, rounded + len(inner) * _UNDERFLOW * grown, np.inf)


def _power_error(wide: Interval, error: Array, exponent: sp.Expr) -> Array:
    q = abs(float(exponent))
    slope = q * raised(wide, exponent - 1).magnitude if exponent != 1 else 1.0
    result = raised(wide, exponent).magnitude
    if exponent.is_Integer:
        steps = np.asarray(2.0 * q)
    elif exponent == sp.Rational(float(exponent)):
        steps = np.zeros(1)
    else:
        # The exponent is rounded too, which moves x^q by the factor 1 + u |ln x^q|.
        steps = np.minimum(2.0 * q * wide.log().magnitude, _LARGEST_LOG)
    rounded = slope * error + (_LIBRARY + steps) * _UNIT * result
    # Partial powers underflow only where |x| < 1, and no later factor enlarges them there.
    return np.asarray(rounded + np.where(result < _OVERFLOW, (4.0 * q + 1.0) * _UNDERFLOW, np.inf))


def evaluation_errors(
    cloud: CloudView, domain: Sequence[Group], released: Sequence[GradientEntry]
) -> tuple[Array, Array]:
    """Bound the evaluation error and the size of every output over the domain.

    Returns:
        For the rows of g and then the released gradients, how far float64 may be off, and the
        largest absolute value that it may compute.
    """
    boxes = {group.name: group for group in domain}
    named = {
        s: Interval(lower=g.lower[:, c], upper=g.upper[:, c])
        for g in domain
        if g.count == 1
        for c, s in enumerate(g.symbols)
    }
    errors: list[float] = []
    sizes: list[float] = []
    for family in cloud.constraints:
        total = np.abs(family.offset) * _UNIT * 2 + _UNDERFLOW
        size = np.abs(family.offset)
        for row, g in enumerate(family.named):
            total[row] += float(evaluation_error(g, named).max())
            size[row] += float(evaluate(g, named)[g].magnitude.max())
        for part in family.sums:
            part_error, part_size, terms = _of_sum(part, boxes[part.group.name])
            total += part_error + terms * (_UNIT * part_size + _UNDERFLOW)
            size += part_size
        if family.sums:
            total += (len(family.sums) + 2) * (_UNIT * size + _UNDERFLOW)
        errors += list(total * _UP)
        sizes += list(size)
    for e in released:
        errors.append(float(evaluation_error(e.formula, named).max()))
        sizes.append(float(evaluate(e.formula, named)[e.formula].magnitude.max()))
    bound = np.array(errors)
    return bound, np.asarray((np.array(sizes) + bound) * _SUM_UP)


def _of_sum(part: FleetSum, group: Group) -> tuple[Array, Array, int]:
    """Errors and magnitudes of the summands added up per row, and how many there are."""
    errors, sizes = [], []
    for h in part.terms:
        box = {
            s: Interval(lower=group.lower[:, c], upper=group.upper[:, c])
            for c, s in enumerate(group.symbols)
            if s in h.free_symbols
        } | {s: Interval(lower=a, upper=a) for s, a in group.parameters.items()}
        size = evaluate(h, box)[h].magnitude
        errors.append(np.broadcast_to(evaluation_error(h, box) + 2 * _UNIT * size, (group.count,)))
        sizes.append(np.broadcast_to(size, (group.count,)))
    if part.weights is None:
        return np.array([e.sum() for e in errors]), np.array([s.sum() for s in sizes]), group.count
    weights = abs(part.weights) if sparse.issparse(part.weights) else np.abs(part.weights)
    totals = [np.stack([weights @ v for v in values], axis=1).ravel() for values in (errors, sizes)]
    return totals[0], totals[1], group.count
