"""Every public function with wrong values in every argument: only our own errors come out."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.sampler import SecureSampler

WRONG = [
    None, "a", b"a", "", 2.5, math.nan, math.inf, -1, 0, 10**30, True, [], {}, ["a"], [None],
    object(), np.array([[1.0]]),
]  # fmt: skip

x = sv.agents(2, lower=0, upper=1)
problem = sv.Problem(objectives=[(s - 1) ** 2 for s in x], constraints=[x[0] + x[1] <= 1])
certificate = sv.certify(problem)
hide = sv.Trajectory(radius=1.0, rounds=100)
plan = sv.plan(certificate, epsilon=1, delta=0.05, hide=hide)
saddle = sv.reference_optimum(problem)
ev = sv.agents(3, lower=0, upper=1, parameters={"a": [1, 2, 3]})
house = sv.network.AgentGroup.of_problem(problem, [0])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some wrong values are names of files: what they make must not stay in the project."""
    monkeypatch.chdir(tmp_path)


# A call that is right, to be spoilt in one argument at a time.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "named": (sv.agents, {"who": ["a", "b"], "lower": 0, "upper": 1, "dim": 1}),
    "counted": (sv.agents, {"who": 3, "lower": 0, "upper": 1, "dim": 1, "name": "x",
                            "parameters": {"a": [1, 2, 3]}}),
    "total": (sv.total, {"terms": ev.x, "weights": None}),
    "exp": (sv.exp, {"argument": x[0]}),
    "log": (sv.log, {"argument": x[0]}),
    "sqrt": (sv.sqrt, {"argument": x[0]}),
    "logsumexp": (lambda first: sv.logsumexp(first, x[1]), {"first": x[0]}),
    "Problem": (sv.Problem, {"agents": x, "objectives": list(x), "constraints": [x[0] + x[1] <= 1],
                             "start": [0, 0], "privacy": {}, "schedule": {}, "source": None}),
    "agent": (problem.agent, {"agent": 1}),
    "evaluate": (problem.evaluate, {"x": [0.0, 0.0]}),
    "guarantee": (plan.guarantee, {"agent": 1}),
    "load_problem": (sv.Problem.load, {"folder": "nowhere"}),
    "certify": (sv.certify, {"problem": problem, "tolerance": 0.01}),
    "reference_optimum": (sv.reference_optimum, {"problem": problem}),
    "plan": (sv.plan, {"problem": certificate, "epsilon": 1, "delta": 0.05, "hide": hide,
                       "weights": None}),
    "the paper's plan": (sv.paper.plan, {"problem": certificate, "epsilon": 1, "delta": 0.05,
                                          "hide": hide, "constants": None}),
    "planned trajectory": (lambda **values: sv.plan(certificate, epsilon=1, delta=0.05,
                                                   hide=sv.Trajectory(**values)),
                           {"radius": 1.0, "rounds": 100}),
    "planned offset": (lambda **values: sv.plan(certificate, epsilon=1, delta=0.05,
                                               hide=sv.Offset(**values)),
                       {"radius": 1.0, "rounds": 100}),
    "planned everything": (lambda **values: sv.plan(certificate, epsilon=1, delta=0.05,
                                                   hide=sv.Everything(**values)), {"rounds": 100}),
    "equal": (lambda left, right: sv.Problem(objectives=list(x),
                                             constraints=[left == right]),
              {"left": x[0] + x[1], "right": 1}),
    "equal of a total": (lambda left, right: sv.Problem(objectives=ev.x,
                                                        constraints=[left == right]),
                         {"left": sv.total(ev.x), "right": 1}),
    "feasible": (lambda **values: sv.plan(certificate, epsilon=1, delta=0.05,
                                         hide=sv.Trajectory(radius=0.01, rounds=100), **values),
                 {"feasible": 0.95}),
    "hard": (lambda constraint: sv.Problem(objectives=list(x),
                                           constraints=[sv.hard(constraint)]),
             {"constraint": x[0] + x[1] <= 1}),
    "compare": (sv.compare, {"problem": problem, "epsilon": 1, "delta": 0.05, "radius": 1.0,
                             "hide": "trajectory", "rounds": [5], "runs": 2, "seed": 0,
                             "algorithms": None, "rivals": None}),
    "simulate": (sv.simulate, {"problem": problem, "plan": plan, "rounds": 3, "runs": 1, "seed": 0,
                               "threads": 1, "record": [3], "x0": None, "saddle": None,
                               "algorithm": None}),
    "the paper's steps": (lambda mu0: sv.simulate(problem, rounds=3, mu0=mu0,
                                                  algorithm=sv.paper.Tikhonov()), {"mu0": None}),
    "audit": (sv.audit, {"problem": problem, "plan": plan, "agent": 5, "view": "outside",
                         "runs": 100, "rounds": 2}),
    "advise": (sv.advise, {"problem": problem, "epsilons": [], "delta": 0.05, "radius": 1.0,
                           "hide": "offset", "rounds": 100}),
    "radius": (plan.radius, {"agent": 1}),
    "limit": (sv.accuracy_limit, {"problem": problem, "plan": plan, "rounds": 9, "saddle": saddle}),
    "load": (sv.Result.load, {"path": "nowhere.npz"}),
    "DualAveraging": (sv.DualAveraging, {"memory": 2.0, "doubt": 0.3, "reach": 256.0,
                                         "theta": 0.5, "start": 1e-5}),
    "Tikhonov": (sv.paper.Tikhonov, {"gamma_bar": 0.1, "alpha_bar": 0.1, "c1": 0.3, "c2": 0.2}),
    "Constants": (sv.paper.Constants, {"k_g": 1.0, "k_prime": (1.0,)}),
    "SecureSampler": (SecureSampler, {"sigma": [1.0]}),
    "gallery.get": (sv.gallery.get, {"name": "paper"}),
    "gallery.known": (sv.gallery.known, {"name": "paper"}),
    "gallery.hock_schittkowski": (sv.gallery.hock_schittkowski, {"number": 22}),
    "gallery.chargers": (sv.gallery.chargers, {"seed": 0, "hours": 3}),
    "of_problem": (sv.network.AgentGroup.of_problem, {"problem": problem, "agents": [1]}),
    "of_file": (sv.network.AgentGroup.of_file, {"path": "nowhere/1.toml"}),
    "of_gradient": (sv.network.AgentGroup.of_gradient, {"cloud": problem.cloud, "agent": 1,
                                               "gradient": abs, "start": None}),
    "Agent": (sv.Agent, {"group": house, "cloud": "wss://h:1", "keys": "k", "saved": "s"}),
}  # fmt: skip
SPOILT = [(name, argument) for name, (_, right) in CALLS.items() for argument in right]


@pytest.mark.parametrize(("name", "argument"), SPOILT)
def test_a_wrong_value_is_refused_by_an_error_of_ours_or_is_right(name: str, argument: str) -> None:
    function, right = CALLS[name]
    for wrong in WRONG:
        with suppress(sv.SottovoceError):
            function(**(right | {argument: wrong}))


def test_text_in_a_total_is_never_evaluated(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(sv.SottovoceError, match="must be a number or made of states, got str"):
        sv.total(f"open({str(trace)!r}, 'w')")
    assert not trace.exists()
