"""Algorithm 1 in plain NumPy, and a plan without the privacy: what the engine is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import sympy as sp

from sottovoce.algorithm.steps import positive, project
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.privacy.plan import NoisePlan
from sottovoce.problem.problem import Problem


def noise(problem: Problem, sigma_g: float, entries: dict[tuple[int, int], float]) -> NoisePlan:
    """A plan with this noise and no promise."""
    pairs = np.array(list(entries), dtype=np.int64).reshape(-1, 2)
    per_agent = np.ones(problem.agents)
    return NoisePlan(
        cloud=problem.cloud,
        method="joint",
        adjacency="trajectory",
        rounds=10**9,
        epsilon=per_agent,
        delta=per_agent,
        radius=per_agent,
        sigma_g=np.full(problem.rows, float(sigma_g)),
        gradient_rows=pairs[:, 0],
        gradient_columns=pairs[:, 1],
        gradient_sigma=np.array(list(entries.values()), dtype=np.float64),
        domain=problem.cloud.groups,
        gdp_mu=per_agent,
        certified=False,
    )


def published(problem: Problem) -> NoisePlan:
    """The paper's noise: all four rows of agents 3, 5, 6 and 7, structural zeros included."""
    sigma_sq = {2: 12.3406, 4: 12.3406, 5: 30900.7580, 6: 30900.7580}
    entries = {(j, i): v**0.5 for i, v in sigma_sq.items() for j in range(4)}
    return noise(problem, 688971.6017**0.5, entries)


def everywhere(problem: Problem) -> NoisePlan:
    """Noise on every row of g and on every third gradient entry, out of order."""
    entries = {
        (j, i): 0.1 + 0.01 * i
        for i in reversed(range(problem.size))
        for j in range(problem.rows)
        if (i + j) % 3 == 0
    }
    return noise(problem, 0.5, entries)


def written_out(problem: Problem) -> tuple[list[sp.Symbol], sp.Expr, list[sp.Expr]]:
    """All states as symbols, the objective and the rows of g: a fleet agent by agent."""
    symbols: list[sp.Symbol] = []
    own: dict[str, list[dict[Any, Any]]] = {}
    objective = sp.S.Zero
    for group, f in zip(problem.groups, problem.objectives, strict=True):
        own[group.name] = []
        for i in range(group.count):
            fresh = [sp.Dummy() for _ in group.symbols]
            values = {s: sp.Float(a[i]) for s, a in group.parameters.items()}
            own[group.name].append(dict(zip(group.symbols, fresh, strict=True)) | values)
            symbols += fresh
            objective += f.xreplace(own[group.name][i])
    named = {s: t for g in problem.groups if g.count == 1 for s, t in own[g.name][0].items()}
    rows: list[sp.Expr] = []
    for family in problem.constraints:
        exprs = [sp.Float(c) for c in family.offset]
        for r, e in enumerate(family.rest):
            exprs[r] += e.xreplace(named)
        for part in family.sums:
            w = part.weights
            w = np.ones((1, part.group.count)) if w is None else w
            w = w.toarray() if hasattr(w, "toarray") else w
            for (r, i), weight in np.ndenumerate(w):
                for t, h in enumerate(part.terms):
                    term = h.xreplace(own[part.group.name][i])
                    exprs[r * len(part.terms) + t] += float(weight) * term
        rows += exprs
    return symbols, objective, rows


class Reference:
    """Rounds of Algorithm 1 with the noise handed in."""

    def __init__(self, problem: Problem, plan: NoisePlan | None) -> None:
        symbols, f, g = written_out(problem)
        self.f, self.g, self.df, self.dg = (
            sp.lambdify([symbols], e, modules="numpy")
            for e in (f, g, [f.diff(s) for s in symbols], [[h.diff(s) for s in symbols] for h in g])
        )
        self.plan = plan or noise(problem, 0.0, {})
        self.noisy = np.flatnonzero(self.plan.sigma_g > 0)
        self.lower = np.concatenate([group.lower.ravel() for group in self.plan.domain])
        self.upper = np.concatenate([group.upper.ravel() for group in self.plan.domain])

    def run(self, algorithm: Tikhonov, x: Any, mu: Any, z: Any) -> tuple[Any, Any]:
        p = self.plan
        for k, normals in enumerate(z, start=1):
            gamma = algorithm.gamma_bar * k**-algorithm.c1
            alpha = algorithm.alpha_bar * k**-algorithm.c2
            y = np.array(self.g(x), dtype=float)
            Y = np.array(self.dg(x), dtype=float)
            y[self.noisy] += p.sigma_g[self.noisy] * normals[: self.noisy.size]
            Y[p.gradient_rows, p.gradient_columns] += p.gradient_sigma * normals[self.noisy.size :]
            step = np.array(self.df(x), dtype=float) + Y.T @ mu + alpha * x
            x = np.clip(x - gamma * step, self.lower, self.upper)
            mu = np.maximum(mu + gamma * (y - alpha * mu), 0.0)
        return x, mu


def two_agent_step(x: Any, slope: Any, gamma: Any, lower: Any, upper: Any) -> Any:
    return project(x - gamma * slope, lower, upper)


def two_cloud_step(mu: Any, y_g: Any, eta: Any) -> Any:
    return positive(mu + eta * y_g)


@dataclass(frozen=True, kw_only=True)
class TwoSteps:
    """Projected gradient steps of constant size, one for each side, without regularisation."""

    gamma: float
    eta: float
    scalars: ClassVar[tuple[str, ...]] = ("gamma", "eta")
    agent_step = staticmethod(two_agent_step)
    cloud_step = staticmethod(two_cloud_step)

    def schedule(self, k: Any) -> Any:
        return np.tile([self.gamma, self.eta], (np.size(k), 1))
