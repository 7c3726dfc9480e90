"""The public names that the behaviour suite uses, each spelled once.

A public name that changes is edited here and nowhere else in this folder. Nothing here imports a
module of the package besides ``sottovoce`` itself and the command's entry point.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import sottovoce as sv
from sottovoce.cli import main
from sottovoce.network.round_arithmetic import SimulatedSampler
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.sampler import SecureSampler

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAPER = EXAMPLES / "paper"
COUPLED = EXAMPLES / "coupled"

Array = npt.NDArray[np.float64]
Problem = sv.Problem

# Errors

SottovoceError = sv.SottovoceError
BudgetError = sv.errors.BudgetError
CertificateError = sv.errors.CertificateError
ConvexityError = sv.errors.ConvexityError
InputError = sv.errors.InputError
NetworkError = sv.errors.NetworkError
PrivacyError = sv.errors.PrivacyError
ProblemError = sv.errors.ProblemError
RollbackError = sv.errors.RollbackError
UnavailableError = sv.errors.UnavailableError
TRUTH: tuple[type[Exception], ...] = (TypeError, ProblemError)
"""What Python's own questions to a formula raise: its truth, its value as a number."""

# Stating a problem


def agents(count: int, **bounds: Any) -> Any:
    """Agents stated one by one; ``[i]`` is the state of agent ``i`` from 0."""
    return sv.agents(bounds.pop("names", count), **bounds)


def fleet(count: int, **facts: Any) -> Any:
    """Agents with one formula and arrays of parameters."""
    return sv.agents(count, **facts)


def state_of(group: Any) -> Any:
    """The state of one agent of a fleet, as formulas."""
    return group.x


def parameter(group: Any, name: str) -> Any:
    """A parameter of a fleet, as a formula."""
    return group[name]


def total(group: Any, terms: Any = None, **weights: Any) -> Any:
    """A sum over all agents of a fleet."""
    return sv.total(group if terms is None else terms, **weights)


def equal(left: Any, right: Any) -> Any:
    """The constraint that two sides are equal."""
    return left == right


def state_problem(who: Any, objectives: Any, constraints: Any, **more: Any) -> sv.Problem:
    """A problem of these agents."""
    return sv.Problem(agents=who, objectives=objectives, constraints=constraints, **more)


def load_problem(folder: Any, **what: Any) -> sv.Problem:
    return sv.Problem.load(folder, **what)


def save_problem(problem: sv.Problem, folder: Any, **what: Any) -> None:
    problem.save(folder, **what)


def public_view(problem: sv.Problem) -> Any:
    """What the cloud knows of a problem."""
    return problem.cloud


def sums_of(problem: sv.Problem) -> list[str]:
    """The labels of the sums that couple the agents."""
    return list(problem.cloud.sums.labels())


def values_at(problem: sv.Problem, x: Any) -> Array:
    """The left sides of all constraints, written ``g <= 0`` or ``g == 0``, at a point."""
    return np.asarray(problem.evaluate(x).rows, dtype=np.float64)


def violation_at(problem: sv.Problem, x: Any) -> float:
    """The largest violation of a constraint at a point."""
    return float(np.max(problem.evaluate(x).violation))


def gallery(name: str) -> sv.Problem:
    return sv.gallery.get(name)


# Certificates, plans, runs


_CERTIFICATES: dict[tuple[Any, ...], Any] = {}


def certify(problem: Any, **how: Any) -> Any:
    """The certificate of a problem; the same problem is certified once for the whole suite."""
    if "progress" in how or not isinstance(problem, sv.Problem):
        return sv.certify(problem, **how)
    stated = (problem.fingerprint, public_view(problem).fingerprint, *sums_of(problem))
    key = (*stated, *sorted(how.items()))
    if key not in _CERTIFICATES:
        _CERTIFICATES[key] = sv.certify(problem, **how)
    return _CERTIFICATES[key]


def sensitivities(certificate: Any) -> Array:
    """The certified bound of every sum against every agent."""
    return np.asarray(certificate.sensitivity.dense(), dtype=np.float64)


def kept_box(certificate: Any, agent: int) -> tuple[Array, Array]:
    """The certified domain of an agent from 0, or of a fleet."""
    group = certificate.domain[agent]
    return group.lower, group.upper


def plan(certified: Any, **promise: Any) -> Any:
    """A noise plan; a problem is certified first."""
    return sv.plan(certified, **promise)


def paper_plan(certified: Any, **promise: Any) -> Any:
    """The paper's noise for its own release."""
    return sv.paper.plan(certified, **promise)


def guarantee(noise: Any, agent: int) -> Any:
    """The promise to an agent, counted from 0."""
    return noise.guarantee(agent)


def simulate(problem: Any, noise: Any = None, **how: Any) -> Any:
    return sv.simulate(problem, noise, **how)


def load_result(path: Any) -> Any:
    return sv.Result.load(path)


def optimum(problem: sv.Problem) -> Any:
    """The reference optimum: ``x``, ``mu``, ``objective``, ``active``, ``flat``."""
    return sv.reference_optimum(problem)


def accuracy_limit(problem: sv.Problem, noise: Any, rounds: int) -> Any:
    return sv.accuracy_limit(problem, noise, rounds)


def papers_algorithm(**steps: float) -> Any:
    return sv.paper.Tikhonov(**steps)


def papers_constants(**known: Any) -> Any:
    return sv.paper.Constants(**known)


def audit(problem: sv.Problem, noise: Any, *, agent: int, **how: Any) -> Any:
    """Play the distinguishing game for an agent, counted from 0."""
    return sv.audit(problem, noise, agent=agent, **how)


def charge(agent: str, hide: str, radius: float | None, mu: float) -> Any:
    """What one run costs one agent."""
    return Charge(agent=agent, protected=Protected(hide, radius), mu=mu, allowance=0.0)  # type: ignore[arg-type]


def secure_sampler(sigma: Sequence[float]) -> Any:
    return SecureSampler(sigma)


def simulated_sampler(sigma: Any, seed: int) -> Any:
    return SimulatedSampler(sigma, seed=seed)


def coded_agent(
    problem: sv.Problem, agent: int, gradient: Callable[[Array], Any], **facts: Any
) -> Any:
    """An agent of the network, from 0, whose objective is code."""
    return sv.network.AgentGroup.of_gradient(problem.cloud, agent, gradient, **facts)


def held_agents(problem: sv.Problem, numbers: Sequence[int]) -> Any:
    """Agents of the network, counted from 0, of a problem in memory."""
    return sv.network.AgentGroup.of_problem(problem, list(numbers))


# The command line


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


COMMAND = (sys.executable, "-c", "from sottovoce.cli import main; main()")
"""The command in a process of its own."""


@contextlib.contextmanager
def _as_command(words: Sequence[str]) -> Iterator[None]:
    argv, threshold, columns = sys.argv, gc.get_threshold(), os.environ.get("COLUMNS")
    loggers = [logging.getLogger(), logging.getLogger("sottovoce")]
    before = [(one, one.level, list(one.handlers), one.propagate) for one in loggers]
    sys.argv, os.environ["COLUMNS"] = ["sottovoce", *words], "110"
    try:
        yield
    finally:
        sys.argv = argv
        gc.set_threshold(*threshold)
        for one, level, handlers, propagate in before:
            one.level, one.handlers, one.propagate = level, handlers, propagate
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


def run_cli(*words: Any) -> Ran:
    """Run a command in this process, through the entry point that is installed."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        _as_command([str(word) for word in words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Ran(code=code, out=out.getvalue(), err=err.getvalue())
