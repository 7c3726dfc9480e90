"""The result of a simulation: where every run ended, how it got there, and a file for it."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.price_memory import PriceMemory
from sottovoce.arguments import path_of
from sottovoce.errors import InputError
from sottovoce.problem.constraints import equalities
from sottovoce.problem.groups import Array, read_only
from sottovoce.tables import facts_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from sottovoce.simulation.runs import SimulationRequest
    from sottovoce.simulation.summary import Summary

_Kind = TypeVar("_Kind", "Result", "Trace", "Transcript", "Assessment", "PriceMemory")

FORMAT = 7  # the version of result files; a file with a higher one is refused

SADDLE_STATES = 3000
"""States of a problem up to which its saddle point is worked out for nothing but comparison."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """What was measured at the recorded rounds; arrays of shape (runs, records).

    Attributes:
        k: how many rounds had been done, one entry per record.
        error_x: ``|x(k) - x_hat|`` of the answer at that time, NaN if the saddle point is not
            known.
        error_price: ``|lambda(k) - lambda_hat|``, likewise.
        violation: ``max(0, max_j g_j(x(k)))`` of the answer; ``|g_j|`` for equalities.
        residual: ``|(x - P_X[x - dL/dx], s - P_C[s + lambda])|`` of the answer, 0 exactly at
            saddle points.
        objective: ``sum_i f_i(x_i(k))`` of the answer.
        last_error_x: ``|x(k) - x_hat|`` of the iterate itself.
        last_error_price: ``|lambda(k) - lambda_hat|`` of the iterate itself.
    """

    k: NDArray[np.int64]
    error_x: Array
    error_price: Array
    violation: Array
    residual: Array
    objective: Array
    last_error_x: Array
    last_error_price: Array


QUANTITIES = tuple(field.name for field in fields(Trace) if field.name != "k")
"""What is measured at every recorded round, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transcript:
    """Every number released in every round, as an eavesdropper sees them.

    Attributes:
        y: ``s(x(k)) + w(k)``, shape (runs, rounds, p); with gradient steps ``g(x(k)) + w(k)``.
        gradients: ``dg_row/dx_column (x(k)) + w(k)``, shape (runs, rounds, entries).
        rows: the row of each gradient entry.
        columns: the column of each gradient entry.
    """

    y: Array
    gradients: Array
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assessment:
    """The quality of the answers of all runs: small values, public or of the answers themselves.

    Attributes:
        groups: name, number of agents and components of each group of agents.
        row_labels: the labels of the constraints.
        equality: which of them must be 0.
        scale: what a violation of each is measured against (``certificate.contributions``).
        rows: ``g_j`` of the answer, shape (runs, m).
        objective: ``sum_i f_i`` of the answer, shape (runs,).
        best: the objective at the saddle point; not a number if that is not known.
        price_labels: the labels of what has a price: the sums, or with gradient steps the
            constraints.
        sigma: the standard deviation of their noise, empty without noise.
        deviation: the standard deviation of every component of x, from sigma and T at the saddle
            point (``privacy.limit``), not a number where no curvature holds a component; empty if
            the saddle point is not known or there is no noise.
        promise: what the worst-off agent is promised where the plan is carried out with secure
            noise; empty without a plan.
        fingerprint: the problem's.
    """

    groups: tuple[tuple[str, int, int], ...]
    row_labels: tuple[str, ...]
    equality: NDArray[np.bool_]
    scale: Array
    rows: Array
    objective: Array
    best: float
    price_labels: tuple[str, ...]
    sigma: Array
    deviation: Array
    promise: str
    fingerprint: str

    def state_labels(self) -> Iterator[str]:
        """The labels of the components of x, in order."""
        for name, count, dim in self.groups:
            for agent in range(count):
                label = name if count == 1 else f"{name}{agent + 1}"
                yield from ([label] if dim == 1 else (f"{label}[{c + 1}]" for c in range(dim)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """Answers, last iterates and traces of simulated runs.

    Attributes:
        x: the answer, shape (runs, N): averaged states if the algorithm averages, else the last.
        price: its prices, one per sum, shape (runs, p). The price of a constraint that is one sum
            as stated is its multiplier mu.
        last_x: the states after the last round.
        last_price: the prices after the last round.
        rounds: rounds done; fewer than ``requested`` if interrupted.
        requested: rounds asked for.
        seed: the seed; run r depends on (seed, r) alone.
        algorithm: the algorithm and its settings, as text.
        noise: the noise, in words.
        released: the average of the releases with the answer's weights, ``Ybar``, shape (runs, p):
            public, and about the sums at the answer; None without noise.
        confirmed: with ``feasible``, per run whether the answer passed the test at the end, so
            that it may be applied; None if it was not asked for.
        failed: per run the round in which prices diverged or a number was not finite, 0 if none.
        interrupted: whether it was stopped early.
        seconds: how long the rounds took.
        saddle_x: x_hat, if known.
        saddle_price: lambda_hat, if known.
        trace: what was recorded on the way.
        transcript: every released number, if asked for.
        origin: what was asked for; a result from a file has none.
        assessed: what it means for its problem, in a result from a file.
        memory: what the first run's cloud learnt, for a warm start; None if that run failed, or of
            an algorithm that learns nothing.
    """

    x: Array
    price: Array
    last_x: Array
    last_price: Array
    rounds: int
    requested: int
    seed: int
    algorithm: str
    noise: str
    failed: NDArray[np.int64]
    interrupted: bool
    seconds: float
    saddle_x: Array | None
    saddle_price: Array | None
    trace: Trace
    transcript: Transcript | None = None
    origin: SimulationRequest | None = field(default=None, repr=False)
    assessed: Assessment | None = field(default=None, repr=False)
    released: Array | None = None
    confirmed: NDArray[np.bool_] | None = None
    memory: PriceMemory | None = None

    def __post_init__(self) -> None:
        for part in (self, self.trace, self.transcript):
            for entry in fields(part) if part is not None else ():
                if isinstance(value := getattr(part, entry.name), np.ndarray):
                    value.flags.writeable = False

    @property
    def runs(self) -> int:
        """The number of runs."""
        return int(self.x.shape[0])

    @property
    def fingerprint(self) -> str:
        """The problem's fingerprint; empty in a result that was made by hand."""
        if self.origin is not None:
            return self.origin.problem.fingerprint
        return "" if self.assessed is None else self.assessed.fingerprint

    @property
    def error_x(self) -> Array | None:
        """``|x - x_hat|`` of every run at its end, if the saddle point is known."""
        return None if self.saddle_x is None else np.linalg.norm(self.x - self.saddle_x, axis=1)

    @property
    def error_price(self) -> Array | None:
        """``|lambda - lambda_hat|`` of every run at its end, if the saddle point is known."""
        hat = self.saddle_price
        return None if hat is None else np.linalg.norm(self.price - hat, axis=1)

    def warm_start(self, *, shift: int = 0) -> PriceMemory:
        """Return what the first run's cloud learnt, for ``sv.simulate(..., warm_start=...)``.

        It follows from prices and noisy sums alone. Of a simulation they are not private.

        Args:
            shift: by how many steps the horizon has moved on, where sums are a list such as the
                hours of a day: entry 1 + shift becomes entry 1, and the first come back at the end.
        """
        if self.memory is None:
            raise InputError(
                "a warm start must be from a run of sv.DualAveraging() that did not fail, got "
                f"{self!r}: begin without warm_start"
            )
        return self.memory.shifted(shift) if shift else self.memory

    def assessment(self) -> Assessment:
        """What it means for its problem: objective, constraints, accuracy, promise."""
        if self.assessed is not None:
            return self.assessed
        if self.origin is None:
            raise InputError(
                "a result must know its problem to be assessed, got one made by hand: use the one "
                "that sv.simulate or sv.Result.load returned"
            )
        return assess(self.origin, self.x, self.rounds)

    def summary(self) -> Summary:
        """The result as tables to print or to show in a notebook.

        The objective and how far it is from the best, the violation of every constraint in its
        units and in percent of its scale, the answer with 95% confidence intervals from sigma and
        the number of rounds, and what is hidden.
        """
        from sottovoce.simulation.summary import summary

        return summary(self)

    def to_frame(self, what: str = "answers") -> DataFrame:
        """Return a pandas table; pandas must be installed.

        Args:
            what: "answers", a row per run with objective, states, constraints and prices; or
                "trace", a row per run and recorded round with what was measured there.
        """
        from sottovoce.simulation.summary import frame

        return frame(self, what)

    def figure(self) -> Figure:
        """Return convergence over the rounds, with the ensemble's band, as a matplotlib figure."""
        from sottovoce.simulation.summary import figure

        return figure(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw ``figure()`` into an image file."""
        from sottovoce.simulation.summary import draw

        draw(self.figure(), path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to ``path`` (.npz), all or nothing."""
        values = dict(_flatten(replace(self, origin=None, assessed=self.assessment())))
        arrays = {name: part for name, part in values.items() if isinstance(part, np.ndarray)}
        facts = {name: part for name, part in values.items() if name not in arrays}
        write_npz(path, {"kind": "result", "facts": facts}, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a result that ``Result.save`` wrote.

        Raises:
            InputError: if the file is missing, cut short, something else, or of a newer version.
        """
        meta, arrays = read_npz(path_of("path", path), kind="result")
        try:
            values = meta["facts"] | arrays
            if "transcript" not in values:  # None is a fact
                values["transcript"] = _unflatten(Transcript, values, "transcript.")
            if "memory" not in values:
                values["memory"] = _unflatten(PriceMemory, values, "memory.")
            values["trace"] = _unflatten(Trace, values, "trace.")
            values["assessed"] = _unflatten(Assessment, values, "assessed.")
            return _unflatten(Result, values)
        except (KeyError, TypeError) as error:
            raise InputError(f"result file {path} must be complete, got no {error}") from error

    def __repr__(self) -> str:
        state = ", interrupted" if self.interrupted else ""
        if failed := int(np.count_nonzero(self.failed)):
            state += f", failed={failed}"
        if self.confirmed is not None:
            state += f", confirmed={int(np.count_nonzero(self.confirmed))}"
        return f"Result(runs={self.runs}, rounds={self.rounds}, noise={self.noise!r}{state})"

    def _repr_html_(self) -> str:
        failed = int(np.count_nonzero(self.failed))
        return facts_html(
            "Result",
            runs=f"{self.runs:,}" + (f", {failed:,} failed" if failed else ""),
            rounds=f"{self.rounds:,}" + (" (interrupted)" if self.interrupted else ""),
            states=f"{self.x.shape[1]:,}",
            prices=f"{self.price.shape[1]:,}",
            algorithm=self.algorithm,
            noise=self.noise,
            seconds=f"{self.seconds:.3g}",
            problem=self.fingerprint[:16],
        )


def assess(origin: SimulationRequest, x: Array, rounds: int) -> Assessment:
    """Return what answers x of all runs, shape (runs, N), mean after so many rounds."""
    from sottovoce.certificate.contributions import row_scales
    from sottovoce.certificate.optimum import known_saddle
    from sottovoce.privacy.limit import accuracy_limit
    from sottovoce.problem.numeric import Numeric

    problem, plan, cloud = origin.problem, origin.plan, origin.problem.cloud
    numeric, labels = Numeric(problem), tuple(problem.cloud.row_labels())
    saddle = known_saddle(problem, most=SADDLE_STATES)
    deviation = np.zeros(0)
    if saddle is not None and plan is not None and np.any(plan.sigma):
        limit = accuracy_limit(problem, plan, max(rounds, 1), saddle=saddle)
        deviation = np.array(limit.x_each)
        deviation[list(limit.flat)] = np.nan
    worst = None if plan is None else plan.guarantee()
    return Assessment(
        groups=tuple((g.name, g.count, g.dim) for g in problem.groups),
        row_labels=labels,
        equality=equalities(problem.constraints),
        scale=row_scales(cloud),
        rows=read_only([numeric.constraints(answer) for answer in x]),
        objective=read_only([numeric.objective(answer) for answer in x]),
        best=np.nan if saddle is None else saddle.objective,
        price_labels=labels if origin.gradient else tuple(cloud.sums.labels),
        sigma=np.zeros(0) if plan is None else read_only(plan.released_sigma),
        deviation=deviation,
        promise="" if worst is None else str(worst),
        fingerprint=problem.fingerprint,
    )


def write_npz(
    path: str | os.PathLike[str], meta: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    """Write arrays and a few facts to one file, all or nothing: aside first, then renamed."""
    target = Path(path)
    text = json.dumps({**meta, "format": FORMAT})
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, meta=np.array(text), **arrays)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def read_npz(path: str | os.PathLike[str], *, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what ``write_npz`` wrote, or say what is wrong with the file."""
    try:
        with Path(path).open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            meta = json.loads(str(file["meta"]))
            if meta["format"] > FORMAT:
                raise InputError(
                    f"{path} must have format {FORMAT} or lower, got {meta['format']}: "
                    "it was written by a newer sottovoce; upgrade to read it"
                )
            if meta["kind"] != kind:
                raise InputError(f"{path} must be a {kind} file, got a {meta['kind']} file")
            return meta, {name: file[name] for name in file.files if name != "meta"}
    except FileNotFoundError as error:
        raise InputError(f"{kind} file must exist, got {path}") from error
    except (OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{kind} file {path} is cut short or damaged: {error}") from error
    except (ValueError, AttributeError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a {kind} file: {error}") from error


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a dataclass and of those inside it, by their names."""
    for entry in fields(value):
        part = getattr(value, entry.name)
        if isinstance(part, Trace | Transcript | Assessment | PriceMemory):
            yield from _flatten(part, f"{prefix}{entry.name}.")
        else:
            yield prefix + entry.name, part


def _unflatten(kind: type[_Kind], values: Mapping[str, Any], prefix: str = "") -> _Kind:
    """Undo ``_flatten``; JSON has lists in place of tuples."""
    return kind(**{entry.name: _to_tuple(values[prefix + entry.name]) for entry in fields(kind)})


def _to_tuple(value: Any) -> Any:
    return tuple(map(_to_tuple, value)) if isinstance(value, list) else value
