"""Problems of others: the optimum recomputed, a run without noise, and what privacy costs.

Without noise: 3,000 rounds. Private: (1, 1e-5) for a trajectory of 2% of the widest side of each
agent's box, 1,000 rounds, 16 runs; efficiency is the error of x over the asymptotic limit. Errors
of objectives are shares of ``max(1, |optimum|)``, violations of ``max(1, |constant|)`` of a row.
Environment: PDRA, a copy of github.com/rui-huang-opt/pdra; PROBLEMS, to measure some alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import sottovoce as sv
from benchmarks.published import PROBLEMS, Published
from sottovoce.problem.numeric import Numeric, row_constants

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "field-problems.md"
QUIET_ROUNDS, ROUNDS, RUNS = 3_000, 1_000, 16
SHARE = 0.02


def run() -> list[dict[str, Any]]:
    """A row per problem."""
    names = os.environ.get("PROBLEMS")
    return list(_rows(names.split(",") if names else list(PROBLEMS)))


def _rows(names: list[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        row = measure(name, PROBLEMS[name])
        print(row, file=sys.stderr, flush=True)
        yield row


def measure(name: str, published: Published) -> dict[str, Any]:
    """One problem, without noise and with it."""
    problem, optimum = published.state()
    best, unit = sv.reference_optimum(problem), max(1.0, abs(optimum))
    off, violation = quiet(problem, best)
    return {
        "problem": name,
        "of": published.source,
        "agents": problem.cloud.agents,
        "sums": problem.cloud.sums.count,
        "optimum": f"{optimum:.9g}",
        "recomputed, off by": f"{abs(best.objective - optimum) / unit:.0e}",
        "no noise, off by": f"{off:.0e}",
        "over": f"{violation:.0e}",
        **_private(problem, best, unit),
    }


def quiet(problem: sv.Problem, best: Any) -> tuple[float, float]:
    """The errors of the objective and of the constraints after 3,000 rounds without noise."""
    result = sv.simulate(problem, rounds=QUIET_ROUNDS, record=[], progress=False)
    reached = problem.evaluate(result.x[0])
    off = abs(reached.objective - best.objective) / max(1.0, abs(best.objective))
    return off, float(np.max(violations(problem, reached.violation), initial=0.0))


def violations(problem: sv.Problem, absolute: Any) -> Any:
    """Violations of stated rows as shares of ``max(1, |constant|)``."""
    constant = np.abs(row_constants(problem.constraints))
    return absolute[..., : problem.rows] / np.maximum(1.0, constant)


def _private(problem: sv.Problem, best: Any, unit: float) -> dict[str, Any]:
    widths = np.concatenate([(g.upper - g.lower).max(axis=1) for g in problem.groups])
    hide = sv.Trajectory(radius=np.where(widths > 0.0, SHARE * widths, 1.0), rounds=ROUNDS)
    try:
        plan = sv.plan(problem, epsilon=1.0, delta=1e-5, hide=hide)
    except sv.errors.SottovoceError as refused:
        return {
            "efficiency": f"refused: {str(refused).partition(':')[0]}",
            "cost": "",
            "private, over": "",
        }
    limit = sv.accuracy_limit(problem, plan, saddle=best)
    result = sv.simulate(problem, plan, runs=RUNS, record=[], progress=False)
    x = np.reshape(result.x, (RUNS, -1))
    curved = ~np.isin(np.arange(problem.size), limit.flat)
    error = np.sqrt(np.mean(np.sum((x - best.x)[:, curved] ** 2, axis=1)))
    least = np.linalg.norm(limit.x_each[curved])
    numeric = Numeric(problem)
    cost = np.mean([numeric.objective(one) for one in x]) - best.objective
    over = violations(problem, np.array([problem.evaluate(one).violation for one in x]))
    return {
        "efficiency": f"{error / least:.2f}" if least > 1e-9 * widths.max() else "-",
        "cost": f"{100 * cost / unit:.2g}%",
        "private, over": f"{100 * np.mean(over.max(axis=1, initial=0.0)):.2g}%",
    }
