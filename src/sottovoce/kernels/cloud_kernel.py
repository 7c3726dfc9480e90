"""The cloud's half of a round, for simulations and for a cloud on the network alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import CloudStep, PriceRounds
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.price_memory import REMEMBERED, PriceMemory
from sottovoce.algorithm.public_sum import Ball, Level, PublicCost, PublicSum
from sottovoce.errors import InputError
from sottovoce.formula.canonical import add, multiply
from sottovoce.formula.derive import gradient, hessian
from sottovoce.formula.expression import ZERO, Expression, Op, symbol
from sottovoce.formula.tape import Array
from sottovoce.kernels.core.plain import BALL, COST, LEVEL
from sottovoce.kernels.lower import TapeBuilder, TapeCode, registers_of
from sottovoce.kernels.variant import core
from sottovoce.problem.epigraph import EpigraphWriter
from sottovoce.problem.groups import Group, read_only
from sottovoce.problem.local import box_of

RUNAWAY: Final = 1e20  # prices from here on have diverged, as in core.cloud_step

_KINDS: Final = {Ball: BALL, Level: LEVEL, PublicCost: COST}
_REMEMBERED: Final = ("mean_price", "mean_sum", "aim", "covariance", "response", "slope")
"""The fields of ``PriceMemory`` that are parts of a cloud's memory, in its order."""


@final
class CloudKernel:
    """The cloud's state and its step.

    Args:
        public: C and the noise.
        algorithm: the constants of dual averaging.
        planned: whether releases are noisy, so that the answer is an average.
        warm: what an earlier run learnt, to begin with.

    Attributes:
        price: lambda(k), what is sent to agents; before round 1 that of ``warm``, or 0.
        answer: the prices to report.
        released: the releases, averaged with the answer's weights; 0 without a plan.
        memory: what the cloud remembers between rounds, and scratch.
        kept: the memory without scratch.
    """

    def __init__(
        self,
        public: PublicSum,
        algorithm: DualAveraging,
        *,
        planned: bool,
        warm: PriceMemory | None = None,
    ) -> None:
        kernel = core()
        unit = np.array(public.unit, dtype=np.float64)
        p = unit.size
        begun = 0 if warm is None else warm.begun
        self.price, self.answer, self.released = np.zeros(p), np.zeros(p), np.zeros(p)
        self.memory = np.zeros(kernel.memory_size(p))
        self.kept = self.memory[: kernel.kept_size(p)]
        self._work = np.zeros(kernel.project_work(p))
        arrays = {
            "price": self.price, "answer": self.answer, "released": self.released,
            "memory": self.memory, "unit": unit, "noise": np.array(public.noise, dtype=np.float64),
            "lower": np.array(public.lower, dtype=np.float64),
            "upper": np.array(public.upper, dtype=np.float64),
        }  # fmt: skip
        constants = {
            "memory_power": algorithm.memory, "doubt": algorithm.doubt, "reach": algorithm.reach,
            "start": algorithm.first_step(noisy=planned),
            "planned": planned, "begun": begun,
        }  # fmt: skip
        regions = _regions(tuple(public.regions))
        written = {name: regions[name].copy() for name in ("phi_registers", "scratch")}
        self.core = kernel.CloudCore(arrays | regions | written, constants)
        if warm is not None:
            self.price[:] = self.answer[:] = warm.price
            _recall(self.memory, unit, warm)

    def round(self, k: int, y: Array, *, share: float, steer: float = 0.0) -> bool:
        """Take the noisy sums y of round k, fill ``price``, and return whether it stayed bounded.

        ``share`` is the round's weight in the answer, ``steer`` how strongly the average of the
        releases is steered into C.
        """
        with np.errstate(all="ignore"):
            return bool(self.core.round(k, np.array(y, dtype=np.float64), share, steer))

    def nearest(self, v: Array, *, metric: Array | None = None, priced: bool = False) -> Array:
        """Return the point u of C nearest to v: the least ``sum_o d_o (u_o - v_o)^2 / 2``.

        ``metric`` is d, 1 by default; the public cost U(u) is added if ``priced``.
        """
        u, d = np.empty(self.price.size), np.ones(self.price.size)
        if metric is not None:
            d[:] = metric
        with np.errstate(all="ignore"):
            self.core.nearest(np.array(v, dtype=np.float64), d, u, self._work, priced)
        return u


def price_memory(
    memory: Array, answer: Array, public: PublicSum, labels: Sequence[str], rounds: int
) -> PriceMemory:
    """Return what the run after this one may begin with.

    Args:
        memory: of a ``CloudKernel``, its scratch at the end may be left out.
        answer: its prices to report.
        public: the run's.
        labels: what people call the sums.
        rounds: rounds done, those that it began with included.
    """
    parts = _remembered(memory, np.array(public.unit, dtype=np.float64))
    return PriceMemory(
        labels=tuple(labels),
        rounds=rounds,
        count=float(memory[0]),
        price=read_only(answer),
        **{name: read_only(view / factor) for name, (view, factor) in parts.items()},
    )


def _recall(memory: Array, unit: Array, warm: PriceMemory) -> None:
    """Fill the memory of a cloud that begins with what an earlier run learnt."""
    memory[0] = max(1.0, REMEMBERED * warm.count)
    for name, (view, factor) in _remembered(memory, unit).items():
        view[:] = getattr(warm, name) * factor


def _remembered(memory: Array, unit: Array) -> dict[str, tuple[Array, Array]]:
    """The parts of a cloud's memory that outlast a run, and what turns them into units of noise.

    See ``core.cloud_step.kept_size``.
    """
    p, size, u = unit.size, core().entries(unit.size), unit
    squared, ratio = np.outer(u, u), np.outer(1.0 / u, u)
    if size < p * p:
        squared, ratio = squared.diagonal(), ratio.diagonal()
    vectors = memory[2 : 2 + 3 * p].reshape(3, p)
    matrices = memory[2 + 4 * p :][: 3 * size].reshape(3, *squared.shape)
    factors = (u, 1.0 / u, 1.0 / u, squared, ratio, 1.0 / squared)
    return dict(zip(_REMEMBERED, zip((*vectors, *matrices), factors, strict=True), strict=True))


@final
class PythonCloud:
    """The cloud with a user's step in Python; averages and steering are those of ``CloudKernel``.

    ``planned`` releases are noisy, so that the answer is an average.
    """

    def __init__(self, algorithm: CloudStep, public: PublicSum, *, planned: bool) -> None:
        self._algorithm, self._public, self._planned = algorithm, public, planned
        p = np.size(public.unit)
        self.price, self.answer, self.released = np.zeros(p), np.zeros(p), np.zeros(p)
        self.kept = self.memory = np.zeros(algorithm.memory_size(p))
        self.nearest = CloudKernel(public, DualAveraging(), planned=False).nearest

    def round(self, k: int, y: Array, *, share: float, steer: float = 0.0) -> bool:
        """Take the release of round k in; return whether prices stayed bounded."""
        if self._planned:
            self.answer += share * (self.price - self.answer)
            self.released += share * (y - self.released)
            if steer > 0.0:
                y = y + steer * (self.released - self.nearest(self.released))
        price = self._algorithm.cloud_round(
            k, y, self.price.copy(), self.memory, self._public, self.nearest
        )
        if np.shape(price) != self.price.shape:
            raise InputError(
                f"cloud_round must return {self.price.size} prices, got shape {np.shape(price)}"
            )
        self.price[:] = price
        if not self._planned:
            self.answer += share * (self.price - self.answer)
        return bool(np.all(np.abs(self.price) < RUNAWAY))


def make_cloud(
    algorithm: PriceRounds, public: PublicSum, *, planned: bool, warm: PriceMemory | None = None
) -> CloudKernel | PythonCloud:
    """Return the cloud of an algorithm with prices."""
    if isinstance(algorithm, DualAveraging):
        return CloudKernel(public, algorithm, planned=planned, warm=warm)
    assert isinstance(algorithm, CloudStep)  # noqa: S101  there is no other kind
    return PythonCloud(algorithm, public, planned=planned)


@lru_cache(maxsize=8)  # an ensemble has a cloud per run and thread
def _regions(regions: tuple[Ball | Level | PublicCost, ...]) -> dict[str, NDArray[np.generic]]:
    """The arrays of ``PublicSet`` that describe regions and public costs."""
    forms = [cost_form(r) if isinstance(r, PublicCost) else None for r in regions]
    pairs = zip(regions, forms, strict=True)
    tapes = [_phi_tape(region) if form is None else form.tape for region, form in pairs]
    rows = [0 if form is None else form.rows for form in forms]
    variables = np.hstack([np.zeros((4, 0)), *(form.variables for form in forms if form)])
    sizes = [0 if form is None else form.variables.shape[1] for form in forms]
    files = [registers_of([tape], 1) for tape in tapes]
    least, most = _each(regions, "ranges", (0.0, 0.0)).reshape(-1, 2).T.copy()
    width = np.where(most > least, most - least, np.inf)
    low, high = _each(regions, "bounds", (np.nan, np.nan)).reshape(-1, 2).T
    work = [core().cost_work(n, m) for n, m in zip(sizes, rows, strict=True)]
    return {
        "kinds": np.array([_KINDS[type(region)] for region in regions], dtype=np.int64),
        "starts": _starts([len(region.members) for region in regions]),
        "members": np.array([m for region in regions for m in region.members], dtype=np.int64),
        "least": least, "most": most,
        "low": np.where(np.isnan(low), least - width, low),
        "high": np.where(np.isnan(high), most + width, high),
        "centers": _each(regions, "center", 0.0),
        "radii": np.array([getattr(r, "radius", -1.0) for r in regions], dtype=np.float64),
        "levels": np.array([getattr(r, "level", 0.0) for r in regions], dtype=np.float64),
        "rising": _each(regions, "rising", 0.0),
        "rows": np.array(rows, dtype=np.int64), "variable_starts": _starts(sizes),
        "variable_least": variables[0], "variable_most": variables[1],
        "variable_low": variables[2], "variable_high": variables[3],
        "scratch": np.zeros(sum(work)), "scratch_starts": _starts(work),
        "phi_code": _joined([tape.code for tape in tapes], np.int32),
        "phi_code_starts": _starts([tape.code.size for tape in tapes]),
        "phi_registers": _joined(files, np.float64),
        "phi_register_starts": _starts([file.size for file in files]),
        "phi_outputs": _joined([tape.outputs for tape in tapes], np.int32),
        "phi_output_starts": _starts([tape.outputs.size for tape in tapes]),
    }  # fmt: skip


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostForm:
    """A public cost in epigraph form, as ``core.public_cost`` takes it."""

    tape: TapeCode  # see ``CostStep``
    rows: int  # how many rows ``c(w) <= 0`` there are
    variables: Array  # what w can be, least and most, and its bounds, likewise; shape (4, n)


def cost_form(cost: PublicCost) -> CostForm:
    """Return U with auxiliary variables in place of its non-smooth terms."""
    least, most = np.array(cost.ranges).T
    group = Group(
        name="cost", symbols=cost.symbols, lower=least[np.newaxis], upper=most[np.newaxis]
    )
    writer = EpigraphWriter(group.name, norm_rows=False)
    psi = writer.smooth(cost.phi)
    symbols, rows = (*cost.symbols, *writer.extra), writer.rows
    ends = np.vstack(writer.bounds(group, box_of(group)))
    ends[1] += 1e-3 * np.max(most - least) * (ends[0] == ends[1])  # a term that is always 0
    free = np.full(ends.shape[1], np.inf)
    # What is divided by stays positive; nothing else bounds what stands for a term.
    positive = [term.op == Op.NORM for term in writer.extra.values()]
    bounds = np.array([np.where(positive, ends[0], -free), free])
    variables = np.hstack(
        [np.vstack([least, most, np.array(cost.bounds).T]), np.vstack([ends, bounds])]
    )
    multipliers = [symbol(f"mu{k + 1}") for k in range(len(rows))]
    builder = TapeBuilder(
        len(symbols) + len(rows), {s: i for i, s in enumerate((*symbols, *multipliers))}
    )
    lagrangian = add(psi, *map(multiply, multipliers, rows))
    slopes, second = [gradient(f, symbols) for f in (psi, *rows)], hessian(lagrangian, symbols)
    outputs = [slopes[0].get(s, ZERO) for s in symbols]
    outputs += [*rows, *(slope.get(s, ZERO) for slope in slopes[1:] for s in symbols)]
    outputs += _square(second, symbols)
    return CostForm(
        tape=builder.finish([builder.value(f) for f in outputs]),
        rows=len(rows),
        variables=variables,
    )


def _square(
    entries: Mapping[tuple[Expression, Expression], Expression], symbols: Sequence[Expression]
) -> list[Expression]:
    """A Hessian row by row, from its upper half."""
    place = list(enumerate(symbols))
    pairs = (((s, t) if i <= j else (t, s)) for i, s in place for j, t in place)
    return [entries.get(pair, ZERO) for pair in pairs]


def _each(regions: Sequence[Ball | Level | PublicCost], name: str, default: object) -> Array:
    """An attribute of all members, one after the other; the default where a region has none."""
    values_of = (getattr(r, name, ()) or (default,) * len(r.members) for r in regions)
    return np.array([value for values in values_of for value in values], dtype=np.float64)


def _phi_tape(region: Ball | Level | PublicCost) -> TapeCode:
    """Value, gradient and Hessian of phi, row by row; nothing for a ball."""
    if not isinstance(region, Level):
        return TapeBuilder(0, {}).finish([])
    symbols = region.symbols
    builder = TapeBuilder(len(symbols), {s: i for i, s in enumerate(symbols)})
    slopes, second = gradient(region.phi, symbols), hessian(region.phi, symbols)
    outputs = [region.phi, *(slopes.get(s, ZERO) for s in symbols), *_square(second, symbols)]
    return builder.finish([builder.value(f) for f in outputs])


def _starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *sizes], dtype=np.int64)


def _joined(arrays: Sequence[NDArray[np.generic]], kind: type) -> NDArray[np.generic]:
    return np.concatenate([np.zeros(0, dtype=kind), *arrays])
