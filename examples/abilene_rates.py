"""Network utility maximization: 132 flows with private utilities share the Abilene backbone.

Every ordered pair of the twelve routers is a flow: an agent with a rate and a private utility
``w log(rate)``. The capacities of thirty directed links couple the flows.
"""

from itertools import permutations

import numpy as np
from scipy.sparse.csgraph import shortest_path

import sottovoce as sv

# Routers and links of the Internet2 backbone of 2004, with kilometres (SNDlib, "abilene").
LINKS = {
    ("Atlanta M5", "Atlanta"): 132, ("Atlanta", "Houston"): 1079, ("Atlanta", "Indianapolis"): 590,
    ("Atlanta", "Washington"): 899, ("Chicago", "Indianapolis"): 259, ("Chicago", "New York"): 1145,
    ("Denver", "Kansas City"): 744, ("Denver", "Sunnyvale"): 1514, ("Denver", "Seattle"): 1571,
    ("Houston", "Kansas City"): 1027, ("Houston", "Los Angeles"): 2194,
    ("Indianapolis", "Kansas City"): 902, ("Los Angeles", "Sunnyvale"): 498,
    ("New York", "Washington"): 336, ("Seattle", "Sunnyvale"): 1138,
}  # fmt: skip
CAPACITY = 10.0  # Gbit/s in each direction, an OC-192
ROUNDS = 1_000
RUNS = 32


def shortest_routes() -> tuple[list[tuple[int, int]], list[list[int]]]:
    """Return the directed links, and for every pair of routers the links on its route."""
    routers = sorted({router for link in LINKS for router in link})
    length = np.zeros((len(routers), len(routers)))
    for (a, b), kilometres in LINKS.items():
        i, j = routers.index(a), routers.index(b)
        length[i, j] = length[j, i] = kilometres
    links = [(int(i), int(j)) for i, j in np.argwhere(length)]
    _, previous = shortest_path(length, return_predecessors=True)
    routes: list[list[int]] = []
    for start, router in permutations(range(len(routers)), 2):
        routes.append([])
        while router != start:
            before = int(previous[start, router])
            routes[-1].append(links.index((before, router)))
            router = before
    return links, routes


links, routes = shortest_routes()
passes = np.zeros((len(links), len(routes)))
for f, route in enumerate(routes):
    passes[route, f] = 1.0
worth = np.random.default_rng(0).lognormal(0.0, 0.5, len(routes))
flow = sv.agents(len(routes), lower=0.05, upper=2.0, name="flow", parameters={"worth": worth})
problem = sv.Problem(
    objectives=-flow["worth"] * sv.log(flow.x),
    constraints=[sv.total(flow.x, weights=passes) <= np.full(len(links), CAPACITY)],
)
best = sv.reference_optimum(problem)
certificate = sv.certify(problem)
print(f"{len(routes)} flows on {len(links)} links, {len(best.active)} of which are full")

choices: dict[str, sv.Trajectory | sv.Offset | sv.Everything] = {
    "a trajectory of 0.2 Gbit/s": sv.Trajectory(radius=0.2, rounds=ROUNDS),
    "an offset of 0.02 Gbit/s": sv.Offset(radius=0.02, rounds=ROUNDS),
    "everything": sv.Everything(rounds=ROUNDS),
}
for name, hide in choices.items():
    try:
        plan = sv.plan(certificate, epsilon=1.0, delta=1e-5, hide=hide, feasible=0.95)
    except sv.errors.PrivacyError as refused:
        print(f"{name}: refused, {str(refused).partition(':')[0]}")
        continue
    result = sv.simulate(problem, plan, rounds=ROUNDS, runs=RUNS, saddle=(best.x, best.mu))
    assert plan.feasible is not None
    assert result.confirmed is not None
    load = (result.x @ passes.T).max(axis=1) / CAPACITY
    loss = 1 - np.exp((best.objective - result.trace.objective[:, -1]) / worth.sum())
    print(f"{name}: margin {plan.feasible.margin.max() / CAPACITY:.1%} of a link, "
          f"{np.sum(result.confirmed)} of {RUNS} answers confirmed, {np.sum(load > 1)} over a "
          f"link; it costs as much as {np.median(loss):.1%} of every rate")  # fmt: skip
