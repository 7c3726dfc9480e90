"""Ranges of contributions: never narrower than what agents can add, tight where they are affine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from formula_values import evaluate
from sottovoce.certificate.contributions import contribution_ranges, sum_ranges
from sottovoce.errors import CertificateError
from sottovoce.formula.tape import tape
from sottovoce.problem.groups import Array
from sottovoce.problem.sums import contributions


def mixture(kind: str, seed: int) -> sv.Problem:
    """Two named agents beside a fleet whose weights may be negative where terms are affine."""
    rng = np.random.default_rng(seed)
    x = sv.agents(2, lower=[-1, 0.5], upper=[2, 1.5], dim=[2, 1])
    (p, q), r = x
    own = {"k": rng.normal(0, 2, 4)}
    ev = sv.agents(4, lower=-1.0, upper=rng.uniform(0, 2, 4), name="ev", parameters=own)
    weights: Any = None
    if kind != "ones":
        weights = rng.normal(0, 1, (2, 4)) * (rng.random((2, 4)) < 0.7)
        weights[0, 0] = 1.0
        weights[1, 1:] = -1.5
        weights = sparse.csr_array(weights) if kind == "sparse" else weights
    term = ev["k"] * ev.x if kind != "ones" else ev.x**2
    rows = 1 if weights is None else 2
    return sv.Problem(
        agents=[x, ev],
        objectives=[p**2 + q**2, r**2, ev.x**2],
        constraints=[
            sv.total(term, weights=weights) + p - 2 * q + sv.exp(r) <= np.full(rows, 90.0),
            (p - r) ** 2 + sv.exp(q) / 3 <= 80,
        ],
    )


def members(problem: sv.Problem, agent: int, points: Array) -> Array:
    """The contributions of one agent at several of its states, shape (points, sums)."""
    sums = problem.cloud.sums
    out = np.zeros((len(points), sums.count))
    if agent < 2:
        group = problem.cloud.groups[agent]
        for o, h in contributions(sums, group).items():
            out[:, o] = tape([h], group.symbols)(*points.T)[0]
        return out
    group, place = problem.cloud.groups[2], agent - 2
    part = sums.families[0].sums[0]
    here = {s: a[place] for s, a in group.parameters.items()}
    w: Any = np.ones((1, 4)) if part.weights is None else part.weights
    w = w.toarray() if sparse.issparse(w) else np.asarray(w)
    for row in range(len(w)):
        known = dict(zip(group.symbols, points.T, strict=True)) | here
        out[:, row] = w[row, place] * evaluate(part.terms[0], known)
    return out


@settings(max_examples=6, deadline=None)
@given(kind=st.sampled_from(["ones", "dense", "sparse"]), seed=st.integers(0, 2**32 - 1))
def test_ranges_slopes_and_sizes_are_never_below_what_agents_do(kind: str, seed: int) -> None:
    problem = mixture(kind, seed)
    certificate = sv.certify(problem.cloud)
    spread, S = certificate.contributions.spread.dense(), certificate.sensitivity.dense()
    rng = np.random.default_rng(seed)
    most = np.zeros(problem.cloud.sums.count)
    for agent in range(problem.agents):
        group = certificate.domain[min(agent, 2)]
        low, high = (b[agent - 2 if agent >= 2 else 0] for b in (group.lower, group.upper))
        corners = np.where(rng.random((20, group.dim)) < 0.5, low, high)
        points = np.vstack([corners, rng.uniform(low, high, (20, group.dim))])
        found = members(problem, agent, points)
        assert np.all(np.ptp(found, axis=0) <= spread[:, agent] * (1 + 1e-12))
        most += np.abs(found).max(axis=0)
        for i, j in rng.integers(0, len(points), (60, 2)):
            moved = np.abs(found[i] - found[j])
            assert np.all(moved <= S[:, agent] * np.linalg.norm(points[i] - points[j]) + 1e-12)
    assert np.all(most <= certificate.contributions.size * (1 + 1e-12))


def test_the_range_of_an_affine_contribution_is_exact() -> None:
    x = sv.agents(2, lower=[[-1, 0], [2, 2]], upper=[[1, 3], [5, 5]], dim=2)
    problem = sv.Problem(
        agents=x,
        objectives=[s[0] + s[1] for s in x],
        constraints=[x[0][0] - 2 * x[0][1] + 3 * x[1][0] + x[1][1] <= 90],
    )
    found = contribution_ranges(problem.cloud.sums, problem.cloud.groups)
    assert found.spread.dense() == pytest.approx(np.array([[8.0, 12.0]]), rel=1e-9)
    assert found.size == pytest.approx([7.0 + 20.0], rel=1e-9)
    assert sum_ranges(problem.cloud.sums, problem.cloud.groups)[0] == pytest.approx((1.0, 21.0))


def test_sum_ranges_hold_where_large_contributions_cancel() -> None:
    ev = sv.agents(3, lower=[1e16, -1e16, 0.1], upper=[1e16, -1e16, 0.3])
    problem = sv.Problem(agents=ev, objectives=ev.x, constraints=[sv.total(ev.x) <= 9])
    low, high = sum_ranges(problem.cloud.sums, problem.cloud.groups)[0]
    assert low <= 0.1
    assert high >= 0.3


def test_a_sum_of_a_single_agent_keeps_its_range_to_the_last_bit() -> None:
    # sqrt is not defined beyond 0, so that a range one bit too wide would prove nothing.
    x = sv.agents(2, lower=[0.0, 0.1], upper=[0.7, 3.0])
    problem = sv.Problem(
        agents=x, objectives=list(x), constraints=[x[0] ** 2 / x[1] + sv.exp(x[0] + x[1]) <= 40]
    )
    ranges = sum_ranges(problem.cloud.sums, problem.cloud.groups)
    assert (0.0, 0.7) in ranges
    assert (0.1, 3.0) in ranges


def test_a_contribution_without_a_finite_range_is_refused() -> None:
    x = sv.agents(2, lower=[0, -1], upper=1)
    problem = sv.Problem(agents=x, objectives=list(x), constraints=[x[1] - sv.log(x[0]) <= 9])
    with pytest.raises(CertificateError, match="every contribution must have finite bounds"):
        contribution_ranges(problem.cloud.sums, problem.cloud.groups)


def test_the_range_of_an_agent_that_cannot_move_is_nothing() -> None:
    x = sv.agents(3, lower=[-400, 0, 0], upper=[-400, 5, 5])
    stated = sv.Problem(
        agents=x,
        objectives=[x[0], x[1] ** 2, x[2] ** 2],
        constraints=[sv.exp(2 * x[0]) + x[1] ** 2 + sv.exp(x[2]) <= 20],
    )
    certificate = sv.certify(stated.cloud)
    assert certificate.contributions.spread.dense()[0, 0] == 0.0
    plan = sv.plan(certificate, epsilon=1.0, delta=1e-3, hide=sv.Everything(rounds=20))
    assert plan.gdp_mu[0] <= plan.gdp_rounding
