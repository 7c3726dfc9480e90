"""Private sets: rows that name one agent and never leave it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import sottovoce as sv
from formula_values import evaluate
from sottovoce.errors import ConvexityError, ProblemError
from sottovoce.problem.files.load import load_problem
from sottovoce.problem.files.save import save_problem

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


# --- What agents apply without an answer: said in Python or in files, and checked to be theirs ---


def stated(**given: Any) -> sv.Problem:
    a, b = x = sv.agents(["a", "b"], lower=0, upper=5, dim=[1, 2])
    ev = sv.agents(3, lower=0, upper=2, name="ev", parameters={"need": np.array([0.5, 1.0, 1.5])})
    return sv.Problem(
        agents=[x, ev],
        objectives=[a**2, b[0] ** 2 + b[1] ** 2, (ev.x - 1) ** 2],
        constraints={"all": sv.total(ev.x) + a + b[0] <= 6},
        local=[b[0] + b[1] >= 1, b[0] == b[1], ev.x >= ev["need"]],
        **given,
    )


def test_fallbacks_are_kept_per_agent_and_none_is_where_it_starts(tmp_path: Path) -> None:
    points = [[0.5], None, [[0.75], [1.0], [1.75]]]
    problem = stated(fallback=points)
    assert problem.fallback[1] is None
    save_problem(problem, tmp_path)
    read = load_problem(tmp_path)
    for mine, theirs in zip(read.fallback, problem.fallback, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or np.array_equal(mine, theirs)  # type: ignore[arg-type]
    view = load_problem(tmp_path, agents=[1]).agent(0)
    assert view.fallback is not None
    assert view.fallback.tolist() == [0.5]
    house = sv.network.AgentGroup.of_folder(tmp_path, [2, 4])
    assert np.isnan(house.fallback[:2]).all()
    assert house.fallback[2:].tolist() == [1.0]


@pytest.mark.parametrize(
    ("fallback", "words"),
    [
        ([[9.0], None, None], "fallback of a must lie in its own set"),
        ([None, [0.25, 0.25], None], "fallback of b must lie in its own set"),
        ([None, [1.0, 2.0], None], "fallback of b must lie in its own set"),
        ([None, None, 1.25], "fallback of ev3 must lie in its own set"),
        ([None, [1.0, 1.0, 1.0], None], r"fallback of b must be numbers of the shape \(1, 2\)"),
        ([None, None, [np.nan]], "fallback of ev1 must lie in its own set"),
        ([None], "fallback must have one entry per agent or fleet"),
        (7, "fallback must be a list"),
    ],
)
def test_a_state_that_is_not_the_agents_own_is_refused(fallback: Any, words: str) -> None:
    with pytest.raises(sv.SottovoceError, match=words) as refusal:
        stated(fallback=fallback)
    assert "9" not in str(refusal.value)


def test_an_agent_with_code_says_its_fallback_too() -> None:
    cloud = stated().cloud
    house = sv.network.AgentGroup.of_gradient(cloud, 0, lambda x: 2 * x, fallback=[0.5])
    assert house.fallback.tolist() == [0.5]
    with pytest.raises(sv.errors.ProblemError, match="fallback of a must lie in its own set"):
        sv.network.AgentGroup.of_gradient(cloud, 0, lambda x: 2 * x, fallback=[7.0])


# --- Public rows on one agent: no sums, no noise, and a smaller domain ---


SIZES = np.array([6.0, 8.0, 10.0, 20.0])


def public_chargers(*public: Any) -> sv.Problem:
    ev = sv.agents(
        4, dim=3, lower=0, upper=11, name="ev", parameters={"size": SIZES, "need": SIZES}
    )
    rows = [row(ev) for row in public]
    return sv.Problem(
        agents=ev,
        objectives=sum(r**2 for r in ev.x) - sum(ev.x) * ev["need"],
        constraints=[sv.total(ev.x) <= np.full(3, 30.0), *rows],
    )


def battery(ev: Any) -> Any:
    return sum(ev.x) <= ev["size"]


def test_a_fleets_public_row_is_kept_by_every_agent() -> None:
    stated = public_chargers(battery)
    assert stated.cloud.sums.count == 3
    (row,) = stated.cloud.local_rows[0]
    assert stated.local[0].inequalities == (row.g,)
    assert stated.local[0].stated == ()
    assert [s.name for s in stated.cloud.groups[0].parameters] == ["size"]  # public by its use
    assert stated.cloud.fingerprint != public_chargers().cloud.fingerprint


def test_code_keeps_public_rows_and_private_ones_beside_them() -> None:
    cloud = public_chargers(battery).cloud
    own = sv.network.AgentGroup.of_gradient(cloud, 1, lambda x: x, local=["ev[1] + ev[2] >= 1"])
    kept = own.groups[0].fleet.local
    assert kept is not None
    assert kept.rows == 2
    with pytest.raises(sv.errors.ProblemError, match=r"local set of ev2 .* got none"):
        sv.network.AgentGroup.of_gradient(cloud, 1, lambda x: x, local=["ev[1] + ev[2] >= 100"])


def test_windows_of_a_fleet_are_public_bounds() -> None:
    stated = public_chargers(lambda ev: ev.x[0] <= ev["size"] / 4)
    np.testing.assert_allclose(stated.cloud.groups[0].upper[:, 0], [1.5, 2.0, 2.5, 5.0])
    assert stated.cloud.local_rows == ((),)


def test_a_named_agents_row_belongs_to_its_set_if_the_rules_show_it_convex() -> None:
    x = sv.agents(2, lower=-5, upper=5, dim=2)
    stated = sv.Problem(
        objectives=[x[0][0] ** 2 + x[0][1], x[1][0] ** 2],
        constraints={
            "couple": x[0][0] + x[1][0] <= 1,
            "disc": x[0][0] ** 2 + x[0][1] ** 2 <= 4,
            "bent": x[1][0] * x[1][1] <= 3,
        },
    )
    assert stated.cloud.row_labels() == ["couple", "bent"]
    assert [[row.label for row in rows] for rows in stated.cloud.local_rows] == [["disc"], []]
    found = sv.reference_optimum(stated.under(sv.Problem(
        agents=x, objectives=[0, 0], constraints=[x[0][0] + x[1][0] <= 1]).cloud))  # fmt: skip
    assert found.x[:2] == pytest.approx([0.0, -2.0], abs=1e-8)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_so_do_the_rows_of_a_matrix(kind: Any) -> None:
    x = sv.agents(2, lower=-5, upper=5, dim=2)
    A = np.array([[1.0, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 2], [0, 1, 0, 1]])
    stated = sv.Problem(
        objectives=[s[0] ** 2 + s[1] for s in x], constraints={"g": kind(A) @ x <= [1, 2, 3, 4]}
    )
    assert stated.cloud.row_labels() == ["g[1]", "g[4]"]
    assert stated.cloud.sums.upper.tolist() == [1.0, 4.0]
    assert [str(row.g) for row in stated.cloud.local_rows[0]] == ["x1[1] + x1[2] - 2"]
    assert stated.cloud.groups[1].upper.tolist() == [[5.0, 1.5]]


def batteries() -> tuple[sv.Problem, sv.Problem]:
    """Three chargers with public batteries: as a fleet, and by their names."""
    sizes = SIZES[:3]
    ev = sv.agents(3, dim=2, lower=0, upper=11, name="ev", parameters={"size": sizes})
    fleet = sv.Problem(
        objectives=sum((r - 4) ** 2 for r in ev.x) - ev.x[0],
        constraints=[sv.total(ev.x) <= [10.0, 12.0], sum(ev.x) <= ev["size"]],
    )
    x = sv.agents(["a", "b", "c"], dim=2, lower=0, upper=11)
    public_pair = sv.Problem(
        objectives=[sum((r - 4) ** 2 for r in s) - s[0] for s in x],
        constraints=[sum(s[t] for s in x) <= b for t, b in enumerate((10.0, 12.0))]
        + [sum(s) <= float(size) for s, size in zip(x, sizes, strict=True)],
    )
    return fleet, public_pair


def test_named_agents_and_a_fleet_are_certified_planned_and_simulated_alike() -> None:
    fleet, public_pair = batteries()
    left, right = (sv.certify(problem.cloud) for problem in (fleet, public_pair))
    np.testing.assert_allclose(left.domain[0].upper, np.vstack([g.upper for g in right.domain]))
    facts: Any = {"epsilon": 1.0, "delta": 1e-5, "hide": sv.Everything(rounds=50)}
    plans = [sv.plan(certificate, **facts) for certificate in (left, right)]
    np.testing.assert_allclose(plans[0].sigma, plans[1].sigma, rtol=1e-9)
    best = [sv.reference_optimum(problem) for problem in (fleet, public_pair)]
    np.testing.assert_allclose(best[0].x, best[1].x, atol=1e-7)
    assert public_pair.rows == public_pair.cloud.sums.count == 2
    runs = [
        sv.simulate(problem, plan, runs=2, seed=1)
        for problem, plan in zip((fleet, public_pair), plans, strict=True)
    ]
    np.testing.assert_allclose(runs[0].x, runs[1].x, atol=1e-6)
    for x in runs[1].x.reshape(-1, 3, 2):
        assert np.all(x.sum(axis=1) <= SIZES[:3] + 1e-7)


def public_pair(constraints: list[str], local: list[str]) -> sv.Problem:
    x = sv.agents(2, lower=-5, upper=5, dim=2)
    objectives = [x[0][0] ** 2 + x[0][1], x[1][0] ** 2]
    return sv.Problem(agents=x, objectives=objectives, constraints=constraints, local=local)


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        (lambda ev: ev.x[0] * ev.x[1] <= 3, ConvexityError, "positive semidefinite"),
        (lambda ev: ev.x[0] <= -1, ProblemError, "must hold somewhere between the bounds"),
        (lambda ev: ev["size"] <= 9, ProblemError, "must name the state of ev"),
        (lambda ev: sum(ev.x) >= 34, ProblemError, "at least one point of its box, got none"),
    ],
)
def test_what_cannot_be_kept_is_refused(row: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        public_chargers(row)


# --- Constraints behind which a physical limit stands, in Python and in files ---


def marked_rows(*, marked: bool) -> sv.Problem:
    def mark(constraint: object) -> object:
        return sv.hard(constraint) if marked else constraint

    x = sv.agents(["a", "b"], lower=0, upper=5)
    ev = sv.agents(3, lower=0, upper=1, name="ev")
    return sv.Problem(
        agents=[x, ev],
        objectives=[x[0] ** 2, x[1] ** 2, (ev.x - 1) ** 2],
        constraints={
            "fuse": mark(x[0] + x[1] <= 3),
            "line": mark(sv.total(ev.x) + x[0] <= 4),
            "both": mark(["a - b <= 1", x[1] - x[0] <= 1]),
            "soft": x[0] + 2 * x[1] <= 9,
        },
        privacy={"epsilon": 1.0, "delta": 0.05, "radius": 0.1, "feasible": 0.95, "each_row": True},
    )


def test_every_row_of_what_is_marked_is_hard_as_everybody_agrees_on() -> None:
    hard, soft = (marked_rows(marked=marked) for marked in (True, False))
    assert [family.hard for family in hard.constraints] == [True, True, True, True, False]
    assert not any(family.hard for family in soft.constraints)
    assert hard.cloud.fingerprint != soft.cloud.fingerprint
