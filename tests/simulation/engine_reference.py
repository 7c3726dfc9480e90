"""Both algorithms round by round, and a plan without the privacy: what the engine is held against.

``PriceRounds`` is a cloud and every agent by itself, as on the network, of which with a grid not a
bit may differ. ``GradientSteps`` is written from the paper, in NumPy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sottovoce.algorithm.dual_averaging import DualAveraging, steering
from sottovoce.algorithm.public_sum import public_sums
from sottovoce.certificate.contributions import sum_ranges
from sottovoce.formula.canonical import add, multiply, substitute
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import ZERO, Expression, number, symbol
from sottovoce.kernels.cloud_kernel import CloudKernel
from sottovoce.kernels.fleet_kernel import FleetKernel, FleetStates
from sottovoce.kernels.run_kernel import normals, stream_seed
from sottovoce.paper.tikhonov import RELEASE, Tikhonov
from sottovoce.privacy.adjacency import Trajectory
from sottovoce.privacy.averaging import weights_norm
from sottovoce.privacy.feasibility import AveragedNoise
from sottovoce.privacy.margins import feasibility
from sottovoce.privacy.noise_plan import NoisePlan, Output
from sottovoce.problem.fleets import agent_fleet
from sottovoce.problem.groups import Group
from sottovoce.problem.problem import Problem
from sympy_oracle import function_of


def noise(
    problem: Problem, sigma: float, entries: dict[tuple[int, int], float] | None = None
) -> NoisePlan:
    """A plan with this noise and no promise; of values and gradients if there are entries."""
    per_agent, paper = np.ones(problem.agents), entries is not None
    rows = problem.rows if paper else problem.cloud.sums.count
    kind: Any = "value" if paper else "sum"
    outputs = [Output(name=f"{j}", kind=kind, sigma=sigma, row=j) for j in range(rows)]
    outputs += [
        Output(name=f"{j} {i}", kind="gradient", sigma=s, row=j, column=i)
        for (j, i), s in (entries or {}).items()
    ]
    return NoisePlan(
        cloud=problem.cloud,
        release=RELEASE if paper else None,
        hide=Trajectory(radius=1.0, rounds=10**9),
        epsilon=per_agent,
        delta=per_agent,
        outputs=tuple(outputs),
        domain=problem.cloud.groups,
        gdp_mu=per_agent,
        gdp_rounding=0.0,
        certified=False,
    )


def with_margins(plan: NoisePlan, rounds: int, share: float) -> NoisePlan:
    """The same plan for so many rounds, with margins as for a share of its noise."""
    sums = plan.cloud.sums
    spread = AveragedNoise(
        sigma=share * plan.sigma * weights_norm(rounds),
        rounding=np.zeros(sums.count),
        ranges=np.array(sum_ranges(sums, plan.domain)),
        rounds=rounds,
    )
    kept = feasibility(sums, spread, 0.95)
    return replace(plan, hide=Trajectory(radius=1.0, rounds=rounds), feasible=kept)


def published(problem: Problem) -> NoisePlan:
    """The paper's noise: all four rows of agents 3, 5, 6 and 7, structural zeros included."""
    sigma_sq = {2: 12.3406, 4: 12.3406, 5: 30900.7580, 6: 30900.7580}
    entries = {(j, i): v**0.5 for i, v in sigma_sq.items() for j in range(4)}
    return noise(problem, 688971.6017**0.5, entries)


def everywhere(problem: Problem) -> NoisePlan:
    """Noise on every row of g and on every third gradient entry of named agents, out of order."""
    if any(group.count > 1 for group in problem.groups):
        return noise(problem, 0.5, {})
    entries = {
        (j, i): 0.1 + 0.01 * i
        for i in reversed(range(problem.size))
        for j in range(problem.rows)
        if (i + j) % 3 == 0
    }
    return noise(problem, 0.5, entries)


def written_out(problem: Problem) -> tuple[list[Expression], Expression, list[Expression]]:
    """All states as symbols, the objective and the rows of g: a fleet agent by agent."""
    symbols: list[Expression] = []
    own: dict[str, list[dict[Any, Any]]] = {}
    objective = ZERO
    for group, f in zip(problem.groups, problem.objectives, strict=True):
        own[group.name] = []
        for i in range(group.count):
            fresh = [symbol(f"{s.name} of {i}") for s in group.symbols]
            values = {s: number(a[i]) for s, a in group.parameters.items()}
            own[group.name].append(dict(zip(group.symbols, fresh, strict=True)) | values)
            symbols += fresh
            objective = add(objective, substitute(f, own[group.name][i]))
    named = {s: t for g in problem.groups if g.count == 1 for s, t in own[g.name][0].items()}
    rows: list[Expression] = []
    for family in problem.constraints:
        exprs = [number(c) for c in family.offset]
        for r, e in enumerate(family.named):
            exprs[r] = add(exprs[r], substitute(e, named))
        for part in family.sums:
            w = part.weights
            w = np.ones((1, part.group.count)) if w is None else w
            w = w.toarray() if hasattr(w, "toarray") else w
            for (r, i), weight in np.ndenumerate(w):
                for t, h in enumerate(part.terms):
                    term = multiply(number(weight), substitute(h, own[part.group.name][i]))
                    at = r * len(part.terms) + t
                    exprs[at] = add(exprs[at], term)
        rows += exprs
    return symbols, objective, rows


class Written:
    """A problem's formulas as NumPy functions of all states."""

    def __init__(self, problem: Problem) -> None:
        symbols, f, g = written_out(problem)
        self.f, self.g, self.df, self.dg = (
            function_of(symbols, e)
            for e in (
                f,
                g,
                [derivative(f, s) for s in symbols],
                [[derivative(h, s) for s in symbols] for h in g],
            )
        )


class GradientSteps(Written):
    """Rounds of Algorithm 1 with the noise handed in."""

    def __init__(self, problem: Problem, plan: NoisePlan) -> None:
        super().__init__(problem)
        self.sigma_g = np.array([o.sigma for o in plan.outputs if o.column is None])
        self.entries = [o for o in plan.outputs if o.column is not None]
        self.lower = np.concatenate([group.lower.ravel() for group in plan.domain])
        self.upper = np.concatenate([group.upper.ravel() for group in plan.domain])

    def run(self, algorithm: Tikhonov, x: Any, mu: Any, z: Any) -> tuple[Any, Any]:
        rows, columns = ([getattr(o, side) for o in self.entries] for side in ("row", "column"))
        sigma = np.array([o.sigma for o in self.entries])
        for k, own in enumerate(z, start=1):
            gamma = algorithm.gamma_bar * k**-algorithm.c1
            alpha = algorithm.alpha_bar * k**-algorithm.c2
            y = np.array(self.g(x), dtype=float) + self.sigma_g * own[: mu.size]
            Y = np.array(self.dg(x), dtype=float)
            if self.entries:
                Y[rows, columns] += sigma * own[mu.size :]
            step = np.array(self.df(x), dtype=float) + Y.T @ mu + alpha * x
            x = np.clip(x - gamma * step, self.lower, self.upper)
            mu = np.maximum(mu + gamma * (y - alpha * mu), 0.0)
        return x, mu


def drawn(seed: int, run: int, *, rounds: int, count: int) -> Any:
    return normals(stream_seed(seed, run), rounds, count)


class PriceRounds:
    """Rounds of the default algorithm with the noise handed in: a cloud, and every agent alone."""

    def __init__(self, problem: Problem, plan: NoisePlan | None) -> None:
        self.problem, self.plan = problem, plan
        domain = problem.groups if plan is None else plan.domain
        self.sigma = np.zeros(problem.cloud.sums.count) if plan is None else plan.sigma
        self.grid = None if plan is None else np.array([o.grid or 1.0 for o in plan.outputs])
        target = None if plan is None or plan.feasible is None else plan.feasible.target
        known = None if plan is None else plan.sigma
        public = public_sums(problem.cloud.sums, domain, known, target)
        self.cloud = CloudKernel(public, DualAveraging(), planned=plan is not None)
        self.agents = [
            agent
            for index, group in enumerate(domain)
            for agent in alone(problem, index, group, problem.start[index])
        ]
        self.released: list[Any] = []

    def run(self, z: Any) -> dict[str, Any]:
        algorithm, count, rounds = DualAveraging(), self.sigma.size, len(z)
        planned = self.plan is not None
        shares = algorithm.share(np.arange(1, rounds + 1), rounds, noisy=planned)
        steers = np.zeros(rounds)
        if self.plan is not None and self.plan.feasible is not None:
            steers = steering(np.arange(1, rounds + 1), rounds)
        sums = sum(agent.contributions(count, self.grid) for agent in self.agents)
        for k, noisy in enumerate(z, start=1):
            y = (sums if self.grid is None else sums * self.grid) + self.sigma * noisy
            self.released.append(y)
            share = float(shares[k - 1])
            assert self.cloud.round(k, y, share=share, steer=float(steers[k - 1]))
            price = self.cloud.price
            theta = algorithm.theta if planned else float(algorithm.noise_free_theta(k))
            sums = sum(
                agent.round(k, price, theta=theta, share=share, grid=self.grid)
                for agent in self.agents
            )
        found = {
            "x": np.concatenate([agent.answer.ravel() for agent in self.agents]),
            "last_x": np.concatenate([agent.states.ravel() for agent in self.agents]),
        }
        found |= {"released": self.cloud.released} if planned else {}
        return found | {"price": self.cloud.answer, "last_price": self.cloud.price}


def alone(problem: Problem, index: int, group: Group, start: Any) -> list[FleetStates]:
    """Every agent of a group as a fleet of one."""
    families, objective = problem.cloud.sums.families, problem.objectives[index]
    fleet = agent_fleet(problem.groups, families, index, objective, problem.local[index])
    found = []
    for i in range(group.count):
        own = fleet.some(np.array([i]))
        kernel = FleetKernel(own, group.lower[i : i + 1], group.upper[i : i + 1])
        found.append(FleetStates(kernel, start[i : i + 1]))
    return found
