"""Text to expressions: a parser that knows arithmetic and a few functions, and nothing of Python.

    constraint = sum ("<=" | ">=" | "==") sum
    sum        = product {("+" | "-") product}
    product    = {"+" | "-"} power {("*" | "/") {"+" | "-"} power}
    power      = atom [("**" | "^") {"+" | "-"} power]
    atom       = number | name | name "[" integer "]" | function "(" sum {"," sum} ")" | "(" sum ")"
               | "sum" "(" name ")" | "total" "(" name ")" | "total" "(" sum {"," sum} ")"

``sum(x3)`` adds the components of one state; ``total(ev)`` adds over the agents of a fleet, a row
for every component, and stands in constraints of problems that have fleets.

Text is data here: no part of it is ever evaluated by Python or by SymPy's own parser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar, final

import sympy

from sottovoce.arguments import without_deep_recursion
from sottovoce.errors import ProblemError
from sottovoce.problem import expressions
from sottovoce.problem.tokens import Source, Token, tokenize

MAX_BRACKETS = 100
MAX_DIGITS = 40

_FUNCTIONS: dict[str, Callable[..., sympy.Expr]] = {
    "exp": expressions.exp,
    "log": expressions.log,
    "ln": expressions.log,
    "sqrt": expressions.sqrt,
    "logsumexp": expressions.logsumexp,
    "abs": expressions.absolute,
    "max": expressions.maximum,
    "min": expressions.minimum,
    "pos": expressions.pos,
    "norm": expressions.norm,
    "huber": expressions.huber,
}
_ARGUMENTS = {"logsumexp": None, "max": None, "min": None, "norm": None, "huber": 2}
RESERVED_NAMES = frozenset({*_FUNCTIONS, "pi", "e", "E"})

_COMPARISONS = {
    "<=": "",
    ">=": "",
    "<": "a constraint must include its border: write <=",
    ">": "a constraint must include its border: write >=",
    "==": "",
    "=": "an equality is written with ==",
    "!=": "a set with a hole is not convex: write <=, >= or ==",
}
_Inner = TypeVar("_Inner")


@without_deep_recursion
def parse_expression(
    text: str, symbols: Mapping[str, sympy.Symbol], *, where: str = ""
) -> sympy.Expr:
    """Read an expression such as `(x1 - 9)**2 + x1`.

    Integers and their fractions are exact (1/12 is a Rational); decimals are the IEEE doubles that
    Python would read (0.1, 1e-3).

    Args:
        text: The expression.
        symbols: The symbol for each name; a vector's component has the key `x3[2]`.
        where: Where the text stands, put before the message of an error.

    Raises:
        ProblemError: If the text is anything but an expression in these names.
    """
    return _Parser(text, symbols, where).expression()


class TotalReader(Protocol):
    """Takes the totals over fleets that a constraint names; ``problem.totals`` has one."""

    @property
    def inside(self) -> Mapping[str, sympy.Symbol]:
        """What the terms of a total may name."""
        ...

    @property
    def symbols(self) -> Collection[sympy.Symbol]:
        """What stands for the totals that were read."""
        ...

    def add(self, terms: Sequence[sympy.Expr]) -> sympy.Symbol:
        """Take the terms of one total, and return what stands for it."""
        ...


@without_deep_recursion
def parse_constraint(
    text: str,
    symbols: Mapping[str, sympy.Symbol],
    *,
    where: str = "",
    totals: TotalReader | None = None,
) -> tuple[sympy.Expr, bool]:
    """Read a constraint such as `x1 + x2 + x3 <= 3`; return g with g <= 0, and False.

    `a <= b` gives g = a - b, `a >= b` gives g = b - a, and `a == b` gives a - b, which must be 0,
    and True.
    Arguments and errors are those of `parse_expression`; ``totals`` takes totals over fleets.
    """
    return _Parser(text, symbols, where, totals).constraint()


def parse_number(text: str, *, where: str = "") -> float:
    """Read a constant such as `ln(3)`, `1/3` or `1e-6`; return the nearest double."""
    return float(parse_expression(text, {}, where=where).evalf(20))


def check_name(name: str, *, where: str = "") -> None:
    """Refuse a name that expressions could not use for a state.

    Raises:
        ProblemError: If it is not one ASCII word, or means something else in expressions.
    """
    source = Source(text=name, where=where)
    if [token.text for token in tokenize(source) if token.kind == "name"] != [name]:
        raise source.error(f"a name must be letters, digits and underscores, got {name!r:.40}")
    if name in RESERVED_NAMES:
        raise source.error(f"the name {name} has a meaning in expressions; choose another")


@final
class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(
        self,
        text: str,
        symbols: Mapping[str, sympy.Symbol],
        where: str,
        totals: TotalReader | None = None,
    ) -> None:
        self._source = Source(text=text, where=where)
        self._totals = totals
        self._symbols = symbols
        self._tokens = tokenize(self._source)
        self._next = 0
        self._brackets = 0

    def expression(self) -> sympy.Expr:
        tree = self._sum()
        if self._token.text in _COMPARISONS:
            raise self._error("an expression must not hold a comparison")
        self._expect_end()
        return self._checked(tree)

    def constraint(self) -> tuple[sympy.Expr, bool]:
        left = self._sum()
        sign = self._token
        if self._accept("<=", ">=", "==") is None:
            if sign.text not in _COMPARISONS:
                raise self._unexpected("<=, >= or ==")
            raise self._error(_COMPARISONS[sign.text])
        right = self._sum()
        if self._token.text in _COMPARISONS:
            raise self._error("a constraint must have one comparison: write two constraints")
        self._expect_end()
        if sign.text == ">=":
            left, right = right, left
        g = self._checked(self._build(sign, expressions.add, left, -right))
        return g, sign.text == "=="

    def _sum(self) -> sympy.Expr:
        first = self._token
        terms = [self._product()]
        while sign := self._accept("+", "-"):
            term = self._product()
            terms.append(-term if sign.text == "-" else term)
        return terms[0] if len(terms) == 1 else self._build(first, expressions.add, *terms)

    def _product(self) -> sympy.Expr:
        # A sign is a factor of the whole product: SymPy would spread it over a sum in brackets.
        first = self._token
        negative = self._negative()
        factors = [self._power()]
        while sign := self._accept("*", "/"):
            negative ^= self._negative()
            factor = self._power()
            if sign.text == "/":
                factor = self._build(sign, expressions.power, factor, -1)
            factors.append(factor)
        if negative:
            factors.append(sympy.Integer(-1))
        if len(factors) == 1:
            return factors[0]
        return self._build(first, expressions.multiply, *factors)

    def _power(self) -> sympy.Expr:
        # a**-b**c is a**(-(b**c)): collect the chain, then fold it from the right. A loop, because
        # a chain may be as long as the text.
        chain = [(False, self._token, self._atom())]
        while self._accept("**", "^"):
            chain.append((self._negative(), self._token, self._atom()))
        *bases, (negative, _, result) = chain
        for negative_base, token, base in reversed(bases):
            exponent = -result if negative else result
            result = self._build(token, expressions.power, base, exponent)
            negative = negative_base
        return result

    def _negative(self) -> bool:
        negative = False
        while sign := self._accept("+", "-"):
            negative ^= sign.text == "-"
        return negative

    def _atom(self) -> sympy.Expr:
        token = self._token
        if self._accept("("):
            return self._bracketed(token, self._sum)
        if token.kind not in ("number", "name"):
            raise self._error(f"expected a number, a name, a function or '(', got {token}")
        self._next += 1
        if token.kind == "number":
            return self._build(token, _number, token.text)
        if self._accept("("):
            return self._call(token)
        return self._named(token)

    def _call(self, name: Token) -> sympy.Expr:
        if name.text == "total" and self._totals is not None:
            return self._total(name, self._totals)
        if name.text == "sum" and self._whole_state():
            return self._build(name, expressions.add, *self._bracketed(name, self._components))
        if name.text not in _FUNCTIONS:
            if name.text in self._symbols:
                raise self._error(f"{name.text} is not a function: write * to multiply", name)
            raise self._error(expressions.unknown_function(name.text), name)
        arguments = self._bracketed(name, self._arguments)
        most = _ARGUMENTS.get(name.text, 1)
        if most is not None and len(arguments) > most:
            wanted = "one argument" if most == 1 else f"at most {most} arguments"
            raise self._error(f"{name.text} takes {wanted}, got {len(arguments)}", name)
        return self._build(name, _FUNCTIONS[name.text], *arguments)

    def _total(self, name: Token, totals: TotalReader) -> sympy.Expr:
        outside, self._symbols = self._symbols, totals.inside
        read = self._components if self._whole_state() else self._arguments
        terms = self._bracketed(name, read)
        self._symbols = outside
        return self._build(name, totals.add, terms)

    def _whole_state(self) -> bool:
        """Whether a vector's name stands alone before the closing bracket."""
        after = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        return after.text == ")" and f"{self._token.text}[1]" in self._symbols

    def _components(self) -> list[sympy.Expr]:
        """All components of the state that is named."""
        name = self._token.text
        self._next += 1
        found, c = [], 1
        while (key := f"{name}[{c}]") in self._symbols:
            found.append(self._symbols[key])
            c += 1
        return found

    def _arguments(self) -> list[sympy.Expr]:
        arguments = [self._sum()]
        while self._accept(","):
            arguments.append(self._sum())
        return arguments

    def _bracketed(self, opened: Token, read: Callable[[], _Inner]) -> _Inner:
        """What stands between '(', already read, and ')'."""
        if self._brackets == MAX_BRACKETS:
            raise self._error(f"more than {MAX_BRACKETS} brackets inside each other", opened)
        self._brackets += 1
        inner = read()
        if not self._accept(")"):
            raise self._unexpected("')'")
        self._brackets -= 1
        return inner

    def _named(self, name: Token) -> sympy.Expr:
        key = name.text
        if self._accept("["):
            key = f"{key}[{self._component()}]"
        if key == "pi":
            return sympy.pi
        if key in ("e", "E"):
            raise self._error("e is not a name: write exp(1), and exp(x) for its powers", name)
        if key in _FUNCTIONS:
            raise self._error(f"{key} is a function: write {key}(...)", name)
        if key not in self._symbols:
            raise self._error(self._unknown(name.text, key), name)
        return self._symbols[key]

    def _component(self) -> str:
        index = self._token
        if not index.text.isdecimal():
            raise self._error(f"a component is a whole number as in x3[2], got {index}")
        self._next += 1
        if not self._accept("]"):
            raise self._unexpected("']'")
        return index.text

    def _unknown(self, name: str, key: str) -> str:
        components = [known for known in self._symbols if known.startswith(f"{name}[")]
        if components:
            return (
                f"{key:.40} is unknown: {name} has the components {expressions.listed(components)}"
            )
        if name in self._symbols:
            return f"{key:.40} is unknown: {name} is a number, without components"
        known = expressions.listed(list(self._symbols))
        return f"unknown name {key!r:.40}: this problem has {known}"

    def _build(
        self, at: Token, function: Callable[..., sympy.Expr], *arguments: object
    ) -> sympy.Expr:
        try:
            return function(*arguments)
        except ProblemError as error:
            raise self._error(str(error), at) from None

    def _checked(self, tree: sympy.Expr) -> sympy.Expr:
        named = set(self._symbols.values())
        if self._totals is not None:
            named |= set(self._totals.symbols)
        return expressions.check_expression(tree, named, self._source.where)

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _accept(self, *signs: str) -> Token | None:
        """Move past the next token and return it if it is one of the signs."""
        token = self._token
        if token.text not in signs:
            return None
        self._next += 1
        return token

    def _expect_end(self) -> None:
        if self._token.kind != "end":
            raise self._unexpected("the end")

    def _unexpected(self, wanted: str) -> ProblemError:
        token = self._token
        if token.kind in ("number", "name") or token.text in ("(", "["):
            return self._error(f"expected an operator before {token}: write * to multiply")
        return self._error(f"expected {wanted}, got {token}")

    def _error(self, message: str, at: Token | None = None) -> ProblemError:
        return self._source.error(message, (at or self._token).column)


def _number(text: str) -> sympy.Expr:
    """An exact integer, or the double that Python reads."""
    if text.isdecimal():
        if len(text) > MAX_DIGITS:
            raise ProblemError(f"an integer must have at most {MAX_DIGITS} digits; else write 1e40")
        return expressions.add(int(text))
    value = float(text)
    vanished = value == 0 and text.lower().partition("e")[0].strip("0.")
    if vanished or not math.isfinite(value):
        raise ProblemError("a number must be 0 or between 2.3e-308 and 1.7e308 in size")
    return expressions.add(sympy.Float(value))
