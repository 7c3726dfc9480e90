"""Algorithm 1 in plain NumPy, and a plan without the privacy: what the engine is held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import sympy as sp

from sottovoce.algorithm.algorithm import by_name
from sottovoce.algorithm.averaging import Averaging
from sottovoce.algorithm.steps import positive, project
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.certify.gradients import gradient_entries
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
        gradient_slope=np.ones(len(entries)),
        domain=problem.cloud.groups,
        gdp_mu=per_agent,
        gdp_rounding=0.0,
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


def released(problem: Problem) -> NoisePlan:
    """Noise on every row of g and on the gradient entries that agents cannot work out."""
    entries = [e for e in gradient_entries(problem.cloud) if e.kind == "released"]
    return noise(problem, 0.5, {(e.row, e.column): 0.2 + 0.1 * e.column for e in entries})


class Reference:
    """Rounds of both algorithms with the noise handed in."""

    def __init__(self, problem: Problem, plan: NoisePlan | None) -> None:
        symbols, f, g = written_out(problem)
        ends = np.cumsum([group.dim for group in problem.groups for _ in range(group.count)])
        self.agents = np.split(np.arange(problem.size), ends[:-1])
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

    def think(self, algorithm: Averaging, x: Any, mu: Any, z: Any) -> dict[str, Any]:
        """Rounds in which agents minimise at home, each asking the whole problem's formulas."""
        p, rounds = self.plan, len(z)
        coupled = np.isin(np.arange(mu.size), p.gradient_rows).astype(float)
        memory = algorithm.start(mu)
        answer = x
        for k, normals in enumerate(z, start=1):
            numbers = dict(zip(algorithm.scalars, algorithm.schedule(k, rounds)[0], strict=True))
            y = np.array(self.g(x), dtype=float)
            y[self.noisy] += p.sigma_g[self.noisy] * normals[: self.noisy.size]
            Y = np.array(self.dg(x), dtype=float)[p.gradient_rows, p.gradient_columns]
            Y = Y + p.gradient_sigma * normals[self.noisy.size :]
            held = dict(zip(algorithm.memory, memory, strict=True))
            values = {"y_g": y, "sigma": p.sigma_g, "coupled": coupled, **held, **numbers}
            values["largest"] = held["worth"].max()
            mu, *memory = by_name(algorithm.cloud_step, values)
            x = np.concatenate([self._minimum(algorithm, i, x, mu, Y, numbers)
                                for i in self.agents])  # fmt: skip
            answer = answer + numbers["share"] * (x - answer)
        return {"x": answer, "mu": memory[-1], "last_x": x, "last_mu": mu}

    def _minimum(
        self, algorithm: Averaging, own: Any, x: Any, mu: Any, Y: Any, numbers: Any
    ) -> Any:
        p = self.plan
        mine = np.flatnonzero(np.isin(p.gradient_columns, own))
        place = p.gradient_columns[mine] - own[0]
        pull, hold = np.zeros(own.size), np.zeros(own.size)
        np.add.at(pull, place, mu[p.gradient_rows[mine]] * Y[mine])
        np.add.at(hold, place, mu[p.gradient_rows[mine]] * p.gradient_slope[mine])

        def slope(context: Any, v: Any) -> Any:
            moved = x.copy()
            moved[own] = v
            dg = np.array(self.dg(moved), dtype=float)
            dg[p.gradient_rows[mine], p.gradient_columns[mine]] = 0.0
            total = np.array(self.df(moved), dtype=float)[own] + dg[:, own].T @ mu + pull
            return total if own.size > 1 else total[0]

        values = {"slope": slope, "context": None, **numbers}
        arrays = {"x": x[own], "lower": self.lower[own], "upper": self.upper[own],
                  "coupling": hold}  # fmt: skip
        if own.size > 1:
            return by_name(algorithm.vector_step, values | arrays)
        values |= {name: array[0] for name, array in arrays.items()}
        return np.atleast_1d(by_name(algorithm.agent_step, values))


def two_agent_step(x: Any, slope: Any, gamma: Any, lower: Any, upper: Any) -> Any:
    return project(x - gamma * slope, lower, upper)


def two_cloud_step(mu: Any, y_g: Any, eta: Any) -> Any:
    return (positive(mu + eta * y_g),)


@dataclass(frozen=True, kw_only=True)
class TwoSteps:
    """Projected gradient steps of constant size, one for each side, without regularisation."""

    gamma: float
    eta: float
    scalars: ClassVar[tuple[str, ...]] = ("gamma", "eta")
    memory: ClassVar[tuple[str, ...]] = ()
    thinks: ClassVar[bool] = False
    agent_step = staticmethod(two_agent_step)
    vector_step = staticmethod(two_agent_step)
    cloud_step = staticmethod(two_cloud_step)

    def start(self, mu: Any) -> tuple[Any, ...]:
        return ()

    def schedule(self, k: Any, rounds: int) -> Any:
        return np.tile([self.gamma, self.eta], (np.size(k), 1))
