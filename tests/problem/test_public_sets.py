"""Public rows on one agent: no sums, no noise, and a smaller domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import sottovoce as sv
from sottovoce.errors import ConvexityError, ProblemError

SIZES = np.array([6.0, 8.0, 10.0, 20.0])


def chargers(*public: Any) -> sv.Problem:
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
    stated = chargers(battery)
    assert stated.cloud.sums.count == 3
    (row,) = stated.cloud.local_rows[0]
    assert stated.local[0].inequalities == (row.g,)
    assert stated.local[0].stated == ()
    assert [s.name for s in stated.cloud.groups[0].parameters] == ["size"]  # public by its use
    assert stated.cloud.fingerprint != chargers().cloud.fingerprint


def test_code_keeps_public_rows_and_private_ones_beside_them() -> None:
    cloud = chargers(battery).cloud
    own = sv.network.AgentGroup.of_gradient(cloud, 1, lambda x: x, local=["ev[1] + ev[2] >= 1"])
    kept = own.groups[0].fleet.local
    assert kept is not None
    assert kept.rows == 2
    with pytest.raises(sv.errors.ProblemError, match=r"local set of ev2 .* got none"):
        sv.network.AgentGroup.of_gradient(cloud, 1, lambda x: x, local=["ev[1] + ev[2] >= 100"])


def test_windows_of_a_fleet_are_public_bounds() -> None:
    stated = chargers(lambda ev: ev.x[0] <= ev["size"] / 4)
    np.testing.assert_allclose(stated.cloud.groups[0].upper[:, 0], [1.5, 2.0, 2.5, 5.0])
    assert stated.cloud.local_rows == ((),)


def test_a_named_agents_row_belongs_to_its_set_if_the_rules_show_it_convex() -> None:
    x = sv.agents(2, lower=-5, upper=5, dim=2)
    stated = sv.Problem(
        agents=x,
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
        agents=x,
        objectives=[s[0] ** 2 + s[1] for s in x],
        constraints={"g": kind(A) @ x <= [1, 2, 3, 4]},
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
        agents=ev,
        objectives=sum((r - 4) ** 2 for r in ev.x) - ev.x[0],
        constraints=[sv.total(ev.x) <= [10.0, 12.0], sum(ev.x) <= ev["size"]],
    )
    x = sv.agents(["a", "b", "c"], dim=2, lower=0, upper=11)
    named = sv.Problem(
        agents=x,
        objectives=[sum((r - 4) ** 2 for r in s) - s[0] for s in x],
        constraints=[sum(s[t] for s in x) <= b for t, b in enumerate((10.0, 12.0))]
        + [sum(s) <= float(size) for s, size in zip(x, sizes, strict=True)],
    )
    return fleet, named


def test_named_agents_and_a_fleet_are_certified_planned_and_simulated_alike() -> None:
    fleet, named = batteries()
    left, right = (sv.certify(problem.cloud) for problem in (fleet, named))
    np.testing.assert_allclose(left.domain[0].upper, np.vstack([g.upper for g in right.domain]))
    facts: Any = {"epsilon": 1.0, "delta": 1e-5, "hide": sv.Everything(rounds=50)}
    plans = [sv.plan(certificate, **facts) for certificate in (left, right)]
    np.testing.assert_allclose(plans[0].sigma, plans[1].sigma, rtol=1e-9)
    best = [sv.reference_optimum(problem) for problem in (fleet, named)]
    np.testing.assert_allclose(best[0].x, best[1].x, atol=1e-7)
    assert named.rows == named.cloud.sums.count == 2
    runs = [
        sv.simulate(problem, plan, runs=2, seed=1)
        for problem, plan in zip((fleet, named), plans, strict=True)
    ]
    np.testing.assert_allclose(runs[0].x, runs[1].x, atol=1e-6)
    for x in runs[1].x.reshape(-1, 3, 2):
        assert np.all(x.sum(axis=1) <= SIZES[:3] + 1e-7)


def named(constraints: list[str], local: list[str]) -> sv.Problem:
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
        chargers(row)
