"""Saddle points, Slater's condition and limits where agents keep local sets, against Clarabel."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.certificate.slater import local_slater_point

cp: Any = import_module("cvxpy")  # its type hints do not name what it exports
PRICES = np.array([1.7, 1.1, 1.4, 1.9])


def chargers(need: Any, *, cap: float, equality: bool, named: bool = False) -> sv.Problem:
    """Chargers with ramps; of named ones, which have one form, the last ramps freely."""
    n, hours = len(need), len(PRICES)

    def cost(s: Any) -> Any:
        return sum(0.5 * r**2 + float(c) * r for r, c in zip(s, PRICES, strict=True))

    def rows(s: Any, need: Any, *, ramps: bool = True) -> list[Any]:
        total = sum(s) == need if equality else sum(s) >= need
        ramp_rows = [s[t + 1] - s[t] <= 0.5 for t in range(hours - 1) if ramps]
        return [total, *ramp_rows, sum(r**2 for r in s) <= need**2 / 2, s[3] <= 0.3 * need]

    limit = cap * np.sum(need) / hours * np.array([1.0, 1.1, 1.0, 1.1])
    if named:
        x = sv.agents(n, lower=0, upper=11, dim=hours)
        return sv.Problem(
            objectives=[cost(s) for s in x],
            constraints=[sum(s[t] for s in x) <= float(limit[t]) for t in range(hours)],
            local=[r for i in range(n) for r in rows(x[i], float(need[i]), ramps=i < n - 1)],
        )
    ev = sv.agents(n, dim=hours, lower=0, upper=11, name="ev", parameters={"need": need})
    return sv.Problem(
        objectives=cost(ev.x), constraints=[sv.total(ev.x) <= limit], local=rows(ev.x, ev["need"])
    )


def by_clarabel(need: Any, *, cap: float, equality: bool, named: bool) -> tuple[Any, Any]:
    n, hours = len(need), len(PRICES)
    x = cp.Variable((n, hours))
    total = cp.sum(x, axis=1)
    limit = cap * np.sum(need) / hours * np.array([1.0, 1.1, 1.0, 1.1])
    coupling = cp.sum(x, axis=0) <= limit
    rows = [
        x >= 0,
        x <= 11,
        cp.diff(x[: n - 1] if named else x, axis=1) <= 0.5,
        x[:, 3] <= 0.3 * need,
        total == need if equality else total >= need,
        *(cp.sum_squares(x[i]) <= need[i] ** 2 / 2 for i in range(n)),
    ]
    cost = 0.5 * cp.sum_squares(x) + cp.sum(x @ PRICES)
    settings = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12)
    cp.Problem(cp.Minimize(cost), [*rows, coupling]).solve(solver="CLARABEL", **settings)
    return x.value, coupling.dual_value


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_x_and_mu_are_those_of_another_solver(seed: int, equality: bool, named: bool) -> None:
    rng = np.random.default_rng(seed)
    need, cap = rng.uniform(4, 12, 3), float(rng.uniform(1.0, 1.3))
    found = sv.reference_optimum(chargers(need, cap=cap, equality=equality, named=named))
    x, mu = by_clarabel(need, cap=cap, equality=equality, named=named)
    np.testing.assert_allclose(found.x, x.ravel(), atol=2e-5)
    if found.regular:
        np.testing.assert_allclose(found.mu, mu, atol=2e-4)
    assert found.residual < 1e-9


def test_slater_is_looked_for_inside_the_local_sets() -> None:
    need = np.array([5.0, 8.0, 6.0])
    point = local_slater_point(chargers(need, cap=1.2, equality=True))
    x = point.point.reshape(3, 4)
    assert point.status == "numerical"
    np.testing.assert_allclose(x.sum(axis=1), need, atol=1e-5)
    # The largest slack by hand: equal shares, as far as the caps differ; never stated larger.
    most = np.max(x.sum(axis=0) - 1.2 * 19 / 4 * np.array([1.0, 1.1, 1.0, 1.1]))
    assert most <= point.slack <= most + 1e-6
    assert point.slack < -0.9


def test_needs_above_the_capacity_fail_with_the_reason() -> None:
    certificate = sv.certify(chargers(np.array([5.0, 8.0]), cap=0.9, equality=True))
    failing = [a for a in certificate.assumptions if a.status == "fails"]
    assert failing[0].name == "Slater's condition inside local sets"
    assert "local sets" in failing[0].detail
    public = next(a for a in certificate.assumptions if a.name == "Slater's condition")
    assert public.status == "proven"  # the cloud sees boxes, in which 0 is allowed


def test_a_multiplier_that_is_not_unique_is_a_note_with_its_rows() -> None:
    x = sv.agents(2, lower=-2, upper=2)
    stated = sv.Problem(
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2],
        constraints={"a": x[0] + x[1] <= 1, "b": 2 * x[0] + 2 * x[1] <= 2, "c": x[0] - x[1] <= 3},
    )
    certificate = sv.certify(stated)
    (note,) = [a for a in certificate.assumptions if a.status == "note"]
    assert "gradients of a and b are linearly dependent" in note.detail
    assert certificate.holds


def test_a_point_inside_local_sets_is_found_where_rows_are_thousands() -> None:
    n, asked = 300, np.array([9.0, 12.0, 12.0, 7.0])
    energy = np.random.default_rng(0).uniform(30.0, 100.0, n)
    room = sv.agents(n, dim=4, lower=0, upper=40, name="room", parameters={"energy": energy})
    stated = sv.Problem(
        objectives=sum(s**2 for s in room.x),
        constraints=[sv.total(room.x) >= asked * n],
        local=[sum(room.x) <= room["energy"]],
    )
    found = local_slater_point(stated)
    # What is left of all energy, spread over the hours in equal parts.
    assert found.slack == pytest.approx(-(energy.sum() - asked.sum() * n) / 4, rel=1e-3)
    assert found.status == "numerical"


def test_the_limit_moves_along_local_rows_only() -> None:
    # Along (1, -1) alone, by which n agents answer to an error w of the sum with w/n each.
    n, rounds = 4, 100
    ev = sv.agents(
        n, dim=2, lower=-9, upper=9, name="ev", parameters={"need": [1.0, 2.0, 3.0, 2.5]}
    )
    a, b = ev.x
    stated = sv.Problem(
        agents=ev,
        objectives=a**2 / 2 + b**2 / 2,
        constraints=[sv.total(a) <= 2.0],
        local=[a + b == ev["need"]],
    )
    hide = sv.Trajectory(radius=0.1, rounds=rounds)
    plan = sv.plan(sv.certify(stated), epsilon=1.0, delta=1e-3, hide=hide)
    found = sv.accuracy_limit(stated, plan, rounds)
    expected = plan.released_sigma[0] / n / np.sqrt(rounds)
    np.testing.assert_allclose(found.x_each, np.full(2 * n, expected), rtol=1e-9)


def test_an_agent_in_no_constraint_minimises_alone() -> None:
    x = sv.agents(3, lower=-2, upper=2)
    stated = sv.Problem(
        objectives=[(x[0] - 1) ** 2, (x[1] - 1) ** 2, (x[2] - 0.3) ** 2],
        constraints=[x[0] + x[1] <= 1],
    )
    certificate = sv.certify(stated)
    assert certificate.holds
    assert sv.reference_optimum(stated).x == pytest.approx([0.5, 0.5, 0.3])
    plan = sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=sv.Trajectory(radius=0.1))
    assert plan.gdp_mu[2] <= plan.gdp_rounding


def test_kinks_do_not_hide_a_point_with_slack() -> None:
    z = sv.agents(3, lower=-4, upper=4, dim=2)
    stated = sv.Problem(
        objectives=[sum(s**2) for s in z],
        constraints=[
            sv.norm(z[0] - z[1]) <= 1,
            abs(z[0][0]) + abs(z[1][0]) + abs(z[2][0]) <= 3,
            sum(z[2]) + z[0][1] >= 2,
        ],
        local=[sv.norm(z[1]) <= 2, sv.huber(z[2][0] - 1, 1) + z[2][1] <= 2],
    )
    # (0, 1), (0, 1), (1, 1) has a slack of 1 everywhere
    found = local_slater_point(stated)
    assert found.status == "numerical"
    assert found.slack <= -0.99
