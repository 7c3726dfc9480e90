"""Groups of agents: states, boxes and parameters, and the symbols to write formulas with.

``Agents`` is what people state problems with. A problem keeps groups: an agent with formulas of its
own is a group of one; agents that share a formula are one group, told apart by arrays of
parameters, never by a symbol each. Names and components count from 1 (``x3[2]``), arrays from 0.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from itertools import count as count_from
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike, NDArray

from sottovoce.arguments import entries, float64_array, whole
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import substitute
from sottovoce.formula.expression import Expression, Op, nodes, number, symbol
from sottovoce.formula.functions import FormulaArray, bundled
from sottovoce.formula.parse import check_name
from sottovoce.formula.tape import Array as Array

if TYPE_CHECKING:
    from sottovoce.problem.constraints import FleetSum
    from sottovoce.problem.local import LocalSet

State: TypeAlias = Any  # a formula or an array of formulas, with NumPy's operators
Pickled: TypeAlias = dict[str, Any]  # the attributes of a value

_BOUNDS = ("lower", "upper")
_MOST_AGENTS = 10**9
_MOST_COMPONENTS = 10**5


def read_only(values: object) -> Array:
    """Return a read-only float64 copy of ``values``."""
    array = float64_array(values)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Agents with one formula: ``x_i in X_i = [lower_i, upper_i]`` in ``R^d``, i = 1..count."""

    name: str  # the agent's label, or the common prefix of a fleet's labels
    count: int = 1  # how many agents; 1 for an agent stated by itself
    symbols: tuple[Expression, ...]  # the d components of the state as they appear in formulas
    lower: Array  # bounds, shape (count, d), read-only views that may be broadcast
    upper: Array  # likewise
    # an array of ``count`` numbers for each
    parameters: Mapping[Expression, Array] = field(default_factory=dict)

    def __getstate__(self) -> Pickled:
        # One row for all agents travels as one row.
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {n: a[:1] for n in _BOUNDS if (a := values[n]).strides[0] == 0}

    def __setstate__(self, state: Pickled) -> None:
        shape = (state["count"], len(state["symbols"]))
        rows = {name: np.broadcast_to(read_only(state[name]), shape) for name in _BOUNDS}
        parameters = {s: read_only(array) for s, array in state["parameters"].items()}
        for name, value in (state | rows | {"parameters": parameters}).items():
            object.__setattr__(self, name, value)

    @property
    def dim(self) -> int:
        """The dimension d of each agent's state."""
        return len(self.symbols)

    def fill(self, formula: Expression, place: int = 0) -> Expression:
        """A formula with the parameters of agent ``place`` (from 0) filled in."""
        values = {s: number(float(a[place])) for s, a in self.parameters.items()}
        return substitute(formula, values) if values else formula

    def some(self, places: NDArray[np.int64]) -> Group:
        """The agents ``places`` (from 0) as a group."""
        return replace(
            self,
            count=len(places),
            lower=self.lower[places],
            upper=self.upper[places],
            parameters={s: values[places] for s, values in self.parameters.items()},
        )

    def label(self, index: int) -> str:
        """The label of agent ``index`` (from 0) of the group."""
        return self.name if self.count == 1 else f"{self.name}{index + 1}"


class _Name(str):
    """The name of a symbol that knows whose state or parameter it is, until a problem is stated."""

    __slots__ = ("owner", "single")

    owner: Agents
    single: bool  # of one agent, and not of every agent of them

    def __new__(cls, name: str, owner: Agents, *, single: bool) -> _Name:
        text = super().__new__(cls, name)
        text.owner, text.single = owner, single
        return text

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Name) and self.owner is other.owner
        return same and str.__eq__(self, str(other))

    def __hash__(self) -> int:
        return hash((str.__hash__(self), id(self.owner)))

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class RowName(str):
    """The name of a symbol that stands for a row of a sum over a fleet, in a public cost."""

    __slots__ = ("part", "row")

    part: FleetSum
    row: int

    def __new__(cls, name: str, part: FleetSum, row: int) -> RowName:
        """Name row ``row``, from 0, of ``part``."""
        text = super().__new__(cls, name)
        text.part, text.row = part, row
        return text

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, RowName) and self.part is other.part
        return same and str.__eq__(self, str(other))

    def __hash__(self) -> int:
        return hash((str.__hash__(self), id(self.part)))


_serials = count_from(1)


@final
class Agents(NDArrayOperatorsMixin, Sequence[State]):
    """Agents to state a problem with: one by one, or all by one formula.

    ``x[0]`` is the state of the first agent, a formula or an array of d formulas. ``ev.x`` is the
    state of every agent, ``ev["need"]`` a parameter of every agent: formulas in them are templates
    that hold for all. ``sv.total`` adds over agents. Problems find their agents from the formulas.

    ``A @ x``, with A a NumPy or SciPy sparse array that has one column per component of all states,
    or one per agent for sums component by component, is compared like any sum: ``A @ x <= b``
    states as many rows as A has, without a formula each. Other operators, and indices such as
    ``x[:, 0]``, see an array with a row per agent.
    """

    def __init__(
        self, name: str, fleet: Group | None, named: Sequence[Group] | None = None
    ) -> None:
        self.name, self.serial = name, next(_serials)
        self._fleet, self._named = fleet, None if named is None else tuple(named)
        self._states: dict[int, State] = {}

    @property
    def by_name(self) -> bool:
        """Whether they were stated by their names, so that each has formulas of its own."""
        return self._named is not None

    def __len__(self) -> int:
        return self.fleet.count if self._named is None else len(self._named)

    def __getitem__(self, index: State) -> State:
        if isinstance(index, str):
            return self._parameter(index)
        if isinstance(index, tuple):
            return self._array()[index]
        if isinstance(index, slice):
            return [*map(self._state, range(len(self))[index])]
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"agents count from 0 to {len(self) - 1}, got {place}")
        return self._state(place % len(self))

    def __iter__(self) -> Iterator[State]:
        return map(self._state, range(len(self)))

    @property
    def x(self) -> State:
        """The state of every agent, as templates name it."""
        return bundled(self.template.symbols)

    @cached_property
    def template(self) -> Group:
        """All agents as one group, whose symbols know these agents."""
        group = self.fleet
        owned = {s: self._symbol(s.name, single=False) for s in (*group.symbols, *group.parameters)}
        return replace(
            group,
            symbols=tuple(owned[s] for s in group.symbols),
            parameters={owned[s]: values for s, values in group.parameters.items()},
        )

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Every agent as a group of its own."""
        return tuple(map(self._single, range(len(self))))

    def _single(self, place: int) -> Group:
        if self._named is not None:
            return self._named[place]
        fleet, name = self.fleet, f"{self.fleet.name}{place + 1}"
        return replace(
            fleet,
            name=name,
            count=1,
            symbols=_symbols(name, fleet.dim),
            lower=fleet.lower[place : place + 1],
            upper=fleet.upper[place : place + 1],
            parameters={},
        )

    @property
    def fleet(self) -> Group:
        """All agents as one group."""
        if self._fleet is None:
            dims = sorted({group.dim for group in self.groups})
            raise ProblemError(
                f"states of {self.name} must have one dimension to share a formula, got {dims}: "
                "name them one by one, x[0], x[1]"
            )
        return self._fleet

    @cached_property
    def symbols(self) -> tuple[Expression, ...]:
        """The components of all states, one after the other."""
        return tuple(s for state in self for s in np.ravel(np.asarray(state, dtype=object)))

    def alone(self, formula: Expression, place: int) -> Expression:
        """A template's formula for agent ``place`` (from 0), parameters filled in."""
        template = self.template
        state = np.ravel(np.asarray(self._state(place), dtype=object))
        values = dict(zip(template.symbols, state, strict=True))
        values |= {s: number(float(a[place])) for s, a in template.parameters.items()}
        return rewritten(formula, values)

    def calls(self, names: Iterable[str]) -> bool:
        """Whether one of these names is that of a single agent."""
        digits = (n[len(self.name) :] for n in names if n.startswith(self.name))
        return any(d.isdecimal() and _counts_to(d, len(self)) for d in digits)

    def _state(self, place: int) -> State:
        if place not in self._states:
            symbols = self._single(place).symbols
            self._states[place] = bundled([self._symbol(s.name, single=True) for s in symbols])
        return self._states[place]

    def _symbol(self, name: str, *, single: bool) -> Expression:
        return Expression(Op.SYMBOL, (), _Name(name, self, single=single))

    def _parameter(self, name: str) -> State:
        pattern = re.compile(re.escape(name) + r"(\[\d+\])?\Z")
        parameters = self.template.parameters
        symbols = [s for s in parameters if pattern.match(s.name)]
        if not symbols:
            known = ", ".join(s.name for s in parameters) or "none"
            raise ProblemError(
                f"parameter must be one of these agents' ({known}), got {name!r}: "
                "give its values in parameters={...}"
            )
        return bundled(symbols)

    def __rmatmul__(self, weights: State) -> State:
        from sottovoce.problem.constraints import linear_total, total  # they know agents

        if isinstance(weights, FormulaArray):  # x @ Q @ x
            return weights @ np.array(self.symbols, dtype=object)
        columns = np.shape(weights)[-1] if np.ndim(weights) or hasattr(weights, "shape") else 0
        if self._named is None and columns == len(self):
            return total(self, weights=weights)
        return linear_total(self.symbols, weights)

    def __matmul__(self, weights: State) -> State:
        return self.__rmatmul__(weights.T)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> State:
        # One object to SciPy, whose sparse arrays then leave the product to ``__rmatmul__``.
        if dtype is not None:
            return np.array(list(self), dtype=dtype)
        whole = np.empty((), dtype=object)
        whole[()] = self
        return whole

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: State, **settings: object
    ) -> State:
        if ufunc is np.matmul:
            left, right = inputs
            return self @ right if left is self else self.__rmatmul__(left)
        plain = [i._array() if isinstance(i, Agents) else i for i in inputs]
        return getattr(ufunc, method)(*plain, **settings)

    def __array_function__(
        self,
        function: Callable[..., State],
        types: object,
        args: tuple[State, ...],
        settings: dict[str, object],
    ) -> State:
        plain = [a._array() if isinstance(a, Agents) else a for a in args]
        return function(*plain, **settings)

    def _array(self) -> State:
        if len({group.dim for group in self.groups}) > 1:
            raise ProblemError(
                "states must have one dimension to be an array, got several: write rows over "
                "single agents, x[0][1] + x[1][0] <= 3, or A @ x with a column per component"
            )
        return np.array(list(self), dtype=object).view(FormulaArray)

    __hash__ = object.__hash__  # of its identity

    def __repr__(self) -> str:
        return f"Agents({len(self):,} of {self.name})"


def owners(formulas: Iterable[Expression]) -> dict[Agents, bool]:
    """Return the agents that formulas name, and whether they name single ones of them."""
    named: dict[Agents, bool] = {}
    for part in nodes(tuple(formulas)):
        if part.op == Op.SYMBOL and isinstance(part.value, _Name):
            named[part.value.owner] = named.get(part.value.owner, False) or part.value.single
        elif part.op == Op.SYMBOL and isinstance(part.value, RowName):
            named = owners(part.value.part.terms) | named
    return named


def rewritten(formula: Expression, values: Mapping[Expression, Expression]) -> Expression:
    """Return a formula as written with other symbols, or with plain ones by default."""
    known: dict[Expression, Expression] = dict(values)
    for part in nodes((formula,)):
        if part in known:
            continue
        if part.op == Op.SYMBOL and isinstance(part.value, _Name) and not values:
            known[part] = symbol(str(part.value))
        elif any(known.get(a, a) is not a for a in part.args):
            known[part] = Expression(part.op, tuple(known.get(a, a) for a in part.args), part.value)
    return known.get(formula, formula)


def agents(
    who: int | Sequence[str],
    *,
    lower: object,
    upper: object,
    dim: int | Sequence[int] = 1,
    name: str = "x",
    parameters: Mapping[str, ArrayLike] | None = None,
) -> Agents:
    """Return agents, ``x_i in X_i = {x in R^d : lower_i <= x <= upper_i}``, to state problems with.

    Args:
        who: their names, or their number, which may be a million.
        lower: one bound for all, one per agent, or an array (n, d).
        upper: likewise.
        dim: d, one for all or one per named agent; the paper has d = 1.
        name: prefix of the labels of unnamed agents, ``x1``, ``x2``, ... in files and reports.
        parameters: for each name n numbers, or an array (n, p) for p numbers per agent, for
            formulas that all agents share, ``f_i(x_i) = f(x_i; p_i)``.
    """
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ProblemError(f"parameters must map names to numbers, got {parameters!r:.60}")
    counted = not np.iterable(who) or isinstance(who, str)
    if counted and not np.iterable(dim):
        n = _count(who)
        ends = {"lower": _rows(lower, n, dim), "upper": _rows(upper, n, dim)}
        return Agents(name, fleet_group(n, dim=dim, name=name, parameters=parameters, **ends))
    names = [f"{name}{i + 1}" for i in range(_count(who))] if counted else list(who)  # type: ignore[arg-type]
    named = _named_groups(names, lower=lower, upper=upper, dim=dim)
    fleet = None
    if len({group.dim for group in named}) == 1:
        low = np.concatenate([group.lower for group in named])
        high = np.concatenate([group.upper for group in named])
        d, n = named[0].dim, len(named)
        fleet = fleet_group(n, lower=low, upper=high, dim=d, name=name, parameters=parameters)
    elif parameters:
        raise ProblemError("parameters need states of one dimension, got several")
    return Agents(name, fleet, named)


def _rows(bounds: object, n: int, dim: object) -> object:
    """One bound per agent as a column; bounds that may be meant per component too are refused."""
    try:
        array = float64_array(bounds)
    except (TypeError, ValueError, OverflowError):
        return bounds
    if array.ndim != 1 or array.size != n or dim == 1:
        return bounds
    if n == dim:
        raise ProblemError(
            f"bounds of {n} agents with {n} components must be one number or an array ({n}, {n}), "
            f"got {n} numbers: write one row per agent"
        )
    return array[:, np.newaxis]


def _symbols(name: str, dim: int) -> tuple[Expression, ...]:
    names = [name] if dim == 1 else [f"{name}[{c + 1}]" for c in range(dim)]
    return tuple(symbol(s) for s in names)


def state_columns(groups: Sequence[Group]) -> list[slice]:
    """Return where the states of every group lie among all, one agent after the other."""
    ends = accumulate((group.count * group.dim for group in groups), initial=0)
    return [slice(*span) for span in pairwise(ends)]


def agent_numbers(groups: Sequence[Group]) -> list[range]:
    """Return the numbers of every group's agents, from 1 on as files count."""
    return [range(*span) for span in pairwise(accumulate((g.count for g in groups), initial=1))]


def lower_bounds(groups: Sequence[Group | LocalSet]) -> Array:
    """Return the lower bounds of all states of the groups in one vector."""
    return np.concatenate([[], *(group.lower.ravel() for group in groups)])


def upper_bounds(groups: Sequence[Group | LocalSet]) -> Array:
    """Return the upper bounds of all states of the groups in one vector."""
    return np.concatenate([[], *(group.upper.ravel() for group in groups)])


def read_states(what: str, values: object, group: Group) -> Array:
    """Return a state for every agent of a group, shape (count, d), from one for all or one each."""
    shape = (group.count, group.dim)
    try:
        return _broadcast(read_only(values), shape)
    except (TypeError, ValueError, OverflowError):
        # The values stay unsaid: they are private, and messages end up in logs.
        raise ProblemError(
            f"{what} of {group.name} must be numbers of the shape {shape}, got "
            f"{type(values).__name__}"
        ) from None


def require_distinct_labels(groups: Sequence[Group]) -> None:
    """Refuse agents that people would call the same, such as a fleet's x1 beside a state x1.

    Budgets, files and reports know an agent by its label alone. No label of a fleet is written
    out: fleet ``b`` holds ``b`` followed by 1..count, so two groups of different names meet if and
    only if the first label of one is a label of the other (``x1`` of 5 meets ``x`` of 11 in x11).
    """
    fleets = {group.name: group for group in groups if group.count > 1}
    for group in groups:
        label = group.label(0)
        for end in range(len(label.rstrip("0123456789")), len(label)):
            other = fleets.get(label[:end])
            if other is not None and other is not group and _counts_to(label[end:], other.count):
                kind = "the fleet" if group.count > 1 else "the agent"
                raise ProblemError(
                    f"labels of agents must differ, got {label} twice: in {kind} {group.name} and "
                    f"in the fleet {other.name} of {other.count:,}; give the fleet another "
                    "name=..., or the states other names=[...]"
                )


def _counts_to(digits: str, count: int) -> bool:
    """Whether ``digits`` is how one of 1..count is written."""
    most = str(count)
    # as text: a name may have more digits than Python turns into an integer
    return digits[0] != "0" and (len(digits), digits) <= (len(most), most)


def _named_groups(
    names: Sequence[str], *, lower: object, upper: object, dim: int | Sequence[int] = 1
) -> list[Group]:
    """Return agents stated one by one; bounds for all, per agent, or per agent a list."""
    n = len(names)
    if not n:
        raise ProblemError("a problem needs at least one agent, got no names")
    dims = entries("dim", dim, "dimensions, one per agent") if np.iterable(dim) else [dim] * n
    if len(dims) != n:
        raise ProblemError(f"dim must have one entry per agent ({n}), got {len(dims)}")
    for name, uses in Counter(map(str, names)).items():
        if uses > 1:
            raise ProblemError(f"names must differ, got {name} twice: rename one")
    lows, highs = _per_agent(lower, n, "lower"), _per_agent(upper, n, "upper")
    return [
        fleet_group(1, name=name, dim=d, lower=low, upper=high)
        for name, d, low, high in zip(names, dims, lows, highs, strict=True)
    ]


def fleet_group(
    n: int,
    *,
    lower: object,
    upper: object,
    dim: int = 1,
    name: str = "x",
    parameters: Mapping[str, ArrayLike] | None = None,
) -> Group:
    """Return n agents that share one formula; bounds broadcast to (n, dim)."""
    check_name(name, where="agent")
    dim = whole(f"dim of {name}", dim, least=1, most=_MOST_COMPONENTS, error=ProblemError)
    low = _bounds(lower, n, dim, f"lower bound of {name}")
    high = _bounds(upper, n, dim, f"upper bound of {name}")
    if (low > high).any():
        index = np.unravel_index(int(np.argmax(low > high)), low.shape)
        who = name if n == 1 else f"{name}{int(index[0]) + 1}"
        raise ProblemError(
            f"lower must not exceed upper, got lower={low[index]:g} > upper={high[index]:g} for "
            f"{who}: its domain is empty; swap the bounds or mend them"
        )
    arrays: dict[Expression, Array] = {}
    for key, values in (parameters or {}).items():
        arrays |= _parameter(key, values, n)
    symbols = _symbols(name, dim)
    return Group(name=name, count=n, symbols=symbols, lower=low, upper=high, parameters=arrays)


def _bounds(values: object, count: int, dim: int, what: str) -> Array:
    array = _numbers(what, values)
    if dim == 1 and array.ndim < 2 and array.size == count:
        array = array.reshape(count, 1)
    try:
        view = _broadcast(array, (count, dim))
    except ValueError:
        raise ProblemError(
            f"{what} must be one number or fit the shape ({count}, {dim}), got shape {array.shape}"
        ) from None
    if not np.isfinite(array).all():
        raise ProblemError(
            f"{what} must be finite, because X must be compact, got "
            f"{array[~np.isfinite(array)].flat[0]}: give a box that surely holds the optimum"
        )
    return view


def _numbers(what: str, values: object) -> Array:
    try:
        return read_only(values)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(f"{what} must be numbers, got {values!r:.60}") from None


def _broadcast(array: Array, shape: tuple[int, int]) -> Array:
    """``np.broadcast_to`` at once where nothing is to be done, as for thousands of named agents."""
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _per_agent(values: object, n: int, what: str) -> list[object]:
    if isinstance(values, str) or not np.iterable(values):
        return [values] * n
    listed = list(values)
    if len(listed) != n:
        raise ProblemError(f"{what} must be one number or one entry per agent ({n}), "
                           f"got {len(listed)}")  # fmt: skip
    return listed


def _parameter(name: str, values: ArrayLike, n: int) -> dict[Expression, Array]:
    check_name(name, where="parameter")
    array = _numbers(f"parameter {name}", values)
    if array.ndim not in (1, 2) or array.shape[0] != n:
        raise ProblemError(f"parameter {name} must have one row per agent ({n}), "
                           f"got shape {array.shape}")  # fmt: skip
    if not np.all(np.isfinite(array)):
        raise ProblemError(f"parameter {name} must be finite, got NaN or infinity")
    if array.ndim == 1:
        return {symbol(name): array}
    return {symbol(f"{name}[{c + 1}]"): array[:, c] for c in range(array.shape[1])}


def _count(n: object) -> int:
    if isinstance(n, int) and n < 1:
        raise ProblemError(f"a problem needs at least one agent, got n={n}")
    return whole("n", n, least=1, most=_MOST_AGENTS, error=ProblemError)
