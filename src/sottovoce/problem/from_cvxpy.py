"""Reads a cvxpy problem whose variables belong to agents.

Affine atoms evaluate themselves on arrays of formulas, as cvxpy has them do on arrays of numbers;
``_ELEMENTWISE`` and ``_REDUCTIONS`` list the others. A row on one component becomes a bound of its
agent's public box, a row on one agent's components part of its private set, any other row a
constraint that couples agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sottovoce.errors import ProblemError
from sottovoce.formula import functions
from sottovoce.formula.canonical import add, canonical, expand, subtract
from sottovoce.formula.expression import ZERO, Expression, Relation, expression
from sottovoce.problem.agents import Agents, agents
from sottovoce.problem.decompose import Owners, separate
from sottovoce.problem.linear_rows import coefficients
from sottovoce.problem.problem import Problem

Cvxpy: TypeAlias = Any  # a value of cvxpy's, which has no types and is not imported here

Formulas: TypeAlias = NDArray[np.object_]
Values: TypeAlias = Mapping[Cvxpy, Formulas]
Component: TypeAlias = tuple[Cvxpy, tuple[int, ...]]  # an entry of a variable

_BOUNDING: Final = frozenset({"nonneg", "pos", "nonpos", "neg", "bounds"})
"""The attributes of variables that a box expresses."""

_ELEMENTWISE: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": functions.absolute,
    "entr": lambda x: -x * functions.log(x),
    "exp": functions.exp,
    "huber": lambda x, width: functions.huber(x, float(width.value)),
    "log": functions.log,
    "logistic": np.vectorize(lambda x: functions.logsumexp(0, x), otypes=[object]),
    "maximum": functions.maximum,
    "minimum": functions.minimum,
    "power": lambda x, p, *_: x**p,
}
_REDUCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "log_sum_exp": functions.logsumexp,
    "max": functions.maximum,
    "min": functions.minimum,
    "norm1": lambda *x: sum(map(functions.absolute, x)),
    "norm_inf": lambda *x: functions.maximum(*map(functions.absolute, x)),
    "pnorm": functions.norm,
    "quad_over_lin": functions.sum_squares,
}


def from_cvxpy(problem: object, owners: Mapping[Any, str | Sequence[str]] | None = None) -> Problem:
    """Return a cvxpy problem as agents that share constraints and a public cost.

        minimise sum_i f_i(x_i) + U(s)   subject to   sum_i h_i(x_i) <= b,   x_i in X_i

    Args:
        problem: a ``cvxpy.Problem`` of affine, quadratic, absolute, norm, Huber, maximum, power,
            exponential and logarithmic atoms; terms of its objective that name several agents
            become the public cost.
        owners: for each variable the name of the agent whose state it is part of, or a list of
            names, one for each of its rows; by default every variable is an agent. A state has
            the variables of its agent in this order, each row by row.

    Raises:
        ProblemError: if a variable has no owner or no finite bounds, or an atom or a constraint is
            not supported; it is named.
    """
    if type(problem).__module__.partition(".")[0] != "cvxpy" or not hasattr(problem, "objective"):
        raise ProblemError(f"problem must be a cvxpy.Problem, got {problem!r:.60}")
    stated: Cvxpy = problem
    states = _states(stated.variables(), owners)
    values, owner, box = _symbols(states)
    coupling: list[Relation] = []
    private: list[Relation] = []
    for constraint in stated.constraints:
        for g, equality in _rows(constraint, values):
            if equality or not _tightens(g, box):
                one_agent = len({owner[s] for s in g.symbols}) == 1
                (private if one_agent else coupling).append(g == 0 if equality else g <= 0)
    objectives, cost = _objectives(stated.objective, values, states, owner)
    return Problem(
        objectives=objectives,
        constraints=coupling,
        cost=cost,
        local=private,
        agents=_agents(states, values, box),
    )


def _states(
    variables: Sequence[Cvxpy], owners: Mapping[Cvxpy, str | Sequence[str]] | None
) -> dict[str, list[Component]]:
    """The components of every agent's state."""
    owner_of = {v: v.name() for v in variables} if owners is None else owners
    for v in variables:
        if v not in owner_of:
            raise ProblemError(f"every variable must have an owner, got none for {v.name()}")
    used = set(variables)
    states: dict[str, list[Component]] = {}
    for v in (v for v in owner_of if v in used):
        special = [name for name, value in v.attributes.items() if value and name not in _BOUNDING]
        if special:
            raise ProblemError(f"variable {v.name()} must be real, got {', '.join(special)}")
        count = v.shape[0] if v.shape else 1
        rows = [owner_of[v]] * count if isinstance(owner_of[v], str) else list(owner_of[v])
        if len(rows) != count:
            raise ProblemError(
                f"variable {v.name()} must have one owner, or one for each of its {count} rows, "
                f"got {len(rows)}"
            )
        for place in product(*map(range, v.shape)):
            states.setdefault(str(rows[place[0] if place else 0]), []).append((v, place))
    return states


def _symbols(
    states: Mapping[str, Sequence[Component]],
) -> tuple[Values, Owners, dict[Expression, list[float]]]:
    """The symbol of every component, whose it is, and its bounds."""
    values: dict[Cvxpy, Formulas] = {}
    owner: dict[Expression, str] = {}
    box: dict[Expression, list[float]] = {}
    blank = agents(list(states), dim=[len(c) for c in states.values()], lower=0, upper=0)
    for i, (name, components) in enumerate(states.items()):
        for (v, place), symbol in zip(components, np.ravel(blank[i]), strict=True):
            values.setdefault(v, np.empty(v.shape, object))[place] = symbol
            owner[symbol] = name
            low, high = v.bounds or (-np.inf, np.inf)
            signed = (0.0 if v.is_nonneg() else -np.inf, 0.0 if v.is_nonpos() else np.inf)
            box[symbol] = [
                max(float(np.broadcast_to(low, v.shape)[place]), signed[0]),
                min(float(np.broadcast_to(high, v.shape)[place]), signed[1]),
            ]
    return values, owner, box


def _agents(
    states: Mapping[str, Sequence[Component]], values: Values, box: Mapping[Expression, list[float]]
) -> Agents:
    """The agents with their boxes."""
    ends = [[box[values[v][place]] for v, place in parts] for parts in states.values()]
    for (v, place), (low, high) in zip(chain(*states.values()), chain(*ends), strict=True):
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ProblemError(
                f"variable {v.name()} must have finite bounds, got [{low:g}, {high:g}] for its "
                f"component {list(place)}: what an agent may send is certified over its box; add "
                f"rows such as {v.name()} >= -10 and {v.name()} <= 10"
            )
    return agents(
        list(states),
        dim=[len(parts) for parts in states.values()],
        lower=[[low for low, _ in parts] for parts in ends],
        upper=[[high for _, high in parts] for parts in ends],
    )


def _objectives(
    objective: Cvxpy, values: Values, states: Iterable[str], owner: Owners
) -> tuple[list[Expression], Expression | None]:
    """The terms of every agent, of which the first has the constant, and what mixes agents."""
    sign = -1 if type(objective).__name__ == "Maximize" else 1
    (value,) = np.ravel(_evaluate(objective.args[0], values))
    total = canonical(expression(sign * value))
    _, _, mixing = separate(total, owner)
    cost = [term for term in mixing if separate(expand(term), owner)[2]]
    apart = [term for term in mixing if term not in set(cost)]
    alone = subtract(total, add(*mixing))
    terms, constant, _ = separate(add(alone, *map(expand, apart)), owner)
    first, *others = [terms.get(name, ZERO) for name in states]
    return [first + constant, *others], add(*cost) if cost else None


def _rows(constraint: Cvxpy, values: Values) -> Iterator[tuple[Expression, bool]]:
    """The rows ``g <= 0``, or ``g == 0``, of a constraint."""
    kind = type(constraint).__name__
    if kind not in ("Inequality", "Equality", "NonPos", "NonNeg", "Zero"):
        raise ProblemError(f"a constraint must be a comparison with <=, >= or ==, got {kind}")
    sides = [_evaluate(side, values) for side in constraint.args]
    gap = sides[0] - sides[1] if len(sides) == 2 else sides[0]
    for entry in np.ravel(-gap if kind == "NonNeg" else gap):
        g = canonical(expression(entry))
        if g.symbols:
            yield g, kind in ("Equality", "Zero")
        elif float(g) > 0.0 or (kind == "Equality" and float(g) != 0.0):
            raise ProblemError(f"a row must name a variable, got {constraint}, which never holds")


def _tightens(g: Expression, box: dict[Expression, list[float]]) -> bool:
    """Whether a row bounds one component; then the box has the bound."""
    linear = coefficients(g)
    if linear is None or len(linear[0]) != 1:
        return False
    ((symbol, weight),), constant = linear[0].items(), linear[1]
    low, high = box[symbol]
    bound = -constant / weight
    box[symbol] = [low, min(high, bound)] if weight > 0.0 else [max(low, bound), high]
    return True


def _evaluate(expr: Cvxpy, values: Values) -> Formulas:
    """A cvxpy expression as an array of formulas."""
    kind = type(expr).__name__.lower().removesuffix("approx")
    if expr in values:
        return values[expr]
    if expr.is_constant():
        if expr.value is None:
            raise ProblemError(f"parameter {expr} must have a value, got none: set its .value")
        dense = expr.value.toarray() if hasattr(expr.value, "toarray") else expr.value
        return np.asarray(dense, object)
    args = [_evaluate(arg, values) for arg in expr.args]
    if type(expr).__module__.startswith("cvxpy.atoms.affine."):
        try:
            return np.asarray(expr.numeric(args), object)
        except TypeError:  # it writes into arrays of float64
            return _affine(expr, args)
    if kind in _ELEMENTWISE:
        return np.asarray(_ELEMENTWISE[kind](*args, *(expr.get_data() or ())), object)
    if kind == "quadform":
        return np.asarray(args[0] @ args[1] @ args[0], object)
    if kind not in _REDUCTIONS or (kind == "pnorm" and expr.p != 2):
        raise ProblemError(
            f"an expression must use affine atoms, {', '.join([*_ELEMENTWISE, *_REDUCTIONS])} "
            f"or quad_form, got {expr}"
        )
    reduce = _REDUCTIONS[kind]
    if expr.axis is None:
        reduced = np.asarray(reduce(*np.ravel(args[0])), object)
    else:
        reduced = np.apply_along_axis(lambda line: reduce(*line), expr.axis, args[0])
    if kind == "quad_over_lin":
        reduced = reduced / args[1]
    return np.reshape(reduced, expr.shape)


def _affine(expr: Cvxpy, args: Sequence[Formulas]) -> Formulas:
    """An affine atom of arrays of formulas, by its values at 0 and at unit vectors."""
    fixed = [arg.is_constant() for arg in expr.args]
    numbers = [
        a.astype(float) if c else np.zeros(a.shape) for a, c in zip(args, fixed, strict=True)
    ]
    start = np.asarray(expr.numeric(numbers), float)
    out = start.astype(object)
    for k, arg in enumerate(args):
        for place in () if fixed[k] else np.ndindex(arg.shape):
            unit = np.zeros(arg.shape)
            unit[place] = 1.0
            slope = np.asarray(expr.numeric([*numbers[:k], unit, *numbers[k + 1 :]])) - start
            out[slope != 0.0] += slope[slope != 0.0] * arg[place]
    return out
