from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sottovoce as sv
from random_expressions import SYMBOLS, boxes, expressions, fractions, inside, patiently, precise
from sottovoce.certificate.certificate import certify
from sottovoce.certificate.forms import equivalents, oriented
from sottovoce.errors import CertificateError, ProblemError
from sottovoce.formula.canonical import canonical, exp_of, multiply, power, substitute
from sottovoce.formula.derive import rationalise
from sottovoce.formula.enclosure import enclose, evaluation_error
from sottovoce.formula.expression import Op, exact_arithmetic, nodes, number
from sottovoce.formula.functions import exp, sqrt
from sottovoce.formula.intervals import Interval
from sottovoce.formula.tape import tape
from sottovoce.kernels.fleet_kernel import FleetKernel, FleetStates
from sottovoce.problem.fleets import Fleet, FleetContribution
from sottovoce.problem.groups import Group
from sottovoce.problem.local import box_of

X, Y, Z = SYMBOLS


def test_the_bound_is_larger_than_errors_that_cancellation_causes() -> None:
    expr = canonical((X + 2**50) - 2**50 * Y)
    box = {s: Interval(lower=np.array([0.0]), upper=np.array([1.0])) for s in (X, Y)}
    # x + 2^50 rounds x to multiples of 2^-2: the bound must know it.
    assert evaluation_error(expr, box)[0] >= 0.125


def test_a_sum_of_exact_numbers_is_rounded() -> None:
    box = {s: Interval(lower=np.array([0.0]), upper=np.array([2.0**50])) for s in (X, Y)}
    true = Fraction(0.1) + 2**50
    assert evaluation_error(canonical(X + Y), box)[0] >= abs(Fraction(0.1 + 2.0**50) - true) > 0


def test_the_error_of_a_contribution_does_not_grow_with_the_fleet() -> None:
    # Agents round by themselves and the cloud adds integers.
    def problem(n: int) -> sv.Problem:
        ev = sv.agents(n, lower=0.0, upper=1.0)
        return sv.Problem(objectives=ev.x, constraints=[sv.total(ev.x / 3) <= n])

    small, large = (float(certify(problem(n)).contributions.error[0]) for n in (10, 1000))
    assert large == small > 0


def _computed(expr: Any, point: Mapping[Any, float]) -> list[float]:
    """The value as the kernels compute it, and as the cloud does."""
    x = np.array([[point[s] for s in SYMBOLS]])
    group = Group(name="a", count=1, symbols=tuple(SYMBOLS), lower=x, upper=x, parameters={})
    sums = (FleetContribution(row=0, terms=(expr,)),)
    agent = Fleet(group=group, sums=sums, local=box_of(group))
    value = FleetStates(FleetKernel(agent, x, x, gradient_steps=True), x).contributions(1)
    cloud = tape([expr], SYMBOLS)(*(point[s] for s in SYMBOLS))
    return [float(value[0]), float(cloud[0])]


def _bound(expr: Any, box: Mapping[Any, tuple[float, float]]) -> float:
    sides = {s: Interval(lower=np.array([a]), upper=np.array([b])) for s, (a, b) in box.items()}
    return float(evaluation_error(expr, sides).max())


@pytest.mark.parametrize(
    ("expr", "x"),
    [
        (number(1e274) * X**81, 1e-4),
        (number(1e274) * X**81, 0.99e-4),
        (number(1e300) * X**2, 1.23e-160),
        (number(1e300) * exp(-X), 720.0),
        (number(1e300) * X**1.5 / 3, 1.23e-212),
    ],
)
def test_what_underflows_is_covered_by_the_bound(expr: Any, x: float) -> None:
    # 1e274 * (1e-4)**81 is 1e-50, but x**81 is subnormal: 1.2% of it is lost.
    expr, point = canonical(expr), {X: x, Y: x, Z: 0.0}
    box = {s: (0.0, max(x, 1e-300)) for s in point}
    computed = _computed(expr, point)
    with mpmath.workdps(60):
        exact = precise(expr, point)
        errors = [float(abs(mpmath.mpf(value) - exact)) for value in computed]
    assert max(errors) > 1e-12 * abs(float(exact))  # rounding alone would be 2e-16 of it
    assert max(errors) <= _bound(expr, box)


@settings(max_examples=120, deadline=None)
@given(
    expr=expressions,
    box=boxes,
    shares=fractions,
    scale=st.tuples(st.integers(-300, 300), st.integers(-300, 300), st.integers(0, 3)),
)
def test_the_true_error_never_exceeds_the_bound_even_with_tiny_and_huge_coefficients(
    expr: Any, box: Any, shares: list[float], scale: tuple[int, int, int]
) -> None:
    outer, inner, part = scale
    point = inside(box, shares)
    try:
        if part < 3:  # squeeze one variable, so that powers underflow or overflow inside
            squeezed = canonical(10.0**inner * SYMBOLS[part])
            expr = substitute(expr, {SYMBOLS[part]: squeezed})
        expr = canonical(10.0**outer * expr)
        bound, computed = _bound(expr, box), _computed(expr, point)
    except (CertificateError, ProblemError):
        return  # refused, as it stands or in its derivatives
    with mpmath.workdps(60):
        exact = precise(expr, point)
        assume(exact is not None and np.isfinite(bound))
        for value in computed:
            assert abs(mpmath.mpf(value) - exact) <= bound


def test_a_rounded_exponent_is_covered_by_the_bound() -> None:
    expr, box = canonical(X ** Fraction(2999, 3)), {X: (1.5, 2.0)}
    for x in np.linspace(1.5, 2.0, 50):
        point = {X: float(x), Y: 0.0, Z: 0.0}
        with mpmath.workdps(60):
            exact = precise(expr, point)
            assert all(
                abs(mpmath.mpf(v) - exact) <= _bound(expr, box) for v in _computed(expr, point)
            )


def test_a_formula_whose_partial_products_may_overflow_has_no_bound() -> None:
    expr = canonical(1e200 * X * Y)
    assert _bound(expr, {X: (0.0, 1e200), Y: (0.0, 1e-200)}) == np.inf


@pytest.mark.parametrize(
    "expr",
    [
        sv.logsumexp(6 * X, 6 * Y),
        sv.logsumexp(3 * X, Y + 2, 3),
        sv.log(1 + exp(4 * X)),
        sv.log((Y**2 + 1) * exp(X) + 3 * exp(Y)),
        6 * exp(6 * X) / (exp(6 * X) + 2 * exp(6 * Y)),
        Y * exp(4 * X) / (1 + exp(4 * X)),
    ],
)
def test_sums_of_exponentials_neither_overflow_nor_lose_their_bounds(expr: Any) -> None:
    expr, box = canonical(expr), {X: (-200.0, 210.0), Y: (-190.0, 200.0), Z: (0.0, 1.0)}
    bound, random = _bound(expr, box), np.random.default_rng(0)
    sides = {s: Interval(lower=np.array([a]), upper=np.array([b])) for s, (a, b) in box.items()}
    ends = enclose(expr, sides)
    assert bound < 1e-6
    for corner in random.choice((0.0, 1.0, 0.3, 0.7), size=(20, 3)):
        point = inside(box, corner.tolist())
        with mpmath.workdps(2_000):
            exact = precise(expr, point)
            assert ends.lower <= exact <= ends.upper
            assert all(abs(mpmath.mpf(v) - exact) <= bound for v in _computed(expr, point))


def test_a_soft_maximum_of_large_arguments_is_evaluated_and_certified() -> None:
    x = sv.agents(["a", "b"], lower=-1000, upper=1000)
    row = sv.logsumexp(x[0], x[1]) <= 900
    problem = sv.Problem(objectives=list(x**2), constraints=[row])
    assert problem.evaluate([850.0, 850.0]).rows == pytest.approx([850 + np.log(2) - 900])
    y = sv.agents(2, lower=-200, upper=200, dim=2)
    soft = sv.logsumexp(6 * y.x[0], 6 * y.x[1])
    problem = sv.Problem(objectives=[sv.sum_squares(y.x)], constraints=[sv.total(soft) <= 900])
    assert 6.0 <= certify(problem).sensitivity.largest() <= 6.1


# --- Other forms of a formula: the same value to 30 digits, and fewer repetitions ---


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def same(a: Any, b: Any) -> bool:
    return bool(abs(a - b) <= mpmath.mpf("1e-30") * (1 + abs(a) + abs(b)))


@patiently
@given(expressions, boxes, fractions)
def test_every_form_has_the_same_value(expr: Any, box: Any, shares: list[float]) -> None:
    point = inside(box, shares)
    value = precise(expr, point)
    with exact_arithmetic():
        rational = rationalise(expr)
        forms = (*equivalents(rational), oriented(rational))
    for form in forms:
        other = precise(form, point)
        # A form may be undefined by a rounding of 50 digits only where a denominator vanishes.
        assert value is None or other is None or abs(value) > 1e15 or same(value, other)


def test_a_common_denominator_makes_repetitions_vanish() -> None:
    total = 1 + X**2 + Y
    curvature = canonical(1 / sqrt(total) - X**2 / total ** Fraction(3, 2))
    wanted = canonical((1 + Y) / total ** Fraction(3, 2))
    assert wanted in set(equivalents(curvature))


def test_floats_become_the_fractions_they_are() -> None:
    expr = rationalise(canonical(0.1 * X + Y**0.3))
    assert all(not isinstance(node.value, float) for node in nodes((expr,)))
    # In floating point 0.1 * 3 is not 0.3, and rewriting would have moved the value.
    with exact_arithmetic():
        assert multiply(rationalise(number(0.1)), number(3)) is not rationalise(number(0.3))


def test_no_constant_is_rounded_inside_exactly() -> None:
    tenth = Fraction(0.1)
    with exact_arithmetic():
        cube = power(number(tenth), 3)
        assert cube.value == tenth**3
        assert power(number(2), Fraction(1, 2)).op == Op.POW
        assert exp_of(number(2)).op == Op.EXP
    assert isinstance(power(number(tenth), 3).value, float)
