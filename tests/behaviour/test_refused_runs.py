"""Everything that simulations, results, studies, clouds and agents refuse."""

from __future__ import annotations

import concurrent.futures
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import problems as p
import pytest
from refusals import Refusal, check, listed

import sottovoce

pytestmark = pytest.mark.core
sv: Any = sottovoce  # wrong types are refused too

INPUT, PRIVACY = sv.errors.InputError, sv.errors.PrivacyError


@cache
def problem() -> Any:
    return p.bakeries()


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "feasible": {"feasible": 0.9},
    "split": {"trust": sv.SplitCloud()},
    "open": {"hide": sv.Trajectory(radius=2.0)},  # covers more rounds than anybody runs, names none
    "paper": {"method": "paper"},
    "undernoised": {
        "method": "paper", "allow_undernoised": True,
        "constants": sv.paper.Constants(k_g=1e-3, k_prime=(1.0,) * 3),
    },
}  # fmt: skip


@cache
def noise(kind: str = "plain") -> Any:
    return p.plan(problem(), rounds=50, **KINDS[kind])


def run(**changed: Any) -> Any:
    stated = changed.pop("problem", None) or problem()
    plan = changed.pop("plan") if "plan" in changed else noise()
    return sv.simulate(stated, plan, **{"rounds": 3} | changed)


def own_algorithm() -> Any:
    """An algorithm whose answer weighs rounds in its own way."""

    class Uniform:
        theta = 0.5

        def memory_size(self, sums: int) -> int:
            return 0

        def cloud_round(self, k: int, y: Any, price: Any, *public: Any) -> Any:
            return price + y / k

        def share(self, k: Any, rounds: int, *, noisy: bool) -> Any:
            return 1.0 / np.atleast_1d(k)

    return Uniform()


def excluded() -> Any:
    """Agent x1 keeps above 0.9, and the public rows below 0.5."""
    x = sv.agents(2, lower=0, upper=1)
    return sv.Problem(objectives=list(x**2), constraints=[x[0] + x[1] <= 0.5], local=[x[0] >= 0.9])


SIMULATIONS = [
    Refusal("a simulation of no problem", lambda: sv.simulate(3, rounds=2), INPUT, ("problem", "3")),
    Refusal("a plan that is a number", lambda: run(plan=3), INPUT, ("plan", "3")),
    Refusal("no rounds", lambda: run(rounds=0), INPUT, ("rounds", "0")),
    Refusal("half a round", lambda: run(rounds=2.5), INPUT, ("rounds", "integer", "2.5")),
    Refusal("no runs", lambda: run(runs=0), INPUT, ("runs", "0")),
    Refusal("runs that are text", lambda: run(runs="many"), INPUT, ("runs", "many")),
    Refusal("a seed that is negative", lambda: run(seed=-1), INPUT, ("seed", "-1")),
    Refusal("threads that are negative", lambda: run(threads=-1), INPUT, ("threads", "-1")),
    Refusal("half a round to record", lambda: run(record=[1.5]), INPUT, ("record", "integer", "1.5")),
    Refusal("an algorithm that is text", lambda: run(algorithm="newton"), INPUT, ("algorithm", "newton", "DualAveraging")),
    Refusal("an algorithm's class", lambda: run(algorithm=sv.DualAveraging), INPUT, ("algorithm", "DualAveraging")),
    Refusal("a plan of another problem", lambda: run(problem=p.readme()), INPUT, ("plan", "problem", "plan again")),
    Refusal("rounds that nothing names", lambda: run(plan=None, rounds=None), INPUT, ("rounds", "none", "rounds=")),
    Refusal("rounds that the plan leaves open", lambda: run(plan=noise("open"), rounds=None), INPUT, ("rounds", "none", "Trajectory")),
    Refusal("more rounds than planned", lambda: run(rounds=51), INPUT, ("rounds", "50", "51")),
    Refusal("fewer rounds than margins are for", lambda: run(plan=noise("feasible"), rounds=40), INPUT, ("rounds", "50", "40", "feasible")),
    Refusal("a start of another size", lambda: run(x0=[1.0, 2.0]), INPUT, ("x0", "3", "(2,)")),
    Refusal("a start outside the box", lambda: run(x0=[1.0, 2.0, 99.0]), INPUT, ("x0", "west", "bounds|box")),
    Refusal("a start that is NaN", lambda: run(x0=[1.0, 2.0, math.nan]), INPUT, ("x0", "west|finite")),
    Refusal("prices to start from", lambda: run(mu0=[1.0]), INPUT, ("mu0", "Tikhonov|price")),
    Refusal("too many multipliers to start from", lambda: run(mu0=[1.0, 2.0], algorithm=sv.paper.Tikhonov()), INPUT, ("mu0", "1", "(2,)")),
    Refusal("a negative multiplier to start from", lambda: run(mu0=[-1.0], algorithm=sv.paper.Tikhonov()), INPUT, ("mu0", "negative", "-1")),
    Refusal("a round to record that is not run", lambda: run(record=[9]), INPUT, ("record", "3", "9")),
    Refusal("a transcript that is too long", lambda: run(rounds=50, runs=10_000_000, transcript=True), INPUT, ("transcript", "50", "10000000|10,000,000")),
    Refusal("a saddle of one vector", lambda: run(saddle=([1.0, 2.0, 3.0],)), INPUT, ("saddle", "1")),
    Refusal("a saddle of another size", lambda: run(saddle=([1.0], [2.0])), INPUT, ("saddle", "3", "(1,)")),
    Refusal("a checkpoint in no folder", lambda: run(checkpoint="/nowhere/at/all/run.npz"), INPUT, ("checkpoint", "folder", "nowhere")),
    Refusal("a checkpoint with an executor", lambda: run(checkpoint="c.npz", executor=concurrent.futures.ThreadPoolExecutor(1)), INPUT, ("checkpoint", "executor")),
    Refusal("an executor that is a number", lambda: run(executor=3), INPUT, ("executor", "int")),
    Refusal("the paper's algorithm with an equality", lambda: sv.simulate(p.flows(), rounds=2, algorithm=sv.paper.Tikhonov()), INPUT, ("equalit", "default")),
    Refusal("the paper's algorithm with a local row", lambda: sv.simulate(p.small_fleet(5), rounds=2, algorithm=sv.paper.Tikhonov()), INPUT, ("local", "default")),
    Refusal("the paper's algorithm with code", lambda: sv.simulate(p.coded(), rounds=2, algorithm=sv.paper.Tikhonov()), INPUT, ("code", "default")),
    Refusal("the paper's algorithm with sums that mix agents", lambda: sv.simulate(p.coupled(), p.plan(p.coupled(), radius=0.1), rounds=2, algorithm=sv.paper.Tikhonov()), INPUT, ("sums", "sv.paper.plan", "default")),
    Refusal("the default algorithm with the paper's plan", lambda: run(plan=noise("paper")), INPUT, ("sums", "sv.plan", "Tikhonov|paper")),
    Refusal("feasible with the paper's algorithm", lambda: run(plan=noise("feasible"), rounds=50, algorithm=sv.paper.Tikhonov()), INPUT, ("feasible", "default")),
    Refusal("feasible with an algorithm that weighs rounds in its own way", lambda: run(plan=noise("feasible"), rounds=50, algorithm=own_algorithm()), INPUT, ("feasible", "share", "Uniform")),
    Refusal("steps in the wrong order", lambda: sv.paper.Tikhonov(c1=0.2, c2=0.3), INPUT, ("c1", "c2", "0.2", "0.3")),
    Refusal("steps that are too large together", lambda: sv.paper.Tikhonov(c1=0.7, c2=0.4), INPUT, ("c1", "c2", "0.7", "0.4")),
    Refusal("a step 0", lambda: sv.paper.Tikhonov(gamma_bar=0.0), INPUT, ("gamma_bar", "0")),
    Refusal("a memory that is negative", lambda: sv.DualAveraging(memory=-1.0), INPUT, ("memory", "-1")),
    Refusal("an own bound outside the public domain", lambda: sv.simulate(excluded(), rounds=2), sv.errors.ProblemError, ("x1|g1", "bounds|box", "widen|relax")),
]  # fmt: skip


def saved(folder: Path) -> Path:
    path = folder / "result.npz"
    run().save(path)
    return path


def cut_short(folder: Path) -> None:
    path = saved(folder)
    path.write_bytes(path.read_bytes()[:200])
    sv.Result.load(path)


def no_result(folder: Path) -> None:
    (folder / "result.npz").write_text("words")
    sv.Result.load(folder / "result.npz")


def checkpoint_of_another(folder: Path) -> None:
    path = folder / "run.npz"
    run(checkpoint=path, seed=1)
    run(checkpoint=path, seed=2)


def other_archive(folder: Path) -> None:
    np.savez(folder / "result.npz", x=np.zeros(3))
    sv.Result.load(folder / "result.npz")


RESULTS = [
    Refusal("a result that is not there", lambda f: sv.Result.load(f / "no.npz"), INPUT, ("no.npz", "exist")),
    Refusal("a result that is cut short", cut_short, INPUT, ("result.npz", "damaged|not a")),
    Refusal("a result that is text", no_result, INPUT, ("result.npz", "not a|damaged")),
    Refusal("an archive of something else", other_archive, INPUT, ("result.npz", "not a|result")),
    Refusal("a result in no folder", lambda f: run().save(f / "no" / "r.npz"), INPUT, ("r.npz", "write")),
    Refusal("a figure of no kind", lambda f: run(record=[1, 2, 3]).plot(f / "figure.words"), INPUT, ("figure.words", "draw")),
    Refusal("another table", lambda f: run().to_frame("rounds"), INPUT, ("what", "answers", "trace", "rounds")),
    Refusal("a checkpoint of another run", checkpoint_of_another, INPUT, ("checkpoint", "run.npz", "another")),
]  # fmt: skip


def audited(**changed: Any) -> Any:
    right = {"problem": problem(), "plan": noise(), "agent": 0, "runs": 100, "rounds": 5}
    return sv.audit(**(right | changed))


def advised(**changed: Any) -> Any:
    return sv.advise(problem(), **({"radius": 1.0, "delta": 0.01} | changed))


STUDIES = [
    Refusal("an audit of no agent", lambda: audited(agent=3), INPUT, ("agent", "2", "3")),
    Refusal("an audit of few games", lambda: audited(runs=50), INPUT, ("runs", "100", "50")),
    Refusal("an audit of one round", lambda: audited(rounds=1), INPUT, ("rounds", "2", "1")),
    Refusal("an audit of more rounds than planned", lambda: audited(rounds=60), INPUT, ("rounds", "50", "60")),
    Refusal("an audit with another problem's plan", lambda: audited(problem=p.readme()), INPUT, ("plan", "problem")),
    Refusal("an audit as a helper that is not there", lambda: audited(view="helper"), INPUT, ("view", "helper", "SplitCloud")),
    Refusal("advice for no kind", lambda: advised(hide="nearby"), INPUT, ("hide", "trajectory", "nearby")),
    Refusal("advice for no epsilon", lambda: advised(epsilons=[-1.0]), INPUT, ("epsilon", "-1")),
    Refusal("advice for several deltas", lambda: advised(delta=[0.1, 0.2]), INPUT, ("delta", "one number|number")),
    Refusal("advice for an accuracy of 0", lambda: advised(accuracy=0.0), INPUT, ("accuracy", "0")),
    Refusal("advice for a probability of 2", lambda: advised(feasible=2.0), INPUT, ("feasible", "2")),
    Refusal("advice for no problem", lambda: sv.advise(3), INPUT, ("problem", "3")),
]  # fmt: skip


def cloud(folder: Path, **changed: Any) -> Any:
    plan = changed.pop("plan", noise())
    facts: dict[str, Any] = {"rounds": 50, "keys": folder / "keys", "store": folder / "run.db"}
    return sv.Cloud(plan, **(facts | changed))


def agent(folder: Path, **changed: Any) -> Any:
    house = changed.pop("house", None) or sv.network.AgentGroup.of_problem(problem(), [0])
    facts: dict[str, Any] = {
        "cloud": "wss://127.0.0.1:1",
        "keys": folder / "keys",
        "saved": folder / "a.state",
    }
    return sv.Agent(house, **(facts | changed))


NETWORK = [
    Refusal("a cloud with a plan for a study", lambda f: cloud(f, plan=noise("undernoised")), PRIVACY, ("plan", "promise|study")),
    Refusal("a cloud for more rounds than planned", lambda f: cloud(f, rounds=51), INPUT, ("rounds", "50", "51")),
    Refusal("a cloud for fewer rounds than margins are for", lambda f: cloud(f, plan=noise("feasible"), rounds=40), INPUT, ("rounds", "50", "40")),
    Refusal("a cloud that holds agents under a trajectory", lambda f: cloud(f, straggler="hold", deadline=1.0), PRIVACY, ("straggler", "wait", "Offset")),
    Refusal("a cloud that does something else with stragglers", lambda f: cloud(f, straggler="drop"), INPUT, ("straggler", "wait", "hold", "drop")),
    Refusal("a deadline without an end", lambda f: cloud(f, straggler="wait", deadline=1.0), INPUT, ("deadline", "wait")),
    Refusal("a split plan without a helper", lambda f: cloud(f, plan=noise("split")), PRIVACY, ("helper", "SplitCloud")),
    Refusal("a helper without a split plan", lambda f: cloud(f, helper="wss://h:1"), INPUT, ("plan", "SplitCloud")),
    Refusal("a helper at no address", lambda f: cloud(f, plan=noise("split"), helper="h"), INPUT, ("helper", "wss://", "h")),
    Refusal("a helper with a seed", lambda f: cloud(f, plan=noise("split"), helper="wss://h:1", seed=3), INPUT, ("seed", "helper")),
    Refusal("a stall of 0 seconds", lambda f: cloud(f, stall=0.0), INPUT, ("stall", "0")),
    Refusal("a split helper with a plan for one cloud", lambda f: sv.network.Helper(noise(), keys=f, store=f / "h.db"), INPUT, ("plan", "SplitCloud")),
    Refusal("an agent at no address", lambda f: agent(f, cloud="https://h"), INPUT, ("cloud", "wss://", "https://h")),
    Refusal("an agent that is a number", lambda f: agent(f, house=3), INPUT, ("group", "3")),
    Refusal("an agent of a number that is not there", lambda f: sv.network.AgentGroup.of_problem(problem(), [7]), INPUT, ("agent", "8|7")),
    Refusal("an agent twice", lambda f: sv.network.AgentGroup.of_problem(problem(), [0, 0]), INPUT, ("agents", "once", "[0, 0]")),
    Refusal("code with a start of two numbers", lambda f: sv.network.AgentGroup.of_gradient(problem().cloud, 0, abs, start=[1.0, 2.0]), INPUT, ("start", "1", "(2,)")),
    Refusal("code with a start that is NaN", lambda f: sv.network.AgentGroup.of_gradient(problem().cloud, 0, abs, start=[math.nan]), INPUT, ("start", "finite")),
    Refusal("an agent's file of another name", lambda f: sv.network.AgentGroup.of_file(f / "north.toml"), sv.errors.ProblemError, ("1.toml", "north.toml")),
    Refusal("a relay of agents out of order", lambda f: sv.network.Relay(problem().cloud, agents=[2, 1], keys=f, above="wss://h:1"), INPUT, ("agents", "increasing")),
    Refusal("a relay of no agents", lambda f: sv.network.Relay(problem().cloud, agents=(), keys=f, above="wss://h:1"), INPUT, ("agents", "increasing")),
    Refusal("a relay to no address", lambda f: sv.network.Relay(problem().cloud, agents=[1, 2], keys=f, above="http://h:1"), INPUT, ("above", "wss://")),
    Refusal("a relay of agents that are not there", lambda f: sv.network.Relay(problem().cloud, agents=[1, 9], keys=f, above="wss://h:1"), INPUT, ("agents", "3", "9")),
]  # fmt: skip


@pytest.mark.parametrize("row", listed(SIMULATIONS + STUDIES))
def test_what_cannot_be_run_is_refused_by_name(row: Refusal) -> None:
    check(row)


@pytest.mark.parametrize("row", listed(RESULTS + NETWORK))
def test_what_disks_and_networks_cannot_do_is_refused_by_name(row: Refusal, tmp_path: Path) -> None:
    check(row, tmp_path)
