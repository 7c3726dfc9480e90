from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import flint
import mpmath
import numpy as np
import pytest
from flint import arb
from hypothesis import assume, given
from hypothesis import strategies as st

from random_expressions import SYMBOLS, boxes, expressions, fractions, inside, patiently, precise
from sottovoce.errors import CertificateError, InputError
from sottovoce.formula import intervals
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import derivative
from sottovoce.formula.enclosure import enclose, enclose_with_gradient, require_defined
from sottovoce.formula.expression import number
from sottovoce.formula.functions import exp, log, sqrt
from sottovoce.formula.intervals import Interval, constant, interval

finite = st.floats(allow_nan=False, allow_infinity=False)
spans = st.tuples(finite, finite).map(lambda pair: interval(min(pair), max(pair)))
extended = (
    st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False))
    .map(sorted)
    .filter(lambda pair: pair[0] < np.inf and pair[1] > -np.inf)
    .map(lambda pair: interval(*pair))
)


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    before = flint.ctx.prec
    flint.ctx.prec = 300
    with mpmath.workdps(50):
        yield
    flint.ctx.prec = before


def exactly(value: Any) -> Fraction:
    return Fraction(float(value))


def inward(value: Any, towards: float, steps: int) -> Any:
    for _ in range(steps):
        value = np.nextafter(value, towards)
    return value


@patiently
@given(spans, spans)
def test_a_sum_is_rounded_outward_to_the_nearest_float(a: Interval, b: Interval) -> None:
    total = a + b
    assume(np.isfinite(total.magnitude))
    lower, upper = exactly(a.lower) + exactly(b.lower), exactly(a.upper) + exactly(b.upper)
    assert exactly(total.lower) <= lower < exactly(inward(total.lower, np.inf, 1))
    assert exactly(inward(total.upper, -np.inf, 1)) < upper <= exactly(total.upper)


@patiently
@given(spans, spans)
def test_a_product_is_one_step_too_wide_at_most(a: Interval, b: Interval) -> None:
    product = a * b
    assume(np.isfinite(product.magnitude))
    pairs = itertools.product((a.lower, a.upper), (b.lower, b.upper))
    ends = [exactly(p) * exactly(q) for p, q in pairs]
    assert exactly(product.lower) <= min(ends) < exactly(inward(product.lower, np.inf, 2))
    assert exactly(inward(product.upper, -np.inf, 2)) < max(ends) <= exactly(product.upper)


@patiently
@given(st.integers(-(2**20), 2**20), st.integers(-(2**20), 2**20))
def test_products_of_small_integers_are_exact(a: int, b: int) -> None:
    product = interval(a, a) * interval(b, b)
    assert product.lower == product.upper == a * b


@patiently
@given(spans)
def test_multiplication_by_0_1_and_minus_1_is_exact(a: Interval) -> None:
    zero, one = (a * interval(c, c) for c in (0, 1))
    assert zero.lower == zero.upper == 0
    assert (one.lower, one.upper) == (a.lower, a.upper)
    flipped = a * interval(-1, -1)
    assert (flipped.lower, flipped.upper) == (-a.upper, -a.lower)


@patiently
@given(spans)
def test_a_reciprocal_holds_the_exact_one(a: Interval) -> None:
    result = a.reciprocal()
    if a.lower <= 0 <= a.upper:
        assert np.isinf(result.lower if a.lower < 0 else result.upper)
        return
    ends = sorted(1 / exactly(end) for end in (a.lower, a.upper))
    assert np.isinf(result.lower) or exactly(result.lower) <= ends[0]
    assert np.isinf(result.upper) or ends[1] <= exactly(result.upper)


@patiently
@given(extended, extended, st.sampled_from([2, 3, -1, -2, -3, 0, "1/2", "-1/2", "1/3", "-7/3"]))
def test_no_operation_ever_yields_nan_or_disorder(a: Interval, b: Interval, power: Any) -> None:
    results = [a + b, a - b, a * b, a.reciprocal(), a.exp(), a.log(), a.nonnegative_part()]
    for result in [*results, a.power(Fraction(power))]:
        assert result.lower <= result.upper
        assert result.lower < np.inf
        assert result.upper > -np.inf


@patiently
@given(spans)
def test_the_sign_of_a_product_survives_rounding(a: Interval) -> None:
    tiny = interval(0, 5e-324)
    assert (a.nonnegative_part() * tiny).lower >= 0
    assert (-a.nonnegative_part() * tiny).upper <= 0


# Ours, arb's, the range of arguments, and the relative width allowed: an exponent of 1/3 is itself
# enclosed by two floats, whose effect grows with the logarithm of the argument.
CASES: dict[str, tuple[Any, Any, tuple[float, float], float]] = {
    "exp": (lambda a: a.exp(), lambda x: x.exp(), (-600, 709), 1e-14),
    "log": (lambda a: a.log(), lambda x: x.log(), (1e-300, 1e300), 1e-14),
    "x^(1/2)": (lambda a: power(a, "1/2"), lambda x: x.sqrt(), (1e-300, 1e300), 1e-14),
    "x^(-3/2)": (lambda a: power(a, "-3/2"), lambda x: 1 / (x * x.sqrt()), (1e-99, 1e99), 1e-14),
    "x^(1/3)": (lambda a: power(a, "1/3"), lambda x: (x.log() / 3).exp(), (1e-300, 1e300), 1e-13),
    "x^(-7/3)": (
        lambda a: power(a, "-7/3"),
        lambda x: (-7 * x.log() / 3).exp(),
        (1e-99, 1e99),
        3e-13,
    ),
    "x^5": (lambda a: power(a, "5"), lambda x: x * x * x * x * x, (-1e50, 1e50), 1e-14),
    "x^-4": (lambda a: power(a, "-4"), lambda x: 1 / (x * x * x * x), (1e-50, 1e50), 1e-14),
    "1/x": (lambda a: a.reciprocal(), lambda x: 1 / x, (1e-300, 1e300), 1e-14),
}


def power(base: Interval, exponent: str) -> Interval:
    return base.power(Fraction(exponent))


def sample(low: float, high: float) -> Any:
    rng = np.random.default_rng(7)
    even = rng.uniform(low, high, 400)
    scales = np.exp(rng.uniform(np.log(max(low, 1 / high)), np.log(high), 400))
    return np.concatenate([even, scales, [low, high]])


def misses(name: str) -> int:
    """Count the points at which an operation's enclosure misses arb's value."""
    ours, theirs, (low, high), _ = CASES[name]
    points = sample(low, high)
    values = ours(interval(points, points))
    exact = [theirs(arb(x)) for x in points]
    return sum(
        not (arb(float(lo)) <= value and value <= arb(float(hi)))
        for lo, hi, value in zip(values.lower, values.upper, exact, strict=True)
    )


@pytest.mark.parametrize("name", CASES)
def test_every_operation_holds_what_arb_computes(name: str) -> None:
    assert misses(name) == 0


@pytest.mark.parametrize("name", CASES)
def test_the_oracle_notices_rounding_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "_SLACK", 0.0)
    monkeypatch.setattr(intervals, "_TINY", 0.0)
    monkeypatch.setattr(
        intervals, "constant", lambda number: interval(float(number), float(number))
    )
    monkeypatch.setattr(intervals, "_outward", lambda lower, upper, *_: (lower, upper))
    assert misses(name) > 100


@pytest.mark.parametrize("name", CASES)
def test_every_operation_is_tight(name: str) -> None:
    ours, _, (low, high), width = CASES[name]
    points = sample(low, high)
    values = ours(interval(points, points))
    assert np.all(values.upper - values.lower <= width * np.abs(values.upper))


@pytest.mark.parametrize(
    "number", [Fraction(1, 3), Fraction(-1, 10), 2**53 + 1, Fraction(2**200 + 1, 3**120)]
)
def test_constants_are_enclosed_by_neighbouring_floats(number: Any) -> None:
    value = constant(number)
    assert value.upper == np.nextafter(value.lower, np.inf)
    exact = Fraction(number)
    assert Fraction(float(value.lower)) < exact < Fraction(float(value.upper))


def test_constants_that_are_floats_are_exact_and_huge_ones_overflow_outward() -> None:
    half = constant(0.1)
    assert half.lower == half.upper == 0.1
    huge = constant(-(10**400))
    assert huge.lower == -np.inf
    assert huge.upper == -intervals._LARGEST
    assert constant(Fraction(1, 10**400)).upper == 5e-324


@pytest.mark.parametrize(
    "pair", [(1, 0), (np.nan, 1), (0, np.nan), (np.inf, np.inf), (-np.inf, -np.inf)]
)
def test_an_interval_must_be_in_order_and_hold_a_real_number(pair: Any) -> None:
    with pytest.raises(InputError, match="lower <= upper"):
        interval(*pair)


def test_an_interval_owns_read_only_copies() -> None:
    lower = np.zeros(3)
    side = interval(lower, 1.0)
    lower[0] = 9.0
    assert side.lower[0] == 0.0
    assert side.shape == (3,)
    with pytest.raises(ValueError, match="read-only"):
        side.upper[0] = 9.0


X, Y, Z = SYMBOLS


def holds(enclosure: Interval, value: Any) -> bool:
    return bool(mpmath.mpf(float(enclosure.lower)) <= value <= mpmath.mpf(float(enclosure.upper)))


def is_line(enclosure: Interval) -> bool:
    return bool(enclosure.lower == -np.inf and enclosure.upper == np.inf)


@patiently
@given(expressions, boxes, fractions)
def test_an_enclosure_holds_the_value_everywhere(expr: Any, box: Any, shares: list[float]) -> None:
    sides = {symbol: interval(*side) for symbol, side in box.items()}
    value, enclosure = precise(expr, inside(box, shares)), enclose(expr, sides)
    assert is_line(enclosure) if value is None else holds(enclosure, value)


@patiently
@given(expressions, boxes, fractions)
def test_a_gradient_holds_the_partial_derivatives(expr: Any, box: Any, shares: list[float]) -> None:
    sides = {symbol: interval(*side) for symbol, side in box.items()}
    value, gradient = enclose_with_gradient(expr, sides, SYMBOLS)
    plain = enclose(expr, sides)
    assert (value.lower, value.upper) == (plain.lower, plain.upper)
    for symbol, lower, upper in zip(SYMBOLS, gradient.lower, gradient.upper, strict=True):
        slope = precise(derivative(expr, symbol), inside(box, shares))
        assert slope is None or holds(interval(lower, upper), slope)


@patiently
@given(expressions, st.lists(boxes, min_size=2, max_size=2))
def test_many_boxes_at_once_are_enclosed_like_one_by_one(expr: Any, pair: Any) -> None:
    sides = {s: interval(*zip(*(box[s] for box in pair), strict=True)) for s in SYMBOLS}
    together = enclose(expr, sides)
    for index, box in enumerate(pair):
        single = enclose(expr, {s: interval(*side) for s, side in box.items()})
        assert single.lower == together.lower[index]
        assert single.upper == together.upper[index]


@pytest.mark.parametrize(
    ("expr", "side", "expected"),
    [
        (X**2, (-3, 2), (0, 9)),
        (X**4, (-3, -2), (16, 81)),
        (X**3, (-3, 2), (-27, 8)),
        (X**-2, (2, 4), (0.0625, 0.25)),
        (X**-1, (-4, -2), (-0.5, -0.25)),
        (sqrt(X), (4, 9), (2, 3)),
        (X**2.0, (-3, 2), (0, 9)),
        (X**1.0, (-3, 2), (-3, 2)),
        (X ** Fraction(3, 2), (4, 9), (8, 27)),
        (-X, (1, 2), (-2, -1)),
        (2 * X - 1, (-0.5, 3), (-2, 5)),
        (number(7), (0, 1), (7, 7)),
    ],
)
def test_exact_results_stay_exact(expr: Any, side: Any, expected: Any) -> None:
    value = enclose(canonical(expr), {X: interval(*side)})
    assert (value.lower, value.upper) == expected


@pytest.mark.parametrize("exponent", [math.pi, -math.pi, 0.3, Fraction(22, 7)])
def test_an_exponent_may_be_any_constant(exponent: Any) -> None:
    formula = canonical(X**exponent)
    value = enclose(formula, {X: interval(2, 3)})
    ends = sorted(precise(formula, {X: x}) for x in (2.0, 3.0))
    assert holds(value, ends[0])
    assert holds(value, ends[1])
    assert value.upper - value.lower <= float(ends[1] - ends[0]) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("expr", "side"),
    [
        (log(X), (0, 1)),
        (log(X), (-1, 1)),
        (1 / X, (-1, 1)),
        (1 / X**2, (0, 1)),
        (sqrt(X), (-1, 1)),
        (X ** Fraction(-1, 2), (0, 1)),
        (1 / (5 + log(X) ** 2), (-1, 2)),
        (exp(-1 / X**2), (-1, 1)),
    ],
)
def test_a_box_that_may_hold_an_undefined_point_gets_the_whole_line(expr: Any, side: Any) -> None:
    value, gradient = enclose_with_gradient(canonical(expr), {X: interval(*side)}, [X])
    assert is_line(value)
    assert gradient.lower[0] == -np.inf
    assert gradient.upper[0] == np.inf


@pytest.mark.parametrize("expr", [log(X - 5), sqrt(X - 5), (X - 5) ** -0.5, log(X**2), 1 / X])
def test_an_expression_undefined_on_a_whole_box_is_refused_with_the_remedy(expr: Any) -> None:
    with pytest.raises(CertificateError, match=r"tighten the bounds so that .* stays positive"):
        require_defined(canonical(expr), {X: interval([0, 0], [0, 2])})


def test_unbounded_symbols_are_refused() -> None:
    with pytest.raises(CertificateError, match="no bounds for y"):
        enclose(canonical(X + Y), {X: interval(0, 1)})
