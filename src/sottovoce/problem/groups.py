"""Groups of agents: states, boxes and parameters, in arrays with a row per agent.

A problem keeps groups: an agent with formulas of its own is a group of one; agents that share a
formula are one group, told apart by arrays of parameters, never by a symbol each. Names and
components count from 1 (``x3[2]``), arrays from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.arguments import float64_array, whole
from sottovoce.errors import ProblemError
from sottovoce.formula.canonical import substitute
from sottovoce.formula.expression import Expression, number, symbol
from sottovoce.formula.parse import check_name
from sottovoce.formula.tape import Array as Array

if TYPE_CHECKING:
    from sottovoce.problem.local import LocalSet

Pickled: TypeAlias = dict[str, Any]  # the attributes of a value

_BOUNDS = ("lower", "upper")
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
    symbols = component_symbols(name, dim)
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


def component_symbols(name: str, dim: int) -> tuple[Expression, ...]:
    """Return the symbols of a state's components: x, or x[1], ..., x[d]."""
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
            other = fleets.get(label[:end], group)
            if other is not group and is_number_up_to(label[end:], other.count):
                kind = "the fleet" if group.count > 1 else "the agent"
                raise ProblemError(
                    f"labels of agents must differ, got {label} twice: in {kind} {group.name} and "
                    f"in the fleet {other.name} of {other.count:,}; give the fleet another "
                    "name=..., or the states other names=[...]"
                )


def is_number_up_to(digits: str, count: int) -> bool:
    """Whether ``digits`` is how one of 1..count is written."""
    most = str(count)
    # as text: a name may have more digits than Python turns into an integer
    return digits[0] != "0" and (len(digits), digits) <= (len(most), most)
