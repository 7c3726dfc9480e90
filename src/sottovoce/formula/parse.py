"""Text to formulas: arithmetic, comparisons and a few functions; text is never executed.

    constraint = sum ("<=" | ">=" | "==") sum
    atom       = number | name | name "[" integer "]" | function "(" sum {"," sum} ")" | "(" sum ")"
               | "sum" "(" name ")" | "total" "(" name ")" | "total" "(" sum {"," sum} ")"

between the atoms ``+ - * / **`` (or ``^``) with Python's precedence. ``sum(x3)`` adds the
components of one state; ``total(ev)`` adds over the agents of a fleet, a row for every component,
and stands in constraints of problems that have fleets.

A text is cut into tokens and checked token by token, with limits on length and brackets. Python's
``ast`` then groups them: it sees operators, brackets and the numbers of the tokens, no name and no
number of the text.
"""

from __future__ import annotations

import ast
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, final

from sottovoce.errors import ProblemError
from sottovoce.formula import functions
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import ZERO, Expression, Op, expression, node, number, raised
from sottovoce.formula.tokens import Source, Token, Tokens, cut

MAX_DIGITS = 40

_FUNCTIONS: dict[str, Callable[..., Expression]] = {
    "exp": functions.exp,
    "log": functions.log,
    "ln": functions.log,
    "sqrt": functions.sqrt,
    "logsumexp": functions.logsumexp,
    "abs": functions.absolute,
    "max": functions.maximum,
    "min": functions.minimum,
    "pos": functions.pos,
    "norm": functions.norm,
    "huber": functions.huber,
    "sum_squares": functions.sum_squares,
}
_ANY = sys.maxsize
_MOST_ARGUMENTS = {
    "logsumexp": _ANY, "max": _ANY, "min": _ANY, "norm": _ANY, "sum_squares": _ANY, "huber": 2,
}  # fmt: skip
RESERVED_NAMES = frozenset({*_FUNCTIONS, "pi", "e", "E"})

_KNOWN = "exp, log, sqrt, logsumexp, abs, max, min, pos, norm, huber, sum_squares and powers"
_REMEDIES = {
    "maximum": "the largest of several is written max(a, b) in text",
    "minimum": "the smallest of several is written min(a, b) in text",
    "piecewise": "a piecewise function is written as the largest of its convex pieces, "
    "max(a, b, ...)",
    "heaviside": "a step has no convex replacement",
    "sign": "a sign has no convex replacement",
    "pow": "pow is written x**2",
}
_OF_STATES = ("sum", "total")


class TotalReader(Protocol):
    """Takes the totals over fleets that a constraint names; ``problem.totals`` has one."""

    @property
    def inside(self) -> Mapping[str, Expression]:
        """What the terms of a total may name."""
        ...

    def add(self, terms: Sequence[Expression]) -> Expression:
        """Take the canonical terms of one total, and return what stands for it."""
        ...


def parse_expression(
    text: str, symbols: Mapping[str, Expression], *, where: str = ""
) -> Expression:
    """Read an expression such as `(x1 - 9)**2 + x1`; return its canonical form.

    Integers and their fractions are exact (1/12); decimals are the IEEE doubles that Python would
    read (0.1, 1e-3).

    Args:
        text: The expression.
        symbols: The symbol for each name; a vector's component has the key `x3[2]`.
        where: Where the text stands, put before the message of an error.

    Raises:
        ProblemError: If the text is anything but an expression in these names.
    """
    tokens = Tokens(Source(text=text, where=where), constraint=False)
    reader = _Reader(tokens, symbols, None)
    return reader.canonical(reader.sides()[0])


def parse_constraint(
    text: str,
    symbols: Mapping[str, Expression],
    *,
    where: str = "",
    totals: TotalReader | None = None,
) -> tuple[Expression, bool]:
    """Read a constraint such as `x1 + x2 + x3 <= 3`; return g with g <= 0, and False.

    `a <= b` gives g = a - b, `a >= b` gives g = b - a, and `a == b` gives a - b, which must be 0,
    and True.
    Arguments and errors are those of `parse_expression`; ``totals`` takes totals over fleets.
    """
    tokens = Tokens(Source(text=text, where=where), constraint=True)
    reader = _Reader(tokens, symbols, totals)
    left, right = reader.sides()
    difference = right - left if tokens.sign == ">=" else left - right
    return reader.canonical(difference), tokens.sign == "=="


def parse_number(text: str, *, where: str = "") -> float:
    """Read a constant such as `ln(3)`, `1/3` or `1e-6` as a double."""
    return float(parse_expression(text, {}, where=where))


def check_name(name: str, *, where: str = "") -> None:
    """Refuse a name that expressions could not use for a state.

    Raises:
        ProblemError: If it is not one ASCII word, or means something else in expressions.
    """
    source = Source(text=name, where=where)
    if [(token.kind, token.text) for token in cut(source)[:-1]] != [("name", name)] or "[" in name:
        raise source.error(f"a name must be letters, digits and underscores, got {name!r:.40}")
    if name in RESERVED_NAMES:
        raise source.error(f"the name {name} has a meaning in expressions; choose another")


def check_expression(expr: object, allowed: Collection[Expression], where: str) -> Expression:
    """Return the canonical form of a number or a formula.

    Args:
        expr: The number or formula.
        allowed: The symbols it may name.
        where: What the expression is, put before the message of an error.

    Raises:
        ProblemError: If it is something else, a constant in it is no finite real number, or it
            names another symbol.
    """
    try:
        form = canonical(expression(expr))
        strangers = form.symbols.difference(allowed)
        if strangers:
            name, known = min(s.name for s in strangers), [s.name for s in allowed]
            raise ProblemError(f"unknown symbol {name}: this expression may use {listed(known)}")
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}" if where else str(error)) from None
    return form


def unknown_function(name: str) -> str:
    """Say what to use instead of a function that expressions do not have."""
    return _REMEDIES.get(name.lower(), f"unknown function {name:.40}: use {_KNOWN}")


def listed(names: Sequence[str]) -> str:
    """Say which names there are, many of them as `x1, x2, ..., x7`."""
    if not names:
        return "numbers only"
    return ", ".join(names if len(names) <= 6 else [*names[:2], "...", names[-1]])


@final
class _Reader:
    """Turns the tree of a text into formulas, without recursion."""

    def __init__(
        self, tokens: Tokens, symbols: Mapping[str, Expression], totals: TotalReader | None
    ) -> None:
        self._tokens = tokens
        self._symbols = symbols
        self._totals = totals
        self._inside = {} if totals is None else totals.inside
        self._starts: list[int] = []
        # What may have no value, with the place to name if so: powers, divisors and calls.
        self._fallible: list[tuple[Expression, Token]] = []

    def sides(self) -> list[Expression]:
        """The formula of an expression, or both sides of a constraint."""
        tree = self._tree()
        tops = [tree.left, *tree.comparators] if isinstance(tree, ast.Compare) else [tree]
        known: dict[ast.expr, Expression] = {}
        todo = [(top, self._symbols) for top in reversed(tops)]
        while todo:
            part, names = todo[-1]
            if part not in known:
                inner = self._inside if self._is_total(part) else names
                below = [] if self._of_state(part, inner) else _operands(part)
                missing = [(b, inner) for b in reversed(below) if b not in known]
                if missing:
                    todo += missing
                    continue
                known[part] = self._formula(part, [known[b] for b in below], names)
            todo.pop()
        return [known[top] for top in tops]

    def canonical(self, formula: Expression) -> Expression:
        """The canonical form; an error names the innermost place that has no value."""
        try:
            return canonical(formula)
        except ProblemError as error:
            for part, at in self._fallible:
                self._checked(at, canonical, part)
            raise self._tokens.source.error(str(error)) from None

    def _tree(self) -> ast.expr:
        """Group the tokens; names and numbers go in as _0, _1, ... and come back by position."""
        parts: list[str] = []
        for k, token in enumerate(self._tokens.listed):
            text = f"_{k}" if token.kind in ("number", "name") else token.text.replace("^", "**")
            if text in ("+", "-") and parts[-1:] in (["+"], ["-"]):
                self._starts.append(self._starts[-1])
                parts[-1] = "+" if text == parts[-1] else "-"
                continue
            self._starts.append(self._starts[-1] + len(parts[-1]) + 1 if parts else 0)
            parts.append(text)
        try:
            return ast.parse(" ".join(parts).strip(), mode="eval").body
        except (SyntaxError, MemoryError, RecursionError):
            raise self._tokens.source.error(
                "an expression must be nested less deeply, got more than Python can read: split it"
            ) from None

    def _at(self, part: ast.expr) -> int:
        return bisect_right(self._starts, part.col_offset) - 1

    def _token(self, part: ast.expr) -> Token:
        return self._tokens.listed[self._at(part)]

    def _is_total(self, part: ast.expr) -> bool:
        call = isinstance(part, ast.Call) and self._totals is not None
        return call and self._token(part).text == "total"

    def _of_state(self, part: ast.expr, names: Mapping[str, Expression]) -> list[Expression]:
        """The components of a state that ``sum`` or ``total`` names alone."""
        if not isinstance(part, ast.Call) or len(part.args) > 1:
            return []
        if not isinstance(part.args[0], ast.Name) or self._token(part).text not in _OF_STATES:
            return []
        name = self._token(part.args[0]).text
        found: list[Expression] = []
        while (key := f"{name}[{len(found) + 1}]") in names:
            found.append(names[key])
        return found

    def _formula(
        self, part: ast.expr, below: list[Expression], names: Mapping[str, Expression]
    ) -> Expression:
        at = self._token(part)
        if isinstance(part, ast.Name):
            return self._number(at) if at.kind == "number" else self._named(at, names)
        if isinstance(part, ast.Call):
            return self._fallible_at(at, self._call(part, at, below, names))
        if isinstance(part, ast.UnaryOp):
            return -below[0] if isinstance(part.op, ast.USub) else below[0]
        if isinstance(part, ast.BinOp):
            return self._binary(part, at, *below)
        raise self._tokens.error(f"expected arithmetic, got {type(part).__name__}", at)

    def _binary(
        self, part: ast.BinOp, at: Token, left: Expression, right: Expression
    ) -> Expression:
        if isinstance(part.op, ast.Add):
            return node(Op.ADD, (left, right))
        if isinstance(part.op, ast.Sub):
            return node(Op.ADD, (left, -right))
        if isinstance(part.op, ast.Mult):
            return node(Op.MUL, (left, right))
        if isinstance(part.op, ast.Pow):
            return self._fallible_at(at, self._checked(at, raised, left, right))
        if isinstance(part.op, ast.Div):
            divisor = node(Op.POW, (right,), -1)
            return node(Op.MUL, (left, self._fallible_at(self._slash(part), divisor)))
        raise self._tokens.error(f"expected + - * / or **, got {type(part.op).__name__}", at)

    def _slash(self, part: ast.BinOp) -> Token:
        first = bisect_left(self._starts, part.left.end_col_offset or 0)
        return next(token for token in self._tokens.listed[first:] if token.text == "/")

    def _call(
        self, part: ast.Call, at: Token, below: list[Expression], names: Mapping[str, Expression]
    ) -> Expression:
        name = at.text
        if self._is_total(part) and self._totals is not None and names is not self._inside:
            terms = self._of_state(part, self._inside) or [self.canonical(b) for b in below]
            return self._checked(at, self._totals.add, terms)
        if name == "sum" and (state := self._of_state(part, names)):
            return node(Op.ADD, (ZERO, *state))
        if name not in _FUNCTIONS:
            if name in self._symbols:
                raise self._tokens.error(f"{name} is not a function: write * to multiply", at)
            raise self._tokens.error(unknown_function(name), at)
        most = _MOST_ARGUMENTS.get(name, 1)
        if len(below) > most:
            wanted = "one argument" if most == 1 else f"at most {most} arguments"
            raise self._tokens.error(f"{name} takes {wanted}, got {len(below)}", at)
        return self._checked(at, _FUNCTIONS[name], *below)

    def _number(self, at: Token) -> Expression:
        """An exact integer, or the double that Python reads."""
        if at.text.isdecimal():
            if len(at.text) > MAX_DIGITS:
                raise self._tokens.error(
                    f"an integer must have at most {MAX_DIGITS} digits; else write 1e40", at
                )
            return number(int(at.text))
        value = float(at.text)
        zero = not at.text.lower().partition("e")[0].strip("0.")
        if not (zero or sys.float_info.min <= value < math.inf):
            raise self._tokens.error("a number must be 0 or between 2.3e-308 and 1.7e308", at)
        return number(value)

    def _named(self, at: Token, names: Mapping[str, Expression]) -> Expression:
        key = at.text
        if key == "pi":
            return number(math.pi)
        if key in ("e", "E"):
            message = "e is not a name: write exp(1), and exp(x) for its powers"
        elif key in _FUNCTIONS:
            message = f"{key} is a function: write {key}(...)"
        elif key in names:
            return names[key]
        else:
            message = _unknown(key, names)
        raise self._tokens.error(message, at)

    def _fallible_at(self, at: Token, formula: Expression) -> Expression:
        self._fallible.append((formula, at))
        return formula

    def _checked(
        self, at: Token, function: Callable[..., Expression], *arguments: Any
    ) -> Expression:
        try:
            return function(*arguments)
        except ProblemError as error:
            raise self._tokens.error(str(error), at) from None


def _operands(part: ast.expr) -> list[ast.expr]:
    if isinstance(part, ast.BinOp):
        return [part.left, part.right]
    if isinstance(part, ast.UnaryOp):
        return [part.operand]
    return part.args if isinstance(part, ast.Call) else []


def _unknown(key: str, names: Mapping[str, Expression]) -> str:
    name = key.partition("[")[0]
    components = [known for known in names if known.startswith(f"{name}[")]
    if components:
        return f"{key:.40} is unknown: {name} has the components {listed(components)}"
    if name in names:
        return f"{key:.40} is unknown: {name} is a number, without components"
    return f"unknown name {key!r:.40}: this problem has {listed(list(names))}"
