"""What people state problems with: agents, and the symbols to write formulas with."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count as count_from
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike

from sottovoce.arguments import entries, float64_array, whole
from sottovoce.errors import ProblemError
from sottovoce.formula.expression import Expression, Op, nodes, number, symbol
from sottovoce.formula.functions import FormulaArray, bundled
from sottovoce.problem.groups import Group, component_symbols, fleet_group, is_number_up_to

if TYPE_CHECKING:
    from sottovoce.problem.constraints import FleetSum

State: TypeAlias = Any  # a formula or an array of formulas, with NumPy's operators

_MOST_AGENTS = 10**9


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
            symbols=component_symbols(name, fleet.dim),
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
        return any(d.isdecimal() and is_number_up_to(d, len(self)) for d in digits)

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
            names = ", ".join(s.name for s in parameters) or "none"
            raise ProblemError(
                f"parameter must be one of these agents' ({names}), got {name!r}: "
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
    forms: dict[Expression, Expression] = dict(values)
    for part in nodes((formula,)):
        if part in forms:
            continue
        if part.op == Op.SYMBOL and isinstance(part.value, _Name) and not values:
            forms[part] = symbol(str(part.value))
        elif any(forms.get(a, a) is not a for a in part.args):
            forms[part] = Expression(part.op, tuple(forms.get(a, a) for a in part.args), part.value)
    return forms.get(formula, formula)


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


def _per_agent(values: object, n: int, what: str) -> list[object]:
    if isinstance(values, str) or not np.iterable(values):
        return [values] * n
    bounds = list(values)
    if len(bounds) != n:
        raise ProblemError(f"{what} must be one number or one entry per agent ({n}), "
                           f"got {len(bounds)}")  # fmt: skip
    return bounds


def _count(n: object) -> int:
    if isinstance(n, int) and n < 1:
        raise ProblemError(f"a problem needs at least one agent, got n={n}")
    return whole("n", n, least=1, most=_MOST_AGENTS, error=ProblemError)
