"""Options that several commands share, and what they ask for: a problem, a plan, an algorithm.

Nothing heavy is imported before a command runs: ``--help`` needs none of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sottovoce.errors import InputError
from sottovoce.progress import Progress, silent

if TYPE_CHECKING:
    from sottovoce.algorithm.algorithm import Algorithm
    from sottovoce.certificate.certificate import Certificate
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.problem import Problem

DEFAULT_ROUNDS = 2_000
CONNECT_SECONDS = 10

ProblemName = Annotated[
    str,
    typer.Argument(metavar="PROBLEM", help="folder with problem.toml and agents/, or gallery:NAME"),
]
PublicFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="folder with problem.toml; no agents/ needed")
]
Rounds = Annotated[int | None, typer.Option(help="rounds the plan covers")]
Method = Annotated[str, typer.Option(help="joint, or paper for Theorems 2 and 3")]
AlgorithmName = Annotated[
    str | None,
    typer.Option("--algorithm", help="dual-averaging (default), or tikhonov: the paper's"),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="run on a Dask cluster, e.g. tcp://host:8786")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="refuse where the answer is expected to be useless")
]
Listen = Annotated[str, typer.Option(help="address:port")]
LedgerOption = Annotated[
    Path | None, typer.Option(help="accounts; the run is refused if they do not cover it")
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error")]
Json = Annotated[bool, typer.Option("--json", help="print JSON for scripts")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyOptions:
    """A promise; what is not given is taken from the table ``[privacy]`` of problem.toml."""

    epsilon: Annotated[
        str | None, typer.Option(help="privacy loss, e.g. 'ln(3)' or one per agent '1,1,2'")
    ] = None
    delta: Annotated[str | None, typer.Option(help="failure probability in (0, 1)")] = None
    radius: Annotated[
        str | None,
        typer.Option(help="b, how much is hidden: one number or one per agent '1,1,0.5'"),
    ] = None
    hide: Annotated[
        str | None,
        typer.Option(
            help="what is hidden: trajectory (default; a change of b in total, so a constant "
            "offset of only b/sqrt(T)), offset (of b in every round) or everything (any behaviour "
            "within the public set)"
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether any option was given."""
        return any(getattr(self, field.name) for field in fields(self))

    def values(self) -> dict[str, Any]:
        """Return the promise with its numbers read: each one number, or one per agent."""
        texts = {"epsilon": self.epsilon, "delta": self.delta, "radius": self.radius}
        lists = {name: text and numbers(text, name) for name, text in texts.items()}
        alone = {name: v[0] if v and len(v) == 1 else v for name, v in lists.items()}
        return alone | {"hide": self.hide}

    def plan(
        self,
        problem: Problem,
        certificate: Certificate,
        *,
        rounds: int | None = None,
        method: str = "joint",
        split: bool = False,
        allow_undernoised: bool = False,
        progress: Progress = silent,
    ) -> NoisePlan:
        """Return the plan of this promise."""
        from sottovoce.privacy.trust import SplitCloud
        from sottovoce.study.promise import Promise

        return Promise(**self.values()).plan(
            problem,
            self._aimed(certificate),
            rounds=rounds,
            method=method,
            progress=progress,
            **self._feasible(problem, method),
            **({"trust": SplitCloud()} if split else {}),
            **({"allow_undernoised": True} if allow_undernoised else {}),
        )

    def _aimed(self, certificate: Certificate) -> Certificate:
        """Studies of the noise alone aim at constraints as they stand."""
        return certificate.for_study()

    def _feasible(self, problem: Problem, method: str) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(PrivacyOptions):
    """A promise, and whether answers keep the constraints."""

    feasible: Annotated[
        str | None,
        typer.Option(
            help="keep all constraints: confirmed answers violate one with probability 1 - p at "
            "most, e.g. 0.95"
        ),
    ] = None
    each_row: Annotated[
        bool, typer.Option("--each-row", help="with --feasible: for every constraint by itself")
    ] = False

    def _aimed(self, certificate: Certificate) -> Certificate:
        return certificate

    def _feasible(self, problem: Problem, method: str) -> dict[str, Any]:
        """Return the options' wish, or the file's for a release of sums."""
        from sottovoce.formula.parse import parse_number

        value: Any = self.feasible
        if value is None and method == "joint":
            value = problem.privacy.get("feasible")
        if value is None:
            if self.each_row:
                raise InputError("--each-row must go with --feasible, got it alone")
            return {}
        number = parse_number(value, where="--feasible") if isinstance(value, str) else value
        each = self.each_row or bool(problem.privacy.get("each_row", False))
        return {"feasible": float(str(number)), "each_row": each}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the fields of parameters that are dataclasses of options on the command line."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not is_dataclass(kind):
            flat.append(parameter.replace(annotation=kind))
            continue
        groups[name] = kind  # type: ignore[assignment]
        types = get_type_hints(kind, include_extras=True)
        flat += [
            parameter.replace(name=f.name, default=f.default, annotation=types[f.name])
            for f in fields(kind)
        ]

    @wraps(command)
    def flattened(*args: Any, **values: Any) -> None:
        for name, kind in groups.items():
            names = [f.name for f in fields(kind) if f.name in values]
            values[name] = kind(**{field: values.pop(field) for field in names})
        command(*args, **values)

    flattened.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    flattened.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return flattened


def numbers(text: str, name: str) -> list[float]:
    """Read a comma-separated list of numbers such as ``0.1,ln(3),1e-6``."""
    from sottovoce.formula.parse import parse_number

    return [parse_number(part, where=f"--{name}") for part in text.split(",")]


def one_number(text: str, name: str) -> float:
    """Read a number that holds for all agents."""
    values = numbers(text, name)
    if len(values) != 1:
        raise InputError(
            f"{name} must be one number for all agents, got {text!r:.60}: treat agents that differ "
            "one after the other"
        )
    return values[0]


def load(where: str | Path) -> Problem:
    """Return the problem of a folder, or of the gallery: ``gallery:paper``."""
    from sottovoce.problem import gallery
    from sottovoce.problem.files.load import load_problem

    kind, _, name = str(where).partition(":")
    return gallery.get(name) if kind == "gallery" else load_problem(where)


def run_rounds(problem: Problem, asked: int | None) -> int:
    """Return the rounds to run: as asked, else as the problem file says, else 2,000."""
    from sottovoce.arguments import whole

    stated = problem.schedule.get("rounds", problem.privacy.get("rounds", DEFAULT_ROUNDS))
    return whole("rounds", stated if asked is None else asked, least=1)


def algorithm_for(problem: Problem, asked: str | None = None) -> Algorithm:
    """Return the algorithm asked for, by the command or in the file's ``[schedule]`` table.

    gamma_bar, alpha_bar, c1 and c2 of the table are the paper's algorithm's.
    """
    from sottovoce.algorithm.dual_averaging import DualAveraging
    from sottovoce.formula.parse import parse_number
    from sottovoce.paper.tikhonov import Tikhonov

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
    from sottovoce.algorithm.algorithm import GradientSteps

    return algorithm.release if isinstance(algorithm, GradientSteps) else "joint"


def make_folder(out: Path | None) -> None:
    """Make the folder for results first: better to fail now than after all the work."""
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out must be a folder, got {out}: {error.strerror}") from error


@contextmanager
def on_cluster(address: str | None) -> Iterator[Any]:
    """Return the client of a Dask cluster; None, for this process, without an address.

    Raises:
        InputError: if distributed is not installed, or nothing answers there.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "--cluster needs Dask's distributed, got none: install sottovoce[cluster]"
        ) from None
    try:
        client: Any = Client(address, timeout=CONNECT_SECONDS)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise InputError(
            f"--cluster must be the address of a Dask scheduler that answers, such as "
            f"tcp://host:8786, got {address!r:.60} ({type(error).__name__})"
        ) from None
    with client:
        yield client
