"""Certified suprema against closed forms, mpmath and samples: of vectors and of matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_expressions import (
    SYMBOLS,
    boxes,
    expressions,
    inside,
    patiently,
    precise,
    symbols,
    total,
)
from sottovoce.certificate import branch
from sottovoce.certificate.branch import euclidean, singular_bounds
from sottovoce.certificate.supremum import Supremum
from sottovoce.certificate.supremum import supremum as bounded
from sottovoce.errors import CertificateError, InputError
from sottovoce.formula.canonical import canonical, substitute
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import expression, number, symbol
from sottovoce.formula.functions import exp, log, logsumexp, sqrt, sum_squares
from sottovoce.formula.intervals import interval

X = symbols("x", 7)
TEN = dict.fromkeys(X, (-10.0, 10.0))
SOFTMAX = canonical(logsumexp(*X))
LENGTH = canonical(sqrt(1 + sum_squares(*X)))
P = 1 / (1 + 6 * math.exp(-20))  # softmax with one argument at 10 and six at -10
Q = 1 / (2 + 5 * math.exp(-20))  # and with two at 10


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def slope(expr: Any, *by: Any) -> Any:
    for s in by:
        expr = derivative(expr, s)
    return expr


def supremum(components: list[Any], box: Any, **settings: Any) -> Supremum:
    return bounded([[canonical(expression(c))] for c in components], box, **settings)


def spectral_supremum(jacobian: Any, box: Any, **settings: Any) -> Supremum:
    rows = [[canonical(expression(entry)) for entry in row] for row in jacobian]
    return bounded(rows, box, **settings)


def value_at(components: list[Any], at: Any) -> Any:
    values = [precise(canonical(expression(c)), dict(at)) for c in components]
    return mpmath.sqrt(mpmath.fsum(value**2 for value in values))


def check(components: list[Any], bound: Supremum, exact: float, gap: float) -> None:
    """Check a bound and the largest value found against the supremum known in closed form."""
    assert bound.upper >= exact * (1 - 1e-15)
    assert bound.upper <= (1 + gap) * exact
    assert exact * (1 - gap) <= bound.attained <= bound.upper
    assert value_at(components, bound.point) <= bound.upper


WITHIN_1_PERCENT = [
    (components, TEN, exact, 0.01)
    for components, exact in [
        ([slope(SOFTMAX, X[0])], P),
        ([slope(SOFTMAX, X[6])], P),
        ([slope(SOFTMAX, X[0], X[0])], 0.25),
        ([slope(SOFTMAX, X[0], X[1])], Q**2),
        ([slope(SOFTMAX, X[5], X[2])], Q**2),
        ([slope(LENGTH, X[0])], 10 / math.sqrt(101)),
        ([slope(LENGTH, X[3])], 10 / math.sqrt(101)),
        ([slope(LENGTH, X[0], X[0])], 1.0),
        ([slope(LENGTH, X[0], X[1])], 1 / (3 * math.sqrt(3))),
        ([slope(LENGTH, X[6], X[4])], 1 / (3 * math.sqrt(3))),
        ([slope(SOFTMAX, x) for x in X], P),
        ([slope(SOFTMAX, X[0], x) for x in X[:2]], math.sqrt(1 / 8)),
        ([slope(SOFTMAX, X[0], x) for x in X[1:3]], Q**2),
        ([slope(LENGTH, x) for x in X], math.sqrt(700 / 701)),
        ([slope(LENGTH, x) for x in X[:3]], math.sqrt(300 / 301)),
        ([slope(LENGTH, X[0], x) for x in X], 1.0),
        ([slope(LENGTH, X[0], x) for x in X[4:6]], 1 / (3 * math.sqrt(3))),
    ]
]
UP_TO_ROUNDING = [
    (components, box, exact, 1e-13)
    for components, box, exact in [
        ([X[5] ** 3 / 3], TEN, 1000 / 3),
        ([X[5] ** 3 / 3, 2 * X[5]], TEN, math.hypot(1000 / 3, 20)),
        ([X[5] ** 2, number(2)], TEN, math.hypot(100, 2)),
        ([2 * (X[0] + 10 * X[1])], TEN, 220),
        ([20 * (X[0] + 10 * X[1])], TEN, 2200),
        ([(X[0] + 10 * X[1]) ** 2], TEN, 12100),
        ([exp(X[0] + 2 * X[1])], TEN, math.exp(30)),
        ([1 / X[0]], {X[0]: (0.001, 4e5)}, 1000),
        ([-4 / X[0] ** 2], {X[0]: (0.001, 4e5)}, 4e6),
        ([X[0] ** 3 - 3 * X[0] * X[1] ** 2 + X[1]], TEN, 2010),
        ([number(3), number(4)], {}, 5),
        ([number(math.pi)], TEN, math.pi),
        ([X[0] - X[1]], {X[0]: (1, 1), X[1]: (4, 4)}, 3),
    ]
]


@pytest.mark.parametrize(
    ("components", "box", "exact", "gap"), [*WITHIN_1_PERCENT, *UP_TO_ROUNDING]
)
def test_suprema_of_vectors_match_closed_forms(
    components: list[Any], box: Any, exact: float, gap: float
) -> None:
    check(components, supremum(components, box), exact, gap)


def test_the_gradient_of_a_quadratic_form_of_20_variables_is_exact() -> None:
    factor = np.random.default_rng(3).normal(size=(20, 20))
    variables = symbols("y", 20)
    rows = 2 * (factor @ factor.T)[:2]
    slopes = [total(c * y for c, y in zip(row, variables, strict=True)) for row in rows]
    box = dict.fromkeys(variables, (-1.0, 2.0))
    # The norm of (a'x, b'x) is the largest support, over directions, of the pair's range.
    angles = np.linspace(0, 2 * np.pi, 20_001)
    weights = np.stack([np.cos(angles), np.sin(angles)], axis=1) @ rows
    support = np.maximum(2 * weights, -weights).sum(axis=1)
    single = np.maximum(2 * rows[0], -rows[0]).sum(), np.maximum(rows[0], -2 * rows[0]).sum()
    check(slopes[:1], supremum(slopes[:1], box), max(single), 1e-12)
    check(slopes, supremum(slopes, box), support.max(), 0.005)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(
    ("expr", "exact"),
    [(slope(SOFTMAX, X[0], X[0]), 0.25), (X[0] * exp(-(X[0] ** 2)), math.exp(-0.5) / 2**0.5)],
)
def test_bounds_scale_with_values_and_with_domains(expr: Any, exact: float, scale: float) -> None:
    larger = supremum([number(scale) * expr], TEN)
    check([number(scale) * expr], larger, scale * exact, 0.01)
    stretched = substitute(canonical(expr), {x: canonical(x / number(scale)) for x in X})
    box = dict.fromkeys(X, (-10 * scale, 10 * scale))
    check([stretched], supremum([stretched], box), exact, 0.01)


@pytest.mark.parametrize(
    ("components", "box"),
    [
        ([number(0)], TEN),
        ([X[0] * X[1]], {X[0]: (0.0, 0.0), X[1]: (-1.0, 1.0)}),
        ([X[0] * (X[1] + 1) - X[0] * X[1] - X[0]], TEN),
        ([X[0] * 0, X[1] * 0], TEN),
    ],
)
def test_a_supremum_of_zero_is_found_and_the_search_ends(components: Any, box: Any) -> None:
    bound = supremum(components, box)
    assert bound.upper == bound.attained == 0.0


def test_a_spent_budget_leaves_a_looser_bound_that_still_holds() -> None:
    hard = [slope(SOFTMAX, X[0], X[1])]
    bounds = [supremum(hard, TEN, budget=budget).upper for budget in (1, 100, 200, 20_000)]
    assert bounds[0] > bounds[1] >= bounds[2] >= bounds[3]
    assert bounds[-1] >= Q**2
    assert bounds[1] > 1.01 * Q**2


def test_a_bound_holds_where_no_search_has_looked() -> None:
    peak = X[0] + 9 / (1 + ((X[0] - Fraction(3717, 1000)) * 10**9) ** 2)
    bound = supremum([peak], TEN, budget=20)
    assert bound.attained < 10.1
    assert bound.upper >= 3.717 + 9


def test_a_smaller_tolerance_gives_a_smaller_gap() -> None:
    expr = [slope(LENGTH, X[0], X[1])]
    check(expr, supremum(expr, TEN, tolerance=1e-4), 1 / (3 * math.sqrt(3)), 1.5e-4)


def test_a_proven_fact_spares_the_search() -> None:
    # d/dx of x^4/4 - x^3 + 3/2 x^2 is x (x^2 - 3 x + 3): rising, which intervals do not see.
    rising = [X[0] ** 3 - 3 * X[0] ** 2 + 3 * X[0]]
    box = {X[0]: (0.0, 2.0)}
    informed = supremum(rising, box, nondecreasing=[frozenset({X[0]})], budget=4)
    check(rising, informed, 2.0, 1e-12)
    assert supremum(rising, box, budget=4).upper > 2.1


@pytest.mark.parametrize(
    ("expr", "side", "blamed"),
    [
        (log(X[0]), (0.0, 1.0), "x1"),
        (log(X[0] + X[1]), (0.0, 1.0), "x1 [+] x2"),
        (log(X[0] - X[1] + 1), (0.0, 1.0), "x1 - x2 [+] 1"),
        (1 / X[0], (-1.0, 2.0), "x1"),
        (1 / X[0], (0.0, 2.0), "x1"),
        (sqrt(X[0]), (-1.0, 2.0), "x1"),
        (1 / (5 + log(X[0] - 1) ** 2), (0.0, 2.0), "x1 - 1"),
        (X[0] ** -0.5 * X[1], (0.0, 2.0), "x1"),
    ],
)
def test_an_undefined_norm_is_refused_with_the_remedy(expr: Any, side: Any, blamed: str) -> None:
    remedy = rf"tighten the bounds so that [(]?{blamed}[)]? stays positive"
    for rows in ([[expr]], [[expr], [X[0]]], [[expr, X[0]], [X[0], 1]]):
        with pytest.raises(CertificateError, match=remedy):
            spectral_supremum(rows, dict.fromkeys(X, side))


def test_overflow_is_refused() -> None:
    with pytest.raises(CertificateError, match="no finite bound; tighten the bounds"):
        supremum([exp(exp(X[0]))], TEN)


@pytest.mark.parametrize("side", [(-np.inf, 1.0), (0.0, np.inf), (2.0, 1.0), (np.nan, 1.0)])
def test_a_domain_without_finite_bounds_is_refused_by_name(side: Any) -> None:
    with pytest.raises(CertificateError, match="the bounds of x1 must be finite"):
        supremum([X[0]], {X[0]: side})


def test_missing_bounds_and_missing_components_are_refused() -> None:
    with pytest.raises(CertificateError, match="the bounds of x2 must be finite"):
        supremum([X[0] + X[1]], {X[0]: (0.0, 1.0)})
    bad: list[Any] = [[], [[]], [[1, 2], [3]]]
    for rows in bad:
        with pytest.raises(InputError, match="rows must be those of a matrix"):
            spectral_supremum(rows, TEN)


def test_the_point_found_has_a_coordinate_for_every_symbol_inside_its_bounds() -> None:
    bound = supremum([slope(SOFTMAX, X[0], X[1])], {**TEN, symbol("idle"): (2.0, 4.0)})
    assert {s.name for s in bound.point} == {*(x.name for x in X), "idle"}
    assert all(-10 <= bound.point[x] <= 10 for x in X)
    assert bound.point[symbol("idle")] == 3.0


@settings(patiently, max_examples=50)
@given(st.lists(expressions, min_size=1, max_size=2), boxes, st.randoms(use_true_random=False))
def test_no_sampled_value_exceeds_the_bound(components: list[Any], box: Any, random: Any) -> None:
    try:
        bound = supremum(components, box, budget=200)
    except CertificateError:
        return
    assert bound.attained <= bound.upper
    for _ in range(20):
        point = inside(box, [random.choice([0.0, 1.0, random.random()]) for _ in SYMBOLS])
        assert value_at(components, point) <= mpmath.mpf(bound.upper)


def test_sampling_notices_a_bound_without_its_negative_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expr = X[0] ** 2 - X[0] * X[1] - 3 * X[1] ** 2 + X[0] * X[2]
    sampled = max(
        value_at([expr], dict(zip(X, point, strict=False)))
        for point in np.random.default_rng(1).uniform(-10, 10, (2_000, 3))
    )
    assert sampled <= supremum([expr], TEN).upper
    monkeypatch.setattr(
        branch.Norm,
        "bound",
        lambda self, box: (
            np.maximum(self.sign * self.components[0].enclose(box)[0].upper, 0),
            self.components[0].enclose(box)[1],
        ),
    )
    assert sampled > supremum([expr], TEN).upper


# Matrices -----------------------------------------------------------------------------------------


DISTANCE = sqrt(1 + (X[0] - X[1]) ** 2 + (X[2] - X[3]) ** 2)
entries = st.floats(-1e6, 1e6, allow_subnormal=False)


def hessian(f: Any, x: Any) -> Any:
    return [[derivative(derivative(canonical(f), a), b) for b in x] for a in x]


def norm_upper(matrix: Any) -> float:
    return float(singular_bounds(np.asarray(matrix, dtype=np.float64))[1])


def norm(matrix: Any) -> Any:
    """Return the spectral norm to 50 digits."""
    rows = [[mpmath.mpf(float(entry)) for entry in row] for row in matrix]
    return max(mpmath.svd_r(mpmath.matrix(rows), compute_uv=False))


@st.composite
def matrices(draw: st.DrawFn) -> Any:
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    numbers = st.lists(entries, min_size=columns, max_size=columns)
    return np.array(draw(st.lists(numbers, min_size=rows, max_size=rows)))


@patiently
@given(matrices())
def test_the_spectral_norm_is_never_below_the_true_one_and_tight(matrix: Any) -> None:
    exact, upper = norm(matrix), mpmath.mpf(norm_upper(matrix))
    lower = mpmath.mpf(float(singular_bounds(matrix)[0]))
    assert lower <= exact <= upper
    assert upper - lower <= exact * mpmath.mpf("1e-12")


def test_the_oracle_notices_numpys_own_rounding() -> None:
    rng = np.random.default_rng(5)
    short = 0
    for _ in range(40):
        matrix = rng.normal(size=(3, 4))
        short += mpmath.mpf(float(np.linalg.norm(matrix, 2))) < norm(matrix)
    assert short > 5


@pytest.mark.parametrize(
    ("matrix", "exact"),
    [
        ([[2.0]], 2.0),
        ([[0.0, -2.0]], 2.0),
        ([[1.0, 1.0], [1.0, 1.0]], 2.0),
        ([[3.0, 0.0], [0.0, 2.0]], 3.0),
        (np.full((2, 2), 1e300), 2e300),
        (np.full((2, 2), 1e-300), 2e-300),
        (np.diag([1e200, 1e-200]), 1e200),
        (np.full((30, 40), 0.5), math.sqrt(300.0)),
    ],
)
def test_known_norms_are_reached_from_above(matrix: Any, exact: float) -> None:
    assert exact <= norm_upper(matrix) <= exact * (1 + 1e-12)


def test_zero_subnormal_and_wide_matrices_are_handled() -> None:
    assert norm_upper(np.zeros((2, 3))) == 0.0
    assert 1e-323 <= norm_upper(np.full((2, 2), 5e-324)) <= 1e-322
    wide = np.random.default_rng(2).normal(size=(3, 20_000))
    exact = math.sqrt(np.linalg.eigvalsh(wide @ wide.T)[-1])
    assert exact * (1 - 1e-12) <= norm_upper(wide) <= exact * (1 + 1e-9)


def test_euclidean_neither_overflows_nor_vanishes() -> None:
    for scale in (1e-200, 1.0, 1e200):
        norm = euclidean([interval(3 * scale, 3 * scale), interval(-4 * scale, -4 * scale)])
        assert norm.lower <= 5 * scale <= norm.upper
        assert norm.upper - norm.lower <= 5e-15 * scale
    assert euclidean([interval(0.0, 0.0)]).upper == 0.0
    assert euclidean([interval(-np.inf, 1.0)]).upper == np.inf


@pytest.mark.parametrize(
    ("jacobian", "exact", "gap"),
    [
        ([[X[0], X[1]], [X[1], -X[0]]], math.sqrt(200), 1e-12),
        ([[1, 2], [3, 4]], math.sqrt(15 + math.sqrt(221)), 1e-12),
        ([[0, 0], [0, 0]], 0.0, 0.0),
        ([[0, X[0] ** 2], [0, 0]], 100.0, 1e-12),
        ([[X[0] ** 2, X[1]]], math.hypot(100, 10), 1e-12),
        ([[exp(X[0]), 0], [0, X[1]]], math.exp(10), 0.005),
        (hessian(log(exp(X[0]) + exp(X[1])), X[:2]), 0.5, 0.01),
        (hessian(sqrt(1 + X[0] ** 2 + X[1] ** 2), X[:2]), 1.0, 0.01),
        (
            [[X[0], X[1]], [X[2] / 10, 0], [0, exp(X[3] / 10)]],
            float(np.linalg.norm(np.array([[10, 10], [1, 0], [0, math.e]]), 2)),
            0.01,
        ),
        (
            [[(X[1] - X[0]) / DISTANCE, (X[2] - X[3]) / DISTANCE], [1 / (1 + exp(X[0])), 0]],
            math.hypot(20 / math.sqrt(401), 1 / (1 + math.exp(-10))),
            0.01,
        ),
        ([[1 - X[0] ** 2 / 100, X[0]], [-X[0], 1 - X[0] ** 2 / 100]], 10.0, 0.01),
    ],
)
def test_spectral_suprema_match_closed_forms(jacobian: Any, exact: float, gap: float) -> None:
    bound = spectral_supremum(jacobian, TEN)
    assert exact * (1 - 1e-15) <= bound.upper <= exact * (1 + gap)
    assert exact * (1 - gap) <= bound.attained <= bound.upper


@settings(patiently, max_examples=40)
@given(st.lists(expressions, min_size=4, max_size=4), boxes, st.randoms(use_true_random=False))
def test_no_sampled_norm_exceeds_the_bound(four: list[Any], box: Any, random: Any) -> None:
    jacobian = [four[:2], four[2:]]
    try:
        bound = spectral_supremum(jacobian, box, budget=50)
    except CertificateError:
        return
    for _ in range(5):
        point = inside(box, [random.choice([0.0, 1.0, random.random()]) for _ in SYMBOLS])
        values = [[precise(entry, point) for entry in row] for row in jacobian]
        exact = max(mpmath.svd_r(mpmath.matrix(values), compute_uv=False))
        assert exact <= mpmath.mpf(bound.upper) * (1 + mpmath.mpf("1e-40"))


def test_moduli_alone_would_not_do_for_mixed_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    # |J| has norm 2 x where J has sqrt(2) x: subdivision cannot close that gap, the centre can.
    jacobian = [[X[0] ** 2, X[0] ** 2], [X[0] ** 2, -(X[0] ** 2)]]
    box = {X[0]: (1.0, 2.0)}
    assert spectral_supremum(jacobian, box).upper <= 4 * math.sqrt(2) * 1.005
    bounds = branch.singular_bounds
    monkeypatch.setattr(branch, "singular_bounds", lambda m: bounds(np.abs(m)))
    assert spectral_supremum(jacobian, box, budget=200).upper >= 7.99
