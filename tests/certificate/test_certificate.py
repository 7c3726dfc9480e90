from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate, certify
from sottovoce.errors import CertificateError, ConvexityError
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import Expression
from sottovoce.formula.tape import tape
from sottovoce.paper.paper_plan import certified_constants
from sottovoce.problem.problem import Problem

# No symbol per agent to sample.
FLEETS = {"chargers", "smart_charging", "valley_filling", "peak_shaving", "soft_limit"}


def outputs(problem: Problem) -> list[Expression]:
    return [row for family in problem.cloud.sums.families for row in family.formulas]


def sampled(problem: Problem, certificate: Certificate, points: int) -> np.ndarray:
    """The largest influence seen at random points and corners: never above the bound."""
    rng = np.random.default_rng(0)
    symbols = [s for group in problem.groups for s in group.symbols]
    lower = np.concatenate([g.lower.ravel() for g in certificate.domain])
    upper = np.concatenate([g.upper.ravel() for g in certificate.domain])
    at = rng.uniform(lower, upper, (points, lower.size))
    corners = np.where(rng.random((points, lower.size)) < 0.5, lower, upper)
    at = np.concatenate([at, corners])
    seen = np.zeros((len(outputs(problem)), problem.agents))
    for o, expr in enumerate(outputs(problem)):
        for agent, group in enumerate(problem.groups):
            norms = np.zeros(at.shape[0])
            for s in group.symbols:
                (slope,) = tape([derivative(expr, s)], symbols)(*at.T)
                norms += np.square(np.broadcast_to(slope, norms.shape))
            seen[o, agent] = np.sqrt(norms.max())
    return seen


@pytest.mark.parametrize("name", [n for n in sv.gallery.names() if n not in FLEETS])
def test_gallery_sensitivities_are_within_1_percent_and_never_too_small(name: str) -> None:
    problem = sv.gallery.get(name)
    certificate = certify(problem)
    assert certificate.holds
    assert certificate.sensitivity.gap() <= 0.01
    seen = sampled(problem, certificate, 2000)
    assert np.all(seen <= certificate.sensitivity.dense() * (1 + 1e-12))


def test_the_papers_constants_come_out_over_the_original_box() -> None:
    constants, column = certified_constants(sv.gallery.paper().cloud)
    assert constants.k_g == pytest.approx(472.674613, abs=5e-7)
    assert column == pytest.approx(333.934292, abs=5e-7)
    expected = [0, 0, 2, 0, 2, 100.019998, 100.019998]
    assert constants.k_prime == pytest.approx(expected, abs=5e-7)
    # Bounds round up: sqrt(10003.9996) and 2 from above, never from below.
    assert constants.k_prime[2] >= 2.0
    assert Fraction(constants.k_prime[5]) ** 2 >= 100**2 + 4


def test_hard_constraints_over_a_large_box_stay_within_five_percent() -> None:
    x = sv.agents(7, lower=-10, upper=10)
    problem = Problem(
        objectives=[s**2 for s in x],
        constraints=[sv.logsumexp(*x) <= 5, sv.sqrt(1 + sum(s**2 for s in x)) <= 20],
    )
    certificate = certify(problem, tighten=False)
    assert certificate.sensitivity.gap() <= 0.05
    # The sums inside the logarithm and the root: exp(10) and 2 x 10 at most.
    top = certificate.sensitivity.dense().max(axis=1)
    assert top == pytest.approx([np.exp(10), 20.0], rel=0.05)
    # What the constraints imply is far less: exp(x) <= e^5.
    kept = certify(problem).sensitivity.dense().max(axis=1)
    assert kept[0] == pytest.approx(np.exp(5), rel=0.2)


def test_an_unbounded_sensitivity_is_refused_with_the_remedy() -> None:
    x = sv.agents(2, lower=[0, -1], upper=1)
    problem = Problem(objectives=[x[0] ** 2, x[1] ** 2], constraints=[-sv.log(x[0]) + x[1] <= 9])
    with pytest.raises(CertificateError, match=r"influence of x1 on output 1.*bounds"):
        certify(problem, tighten=False)
    # What the constraint implies keeps x1 away from 0, so the tightened problem is fine.
    assert certify(problem).holds


def test_negative_weights_on_a_convex_term_are_not_convex() -> None:
    ev = sv.agents(2, lower=-1.0, upper=1.0)
    problem = Problem(
        objectives=ev.x**2, constraints=[sv.total(ev.x**2, weights=[[1.0, -1.0]]) <= 1]
    )
    with pytest.raises(ConvexityError):
        certify(problem).require()


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_random_convex_problems_are_bounded_from_above(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = sv.agents(3, lower=-2, upper=2)
    rows = []
    for _ in range(2):
        a = rng.integers(-2, 3, 3)
        inner = sum(int(c) * s for c, s in zip(a, x, strict=True))
        choices = [inner**2, sv.exp(inner / 2), sv.logsumexp(*x), (inner + 1) ** 4 / 10]
        rows.append(choices[rng.integers(4)] + x[int(rng.integers(3))] ** 2 + sum(x) / 8 <= 30)
    problem = Problem(objectives=[s**2 for s in x], constraints=rows)
    certificate = certify(problem, tighten=bool(rng.integers(2)))
    seen = sampled(problem, certificate, 300)
    assert np.all(seen <= certificate.sensitivity.dense() * (1 + 1e-12))
