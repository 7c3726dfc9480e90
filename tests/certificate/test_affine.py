"""Affine contributions together: never below the largest singular value, never above the sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate
from sottovoce.privacy.gaussian import mu_of


def named(A: Any) -> Certificate:
    """One agent with a state of several components, one affine row each, beside a second agent."""
    rows = np.asarray(A, dtype=float)
    x = sv.agents(2, lower=-1, upper=1, dim=[rows.shape[1], 1])
    own = list(np.atleast_1d(x[0]))
    g = [sum(float(c) * s for c, s in zip(row, own, strict=True)) + x[1] <= 90 for row in rows]
    return sv.certify(sv.Problem(agents=x, objectives=[sum(own), x[1]], constraints=g).cloud)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_bound_is_the_largest_singular_value_rounded_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=rng.integers(1, 5, 2)) * 10.0 ** rng.integers(-3, 4)
    S = named(A).sensitivity
    precision = 10.0 ** rng.uniform(-3, 3, len(A))
    true = np.linalg.norm(np.sqrt(precision)[:, np.newaxis] * A, 2) ** 2
    found = S.together(precision)[0]
    assert true * (1 - 1e-13) <= found <= S.loads(precision)[0] * (1 + 1e-12)
    assert found == pytest.approx(true, rel=1e-9)


@pytest.mark.parametrize("kind", ["ones", "dense", "sparse"])
def test_a_fleet_gets_the_singular_value_of_each_of_its_agents(kind: str) -> None:
    rng = np.random.default_rng(4)
    n, k, w = 7, rng.uniform(0.5, 2, 7), rng.normal(size=(3, 7))
    ev = sv.agents(n, lower=0, upper=1, dim=2, name="ev", parameters={"k": k})
    p, q = ev.x
    weights: Any = {"ones": None, "dense": w, "sparse": sparse.csr_array(w)}[kind]
    terms = [p + ev["k"] * q, p - 2 * q]
    rows = 2 if weights is None else 6
    problem = sv.Problem(
        agents=ev,
        objectives=p + q,
        constraints=[sv.total(terms, weights=weights) <= np.full(rows, 90.0)],
    )
    precision = rng.uniform(0.5, 2, rows)
    found = sv.certify(problem.cloud).sensitivity.together(precision)
    used = np.ones((1, n)) if weights is None else w
    for i in range(n):
        slopes = np.array([[1.0, k[i]], [1.0, -2.0]])
        A = np.vstack([used[r, i] * slopes for r in range(len(used))])
        true = np.linalg.norm(np.sqrt(precision)[:, np.newaxis] * A, 2) ** 2
        assert true * (1 - 1e-13) <= found[i] <= true * (1 + 1e-9)


def test_curved_contributions_are_added_to_the_affine_ones() -> None:
    x = sv.agents(2, lower=-1, upper=1, dim=[2, 1])
    (p, q), r = x
    problem = sv.Problem(
        agents=x,
        objectives=[p, r],
        constraints=[p + q + r <= 9, p - q + r <= 9, p**2 + q**2 + r <= 9],
    )
    S = sv.certify(problem.cloud, tighten=False).sensitivity
    # |(1, 1), (1, -1)|_2^2 = 2, and (2 sqrt 2)^2 for the curved sum.
    assert S.together(np.ones(3))[0] == pytest.approx(10.0, rel=0.02)
    assert S.loads(np.ones(3))[0] == pytest.approx(12.0, rel=0.02)


def test_a_plan_takes_less_noise_where_sums_see_different_directions() -> None:
    # Rows (1, 1) and (1, -1) of one agent: sqrt(2) instead of 2 for both together.
    certificate = named([[1.0, 1.0], [1.0, -1.0]])
    plan = sv.plan(certificate, epsilon=1, delta=1e-5, hide=sv.Trajectory(radius=1))
    S, precision = certificate.sensitivity, 1 / plan.sigma**2
    assert plan.gdp_mu.max() == pytest.approx(float(np.sqrt(S.together(precision).max())), rel=1e-3)
    assert np.sqrt(S.loads(precision)[0]) > 1.3 * plan.gdp_mu.max()
    assert plan.gdp_mu.max() == pytest.approx(mu_of(1.0, 1e-5), rel=1e-3)
    assert plan.guarantee(0).epsilon <= 1.0
