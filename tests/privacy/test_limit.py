"""The asymptotic limit, against perturbed optima, a dense system, a simulation and 80 digits."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import sympy as sp

import sottovoce as sv
from sottovoce.certificate.optimum import saddle_prices
from sottovoce.formula.canonical import canonical, substitute
from sottovoce.paper.tikhonov import _pseudo_inverse
from sottovoce.privacy.limit import Limit, accuracy_limit
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.groups import Array
from sottovoce.problem.numeric import Numeric
from sympy_oracle import sympy_of, sympy_symbol


def two() -> sv.Problem:
    """Two agents whose active constraint mixes them: a square of a sum and a separable rest."""
    x = sv.agents(2, lower=-3, upper=3)
    return sv.Problem(
        objectives=[2 * (x[0] - 2) ** 2, (x[1] - 1) ** 2],
        constraints=[(x[0] + 2 * x[1]) ** 2 / 4 + x[0] <= 3, x[0] - x[1] <= 5],
    )


def balanced() -> sv.Problem:
    """Equalities beside an inequality that presses and one that does not."""
    x = sv.agents(4, lower=-5, upper=5, dim=[2, 1, 1, 1])
    (a, b), c, d, e = x
    return sv.Problem(
        agents=x,
        objectives=[(a - 1) ** 2 + b**2 + a * b, 3 * (c + 1) ** 2, (d - 2) ** 4 + d**2, e**2],
        constraints=[
            a + b + c + d + e == 1,
            a - 2 * d == -1,
            sv.exp(c / 2) + e <= 0.2,
            a + b + e <= 40,
        ],
    )


def planned(problem: sv.Problem, radius: float = 1.0) -> NoisePlan:
    hide = sv.Trajectory(radius=radius)
    return sv.plan(sv.certify(problem.cloud), epsilon=1, delta=1e-5, hide=hide)


def shifted(problem: sv.Problem, o: int, by: float) -> sv.Problem:
    """The same problem with a number added to one sum wherever it is held."""
    sums = problem.cloud.sums
    formulas = [e for family in sums.families for e in family.formulas]
    moved = [canonical(e + (by if k == o else 0)) for k, e in enumerate(formulas)]
    held = {row for region in sums.regions for row in region.rows}
    g: list[Any] = []
    for k, h in enumerate(moved):
        low, high = float(sums.lower[k]), float(sums.upper[k])
        if k in held:
            continue
        if low == high:
            g.append(h == high)
        else:
            g += [h <= high] if np.isinf(low) else [h <= high, h >= low]
    for region in sums.regions:
        rows = dict(zip(region.symbols, (moved[r] for r in region.rows), strict=True))
        g.append(substitute(region.phi, rows) <= 0)
    return sv.Problem(
        agents=problem.groups,
        objectives=problem.objectives,
        constraints=[*g, *problem.cloud.separable],
    )


@pytest.mark.parametrize(
    ("problem", "step"),
    [
        (two(), 1e-4),
        (balanced(), 1e-4),
        (sv.gallery.coupled(), 1e-4),
        (sv.gallery.hock_schittkowski(43), 1e-4),
        (sv.gallery.hock_schittkowski(72), 1e-6),
        (sv.gallery.hock_schittkowski(53), 1e-4),
    ],
    ids=["two", "balanced", "coupled", "hs43", "hs72", "hs53"],
)
def test_the_limit_is_how_far_noise_shifts_the_optimum(problem: sv.Problem, step: float) -> None:
    made = planned(problem)
    x = np.zeros(problem.size)
    for o, sigma in enumerate(made.sigma):
        ends = [sv.reference_optimum(shifted(problem, o, s)).x for s in (-step, step)]
        x += np.square((ends[1] - ends[0]) * sigma / (2 * step))
    found = accuracy_limit(problem, made, 400)
    assert found.x_each == pytest.approx(np.sqrt(x / 400), rel=2e-4, abs=1e-8)
    assert found.x == pytest.approx(np.linalg.norm(found.x_each))
    assert found.price == pytest.approx(np.linalg.norm(found.price_each))


def dense(problem: sv.Problem, made: NoisePlan) -> tuple[Array, Array]:
    """x_each and price_each for one round from the whole linearise system, nothing eliminated."""
    at, sums, numeric = sv.reference_optimum(problem), problem.cloud.sums, Numeric(problem)
    coupling, price = Numeric(problem, sums.families), saddle_prices(problem, at)
    H = (numeric.objective_hessian(at.x) + coupling.constraint_hessian(at.x, price)).toarray()
    free = np.abs(at.bound_multipliers) <= 1e-7
    S, u = coupling.jacobian(at.x).toarray(), coupling.constraints(at.x)
    n, p, r = problem.size, sums.count, len(sums.regions)
    system, right = np.zeros((n + 2 * p + r,) * 2), np.zeros((n + 2 * p + r, p))
    lam, du, nu = n + np.arange(p), n + p + np.arange(p), n + 2 * p
    for i in range(n):
        if free[i]:
            system[i, :n], system[i, lam] = H[i], S[:, i]
        else:
            system[i, i] = 1.0
    system[lam, :n], system[lam, du] = S, -1.0
    system[np.ix_(lam, du)] = -np.eye(p)
    right[lam] = -np.eye(p)
    held = {row for region in sums.regions for row in region.rows}
    for o in range(p):
        if o not in held:
            system[du[o], du[o] if abs(price[o]) > 1e-7 else lam[o]] = 1.0
    for m, region in enumerate(sums.regions):
        rows = list(region.rows)
        names, phi = [sympy_symbol(s) for s in region.symbols], sympy_of(region.phi)
        here = dict(zip(names, u[rows].tolist(), strict=True))
        slope = np.array([float(sp.diff(phi, s).subs(here)) for s in names])
        bent = np.array(sp.hessian(phi, names).subs(here).tolist(), dtype=float)
        pressure = price[rows] @ slope / (slope @ slope)
        system[du[rows], lam[rows]] = 1.0
        if np.any(np.abs(price[rows]) > 1e-7):
            system[np.ix_(du[rows], du[rows])] = -pressure * bent
            system[du[rows], nu + m] = -slope
            system[nu + m, du[rows]] = slope
        else:
            system[nu + m, nu + m] = 1.0
    solved = np.linalg.solve(system, right) * made.sigma
    return np.linalg.norm(solved[:n], axis=1), np.linalg.norm(solved[lam], axis=1)


def mixed_fleet() -> sv.Problem:
    """A fleet whose total meets named agents inside a formula."""
    rng = np.random.default_rng(2)
    x = sv.agents(["a", "b"], lower=-3, upper=3)
    own = {"t": rng.uniform(1, 2, 5), "c": rng.uniform(1, 4, 5)}
    ev = sv.agents(5, lower=0, upper=3, name="ev", dim=2, parameters=own)
    p, q = ev.x
    t, c = ev["t"], ev["c"]
    return sv.Problem(
        agents=[x, ev],
        objectives=[(x[0] - 2) ** 2, x[1] ** 2, c * (p - t) ** 2 + (q - t) ** 2 + p * q / 2],
        constraints=[sv.total(p + q**2 / 4) + sv.exp(x[0] - x[1]) <= 6, sv.total(q) + x[1] <= 4],
    )


@pytest.mark.parametrize("make", [two, balanced, sv.gallery.coupled, mixed_fleet])
def test_elimination_gives_what_the_whole_system_gives(make: Any) -> None:
    problem = make()
    made = planned(problem)
    x, price = dense(problem, made)
    found = accuracy_limit(problem, made, 1)
    assert found.x_each == pytest.approx(x, rel=1e-6, abs=1e-9)
    assert found.price_each == pytest.approx(price, rel=1e-6, abs=1e-9)


def test_five_thousand_agents_have_a_limit() -> None:
    rng = np.random.default_rng(0)
    n = 5_000
    c, t = rng.uniform(0.5, 2, n), rng.uniform(1, 2, n)
    ev = sv.agents(n, lower=-50, upper=50, parameters={"c": c, "t": t})
    problem = sv.Problem(
        agents=ev, objectives=ev["c"] * (ev.x - ev["t"]) ** 2 / 2, constraints=[sv.total(ev.x) <= n]
    )
    made = planned(problem)
    found = accuracy_limit(problem, made, 100)
    # dlambda = w / sum_i 1/c_i, and dx_i = -dlambda / c_i.
    price = made.sigma[0] / 10 / np.sum(1 / c)
    assert found.price == pytest.approx(price, rel=1e-6)
    assert found.x_each == pytest.approx(price / c, rel=1e-6)


def test_the_units_of_the_objective_do_not_matter() -> None:
    def scaled(factor: float) -> Limit:
        plain = two()
        f = [factor * each for each in plain.objectives]
        g = [row <= 0 for family in plain.constraints for row in family.formulas]
        problem = sv.Problem(agents=plain.groups, objectives=f, constraints=g)
        return accuracy_limit(problem, planned(problem), 100)

    plain, large = scaled(1.0), scaled(1e4)
    assert large.x == pytest.approx(plain.x, rel=1e-6)
    assert large.price == pytest.approx(1e4 * plain.price, rel=1e-6)


def test_states_held_by_a_bound_and_fixed_states_have_no_error() -> None:
    x = sv.agents(3, lower=[-1, -1, 0.25], upper=[1, 1, 0.25])
    problem = sv.Problem(
        objectives=[(x[0] - 5) ** 2, x[1] ** 2, -x[2] / 8],  # mu = 1/8: no force on x3
        constraints=[x[0] + 2 * x[1] + x[2] <= 1],
    )
    at = sv.reference_optimum(problem)
    assert abs(at.bound_multipliers[2]) < 1e-9
    found = accuracy_limit(problem, planned(problem), 100, saddle=at)
    assert found.x_each[0] == 0  # pressed against its upper bound
    assert found.x_each[2] == 0  # its box is a point, though no force shows
    assert found.x_each[1] > 0
    assert found.flat == ()


def test_a_direction_that_nothing_holds_is_flat_though_each_of_its_states_is_seen() -> None:
    # Only s = x1 + x2 matters to anybody: noise w on it moves s by w, and x1 - x2 is anybody's.
    x = sv.agents(2, lower=-9, upper=9)
    problem = sv.Problem(objectives=[-x[0], -x[1]], constraints=[(x[0] + x[1]) ** 2 <= 1])
    made = planned(problem)
    found = accuracy_limit(problem, made, 100)
    assert found.flat == (0, 1)
    assert found.x_each == pytest.approx(np.full(2, made.sigma[0] / 2 / 10), rel=1e-6)


def test_a_state_without_curvature_is_flat_unless_a_pressed_sum_holds_it() -> None:
    x = sv.agents(2, lower=-9, upper=9)
    held = sv.Problem(objectives=[-x[0], x[1] ** 2], constraints=[x[0] + x[1] <= 1])
    assert accuracy_limit(held, planned(held), 100).flat == ()
    (p, q), r = sv.agents(2, lower=-9, upper=9, dim=[2, 1])  # across the components of one agent
    across = sv.Problem(objectives=[(p + q - 1) ** 2, (r - 2) ** 2], constraints=[p + q + r <= 1])
    assert accuracy_limit(across, planned(across), 100).flat == (0, 1)


def test_noise_does_not_move_what_nothing_presses() -> None:
    assert accuracy_limit(two(), planned(two()), 100).price_each[-1] == 0.0
    x = sv.agents(2, lower=0, upper=1)
    idle = sv.Problem(objectives=list(x**2), constraints=[x[0] + x[1] <= 1.5])
    found = accuracy_limit(idle, planned(idle), 100)
    assert (found.x, found.price) == (0.0, 0.0)


def block(hessian: Array, slopes: Array) -> Array:
    return np.block([[hessian, slopes.T], [slopes, np.zeros((len(slopes),) * 2)]])


@pytest.mark.parametrize("seed", range(4))
def test_the_inverse_survives_bad_units(seed: int) -> None:
    rng = np.random.default_rng(seed)
    units, rows = 10.0 ** rng.uniform(-4, 4, 5), 10.0 ** rng.uniform(-3, 3, (2, 1))
    half = rng.standard_normal((3, 5))  # curvature in three directions, rows hold the others
    hessian = half.T @ half * units * units[:, np.newaxis]
    slopes = rng.standard_normal((2, 5)) * units * rows
    found, null = _pseudo_inverse(hessian, slopes)
    with mpmath.workdps(80):
        exact = mpmath.matrix(block(hessian, slopes).tolist()) ** -1
        expected = np.array(exact.tolist(), dtype=float)
    assert null.shape[1] == 0
    lengths = np.linalg.norm(expected, axis=1)
    assert np.linalg.norm(found, axis=1) == pytest.approx(lengths, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_a_flat_direction_is_projected_out_exactly_whatever_the_units(seed: int) -> None:
    rng = np.random.default_rng(seed)
    units = 10.0 ** rng.uniform(-3, 3, 5)
    flat = rng.standard_normal(5)
    away = np.eye(5) - np.outer(flat, flat) / (flat @ flat)
    half = rng.standard_normal((5, 5)) @ away
    hessian = half.T @ half * units * units[:, np.newaxis]
    slopes = rng.standard_normal((2, 5)) @ away * units
    found, null = _pseudo_inverse(hessian, slopes)
    direction = np.append(flat / units, [0.0, 0.0])
    direction /= np.linalg.norm(direction)
    assert null.shape[1] == 1
    assert abs(null[:, 0] @ direction) == pytest.approx(1.0, abs=1e-9)
    with mpmath.workdps(80):
        # pinv(J) = P (J + c n n')^-1 P for any c, n the null direction and P = I - n n'.
        n = mpmath.matrix(direction.tolist())
        projector = mpmath.eye(7) - n * n.T
        full = mpmath.matrix(block(hessian, slopes).tolist()) + 1e3 * n * n.T
        exact = projector * full**-1 * projector
        expected = np.array(exact.tolist(), dtype=float)
    lengths = np.linalg.norm(expected, axis=1)
    assert np.linalg.norm(found, axis=1) == pytest.approx(lengths, rel=1e-6)


def test_multipliers_that_are_not_unique_are_left_out_not_made_huge() -> None:
    hessian, slopes = np.eye(2), np.array([[1.0, 1.0], [1.0, 1.0]])
    found, null = _pseudo_inverse(hessian, slopes)
    assert null.shape[1] == 1
    assert np.abs(null[:, 0]) == pytest.approx([0, 0, math.sqrt(0.5), math.sqrt(0.5)], abs=1e-12)
    assert found == pytest.approx(np.linalg.pinv(block(hessian, slopes)), abs=1e-12)


def test_a_state_in_the_corner_of_a_kink_is_held() -> None:
    x = sv.agents(3, lower=-5, upper=5, dim=[1, 1, 2])
    stated = sv.Problem(
        objectives=[10 * abs(x[0] - 1), (x[1] - 3) ** 2, (x[2][0] - 1) ** 2 + x[2][1] ** 2],
        constraints=[x[0] + x[1] <= 2],
        local=[abs(x[2][0]) + x[2][1] <= 0.5],  # in no sum: noise does not reach it
    )
    hide = sv.Trajectory(radius=0.1, rounds=100)
    plan = sv.plan(sv.certify(stated), epsilon=1.0, delta=1e-3, hide=hide)
    found = sv.accuracy_limit(stated, plan, 100)
    w = plan.released_sigma[0] / 10  # the second agent alone answers to the sum's error
    np.testing.assert_allclose(found.x_each, [0, w, 0, 0], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.price_each, [2 * w], rtol=1e-6)
    assert found.flat == ()


def test_a_kink_that_mixes_agents_is_held_as_the_interval_that_it_is() -> None:
    x = sv.agents(2, lower=-5, upper=5)
    stated = {"a kink": [abs(x[0] - x[1]) <= 2], "two rows": [x[0] - x[1] <= 2, x[1] - x[0] <= 2]}
    found = []
    for rows in stated.values():
        problem = sv.Problem(objectives=[(x[0] - 4) ** 2, 3 * (x[1] + 1) ** 2], constraints=rows)
        hide = sv.Trajectory(radius=0.5, rounds=100)
        made = sv.plan(sv.certify(problem), epsilon=1.0, delta=1e-3, hide=hide)
        found.append(sv.accuracy_limit(problem, made, 100).x / made.sigma[0])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_sum_of_kinks_limits_what_its_pieces_at_the_optimum_do() -> None:
    x = sv.agents(2, lower=-5, upper=5)
    found = []
    for row in (abs(x[0]) + sv.pos(x[1]) <= 1.5, x[0] + x[1] <= 1.5):
        problem = sv.Problem(objectives=[(x[0] - 2) ** 2, 2 * (x[1] - 2) ** 2], constraints=[row])
        found.append(sv.accuracy_limit(problem, planned(problem), 100))
    np.testing.assert_allclose(found[0].x_each, found[1].x_each, rtol=1e-6)
    np.testing.assert_allclose(found[0].price_each, found[1].price_each, rtol=1e-6)
