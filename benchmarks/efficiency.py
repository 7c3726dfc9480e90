"""How near the default algorithm comes to the statistical limit, over families of problems."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

import sottovoce as sv
from benchmarks.__main__ import table
from benchmarks.families import CURVED, FLAT, Family

# Geometric means of few runs are low: by 13% with 4 runs, by 2% with 32.
PLAN = ((100, 64), (1000, 32), (10_000, 16))
RADII = (0.02, 1.0)  # of the widest side of an agent's box
CHOSEN = "chosen on"
FAR = 5.0  # limits: a run whose prices are farther off made an excursion


class Case(NamedTuple):
    name: str
    kind: str
    half: str
    problem: sv.Problem
    certificate: Any
    x: Any
    price: Any
    width: float


class Efficiency(NamedTuple):
    """RMS errors over the limit in x and in price, and the share of runs with an excursion."""

    case: Case
    radius: float
    x: float
    price: float
    far: float


def cases(names: Callable[[str], bool] = lambda name: True) -> list[Case]:
    """Every family with the seed that constants were chosen on and one held out."""
    made = [
        _case(name, kind, seed, family)
        for kind, families in (("curved", CURVED), ("flat", FLAT))
        for name, family in families.items()
        if names(name)
        for seed in (0, 1)
    ]
    gallery = {"paper": CHOSEN, "coupled": "held out", "dispatch": "held out"}
    return made + [
        _stated(name, "curved", half, sv.gallery.get(name)) for name, half in gallery.items()
    ]


def _case(name: str, kind: str, seed: int, family: Family) -> Case:
    return _stated(f"{name}/{seed}", kind, ("held out" if seed else CHOSEN), family(seed))


def _stated(name: str, kind: str, half: str, problem: sv.Problem) -> Case:
    result = sv.simulate(problem, rounds=1, record=[], progress=False)
    width = max(float(np.max(group.upper - group.lower)) for group in problem.groups)
    x, price = np.ravel(result.saddle_x), np.ravel(result.saddle_price)
    return Case(name, kind, half, problem, sv.certify(problem), x, price, width)


def measure(
    case: Case, radius: float, rounds: int, runs: int, algorithm: sv.DualAveraging, seed: int
) -> Efficiency | None:
    """One problem; None where the plan is refused or noise does not move the optimum."""
    hide = sv.Trajectory(radius=radius * case.width, rounds=rounds)
    try:
        plan = sv.plan(case.certificate, epsilon=np.log(3), delta=0.05, hide=hide)
    except sv.errors.PrivacyError as error:
        print(f"{case.name}, radius {radius:g}: {error}", file=sys.stderr)
        return None
    limit = sv.accuracy_limit(case.problem, plan, rounds=rounds)
    result = sv.simulate(
        case.problem, plan, rounds=rounds, runs=runs, record=[rounds], algorithm=algorithm,
        seed=seed, progress=False, saddle=(case.x, case.price),
    )  # fmt: skip
    errors = [
        np.linalg.norm(np.reshape(got, (runs, -1)) - want, axis=1)
        for got, want in ((result.x, case.x), (result.price, case.price))
    ]
    x, price = (float(np.sqrt(np.mean(e**2))) for e in errors)
    if not limit.x > 1e-9 * case.width:
        return None
    # A linear program's optimum determines prices that noise does not move: no limit to compare.
    moved = limit.price > 1e-6 * np.linalg.norm(case.price)
    far = float(np.mean(errors[1] > FAR * limit.price)) if moved else np.nan
    return Efficiency(case, radius, x / limit.x, price / limit.price if moved else np.nan, far)


def summary(some: list[Efficiency], what: str, rounds: int, runs: int) -> dict[str, Any]:
    """Geometric means, how many are above 2, and the worst."""
    x, price = np.array([one.x for one in some]), np.array([one.price for one in some])
    worst = sorted(some, key=lambda one: -one.x)[:3]
    return {
        "problems": what,
        "rounds": rounds,
        "runs": runs,
        "x, geometric mean": float(np.exp(np.mean(np.log(x)))),
        "x above 2": f"{np.sum(x > 2)} of {x.size}",
        "prices, median": float(np.nanmedian(price)),
        "runs with price excursions": f"{100 * np.nanmean([one.far for one in some]):.1f}%",
        "worst in x": ", ".join(f"{w.case.name} at {w.radius:g}: {w.x:.3g}" for w in worst),
    }


def tails(some: list[Case], algorithm: sv.DualAveraging, rounds: int = 300) -> dict[str, Any]:
    """Noise-free runs: the largest error of the last iterate, in widths of the boxes."""
    errors = {}
    for case in some:
        result = sv.simulate(
            case.problem, rounds=rounds, record=[], algorithm=algorithm, progress=False
        )
        errors[case.name] = float(np.max(np.abs(np.ravel(result.x) - case.x))) / case.width
    worst = sorted(errors, key=lambda name: -errors[name])[:3]
    return {
        "problems": f"without noise: {some[0].kind}",
        "rounds": rounds,
        "within 1e-6 of the boxes": f"{sum(e <= 1e-6 for e in errors.values())} of {len(errors)}",
        "worst": ", ".join(f"{name}: {errors[name]:.1g}" for name in worst),
    }


def run(
    plan: Any = PLAN, algorithm: sv.DualAveraging | None = None, *, seed: int = 0
) -> list[dict[str, Any]]:
    """A row per kind, half and number of rounds."""
    algorithm, rows, stated = algorithm or sv.DualAveraging(), [], cases()
    for rounds, runs in plan:
        all_of = [measure(c, r, rounds, runs, algorithm, seed) for c in stated for r in RADII]
        measured = [one for one in all_of if one is not None]
        rows += [
            summary(
                [one for one in measured if (one.case.kind, one.case.half) == (kind, half)],
                f"{kind}, {half}", rounds, runs,
            )
            for kind in ("curved", "flat")
            for half in (CHOSEN, "held out")
        ]  # fmt: skip
    return rows


def main() -> None:
    """``python -m benchmarks.efficiency 100:64 1000:32 --reach 32``; ``--tails`` without noise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "plan", nargs="*", default=[f"{r}:{n}" for r, n in PLAN], help="ROUNDS:RUNS"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tails", action="store_true", help="noise-free rounds instead")
    for name, value in asdict(sv.DualAveraging()).items():
        parser.add_argument(f"--{name}", type=float, default=value)
    asked = vars(parser.parse_args())
    algorithm = sv.DualAveraging(**{name: asked[name] for name in asdict(sv.DualAveraging())})
    if asked["tails"]:
        stated = cases()
        kinds = [[c for c in stated if c.kind == kind] for kind in ("curved", "flat")]
        print(table([tails(some, algorithm) for some in kinds]))
    else:
        plan = [(int(r), int(n)) for r, n in (one.split(":") for one in asked["plan"])]
        print(table(run(plan, algorithm, seed=asked["seed"])))


if __name__ == "__main__":
    main()
