"""What a user waits for: every stage of the whole call with the default algorithm.

Each problem is stated, certified, planned and solved twice in a process of its own. Seconds of one
processor, threads=1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks import PLAIN

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 60
ROUNDS = 1_000


def run() -> list[dict[str, str]]:
    """One row per problem; whatever takes more than a minute is given up and says so."""
    return [_measured(name) for name in CASES]


def _measured(name: str) -> dict[str, str]:
    found = _child(name)
    shown = ("import", "state", "certify", "plan", "saddle", "lay out", "rounds", "solve again")
    if found is None:
        return {"problem": name, "all": f"over {LIMIT_SECONDS} s", **dict.fromkeys(shown, "")}
    total = _seconds(sum(found[stage] for stage in shown[:-1]))
    return {"problem": name, "all": total, **{stage: _seconds(found[stage]) for stage in shown}}


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 9.95 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _child(name: str) -> dict[str, float] | None:
    code = f"from benchmarks.calls import child; child({name!r})"
    try:
        done = subprocess.run(  # noqa: S603 - our own text
            [sys.executable, "-c", code], env=os.environ | PLAIN, cwd=ROOT, capture_output=True,
            text=True, timeout=LIMIT_SECONDS, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    found: dict[str, float] = json.loads(done.stdout)
    return found


def child(name: str) -> None:
    """Go through the whole call, and print the processor's seconds of each stage."""
    import sottovoce as sv
    from sottovoce.simulation import simulate as engine

    names = (
        sv.certify,
        sv.plan,
        sv.simulate,
        sv.reference_optimum,
        engine,
    )  # loaded now
    assert all(names)
    clock = _Clock()
    clock("state")
    problem, hide = CASES[name]()
    clock("certify")
    certificate = sv.certify(problem, progress=False)
    clock("plan")
    plan = sv.plan(certificate, epsilon=1.0, delta=1e-5, hide=hide, progress=False)
    settings: dict[str, Any] = {"rounds": min(ROUNDS, hide.rounds), "threads": 1}
    clock("saddle")
    sv.simulate(problem, plan, **settings, progress=clock.hear)
    clock("solve again")
    sv.simulate(problem, plan, **settings, progress=False)
    clock("")
    print(json.dumps(clock.seconds))


class _Clock:
    """The processor's seconds of each stage; what came before the first is the imports'."""

    def __init__(self) -> None:
        self.seconds = {"import": process_time(), "lay out": 0.0, "rounds": 0.0}
        self.stage, self.since = "", process_time()

    def __call__(self, stage: str) -> None:
        now = process_time()
        if self.stage:
            self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + now - self.since
        self.stage, self.since = stage, now

    def hear(self, doing: str, share: float | None = None) -> None:
        """Progress of a solve: the saddle point, agents laid out, then rounds."""
        if doing.startswith("laying out"):
            self("lay out")
        elif doing.startswith("round ") and self.stage == "lay out":
            self("rounds")


Case = Callable[[], tuple[Any, Any]]


def _paper() -> tuple[Any, Any]:
    import sottovoce as sv

    return sv.gallery.paper(), sv.Trajectory(radius=0.1, rounds=ROUNDS)


def _quadratics(agents: int) -> Case:
    """Named agents with random convex quadratics of their own, and 20 dense rows."""

    def make() -> tuple[Any, Any]:
        import numpy as np

        import sottovoce as sv

        rng = np.random.default_rng(0)
        x = sv.agents(agents, lower=-5, upper=5)
        curves, centres = rng.uniform(0.5, 2, agents), rng.normal(0, 2, agents)
        objectives = [a * (s - c) ** 2 for a, c, s in zip(curves, centres, x, strict=True)]
        rows = rng.normal(size=(20, agents)) / np.sqrt(agents)
        sums = [sum(a * s for a, s in zip(row, x, strict=True)) for row in rows]
        bounds = rows @ centres - 0.3
        constraints = [total <= b for total, b in zip(sums, bounds, strict=True)]
        problem = sv.Problem(agents=x, objectives=objectives, constraints=constraints)
        return problem, sv.Trajectory(radius=0.1, rounds=ROUNDS)

    return make


def _dispatch() -> tuple[Any, Any]:
    """Six generators over a day: balance and 40 lines in every hour, private ramps."""
    import numpy as np

    import sottovoce as sv

    rng = np.random.default_rng(0)
    hours, units = 24, 6
    p = sv.agents([f"p{i + 1}" for i in range(units)], dim=hours, lower=0, upper=10)
    costs = rng.uniform(0.02, 0.1, units), rng.uniform(1, 3, units)
    objectives = [sum(a * s**2 + b * s for s in own) for a, b, own in zip(*costs, p, strict=True)]
    demand = 30 + 10 * np.sin(np.arange(hours) * np.pi / 12)
    shares = rng.uniform(-0.5, 0.5, (40, units))
    constraints = {}
    for t in range(hours):
        constraints[f"balance{t + 1}"] = sum(own[t] for own in p) == demand[t]
        for line, share in enumerate(shares):
            flow = sum(s * own[t] for s, own in zip(share, p, strict=True))
            constraints[f"line{line + 1}at{t + 1}"] = flow <= 15.0
    steps = [(own[t + 1] - own[t]) for own in p for t in range(hours - 1)]
    local = [row for step in steps for row in (step <= 2.0, -step <= 2.0)]
    problem = sv.Problem(agents=p, objectives=objectives, constraints=constraints, local=local)
    return problem, sv.Trajectory(radius=0.1, rounds=ROUNDS)


def _chargers() -> tuple[Any, Any]:
    import sottovoce as sv

    return sv.gallery.chargers(10_000), sv.Everything(rounds=100)


CASES: dict[str, Case] = {
    "the paper's, 1,000 rounds": _paper,
    "200 named agents, quadratics of their own, 20 dense rows, 1,000 rounds": _quadratics(200),
    "the same with 1,000 named agents": _quadratics(1_000),
    "6 generators x 24 h, balance, 40 lines an hour, private ramps, 1,000 rounds": _dispatch,
    "10,000 chargers x 24 h, 100 rounds": _chargers,
}
