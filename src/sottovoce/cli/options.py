"""Options that several commands share, and what they ask for: a problem, a plan, an algorithm.

Nothing heavy is imported before a command runs: ``--help`` needs none of it.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar, cast, get_type_hints

import typer

from sottovoce.cli.console import errors
from sottovoce.errors import InputError
from sottovoce.network import DEADLINE_SECONDS, RELAY_DEADLINE_SECONDS
from sottovoce.progress import PATIENCE_SECONDS, Progress, shown, silent

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from sottovoce.algorithm.algorithm import Algorithm
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.files.load import Public
    from sottovoce.problem.problem import Problem
    from sottovoce.study.promise import Promise

DEFAULT_ROUNDS = 2_000
CONNECT_SECONDS = 10

ProblemName = Annotated[
    str,
    typer.Argument(metavar="PROBLEM", help="folder with problem.toml and agents/, or gallery:NAME"),
]

SHARED = {
    "algorithm": "dual-averaging (default), or tikhonov: the paper's",
    "cloud": "the cloud, or a relay, wss://host:port",
    "cluster": "run on a Dask cluster, e.g. tcp://host:8786",
    "deadline": "seconds that a round waits for agents, e.g. 2s; by default "
    f"{DEADLINE_SECONDS[1]:g}s, of a relay {RELAY_DEADLINE_SECONDS[1]:g}s: fewer than above it",
    "first_deadline": "the same of the first round after a start; by default "
    f"{DEADLINE_SECONDS[0]:g}s, of a relay {RELAY_DEADLINE_SECONDS[0]:g}s",
    "feasible": "p, e.g. 0.95: an answer is confirmed and violates a constraint with probability "
    "at most 1 - p",
    "health_listen": "address:port for /livez, /readyz and /metrics without a certificate",
    "json": "print JSON for scripts",
    "listen": "address:port",
    "log_level": "debug, info, warning or error",
    "method": "joint, or paper for Theorems 2 and 3",
    "rounds": "rounds; by default the file's, or else 2000",
    "runs": "how many independent runs",
    "seed": "run r depends on (seed, r) alone",
    "strict": "refuse where the answer is expected to be useless",
}
"""Help texts of options that several commands share."""

_T = TypeVar("_T")
REQUIRED: Any = MISSING  # the default of an option that must be given


def option(default: _T, text: str, flag: str | None = None) -> _T:
    """Return the default of an option, or ``REQUIRED``, with what ``--help`` says of it.

    A parameter of a command, or a field of a dataclass of options, has it as its default; ``flag``
    is what the command line calls it, by default as the parameter.
    """
    declared: Any = field(default=default, metadata={"help": text, "flag": flag})
    return cast("_T", declared)


def argument(text: str) -> Any:
    """Return the default of a positional argument that must be given, with its help."""
    return field(metadata={"help": text, "positional": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyOptions:
    """A promise; what is not stated is taken from the table ``[privacy]`` of problem.toml."""

    applied: ClassVar[bool] = False  # whether answers are applied: hard constraints need margins

    epsilon: str | None = option(None, "privacy loss, e.g. 'ln(3)' or one per agent '1,1,2'")
    delta: str | None = option(None, "failure probability in (0, 1)")
    radius: str | None = option(
        None, "b, how much is hidden: one number or one per agent '1,1,0.5'"
    )
    hide: str | None = option(
        None,
        "what is hidden: trajectory (default; a change of b in total, so a constant offset of only "
        "b/sqrt(T)), offset (of b in every round) or everything (any behaviour within the public "
        "set)",
    )

    @property
    def is_given(self) -> bool:
        """Whether any option is given."""
        return any(getattr(self, field.name) for field in fields(self))

    def promise(self) -> Promise:
        """Return the promise as it was stated, numbers as text."""
        from sottovoce.study.promise import Promise

        return Promise(epsilon=self.epsilon, delta=self.delta, radius=self.radius, hide=self.hide)

    def plan(
        self,
        problem: Problem,
        *,
        public: bool = False,
        rounds: int | None = None,
        method: str = "joint",
        split: bool = False,
        allow_undernoised: bool = False,
        progress: Progress = silent,
    ) -> NoisePlan:
        """Certify a problem, or what is public of it, and return the plan of this promise."""
        from sottovoce.certificate.certificate import certify
        from sottovoce.privacy.trust import SplitCloud

        certificate = certify(problem.cloud if public else problem, progress=progress)
        feasible, each_row = self.margins(problem, method)
        return self.promise().plan(
            problem,
            certificate if self.applied else certificate.for_study(),
            rounds=rounds,
            method=method,
            trust=SplitCloud() if split else None,
            feasible=feasible,
            each_row=each_row,
            allow_undernoised=allow_undernoised,
            progress=progress,
        )

    def margins(self, problem: Problem, method: str) -> tuple[float | None, bool]:
        """Return ``feasible`` and ``each_row`` of ``sv.plan``."""
        return None, False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(PrivacyOptions):
    """A promise, and whether answers keep the constraints."""

    applied: ClassVar[bool] = True

    feasible: str | None = None
    each_row: bool = option(False, "with --feasible: for every constraint by itself")

    def margins(self, problem: Problem, method: str) -> tuple[float | None, bool]:
        """Return them by the options, or by the file for a release of sums."""
        from sottovoce.formula.parse import parse_number

        value: str | float | None = self.feasible
        if value is None and method == "joint":
            value = problem.privacy.get("feasible")
        if value is None:
            if self.each_row:
                raise InputError("--each-row must go with --feasible, got it alone")
            return None, False
        number = parse_number(value, where="--feasible") if isinstance(value, str) else value
        each_row = self.each_row or bool(problem.privacy.get("each_row", False))
        return float(number), each_row


def with_role_options(command: Callable[..., None]) -> Callable[..., None]:
    """Take the options of a role from the command line, else ``SOTTOVOCE_NAME``, else a file."""
    return with_options(command, role=True)


def with_options(command: Callable[..., None], *, role: bool = False) -> Callable[..., None]:
    """Put ``option`` and ``argument``, and the fields of dataclasses, on the command line."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not is_dataclass(kind):
            flat.append(_flattened(name, kind, parameter.default, role=role))
            continue
        groups[name] = kind  # type: ignore[assignment]
        types = get_type_hints(kind, include_extras=True)
        flat += [_flattened(f.name, types[f.name], f, role=role) for f in fields(kind)]
    if role:
        flat.append(_CONFIG)

    ordered = sorted(flat, key=lambda p: p.default is not p.empty)
    signature = inspect.Signature(ordered)

    @wraps(command)
    def flattened(*args: object, **values: object) -> None:
        bound = signature.bind(*args, **values)
        bound.apply_defaults()
        arguments = bound.arguments
        arguments.pop(_CONFIG.name, None)  # what it says is among the others
        for name, kind in groups.items():
            arguments[name] = kind(**{f.name: arguments.pop(f.name) for f in fields(kind)})
        command(**arguments)

    flattened.__signature__ = signature  # type: ignore[attr-defined]
    flattened.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return flattened


def _flattened(name: str, kind: Any, declared: object, *, role: bool) -> inspect.Parameter:
    """A parameter as Typer reads it: its type with the help text, and its plain default."""
    environment = f"SOTTOVOCE_{name.upper()}" if role else None
    default, text, positional, stated = declared, SHARED.get(name), False, None
    if isinstance(declared, Field):
        default, text = declared.default, declared.metadata.get("help", text)
        positional = "positional" in declared.metadata
        stated = declared.metadata.get("flag")
    if positional:
        kind = Annotated[kind, typer.Argument(help=text)]
    elif text is not None:
        plain = f"--{name.replace('_', '-')}" if kind is bool else None  # and no --no-flag
        flag = tuple(filter(None, [stated or plain]))
        kind = Annotated[kind, typer.Option(*flag, help=text, envvar=environment)]
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=kind,
    )


def _read_config(context: typer.Context, file: Path | None) -> Path | None:
    """Take options that are given in no other way from a file of ``name = value``."""
    if file is None:
        return None
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"--config must be a readable file, got {file}: {error.strerror}"
        ) from None
    except ValueError as error:
        raise InputError(f"--config must be TOML, got {file}: {error}") from None
    names = {p.name for p in context.command.params if p.param_type_name == "option"}
    unknown = sorted(key for key in values if key.replace("-", "_") not in names)
    if unknown:
        raise InputError(
            f"{file} must name options of {context.info_name}, got {unknown[0]!r:.60}: known are "
            + ", ".join(sorted(name.replace("_", "-") for name in names if name))
        )
    context.default_map = {
        key.replace("-", "_"): value if isinstance(value, bool) else str(value)
        for key, value in values.items()
    }
    return file


_CONFIG: Final = inspect.Parameter(
    "config",
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            callback=_read_config,
            is_eager=True,
            envvar="SOTTOVOCE_CONFIG",
            help="TOML file of these options, such as rounds = 2000; options given here, or as "
            "environment variables, come first",
        ),
    ],
)


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


def load(
    source: str | Path, *, agents: Sequence[int] | None = None, public: Public | None = None
) -> Problem:
    """Return the problem of a folder, or of the gallery: ``gallery:paper``.

    ``agents`` are those whose private files to read: none for a cloud, all by default; ``public``
    numbers take the place of those of the folder.
    """
    from sottovoce.problem import gallery
    from sottovoce.problem.files.load import load_problem

    kind, _, name = str(source).partition(":")
    return (
        gallery.get(name)
        if kind == "gallery"
        else load_problem(source, agents=agents, public=public)
    )


def run_rounds(problem: Problem, rounds: int | None) -> int:
    """Return the rounds to run: the option's, else the problem file's, else 2,000."""
    from sottovoce.arguments import whole

    of_file = problem.schedule.get("rounds", problem.privacy.get("rounds", DEFAULT_ROUNDS))
    return whole("rounds", of_file if rounds is None else rounds, least=1)


def algorithm_for(problem: Problem, name: str | None = None, *, method: str = "joint") -> Algorithm:
    """Return the algorithm of an option, else of the release, else of the ``[schedule]`` table.

    The table may also state settings of an algorithm of another release than sums.
    """
    from sottovoce.algorithm.algorithm import from_schedule
    from sottovoce.algorithm.dual_averaging import DualAveraging
    from sottovoce.privacy.releases import ALGORITHMS, release_of

    of_release = next((name for name, release in ALGORITHMS.items() if release == method), None)
    name = name or of_release or str(problem.schedule.get("algorithm", "dual-averaging"))
    if name == "dual-averaging":
        return DualAveraging()
    if name not in ALGORITHMS:
        names = " or ".join(["dual-averaging", *ALGORITHMS])
        raise InputError(f"algorithm must be {names}, got {name!r}")
    chosen: Algorithm = from_schedule(release_of(ALGORITHMS[name]).algorithm, problem.schedule)
    return chosen


def method_for(algorithm: Algorithm) -> str:
    """Return the release that an algorithm works with on the network: sums by default."""
    return getattr(algorithm, "release", "joint")


def make_folder(out: Path | None) -> None:
    """Make the folder for results first: better to fail now than after all the work."""
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out must be a folder, got {out}: {error.strerror}") from error


@contextmanager
def study(
    problem: str,
    cluster: str | None = None,
    out: Path | None = None,
    *,
    doing: str = "reading",
    patience: float = PATIENCE_SECONDS,
) -> Iterator[tuple[Progress, Executor | None]]:
    """Make the folder for results, connect to a cluster, and show progress."""
    make_folder(out)
    with shown(f"{doing} {problem}", patience=patience) as report, on_cluster(cluster) as executor:
        yield report, executor


def draw_figure(plot: Callable[[Path], object], file: Path | None) -> None:
    """Draw a figure, and say where it is."""
    if file is not None:
        plot(file)
        errors.print(f"figure: {file}", soft_wrap=True)


@contextmanager
def on_cluster(address: str | None) -> Iterator[Any]:
    """Return the client of a Dask cluster; None, for this process, without an address."""
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
