"""Global constraints g_j(x) <= 0 or = 0: formulas over named agents, and sums over fleets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import count as count_from
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from sottovoce.arguments import array
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import add, addends, canonical, multiply
from sottovoce.formula.expression import ZERO, Expression, expression, number, symbol
from sottovoce.formula.functions import formula_array
from sottovoce.formula.order import in_order
from sottovoce.problem.agents import Agents, RowName, State, owners, rewritten
from sottovoce.problem.groups import Array, Group, read_only
from sottovoce.problem.linear_rows import (
    Entries,
    Linear,
    Weights,
    entries_of,
    linear_of,
    linear_rows,
    sparse,
)

# NumPy's names of operators with an array on the left, and ours with a total there.
_REFLECTED = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "less_equal": "__ge__",
    "greater_equal": "__le__",
    "equal": "__eq__",
}

_WRITTEN_OUT = 20_000  # agents of which a formula is made for each
_serials = count_from(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetSum:
    """Rows ``sum_i W[r, i] h_t(x_i; p_i)`` over the agents of one group.

    Row ``r * len(terms) + t`` belongs to weights row r and term t; without weights W is one row of
    ones.
    """

    group: Group  # the agents summed over
    terms: tuple[Expression, ...]  # the formulas h_t in the group's symbols and parameters
    weights: Weights = None  # W: None, a dense or a compressed sparse row array (r, count)

    @property
    def rows(self) -> int:
        """How many constraints the sum takes part in."""
        return len(self.terms) * (1 if self.weights is None else int(self.weights.shape[0]))

    def only(self, row: int) -> FleetSum:
        """Row ``row`` (from 0) as a sum of its own."""
        r, t = divmod(row, len(self.terms))
        weights = None if self.weights is None else self.weights[[r]]
        return replace(self, terms=(self.terms[t],), weights=weights)

    @property
    def signs(self) -> list[int]:
        """Which of 1 and -1 are signs of weights."""
        if self.weights is None:
            return [1]
        weights = self.weights.data if sparse.issparse(self.weights) else self.weights
        return [sign for sign in (1, -1) if np.any(np.sign(weights) == sign)]

    @property
    def enters(self) -> NDArray[np.bool_]:
        """Which rows some agent enters with a weight that is not 0."""
        if self.weights is None:
            used = np.ones(1, dtype=np.bool_)
        elif sparse.issparse(self.weights):
            used = np.diff(self.weights.indptr) > 0
        else:
            used = self.weights.any(axis=1)
        return np.repeat(used, len(self.terms))

    @property
    def key(self) -> object:
        """What it is: the same for the same total, stated twice."""
        weights = self.weights
        if weights is not None and weights.shape[0] == 1 and np.all(weights == 1.0):
            weights = None
        if weights is not None:
            weights = (weights if isinstance(weights, np.ndarray) else weights.toarray()).tobytes()
        return self.group.name, tuple(map(canonical, self.terms)), weights

    def mapped(self, change: Callable[[Expression], Expression]) -> FleetSum:
        """The same sum of other terms."""
        return replace(self, terms=tuple(map(change, self.terms)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SumRows:
    """Rows ``sums + rest + linear + offset``."""

    sums: tuple[FleetSum, ...] = ()  # sums over fleets, each with as many rows
    rest: tuple[Expression, ...] = ()  # a formula over named agents per row, or none at all
    offset: Array  # a constant per row
    linear: Linear | None = None  # what rows add that is linear in named agents' states

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.offset.size)

    @property
    def named(self) -> tuple[Expression, ...]:
        """What agents stated one by one add to each row, written out; nothing if none does."""
        if self.linear is None:
            return self.rest
        rest = self.rest or (ZERO,) * self.rows
        return tuple(add(e, self.linear.formula(r)) for r, e in enumerate(rest))

    @property
    def formulas(self) -> tuple[Expression, ...]:
        """The rows over agents stated one by one as formulas, constants included."""
        return tuple(
            add(e, number(c)) for e, c in zip(self.named, self.offset, strict=bool(self.named))
        )

    def times(self, factor: float) -> Self:
        """The rows times a number."""
        by = number(factor)
        return replace(
            self,
            sums=tuple(part.mapped(partial(multiply, by)) for part in self.sums),
            rest=tuple(multiply(by, e) for e in self.rest),
            offset=read_only(factor * self.offset),
            linear=None if self.linear is None else self.linear.times(factor),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Constraint(SumRows):
    """A family of rows that must be at most 0, or 0."""

    name: str  # its label
    equality: bool = False  # whether the rows must be 0 instead of at most 0
    hard: bool = False  # whether a physical limit stands behind it, see ``hard``

    def __bool__(self) -> NoReturn:
        raise ProblemError(
            "a comparison of sums must be stated, got a question for its truth: write a chain "
            "1 <= total <= 5 as two rows total >= 1 and total <= 5"
        )

    def with_groups(self, groups: Mapping[str, Group]) -> Constraint:
        """The same rows over other groups of the same names."""
        sums = tuple(replace(part, group=groups[part.group.name]) for part in self.sums)
        return replace(self, sums=sums)

    def label(self, row: int) -> str:
        """The label of row ``row`` (from 0)."""
        return self.name if self.rows == 1 else f"{self.name}[{row + 1}]"

    def only(self, row: int) -> Constraint:
        """Row ``row`` (from 0) as a family."""
        return replace(
            self,
            name=self.label(row),
            sums=tuple(part.only(row) for part in self.sums),
            rest=self.rest[row : row + 1],
            offset=read_only(self.offset[row : row + 1]),
            linear=None if self.linear is None else self.linear.only(row),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Total(SumRows):
    """Left side of a family of constraints: sums over fleets, linear rows; compare it.

    Totals are added, multiplied by numbers, and compared with <= or >=. One over agents stated one
    by one alone, ``A @ x``, is an array of formulas as well: ``abs(A @ x) <= b``,
    ``sv.norm(A @ x)``, ``(A @ x)[0]``.
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: State, **settings: object
    ) -> State:
        # `array >= total` reaches our operators instead of comparing element by element.
        operator = _REFLECTED.get(ufunc.__name__)
        if method == "__call__" and operator is not None and inputs[1] is self:
            return getattr(self, operator)(inputs[0])
        plain = [i._array() if isinstance(i, Total) else i for i in inputs]
        return getattr(ufunc, method)(*plain, **settings)

    def _array(self) -> State:
        """The rows as formulas of named agents' states and of symbols for sums over fleets."""
        rows = [*self.formulas] or [number(c) for c in self.offset]
        for part in self.sums:
            serial = next(_serials)
            names = (RowName(f"total {serial}[{r + 1}]", part, r) for r in range(part.rows))
            rows = [add(e, symbol(n)) for e, n in zip(rows, names, strict=True)]
        return formula_array(rows)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: State) -> State:
        return self._array()[row]

    def __iter__(self) -> Iterator[State]:
        return iter(self._array())

    def __abs__(self) -> State:
        return abs(self._array())

    def __pow__(self, exponent: State) -> State:
        return self._array() ** exponent

    def __matmul__(self, other: State) -> State:
        rows, factors = self._array(), np.array(list(other), dtype=object)
        if not all(isinstance(factor, Expression) for factor in factors):
            return rows @ factors
        # Multiplied out: terms of two states each are what quadratic forms are read from.
        pairs = zip(rows, factors, strict=True)
        terms = ((canonical(factor), term) for row, factor in pairs for term in addends(row))
        return add(*(multiply(factor, term) for factor, term in terms))

    def __mul__(self, factor: State) -> Total:
        if isinstance(factor, Expression) and canonical(factor).is_number:
            factor = float(factor)
        if isinstance(factor, (Total, Expression)) or np.ndim(factor):
            raise ProblemError(
                "a total must be multiplied by one number, got "
                f"{type(factor).__name__}: multiply the terms inside it, or the rows of A in A @ x"
            )
        return self.times(float(_numbers(factor)))

    __rmul__ = __mul__

    def __truediv__(self, divisor: State) -> Total:
        if not isinstance(divisor, (Total, Expression)):
            divisor = _numbers(divisor)
        with np.errstate(divide="ignore"):  # infinity is refused
            return self.__mul__(1.0 / divisor)

    def __add__(self, other: State) -> Total:
        if isinstance(other, Total):
            self._require_rows(other.rows)
            return Total(
                sums=self.sums + other.sums,
                rest=_add_rows(self.rest, other.rest),
                offset=read_only(self.offset + other.offset),
                linear=self.linear if other.linear is None else other.linear.plus(self.linear),
            )
        if isinstance(other, Expression) and not canonical(other).is_number:
            return replace(self, rest=_add_rows(self.rest, (canonical(other),) * self.rows))
        constant = np.atleast_1d(_numbers(other))
        if constant.size != 1:
            self._require_rows(constant.size)
        return replace(self, offset=read_only(self.offset + constant.ravel()))

    __radd__ = __add__

    def __neg__(self) -> Total:
        return self * -1

    def __sub__(self, other: State) -> Total:
        return self.__add__(_negative(other))

    def __rsub__(self, other: State) -> Total:
        return (-self).__add__(other)

    def __le__(self, bound: State) -> Constraint:
        left = self - bound
        return Constraint(
            name="", sums=left.sums, rest=left.rest, offset=left.offset, linear=left.linear
        )

    def __ge__(self, bound: State) -> Constraint:
        return (-self).__le__(_negative(bound))

    def __eq__(self, bound: State) -> Constraint:  # type: ignore[override]
        return replace(self.__le__(bound), equality=True)

    __hash__ = object.__hash__

    def _require_rows(self, got: int) -> None:
        if got != self.rows:
            raise ProblemError(
                f"both sides must have the same number of rows: {self.rows} on the left, "
                f"got {got} on the right"
            )


def total(terms: State, *, weights: Weights = None) -> Total:
    """Return the sums ``sum_i W[r, i] h_t(x_i; p_i)`` over agents, to be compared.

    Args:
        terms: agents, whose states are added; or h, one formula or several in the state and the
            parameters of every agent, ``ev.x`` and ``ev["need"]``, affine or convex.
        weights: W, a dense or SciPy sparse array (rows, agents); the same coefficient 1 for all if
            not given. Weights of terms that are not affine must not be negative.

    Example:
        ``total(ev.x) <= capacity`` keeps a fleet of chargers below the capacity of each hour.
    """
    formulas = np.ravel(np.asarray(terms.x if isinstance(terms, Agents) else terms, dtype=object))
    exprs = tuple(canonical(expression(h)) for h in formulas)
    named = owners(exprs)
    if len(named) != 1 or any(named.values()):
        got = " and ".join(a.name for a in named) or "none"
        single = ", single ones of them" if any(named.values()) else ""
        raise ProblemError(
            "total must be over the state x.x of every agent of one sv.agents(...), got "
            f"{got}{single} in {terms!r:.60}: write one total for each, single states in a sum"
        )
    (agents,) = named
    stated = total_over(agents.template, exprs, weights)
    # Named agents have formulas of their own at once.
    return over_named_agents(stated) if agents.by_name else stated


def total_over(group: Group, terms: Sequence[Expression], weights: Weights = None) -> Total:
    """Return sums over a group of agents, of formulas in its symbols."""
    if not terms:
        raise ProblemError(f"total over {group.name} must have at least one term, got none")
    checked_weights = None
    if weights is not None:
        what = f"A in A @ x, weights over {group.name},"
        checked_weights = _matrix(weights, group.count, what, f"agent of {group.name}")
    part = FleetSum(group=group, terms=tuple(terms), weights=checked_weights)
    return Total(sums=(part,), offset=read_only(np.zeros(part.rows)))


def over_named_agents(stated: Total) -> Total:
    """Return the same sums over single agents' states: weights of components, or formulas."""
    written = replace(stated, sums=())
    for part in stated.sums:
        written = written + _written_out(part)
    return written


def row_symbols(formula: Expression) -> list[Expression]:
    """The symbols in a formula that stand for rows of sums over fleets, in order."""
    return in_order({s for s in formula.symbols if isinstance(s.value, RowName)})


def without_rows(formula: Expression, among: Set[Agents] | None = None) -> Expression:
    """Write rows of sums over fleets out, agent by agent; ``among`` some agents or of all."""
    values: dict[Expression, Expression] = {}
    for s in row_symbols(formula):
        part = s.value.part
        if among is None or not among.isdisjoint(owners(part.terms)):
            whole = Total(sums=(part,), offset=read_only(np.zeros(part.rows)))
            values[s] = over_named_agents(whole).formulas[s.value.row]
    return rewritten(formula, values) if values else formula


def _written_out(part: FleetSum) -> Total:
    (agents,), count = owners(part.terms), part.group.count
    place = {s: c for c, s in enumerate(part.group.symbols)}
    if count > _WRITTEN_OUT:
        raise ProblemError(
            f"a total over {count:,} agents must be added, multiplied by numbers or compared, "
            f"got another use, or single states beside it: at most {_WRITTEN_OUT:,} agents are "
            "written out"
        )
    weights = np.ones((1, count)) if part.weights is None else part.weights
    entry_row, agent, weight = entries_of(weights)
    entries: list[Entries] = []
    rest: list[list[Expression]] = [[] for _ in range(part.rows)]
    for t, h in enumerate(part.terms):
        row = entry_row * len(part.terms) + t
        if h in place:
            entries.append((row, agent * part.group.dim + place[h], weight))
            continue
        formulas = [canonical(agents.alone(h, i)) for i in range(count)]
        for r, i, w in zip(row.tolist(), agent.tolist(), weight, strict=True):
            rest[r].append(multiply(number(w), formulas[i]))
    linear = None
    if entries:
        row, column, values = map(np.concatenate, zip(*entries, strict=True))
        linear = linear_of(agents.symbols, part.rows, (row, column, values))
    return Total(
        rest=tuple(add(*terms) for terms in rest) if any(rest) else (),
        offset=read_only(np.zeros(part.rows)),
        linear=linear,
    )


def linear_total(symbols: Sequence[Expression], weights: Weights) -> Total:
    """Return the sums ``W x`` over components of states, to be compared with <= or >=."""
    matrix = _matrix(weights, len(symbols), "A in A @ x", "component of the states")
    linear = linear_rows(symbols, matrix)
    return Total(offset=read_only(np.zeros(linear.rows)), linear=linear)


@dataclass(frozen=True, slots=True, eq=False)
class Hard:
    """A constraint, or several, behind which a physical limit stands."""

    row: object


def hard(constraint: object) -> Constraint | Hard:
    """Mark a constraint as a physical limit.

    ``plan`` then requires ``feasible``: an answer that noise pushes over the limit must not be
    applied.

    Args:
        constraint: a constraint, as a comparison or text, or a list of them.

    Example:
        ``hard(total(ev.x) <= capacity)`` for a fuse that blows above the capacity.
    """
    if isinstance(constraint, Constraint):
        return replace(constraint, hard=True)
    return Hard(constraint)


def numbered(families: Sequence[Constraint]) -> Iterator[tuple[int, Constraint]]:
    """Yield families with the number of their first row."""
    first = 0
    for family in families:
        yield first, family
        first += family.rows


def row_labels(families: Sequence[Constraint]) -> list[str]:
    """Return the labels of the rows of constraints, in order."""
    return [family.label(r) for family in families for r in range(family.rows)]


def equalities(families: Sequence[Constraint]) -> NDArray[np.bool_]:
    """Return which rows of stated constraints must be 0, and not just at most 0."""
    return np.repeat([f.equality for f in families], [f.rows for f in families]).astype(np.bool_)


def named_rows(families: Sequence[Constraint]) -> list[Expression]:
    """Return what named agents add to every row, as formulas; 0 where none does."""
    return [h for family in families for h in family.named or (ZERO,) * family.rows]


def _numbers(value: object) -> Array:
    """What a total is added to or compared with, if it is no formula."""
    return array("a side of a constraint", value, "a formula, a number or one number per row")


def _negative(value: State) -> State:
    return -value if isinstance(value, (Total, Expression)) else -_numbers(value)


def _matrix(weights: Weights, columns: int, what: str, each: str) -> Weights:
    """Weights as they are kept: a read-only array, or a compressed one if they are sparse."""
    if np.iscomplexobj(weights):
        raise ProblemError(
            f"{what} must be real, got complex numbers: write the real and the imaginary parts as "
            "rows of their own"
        )
    if sparse.issparse(weights):
        matrix = sparse.csr_array(weights, dtype=np.float64, copy=True)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        values = matrix.data
    else:
        rows = array(what, weights, f"an array of numbers (rows, {columns})")
        values = matrix = read_only(np.atleast_2d(rows))
    if matrix.ndim != 2 or matrix.shape[1] != columns:
        raise ProblemError(
            f"{what} must have one column per {each} ({columns}), got shape {matrix.shape}"
        )
    if not np.all(np.isfinite(values)):
        raise ProblemError(f"{what} must be finite, got NaN or infinity")
    return matrix


def _add_rows(left: Sequence[Expression], right: Sequence[Expression]) -> tuple[Expression, ...]:
    if not left or not right:
        return tuple(left or right)
    return tuple(add(a, b) for a, b in zip(left, right, strict=True))
