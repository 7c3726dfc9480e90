"""How often confirmed answers violate a constraint, and what that costs beside the prediction.

``feasible=0.95`` on every gallery problem, hiding a trajectory of 2% of each agent's box and of the
paper's radius 1: the share of runs that are confirmed and violate a constraint or a band (at most
0.05 is promised), that are not confirmed, and the mean cost of confirmed answers over the predicted
one. Environment: RUNS (10,000; fleets 400), ROUNDS (1000,10000), PROBLEMS.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.certificate.certificate import Certificate
from sottovoce.formula.tape import tape
from sottovoce.privacy.feasibility import Feasibility
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.problem.numeric import Numeric
from sottovoce.simulation.result import Result

EPSILON, DELTA = float(np.log(3)), 0.05
FLEET_RUNS = 400
AT_ONCE = 1000


def run() -> list[dict[str, Any]]:
    """Measure every problem with both radii; problems without room say so."""
    names = os.environ.get("PROBLEMS")
    found = []
    for name in names.split(",") if names else sv.gallery.names():
        problem = sv.gallery.get(name)
        certificate = sv.certify(problem)
        for radius in ("2%", "1"):
            for rounds in map(int, os.environ.get("ROUNDS", "1000,10000").split(",")):
                found.append(_row(name, problem, certificate, radius, rounds))
                print(found[-1], file=sys.stderr, flush=True)
    return found


def _row(
    name: str, problem: sv.Problem, certificate: Certificate, radius: str, rounds: int
) -> dict[str, Any]:
    widths = np.concatenate([(g.upper - g.lower).max(axis=1) for g in problem.groups])
    hide = sv.Trajectory(radius=0.02 * widths if radius == "2%" else 1.0, rounds=rounds)
    row: dict[str, Any] = {"problem": name, "radius": radius, "rounds": rounds}
    try:
        made = sv.plan(certificate, epsilon=EPSILON, delta=DELTA, hide=hide, feasible=0.95)
    except sv.errors.PrivacyError as refusal:
        said = str(refusal).partition(";")[0].removeprefix("feasible must leave room: ")
        return row | {"runs": 0, "violated": said, "unconfirmed": "", "cost": "", "predicted": ""}
    fleet = any(group.count > 1 for group in problem.groups)
    runs = int(os.environ.get("RUNS", FLEET_RUNS if fleet else 10_000))
    runs = min(runs, FLEET_RUNS) if fleet else runs
    return row | {"runs": runs} | _measured(problem, made, rounds, runs)


def _measured(problem: sv.Problem, made: NoisePlan, rounds: int, runs: int) -> dict[str, Any]:
    assert made.feasible is not None
    violated, confirmed, costs = 0, 0, list[float]()
    numeric = Numeric(problem)
    for first in range(0, runs, AT_ONCE):
        some = min(AT_ONCE, runs - first)
        result = sv.simulate(problem, made, rounds=rounds, runs=some, seed=first, record=[rounds])
        fine = np.asarray(result.confirmed)
        confirmed += int(fine.sum())
        violated += int((fine & over(problem, made.feasible, result)).sum())
        costs += [numeric.objective(x) for x in result.x[fine]]
    cost = made.feasible.cost
    more = float(np.mean(costs)) - cost.optimum if cost is not None and costs else np.nan
    return {
        "violated": violated / runs,
        "unconfirmed": 1.0 - confirmed / runs,
        "cost": more,
        "predicted": np.nan if cost is None else cost.more,
    }


def over(problem: sv.Problem, found: Feasibility, result: Result) -> Any:
    """Which answers are over a constraint, or out of an equality's band."""
    sums = problem.cloud.sums
    values = Numeric(problem, sums.families)
    s = np.array([values.constraints(x) for x in result.x])
    equal = sums.lower == sums.upper
    high, low = (
        np.where(equal, sums.upper + found.band, sums.upper),
        np.where(equal, sums.lower - found.band, sums.lower),
    )
    off = np.any((s > high) | (s < low), axis=1)
    for region in sums.regions:
        u = s[:, list(region.rows)]
        off |= tape((region.phi,), region.symbols)(*u.T)[0] > 0.0
    return off
