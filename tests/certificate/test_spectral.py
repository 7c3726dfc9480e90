from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formula_values import evaluate
from random_expressions import SYMBOLS, boxes, expressions, inside, patiently, precise, symbols
from sottovoce.certificate import norms, supremum
from sottovoce.certificate.norms import euclidean, singular_bounds, spectral_norm_upper
from sottovoce.errors import CertificateError, InputError
from sottovoce.formula.canonical import canonical
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import expression
from sottovoce.formula.functions import exp, log, sqrt
from sottovoce.formula.intervals import interval

X = symbols("x", 7)
TEN = dict.fromkeys(X, (-10.0, 10.0))
DISTANCE = sqrt(1 + (X[0] - X[1]) ** 2 + (X[2] - X[3]) ** 2)
entries = st.floats(-1e6, 1e6, allow_subnormal=False)


@pytest.fixture(autouse=True)
def _many_digits() -> Iterator[None]:
    with mpmath.workdps(50):
        yield


def spectral_supremum(jacobian: Any, box: Any, **settings: Any) -> Any:
    rows = [[canonical(expression(entry)) for entry in row] for row in jacobian]
    return supremum.spectral_supremum(rows, box, **settings)


def hessian(f: Any, x: Any) -> Any:
    return [[derivative(derivative(canonical(f), a), b) for b in x] for a in x]


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
    exact, upper = norm(matrix), mpmath.mpf(spectral_norm_upper(matrix))
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
    assert exact <= spectral_norm_upper(matrix) <= exact * (1 + 1e-12)


def test_zero_empty_subnormal_and_wide_matrices_are_handled() -> None:
    assert spectral_norm_upper(np.zeros((2, 3))) == 0.0
    assert spectral_norm_upper(np.zeros((0, 3))) == 0.0
    assert 1e-323 <= spectral_norm_upper(np.full((2, 2), 5e-324)) <= 1e-322
    wide = np.random.default_rng(2).normal(size=(3, 20_000))
    exact = math.sqrt(np.linalg.eigvalsh(wide @ wide.T)[-1])
    assert exact * (1 - 1e-12) <= spectral_norm_upper(wide) <= exact * (1 + 1e-9)


@pytest.mark.parametrize("numbers", [[[np.nan]], [[1.0, np.inf]]])
def test_numbers_that_are_not_finite_are_refused(numbers: Any) -> None:
    with pytest.raises(InputError, match="must hold finite numbers"):
        spectral_norm_upper(numbers)


def test_a_matrix_must_have_two_dimensions() -> None:
    with pytest.raises(InputError, match="two dimensions"):
        spectral_norm_upper([1.0, 2.0])


def test_euclidean_neither_overflows_nor_vanishes() -> None:
    for scale in (1e-200, 1.0, 1e200):
        norm = euclidean([interval(3 * scale, 3 * scale), interval(-4 * scale, -4 * scale)])
        assert norm.lower <= 5 * scale <= norm.upper
        assert norm.upper - norm.lower <= 5e-15 * scale
    assert euclidean([interval(0.0, 0.0)]).upper == 0.0
    assert euclidean([interval(-np.inf, 1.0)]).upper == np.inf


PAPER = [
    canonical(g)
    for g in (
        X[0] + X[1] + X[2] - 3,
        X[4] ** 2 + X[5] ** 4 / 12 + X[6] ** 4 / 12 - 20,
        X[2] ** 2 + X[3] + X[5] - 1,
        X[5] ** 2 + X[6] ** 2 - 5,
    )
]


def test_the_papers_constants_come_out_as_recomputed() -> None:
    k_g = spectral_supremum([[derivative(g, x) for x in X] for g in PAPER], TEN)
    corner = [[evaluate(derivative(g, x), dict.fromkeys(X, 10.0)) for x in X] for g in PAPER]
    assert k_g.upper == pytest.approx(472.674613, abs=1e-6)
    assert mpmath.mpf(k_g.found) <= norm(corner) <= mpmath.mpf(k_g.upper)
    assert k_g.upper <= k_g.found * (1 + 1e-12)
    columns = [spectral_supremum([[derivative(g, x)] for g in PAPER], TEN) for x in X]
    assert max(column.upper for column in columns) == pytest.approx(333.934292, abs=1e-6)
    curvatures = [
        spectral_supremum([[derivative(derivative(g, x), x)] for g in PAPER], TEN) for x in X
    ]
    assert curvatures[5].upper == pytest.approx(math.hypot(100, 2), rel=1e-14)
    assert [bound.upper for bound in curvatures[:5]] == [0, 0, 2, 0, 2]


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
    assert exact * (1 - gap) <= bound.found <= bound.upper


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
    bounds = norms.singular_bounds
    monkeypatch.setattr(norms, "singular_bounds", lambda m: bounds(np.abs(m)))
    assert spectral_supremum(jacobian, box, budget=200).upper >= 7.99


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], [3]]])
def test_a_jacobian_must_be_a_matrix(rows: Any) -> None:
    with pytest.raises(InputError, match="jacobian must be a matrix"):
        spectral_supremum(rows, TEN)


def test_an_unbounded_jacobian_is_refused_with_the_remedy() -> None:
    with pytest.raises(CertificateError, match="so that x1 stays positive"):
        spectral_supremum([[1 / X[0], X[1]], [X[1], X[0]]], TEN)
