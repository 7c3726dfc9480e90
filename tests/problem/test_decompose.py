"""A constraint as sums in a public set: the same points, convex regions, one agent per term."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.errors import ProblemError, SottovoceError
from sottovoce.formula.canonical import addends, canonical, expand, substitute
from sottovoce.formula.derive import definiteness, hessian, ldl, quadratic_form
from sottovoce.formula.expression import Expression, number, symbol
from sottovoce.formula.functions import exp, log, sqrt, sum_squares
from sottovoce.formula.tape import tape
from sottovoce.problem.decompose import AS_STATED, Decomposition, decompose
from sottovoce.problem.groups import Array
from sottovoce.problem.quadratic import Squares, sum_of_squares

a, b, c, d = STATES = tuple(symbol(name) for name in "abcd")
OWNERS = {a: "a", b: "b", c: "pair", d: "pair"}  # the last agent has two components


def written(g: Any, *, equality: bool = False) -> Decomposition:
    return decompose(canonical(g), OWNERS, name="g", equality=equality)


def same(sums: Any, *stated: Any) -> bool:
    """Whether sums are these formulas, in this order."""
    pairs = zip(sums, stated, strict=True)
    return all(expand(left) is expand(canonical(right + number(0))) for left, right in pairs)


def named(found: Decomposition) -> Expression:
    """What phi says in terms of the states."""
    assert found.phi is not None
    symbols, phi = found.phi
    return expand(substitute(phi, dict(zip(symbols, found.sums, strict=True))))


# --- the table of the design, row by row ---------------------------------------------------------


@pytest.mark.parametrize(
    ("inside", "bound", "equality"),
    [(a**2 + exp(b) + c * d, 5.0, False), (2 * a + b - 3 * c, 7.0, True)],
)
def test_terms_of_one_agent_each_stay_as_they_are(
    inside: Any, bound: float, equality: bool
) -> None:
    found = written(inside - bound, equality=equality)
    assert same(found.sums, inside)
    assert (found.upper, found.phi) == ((bound,), None)
    assert found.lower == ((bound if equality else -np.inf),)
    assert found.as_stated
    assert found.how == AS_STATED


@pytest.mark.parametrize(
    ("g", "inside", "bound"),
    [
        (log(exp(a) + exp(b) + exp(c)) - 2, exp(a) + exp(b) + exp(c), math.exp(2)),
        (sqrt(a**2 + b**2 + 4) - 3, a**2 + b**2, 5.0),
        (3 * exp(a**2 + b) - 6, a**2 + b, np.log(2)),
        ((a**2 + b**2) ** 2 - 4, a**2 + b**2, 2.0),
        ((a + b + 1) ** 3 - 8, a + b, 1.0),
        (2**0.5 * log(exp(a) + exp(b)) - 2**0.5, exp(a) + exp(b), np.e),
    ],
)
def test_a_rising_function_of_a_sum_is_unwrapped(g: Any, inside: Any, bound: float) -> None:
    found = written(g)
    assert same(found.sums, inside)
    assert found.upper == pytest.approx((bound,))
    assert found.lower == (-np.inf,)
    assert not found.as_stated


@pytest.mark.parametrize(
    "g", [(a + 10 * b + 1) ** 2 - 50, expand(canonical((a + 10 * b + 1) ** 2)) - 50]
)
def test_the_square_of_a_sum_lies_between_two_bounds_written_out_or_not(g: Any) -> None:
    found = written(g)
    assert same(found.sums, a + 10 * b)
    assert found.lower == pytest.approx((-1 - np.sqrt(50),))
    assert found.upper == pytest.approx((-1 + np.sqrt(50),))


ROWS = (a + 2 * b + d, b - c + 3 * d)


@pytest.mark.parametrize(
    ("g", "unwrapped"),
    [
        # a square beside another agent's term, written out or not; a disc; as many as the rank
        ((a + 10 * b) ** 2 + c**2 - 9, None),
        (a**2 + 20 * a * b + 100 * b**2 + c**2 - 9, None),
        (sqrt(1 + (a - c) ** 2 + (b - d) ** 2) - 3, (a - c) ** 2 + (b - d) ** 2 - 8),
        (expand(canonical(sum_squares(*ROWS) + 2 * ROWS[0] - 5)), None),
        # a separable rest beside a formula; sums of which others are combinations
        (exp(a - b) + a**2 + b**4 + c + d**2 - 9, None),
        (exp(a + b) + exp(a - b) + exp(a) + exp(b) - 30, None),
    ],
)
def test_these_take_two_sums_in_a_region_that_says_the_same(g: Any, unwrapped: Any) -> None:
    found = written(g)
    assert len(found.sums) == 2
    assert named(found) is expand(canonical(g if unwrapped is None else unwrapped))


def test_a_large_separable_part_of_a_quadratic_form_is_one_sum() -> None:
    many = [symbol(f"p{k + 1}") for k in range(12)]
    g = sum_squares(*many) + (many[0] - many[1]) ** 2 / 2 - 30
    found = decompose(canonical(g), {s: s.name for s in many}, name="g")
    assert len(found.sums) == 2


@pytest.mark.parametrize(
    ("g", "sums"),
    [
        (exp(a - b) + a**2 + b**4 + c + d**2 - 9, (a - b, a**2 + b**4 + c + d**2)),
        # A function of one sum needs no form: the sum takes all its values.
        (1 / (a + b) + c**2 - 4, (a + b, c**2)),
        # Multiples of a sum share it.
        ((a + b) ** 4 + exp(2 * a + 2 * b) + exp(-a - b) + c - 9, (a + b, c)),
    ],
)
def test_what_is_separable_beside_a_formula_is_one_more_sum(g: Any, sums: Any) -> None:
    assert same(written(g).sums, *sums)


def test_the_fallback_is_the_components_that_are_mixed() -> None:
    # Convex for c > 0, which no form tells, and a is in two of its affine parts.
    found = written(a**2 / c + exp(a + b) + d / 2 + d**2 - 9)
    assert same(found.sums, a, b, c, d / 2 + d**2)
    assert "components" in found.how


# --- regions are convex, wherever phi is asked --------------------------------------------------


def test_a_separable_part_never_hides_that_phi_bends_down() -> None:
    # a b alone is a saddle: only with the squares is the constraint convex.
    found = written(a * b + a**2 + b**2 + exp(a + c) - 9)
    assert found.phi is not None
    symbols, phi = found.phi
    entries = hessian(phi, symbols)
    curved = np.zeros((len(symbols), len(symbols)))
    numbers = tape(entries.values(), symbols)(*[-30.0] * len(symbols))
    place = {s: k for k, s in enumerate(symbols)}
    for (s, t), value in zip(entries, numbers, strict=True):
        curved[place[t], place[s]] = value  # the lower triangle
    assert np.linalg.eigvalsh(curved)[0] >= -1e-12


# --- equalities ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "g", [2**0.5 * (a + b) - 1, (a + 1) ** 2 - a**2 + b, math.pi * a + b / 3, a * (1 + math.e) - b]
)
def test_an_equality_that_is_affine_once_multiplied_out_is_taken(g: Any) -> None:
    found = written(g, equality=True)
    point = [0.3, -1.7, 0.0, 0.0]
    (total,), (row,) = values(found.sums, point), values([canonical(g)], point)
    assert total - found.lower[0] == pytest.approx(row)


# --- random convex constraints ------------------------------------------------------------------


def _affine(draw: st.DrawFn, *, floats: bool) -> Any:
    weight: st.SearchStrategy[Any] = st.integers(-3, 3)
    if floats:
        weight = st.floats(-3, 3).map(lambda v: round(v, 3)) | weight
    weights = draw(st.lists(weight, min_size=4, max_size=4))
    return sum(w * s for w, s in zip(weights, STATES, strict=True)) + draw(st.integers(-1, 1))


@st.composite
def convex(draw: st.DrawFn) -> Any:
    """A convex function of four components of three agents, defined everywhere."""
    floats = draw(st.booleans())
    terms = []
    for _ in range(draw(st.integers(1, 3))):
        forms = [_affine(draw, floats=floats) for _ in range(draw(st.integers(1, 3)))]
        one = forms[0]
        terms.append(
            draw(
                st.sampled_from(
                    [
                        one,
                        one**2,
                        expand(canonical(one**2)),
                        one**4,
                        exp(one / 4),
                        sum_squares(*forms),
                        expand(canonical(sum_squares(*forms))),
                        sqrt(1 + sum_squares(*forms)),
                        sqrt(expand(canonical(1 + sum_squares(*forms)))),
                        log(sum(exp(f / 4) for f in forms)),
                        sum(k * s**2 for k, s in enumerate(STATES, 1)),
                        a**2 + a * b + b**2,
                        (a**2 + c**2) ** 2,
                        exp(a / 4) + c**4 + d,
                    ]
                )
            )
        )
    return canonical(_wrapped(draw, sum(terms)))


def _wrapped(draw: st.DrawFn, g: Any) -> Any:
    inside = exp(a / 3) + exp(-b / 2) + exp(c - d)
    if draw(st.integers(0, 5)) == 0:
        g = draw(st.sampled_from([2 * log(inside), sqrt(3 + (a - b) ** 2 + c**2), exp(g / 30)]))
    return g


def values(formulas: Any, point: Any) -> list[float]:
    return tape(formulas, STATES)(*map(float, point))


def rooms(found: Decomposition, points: Array) -> list[float]:
    """How far inside the set the sums lie at each point; negative outside."""
    least = []
    for x in points:
        sums = values(found.sums, x)
        room = [v - low for v, low in zip(sums, found.lower, strict=True)]
        room += [high - v for v, high in zip(sums, found.upper, strict=True)]
        if found.phi is not None:
            room.append(-tape([found.phi[1]], found.phi[0])(*sums)[0])
        least.append(min(room))
    return least


@settings(max_examples=25, deadline=None)
@given(convex(), st.integers(0, 10**6))
def test_sums_lie_in_the_set_exactly_where_the_constraint_holds(g: Any, seed: int) -> None:
    if not g.symbols:
        return
    rng = np.random.default_rng(seed)
    points = rng.uniform(-2, 2, (12, 4))
    (level,) = values([g], points[0])
    g = canonical(g - round(level + 0.01, 6))
    found = written(g)
    for h in found.sums:
        for term in addends(h):
            assert len({OWNERS[s] for s in term.symbols}) == 1
    told = 0
    points = np.vstack([points, 0.9 * points[1:] + 0.1 * points[0]])
    for x, room in zip(points, rooms(found, points), strict=True):
        (truth,) = values([g], x)
        if abs(truth) > 1e-4 and abs(room) > 1e-6:
            assert (room > 0) == (truth < 0)
            told += 1
    assert told >= 5


@settings(max_examples=20, deadline=None)
@given(convex(), st.integers(0, 10**6))
def test_regions_are_convex_off_the_range_of_the_sums_too(g: Any, seed: int) -> None:
    found = written(g - 5) if g.symbols else None
    if found is None or found.phi is None or "components" in found.how:
        return
    symbols, phi = found.phi
    value = tape([phi], symbols)
    u, v = np.random.default_rng(seed).uniform(-4, 4, (2, len(symbols), 20))
    low, high, middle = (value(*point)[0] for point in (u, v, (u + v) / 2))
    assert np.all(2 * middle <= low + high + 1e-9 * (1 + abs(low) + abs(high) + abs(middle)))


@pytest.mark.parametrize("level", [Fraction(1, 3), 0.1, 2, 50, Fraction(7, 11), 123.456])
@pytest.mark.parametrize(
    ("function", "inverse"),
    [
        (lambda u: u**2, mpmath.sqrt),
        (lambda u: u**4, lambda v: mpmath.sqrt(mpmath.sqrt(v))),
        (lambda u: u**1.5, lambda v: mpmath.cbrt(v) ** 2),
        (sqrt, lambda v: v**2),
        (exp, mpmath.log),
        (log, mpmath.exp),
        (abs, lambda v: v),
    ],
)
def test_a_level_is_rounded_to_the_smaller_set(function: Any, inverse: Any, level: Any) -> None:
    for factor in (1, Fraction(1, 3), 0.3):
        sums = written(number(factor) * function(a + b + 0.7) - number(level))
        (upper,) = map(mpmath.mpf, sums.upper)
        with mpmath.workdps(60):
            exact = Fraction(level) / Fraction(factor)
            end = inverse(mpmath.mpf(exact.numerator) / exact.denominator) - mpmath.mpf(0.7)
            assert upper <= end <= upper + (1 + abs(end)) * mpmath.mpf(2) ** -36


def test_a_root_keeps_its_domain_where_it_cancels() -> None:
    x = sv.agents(2, lower=-2, upper=9)
    alone = sv.Problem(objectives=list(x**2), constraints=[sv.sqrt(x[0]) ** 2 <= 4, sum(x) <= 3])
    assert alone.groups[0].lower == 0.0
    for root in (sv.sqrt(x[0]) ** 2, sv.sqrt(x[0]) * sv.sqrt(x[0]), sv.exp(sv.log(x[0]))):
        mixed = sv.Problem(objectives=list(x**2), constraints=[root + x[1] <= 4])
        with pytest.raises(SottovoceError, match="undefined at x1"):
            sv.certify(mixed).require()
    y = sv.agents(2, lower=0, upper=9)
    fine = sv.Problem(
        objectives=[(s - 3) ** 2 for s in y], constraints=[sv.sqrt(y[0]) ** 2 + y[1] <= 4]
    )
    assert sv.certify(fine).holds
    np.testing.assert_allclose(sv.reference_optimum(fine).x, [2, 2], atol=1e-9)


def test_a_size_of_at_most_0_is_refused_with_the_equality_to_state() -> None:
    x = sv.agents(3, lower=-1, upper=1)
    for row, remedy in (
        (abs(x[0] - x[1]) <= 0, "only x1 - x2 == 0 meets it"),
        (sv.norm(x[0] - x[1], x[2]) <= 0, "only x1 - x2 == 0 and x3 == 0 meets it"),
        (abs(x[0] - x[1]) <= -1, "relax it"),
    ):
        with pytest.raises(ProblemError, match=rf"g1 must bound .* by a positive number.*{remedy}"):
            sv.Problem(objectives=list(x**2), constraints=[row])


# --- Quadratic forms as squares of sums: exact, or rounded so that nothing outside gets in ---


A, B, C = (symbol(name) for name in "abc")


def form(Q: Any, q: Any, c: float) -> tuple[Expression, tuple[Expression, ...]]:
    x = tuple(symbol(f"x{i + 1}") for i in range(len(q)))
    v: Any = np.array(x, dtype=object)
    total: Any = number(c)
    for row, w, s in zip(Q.tolist(), q.tolist(), x, strict=True):
        total = total + w * s + sum(a * t * s for a, t in zip(row, v, strict=True))
    return canonical(total), x


def excess(found: Squares, g: Expression) -> list[list[Fraction]]:
    """The bordered matrix of what the squares have more than the form, in exact arithmetic."""
    stated = quadratic_form(g)
    assert stated is not None
    place = {s: i for i, s in enumerate(stated.symbols)}
    left = [[-entry for entry in row] for row in stated.bordered]

    def add(matrix: Any, symbols: Any, scale: Fraction = Fraction(1)) -> None:
        places = [*(place[s] for s in symbols), len(place)]
        for i, row in zip(places, matrix, strict=True):
            for j, entry in zip(places, row, strict=True):
                left[i][j] += scale * entry

    for w, u, m in zip(found.weights, found.sums, found.centres, strict=True):
        read = quadratic_form(u)
        assert read is not None
        assert not any(map(any, read.quadratic))
        full = [*read.linear, -m]
        add([[a * b for b in full] for a in full], read.symbols, w)
    if found.rest.symbols:
        read = quadratic_form(found.rest)
        assert read is not None
        add(read.bordered, read.symbols)
    left[-1][-1] += found.constant
    return left


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_squares_are_never_below_the_form_and_hardly_above(seed: int, floats: bool) -> None:
    rng = np.random.default_rng(seed)
    n, rank = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    half = rng.normal(size=(rank, n)) if floats else rng.integers(-3, 4, (rank, n))
    Q = half.T @ half + np.diag(rng.integers(0, 3, n))
    g, x = form(Q, rng.integers(-3, 4, n), -5.0)
    found = sum_of_squares(g, {s: str(i // 2) for i, s in enumerate(x)})
    if found is None:
        # float64 may have pushed a semidefinite form over the edge.
        assert floats or not any(s in g.symbols for s in x) or not np.any(Q)
        return
    more = excess(found, g)
    assert definiteness(more) >= 0
    size = float(np.abs(Q).sum()) + 5.0
    assert max(abs(float(entry)) for row in more for entry in row) <= 1e-8 * size
    assert all(w > 0 for w in found.weights)


def test_the_exact_way_is_exact() -> None:
    g = canonical(3 * A**2 - 2 * A * B + B**2 + A - C - 7)
    found = sum_of_squares(g, {A: "a", B: "b", C: "c"})
    assert found is not None
    assert not any(entry for row in excess(found, g) for entry in row)


def test_a_form_that_is_not_semidefinite_has_no_squares() -> None:
    owners = {A: "a", B: "b"}
    assert sum_of_squares(canonical(A * B), owners) is None
    assert sum_of_squares(canonical(A**2 - B**2 + A * B), owners) is None


@pytest.mark.parametrize("g", [exp(A) * B, A**2 * B, (A * B) ** 0.5])
def test_what_is_no_form_is_left_alone(g: Any) -> None:
    assert quadratic_form(canonical(g)) is None
    assert sum_of_squares(canonical(g), {A: "a", B: "b"}) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_factorisation_is_exact_and_tells_semidefinite_from_not(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    half = rng.integers(-2, 3, (int(rng.integers(1, 5)), n))
    Q = [[Fraction(int(v)) for v in row] for row in half.T @ half]
    found = ldl(Q)
    assert found is not None
    pairs = list(zip(*found, strict=True))
    assert [[sum(w * v[i] * v[j] for v, w in pairs) for j in range(n)] for i in range(n)] == Q
    shift = 1 + max(map(max, Q))
    lowered = [[e - shift * (i == j) for j, e in enumerate(row)] for i, row in enumerate(Q)]
    assert ldl(lowered) is None


def test_a_form_over_two_dozen_agents_takes_seconds_at_most() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(24, 24))
    g, x = form(half.T @ half / 24, np.zeros(24), -9.0)
    begin = time.process_time()
    assert sum_of_squares(g, {s: s.name for s in x}) is not None
    assert time.process_time() - begin < 10.0
