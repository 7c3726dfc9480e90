"""Private sets: rows that name one agent and never leave it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import sottovoce as sv
from formula_values import evaluate
from sottovoce.errors import ConvexityError, ProblemError

CANARY = 7.123456789


def chargers(n: int = 5, hours: int = 4, **settings: Any) -> tuple[Any, dict[str, Any]]:
    need = np.linspace(5, 12, n)
    window = np.tile([11.0, 11.0, 3.0, 0.5], (n, 1))[:, :hours]
    ev = sv.agents(
        n, dim=hours, lower=0, upper=11, name="ev", parameters={"need": need, "window": window}
    )
    return ev, {
        "agents": ev,
        "objectives": sum(r**2 for r in ev.x),
        "constraints": [sv.total(ev.x) <= 40.0 * np.ones(hours)],
        **settings,
    }


def pair(*local: Any) -> sv.Problem:
    x = sv.agents(2, lower=-5, upper=5, dim=[1, 2])
    rows = [row(x) if callable(row) else row for row in local]
    return sv.Problem(
        agents=x,
        objectives=[x[0] ** 2, x[1][0] ** 2 + x[1][1] ** 2],
        constraints=[x[0] + x[1][0] <= 1],
        local=rows,
    )


def test_windows_become_private_bounds_inside_the_public_box() -> None:
    ev, stated = chargers()
    problem = sv.Problem(**stated, local=[ev.x <= ev["window"], 2 * ev.x[0] >= 1])
    (own,) = problem.local
    assert own.rows == 0
    np.testing.assert_array_equal(own.upper, np.tile([11.0, 11.0, 3.0, 0.5], (5, 1)))
    np.testing.assert_array_equal(own.lower, np.tile([0.5, 0.0, 0.0, 0.0], (5, 1)))
    np.testing.assert_array_equal(problem.cloud.groups[0].upper, np.full((5, 4), 11.0))


def test_an_agent_sees_its_own_numbers() -> None:
    ev, stated = chargers()
    problem = sv.Problem(**stated, local=[sum(ev.x) >= ev["need"]])
    (row,) = problem.agent(2).local.inequalities
    assert row.symbols == set(ev.fleet.symbols)
    assert evaluate(row, dict.fromkeys(ev.fleet.symbols, 0.0)) == pytest.approx(8.5)
    assert problem.agent(2).local.lower.shape == (1, 4)


def test_an_empty_set_names_the_agent_and_the_rows_that_exclude_each_other() -> None:
    ev, stated = chargers()
    rows = {
        "need": sum(ev.x) >= ev["need"],
        "early": ev.x[0] + ev.x[1] <= 4,
        "late": ev.x[2] + ev.x[3] <= 6,
        "ramp": ev.x[1] - ev.x[0] <= 2,
    }
    with pytest.raises(ProblemError, match=r"of ev4 .* got none for need and early and late:"):
        sv.Problem(**stated, local=rows)
    sv.Problem(**stated, local={k: v for k, v in rows.items() if k != "late"})


def test_an_empty_curved_set_is_found() -> None:
    with pytest.raises(ProblemError, match=r"got none for x2\[1\]\*\*2 \+ x2\[2\]\*\*2 <= 4 and"):
        pair(lambda x: x[1][0] ** 2 + x[1][1] ** 2 <= 4, lambda x: x[1][0] + x[1][1] >= 2.83)
    pair(lambda x: x[1][0] ** 2 + x[1][1] ** 2 <= 4, lambda x: x[1][0] + x[1][1] >= 2.82)
    with pytest.raises(ProblemError, match="got none"):  # not even defined at the box's centre
        pair(lambda x: sv.exp(x[1][0]) - sv.log(x[1][0] + x[1][1]) <= -3)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_emptiness_of_linear_rows_is_that_of_a_linear_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, dim = int(rng.integers(1, 5)), int(rng.integers(2, 4))
    slopes = rng.integers(-3, 4, (rows, dim))
    slopes[np.all(slopes == 0, axis=1)] = 1
    right = rng.integers(-9, 10, rows)
    equal = rng.random(rows) < 0.3
    x = sv.agents(2, lower=-2, upper=3, dim=dim)
    local = [
        row @ x[0] == b if same else row @ x[0] <= b
        for row, b, same in zip(slopes, right.tolist(), equal, strict=True)
    ]
    found = linprog(
        np.zeros(dim),
        A_ub=slopes[~equal] if (~equal).any() else None,
        b_ub=right[~equal] if (~equal).any() else None,
        A_eq=slopes[equal] if equal.any() else None,
        b_eq=right[equal] if equal.any() else None,
        bounds=[(-2, 3)] * dim,
    )
    stated: dict[str, Any] = {
        "agents": x,
        "objectives": [x[0][0], x[1][0]],
        "constraints": [x[0][0] + x[1][1] <= 9],
    }
    if found.status == 0:
        sv.Problem(**stated, local=local)
    else:
        with pytest.raises(ProblemError, match=r"must hold (at least one point|somewhere)"):
            sv.Problem(**stated, local=local)


def test_the_cloud_sees_nothing_of_them() -> None:
    ev, stated = chargers()
    plain = sv.Problem(**stated)
    secret = sv.Problem(
        **stated, local=[sum(ev.x) >= CANARY, ev.x <= CANARY, ev.x[0] >= CANARY / 9]
    )
    assert secret.cloud.fingerprint == plain.cloud.fingerprint
    assert secret.fingerprint != plain.fingerprint
    assert list(secret.cloud.groups[0].parameters) == []
    seen = repr(secret.cloud) + repr(secret)
    assert "7.1234" not in seen
    assert np.float64(CANARY).tobytes() not in pickle.dumps(secret.cloud.groups)


def test_a_row_need_be_convex_only_where_the_agent_can_be() -> None:
    x = sv.agents(2, lower=-5, upper=5, dim=2)
    objectives = [-sv.log(x[0][0] + 4) + x[0][1] ** 4, x[1][0] ** 2 + x[1][1] ** 2]
    rows = [x[0][0] ** 3 + x[0][1] <= 8, x[0][0] >= 0]  # in either order
    constraints = [x[0][0] + x[1][0] <= 3]
    for local in (rows, rows[::-1]):
        kept = sv.Problem(
            agents=x, objectives=objectives, constraints=constraints, local=local
        ).local[0]
        assert kept.labels == ("x1[1]**3 + x1[2] <= 8",)
        np.testing.assert_array_equal(kept.lower, [[0, -5]])
    with pytest.raises(ConvexityError, match=r"bend one way over the box, got x1\[1\]\*\*3"):
        sv.Problem(agents=x, objectives=objectives, constraints=constraints, local=rows[:1])
    # The same holds for objectives: log(x + 4) is not asked for below a private bound of 0.
    public = sv.Problem(agents=x, objectives=objectives, constraints=constraints)
    assert not sv.certify(public).holds
    assert sv.certify(
        sv.Problem(agents=x, objectives=objectives, constraints=constraints, local=rows)
    ).holds
