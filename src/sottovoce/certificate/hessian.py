"""Interval Hessians, and sampled witnesses of negative curvature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, TypeAlias, final

import numpy as np
from numpy.polynomial.polynomial import polyder, polydiv, polytrim, polyval
from numpy.typing import NDArray

from sottovoce.formula.canonical import addends, base_exponent, coefficient, expand, is_integer
from sottovoce.formula.derive import connected_blocks, hessian
from sottovoce.formula.enclosure import enclose
from sottovoce.formula.expression import ZERO, Expression
from sottovoce.formula.intervals import Interval
from sottovoce.formula.order import in_order
from sottovoce.formula.signs import Signs
from sottovoce.problem.groups import Array

Claim = Callable[[Array, Array], NDArray[np.bool_]]
"""Takes lower and upper ends of boxes (b, symbols); returns for which of them it is proven."""

Polynomial: TypeAlias = Any
"""The fractions of a polynomial in one variable, that of 1 first: an array of objects."""

_AGENTS_AT_ONCE = 1 << 16  # agents of a fleet judged at a time
_FINITE_BUDGET = 4096  # boxes to prove a formula finite: a second or less
_POINTS = 1024  # of the even sequence in which a counterexample is looked for
_MOST_CORNERS = 8  # variables up to which all corners of a box are points
_MOST_SAMPLES = 1 << 14  # points of all agents together
_EVENLY = 64  # agents of a fleet whose boxes are sampled, besides those with extreme bounds
_LOWEST = 8  # points with the lowest eigenvalues whose directions are tried
_CONDITION = 2.0**-50  # per row: a smaller ratio of eigenvalues is not told from 0
_PRODUCT_ERROR = 1e-14  # per row: relative error of two matrix products, far above 2^-52
_DOMINANCE = 1e-10  # by which dominance must hold, above the rounding of its own sums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProofRegion:
    """Where a formula is judged: a box for each agent of a fleet, or just one."""

    variables: tuple[Expression, ...]  # in which convexity is judged; other symbols are fixed
    lower: Mapping[Expression, Array]  # lower bounds by symbol, one for all agents or one each
    upper: Mapping[Expression, Array]  # upper bounds, likewise
    ends: Mapping[Expression, tuple[float, float]] = field(init=False)  # of the hull, by symbol

    def __post_init__(self) -> None:
        # Once for all proofs: a fleet may have a million agents.
        ends = {s: (float(low.min()), float(self.upper[s].max())) for s, low in self.lower.items()}
        object.__setattr__(self, "ends", ends)

    @property
    def agents(self) -> int:
        """How many boxes there are."""
        return max((bound.size for bound in self.lower.values()), default=1)

    def variables_of(self, expr: Expression) -> tuple[Expression, ...]:
        """The variables that ``expr`` depends on."""
        free = expr.symbols
        return tuple(s for s in self.variables if s in free)

    def hull(self, symbols: Sequence[Expression]) -> tuple[Array, Array]:
        """The smallest box that holds every agent's, as two arrays (1, symbols)."""
        ends = np.array([self.ends[s] for s in symbols]).reshape(1, len(symbols), 2)
        return ends[:, :, 0], ends[:, :, 1]

    def boxes(self, symbols: Sequence[Expression], agents: NDArray[np.intp]) -> tuple[Array, Array]:
        """The boxes of some agents, as two arrays (agents, symbols)."""
        lower, upper = np.empty((2, agents.size, len(symbols)))
        for column, s in enumerate(symbols):
            lower[:, column] = np.broadcast_to(self.lower[s], (self.agents,))[agents]
            upper[:, column] = np.broadcast_to(self.upper[s], (self.agents,))[agents]
        return lower, upper

    def covers(self, symbols: Sequence[Expression]) -> Iterator[list[tuple[Array, Array]]]:
        """Ways to cover all agents' boxes: by one hull, and if that is larger, one by one."""
        yield [self.hull(symbols)]
        if any(self.lower[s].size > 1 or self.upper[s].size > 1 for s in symbols):
            starts = range(0, self.agents, _AGENTS_AT_ONCE)
            ranges = [np.arange(k, min(k + _AGENTS_AT_ONCE, self.agents)) for k in starts]
            yield [self.boxes(symbols, agents) for agents in ranges]


def bounded_below(
    expr: Expression, region: ProofRegion, *, strict: bool, budget: int = 512
) -> bool:
    """Prove ``expr >= 0`` (or > 0) wherever the region's agents can be, by subdivision."""

    def holds(low: Array, high: Array) -> NDArray[np.bool_]:
        return np.asarray((low > 0.0 if strict else low >= 0.0) & np.isfinite(high))

    return _prove_range(holds, expr, region, budget)


def bounded_on(expr: Expression, region: ProofRegion) -> bool:
    """Prove that ``expr`` is defined and finite wherever the agents can be, by subdivision."""
    return _prove_range(
        lambda low, high: np.isfinite(low) & np.isfinite(high), expr, region, _FINITE_BUDGET
    )


def _prove_range(claim: Claim, expr: Expression, region: ProofRegion, budget: int) -> bool:
    """Prove a claim about the ends of a formula's range wherever the agents can be."""
    symbols = in_order(expr.symbols)
    return _prove_everywhere(
        lambda lower, upper: claim(*enclosed_ends(expr, symbols, lower, upper)),
        region,
        symbols,
        budget,
    )


class Hessian:
    """The second derivatives of a formula, split into blocks of variables that interact."""

    __slots__ = ("blocks", "entries", "region", "symbols", "variables")

    def __init__(self, expr: Expression, region: ProofRegion) -> None:
        self.region = region
        self.variables = region.variables_of(expr)
        self.symbols = in_order(expr.symbols)
        n = len(self.variables)
        place = {s: k for k, s in enumerate(self.variables)}
        self.entries: list[list[Expression]] = [[ZERO] * n for _ in range(n)]
        for (s, t), entry in hessian(expr, self.variables).items():
            i, j = place[s], place[t]
            self.entries[i][j] = self.entries[j][i] = entry
        self.blocks = connected_blocks([[not e.is_zero for e in row] for row in self.entries])

    @property
    def constant(self) -> bool:
        """Whether second derivatives depend on parameters alone."""
        moving = set(self.variables)
        return not any(entry.symbols & moving for row in self.entries for entry in row)

    def definite(self, *, budget: int) -> frozenset[Expression] | None:
        """Prove ``H(x) >= 0`` block by block; return the variables in which f is strictly convex.

        A block of one variable must not be negative; a larger one must be positive definite on
        every box of a subdivision, of about ``budget`` matrices of order 2 and fewer larger ones.
        None if a block has no proof.
        """
        strict: set[Expression] = set()
        for block in sorted(self.blocks, key=len):
            if len(block) == 1:
                proven, strictly = self._nonnegative_entry(block[0], budget)
            else:
                proven = strictly = self._diagonally_dominant(
                    block, budget
                ) or self._definite_on_boxes(block, budget)
            if not proven:
                return None
            strict |= {self.variables[k] for k in block} if strictly else set()
        return frozenset(strict)

    def _nonnegative_entry(self, k: int, budget: int) -> tuple[bool, bool]:
        """Whether a single second derivative is proven nonnegative, and f strictly convex in it."""
        entry, variable = self.entries[k][k], self.variables[k]
        if entry.symbols != {variable}:
            if not entry.is_zero and bounded_below(entry, self.region, strict=True, budget=budget):
                return True, True
            return bounded_below(entry, self.region, strict=False, budget=budget), False
        p = polynomial(entry, variable)
        is_proven = p is not None and nonnegative_polynomial(p, *self.region.ends[variable])
        if not (is_proven or bounded_below(entry, self.region, strict=False, budget=budget)):
            return False, False
        # f'' is analytic: unless it is zero throughout, its zeros are isolated and f' increases.
        points, _ = sample_points(self.region, [variable])
        return True, bool((enclosed_ends(entry, [variable], points, points)[0] > 0.0).any())

    def _diagonally_dominant(self, block: list[int], budget: int) -> bool:
        """Prove strict diagonal dominance row by row; each row has few symbols to subdivide."""

        def prove(i: int) -> bool:
            symbols = in_order({s for j in block for s in self.entries[i][j].symbols})
            others = [e for j in block if j != i and not (e := self.entries[i][j]).is_zero]

            def holds(lower: Array, upper: Array) -> NDArray[np.bool_]:
                ranges = (enclosed_ends(e, symbols, lower, upper) for e in others)
                # The factor covers the rounding of a sum of fewer than 2^20 positive numbers.
                total = sum(np.abs(ends).max(axis=0) for ends in ranges) * (1.0 + 2.0**-30)
                diagonal, _ = enclosed_ends(self.entries[i][i], symbols, lower, upper)
                return np.asarray(diagonal > total)

            return _prove_everywhere(holds, self.region, symbols, budget)

        return all(prove(i) for i in block)

    def _definite_on_boxes(self, block: list[int], budget: int) -> bool:
        symbols = in_order({s for i in block for j in block for s in self.entries[i][j].symbols})

        def holds(lower: Array, upper: Array) -> NDArray[np.bool_]:
            return _positive_definite(*self._enclose(block, symbols, lower, upper))

        return _prove_everywhere(holds, self.region, symbols, 4 * budget // len(block) ** 2)

    def _enclose(
        self, block: list[int], symbols: Sequence[Expression], lower: Array, upper: Array
    ) -> tuple[Array, Array]:
        """Enclose a block on many boxes, as two arrays (boxes, k, k)."""
        low = np.zeros((lower.shape[0], len(block), len(block)))
        high = np.zeros_like(low)
        for a, i in enumerate(block):
            for b, j in enumerate(block[: a + 1]):
                ends = enclosed_ends(self.entries[i][j], symbols, lower, upper)
                low[:, a, b], high[:, a, b] = low[:, b, a], high[:, b, a] = ends
        return low, high

    def negative_direction(self) -> tuple[dict[Expression, float], str] | None:
        """Look for a point and a direction v with ``v' H v < 0``, confirmed in exact arithmetic."""
        points, free = sample_points(self.region, self.symbols)
        place = {s: c for c, s in enumerate(self.symbols)}
        for block in self.blocks:
            # Convexity asks nothing of a variable that an agent's box fixes.
            moving = np.stack([free[:, place[self.variables[k]]] for k in block], axis=1)
            low, high = self._enclose(block, self.symbols, points, points)
            with np.errstate(invalid="ignore"):
                middle = (low + high) / 2 * (moving[:, :, None] & moving[:, None, :])
            middle[~np.isfinite(middle).all(axis=(1, 2))] = 0.0
            values, vectors = np.linalg.eigh(middle)
            for k in np.argsort(values[:, 0], kind="stable")[:_LOWEST]:
                vector = vectors[k, :, 0]
                largest = vector[np.abs(vector).argmax()]
                direction = np.where(moving[k], np.round(vector / largest, 6), 0.0)
                bound = _quadratic_upper(low[k], high[k], direction)
                if bound is not None and bound < 0.0:
                    named = zip((self.variables[c] for c in block), direction, strict=True)
                    components = ", ".join(f"{s}: {v:g}" for s, v in named if v)
                    point = dict(zip(self.symbols, points[k].tolist(), strict=True))
                    return point, f"second derivative {bound:.6g} in the direction ({components})"
        return None


def sample_points(
    region: ProofRegion, symbols: Sequence[Expression]
) -> tuple[Array, NDArray[np.bool_]]:
    """Return points spread over the agents' boxes, and which of their coordinates can move.

    They are the centre, corners and an even sequence between them, the same at every call, for
    agents with extreme bounds or parameters and others evenly spaced.
    """
    s = len(symbols)
    spread = _low_discrepancy_points(_POINTS, s)
    corners = (
        np.array(list(product((0.0, 1.0), repeat=s)))
        if s <= _MOST_CORNERS
        else np.round(spread[:256])
    )
    unit = np.concatenate([np.full((1, s), 0.5), corners.reshape(-1, s), spread])
    agents = np.zeros(1, dtype=np.intp)
    if region.agents > 1:
        ends = [b[x] for x in symbols for b in (region.lower, region.upper) if b[x].size > 1]
        extremes = [k for b in ends for k in (int(b.argmin()), int(b.argmax()))]
        evenly = np.linspace(0, region.agents - 1, num=min(region.agents, _EVENLY)).astype(np.intp)
        agents = np.unique(np.concatenate([np.array(extremes, dtype=np.intp), evenly]))
    lower, upper = region.boxes(symbols, agents)
    unit = unit[: max(64, _MOST_SAMPLES // agents.size)]
    width = (upper - lower)[:, None, :]
    points = np.clip(lower[:, None, :] + unit * width, lower[:, None, :], upper[:, None, :])
    free = np.broadcast_to(width > 0, points.shape)
    return points.reshape(-1, s), free.reshape(-1, s)


def _low_discrepancy_points(count: int, dim: int) -> Array:
    """Points of the unit cube at multiples of powers of 1/r, with ``r^(dim + 1) = r + 1``.

    The generalised golden ratio r keeps every prefix of the sequence evenly spread.
    """
    ratio = 2.0
    for _ in range(64):
        ratio = (1.0 + ratio) ** (1.0 / (dim + 1))
    steps = ratio ** -np.arange(1.0, dim + 1)
    return np.asarray((0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0)


def enclosed_ends(
    expr: Expression, symbols: Sequence[Expression], lower: Array, upper: Array
) -> tuple[Array, Array]:
    """Enclose ``expr`` on boxes (b, symbols), shape (b,); unbounded where it may be undefined."""
    box = {
        s: Interval(lower=lower[:, k], upper=upper[:, k])
        for k, s in enumerate(symbols)
        if s in expr.symbols
    }
    value, shape = enclose(expr, box), lower.shape[:1]
    return np.broadcast_to(value.lower, shape), np.broadcast_to(value.upper, shape)


def _prove_everywhere(
    claim: Claim, region: ProofRegion, symbols: Sequence[Expression], budget: int
) -> bool:
    """Prove a claim on the hull of all agents' boxes, or failing that on each of them."""
    return any(
        all(_prove(claim, *boxes, budget=budget + 4 * boxes[0].shape[0]) for boxes in cover)
        for cover in region.covers(symbols)
    )


def _prove(claim: Claim, lower: Array, upper: Array, *, budget: int) -> bool:
    """Halve boxes until every part is proven; give up at a point without proof or a spent budget.

    Where a claim is not proven at a point, it is on no box around that point.
    """
    scale = np.maximum((upper - lower).max(axis=0, initial=0.0), np.finfo(float).tiny)
    spent = 0
    while lower.shape[0]:
        spent += lower.shape[0]
        middle = lower + (upper - lower) / 2
        if spent > budget or not claim(middle, middle).all():
            return False
        left = ~claim(lower, upper)
        if not left.any():
            return True
        lower, upper, middle = lower[left], upper[left], middle[left]
        rows, widest = np.arange(lower.shape[0]), ((upper - lower) / scale).argmax(axis=1)
        below, above = upper.copy(), lower.copy()
        below[rows, widest] = above[rows, widest] = middle[rows, widest]
        lower, upper = np.concatenate([lower, above]), np.concatenate([below, upper])
    return True


@np.errstate(all="ignore")
def _positive_definite(low: Array, high: Array) -> NDArray[np.bool_]:
    """Prove interval matrices (boxes, k, k) positive definite; False where that fails.

    Whatever U is, U'AU is positive definite only if A is. U is chosen so that U'MU is close to the
    identity for the midpoint M, and diagonal dominance then decides for all A at once.
    """
    k = low.shape[-1]
    middle = low / 2 + high / 2
    radius = np.nextafter(np.maximum(high - middle, middle - low), np.inf)
    diagonal = np.maximum(np.diagonal(middle, axis1=1, axis2=2), np.finfo(float).tiny)
    # Powers of two scale without rounding.
    unit = np.exp2(-np.round(np.log2(diagonal) / 2))
    middle, radius = (a * unit[:, :, None] * unit[:, None, :] for a in (middle, radius))
    is_definite = np.asarray(np.isfinite(middle + radius).all(axis=(1, 2)))
    middle, radius = (np.where(is_definite[:, None, None], a, 0.0) for a in (middle, radius))
    values, vectors = np.linalg.eigh(middle)
    is_definite &= values[:, 0] > k * _CONDITION * values[:, -1]
    u = vectors / np.sqrt(np.where(is_definite[:, None], values, 1.0))[:, None, :]
    ut, size = np.swapaxes(u, 1, 2), np.abs(u)
    close = ut @ middle @ u
    on = np.diagonal(close, axis1=1, axis2=2)
    off = np.abs(close * (1.0 - np.eye(k))).sum(axis=2)
    # Each product rounds by less than (k + 1) 2^-52 of |U'||M||U|.
    slack = np.swapaxes(size, 1, 2) @ (radius + _PRODUCT_ERROR * k * np.abs(middle)) @ size
    dominant = on - (off + slack.sum(axis=2)) * (1 + _DOMINANCE) > _DOMINANCE
    return np.asarray(is_definite & dominant.all(axis=1))


def _quadratic_upper(low: Array, high: Array, direction: Array) -> float | None:
    """An upper bound of ``v' A v`` over all A between ``low`` and ``high``, without rounding."""
    used = np.flatnonzero(direction)
    v, low, high = direction[used], low[np.ix_(used, used)], high[np.ix_(used, used)]
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    largest = np.where(np.outer(np.sign(v), np.sign(v)) > 0, high, low)
    exact = [Fraction(c) for c in v.tolist()]
    pairs = zip(product(exact, exact), largest.ravel().tolist(), strict=True)
    return float(sum(a * b * Fraction(e) for (a, b), e in pairs))


@final
class CertifiedSigns(Signs):
    """Signs that interval arithmetic proves on a region, for the rules of convex calculus."""

    defined = False

    def __init__(self, region: ProofRegion) -> None:
        self._region = region

    def positive(self, expr: Expression, *, strict: bool) -> bool:
        """Whether ``expr > 0`` (or >= 0) is proven for every agent."""
        return bounded_below(expr, self._region, strict=strict)


def polynomial(expr: Expression, variable: Expression) -> Polynomial | None:
    """Read a formula as a polynomial in a variable; None if it is none."""
    terms: dict[int, Fraction] = {}
    for term in addends(expand(expr)):
        c, rest = coefficient(term)
        base, degree = (variable, 0) if rest.is_one else base_exponent(rest)
        if base is not variable or not is_integer(degree) or degree < 0:
            return None
        terms[int(degree)] = Fraction(c)
    return np.array([terms.get(k, Fraction(0)) for k in range(max(terms) + 1)], dtype=object)


def nonnegative_polynomial(p: Polynomial, low: float, high: float) -> bool:
    """Decide exactly whether a polynomial is nonnegative on ``[low, high]``, by Sturm's theorem.

    Bisection separates its roots: at a single one between two positive values the sign stays.
    """
    a, b = Fraction(low), Fraction(high)
    if not np.any(p) or min(polyval(a, p), polyval(b, p)) < 0:
        return not np.any(p)
    # The last of the remainders is what p shares with its derivative: without it no root is double.
    chain = _remainders(polydiv(p, _remainders(p)[-1])[0])
    parts = [(a, b)] if a < b else []
    while parts:
        a, b = parts.pop()
        inside = _sign_changes(chain, a) - _sign_changes(chain, b) - (not polyval(b, p))
        if inside == 1 and polyval(a, p) > 0 and polyval(b, p) > 0:
            continue
        middle = (a + b) / 2
        if polyval(middle, p) < 0:
            return False
        if inside:
            parts += [(a, middle), (middle, b)]
    return True


def _remainders(p: Polynomial) -> list[Polynomial]:
    """A polynomial, its derivative, and the negated remainders after them: its Sturm chain."""
    chain = [polytrim(p), polytrim(polyder(p))]
    while np.any(chain[-1]):
        chain.append(-polydiv(chain[-2], chain[-1])[1])
    return chain[:-1]


def _sign_changes(chain: Sequence[Polynomial], x: Fraction) -> int:
    signs = [value > 0 for p in chain if (value := polyval(x, p))]
    return sum(left != right for left, right in pairwise(signs))
