"""Problems of others with published or independently computed optima, for tests and ``field``.

Variables without published bounds get a box that holds the optimum with room to spare.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.resources import files
from itertools import pairwise
from json import loads
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse.csgraph import shortest_path

import sottovoce as sv
from benchmarks import families
from benchmarks.strangers import STRANGERS, Stated


class Published(NamedTuple):
    """A problem of others with its optimal objective, and where that is from."""

    source: str
    state: Callable[[], tuple[sv.Problem, float]]


def _named(n: int, lower: Any, upper: Any, dim: Any = 1) -> Any:
    return sv.agents([f"x{i + 1}" for i in range(n)], lower=lower, upper=upper, dim=dim)


def hs118() -> sv.Problem:
    """Three plants over five quarters, with private ramps and shared demands."""
    first, steepest = [(8, 21), (43, 57), (3, 16)], [6, 7, 6]
    bounds = [([low] + 4 * [0], [high] + 4 * [most])
              for (low, high), most in zip(first, (90, 120, 60), strict=True)]  # fmt: skip
    x = _named(3, [low for low, _ in bounds], [high for _, high in bounds], 5)
    curves = [(2.3, 1e-4), (1.7, 1e-4), (2.2, 1.5e-4)]
    return sv.Problem(
        objectives=[
            c * s.sum() + q * sv.sum_squares(s) for s, (c, q) in zip(x, curves, strict=True)
        ],
        constraints=[sum(x)[t] >= d for t, d in enumerate((60, 50, 70, 85, 100))],
        local=[
            row
            for s, ramp in zip(x, steepest, strict=True)
            for a, b in pairwise(s)
            for row in (b - a <= ramp, a - b <= 7)
        ],
    )


def hilbert(n: int) -> sv.Problem:
    """S277 to S280: a linear program with a Hilbert matrix, optimal at 1."""
    H = 1.0 / (np.arange(n) + np.arange(1, n + 1)[:, None])
    x, c = _named(n, 0, 10), H.sum(axis=1)
    return sv.Problem(
        objectives=[float(a) * s for a, s in zip(c, x, strict=True)], constraints=[H @ x >= c]
    )


def ksip(points: int = 1001) -> sv.Problem:
    """A semi-infinite quadratic program on a grid: ``sum_j x_j t^(j-1) >= sin(t)``."""
    power, t = np.arange(20), np.linspace(0.0, 1.0, points)
    x = _named(20, -5, 5)
    return sv.Problem(
        objectives=[s**2 / (2 * j) + s / j for j, s in enumerate(x, 1)],
        constraints=[t[:, None] ** power @ x >= np.sin(t)],
    )


def simpllpa() -> sv.Problem:
    """A linear program of two variables with two rows."""
    a, b = x = _named(2, 0, 10)
    return sv.Problem(
        agents=x, objectives=[2 * a, 1 * b], constraints=[a + b >= 1, a + 2 * b >= 1.5]
    )


def simpllpb() -> sv.Problem:
    """A linear program of two variables with three rows."""
    a, b = x = _named(2, 0, 10)
    rows = [a + b >= 1, a + 2 * b >= 1.2, 2 * a + b >= 1.2]
    return sv.Problem(agents=x, objectives=[1.5 * a, 1 * b], constraints=rows)


def extrasim() -> sv.Problem:
    """A linear program with one equality."""
    a, b = x = _named(2, [0, -10], 10)
    return sv.Problem(agents=x, objectives=[a - 1, 0 * b], constraints=[a + 2 * b == 2])


def minimax_cb(squares: bool) -> sv.Problem:
    """CB2 and CB3: the largest of three convex functions of two variables."""
    a, b, u = x = _named(3, -4, 4)
    powers = a**4 + b**2 if squares else a**2 + b**4
    rows = [powers <= u, (2 - a) ** 2 + (2 - b) ** 2 <= u, 2 * sv.exp(b - a) <= u]
    return sv.Problem(agents=x, objectives=[0 * a, 0 * b, 1 * u], constraints=rows)


def makela(squares: bool, n: int = 20) -> sv.Problem:
    """MAKELA3 and MAKELA4: the largest square, or absolute value, of twenty variables."""
    x = _named(n + 1, -30, [30] * n + [400 if squares else 30])
    u = x[n]
    sized = [s**2 if squares else abs(s) for s in x[:n]]
    return sv.Problem(
        objectives=[0 * s for s in x[:n]] + [1 * u], constraints=[s <= u for s in sized]
    )


def goffin(n: int = 50) -> sv.Problem:
    """The largest of 50 linear functions of 50 variables."""
    x = _named(n + 1, [-30] * n + [-100], [30] * n + [3000])
    A = np.c_[50.0 * np.eye(n) - 1.0, -np.ones(n)]
    return sv.Problem(objectives=[0 * s for s in x[:n]] + [1 * x[n]], constraints=[A @ x <= 0])


def hs76() -> sv.Problem:
    """A quadratic program whose objective joins three of four variables."""
    x, y = sv.agents(["x", "y"], dim=[3, 1], lower=0, upper=10)
    f = x[0] ** 2 + x[1] ** 2 + x[2] ** 2 / 2 - x[0] * x[1] + x[1] * x[2] - x[0] + x[1] - x[2]
    rows = [x[0] + 2 * y + x[1] + x[2] <= 5, 3 * x[0] + y + 2 * x[1] - x[2] <= 4]
    return sv.Problem(objectives=[f, y**2 / 2 - 3 * y], constraints=[*rows, y + 4 * x[1] >= 1.5])


def packing(seed: int) -> tuple[sv.Problem, float]:
    """A random packing linear program, with the optimum of HiGHS."""
    problem = families.linear(seed, 12, 6) if seed % 2 else families.linear(seed)
    return problem, linear_optimum(problem)


def linear_optimum(problem: sv.Problem) -> float:
    """Return the least objective of a linear program of named agents, by HiGHS."""
    N = problem.cloud.lower().size
    at = [problem.evaluate(row) for row in np.vstack([np.zeros(N), np.eye(N)])]
    c = np.array([one.objective - at[0].objective for one in at[1:]])
    A = np.array([one.rows - at[0].rows for one in at[1:]]).T
    solved = linprog(c, A, -at[0].rows, bounds=np.c_[problem.cloud.lower(), problem.cloud.upper()])
    return float(solved.fun + at[0].objective)


def pdra(example: str) -> sv.Problem:
    """The examples of pdra, of which the folder ``$PDRA`` has a copy; it has no licence."""
    folder = Path(os.environ["PDRA"], "examples", example, "data")
    count = len(list(folder.glob("node_*.npz")))
    nodes = [np.load(folder / f"node_{i + 1}.npz") for i in range(count)]
    if example == "distributed_qp":
        b = np.array([np.mean(np.load(folder / "D.npy") == k) for k in (1, 2, 3)])
        x = _named(count, -10, 10, 4)
        f = [s @ one["Q"] @ s / 2 + one["g"] @ s for s, one in zip(x, nodes, strict=True)]
        rows = sum(one["A"] @ s for s, one in zip(x, nodes, strict=True)) <= b
        return sv.Problem(objectives=f, constraints=[rows])
    most = [one["x_lab"] for one in nodes]
    x = _named(count, -100, most, [len(m) for m in most])  # free below: the optimum is at -57
    f = [-one["c_pro"] @ s for s, one in zip(x, nodes, strict=True)]
    rows = sum(one["A_mat"] @ s for s, one in zip(x, nodes, strict=True))
    return sv.Problem(objectives=f, constraints=[rows <= np.load(folder / "b_mat.npy")])


def dc_flow(case: str) -> tuple[sv.Problem, float]:
    """A case of MATPOWER with quadratic costs, with the optimum of PYPOWER's DC-OPF."""
    from pypower.api import ppoption, rundcopf
    from pypower.ext2int import ext2int
    from pypower.makePTDF import makePTDF

    stated = getattr(import_module(f"pypower.{case}"), case)()
    stated["gencost"] = stated["gencost"][: len(stated["gen"])]  # of active power
    solved = rundcopf(stated, ppoption(VERBOSE=0, OUT_ALL=0))
    assert solved["success"]
    grid = ext2int(stated)
    bus, gen, branch, cost = (grid[name] for name in ("bus", "gen", "branch", "gencost"))
    assert set(cost[:, 0]) == {2.0}  # polynomials
    assert not branch[:, 9].any()  # no phase shifters
    load, at = bus[:, 2] + bus[:, 4], gen[:, 0].astype(int)
    H = makePTDF(grid["baseMVA"], bus, branch)
    flow, rating = H[:, at], np.where(branch[:, 5] > 0, branch[:, 5], np.inf)
    lower, upper = gen[:, 9], gen[:, 8]
    # A line that no output of the generators can overload needs no row, and no noise.
    high = np.maximum(flow, 0) @ upper + np.minimum(flow, 0) @ lower - H @ load
    low = np.maximum(flow, 0) @ lower + np.minimum(flow, 0) @ upper - H @ load
    lines = np.flatnonzero((high > rating) | (low < -rating))
    p = sv.agents([f"g{i + 1}" for i in range(len(gen))], lower=lower, upper=upper)
    curves = [c[4 : 4 + int(c[3])] for c in cost]
    objectives = [np.polyval(c, s) for c, s in zip(curves, p, strict=True)]
    rows = [abs(flow[k] @ p - float(H[k] @ load)) <= float(rating[k]) for k in lines]
    problem = sv.Problem(objectives=objectives, constraints=[sum(p) == float(load.sum()), *rows])
    return problem, float(solved["f"])


def rates(network: str) -> tuple[sv.Problem, float]:
    """A network of SNDlib: every demand a flow of a logarithmic worth on its shortest route.

    Worths are the published demands, within a factor of 10 of their geometric mean. A link carries
    as much as if all links were full of flows of rate 1. The optimum is Clarabel's.
    """
    path = files("topohub").joinpath("data", "sndlib", f"{network}.json")
    stated = loads(path.read_text(encoding="utf-8"))
    n = len(stated["nodes"])
    length = np.zeros((n, n))
    for edge in stated["edges"]:
        a, b = edge["source"], edge["target"]
        length[a, b] = length[b, a] = max(edge["dist"], 1e-3)
    place = {(int(a), int(b)): k for k, (a, b) in enumerate(np.argwhere(length))}
    _, before = shortest_path(length, return_predecessors=True)
    sources = stated["graph"]["demands"].items()
    demands = [(int(a), int(b), float(v)) for a, row in sources for b, v in row.items()]
    passes = np.zeros((len(place), len(demands)))
    for flow, (start, node, _) in enumerate(demands):
        while node != start:
            passes[place[int(before[start, node]), node], flow] = 1.0
            node = int(before[start, node])
    passes = passes[passes.sum(axis=1) > 1]  # a link of one flow at most couples nothing
    volume = np.array([volume for _, _, volume in demands])
    worth = np.clip(volume / np.exp(np.mean(np.log(volume))), 0.1, 10.0)
    most = np.full(len(passes), passes.sum() / len(passes))
    flow = sv.agents(len(demands), lower=0.05, upper=5.0, name="flow", parameters={"worth": worth})
    problem = sv.Problem(
        objectives=-flow["worth"] * sv.log(flow.x),
        constraints=[sv.total(flow.x, weights=passes) <= most],
    )
    return problem, _log_optimum(worth, passes, most)


def _log_optimum(worth: Any, passes: Any, most: Any) -> float:
    import cvxpy as cp

    rate = cp.Variable(worth.size)
    rows = [passes @ rate <= most, rate >= 0.05, rate <= 5.0]
    return float(cp.Problem(cp.Minimize(-worth @ cp.log(rate)), rows).solve(solver="CLARABEL"))


HS = "Hock, Schittkowski 1981"
S87 = "Schittkowski 1987"
CUTE = "CUTEst"
CASES = (
    "case6ww", "case9", "case14", "case24_ieee_rts", "case30", "case39", "case57", "case118",
    "case300",
)  # fmt: skip
UNCOUPLED = ("dfn-bwin", "pdh")  # every demand has a link of its own


def _gallery(name: str) -> tuple[sv.Problem, float]:
    known = sv.gallery.known(name)
    assert known is not None
    return sv.gallery.get(name), known.objective


def _read(stranger: Callable[[], Stated]) -> tuple[sv.Problem, float]:
    stated, owners = stranger()
    stated.solve(solver="CLARABEL")
    sign = -1.0 if stated.objective.NAME == "maximize" else 1.0
    return sv.from_cvxpy(stated, owners=owners), sign * float(stated.objective.value)


def _stated(
    source: str, optimum: float, problem: Callable[..., sv.Problem], *args: Any
) -> Published:
    return Published(source, lambda: (problem(*args), optimum))


def _hilbert(n: int) -> Published:
    row_sums = 1.0 / (np.arange(n) + np.arange(1, n + 1)[:, None])
    return _stated(S87, float(row_sums.sum()), hilbert, n)


def _problems() -> Iterator[tuple[str, Published]]:
    yield from ((name, Published(HS, partial(_gallery, name))) for name in ("hs10", "hs34"))
    yield "hs66", Published(HS, partial(_gallery, "hs66"))
    yield "hs118", _stated(HS, 664.82045, hs118)
    yield from ((f"s{277 + k}", _hilbert(4 + 2 * k)) for k in range(4))
    yield "simpllpa", _stated(CUTE, 1.0, simpllpa)
    yield "simpllpb", _stated(CUTE, 1.1, simpllpb)
    yield "extrasim", _stated(CUTE, -1.0, extrasim)
    yield "cb2", _stated(CUTE, 1.9522245, minimax_cb, False)
    yield "cb3", _stated(CUTE, 2.0, minimax_cb, True)
    yield "makela3", _stated(CUTE, 0.0, makela, True)
    yield "makela4", _stated(CUTE, 0.0, makela, False)
    yield "goffin", _stated(CUTE, 0.0, goffin)
    yield "hs76", _stated(HS, -4.681818181, hs76)
    # CUTEst's file prints 0.57579024357147, which Clarabel at tolerances of 1e-12 does not confirm.
    yield "ksip", _stated("CUTEst, Clarabel", 0.5757979245992734, ksip)
    if "PDRA" in os.environ:
        yield "pdra LP", _stated("pdra", -62.837151677467475, pdra, "co_production")
        yield "pdra QP", _stated("pdra", -60.92641675724471, pdra, "distributed_qp")
    for seed in range(6):
        yield f"packing {seed}", Published("random LP, HiGHS", partial(packing, seed))
    for case in CASES:
        yield case, Published("MATPOWER, PYPOWER", partial(dc_flow, case))
    folder = Path(str(files("topohub"))) / "data" / "sndlib"
    for network in sorted(path.stem for path in folder.glob("*.json")):
        if network not in UNCOUPLED:
            yield network, Published("SNDlib, Clarabel", partial(rates, network))

    for one in STRANGERS:
        yield one.__name__.replace("_", " "), Published("cvxpy, Clarabel", partial(_read, one))


PROBLEMS = dict(_problems())
