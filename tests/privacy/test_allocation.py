"""The allocation of noise: optimal for its weights, and never past a cap."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import clarabel
import cvxpy
import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.certificate.sensitivity import Block, Sensitivity
from sottovoce.errors import PrivacyError
from sottovoce.privacy.allocation import allocate, rounding_shift, spent_gdp_mu
from sottovoce.privacy.sampler import DISCRETISATION
from sottovoce.problem.groups import Array

cp: Any = cvxpy  # its annotations leave out its own functions


def sensitivity(S: Array) -> Sensitivity:
    block = Block(rows=np.arange(len(S)), first=0, upper=S, attained=S)
    return Sensitivity(outputs=S.shape[0], agents=S.shape[1], blocks=(block,))


def least_total(S: Array, caps: Array, weights: Array) -> float:
    """The optimum by CVXPY in the logarithms of 1/sigma^2, where scales do not matter."""
    u = cp.Variable(len(S))
    loads = np.square(S.T) / caps[:, np.newaxis]
    constraints = [
        cp.log_sum_exp(u[load > 0] + np.log(load[load > 0])) <= 0 for load in loads if load.any()
    ]
    problem = cp.Problem(cp.Minimize(cp.log_sum_exp(np.log(weights) - u)), constraints)
    problem.solve(solver="CLARABEL")
    return float(np.exp(problem.value))


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 6.0])
def test_the_total_is_what_cvxpy_finds(spread: float) -> None:
    rng = np.random.default_rng(7)
    for _ in range(4):
        m, n = rng.integers(1, 8, 2)
        S = 10.0 ** rng.uniform(-spread, spread, (m, n)) * (rng.random((m, n)) < 0.6)
        S[:, 0] = np.where(S.any(axis=1), S[:, 0], 1.0)
        caps = 10.0 ** rng.uniform(-spread, spread, n)
        weights = 10.0 ** rng.uniform(-spread, spread, m)
        total = weights @ np.square(allocate(sensitivity(S), caps, weights))
        assert total == pytest.approx(least_total(S, caps, weights), rel=2e-6)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    m, n = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    size = st.floats(-6, 6).map(lambda e: 10.0**e)
    S = np.array(draw(st.lists(st.just(0.0) | size, min_size=m * n, max_size=m * n)))
    caps = np.array(draw(st.lists(size, min_size=n, max_size=n)))
    weights = np.array(draw(st.lists(size, min_size=m, max_size=m)))
    return S.reshape(m, n), caps, weights


@settings(max_examples=80, deadline=None)
@given(cases())
def test_every_cap_holds_in_exact_arithmetic(case: tuple[Array, Array, Array]) -> None:
    S, caps, weights = case
    sigma = allocate(sensitivity(S), caps, weights)
    assert np.array_equal(sigma > 0, S.any(axis=1))
    for column, cap in zip(S.T, caps, strict=True):
        load = sum(
            (Fraction(float(s)) / Fraction(float(d))) ** 2
            for s, d in zip(column, sigma, strict=True)
            if s > 0
        )
        assert load <= Fraction(float(cap))


def test_dense_sparse_and_broadcast_blocks_agree() -> None:
    rng = np.random.default_rng(3)
    S = rng.uniform(0.5, 2.0, (5, 40)) * (rng.random((5, 40)) < 0.5)
    S[:, 0] = 1.0
    caps, weights = rng.uniform(0.5, 2.0, 41), rng.uniform(0.5, 2.0, 6)
    whole = np.zeros((6, 41))
    whole[:5, :40], whole[5, 1:] = S, 0.7
    same = np.broadcast_to(np.array([[0.7]]), (1, 40))

    def blocks(upper: object) -> Sensitivity:
        first = Block(rows=np.arange(5), first=0, upper=upper, attained=upper)
        last = Block(rows=np.array([5]), first=1, upper=same, attained=same)
        return Sensitivity(outputs=6, agents=41, blocks=(first, last))

    expected = allocate(sensitivity(whole), caps, weights)
    for upper in (S, sparse.csr_array(S)):
        assert allocate(blocks(upper), caps, weights) == pytest.approx(expected, rel=1e-3)


def test_thousands_of_agents_cost_only_those_that_bind() -> None:
    rng = np.random.default_rng(11)
    S = rng.lognormal(0.0, 0.3, (8, 20_000))
    caps, weights = np.ones(20_000), np.ones(8)
    sigma = allocate(sensitivity(S), caps, weights)
    load = np.square(S).T @ (1 / np.square(sigma))
    assert load.max() <= 1.0
    binding = load > 1 - 1e-5
    assert 1 <= binding.sum() <= 8 + 2
    assert weights @ np.square(sigma) == pytest.approx(
        least_total(S[:, binding], caps[binding], weights), rel=1e-4
    )


def test_agents_alike_in_load_but_not_in_outputs_are_told_apart() -> None:
    # 300 agents with two outputs of their own each: the same load for all, and all of them bind.
    pairs = sparse.csr_array(np.kron(np.eye(300), np.ones((2, 1))))
    block = Block(rows=np.arange(600), first=0, upper=pairs, attained=pairs)
    S = Sensitivity(outputs=600, agents=300, blocks=(block,))
    sigma = allocate(S, np.full(300, 0.5), np.ones(600))
    assert sigma == pytest.approx(np.full(600, 2.0), rel=1e-4)


def test_an_agent_without_a_cap_does_not_matter() -> None:
    S = np.array([[1.0, 9.0], [2.0, 9.0]])
    with_it = allocate(sensitivity(S), np.array([1.0, np.inf]), np.ones(2))
    assert with_it == pytest.approx(
        allocate(sensitivity(S[:, :1]), np.ones(1), np.ones(2)), rel=1e-3
    )


def test_nothing_to_hide_needs_no_noise() -> None:
    assert not allocate(sensitivity(np.zeros((3, 2))), np.ones(2), np.ones(3)).any()


def always(monkeypatch: pytest.MonkeyPatch, answer: list[float]) -> None:
    """Let the solver give one answer whatever it is asked."""

    class Broken:
        def __init__(self, *_: object) -> None: ...

        def solve(self) -> Any:
            return SimpleNamespace(x=np.array(answer), status="Failed")

    monkeypatch.setattr(clarabel, "DefaultSolver", Broken)


def test_a_solver_that_fails_gives_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch, [np.nan, 1.0])
    with pytest.raises(PrivacyError, match=r"could not be allocated: .* Failed"):
        allocate(sensitivity(np.ones((2, 1))), np.ones(1), np.ones(2))


@pytest.mark.parametrize("answer", [[-1.0, 1.0], [0.0, 0.0], [1e9, 1e-9]])
def test_a_solver_that_is_wrong_costs_noise_and_never_privacy(
    monkeypatch: pytest.MonkeyPatch, answer: list[float]
) -> None:
    always(monkeypatch, answer)
    S = np.array([[1.0, 2.0], [3.0, 1.0]])
    sigma = allocate(sensitivity(S), np.ones(2), np.ones(2))
    assert np.all(sigma > 0)
    assert np.max(np.square(S.T) @ (1 / np.square(sigma))) <= 1.0


def test_caps_hold_even_where_a_solver_is_lost() -> None:
    sigma = allocate(sensitivity(np.ones((2, 1))), np.ones(1), np.array([1e-200, 1e200]))
    assert np.sum(1 / np.square(sigma)) <= 1.0


def test_what_is_spent_is_the_shift_and_the_rounding() -> None:
    S, sigma = np.array([[3.0, 0.0], [0.0, 1.0]]), np.array([2.0, np.inf])
    reach, errors = np.array([0.5, 1.0]), np.array([1e-9, 1.0])
    mu = spent_gdp_mu(sensitivity(S), sigma, reach, errors, 100)
    share = 10 * (2 * 2.0**-26 + 2 * 1e-9 / 2.0)
    assert rounding_shift(sigma, errors, 100) == pytest.approx(share)
    assert mu == pytest.approx([0.75 + share, share])
    assert mu[0] >= (0.75 + share) * DISCRETISATION
    # Without noise only what no agent moves may be released.
    bare = np.array([2.0, 0.0])
    with pytest.raises(PrivacyError, match="every output that an agent moves must have noise"):
        spent_gdp_mu(sensitivity(S), bare, reach, errors, 100)
    still = S * np.array([[1.0], [0.0]])
    assert spent_gdp_mu(sensitivity(still), bare, reach, errors, 100).tolist() == mu.tolist()
