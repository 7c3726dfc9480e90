"""Where agents live: their states, boxes and parameters, and the symbols to write formulas with.

Agents come in groups that share one formula. An agent stated by itself is a group of one; a fleet
is one group of many, told apart by arrays of parameters, never by a symbol each. People count
agents and components from 1 (``x3[2]``), arrays from 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NoReturn, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, NDArray

from sottovoce.arguments import entries, whole
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import substitute
from sottovoce.formula.expression import Expression, number, symbol
from sottovoce.formula.functions import FormulaArray, bundled
from sottovoce.formula.parse import check_name

Array: TypeAlias = NDArray[np.float64]
State: TypeAlias = Any  # a symbol, or an array of symbols for a vector state


_ROWS = ("lower", "upper")
_MOST_AGENTS = 10**9
_MOST_COMPONENTS = 10**5


def read_only(values: ArrayLike) -> Array:
    """Return a read-only float64 copy of ``values``."""
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Agents with one formula: ``x_i in X_i = [lower_i, upper_i]`` in ``R^d``, i = 1..count.

    Attributes:
        name: what people call the agent, or the fleet's common name.
        count: how many agents; 1 for an agent stated by itself.
        symbols: the d components of the state as they appear in formulas.
        lower: lower bounds, shape (count, d), a read-only view that may be broadcast.
        upper: upper bounds, likewise.
        parameters: an array of ``count`` numbers for each parameter symbol.
    """

    name: str
    count: int
    symbols: tuple[Expression, ...]
    lower: Array
    upper: Array
    parameters: Mapping[Expression, Array]

    # NumPy must leave the product ``W @ fleet`` to us.
    __array_ufunc__: ClassVar[None] = None

    def __getstate__(self) -> dict[str, Any]:
        # One row for all agents travels as one row.
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        rows = {n: values[n][:1] if values[n].strides[0] == 0 else values[n] for n in _ROWS}
        return values | rows

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape = (state["count"], len(state["symbols"]))
        rows = {name: np.broadcast_to(read_only(state[name]), shape) for name in _ROWS}
        parameters = {s: read_only(array) for s, array in state["parameters"].items()}
        for name, value in (state | rows | {"parameters": parameters}).items():
            object.__setattr__(self, name, value)

    @property
    def dim(self) -> int:
        """The dimension d of each agent's state."""
        return len(self.symbols)

    @property
    def state(self) -> State:
        """The state of one agent as formulas use it: a symbol, or an array of d symbols."""
        return bundled(self.symbols)

    def parameter(self, name: str) -> State:
        """The symbol of parameter ``name``, or an array of symbols if each agent has several."""
        pattern = re.compile(re.escape(str(name)) + r"(\[\d+\])?\Z")
        found = [s for s in self.parameters if pattern.match(s.name)]
        if not found:
            known = ", ".join(s.name for s in self.parameters) or "none"
            raise ProblemError(
                f"parameter must be one of the fleet's ({known}), got {name!r}: "
                "give its values in parameters={...}"
            )
        return bundled(found)

    def fill(self, formula: Expression, place: int = 0) -> Expression:
        """A formula with the parameters of agent ``place`` (from 0) filled in."""
        values = {s: number(float(a[place])) for s, a in self.parameters.items()}
        return substitute(formula, values) if values else formula

    def __rmatmul__(self, weights: Any) -> Any:
        """``W @ fleet``: the sums ``sum_i W[r, i] x_i``, component by component."""
        from sottovoce.problem.constraints import total  # it knows agents, not they it

        return total(self, self.state, weights=weights)

    def _refuse(self, *_: Any) -> NoReturn:
        raise ProblemError(
            f"{self.name} stands for {self.count:,} agents, got it in place of a formula: write "
            f"{self.name}.state for the state of each of them, sv.total({self.name}) for their sum"
        )

    # One answer to every operator: a fleet is no array.
    __getitem__ = __iter__ = __le__ = __ge__ = __add__ = __sub__ = __mul__ = __rmul__ = _refuse

    def label(self, index: int) -> str:
        """What people call agent ``index`` (from 0) of the group."""
        return self.name if self.count == 1 else f"{self.name}{index + 1}"


class States(NDArrayOperatorsMixin, Sequence[State]):
    """The states of agents stated one by one; ``x[0]`` is the first agent's state.

    ``A @ x``, with A a NumPy or SciPy sparse array that has one column per component of all states,
    is compared like any sum: ``A @ x <= b`` states as many rows as A has, without a formula each.
    Other operators, and indices such as ``x[:, 0]``, see an array with a row per agent.
    """

    __slots__ = ("groups",)

    groups: tuple[Group, ...]

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return self._array()[index]
        if isinstance(index, slice):
            return [group.state for group in self.groups[index]]
        return self.groups[index].state

    def __iter__(self) -> Iterator[State]:
        return (group.state for group in self.groups)

    @property
    def symbols(self) -> tuple[Expression, ...]:
        """The components of all states, one after the other."""
        return tuple(s for group in self.groups for s in group.symbols)

    def __rmatmul__(self, weights: Any) -> Any:
        from sottovoce.problem.constraints import linear_total  # it knows agents, not they it

        if isinstance(weights, FormulaArray):  # x @ Q @ x
            return weights @ np.array(self.symbols, dtype=object)
        return linear_total(self.symbols, weights)

    def __matmul__(self, weights: Any) -> Any:
        return self.__rmatmul__(weights.T)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        # One object to SciPy, whose sparse arrays then leave the product to ``__rmatmul__``.
        if dtype is not None:
            return np.array([group.state for group in self.groups], dtype=dtype)
        whole = np.empty((), dtype=object)
        whole[()] = self
        return whole

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        if ufunc is np.matmul:
            left, right = inputs
            return self @ right if left is self else self.__rmatmul__(left)
        plain = [i._array() if isinstance(i, States) else i for i in inputs]
        return getattr(ufunc, method)(*plain, **settings)

    def __array_function__(self, function: Any, types: Any, args: Any, settings: Any) -> Any:
        plain = [a._array() if isinstance(a, States) else a for a in args]
        return function(*plain, **settings)

    def _array(self) -> Any:
        if len({group.dim for group in self.groups}) > 1:
            raise ProblemError(
                "states must have one dimension to be an array, got several: write rows over "
                "single agents, x[0][1] + x[1][0] <= 3, or A @ x with a column per component"
            )
        return np.array([group.state for group in self.groups], dtype=object).view(FormulaArray)


def lower_bounds(groups: Sequence[Group]) -> Array:
    """Return the lower bounds of all states of the groups in one vector."""
    return np.concatenate([np.zeros(0), *(group.lower.ravel() for group in groups)])


def upper_bounds(groups: Sequence[Group]) -> Array:
    """Return the upper bounds of all states of the groups in one vector."""
    return np.concatenate([np.zeros(0), *(group.upper.ravel() for group in groups)])


def read_states(what: str, given: Any, group: Group) -> Array:
    """Return a state for every agent of a group, shape (count, d), from one for all or one each.

    Raises:
        ProblemError: if it is none; the values stay unsaid, they are private.
    """
    shape = (group.count, group.dim)
    try:
        return _broadcast(read_only(given), shape)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(
            f"{what} of {group.name} must be numbers of the shape {shape}, got "
            f"{type(given).__name__}"
        ) from None


def require_distinct_labels(groups: Sequence[Group]) -> None:
    """Refuse agents that people would call the same, such as a fleet's x1 beside a state x1.

    Budgets, files and reports know an agent by its label alone. No label of a fleet is written
    out: fleet ``b`` holds ``b`` followed by 1..count, so two groups of different names meet if and
    only if the first label of one is a label of the other (``x1`` of 5 meets ``x`` of 11 in x11).

    Raises:
        ProblemError: naming the label and both groups.
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


def states(
    n: int,
    *,
    lower: Any,
    upper: Any,
    dim: int | Sequence[int] = 1,
    names: Sequence[str] | None = None,
) -> States:
    """Return the states of n agents, ``x_i in X_i = {x in R^d_i : lower_i <= x <= upper_i}``.

    Args:
        n: number of agents.
        lower: one bound for all, one per agent, or per agent a list with one per component.
        upper: likewise.
        dim: d_i, one for all or one per agent. The paper has d_i = 1: then ``x[i]`` is a plain
            symbol; otherwise it is an array of d_i symbols.
        names: what to call the agents in files and reports; x1, x2, ... by default.
    """
    n = _count(n)
    dims = entries("dim", dim, "dimensions, one per agent") if np.iterable(dim) else [dim] * n
    labels = [f"x{i + 1}" for i in range(n)]
    if names is not None:
        labels = entries("names", names, "a list of names, one per agent")
    for what, given in (("dim", dims), ("names", labels)):
        if len(given) != n:
            raise ProblemError(f"{what} must have one entry per agent ({n}), got {len(given)}")
    for name, uses in Counter(map(str, labels)).items():
        if uses > 1:
            raise ProblemError(f"names must differ, got {name} twice: rename one")
    lows, highs = _per_agent(lower, n, "lower"), _per_agent(upper, n, "upper")
    groups = [
        _group(name=labels[i], count=1, dim=dims[i], lower=lows[i], upper=highs[i])
        for i in range(n)
    ]
    return States(groups)


def fleet(
    n: int,
    *,
    lower: ArrayLike,
    upper: ArrayLike,
    dim: int = 1,
    name: str = "x",
    parameters: Mapping[str, ArrayLike] | None = None,
) -> Group:
    """Return n agents that share one formula, ``f_i(x_i) = f(x_i; p_i)``.

    Args:
        n: number of agents; a million is fine, no symbol is made per agent.
        lower: anything that broadcasts to (n, dim); for dim = 1 also a list of n numbers.
        upper: likewise.
        dim: the dimension d of each agent's state.
        name: the common name of the agents in reports.
        parameters: for each name n numbers, or an array (n, p) for p numbers per agent.
    """
    n = _count(n)
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ProblemError(f"parameters must map names to numbers, got {parameters!r:.60}")
    arrays: dict[Expression, Array] = {}
    for key, values in (parameters or {}).items():
        arrays.update(_parameter(key, values, n))
    return _group(name=name, count=n, dim=dim, lower=lower, upper=upper, parameters=arrays)


def _group(
    *,
    name: str,
    count: int,
    dim: int,
    lower: Any,
    upper: Any,
    parameters: Mapping[Expression, Array] | None = None,
) -> Group:
    check_name(name, where="agent")
    dim = whole(f"dim of {name}", dim, least=1, most=_MOST_COMPONENTS, error=ProblemError)
    names = [name] if dim == 1 else [f"{name}[{c + 1}]" for c in range(dim)]
    low = _bounds(lower, count, dim, f"lower bound of {name}")
    high = _bounds(upper, count, dim, f"upper bound of {name}")
    if (low > high).any():
        at = np.unravel_index(int(np.argmax(low > high)), low.shape)
        raise ProblemError(
            f"lower must not exceed upper, got lower={low[at]:g} > upper={high[at]:g} for {name}: "
            "its domain is empty; swap the bounds or mend them"
        )
    return Group(
        name=name,
        count=count,
        symbols=tuple(symbol(s) for s in names),
        lower=low,
        upper=high,
        parameters=dict(parameters or {}),
    )


def _bounds(values: Any, count: int, dim: int, what: str) -> Array:
    try:
        array = read_only(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProblemError(f"{what} must be numbers, got {values!r:.60}") from error
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


def _broadcast(array: Array, shape: tuple[int, int]) -> Array:
    """``np.broadcast_to`` at once where nothing is to be done, as for thousands of named agents."""
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _per_agent(values: Any, n: int, what: str) -> list[Any]:
    if isinstance(values, str) or not np.iterable(values):
        return [values] * n
    listed = list(values)
    if len(listed) != n:
        raise ProblemError(f"{what} must be one number or one entry per agent ({n}), "
                           f"got {len(listed)}")  # fmt: skip
    return listed


def _parameter(name: str, values: ArrayLike, n: int) -> dict[Expression, Array]:
    check_name(name, where="parameter")
    try:
        array = read_only(values)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(f"parameter {name} must be numbers, got {values!r:.60}") from None
    if array.ndim not in (1, 2) or array.shape[0] != n:
        raise ProblemError(f"parameter {name} must have one row per agent ({n}), "
                           f"got shape {array.shape}")  # fmt: skip
    if not np.all(np.isfinite(array)):
        raise ProblemError(f"parameter {name} must be finite, got NaN or infinity")
    if array.ndim == 1:
        return {symbol(name): array}
    return {symbol(f"{name}[{c + 1}]"): array[:, c] for c in range(array.shape[1])}


def _count(n: Any) -> int:
    if isinstance(n, int) and n < 1:
        raise ProblemError(f"a problem needs at least one agent, got n={n}")
    return whole("n", n, least=1, most=_MOST_AGENTS, error=ProblemError)
