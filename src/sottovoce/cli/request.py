"""What options and the problem's file ask for together.

Command modules import this, and whatever else is heavy, when they run: ``--help`` needs none of it.
"""

from __future__ import annotations

from typing import Any

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.tikhonov import Tikhonov
from sottovoce.certificate.certificate import Certificate
from sottovoce.errors import InputError
from sottovoce.formula.parse import parse_number
from sottovoce.privacy.adjacency import Everything, adjacency_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.plan import plan
from sottovoce.privacy.trust import SplitCloud
from sottovoce.problem import gallery
from sottovoce.problem.files.load import load_problem
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, silent


def numbers(text: str, name: str) -> list[float]:
    """Read a comma-separated list of numbers such as ``0.1,ln(3),1e-6``."""
    return [parse_number(part, where=f"--{name}") for part in text.split(",")]


def stated(where: str) -> Problem:
    """Return the problem of a folder, or of the gallery: ``gallery:paper``."""
    kind, _, name = where.partition(":")
    return gallery.get(name) if kind == "gallery" else load_problem(where)


def make_plan(
    problem: Problem,
    certificate: Certificate,
    *,
    epsilon: str | None = None,
    delta: str | None = None,
    radius: str | None = None,
    hide: str | None = None,
    rounds: int | None = None,
    method: str = "joint",
    allow_undernoised: bool = False,
    split: bool = False,
    feasible: str | None = None,
    each_row: bool = False,
    margins: bool = True,
    progress: Progress = silent,
) -> NoisePlan:
    """Plan with the options given, and those of the file's [privacy] table otherwise.

    Without ``margins`` constraints are aimed at as they stand, for studies of the noise alone.
    """
    kind = hide or str(problem.privacy.get("hide", "trajectory"))
    chosen = {"epsilon": epsilon, "delta": delta, "radius": radius}
    values = {name: _value(problem, name, text) for name, text in chosen.items()}
    for name in ("epsilon", "delta"):
        if values[name] is None:
            raise InputError(
                f"{name} must be given: use --{name}, or write it under [privacy] in problem.toml"
            )
    if kind == Everything.kind and radius is None:
        values["radius"] = None  # the file's is for what the file hides
    covered = rounds if rounds is not None else problem.privacy.get("rounds")
    return plan(
        certificate if margins else certificate.for_study(),
        epsilon=values["epsilon"],
        delta=values["delta"],
        hide=adjacency_of(kind, radius=values["radius"], rounds=covered),
        method=method,
        allow_undernoised=allow_undernoised,
        trust=SplitCloud() if split else None,
        **(_feasible(problem, method, feasible, each_row=each_row) if margins else {}),
        progress=progress,
    )


def _feasible(
    problem: Problem, method: str, asked: str | None, *, each_row: bool
) -> dict[str, Any]:
    """What the options, or the file for a release of sums, ask for."""
    given = problem.privacy.get("feasible") if asked is None and method == "joint" else asked
    if given is None:
        if each_row:
            raise InputError("--each-row must go with --feasible, got it alone")
        return {}
    text = parse_number(given, where="--feasible") if isinstance(given, str) else given
    each = each_row or bool(problem.privacy.get("each_row", False))
    return {"feasible": float(str(text)), "each_row": each}


def algorithm_for(problem: Problem, asked: str | None = None) -> Algorithm:
    """Return the algorithm asked for, by the command or in the file's [schedule] table.

    gamma_bar, alpha_bar, c1 and c2 of the table are the paper's algorithm's.
    """
    name = asked or str(problem.schedule.get("algorithm", "dual-averaging"))
    if name == "dual-averaging":
        return DualAveraging()
    if name != "tikhonov":
        raise InputError(f"algorithm must be dual-averaging or tikhonov, got {name!r}")
    settings = {
        name: parse_number(value, where=f"[schedule] {name}") if isinstance(value, str) else value
        for name, value in problem.schedule.items()
        if name in ("gamma_bar", "alpha_bar", "c1", "c2")
    }
    return Tikhonov(**settings)


def method_for(algorithm: Algorithm) -> str:
    """Return the release that an algorithm works with on the network: sums, or the paper's."""
    return "paper" if isinstance(algorithm, GradientSteps) else "joint"


def _value(problem: Problem, name: str, text: str | None) -> Any:
    given = problem.privacy.get(name) if text is None else text
    if isinstance(given, str):
        listed = numbers(given, name)
        return listed[0] if len(listed) == 1 else listed
    return given
