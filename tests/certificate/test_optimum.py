"""The reference saddle point: published optima, a second solver primal and dual, refusals."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from formula_values import evaluate
from sottovoce.certificate.kkt import KktSolver
from sottovoce.certificate.optimum import reference_optimum, saddle_prices
from sottovoce.errors import CertificateError, ConvexityError, ProblemError
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import number
from sottovoce.problem import gallery
from sottovoce.problem.constraints import total
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.problem import Problem

cp: Any = import_module("cvxpy")  # its type hints do not name what it exports


@pytest.mark.parametrize("name", gallery.names())
def test_every_gallery_problem_is_solved_to_1e_9_is_regular_and_as_published(name: str) -> None:
    problem, published = gallery.get(name), gallery.known(name)
    saddle = reference_optimum(problem)
    assert saddle.residual <= 1e-9
    if not any(local.labels for local in problem.local):  # Numeric knows boxes only
        assert Numeric(problem).residual(saddle.x, saddle.mu) == saddle.residual
    assert saddle.regular
    # A load of it lies at its kink with next to no force.
    assert saddle.strict or name == "soft_limit"
    assert saddle.unique == (name != "paper")
    if published is not None:
        tolerance = published.tolerance
        for ours, theirs in (
            ([saddle.objective], [published.objective]),
            (saddle.x, published.x),
            (saddle.mu, published.mu),
        ):
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_the_papers_saddle_point_agrees_with_50_digits() -> None:
    def conditions(*v: Any) -> list[Any]:
        a, b, c, d, e, f, m1, m3, m4 = v
        return [
            2 * (a - 9) + 1 + m1,
            4 * (b + 4) ** 3 + m1,
            8 * (c - 1) ** 7 + m1 + 2 * c * m3,
            2 * d + 1 + m3,
            2 * (e - 7) + m3 + 2 * e * m4,
            2 * (f - 5) + 2 * f * m4,
            a + b + c - 3,
            c**2 + d + e - 1,
            e**2 + f**2 - 5,
        ]

    guess = [7.6, -4.8, 0.2, -0.8, 1.8, 1.3, 1.8, 0.6, 2.7]
    with mpmath.workdps(50):
        exact = [float(v) for v in mpmath.findroot(conditions, guess)]
    saddle = reference_optimum(gallery.paper())
    np.testing.assert_allclose(np.delete(saddle.x, 4), exact[:6], rtol=1e-12)
    np.testing.assert_allclose(np.delete(saddle.mu, 1), exact[6:], rtol=1e-12)


def solve(objective: Any, constraints: list[Any], tolerance: float = 1e-8) -> float:
    names = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
    model = cp.Problem(cp.Minimize(objective), constraints)
    return float(model.solve(solver=cp.CLARABEL, **dict.fromkeys(names, tolerance)))


def test_hundreds_of_chargers_take_ten_milliseconds_each() -> None:
    problem = gallery.chargers(400, seed=1)
    begin = time.process_time()
    saddle = reference_optimum(problem)
    assert time.process_time() - begin < 4.0
    assert saddle.residual <= 1e-9


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(min_value=0, max_value=10_000), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_random_quadratic_fleets_agree_with_a_second_solver(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    n, d, rows = 8, 2, 3
    target, weights = rng.normal(1.0, 1.0, (n, d)), rng.uniform(0.0, 1.0, (rows, n))
    upper = np.where(rng.random((n, d)) < 0.2, 0.0, 2.0)
    bound = rng.uniform(0.2, 2.0, rows * d)
    ev = sv.agents(n, lower=0.0, upper=scale * upper, dim=d, parameters={"t": scale * target})
    pairs = zip(ev.x, ev["t"], strict=True)
    problem = Problem(
        agents=ev,
        objectives=sum(((a - t) ** 2 for a, t in pairs), number(0)) / scale**2,
        constraints=[total(ev.x, weights=weights) <= scale * bound],
    )
    x = cp.Variable((n, d))
    limit = cp.vec(weights @ x, order="C") <= bound
    best = solve(cp.sum_squares(x - target), [limit, x >= 0, x <= upper], tolerance=1e-12)
    saddle = reference_optimum(problem)
    assert saddle.objective == pytest.approx(best, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(saddle.x.reshape(n, d) / scale, x.value, atol=1e-4)
    np.testing.assert_allclose(saddle.mu * scale, limit.dual_value, atol=1e-4)


@pytest.mark.parametrize(
    ("bounds", "objectives", "most", "expected", "atol"),
    [
        ((3, [0, 1, 0], [4, 1, 4]), lambda x: [(x[0] - 3) ** 2, x[1] ** 2, (x[2] - 3) ** 2], 4,
         {"x": [1.5, 1, 1.5], "mu": [3], "regular": True, "unique": True, "strict": True}, 1e-12),
        ((3, 0, 1), lambda x: [(x[0] + 1) ** 2, (x[1] - 3) ** 2, (2 * x[2] - 1) ** 2], 9,
         {"x": [0, 1, 0.5], "bound_multipliers": [2, -4, 0], "active": ()}, 1e-12),
        ((2, -5, 5), lambda x: [x[0] ** 2, x[1] ** 2], 0,
         {"x": [0, 0], "active": (0,), "strict": False, "unique": True}, 1e-6),
        ((3, 0, 1), lambda x: [-x[0], -x[1], x[2] ** 2], 1,
         {"objective": -1, "flat": (0, 1), "unique": False}, 1e-6),
        ((6, 0, 1), lambda x: [-(i + 1) * s for i, s in enumerate(x)], 2.5,
         {"x": [0, 0, 0, 0.5, 1, 1], "mu": [4], "unique": True, "regular": True}, 1e-9),
    ],
    ids=["a state that cannot move", "bounds that press", "no force", "an edge", "a vertex"],
)  # fmt: skip
def test_a_saddle_point_says_what_holds_it(
    bounds: Any, objectives: Any, most: float, expected: dict[str, Any], atol: float
) -> None:
    count, lower, upper = bounds
    x = sv.agents(count, lower=lower, upper=upper)
    saddle = reference_optimum(Problem(objectives=objectives(x), constraints=[sum(x) <= most]))
    for name, value in expected.items():
        found = getattr(saddle, name)
        if isinstance(value, bool | tuple):
            assert found == value, name
        else:
            np.testing.assert_allclose(found, value, atol=atol, err_msg=name)


@pytest.mark.parametrize("gap", [1e-3, 1.0])
def test_contradicting_constraints_are_named(gap: float) -> None:
    x = sv.agents(3, lower=-10, upper=10)
    problem = Problem(
        objectives=[x[0] ** 2, x[1] ** 2, x[2] ** 2],
        constraints={
            "below": x[0] + x[1] <= 1 - gap,
            "above": x[0] + x[1] >= 1,
            "harmless": x[2] <= 5,
        },
    )
    with pytest.raises(ProblemError, match="got none for below and above: relax"):
        reference_optimum(problem)


def test_a_single_feasible_point_is_never_called_infeasible() -> None:
    ev = sv.agents(1000, lower=1, upper=2)
    problem = Problem(objectives=ev.x**2, constraints=[total(ev.x) <= 1000])
    saddle = reference_optimum(problem)
    np.testing.assert_allclose(saddle.x, 1.0, atol=1e-9)
    assert not saddle.regular


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_numbers_beyond_the_method_are_a_refusal() -> None:
    x = sv.agents(2, lower=-1e160, upper=1e160)
    problem = sv.Problem(objectives=[(s - 1e150) ** 2 for s in x], constraints=[sum(x) <= 1])
    with pytest.raises(CertificateError, match="state it in units that keep numbers near 1"):
        sv.reference_optimum(problem)


def test_without_a_multiplier_there_is_a_refusal_and_not_a_guess() -> None:
    x = sv.agents(2, lower=-10, upper=10)
    discs = [x[0] ** 2 + x[1] ** 2 <= 1, (x[0] - 2) ** 2 + x[1] ** 2 <= 1]
    problem = Problem(objectives=[x[0] ** 2, (x[1] - 1) ** 2], constraints=discs)
    with pytest.raises(CertificateError, match=r"residual of at most 1e-09, got .* strictly"):
        reference_optimum(problem)


def test_a_constraint_that_bends_downwards_is_not_called_infeasible() -> None:
    x = sv.agents(2, lower=-2, upper=2)
    problem = Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=[1 - x[0] ** 2 + x[1] <= 0])
    with pytest.raises(ConvexityError, match="constraints must be convex"):
        reference_optimum(problem)


@pytest.mark.parametrize("dependent", [False, True])
def test_kkt_systems_with_dependent_rows_and_flat_states_are_solved(dependent: bool) -> None:
    rng = np.random.default_rng(0)
    n, m = 12, 5
    hessian = np.diag(10.0 ** rng.uniform(-4, 4, n))
    slopes = rng.normal(size=(m, n))
    if dependent:
        slopes[-1] = slopes[0] - 2.0 * slopes[1]
        hessian[0, 0] = 0.0
    shift = np.array([0.0, 0.0, 1e-9, 1e3, 0.0])
    matrix = np.block([[hessian, slopes.T], [slopes, -np.diag(shift)]])
    right = matrix @ rng.normal(size=n + m)
    solver = KktSolver()
    solver.factor(sparse.csr_array(hessian), sparse.csr_array(slopes), shift)
    solution = np.concatenate(solver.solve(-right[:n], -right[n:]))
    np.testing.assert_allclose(matrix @ solution, right, atol=1e-9 * np.max(np.abs(right)))


def forces(problem: sv.Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What stated constraints and sums do to every state at the saddle point, and the prices."""
    at = sv.reference_optimum(problem)
    prices = saddle_prices(problem, at)
    rows = Numeric(problem, problem.cloud.sums.families)
    return Numeric(problem).pullback(at.x, at.mu), rows.pullback(at.x, prices), prices


def mixture() -> sv.Problem:
    """Stated sums, regions and unwrapped ones beside a fleet, in names that might be confused."""
    x = sv.agents(["a", "b", "c"], lower=-3, upper=3)
    a, b, c = x
    ev = sv.agents(4, lower=-3, upper=3, name="ev", parameters={"t": [1.0, 2.0, 3.0, 4.0]})
    return sv.Problem(
        agents=[x, ev],
        objectives=[(a - 3) ** 2, (b + 2) ** 2, (c - 1) ** 2, (ev.x - ev["t"]) ** 2],
        constraints={
            "g mixed": sv.total(ev.x) + a <= 5,
            "g": sv.total(ev.x**2 / 4) + sv.exp(a - b) <= 9,
            "h": sv.log(sv.exp(b) + sv.exp(c)) <= 1,
            "k": (a - c) ** 2 + b**2 <= 4,
            "balance": a + b + c == 1,
        },
    )


@pytest.mark.parametrize("name", ["mixture", "coupled", "paper", "hs10", "hs52"])
def test_sums_push_every_state_as_the_stated_constraints_do(name: str) -> None:
    problem = mixture() if name == "mixture" else sv.gallery.get(name)
    stated, through_sums, _ = forces(problem)
    np.testing.assert_allclose(through_sums, stated, atol=1e-7 * (1 + np.abs(stated).max()))


def test_the_price_of_a_sum_as_stated_is_its_multiplier() -> None:
    problem = sv.gallery.chargers(20, hours=3)
    at = sv.reference_optimum(problem)
    np.testing.assert_array_equal(saddle_prices(problem, at), at.mu)


def test_prices_lie_in_the_normal_cone_of_the_public_set() -> None:
    problem = mixture()
    _, _, prices = forces(problem)
    sums = problem.cloud.sums
    held = {row for region in sums.regions for row in region.rows}
    for o in range(sums.count):
        if o not in held and np.isinf(sums.lower[o]):
            assert prices[o] >= -1e-9
    at = sv.reference_optimum(problem)
    values = Numeric(problem, sums.families).constraints(at.x)
    for region in sums.regions:
        here = dict(zip(region.symbols, values[list(region.rows)].tolist(), strict=True))
        slope = np.array([evaluate(derivative(region.phi, s), here) for s in region.symbols])
        own = prices[list(region.rows)]
        pressure = float(own @ slope) / float(slope @ slope)
        assert pressure >= -1e-9
        np.testing.assert_allclose(own, pressure * slope, atol=1e-9)
