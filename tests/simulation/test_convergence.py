"""Without noise Algorithm 1 goes to the saddle point, up to the bias of its regularisation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import sympy as sp
from engine_reference import everywhere, published, written_out
from scipy import optimize

from sottovoce.certificate.optimum import reference_optimum
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.gallery import chargers, coupled, hock_schittkowski, paper
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate
from sympy_oracle import sympy_of, sympy_symbol

ROUNDS = 1_000_000


def silent(plan: NoisePlan) -> NoisePlan:
    """Noise too small to change a bit, so that kernels compiled for noise serve here as well."""
    quiet = tuple(replace(o, sigma=o.sigma * 1e-200) for o in plan.outputs)
    return replace(plan, outputs=quiet)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Steps that suit a problem, and how near a million rounds come."""

    problem: Problem
    gamma_bar: float
    near: float
    alpha_bar: float = 0.2
    rounds: int = ROUNDS
    beside: float | None = None  # start so far beside the saddle point, not at the problem's start


CASES = {
    "paper": Case(problem=paper(), gamma_bar=2e-3, near=0.32),
    "coupled": Case(problem=coupled(), gamma_bar=5e-3, near=0.08),
    "chargers": Case(problem=chargers(5, hours=3), gamma_bar=5e-2, near=0.08),
    "hs10": Case(problem=hock_schittkowski(10), gamma_bar=1e-2, near=0.006),
    "hs11": Case(problem=hock_schittkowski(11), gamma_bar=1e-2, near=0.02),
    "hs21": Case(problem=hock_schittkowski(21), gamma_bar=5e-3, near=1e-4),
    "hs22": Case(problem=hock_schittkowski(22), gamma_bar=0.1, near=0.013),
    "hs34": Case(problem=hock_schittkowski(34), gamma_bar=5e-2, alpha_bar=2e-3, near=1e-3),
    "hs43": Case(problem=hock_schittkowski(43), gamma_bar=1e-2, near=0.025),
    "hs66": Case(problem=hock_schittkowski(66), gamma_bar=0.1, alpha_bar=0.02, near=0.03),
    # Multipliers of 8,000 and 41,000 over boxes of 400,000: from the book's start no step size
    # gets there in a reasonable time, so this one starts half a percent away.
    "hs72": Case(
        problem=hock_schittkowski(72), gamma_bar=100.0, alpha_bar=1e-9, near=1.0,
        rounds=10 * ROUNDS, beside=0.005,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_without_noise_it_goes_to_the_saddle_point(name: str) -> None:
    case = CASES[name]
    plan = published(case.problem) if name == "paper" else everywhere(case.problem)
    hat = reference_optimum(case.problem)
    start: dict[str, Any] = {}
    if case.beside is not None:
        start = {"x0": hat.x * (1 + case.beside), "mu0": hat.mu * (1 - case.beside)}
    result = simulate(
        case.problem, silent(plan), rounds=case.rounds, record=[case.rounds],
        algorithm=Tikhonov(gamma_bar=case.gamma_bar, alpha_bar=case.alpha_bar), **start,
    )  # fmt: skip
    scale = max(1.0, float(np.abs(hat.mu).max()))
    assert result.trace.error_x[0, 0] < case.near
    assert result.trace.error_price[0, 0] < case.near * scale
    if name == "paper":
        no_plan = simulate(case.problem, rounds=500, algorithm=Tikhonov(gamma_bar=case.gamma_bar))
        same = simulate(
            case.problem, silent(plan), rounds=500, algorithm=Tikhonov(gamma_bar=case.gamma_bar)
        )
        np.testing.assert_array_equal(no_plan.x, same.x)


def test_the_bias_of_the_regularisation_is_what_the_formula_says() -> None:
    """``(x, mu) - (x_hat, mu_hat) = alpha K^-1 (-x_hat, mu_hat)`` to first order in alpha."""
    case = CASES["coupled"]
    hat = reference_optimum(case.problem)
    symbols, f, g = written_out(case.problem)
    active = [sympy_of(g[j]) for j in np.flatnonzero(hat.mu > 1e-9)]
    multipliers = hat.mu[hat.mu > 1e-9]
    at = dict(zip(map(sympy_symbol, symbols), hat.x.tolist(), strict=True))
    lagrangian = sympy_of(f) + sum(m * h for m, h in zip(multipliers.tolist(), active, strict=True))
    H = np.array(sp.hessian(lagrangian, list(at)).subs(at), dtype=float)
    J = np.array(sp.Matrix(active).jacobian(list(at)).subs(at), dtype=float)
    K = np.block([[H, J.T], [J, np.zeros((len(active), len(active)))]])
    result = simulate(
        case.problem, silent(everywhere(case.problem)), rounds=ROUNDS, record=[],
        algorithm=Tikhonov(gamma_bar=case.gamma_bar),
    )  # fmt: skip
    alpha = 0.2 * ROUNDS**-0.25
    predicted = alpha * np.linalg.solve(K, np.concatenate([-hat.x, multipliers]))
    got = np.concatenate([result.x[0] - hat.x, (result.price[0] - hat.mu)[hat.mu > 1e-9]])
    assert np.linalg.norm(got - predicted) < 0.1 * np.linalg.norm(got)


def test_where_the_objective_is_flat_the_bias_is_a_fifth_root() -> None:
    """``6 (x5 + 3)^5 + alpha x5 = 0`` leaves the paper's fifth agent 0.3 off after 10^6 rounds."""
    case = CASES["paper"]
    result = simulate(
        case.problem, silent(published(case.problem)), rounds=ROUNDS, record=[],
        algorithm=Tikhonov(gamma_bar=case.gamma_bar),
    )  # fmt: skip
    alpha = 0.2 * ROUNDS**-0.25
    root = optimize.brentq(lambda x: 6 * (x + 3) ** 5 + alpha * x, -3, 0)
    assert abs(result.x[0, 4] - root) < 0.02 * (root + 3)
    assert root + 3 > 0.3
