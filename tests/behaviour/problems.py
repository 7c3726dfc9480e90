"""The problems of the behaviour suite, stated through ``doors`` alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import doors as d
import numpy as np
import scipy.sparse as sparse

import sottovoce as sv


def readme() -> d.Problem:
    """The example of the README."""
    x = d.agents(3, lower=-10, upper=10)
    return d.state_problem(
        x,
        [(x[0] - 9) ** 2, (x[1] + 4) ** 4, (x[2] - 1) ** 2],
        [x[0] + x[1] + x[2] <= 3, x[1] ** 2 + x[2] ** 2 <= 20],
    )


def bakeries(*, hard: bool = False) -> d.Problem:
    """The tutorial's: three bakeries share a connection of 30 kW."""
    x = d.agents(3, lower=0, upper=20, names=["north", "south", "west"])
    row = sum(x) <= 30
    return d.state_problem(
        x,
        [(x[0] - 16) ** 2, 2 * (x[1] - 12) ** 2, 4 * (x[2] - 10) ** 2],
        {"connection": sv.hard(row) if hard else row},
    )


def valves(bound: float = 10) -> d.Problem:
    """The one of the page about certificates."""
    y = d.agents(2, lower=-bound, upper=bound, names=["pump", "valve"])
    return d.state_problem(
        y, [(y[0] - 3) ** 2, (y[1] + 1) ** 4], {"pressure": y[0] ** 2 + y[1] <= 9}
    )


def two_valleys() -> d.Problem:
    """An objective that is not convex."""
    y = d.agents(2, lower=-10, upper=10, names=["pump", "valve"])
    return d.state_problem(
        y, [(y[0] - 3) ** 2, (y[1] ** 2 - 4) ** 2], {"pressure": y[0] ** 2 + y[1] <= 9}
    )


def mixed() -> d.Problem:
    """Constraints that mix agents: a disc, a soft maximum, an equality."""
    x = d.agents(3, lower=-2, upper=2, names=["pump", "valve", "tank"])
    pump, valve, tank = x
    return d.state_problem(
        x,
        [(pump - 1) ** 2, (valve + 1) ** 2, (tank - 2) ** 2],
        {
            "pressure": (pump + 10 * valve) ** 2 + tank**2 <= 30,
            "level": sv.logsumexp(pump, tank) <= 1.5,
            "balance": d.equal(pump + valve + tank, 0.5),
        },
    )


def nonsmooth() -> d.Problem:
    """Objectives and constraints without derivatives at some points."""
    x = d.agents(2, lower=-5, upper=5)
    return d.state_problem(
        x,
        [abs(x[0] - 2) + 0.1 * x[0] ** 2, sv.maximum(-x[1], 2 * x[1] - 3) + 0.1 * x[1] ** 2],
        [abs(x[0]) + sv.pos(x[1]) <= 1.5, abs(x[0] - x[1]) <= 2],
    )


def flows() -> d.Problem:
    """Lines with limits in both directions, and a balance, written with a matrix."""
    x = d.agents(3, lower=0, upper=10)
    shares = np.array([[0.5, -0.2, 0.1], [0.3, 0.3, -0.6]])
    return d.state_problem(
        x,
        [(s - 4) ** 2 for s in x],
        [abs(shares @ x) <= [1.5, 2], d.equal(np.ones(3) @ x, 9)],
    )


def coded() -> d.Problem:
    """An agent whose objective is code."""
    x = d.agents(3, lower=0, upper=10, names=["press", "kiln", "dryer"])
    code = sv.Objective(gradient=lambda s: np.sinh(s - 4), value=lambda s: float(np.cosh(s[0] - 4)))
    return d.state_problem(x, [code, (x[1] - 3) ** 2, (x[2] - 5) ** 2], [sum(x) <= 6])


def small_fleet(n: int = 40, *, seed: int = 3) -> d.Problem:
    """Chargers of three hours with a private need, a private window and a network."""
    rng = np.random.default_rng(seed)
    need = rng.uniform(3.0, 9.0, n)
    window = np.where(rng.uniform(size=(n, 3)) < 0.8, 8.0, 2.0)
    ev = d.fleet(
        n, dim=3, lower=0.0, upper=8.0, name="ev", parameters={"need": need, "window": window}
    )
    r = d.state_of(ev)
    return d.state_problem(
        ev,
        sum(c * s + 0.05 * s**2 for c, s in zip((0.3, 0.2, 0.1), r, strict=True)),
        {"network": d.total(ev, r) <= np.full(3, 2.3 * n)},
        local=[d.equal(sum(r), d.parameter(ev, "need")), r <= d.parameter(ev, "window")],
    )


def fleets_and_agents() -> d.Problem:
    """A fleet before agents, columns of all kinds, weights dense and sparse, an equality."""
    rng = np.random.default_rng(1)
    ev = d.fleet(
        6, name="ev", lower=0, upper=np.arange(1, 7),
        parameters={"w": rng.normal(size=6) ** 2, "need": rng.normal(size=(6, 2))},
    )  # fmt: skip
    x = d.agents(2, lower=0, upper=1, names=["a", "b"])
    heat = d.fleet(3, name="heat", dim=2, lower=-1, upper=1)
    state, warm = d.state_of(ev), d.state_of(heat)
    few = sparse.random_array((3, 6), density=0.5, rng=rng)
    return d.state_problem(
        [ev, x, heat],
        [(state - d.parameter(ev, "need")[0]) ** 2, x[0] ** 2, x[1] ** 2, sum(warm**2)],
        {
            "one": d.total(ev, d.parameter(ev, "w") * state) + (x[0] - x[1]) <= 3,
            "sparse/": d.total(ev, weights=few) <= [1, 2, 3.5],
            "dense": d.total(ev, weights=rng.normal(size=(2, 6))) >= 0.25,
            "both": d.equal(d.total(ev) + d.total(heat, warm[0]) + x[1], 1),
            "terms": d.total(heat, [warm[0] ** 2, warm[1]]) <= 2,
            "plain": x[0] + x[1] <= 1,
        },
        start=[rng.uniform(size=(6, 1)), None, None, None],
        privacy={"epsilon": 1, "delta": 1e-3},
    )


def matrices(share: float, dim: int) -> d.Problem:
    """Rows ``W @ x`` of 60 agents; of the weights of all but the first component, so many."""
    n, rng = 60, np.random.default_rng(0)
    x = d.agents(n, lower=-1, upper=1, dim=dim)
    W = rng.uniform(size=(7, n * dim)) * (rng.random((7, n * dim)) < share)
    W[:, 0] = 1 / 3
    return d.state_problem(
        x,
        [sum(np.ravel(s) ** 2) for s in x],
        {
            "rows": W @ x <= 1,
            "balance": d.equal(sparse.csr_array(W[:1]) @ x, 0.1),
            "first": W[1:2] @ x <= 0.3,
        },
    )


# Six problems of the field, small


def rates() -> d.Problem:
    """Six flows with logarithmic utilities over four links."""
    passes = np.array(
        [[1, 1, 0, 0, 1, 0], [0, 1, 1, 0, 0, 1], [0, 0, 1, 1, 1, 0], [1, 0, 0, 1, 0, 1]], float
    )
    worth = np.array([0.6, 1.4, 1.0, 2.0, 0.8, 1.2])
    flow = d.fleet(6, lower=0.05, upper=4.0, name="flow", parameters={"worth": worth})
    return d.state_problem(
        flow,
        -d.parameter(flow, "worth") * sv.log(d.state_of(flow)),
        {"links": d.total(flow, d.state_of(flow), weights=passes) <= [5.0, 4.0, 6.0, 3.0]},
    )


def dispatch() -> d.Problem:
    """Four generators, a balance and two lines with limits in both directions."""
    p = d.agents(4, lower=0, upper=[80, 80, 50, 55], names=["g1", "g2", "g22", "g27"])
    cost = [(0.02, 2.0), (0.0175, 1.75), (0.0625, 1.0), (0.00834, 3.25)]
    shares = [[0.4, -0.3, 0.1, 0.2], [0.1, 0.2, -0.5, 0.3]]
    return d.state_problem(
        p,
        [a * s**2 + b * s for s, (a, b) in zip(p, cost, strict=True)],
        {
            "balance": d.equal(sum(p), 170.0),
            "west": abs(sum(a * s for a, s in zip(shares[0], p, strict=True))) <= 8,
            "east": abs(sum(a * s for a, s in zip(shares[1], p, strict=True))) <= 20,
        },
    )


def ev_fleet(cars: int = 60) -> d.Problem:
    """Cars with a private need inside private windows."""
    rng = np.random.default_rng(0)
    connector = rng.choice([3.7, 7.4, 11.0], cars)
    hour = np.arange(4)
    come, leave = rng.integers(0, 2, cars), rng.integers(3, 5, cars)
    parked = (hour >= come[:, None]) & (hour < leave[:, None])
    need = np.minimum(rng.lognormal(np.log(9.0), 0.5, cars), 0.9 * connector * (leave - come))
    ev = d.fleet(
        cars, dim=4, lower=0.0, upper=11.0, name="ev",
        parameters={"need": need, "window": connector[:, None] * parked},
    )  # fmt: skip
    x = d.state_of(ev)
    return d.state_problem(
        ev,
        sum(p * s + 0.002 * s**2 for p, s in zip((0.10, 0.09, 0.08, 0.07), x, strict=True)),
        {"network": d.total(ev, x) <= np.full(4, 3.4 * cars)},
        local=[d.equal(sum(x), d.parameter(ev, "need")), x <= d.parameter(ev, "window")],
    )


def robots() -> d.Problem:
    """Three robots in a chain that keep within 40 m of their neighbours."""
    wishes = [(-60.0, 20.0), (-5.0, -25.0), (50.0, 30.0)]
    r = d.agents(3, dim=2, lower=-100, upper=100, names=["ant", "bee", "cat"])
    return d.state_problem(
        r,
        [0.01 * ((s[0] - a) ** 2 + (s[1] - b) ** 2) for s, (a, b) in zip(r, wishes, strict=True)],
        [(p[0] - q[0]) ** 2 + (p[1] - q[1]) ** 2 <= 40.0**2 for p, q in pairwise(r)],
    )


def regression(n: int = 60) -> d.Problem:
    """Clinics that fit a model each, with one budget for all effects."""
    rng = np.random.default_rng(0)
    dose = rng.normal(size=(n, 40))
    effect = rng.choice([0.0, 0.0, 0.0, 1.0], size=n)
    outcome = dose * effect[:, None] + 2.0 * rng.normal(size=(n, 40))
    moments = {"square": (dose**2).mean(axis=1), "product": (dose * outcome).mean(axis=1)}
    clinic = d.fleet(n, lower=-1.5, upper=1.5, name="clinic", parameters=moments)
    t = d.state_of(clinic)
    return d.state_problem(
        clinic,
        d.parameter(clinic, "square") * t**2 / 2 - d.parameter(clinic, "product") * t,
        {"budget": d.total(clinic, abs(t)) <= 0.25 * n},
    )


def shedding(buildings: int = 60) -> d.Problem:
    """Buildings that shed load, each within an energy of its own."""
    rng = np.random.default_rng(0)
    building = d.fleet(
        buildings, dim=4, lower=0.0, upper=40.0, name="building",
        parameters={
            "discomfort": rng.lognormal(0.0, 0.6, buildings),
            "energy": rng.uniform(30.0, 100.0, buildings),
        },
    )  # fmt: skip
    shed = d.state_of(building)
    return d.state_problem(
        building,
        d.parameter(building, "discomfort") * sum(0.01 * s**2 for s in shed),
        {"asked": d.total(building, shed) >= np.array([9.0, 12.0, 12.0, 7.0]) * buildings},
        local=[sum(shed) <= d.parameter(building, "energy")],
    )


FIELD = {
    "rates": rates,
    "dispatch": dispatch,
    "ev-fleet": ev_fleet,
    "robots": robots,
    "regression": regression,
    "load-shedding": shedding,
}

# Folders


BAKERIES_TOML = """\
[[agents]]
name = "north"
lower = 0
upper = 20          # kW

[[agents]]
name = "south"
lower = 0
upper = 20

[[agents]]
name = "west"
lower = 0
upper = 20

[[constraints]]
name = "connection"
expression = "north + south + west <= 30"

[privacy]
epsilon = 1
delta = 0.01
hide = "trajectory"
radius = 2
rounds = 500

[schedule]
rounds = 500
"""

BAKERIES = {
    "problem.toml": BAKERIES_TOML,
    "agents/1.toml": 'agent = "north"\nobjective = "(north - 16)**2"\n',
    "agents/2.toml": 'agent = "south"\nobjective = "2*(south - 12)**2"\n',
    "agents/3.toml": 'agent = "west"\nobjective = "4*(west - 10)**2"\n',
}

FLEET = {
    "problem.toml": """\
[[fleet]]
name = "ev"
count = 4
dim = 2
lower = 0
parameters = "ev.csv"

[[constraints]]
name = "transformer"
expression = "total(ev) <= bound"
bound = [12, 10]

[[constraints]]
name = "losses"
expression = "total(loss*ev[1]**2) <= 40"

[[constraints]]
name = "feeders"
expression = "total(ev[1]) <= 9"
weights = { ev = "feeders.csv" }

[privacy]
epsilon = 1
delta = 0.01
radius = 0.5
rounds = 100
""",
    "ev.csv": "loss,upper[1],upper[2]\n1,4,5\n0.5,4,5\n2,6,5\n1,4,3\n",
    "feeders.csv": "row,agent,weight\n1,1,1\n1,2,1\n2,3,1\n2,4,0.5\n",
    "agents/fleet-ev.toml": """\
objective = "hurry*(sum(ev) - need)**2 + 0.1*ev[1]**2 + 0.1*ev[2]**2"
local = ["sum(ev) >= need/2"]
start = 0.5
parameters = "fleet-ev.csv"
""",
    "agents/fleet-ev.csv": "agent,need,hurry\n1,6,1\n2,5,2\n3,8,1\n4,4,0.5\n",
}

MATRIX = {
    "problem.toml": """\
agents = [{lower = 0, upper = 5}, {lower = 0, upper = 5, dim = 2}]

[[constraints]]
name = "lines"
expression = "2*matrix - 1 <= bound"
bound = [7, 9]
matrix = "lines.csv"
""",
    "lines.csv": "x1,x2[1],x2[2]\n1,1,0\n0.5,2,-1\n",
    "agents/1.toml": 'objective = "(x1 - 3)**2"\n',
    "agents/2.toml": 'objective = "(x2[1] - 4)**2 + x2[2]**2"\n',
}


def write_folder(folder: Path, files: dict[str, Any]) -> Path:
    """Write a problem's files; one that is None is left out."""
    for name, text in files.items():
        if text is None:
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text, encoding="utf-8")
    return folder
