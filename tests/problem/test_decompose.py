"""A constraint as sums in a public set: the same points, convex regions, one agent per term."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.errors import ProblemError
from sottovoce.problem.agents import Array
from sottovoce.problem.decompose import AS_STATED, Decomposed, decompose

a, b, c, d = STATES = sp.symbols("a b c d")
OWNERS = {a: "a", b: "b", c: "pair", d: "pair"}  # the last agent has two components


def written(g: Any, *, equality: bool = False) -> Decomposed:
    return decompose(sp.sympify(g), OWNERS, name="g", equality=equality)


def named(found: Decomposed) -> Any:
    """What phi says in terms of the states."""
    assert found.phi is not None
    symbols, phi = found.phi
    return sp.expand(phi.xreplace(dict(zip(symbols, found.sums, strict=True))))


# --- the table of the design, row by row ---------------------------------------------------------


def test_a_sum_of_terms_of_one_agent_each_stays_as_it_is() -> None:
    found = written(a**2 + sp.exp(b) + c * d - 5)
    assert found.sums == (a**2 + sp.exp(b) + c * d,)
    assert (found.lower, found.upper, found.phi) == ((-np.inf,), (5.0,), None)
    assert found.as_stated
    assert found.how == AS_STATED


def test_an_equality_is_a_sum_at_a_point() -> None:
    found = written(2 * a + b - 3 * c - 7, equality=True)
    assert found.sums == (2 * a + b - 3 * c,)
    assert (found.lower, found.upper) == ((7.0,), (7.0,))
    assert found.as_stated


E_SQUARED = math.exp(2)


@pytest.mark.parametrize(
    ("g", "inside", "bound"),
    [
        (
            sp.log(sp.exp(a) + sp.exp(b) + sp.exp(c)) - 2,
            sp.exp(a) + sp.exp(b) + sp.exp(c),
            math.exp(2),
        ),
        (sp.sqrt(a**2 + b**2 + 4) - 3, a**2 + b**2, 5.0),
        (3 * sp.exp(a**2 + b) - 6, a**2 + b, np.log(2)),
        ((a**2 + b**2) ** 2 - 4, a**2 + b**2, 2.0),
        ((a + b + 1) ** 3 - 8, a + b, 1.0),
        (sp.sqrt(2) * sp.log(sp.exp(a) + sp.exp(b)) - sp.sqrt(2), sp.exp(a) + sp.exp(b), np.e),
    ],
)
def test_a_rising_function_of_a_sum_is_unwrapped(g: sp.Expr, inside: sp.Expr, bound: float) -> None:
    found = written(g)
    assert found.sums == (inside,)
    assert found.upper == pytest.approx((bound,))
    assert found.lower == (-np.inf,)
    assert not found.as_stated


@pytest.mark.parametrize("g", [(a + 10 * b + 1) ** 2 - 50, sp.expand((a + 10 * b + 1) ** 2) - 50])
def test_the_square_of_a_sum_lies_between_two_bounds_written_out_or_not(g: sp.Expr) -> None:
    found = written(g)
    (total,) = found.sums
    assert sp.expand(total - a - 10 * b) == 0
    assert found.lower == pytest.approx((-1 - np.sqrt(50),))
    assert found.upper == pytest.approx((-1 + np.sqrt(50),))


@pytest.mark.parametrize(
    "g", [(a + 10 * b) ** 2 + c**2 - 9, a**2 + 20 * a * b + 100 * b**2 + c**2 - 9]
)
def test_a_square_beside_another_agents_term_takes_two_sums(g: sp.Expr) -> None:
    found = written(g)
    assert len(found.sums) == 2
    assert named(found) == sp.expand(g)


def test_a_distance_is_a_disc() -> None:
    found = written(sp.sqrt(1 + (a - c) ** 2 + (b - d) ** 2) - 3)
    assert len(found.sums) == 2
    assert named(found) == sp.expand((a - c) ** 2 + (b - d) ** 2 - 8)


def test_a_quadratic_form_takes_as_many_sums_as_its_rank() -> None:
    x = sp.Matrix([a, b, c, d])
    rows = sp.Matrix([[1, 2, 0, 1], [0, 1, -1, 3]])
    g = sp.expand(((rows * x).T * (rows * x))[0] + 2 * (rows * x)[0]) - 5
    found = written(g)
    assert len(found.sums) == 2
    assert named(found) == g


def test_a_large_separable_part_of_a_quadratic_form_is_one_sum() -> None:
    many = sp.symbols("p1:13")
    g = sp.Add(*(s**2 for s in many)) + (many[0] - many[1]) ** 2 / 2 - 30
    found = decompose(g, {s: s.name for s in many}, name="g")
    assert len(found.sums) == 2


def test_what_is_separable_beside_a_formula_is_one_more_sum() -> None:
    found = written(sp.exp(a - b) + a**2 + b**4 + c + d**2 - 9)
    assert found.sums == (a - b, a**2 + b**4 + c + d**2)
    assert named(found) == sp.expand(sp.exp(a - b) + a**2 + b**4 + c + d**2 - 9)


def test_the_fallback_is_the_components_that_are_mixed() -> None:
    # Convex for c > 0, which no form tells, and a is in two of its affine parts.
    found = written(a**2 / c + sp.exp(a + b) + d / 2 + d**2 - 9)
    assert found.sums == (a, b, c, d / 2 + d**2)
    assert "components" in found.how


# --- regions are convex, wherever phi is asked --------------------------------------------------


def test_a_separable_part_never_hides_that_phi_bends_down() -> None:
    # a b alone is a saddle: only with the squares is the constraint convex.
    found = written(a * b + a**2 + b**2 + sp.exp(a + c) - 9)
    assert found.phi is not None
    hessian = sp.hessian(found.phi[1], found.phi[0])
    at = hessian.subs(dict.fromkeys(found.phi[0], -30))
    assert min(at.evalf().eigenvals()) >= -1e-12


def test_dependent_sums_are_written_in_an_independent_set() -> None:
    found = written(sp.exp(a + b) + sp.exp(a - b) + sp.exp(a) + sp.exp(b) - 30)
    assert len(found.sums) == 2
    assert (
        sp.simplify(named(found) - (sp.exp(a + b) + sp.exp(a - b) + sp.exp(a) + sp.exp(b) - 30))
        == 0
    )
    matrix = sp.Matrix([[h.coeff(s) for s in (a, b)] for h in found.sums])
    assert matrix.rank() == 2


def test_a_function_of_one_sum_needs_no_form_because_the_sum_takes_all_its_values() -> None:
    found = written(1 / (a + b) + c**2 - 4)
    assert found.sums == (a + b, c**2)


def test_multiples_of_a_sum_share_it() -> None:
    found = written((a + b) ** 4 + sp.exp(2 * a + 2 * b) + sp.exp(-a - b) + c - 9)
    assert found.sums == (a + b, c)


# --- equalities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("g", [a**2 - 1, a * b, sp.exp(a) + b, sp.sqrt(1 + a) + b])
def test_an_equality_that_is_not_affine_is_refused(g: sp.Expr) -> None:
    with pytest.raises(ProblemError, match="constraint g must be affine to be an equality, got"):
        written(g, equality=True)


@pytest.mark.parametrize(
    "g", [sp.sqrt(2) * (a + b) - 1, (a + 1) ** 2 - a**2 + b, sp.pi * a + b / 3, a * (1 + sp.E) - b]
)
def test_an_equality_that_is_affine_once_multiplied_out_is_taken(g: sp.Expr) -> None:
    found = written(g, equality=True)
    assert sp.expand(found.sums[0] - found.lower[0]).equals(sp.expand(g)) or np.isclose(
        float((found.sums[0] - g).subs({a: 0, b: 0})), found.lower[0]
    )


# --- random convex constraints ------------------------------------------------------------------


def _affine(draw: st.DrawFn, *, floats: bool) -> sp.Expr:
    number = st.integers(-3, 3)
    if floats:
        number = st.floats(-3, 3).map(lambda v: sp.Float(round(v, 3))) | number
    weights = draw(st.lists(number, min_size=4, max_size=4))
    return sp.Add(*(w * s for w, s in zip(weights, STATES, strict=True))) + draw(st.integers(-1, 1))


@st.composite
def convex(draw: st.DrawFn) -> sp.Expr:
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
                        sp.expand(one**2),
                        one**4,
                        sp.exp(one / 4),
                        sp.Add(*(f**2 for f in forms)),
                        sp.expand(sp.Add(*(f**2 for f in forms))),
                        sp.sqrt(1 + sp.Add(*(f**2 for f in forms))),
                        sp.sqrt(sp.expand(1 + sp.Add(*(f**2 for f in forms)))),
                        sp.log(sp.Add(*(sp.exp(f / 4) for f in forms))),
                        sp.Add(*(k * s**2 for k, s in enumerate(STATES, 1))),
                        a**2 + a * b + b**2,
                        (a**2 + c**2) ** 2,
                        sp.exp(a / 4) + c**4 + d,
                    ]
                )
            )
        )
    return _wrapped(draw, sp.Add(*terms))


def _wrapped(draw: st.DrawFn, g: sp.Expr) -> sp.Expr:
    inside = sp.exp(a / 3) + sp.exp(-b / 2) + sp.exp(c - d)
    if draw(st.integers(0, 5)) == 0:
        g = draw(
            st.sampled_from([2 * sp.log(inside), sp.sqrt(3 + (a - b) ** 2 + c**2), sp.exp(g / 30)])
        )
    return g


def compiled(formulas: Any) -> Any:
    return sp.lambdify([STATES], list(formulas))


def rooms(found: Decomposed, points: Array) -> list[float]:
    """How far inside the set the sums lie at each point; negative outside."""
    sums = compiled(found.sums)
    phi = None if found.phi is None else sp.lambdify([found.phi[0]], found.phi[1])
    least = []
    for x in points:
        values = sums(x)
        room = [v - low for v, low in zip(values, found.lower, strict=True)]
        room += [high - v for v, high in zip(values, found.upper, strict=True)]
        least.append(min(room if phi is None else [*room, -phi(values)]))
    return least


@settings(max_examples=25, deadline=None)
@given(convex(), st.integers(0, 10**6))
def test_the_sums_lie_in_the_set_where_and_only_where_the_constraint_holds(
    g: sp.Expr, seed: int
) -> None:
    if len({OWNERS[s] for s in g.free_symbols}) < 1:
        return
    rng = np.random.default_rng(seed)
    points = rng.uniform(-2, 2, (12, 4))
    level = compiled([g])(points[0])[0]
    g = g - sp.Float(round(level + 0.01, 6))
    found = written(g)
    for h in found.sums:
        for term in sp.Add.make_args(h):
            assert len({OWNERS[s] for s in term.free_symbols}) == 1
    told, constraint = 0, compiled([g])
    points = np.vstack([points, 0.9 * points[1:] + 0.1 * points[0]])
    for x, room in zip(points, rooms(found, points), strict=True):
        (truth,) = constraint(x)
        if abs(truth) > 1e-4 and abs(room) > 1e-6:
            assert (room > 0) == (truth < 0)
            told += 1
    assert told >= 5


@settings(max_examples=20, deadline=None)
@given(convex(), st.integers(0, 10**6))
def test_regions_are_convex_off_the_range_of_the_sums_too(g: sp.Expr, seed: int) -> None:
    found = written(g - 5) if g.free_symbols else None
    if found is None or found.phi is None or "components" in found.how:
        return
    symbols, phi = found.phi
    value: Any = sp.lambdify([symbols], phi)
    rng = np.random.default_rng(seed)
    for u, v in rng.uniform(-4, 4, (20, 2, len(symbols))):
        ends, middle = value(u) + value(v), 2 * value((u + v) / 2)
        assert middle <= ends + 1e-9 * (1 + abs(ends) + abs(middle))
