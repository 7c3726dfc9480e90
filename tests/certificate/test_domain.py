from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.certificate.domain import MARGIN, tightened_domain
from sottovoce.errors import ProblemError


def test_the_papers_constraints_shrink_its_boxes_and_leave_a_margin() -> None:
    domain = {g.name: g for g in tightened_domain(sv.gallery.paper().cloud)}
    for name, reach in (("x5", np.sqrt(20)), ("x6", np.sqrt(5)), ("x7", np.sqrt(5))):
        wide = reach * (1 + 2 * MARGIN)
        np.testing.assert_allclose(domain[name].upper, wide, rtol=1e-9)
        np.testing.assert_allclose(domain[name].lower, -wide, rtol=1e-9)
    assert domain["x1"].upper[0, 0] == 10.0


def test_the_margin_stops_half_way_to_the_original_bound() -> None:
    x = sv.agents(2, lower=0, upper=[1.0, 0.998])
    problem = sv.Problem(agents=x, objectives=[x[0], x[1]], constraints=[x[0] + x[1] <= 0.99])
    first, second = tightened_domain(problem.cloud)
    assert first.upper[0, 0] == pytest.approx(0.995, abs=1e-12)
    assert second.upper[0, 0] == pytest.approx(0.994, abs=1e-12)


def test_constraints_that_exclude_each_other_are_proven_infeasible() -> None:
    x = sv.agents(2, lower=-10, upper=10)
    problem = sv.Problem(
        agents=x,
        objectives=[x[0], x[1]],
        constraints={"small": x[0] + x[1] <= 1, "large": x[0] + x[1] >= 2},
    )
    with pytest.raises(ProblemError, match=r"must have a common point, got none: (small|large)"):
        tightened_domain(problem.cloud)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 6),
    kind=st.sampled_from(["same", "dense", "sparse"]),
)
def test_a_fleet_is_tightened_like_the_same_agents_stated_one_by_one(
    seed: int, count: int, kind: str
) -> None:
    rng = np.random.default_rng(seed)
    lower, upper = -rng.uniform(0, 3, count), rng.uniform(0.5, 4, count)
    weights = np.ones((1, count)) if kind == "same" else rng.uniform(0.2, 2.0, (2, count))
    bound = rng.uniform(0.5, 2.0, (weights.shape[0],))
    ev = sv.agents(count, lower=lower, upper=upper)
    given_weights = {"same": None, "dense": weights, "sparse": sparse.csr_array(weights)}[kind]
    total = sv.total(ev.x + ev.x**2, weights=given_weights)
    fleet = sv.Problem(agents=ev, objectives=ev.x, constraints=[total <= bound])
    x = sv.agents(count, lower=list(lower), upper=list(upper))
    rows = [
        sum(float(w) * (s + s**2) for w, s in zip(row, x, strict=True)) <= float(b)
        for row, b in zip(weights, bound, strict=True)
    ]
    named = sv.Problem(agents=x, objectives=list(x), constraints=rows)
    together = tightened_domain(fleet.cloud)[0]
    one_by_one = tightened_domain(named.cloud)
    np.testing.assert_allclose(
        together.upper[:, 0], [g.upper[0, 0] for g in one_by_one], rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(
        together.lower[:, 0], [g.lower[0, 0] for g in one_by_one], rtol=1e-6, atol=1e-6
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_feasible_point_is_ever_lost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = sv.agents(3, lower=-4, upper=4)
    a = rng.integers(-3, 4, (2, 3))
    rows = [
        sum(int(c) * s for c, s in zip(row, x, strict=True)) + sum(s**2 for s in x) / 3 <= 4
        for row in a
    ]
    problem = sv.Problem(agents=x, objectives=list(x), constraints=rows)
    points = rng.uniform(-4, 4, (4000, 3))
    feasible = np.all(points @ a.T + (points**2).sum(axis=1, keepdims=True) / 3 <= 4, axis=1)
    domain = tightened_domain(problem.cloud, margin=0.0)
    for c, group in enumerate(domain):
        inside = points[feasible, c]
        assert np.all((inside >= group.lower[0, 0]) & (inside <= group.upper[0, 0]))


def test_agents_untouched_by_a_sparse_row_keep_their_box() -> None:
    ev = sv.agents(3, lower=0.0, upper=5.0)
    weights = sparse.csr_array(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    problem = sv.Problem(
        agents=ev,
        objectives=ev.x,
        constraints=[sv.total(ev.x, weights=weights) <= [1.0, 100.0]],
    )
    upper = tightened_domain(problem.cloud)[0].upper[:, 0]
    np.testing.assert_allclose(upper, [1.1, 1.1, 5.0])
