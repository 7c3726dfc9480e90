"""Interval enclosures of formulas and bounds of their rounding errors, for many boxes at once.

An ``Interval`` holds arrays, so that one walk over a formula bounds it on every box of a
subdivision, or for every agent of a fleet: its values, its slopes (where a slope jumps, every
subgradient lies inside), and how far a float64 evaluation can be off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from operator import add, mul
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.errors import CertificateError
from sottovoce.formula.canonical import factors, has_domain, is_integer
from sottovoce.formula.derive import gradient, rationalise
from sottovoce.formula.expression import (
    SLOPES,
    ZERO,
    Expression,
    Op,
    Scalar,
    exact_arithmetic,
    nodes,
    scalar,
)
from sottovoce.formula.intervals import (
    BoolArray,
    FloatArray,
    Interval,
    constant,
    interval,
    square_root,
    unchecked,
)
from sottovoce.formula.log_sum_exp import (
    argument_of,
    enclose_softmax,
    exponentials,
    is_proven_positive,
    is_reciprocal_sum,
    logarithm,
)

IntervalBox: TypeAlias = Mapping[Expression, Interval]
"""An interval for each symbol; their shapes broadcast."""

Ends: TypeAlias = tuple[ArrayLike, ArrayLike]
"""Least and largest value, two numbers or two arrays with one entry per box."""

ROUNDOFF = 2.0**-53  # the largest relative error of one rounding

UNDERFLOW = 2.0**-1022
"""What an operation may lose besides, near zero. Subnormal numbers are 2^-1074 apart; the smallest
normal number also covers a processor that some library has set to flush them to zero."""

UP = 1.0 + 2.0**-46  # more than all the roundings of these bounds themselves

_OVERFLOW = 2.0**1000  # a partial result beyond this may leave the range of float64
_LARGEST_LOG = 750.0  # of any positive float64, in size
_LIBRARY_ULPS = 16.0  # that exp, log and real powers may err by: NumPy's, and those of kernels
_NORM_UNDERFLOW = 2.0**-500  # more than the root of what squares may lose to underflow
# Relative errors up to the first add up to at most the second times their sum, products included;
# beyond it there is no bound.
_MAX_RELATIVE, _PRODUCT_FACTOR = 2.0**-10, 1.0 + 2.0**-7

Errors: TypeAlias = Mapping[Expression, FloatArray]
Pair: TypeAlias = tuple[Interval, FloatArray]  # the range of an operand and a bound of its error


@lru_cache(maxsize=1024)
def _order(*exprs: Expression) -> tuple[Expression, ...]:
    return tuple(nodes(exprs))


def evaluate(
    expr: Expression, box: IntervalBox, others: Sequence[Expression] = ()
) -> dict[Expression, Interval]:
    """Enclose every distinct node of a formula and maybe of others, operands first.

    Points at which a node is undefined are passed over; ``enclose`` does not.
    """
    values: dict[Expression, Interval] = {}
    for node in _order(expr, *others):
        if node.op != Op.SYMBOL:
            values[node] = _VALUES[node.op](node, [values[a] for a in node.args])
            if (closer := _of_exponentials(node, values)) is not None:
                lower = np.maximum(values[node].lower, closer.lower)
                values[node] = unchecked(lower, np.minimum(values[node].upper, closer.upper))
        elif node in box:
            values[node] = box[node]
        else:
            raise CertificateError(f"every symbol must be bounded, got no bounds for {node}")
    return values


def _of_exponentials(node: Expression, values: Mapping[Expression, Interval]) -> Interval | None:
    """A closer enclosure of what is made of a sum of exponentials, if there is one."""
    if node.op == Op.LOG:
        return logarithm(node.args[0], values)
    return enclose_softmax(node.args, values) if node.op == Op.MUL else None


@lru_cache(maxsize=4096)
def domain_conditions(expr: Expression) -> tuple[tuple[Expression, str, Expression], ...]:
    """What must hold for a formula to be defined: (operand, relation to 0, whose operand it is).

    log needs a positive argument, a negative power a nonzero base, a fractional one a nonnegative
    base.
    """
    relations: list[tuple[Expression, str, Expression]] = []
    for part in (node for node in _order(expr) if node.symbols):
        if part.op == Op.LOG:
            relations.append((part.args[0], ">", part))
        elif part.op == Op.POW and not is_integer(part.value):
            relations.append((part.args[0], ">=" if part.value > 0 else ">", part))
        elif part.op == Op.POW and part.value < 0:
            relations.append((part.args[0], "!=", part))
    return tuple(relations)


def _violated(relation: str, value: Interval) -> tuple[BoolArray, BoolArray]:
    """Where an operand may break a relation to 0, and where it must."""
    low, high = value.lower, value.upper
    if relation == "!=":
        return (low <= 0) & (high >= 0), (low == 0) & (high == 0)
    return (low < 0, high < 0) if relation == ">=" else (low <= 0, high <= 0)


def require_defined(expr: Expression, box: IntervalBox) -> str:
    """Refuse a formula that is undefined on the whole of a box; else say how to bound it."""
    values = evaluate(expr, box)
    remedy = ""
    for base, relation, node in domain_conditions(expr):
        may, must = _violated(relation, values[base])
        if np.any(may & ~is_proven_positive(base, values)):
            remedy = remedy or f"tighten the bounds so that {base} stays positive"
        if np.any(must):
            raise CertificateError(
                f"{node} must be defined on the bounds, got {base} in "
                f"[{values[base].lower[must][0]:.6g}, {values[base].upper[must][0]:.6g}]; "
                f"tighten the bounds so that {base} stays positive"
            )
    return remedy or "tighten the bounds"


def enclose(expr: Expression, box: IntervalBox) -> Interval:
    """Enclose the range of a canonical formula on every box.

    {expr(x) : x in box} is contained in [lower, upper], box by box. Where a box may hold a point at
    which the formula is undefined, the enclosure is the whole line.
    """
    values = evaluate(expr, box)
    return _spread(values[expr], _maybe_undefined(expr, values), _shape(box))


def _maybe_undefined(expr: Expression, values: Mapping[Expression, Interval]) -> BoolArray:
    violated = (
        _violated(relation, values[base])[0] & ~is_proven_positive(base, values)
        for base, relation, _ in domain_conditions(expr)
    )
    return reduce(np.logical_or, violated, np.zeros((), dtype=np.bool_))


def enclose_with_gradient(
    expr: Expression, box: IntervalBox, variables: Sequence[Expression]
) -> tuple[Interval, Interval]:
    """Enclose a formula and its partial derivatives, index i for variable i, on every box.

    Where a part of the formula may jump, no finite slope bounds its changes: the whole line does.
    """
    slopes = _slopes(expr, tuple(variables))
    values = evaluate(expr, box, slopes)
    maybe_undefined, shape = _maybe_undefined(expr, values), _shape(box)
    jumps = reduce(np.logical_or, (_may_jump(n, values) for n in _order(expr)), maybe_undefined)
    ends = [_spread(values[slope], jumps, shape) for slope in slopes]
    gradient = unchecked(np.stack([e.lower for e in ends]), np.stack([e.upper for e in ends]))
    return _spread(values[expr], maybe_undefined, shape), gradient


@lru_cache(maxsize=4096)
@exact_arithmetic()
def _slopes(expr: Expression, variables: tuple[Expression, ...]) -> tuple[Expression, ...]:
    slopes = gradient(rationalise(expr), variables)
    return tuple(slopes.get(s, ZERO) for s in variables)


def _may_jump(node: Expression, values: Mapping[Expression, Interval]) -> BoolArray:
    """Where the slope of a non-smooth operation may change."""
    if node.op not in SLOPES:
        return np.zeros((), dtype=np.bool_)
    operands = node.args[: len(node.args) // 2] if node.op == Op.NORM_SLOPE else node.args[:1]
    zero = ((values[a].lower <= 0.0) & (values[a].upper >= 0.0) for a in operands)
    return reduce(np.logical_and, zero)


def value_range(expr: Expression, box: Mapping[Expression, Ends]) -> tuple[FloatArray, FloatArray]:
    """Return ends that hold all values of a formula where it is defined."""
    value = evaluate(expr, {symbol: interval(*ends) for symbol, ends in box.items()})[expr]
    return value.lower, value.upper


def _shape(box: IntervalBox) -> tuple[int, ...]:
    return np.broadcast_shapes(*(side.shape for side in box.values()))


def _spread(value: Interval, maybe_undefined: BoolArray, shape: tuple[int, ...]) -> Interval:
    lower, upper = value.lower, value.upper
    if np.any(maybe_undefined):
        lower, upper = (
            np.where(maybe_undefined, -np.inf, lower),
            np.where(maybe_undefined, np.inf, upper),
        )
    return unchecked(np.broadcast_to(lower, shape), np.broadcast_to(upper, shape))


def _abs(a: Interval) -> Interval:
    return unchecked(np.maximum(np.maximum(a.lower, -a.upper), 0.0), a.magnitude)


def _where(d: Interval, yes: Interval, no: Interval) -> Interval:
    """``yes`` where d is surely positive, ``no`` where it surely is not, both elsewhere."""
    above, below = d.lower > 0.0, d.upper <= 0.0
    low = np.where(above, yes.lower, np.where(below, no.lower, np.minimum(yes.lower, no.lower)))
    high = np.where(above, yes.upper, np.where(below, no.upper, np.maximum(yes.upper, no.upper)))
    return unchecked(low, high)


def _norm(a: Sequence[Interval]) -> Interval:
    return square_root(reduce(add, (part.power(2) for part in a)))


def _norm_slope(a: Sequence[Interval], b: Sequence[Interval]) -> Interval:
    """``sum_k a_k b_k / |a|``, at most ``|b|`` in size by Cauchy and Schwarz."""
    most = _norm(b).upper
    length = _norm(a)
    fraction = reduce(add, (x * y for x, y in zip(a, b, strict=True))) * length.reciprocal()
    nonzero = length.lower > 0.0
    low = np.where(nonzero, np.maximum(fraction.lower, -most), -most)
    high = np.where(nonzero, np.minimum(fraction.upper, most), most)
    return unchecked(low, high)


def _huber(a: Interval, m: Interval) -> Interval:
    """It rises with |a|, never lies above a^2 nor below its tangent at M."""
    size = _abs(a)
    square, line = size.power(2), m * (size * constant(2) - m)
    low = np.where(size.lower < m.lower, square.lower, np.maximum(line.lower, 0.0))
    high = np.where(size.upper <= m.upper, square.upper, line.upper)
    return unchecked(np.minimum(low, high), high)


_VALUES: dict[str, Callable[[Expression, list[Interval]], Interval]] = {
    Op.NUMBER: lambda n, _: constant(n.value),
    Op.ADD: lambda _, a: reduce(add, a),
    Op.MUL: lambda _, a: reduce(mul, a),
    Op.POW: lambda n, a: a[0].power(n.value),
    Op.EXP: lambda _, a: a[0].exp(),
    Op.LOG: lambda _, a: a[0].log(),
    Op.ABS: lambda _, a: _abs(a[0]),
    Op.SIGN: lambda _, a: unchecked(np.sign(a[0].lower), np.sign(a[0].upper)),
    Op.MAX: lambda _, a: unchecked(
        reduce(np.maximum, (b.lower for b in a)), reduce(np.maximum, (b.upper for b in a))
    ),
    Op.WHERE: lambda _, a: _where(*a),
    Op.NORM: lambda _, a: _norm(a),
    Op.NORM_SLOPE: lambda _, a: _norm_slope(a[: len(a) // 2], a[len(a) // 2 :]),
    Op.HUBER: lambda n, a: _huber(a[0], constant(n.value)),
}

# Errors of float64 -------------------------------------------------------------------------------


def evaluation_error(expr: Expression, box: IntervalBox) -> FloatArray:
    """Bound ``|fl(expr(x)) - expr(x)|`` over every box, whatever order sums and products take.

    With unit roundoff u, underflow t = 2^-1022, magnitudes M and errors e of the operands: a sum
    of k terms errs by ``sum e + k u sum (M + e) + k t``, a product by ``prod (M + e) - prod M +
    k u prod (M + e) + k t prod max(1, M + e)``, a function by its steepest slope times e plus a few
    u of its value plus t, a power x^n by multiplications plus 4 n t. Inputs are exact doubles that
    may count as 0 if they are subnormal; constants are rounded once. A coefficient that all terms
    of a sum share may be multiplied after the sum, and factors below may be multiplied before the
    division: no bound gets larger by it. Logarithms of sums of exponentials, and quotients by them,
    are evaluated as ``log_sum_exp`` says. A bound is infinite where none exists, or where a partial
    result may overflow.
    """
    ranges = evaluate(expr, box)
    errors = dict.fromkeys(ranges, np.zeros(1))
    with np.errstate(all="ignore"):
        for node, value in ranges.items():
            if node.op == Op.LOG and exponentials(node.args[0]):
                error = _scaled_log_error(_scaled_sum(node.args[0], ranges, errors))
            elif any(map(is_reciprocal_sum, factors(node))):
                error = _scaled_product_error(factors(node), ranges, errors)
            elif node.op == Op.POW and has_domain(base := node.args[0]) and base.op == Op.POW:
                root = base.args[0]
                error = _root_power_error(root, (ranges[root], errors[root]), base, node)
            else:
                inner = [(ranges[a], errors[a]) for a in node.args]
                error = _ERRORS[node.op](node, value.magnitude, inner)
            errors[node] = np.where(np.isnan(error), np.inf, error * UP)
    return errors[expr]


def _sum_error(inner: Sequence[Pair]) -> FloatArray:
    reach = sum(value.magnitude + error for value, error in inner)
    lost = len(inner) * (ROUNDOFF * reach + UNDERFLOW)
    return np.asarray(sum(error for _, error in inner) + lost)


def _product_error(inner: Sequence[Pair]) -> FloatArray:
    product, exact, grown = np.ones(1), np.ones(1), np.ones(1)
    for value, error in inner:
        most = value.magnitude + error
        product, exact = product * most, exact * value.magnitude
        grown = grown * np.maximum(most, 1.0)
    # The subtraction cancels, so that its own rounding counts in full.
    rounded = product - exact + 8 * len(inner) * ROUNDOFF * product
    # A partial product that underflowed may be enlarged by the other factors.
    return np.where(grown < _OVERFLOW, rounded + len(inner) * UNDERFLOW * grown, np.inf)


def _wide(pair: Pair) -> Interval:
    value, error = pair
    return Interval(lower=value.lower - error, upper=value.upper + error)


def _power_error(pair: Pair, exponent: Scalar) -> FloatArray:
    wide, error, exact = _wide(pair), pair[1], Fraction(exponent)
    q = abs(float(exact))
    slope = q * wide.power(exact - 1).magnitude
    result = wide.power(exact).magnitude
    if is_integer(exponent):
        steps = np.asarray(2.0 * q)
    elif exact == float(exact):
        steps = np.zeros(1)
    else:
        # The exponent is rounded too, which moves x^q by the factor 1 + u |ln x^q|.
        steps = np.minimum(2.0 * q * wide.log().magnitude, _LARGEST_LOG)
    rounded = slope * error + (_LIBRARY_ULPS + steps) * ROUNDOFF * result
    # Partial powers underflow only where |x| < 1, and no later factor enlarges them there.
    return np.asarray(rounded + np.where(result < _OVERFLOW, (4.0 * q + 1.0) * UNDERFLOW, np.inf))


def _root_power_error(
    root: Expression, pair: Pair, inner: Expression, outer: Expression
) -> FloatArray:
    """Of ``(a^q)^c``, as of ``a^(q c)``: the root has no bounded slope at a = 0, this may."""
    error = _power_error(pair, scalar(inner.value * outer.value))
    size = _wide(pair).power(inner.value * outer.value).magnitude
    rounded = error + 4.0 * abs(float(outer.value)) * (_LIBRARY_ULPS * ROUNDOFF * size + UNDERFLOW)
    defined = root.is_symbol | (pair[0].lower >= pair[1])  # a computed a may fall below 0
    return np.where(defined, rounded, np.inf)


def _exp_error(pair: Pair) -> FloatArray:
    top = _wide(pair).exp().magnitude
    return np.asarray(top * pair[1] + _LIBRARY_ULPS * ROUNDOFF * top + UNDERFLOW)


def _log_error(pair: Pair) -> FloatArray:
    wide = _wide(pair)
    lost = _LIBRARY_ULPS * ROUNDOFF * wide.log().magnitude + UNDERFLOW
    return np.asarray(wide.reciprocal().magnitude * pair[1] + lost)


def _undecided(pair: Pair) -> FloatArray:
    """Where rounding may decide on which side of 0 an operand lies."""
    value, error = pair
    return np.asarray((value.lower - error <= 0.0) & (value.upper + error >= 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScaledSum:
    """A computed T of a sum of exponentials, see ``log_sum_exp``."""

    least: FloatArray  # the range of ``|T|``
    most: FloatArray  # likewise
    error: FloatArray  # its relative error, infinite where none is near
    shift: FloatArray  # the largest ``|m|``


def _scaled_sum(expr: Expression, ranges: IntervalBox, errors: Errors) -> _ScaledSum:
    """Bound the relative error of T: exponents err by ``e = max_k e_k + 2 u max_k |a_k|``."""
    terms, zero = exponentials(expr), np.zeros(1)
    weights = [term.weight_in(ranges) for term in terms]
    arguments = [(t.argument_in(ranges), errors.get(t.argument, zero)) for t in terms]
    shift = reduce(np.maximum, (a.magnitude + error for a, error in arguments))
    e = reduce(np.maximum, (error for _, error in arguments)) + 2 * ROUNDOFF * shift + UNDERFLOW
    absolute = zero
    sizes = [c.magnitude for c in weights]
    for term, size in zip(terms, sizes, strict=True):
        inner = [(ranges[f], errors[f]) for f in term.weight]
        of_weight = _product_error(inner) if inner else zero
        size = size + of_weight
        rounded = (len(terms) + 2 + _LIBRARY_ULPS) * ROUNDOFF + 2 * e
        absolute = absolute + of_weight + size * rounded + 2 * UNDERFLOW * np.maximum(size, 1.0)
    # The largest power is e^0, whose weight is left where none is negative.
    total, largest = ranges[expr], reduce(np.maximum, (a.upper for a, _ in arguments))
    scale = (-unchecked(largest, largest) - unchecked(e, e)).exp()
    of_total = np.maximum(_abs(total).lower * scale.lower, 0.0)
    lowest = reduce(np.minimum, (c.lower for c in weights))
    least = np.fmax(of_total, np.where(lowest >= 0.0, lowest * (1 - 2 * e), 0.0))
    error = _PRODUCT_FACTOR * absolute / least
    is_near = (error < _MAX_RELATIVE) & (e < _MAX_RELATIVE)
    return _ScaledSum(
        least=least,
        most=_PRODUCT_FACTOR * reduce(np.add, sizes),
        error=np.where(is_near, error, np.inf),
        shift=shift,
    )


def _scaled_log_error(total: _ScaledSum) -> FloatArray:
    """Of ``m + ln T``."""
    size = np.maximum(np.abs(np.log(total.least)), np.abs(np.log(total.most))) + 1.0
    rounding = _LIBRARY_ULPS * ROUNDOFF * size + ROUNDOFF * (total.shift + size) + 2 * UNDERFLOW
    return np.asarray(_PRODUCT_FACTOR * total.error + rounding)


def _scaled_product_error(
    parts: Sequence[Expression], ranges: IntervalBox, errors: Errors
) -> FloatArray:
    """Of ``e^(a - q m) / T^q`` times other factors."""
    below = [f for f in parts if is_reciprocal_sum(f)]
    rest = [(ranges[f], errors[f]) for f in parts if f.op != Op.EXP and not is_reciprocal_sum(f)]
    quotient = [f for f in parts if f.op == Op.EXP or is_reciprocal_sum(f)]
    size = reduce(mul, (ranges[f] for f in quotient)).magnitude
    if (closer := enclose_softmax(quotient, ranges)) is not None:
        size = np.fmin(size, closer.magnitude)
    argument = argument_of(parts)
    exponent = errors.get(argument, np.zeros(1))
    reach = ranges.get(argument, constant(0)).magnitude + exponent
    relative, least, most = np.zeros(1), np.ones(1), np.ones(1)
    for f in below:
        total, q = _scaled_sum(f.args[0], ranges, errors), -float(f.value)
        reach = reach + q * total.shift
        steps = 2 * q if is_integer(f.value) else _LIBRARY_ULPS + _LARGEST_LOG  # as in _power_error
        relative = relative + _PRODUCT_FACTOR * (q * total.error + (steps + 2) * ROUNDOFF)
        least, most = least * total.least**q, most * total.most**q
    exponent = exponent + 2 * (len(below) + 1) * ROUNDOFF * reach + UNDERFLOW
    relative = relative + 2 * exponent + (_LIBRARY_ULPS + 2 * len(below) + 2) * ROUNDOFF
    # The other factors multiply e^(a - q m) before the division: partial products may be larger.
    grown = reduce(mul, (np.maximum(v.magnitude + error, 1.0) for v, error in rest), most)
    is_near = (relative < _MAX_RELATIVE) & (grown * np.maximum(size, 1.0) < _OVERFLOW)
    underflow = len(parts) * UNDERFLOW * grown / (least * np.minimum(most, 1.0))
    error = np.where(is_near & (least > 1 / _OVERFLOW), _PRODUCT_FACTOR * size * relative, np.inf)
    return _product_error([*rest, (unchecked(-size, size), error + underflow)]) + underflow


def _where_error(condition: Pair, yes: Pair, no: Pair) -> FloatArray:
    jump = yes[0].magnitude + no[0].magnitude
    return np.where(_undecided(condition), jump, 0.0) + np.maximum(yes[1], no[1])


def _norm_error(size: FloatArray, inner: Sequence[Pair]) -> FloatArray:
    k, errors = len(inner), sum(error for _, error in inner)
    return np.asarray(errors + (k + 4) * ROUNDOFF * (size + errors) + k * _NORM_UNDERFLOW)


def _norm_slope_error(inner: Sequence[Pair]) -> FloatArray:
    direction = inner[len(inner) // 2 :]
    return np.asarray(2.0 * sum(value.magnitude + error for value, error in direction))


def _huber_error(size: FloatArray, pair: Pair, width: Scalar) -> FloatArray:
    value, error = pair
    steep = 2.0 * np.minimum(value.magnitude + error, float(width) * UP)
    return np.asarray(steep * error + 8.0 * ROUNDOFF * (size + steep * error) + 4.0 * UNDERFLOW)


_ERRORS: dict[str, Callable[[Expression, FloatArray, Sequence[Pair]], FloatArray]] = {
    Op.SYMBOL: lambda _, __, ___: np.full(1, UNDERFLOW),
    Op.NUMBER: lambda _, size, __: size * ROUNDOFF,
    Op.ADD: lambda _, __, inner: _sum_error(inner),
    Op.MUL: lambda _, __, inner: _product_error(inner),
    Op.POW: lambda node, _, inner: _power_error(inner[0], node.value),
    Op.EXP: lambda _, __, inner: _exp_error(inner[0]),
    Op.LOG: lambda _, __, inner: _log_error(inner[0]),
    # Sizes and maxima are exact operations that pass errors on. A slope that jumps is off by its
    # whole jump where rounding may decide on which side of it the operand lies.
    Op.ABS: lambda _, __, inner: inner[0][1],
    Op.MAX: lambda _, __, inner: np.maximum.reduce(np.broadcast_arrays(*(e for _, e in inner))),
    Op.SIGN: lambda _, __, inner: np.where(_undecided(inner[0]), 2.0, 0.0),
    Op.WHERE: lambda _, __, inner: _where_error(*inner),
    Op.NORM: lambda _, size, inner: _norm_error(size, inner),
    Op.NORM_SLOPE: lambda _, __, inner: _norm_slope_error(inner),
    Op.HUBER: lambda node, size, inner: _huber_error(size, inner[0], node.value),
}
