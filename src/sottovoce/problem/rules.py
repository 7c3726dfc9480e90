"""Whether a formula of one agent's state is convex, and if not, which rule failed.

The rules are those of disciplined convex programming with signs from the box, for formulas with
parameters too, whose values are known. A quadratic that mixes components is judged by its matrix,
agent by agent. Nothing is proven here that a privacy promise rests on: that is ``certify``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import numpy as np
import sympy as sp

from sottovoce.problem import kinks
from sottovoce.problem.agents import Array, Group
from sottovoce.problem.printer import readable
from sottovoce.problem.shape import shape, whole

Bend: TypeAlias = Literal["affine", "convex", "concave"]
Ends: TypeAlias = tuple[float, float]
_BRIEF = 80  # characters of a formula that a message quotes
_ONE = sp.Integer(1)
_TINY = float(np.finfo(np.float64).tiny)  # what is at least this is positive
_WEAK = 1e-12  # how far below 0 an eigenvalue may fall, relative to the largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What the rules say of a formula.

    Attributes:
        bend: affine, convex or concave; None if no rule tells.
        why: the rule that failed, if one did.
    """

    bend: Bend | None
    why: str = ""

    @property
    def convex(self) -> bool:
        """Whether it is affine or convex."""
        return self.bend in ("affine", "convex")


@final
class Rules:
    """The rules on one box.

    Args:
        states: the symbols of the state.
        ranges: least and largest value of every symbol, parameters included.
        parameters: the values of every parameter, one per agent.
    """

    def __init__(
        self,
        states: Sequence[sp.Symbol],
        ranges: Mapping[sp.Symbol, Ends],
        parameters: Mapping[sp.Symbol, Array],
    ) -> None:
        self._states, self._ranges, self._parameters = frozenset(states), ranges, parameters
        self._found: dict[sp.Expr, Ruling] = {}

    def of(self, expr: sp.Expr) -> Ruling:
        """Return what the rules say of a formula."""
        if expr not in self._found:
            self._found[expr] = self._judged(expr)
        return self._found[expr]

    def affine(self, expr: sp.Expr) -> bool:
        """Whether a formula is affine in the state."""
        moving = self._moving(expr)
        return not any(self._moving(sp.expand(sp.diff(expr, s))) for s in moving)

    def _moving(self, expr: sp.Expr) -> frozenset[sp.Symbol]:
        return frozenset(expr.free_symbols & self._states)

    def _judged(self, expr: sp.Expr) -> Ruling:
        if not self._moving(expr) or expr.is_Symbol:
            return Ruling(bend="affine")
        if expr.free_symbols <= self._states and (told := shape(expr)) is not None:
            return Ruling(bend=told)
        if expr.is_Add:
            return self._sum(expr)
        if expr.is_Mul:
            return self._product(expr)
        if expr.is_Pow:
            return self._power(expr)
        if isinstance(expr, sp.Function) and expr.func in kinks.CONVEX:
            return self._kink(expr)
        return self._composed(expr, expr.args[0])

    def _composed(self, expr: sp.Expr, inner: sp.Expr) -> Ruling:
        bend = self.of(inner)
        if isinstance(expr, sp.log) and bend.bend in ("affine", "concave"):
            return Ruling(bend="concave")
        if isinstance(expr, sp.exp) and bend.convex:
            return Ruling(bend="convex")
        name = type(expr).__name__.lower()
        needs = {"log": "an affine or concave", "exp": "an affine or convex"}
        return self._fails(inner, f"{name} takes {needs.get(name, 'no such')} formula", expr)

    def _kink(self, expr: sp.Expr) -> Ruling:
        """Maxima of convex formulas; sizes of affine ones, or of convex ones at least 0."""
        largest = isinstance(expr, kinks.maximum)
        for inner in expr.args[:1] if isinstance(expr, kinks.huber) else expr.args:
            found = self.of(inner)
            low, high = self.range(inner)
            rising = found.convex and (largest or low >= 0.0)
            falling = not largest and found.bend == "concave" and high <= 0.0
            if found.bend != "affine" and not rising and not falling:
                name = {"absolute": "abs", "maximum": "max"}.get(expr.func.__name__)
                wanted = "convex formulas" if largest else "affine formulas"
                why = f"{name or expr.func.__name__} takes {wanted}, got {brief(inner)}"
                kind = found.bend or "neither convex nor concave"
                return Ruling(bend=None, why=found.why or f"{why}, which is {kind}")
        return Ruling(bend="convex")

    def _sum(self, expr: sp.Expr) -> Ruling:
        parts = [self.of(term) for term in expr.args]
        bent = {p.bend for p in parts} - {"affine"}
        if not bent:
            return Ruling(bend="affine")
        if len(bent) == 1 and None not in bent:
            return Ruling(bend=next(iter(bent)))
        together = self._quadratic(expr)
        if together is not None:
            return together
        broken = next((p for p in parts if p.bend is None), None)
        if broken is not None:
            return broken
        bad = next(t for t, p in zip(expr.args, parts, strict=True) if p.bend == "concave")
        return Ruling(
            bend=None,
            why=f"a sum must add convex terms only, got {brief(bad)}, which is concave",
        )

    def _product(self, expr: sp.Expr) -> Ruling:
        moving = [f for f in expr.args if self._moving(f)]
        rest = sp.Mul(*moving)
        if len(moving) == 1:
            low, high = self.range(sp.Mul(*(f for f in expr.args if not self._moving(f))))
            return self._scaled(self.of(rest), low, high, expr)
        told = self._quadratic(expr) or self._monomial(moving) or self._entropy(moving)
        if told is not None:
            return told
        text = brief(expr)
        why = f"a product must have one factor that names the state, got {len(moving)} in {text}"
        return Ruling(bend=None, why=why)

    def _monomial(self, factors: Sequence[sp.Expr], power: sp.Expr = _ONE) -> Ruling | None:
        """``y^p / (z_1^q_1 ...)`` with p at least 1 more than all q, and means ``y_1^p_1 ...``."""
        powers = [(base, whole(p * power)) for base, p in (f.as_base_exp() for f in factors)]
        if not all(p.is_number and p.is_real for _, p in powers):
            return None
        degree = sum(p for _, p in powers)
        above = [(base, p) for base, p in powers if p > 0]
        if len(above) == len(powers):
            mean = degree <= 1 and all(self._lies(b, "concave", 0.0) for b, _ in powers)
            return Ruling(bend="concave") if mean else None
        if len(above) != 1 or degree < 1:
            return None
        (top, p), below = above[0], [base for base, q in powers if q < 0]
        rises = (self.of(top).bend == "affine" and p.is_even) or self._lies(top, "convex", 0.0)
        fine = rises and all(self._lies(b, "concave", _TINY) for b in below)
        return Ruling(bend="convex") if fine else None

    def _entropy(self, factors: Sequence[sp.Expr]) -> Ruling | None:
        """``u log(c u)`` and ``u log(u/w)`` of affine formulas that are positive."""
        logs = [f for f in factors if isinstance(f, sp.log)]
        if len(factors) != 2 or len(logs) != 1:
            return None
        (u,) = (f for f in factors if f is not logs[0])
        below = sp.cancel(u / logs[0].args[0])
        fine = self.of(u).bend == self.of(below).bend == "affine"
        positive = self._lies(u, "affine", _TINY) and self.range(below)[0] > 0.0
        return Ruling(bend="convex") if fine and positive else None

    def _lies(self, expr: sp.Expr, bend: Bend, least: float) -> bool:
        """Whether a formula is affine, or bends as said, and is nowhere less than a number."""
        return self.of(expr).bend in ("affine", bend) and self.range(expr)[0] >= least

    def _scaled(self, inner: Ruling, low: float, high: float, expr: sp.Expr) -> Ruling:
        if inner.bend in (None, "affine") or low >= 0.0:
            return inner
        if high <= 0.0:
            return Ruling(bend="concave" if inner.bend == "convex" else "convex")
        text = brief(expr)
        why = f"a coefficient of a curved term must have one sign, got two for agents in {text}"
        return Ruling(bend=None, why=why)

    def _power(self, expr: sp.Expr) -> Ruling:
        base, inner = expr.base, self.of(expr.base)
        p = whole(expr.exp)
        low, high = self.range(base)
        if base.is_Mul and not p.is_integer:
            told = self._monomial([f for f in base.args if self._moving(f)], p)
            still = sp.Mul(*(f for f in base.args if not self._moving(f)))
            if told is not None and self.range(still)[0] >= 0.0:
                return told
        if p.is_even and p.is_positive:
            up = inner.convex and low >= 0.0
            down = inner.bend in ("affine", "concave") and high <= 0.0
            if inner.bend == "affine" or up or down:
                return Ruling(bend="convex")
        elif p >= 1 and inner.convex and low >= 0.0:
            return Ruling(bend="convex")
        elif inner.bend in ("affine", "concave") and self._bends_down(p, high):
            return Ruling(bend="concave")
        elif p.is_negative and inner.bend in ("affine", "concave") and low >= 0.0:
            return Ruling(bend="convex")
        elif p.is_negative and p.is_integer and inner.convex and high <= 0.0:
            return Ruling(bend="convex" if p.is_even else "concave")
        name = brief(base)
        why = f"a power must bend one way over the box, got {brief(expr)} with {name} in "
        return self._fails(base, f"{why}[{low:.6g}, {high:.6g}]", expr)

    @staticmethod
    def _bends_down(p: sp.Expr, high: float) -> bool:
        return bool(0 < p < 1 or (p >= 1 and p.is_odd and high <= 0.0))

    def _fails(self, inner: sp.Expr, rule: str, expr: sp.Expr) -> Ruling:
        found = self.of(inner)
        if found.bend is None:
            return found
        kind = (
            ""
            if "got" in rule
            else f", got {brief(inner)}, which is {found.bend}, in {brief(expr)}"
        )
        return Ruling(bend=None, why=f"{rule}{kind}")

    def _quadratic(self, expr: sp.Expr) -> Ruling | None:
        """A formula whose second derivatives do not depend on the state, by their matrix."""
        states = sorted(self._moving(expr), key=str)
        if kinks.bent(expr):
            return None  # its second derivatives do not tell of kinks
        try:
            hessian = sp.hessian(sp.expand(expr), states)
        except (TypeError, ValueError):
            return None
        if any(self._moving(entry) for entry in hessian):
            return None
        smallest, largest = self._eigenvalues(hessian)
        slack = _WEAK * np.maximum(np.abs(smallest), np.abs(largest))
        if np.all(smallest >= -slack):
            return Ruling(bend="convex")
        if np.all(largest <= slack):
            return Ruling(bend="concave")
        text = brief(expr)
        why = f"a quadratic must have a positive semidefinite matrix, got {text} without one"
        return Ruling(bend=None, why=why)

    def _eigenvalues(self, hessian: sp.Matrix) -> tuple[Array, Array]:
        used = sorted(hessian.free_symbols, key=str)
        numbers = sp.lambdify(used, hessian.tolist(), modules=[kinks.NUMPY, "numpy"])
        rows = numbers(*(self._parameters[s] for s in used))
        flat = np.broadcast_arrays(*(np.asarray(e, dtype=np.float64) for r in rows for e in r))
        n = hessian.shape[0]
        stacked = np.stack([np.ravel(e) for e in flat], axis=-1).reshape(-1, n, n)
        found = np.linalg.eigvalsh(stacked)
        return found[:, 0], found[:, -1]

    def range(self, expr: sp.Expr) -> Ends:
        """Least and largest value over the box, never too narrow but for rounding."""
        if expr.is_Symbol:
            return self._ranges[expr]
        if not expr.args:
            return float(expr), float(expr)
        inner = list(self._operands(expr))
        with np.errstate(all="ignore"):
            ends = [float(v) for v in _reach(expr, inner)]
        known = [e for e in ends if not np.isnan(e)]
        whole_line = len(known) < len(ends)
        return (-np.inf, np.inf) if whole_line else (min(known), max(known))

    def _operands(self, expr: sp.Expr) -> Iterator[Ends]:
        for child in expr.args if not expr.is_Pow else (expr.base,):
            yield self.range(child)


def brief(expr: sp.Expr) -> str:
    """A formula as people read it, cut where it is longer than a line."""
    text = readable(expr)
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}..."


def rules_of(group: Group) -> Rules:
    """Return the rules of convexity on the box that holds all agents of a group."""
    ranges = {
        s: (float(group.lower[:, c].min()), float(group.upper[:, c].max()))
        for c, s in enumerate(group.symbols)
    }
    ranges |= {s: (float(a.min()), float(a.max())) for s, a in group.parameters.items()}
    return Rules(group.symbols, ranges, group.parameters)


def _reach(expr: sp.Expr, inner: Sequence[Ends]) -> Sequence[float]:
    """Values among which are the least and the largest of an operation."""
    lows, highs = [low for low, _ in inner], [high for _, high in inner]
    if expr.is_Add:
        return [np.sum(lows), np.sum(highs)]
    if expr.is_Mul:
        ends: Sequence[float] = [1.0]
        for low, high in inner:
            ends = [a * b for a in ends for b in (low, high)]
            ends = [min(ends), max(ends)]
        return ends
    (low, high) = inner[0]
    if expr.is_Pow:
        p = float(expr.exp)
        turns = low <= 0.0 <= high
        if turns and (p < 0 or not p.is_integer()):
            return [np.nan] if p < 0 else [0.0, np.float64(high) ** p]
        ends = [np.float64(low) ** p, np.float64(high) ** p]
        return [*ends, 0.0] if turns else ends
    if isinstance(expr, kinks.maximum):
        return [max(lows), max(highs)]
    if isinstance(expr, sp.Function) and expr.func in kinks.CONVEX:
        ends = [0.0 if a <= 0.0 <= b else min(abs(a), abs(b)) for a, b in inner]
        tops = [max(abs(a), abs(b)) for a, b in inner]
        return [float(kinks.NUMPY[expr.func.__name__](*side)) for side in (ends, tops)]
    function = np.exp if isinstance(expr, sp.exp) else np.log
    return [function(low), function(high)]
