"""Both algorithms in plain Python, and a plan without the privacy: what the engine is held against.

``PriceRounds`` takes the very functions that the engine compiles, uncompiled, and adds up in the
engine's order, so that not a bit may differ. ``GradientSteps`` is written from the paper, in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sottovoce.algorithm import projection
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.round import agent_round, vector_round
from sottovoce.algorithm.steering import steering
from sottovoce.algorithm.steps import positive, project
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.certify.contributions import sum_ranges
from sottovoce.engine.agent_text import slope_of, values_of
from sottovoce.engine.formulas import Fleet, local_fleet, part_of
from sottovoce.engine.home_agent import HomeAgent
from sottovoce.engine.home_shape import shape_of
from sottovoce.engine.region_text import phi_function
from sottovoce.engine.slopes import used_parameters
from sottovoce.engine.turn import public_rows
from sottovoce.engine.vectors import WIDTH
from sottovoce.engine.weight_text import kind_of
from sottovoce.formula.canonical import add, multiply, substitute
from sottovoce.formula.derive import derivative
from sottovoce.formula.expression import ZERO, Expression, number, symbol
from sottovoce.privacy.answer import weights_norm
from sottovoce.privacy.feasibility import Feasible
from sottovoce.privacy.hide import Trajectory
from sottovoce.privacy.margins import Noise, feasibility
from sottovoce.privacy.noise_plan import NoisePlan, Output
from sottovoce.problem.problem import Problem
from sottovoce.problem.terms import column_of
from sympy_oracle import function_of


def noise(
    problem: Problem, sigma: float, entries: dict[tuple[int, int], float] | None = None
) -> NoisePlan:
    """A plan with this noise and no promise; of values and gradients if there are entries."""
    per_agent, paper = np.ones(problem.agents), entries is not None
    rows = problem.rows if paper else problem.cloud.sums.count
    kind: Any = "value" if paper else "sum"
    outputs = [
        Output(name=f"{j}", kind=kind, sigma=sigma, grid=sigma / 2**26, row=j) for j in range(rows)
    ]
    outputs += [
        Output(name=f"{j} {i}", kind="gradient", sigma=s, grid=s / 2**26, row=j, column=i)
        for (j, i), s in (entries or {}).items()
    ]
    return NoisePlan(
        cloud=problem.cloud,
        method="paper" if paper else "joint",
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
    spread = Noise(
        sigma=share * plan.sigma * weights_norm(rounds),
        rounding=np.zeros(sums.count),
        ranges=np.array(sum_ranges(sums, plan.domain)),
        rounds=rounds,
    )
    kept = feasibility(sums, spread, Feasible(probability=0.95))
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
        for k, normals in enumerate(z, start=1):
            gamma = algorithm.gamma_bar * k**-algorithm.c1
            alpha = algorithm.alpha_bar * k**-algorithm.c2
            y = np.array(self.g(x), dtype=float) + self.sigma_g * normals[: mu.size]
            Y = np.array(self.dg(x), dtype=float)
            if self.entries:
                Y[rows, columns] += sigma * normals[mu.size :]
            step = np.array(self.df(x), dtype=float) + Y.T @ mu + alpha * x
            x = np.clip(x - gamma * step, self.lower, self.upper)
            mu = np.maximum(mu + gamma * (y - alpha * mu), 0.0)
        return x, mu


class Home:
    """All agents of one group: their contributions and their rounds."""

    def __init__(self, problem: Problem, plan: NoisePlan | None, index: int) -> None:
        sums = problem.cloud.sums
        self.fleet: Fleet = local_fleet(
            problem.groups, sums.families, index, problem.objectives[index]
        )
        self.group = (problem.groups if plan is None else plan.domain)[index]
        self.grid = None if plan is None else np.array([o.grid or 1.0 for o in plan.outputs])
        self.slope = slope_of(self.fleet, objective=True)
        self.pull = slope_of(self.fleet, objective=False)
        self.terms = [values_of(self.fleet, part.terms) for part in self.fleet.sums]

    def numbers(self, i: int, x: Any) -> list[float]:
        parameters = problem_parameters(self.fleet)
        return [*np.ravel(x), *(values[i] for values in parameters)]

    def prices(self, i: int, price: Any) -> list[float]:
        """``m_t = sum_r lambda[r, t] W[r, i]``, added up row by row."""
        found = []
        for part in self.fleet.sums:
            terms = len(part.terms)
            for t in range(terms):
                if kind_of(part) == "plain":
                    found.append(price[part.row + t])
                    continue
                total = 0.0
                for r, w in enumerate(column_of(part.weights, i)):
                    if kind_of(part) == "dense" or w != 0.0:
                        total += price[part.row + r * terms + t] * w
                found.append(total)
        return found

    def move(self, i: int, x: Any, price: Any, k: int, theta: float) -> Any:
        own, m = self.numbers(i, x)[x.size :], self.prices(i, price)
        lower, upper = self.group.lower[i], self.group.upper[i]
        if x.size == 1:
            slope, pull = (lambda c, v, f=f: f(v, *own, *m)[0] for f in (self.slope, self.pull))
            return np.array([agent_round(slope, pull, None, x[0], lower[0], upper[0], k, theta)])
        if (shape := shape_of(self.fleet)) is not None:
            alone = part_of(self.fleet, np.array([i]))
            return HomeAgent(alone, shape, lower, upper).round(x, m, k, theta)
        slopes, pulls = (
            lambda c, v, f=f: np.array(f(*v, *own, *m)) for f in (self.slope, self.pull)
        )
        return vector_round(slopes, pulls, None, x, lower, upper, k, theta)

    def add(self, x: Any, sums: Any) -> None:
        """Add contributions as a kernel does: lane by lane, then over the lanes."""
        for part, terms in zip(self.fleet.sums, self.terms, strict=True):
            count, rows = len(part.terms), 1
            if part.weights is not None:
                rows = part.weights.shape[0]
            lanes = np.zeros((rows * count, WIDTH))
            for i in range(self.fleet.group.count):
                weights = np.ones(1) if part.weights is None else column_of(part.weights, i)
                for t, h in enumerate(terms(*self.numbers(i, x[i]))):
                    for r, w in enumerate(weights):
                        row = part.row + r * count + t
                        value = h if part.weights is None else h * w
                        if self.grid is not None:
                            value = np.rint(value / self.grid[row])
                        if kind_of(part) == "sparse":
                            sums[row] += value
                        else:
                            lanes[r * count + t, i % WIDTH] += value
            for at, lane in np.ndindex(lanes.shape):
                sums[part.row + at] += lanes[at, lane]


def problem_parameters(fleet: Fleet) -> list[Any]:
    return list(used_parameters(fleet).values())


class PriceRounds:
    """Rounds of the default algorithm with the noise handed in, uncompiled."""

    def __init__(self, problem: Problem, plan: NoisePlan | None) -> None:
        self.problem, self.plan = problem, plan
        self.homes = [Home(problem, plan, i) for i in range(len(problem.groups))]
        self.sigma = np.zeros(problem.cloud.sums.count) if plan is None else plan.sigma
        self.released: list[Any] = []

    def sums(self, x: list[Any]) -> Any:
        """Fleets first, then agents stated one by one, as the engine adds them up."""
        total = np.zeros(self.sigma.size)
        order = sorted(range(len(x)), key=lambda i: self.homes[i].fleet.group.count == 1)
        for i in order:
            self.homes[i].add(x[i], total)
        grid = self.homes[0].grid
        return total if grid is None else total * grid

    def run(self, z: Any) -> dict[str, Any]:
        algorithm, sums = DualAveraging(), self.problem.cloud.sums
        domain = self.problem.groups if self.plan is None else self.plan.domain
        kept = None if self.plan is None else self.plan.feasible
        target = None if kept is None else kept.target
        rows = public_rows(sums, domain, None if self.plan is None else self.plan.sigma, target)
        phi = phi_function(sums.regions)
        x = [
            np.clip(start, g.lower, g.upper)
            for start, g in zip(self.problem.start, domain, strict=True)
        ]
        price, memory = np.zeros(sums.count), np.zeros(algorithm.memory_size(sums.count))
        answer, cost = [own.copy() for own in x], np.zeros(sums.count)
        shares = algorithm.share(np.arange(1, len(z) + 1), len(z), noisy=self.plan is not None)
        averaged, work = np.zeros(sums.count), np.empty(projection.project_work(sums.count))

        def average(share: float) -> None:
            for mean, own in zip([*answer, cost], [*x, price], strict=True):
                mean += share * (own - mean)

        with np.errstate(all="ignore"):
            for k, normals in enumerate(z, start=1):
                y = self.sums(x) + self.sigma * normals
                self.released.append(y)
                seen = y.copy()
                if self.plan is not None:
                    average(shares[k - 1])
                    averaged += shares[k - 1] * (y - averaged)
                if kept is not None:
                    inside = np.empty(sums.count)
                    ones = np.ones(sums.count)
                    projection.project(averaged, ones, rows.public, phi, inside, work)
                    seen = y + float(steering(k, len(z))[0]) * (averaged - inside)
                fine = algorithm.cloud_round(k, seen, price, memory, rows, algorithm.constants, phi)
                assert fine
                for home, own in zip(self.homes, x, strict=True):
                    for i in range(own.shape[0]):
                        own[i] = home.move(i, own[i], price, k, algorithm.theta)
                if self.plan is None:
                    average(1.0)
        flat = {"x": answer, "last_x": x}
        found = {name: np.concatenate([v.ravel() for v in own]) for name, own in flat.items()}
        found |= {} if self.plan is None else {"released": averaged}
        return found | {"price": cost, "last_price": price}


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

    def schedule(self, k: Any, rounds: int) -> Any:
        return np.tile([self.gamma, self.eta], (np.size(k), 1))
