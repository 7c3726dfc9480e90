"""All constraints of a problem as sums and a public set: fleets, mixtures, equalities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from formula_values import evaluate
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import add, addends, canonical, expand
from sottovoce.formula.expression import ZERO
from sottovoce.problem.numeric import Numeric
from sottovoce.problem.sums import contributions


def mixture(seed: int) -> sv.Problem:
    """Named agents inside formulas and beside a fleet, with dense or sparse weights."""
    rng = np.random.default_rng(seed)
    x = sv.agents(["a", "b", "c"], lower=-2, upper=2, dim=[1, 2, 1])
    a, (b, d), c = x
    ev = sv.agents(5, lower=-1, upper=1, name="ev", parameters={"k": rng.uniform(0.5, 2, 5)})
    weights = rng.uniform(0, 1, (2, 5))
    held: Any = sparse.csr_array(weights) if rng.random() < 0.5 else weights
    inner = [(a - b) ** 2, sv.exp(a + c), a * c + a**2 + c**2, sv.sqrt(1 + (a - d) ** 2 + c**2),
             expand(canonical((a + 2 * c) ** 2)), sv.logsumexp(a, b - c) + b**2]  # fmt: skip
    chosen = inner[rng.integers(len(inner))]
    return sv.Problem(
        agents=[x, ev],
        objectives=[a, b + d, c, ev.x],
        constraints={
            "plain": sv.total(ev["k"] * ev.x) + a + c**2 <= rng.uniform(0, 3),
            "mixed": sv.total(ev.x**2) + chosen + d / 2 <= rng.uniform(1, 5),
            "two": sv.total(ev.x, weights=held) + 2**0.5 * (a + b) <= [1.0, 2.0],
        },
    )


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_sums_with_fleets_lie_in_the_set_where_and_only_where_constraints_hold(seed: int) -> None:
    problem = mixture(seed)
    sums = problem.cloud.sums
    rows, numeric = Numeric(problem, sums.families), Numeric(problem)
    rng = np.random.default_rng(seed)
    for x in rng.uniform(numeric.lower, numeric.upper, (15, problem.size)):
        g, found = numeric.constraints(x), rows.constraints(x)
        assert found.shape == (sums.count,)
        region = {r.stated: r for r in sums.regions}
        assert set(region) == {1}
        at = dict(zip(region[1].symbols, found[list(region[1].rows)].tolist(), strict=True))
        assert evaluate(region[1].phi, at) == pytest.approx(g[1], abs=1e-9)
        plain, two = sums.origins[0].first, sums.origins[2].first
        assert found[plain] - sums.upper[plain] == pytest.approx(g[0], abs=1e-9)
        assert found[two : two + 2] - sums.upper[two : two + 2] == pytest.approx(g[2:], abs=1e-9)
    assert [origin.as_stated for origin in sums.origins] == [True, False, True]
    for family in sums.families:
        for formula in family.formulas:
            for term in addends(formula):
                assert len({s.name[0] for s in term.symbols}) <= 1


def test_what_an_agent_contributes_is_its_own_terms() -> None:
    problem = mixture(1)
    whole = [ZERO] * problem.cloud.sums.count
    for group in problem.cloud.groups[:3]:
        for o, h in contributions(problem.cloud.sums, group).items():
            assert h.symbols <= set(group.symbols)
            whole[o] = add(whole[o], h)
    stated = [e for f in problem.cloud.sums.families for e in (f.formulas or [ZERO] * f.rows)]
    assert all(w is s for w, s in zip(whole, stated, strict=True))


def test_the_coupled_problem_takes_five_sums() -> None:
    sums = sv.gallery.coupled().cloud.sums
    assert [origin.count for origin in sums.origins] == [2, 2, 1]
    assert [region.stated for region in sums.regions] == [0, 1]
    assert sums.upper[4] == pytest.approx(math.exp(2))
    assert "logarithm" in sums.origins[2].how


# --- equalities ---------------------------------------------------------------------------------


P = sv.agents(["p1", "p2", "p3"], lower=0, upper=10)


def balanced(row: Any) -> sv.Problem:
    objectives = [(k + 1) * s**2 for k, s in enumerate(P)]
    return sv.Problem(agents=P, objectives=objectives, constraints={"balance": row})


@pytest.mark.parametrize(
    "row", [P[0] + P[1] + P[2] == 6, "p1 + p2 + p3 == 6", sum(P) == 6, sv.total(P) == 6]
)
def test_an_equality_is_kept_at_a_point_however_it_is_stated(row: Any) -> None:
    stated = balanced(row)
    sums = stated.cloud.sums
    assert sums.lower.tolist() == sums.upper.tolist() == [6.0]
    assert stated.constraints[0].equality
    assert sv.reference_optimum(stated).x == pytest.approx(np.array([36, 18, 12]) / 11)
    assert stated.fingerprint != balanced(sum(P) <= 6).fingerprint


def test_totals_over_fleets_are_equalities() -> None:
    ev = sv.agents(4, lower=0, upper=10, parameters={"k": [1.0, 2.0, 3.0, 4.0]})
    for row in (sv.total(ev.x) == 6, sv.total(ev["k"] * ev.x) == np.array([6.0])):
        stated = sv.Problem(agents=ev, objectives=ev.x**2, constraints=[row])
        sums = stated.cloud.sums
        assert sums.lower.tolist() == sums.upper.tolist()
        assert sums.free


@pytest.mark.parametrize(
    "row",
    [
        lambda ev, x: sv.total(ev.x**2) == 5,
        lambda ev, x: sv.total(ev["k"] * sv.exp(ev.x)) == 5,
        lambda ev, x: sv.total(ev.x) + x[0] ** 2 == 5,
        lambda ev, x: sv.total(ev.x) + x[0] * x[1] == 5,
    ],
)
def test_an_equality_with_a_fleet_must_be_affine_too(row: Any) -> None:
    ev = sv.agents(3, lower=0, upper=1, name="ev", parameters={"k": [1.0, 2.0, 3.0]})
    x = sv.agents(2, lower=0, upper=1)
    with pytest.raises(ProblemError, match="constraint g1 must be affine to be an equality, got"):
        sv.Problem(
            agents=[x, ev],
            objectives=[*x, ev.x],
            constraints=[row(ev, x), x[0] + x[1] + sv.total(ev.x) <= 3],
        )
