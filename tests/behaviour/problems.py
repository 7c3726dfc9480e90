"""The problems of the behaviour suite, and what is made of them over and over."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate
from sottovoce.privacy.charge import Charge, Protected

_CERTIFICATES: dict[tuple[Any, ...], Any] = {}


def certify(problem: Any, **how: Any) -> Any:
    """The certificate of a problem; the same problem is certified once for the whole suite."""
    if not isinstance(problem, sv.Problem):
        return sv.certify(problem, **how)
    public = problem.cloud
    key = (problem.fingerprint, public.fingerprint, *public.sums.labels, *sorted(how.items()))
    if key not in _CERTIFICATES:
        _CERTIFICATES[key] = sv.certify(problem, **how)
    return _CERTIFICATES[key]


def plan(problem: Any, *, rounds: int = 60, radius: float = 2.0, **changed: Any) -> Any:
    """A plan of a problem, of its public view or of its certificate: (1, 0.01), a trajectory."""
    if not isinstance(problem, Certificate):
        problem = certify(problem)
    hide = sv.Trajectory(radius=radius, rounds=rounds)
    how = sv.paper.plan if changed.pop("method", "joint") == "paper" else sv.plan
    promise: dict[str, Any] = {"epsilon": 1.0, "delta": 0.01, "hide": hide}
    return how(problem, **(promise | changed))


def charge(agent: str, hide: Any, radius: float | None, mu: float) -> Charge:
    return Charge(agent=agent, protected=Protected(hide, radius), mu=mu, allowance=0.0)


def readme(who: Any = 3) -> sv.Problem:
    """The example of the README, of named or counted agents."""
    x = sv.agents(who, lower=-10, upper=10)
    return sv.Problem(
        objectives=[(x[0] - 9) ** 2, (x[1] + 4) ** 4, (x[2] - 1) ** 2],
        constraints=[x[0] + x[1] + x[2] <= 3, x[1] ** 2 + x[2] ** 2 <= 20],
    )


def bakeries(*, hard: bool = False) -> sv.Problem:
    """The tutorial's: three bakeries share a connection of 30 kW."""
    x = sv.agents(["north", "south", "west"], lower=0, upper=20)
    row = sum(x) <= 30
    return sv.Problem(
        objectives=[(x[0] - 16) ** 2, 2 * (x[1] - 12) ** 2, 4 * (x[2] - 10) ** 2],
        constraints={"connection": sv.hard(row) if hard else row},
    )


def valves(*, convex: bool = True) -> sv.Problem:
    """The one of the page about certificates; or the same with an objective of two valleys."""
    y = sv.agents(["pump", "valve"], lower=-10, upper=10)
    wish = (y[1] + 1) ** 4 if convex else (y[1] ** 2 - 4) ** 2
    return sv.Problem(
        objectives=[(y[0] - 3) ** 2, wish], constraints={"pressure": y[0] ** 2 + y[1] <= 9}
    )


def coupled() -> sv.Problem:
    x = sv.agents(2, lower=-1, upper=1)
    return sv.Problem(objectives=list(x**2), constraints=[(x[0] + 10 * x[1]) ** 2 <= 50])


def mixed() -> sv.Problem:
    """Constraints that mix agents: a disc, a soft maximum, an equality."""
    x = sv.agents(["pump", "valve", "tank"], lower=-2, upper=2)
    pump, valve, tank = x
    return sv.Problem(
        objectives=[(pump - 1) ** 2, (valve + 1) ** 2, (tank - 2) ** 2],
        constraints={
            "pressure": (pump + 10 * valve) ** 2 + tank**2 <= 30,
            "level": sv.logsumexp(pump, tank) <= 1.5,
            "balance": pump + valve + tank == 0.5,
        },
    )


def nonsmooth() -> sv.Problem:
    """Objectives and constraints without derivatives at some points."""
    x = sv.agents(2, lower=-5, upper=5)
    return sv.Problem(
        objectives=[
            abs(x[0] - 2) + x[0] ** 2 / 10,
            sv.maximum(-x[1], 2 * x[1] - 3) + x[1] ** 2 / 10,
        ],
        constraints=[abs(x[0]) + sv.pos(x[1]) <= 1.5, abs(x[0] - x[1]) <= 2],
    )


def flows() -> sv.Problem:
    """Lines with limits in both directions, and a balance, written with a matrix."""
    x = sv.agents(3, lower=0, upper=10)
    shares = np.array([[0.5, -0.2, 0.1], [0.3, 0.3, -0.6]])
    return sv.Problem(
        objectives=[(s - 4) ** 2 for s in x],
        constraints=[abs(shares @ x) <= [1.5, 2], np.ones(3) @ x == 9],
    )


def coded() -> sv.Problem:
    x = sv.agents(["press", "kiln", "dryer"], lower=0, upper=10)
    code = sv.Objective(gradient=lambda s: np.sinh(s - 4), value=lambda s: float(np.cosh(s[0] - 4)))
    return sv.Problem(
        objectives=[code, (x[1] - 3) ** 2, (x[2] - 5) ** 2], constraints=[sum(x) <= 6]
    )


def small_fleet(n: int = 40, *, seed: int = 3) -> sv.Problem:
    """Chargers of three hours with a private need, a private window and a network."""
    rng = np.random.default_rng(seed)
    need = rng.uniform(3.0, 9.0, n)
    window = np.where(rng.uniform(size=(n, 3)) < 0.8, 8.0, 2.0)
    ev = sv.agents(
        n, dim=3, lower=0.0, upper=8.0, name="ev", parameters={"need": need, "window": window}
    )
    r = ev.x
    return sv.Problem(
        objectives=np.array([0.3, 0.2, 0.1]) @ r + 0.05 * sv.sum_squares(r),
        constraints={"network": sv.total(r) <= np.full(3, 2.3 * n)},
        local=[sum(r) == ev["need"], r <= ev["window"]],
    )


def fleets_and_agents() -> sv.Problem:
    """A fleet before agents, columns of all kinds, weights dense and sparse, an equality."""
    rng = np.random.default_rng(1)
    own = {"w": rng.normal(size=6) ** 2, "need": rng.normal(size=(6, 2))}
    ev = sv.agents(6, name="ev", lower=0, upper=np.arange(1, 7), parameters=own)
    x = sv.agents(["a", "b"], lower=0, upper=1)
    heat = sv.agents(3, name="heat", dim=9, lower=-1, upper=1)  # NumPy adds up no 9 in order
    state, warm = ev.x, heat.x
    few = sparse.random_array((3, 6), density=0.5, rng=rng)
    return sv.Problem(
        agents=[ev, x, heat],
        objectives=[(state - ev["need"][0]) ** 2, x[0] ** 2, x[1] ** 2, sum(warm**2)],
        constraints={
            "one": sv.total(ev["w"] * state) + (x[0] - x[1]) <= 3,
            "sparse/": sv.total(ev, weights=few) <= [1, 2, 3.5],
            "dense": sv.total(ev, weights=rng.normal(size=(2, 6))) >= 0.25,
            "both": sv.total(ev) + sv.total(warm[0]) + x[1] == 1,
            "terms": sv.total([warm[0] ** 2, warm[1]]) <= 2,
            "plain": x[0] + x[1] <= 1,
        },
        start=[rng.uniform(size=(6, 1)), None, None, None],
        privacy={"epsilon": 1, "delta": 1e-3, "radius": 0.1, "feasible": 0.95, "each_row": True},
    )


def public_sets() -> sv.Problem:
    """Rows, a ball and a bound of one agent each, public and private, named agents and a fleet."""
    x = sv.agents(3, lower=-1.0, upper=2.0, dim=2)
    car = sv.agents(2, dim=2, lower=0, upper=9, name="car", parameters={"size": [3.0, 4.0]})
    A = np.array([[1.0, 0, 2, 0, 0.5, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, -1]])
    return sv.Problem(
        agents=[x, car],
        objectives=[*((s[0] - 1.5) ** 2 + (s[1] - i) ** 2 for i, s in enumerate(x)),
                    sum((r - 2) ** 2 for r in car.x)],
        constraints={
            "A": A @ x <= [1.0, 1.5, 0.2],
            "ball": x[1][0] ** 2 + x[1][1] ** 2 <= 1,
            "bound": x[0][0] >= -0.5,
            "load": sv.total(car.x) <= [3.0, 4.0],
            "battery": car.x[0] + car.x[1] <= car["size"],
        },
        local=[sv.norm(*x[2]) <= 2.5, abs(x[0][0]) <= 1, car.x[0] + car.x[1] >= 1],
    )  # fmt: skip


def matrices(share: float, dim: int) -> sv.Problem:
    """Rows ``W @ x`` of 60 agents; of the weights of all but the first component, so many."""
    n, rng = 60, np.random.default_rng(0)
    x = sv.agents(n, lower=-1, upper=1, dim=dim)
    W = rng.uniform(size=(7, n * dim)) * (rng.random((7, n * dim)) < share)
    W[:, 0] = 1 / 3
    return sv.Problem(
        objectives=[sum(np.ravel(s) ** 2) for s in x],
        constraints={
            "rows": W @ x <= 1,
            "balance": sparse.csr_array(W[:1]) @ x == 0.1,
            "first": W[1:2] @ x <= 0.3,
        },
    )


# Six problems of the field, small


def rates() -> sv.Problem:
    """Six flows with logarithmic utilities over four links."""
    passes = np.array(
        [[1, 1, 0, 0, 1, 0], [0, 1, 1, 0, 0, 1], [0, 0, 1, 1, 1, 0], [1, 0, 0, 1, 0, 1]], float
    )
    worth = np.array([0.6, 1.4, 1.0, 2.0, 0.8, 1.2])
    flow = sv.agents(6, lower=0.05, upper=4.0, name="flow", parameters={"worth": worth})
    return sv.Problem(
        objectives=-flow["worth"] * sv.log(flow.x),
        constraints={"links": sv.total(flow.x, weights=passes) <= [5.0, 4.0, 6.0, 3.0]},
    )


def dispatch() -> sv.Problem:
    """Four generators, a balance and two lines with limits in both directions."""
    p = sv.agents(["g1", "g2", "g22", "g27"], lower=0, upper=[80, 80, 50, 55])
    cost = [(0.02, 2.0), (0.0175, 1.75), (0.0625, 1.0), (0.00834, 3.25)]
    west, east = np.array([[0.4, -0.3, 0.1, 0.2], [0.1, 0.2, -0.5, 0.3]])
    return sv.Problem(
        objectives=[a * s**2 + b * s for s, (a, b) in zip(p, cost, strict=True)],
        constraints={
            "balance": sum(p) == 170.0,
            "west": abs(west @ p) <= 8,
            "east": abs(east @ p) <= 20,
        },
    )


def ev_fleet(cars: int = 60) -> sv.Problem:
    """Cars with a private need inside private windows."""
    rng = np.random.default_rng(0)
    connector = rng.choice([3.7, 7.4, 11.0], cars)
    hour = np.arange(4)
    come, leave = rng.integers(0, 2, cars), rng.integers(3, 5, cars)
    parked = (hour >= come[:, None]) & (hour < leave[:, None])
    need = np.minimum(rng.lognormal(np.log(9.0), 0.5, cars), 0.9 * connector * (leave - come))
    own = {"need": need, "window": connector[:, None] * parked}
    ev = sv.agents(cars, dim=4, lower=0.0, upper=11.0, name="ev", parameters=own)
    x = ev.x
    return sv.Problem(
        objectives=np.array([0.10, 0.09, 0.08, 0.07]) @ x + 0.002 * sv.sum_squares(x),
        constraints={"network": sv.total(x) <= np.full(4, 3.4 * cars)},
        local=[sum(x) == ev["need"], x <= ev["window"]],
    )


def robots() -> sv.Problem:
    """Three robots in a chain that keep within 40 m of their neighbours."""
    wishes = np.array([(-60.0, 20.0), (-5.0, -25.0), (50.0, 30.0)])
    r = sv.agents(["ant", "bee", "cat"], dim=2, lower=-100, upper=100)
    return sv.Problem(
        objectives=[0.01 * sv.sum_squares(s - w) for s, w in zip(r, wishes, strict=True)],
        constraints=[sv.sum_squares(p - q) <= 40.0**2 for p, q in pairwise(r)],
    )


def regression(n: int = 60) -> sv.Problem:
    """Clinics that fit a model each, with one budget for all effects."""
    rng = np.random.default_rng(0)
    dose = rng.normal(size=(n, 40))
    effect = rng.choice([0.0, 0.0, 0.0, 1.0], size=n)
    outcome = dose * effect[:, None] + 2.0 * rng.normal(size=(n, 40))
    moments = {"square": (dose**2).mean(axis=1), "product": (dose * outcome).mean(axis=1)}
    clinic = sv.agents(n, lower=-1.5, upper=1.5, name="clinic", parameters=moments)
    t = clinic.x
    return sv.Problem(
        objectives=clinic["square"] * t**2 / 2 - clinic["product"] * t,
        constraints={"budget": sv.total(abs(t)) <= 0.25 * n},
    )


def shedding(buildings: int = 60) -> sv.Problem:
    """Buildings that shed load, each within an energy of its own."""
    rng = np.random.default_rng(0)
    own = {
        "discomfort": rng.lognormal(0.0, 0.6, buildings),
        "energy": rng.uniform(30.0, 100.0, buildings),
    }
    building = sv.agents(buildings, dim=4, lower=0.0, upper=40.0, name="building", parameters=own)
    shed = building.x
    return sv.Problem(
        objectives=0.01 * building["discomfort"] * sv.sum_squares(shed),
        constraints={"asked": sv.total(shed) >= np.array([9.0, 12.0, 12.0, 7.0]) * buildings},
        local=[sum(shed) <= building["energy"]],
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
