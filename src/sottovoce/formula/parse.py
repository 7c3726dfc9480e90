"""Parser: text to formulas, with comparisons and a few functions; text is never executed.

    constraint = sum ("<=" | ">=" | "==") sum
    atom       = number | name | name "[" integer "]" | function "(" sum {"," sum} ")" | "(" sum ")"
               | "sum" "(" name ")" | "total" "(" name ")" | "total" "(" sum {"," sum} ")"

between the atoms ``+ - * / **`` (or ``^``) with Python's precedence. ``sum(x3)`` adds the
components of one state; ``total(ev)`` adds over the agents of a fleet, a row for every component,
and stands in constraints of problems that have fleets.

A text is cut into tokens, which a recursive-descent parser reads; it recurses into brackets alone.
Time and memory are linear in the text, whose length and brackets are limited, and an error points
at the token that it concerns. Python's ``ast`` does not serve: its trees nest a level per term, and
CPython 3.11 refuses a sum of 3,000 terms by RecursionError, on a deep stack shorter ones.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, final

from sottovoce.errors import ProblemError
from sottovoce.formula import functions
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import ZERO, Expression, Op, expression, number, to_power

MAX_CHARACTERS = 10_000
MAX_TOKENS = 5_000
MAX_BRACKETS = 100
MAX_DIGITS = 40
_CONTEXT = 30  # characters shown on either side of the place that an error concerns

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
_MOST_ARGUMENTS = {"huber": 2} | dict.fromkeys(
    ("logsumexp", "max", "min", "norm", "sum_squares"), sys.maxsize
)
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
_COMPARISONS = {
    "<=": "",
    ">=": "",
    "==": "",
    "<": "a constraint must include its border: write <=",
    ">": "a constraint must include its border: write >=",
    "=": "an equality is written with ==",
    "!=": "a set with a hole is not convex: write <=, >= or ==",
}
_OPERATORS = frozenset(("+", "-", "*", "/", "**", "^"))
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:[ \t\r\n]*\[[ \t\r\n]*[0-9]+[ \t\r\n]*\])?)"
    r"|(?P<operator>\*\*|<=|>=|==|!=|[-+*/^()\[\],<>=])"
)
_REPLACEMENTS = {
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{MULTIPLICATION SIGN}": "*",
    "\N{MIDDLE DOT}": "*",
    "\N{DOT OPERATOR}": "*",
    "\N{DIVISION SIGN}": "/",
    "\N{LESS-THAN OR EQUAL TO}": "<=",
    "\N{GREATER-THAN OR EQUAL TO}": ">=",
    "\N{SUPERSCRIPT TWO}": "**2",
    "\N{SUPERSCRIPT THREE}": "**3",
}


def parse_expression(
    text: str, symbols: Mapping[str, Expression], *, where: str = ""
) -> Expression:
    """Read an expression such as `(x1 - 9)**2 + x1`; return its canonical form.

    Integers and their fractions are exact (1/12); decimals are the IEEE doubles that Python would
    read (0.1, 1e-3). A component of a state has the key `x3[2]` in ``symbols``; ``where``, the
    place of the text, begins every message.

    Raises:
        ProblemError: If the text is anything but an expression in these names.
    """
    parser = _Parser(_Text(text, where), symbols)
    (formula, behind), *_ = parser.sides()
    if behind.kind != "end":
        raise parser.text.error("an expression must not hold a comparison", behind)
    return parser.canonical(formula)


def parse_constraint(
    text: str,
    symbols: Mapping[str, Expression],
    *,
    where: str = "",
    total: Callable[[Sequence[Expression]], Expression] | None = None,
    inside: Mapping[str, Expression] = MappingProxyType({}),
) -> tuple[Expression, bool]:
    """Read a constraint such as `x1 + x2 + x3 <= 3`; return g with g <= 0, and False.

    `a <= b` gives g = a - b, `a >= b` gives g = b - a, and `a == b` gives a - b, which must be 0,
    and True. ``total`` takes the canonical terms of a total over a fleet, which may name what is
    ``inside``, and returns what stands for it. Errors are those of `parse_expression`.
    """
    parser = _Parser(_Text(text, where), symbols, total, inside)
    (left, sign), *others = parser.sides()
    if not others:
        raise parser.text.error("expected <=, >= or ==, got the end", sign)
    if _COMPARISONS[sign.text]:
        raise parser.text.error(_COMPARISONS[sign.text], sign)
    right, behind = others[0]
    if behind.kind != "end":
        message = "a constraint must have one comparison: write two constraints"
        raise parser.text.error(message, behind)
    difference = right - left if sign.text == ">=" else left - right
    return parser.canonical(difference), sign.text == "=="


def parse_number(text: str, *, where: str = "") -> float:
    """Read a constant such as `ln(3)`, `1/3` or `1e-6` as a double."""
    return float(parse_expression(text, {}, where=where))


def check_name(name: str, *, where: str = "") -> None:
    """Refuse a name that is not one ASCII word, or means something else in expressions."""
    text = _Text(name, where)
    if [(token.kind, token.text) for token in text.tokens[:-1]] != [("name", name)] or "[" in name:
        raise text.error(f"a name must be letters, digits and underscores, got {name!r:.40}")
    if name in RESERVED_NAMES:
        raise text.error(f"the name {name} has a meaning in expressions; choose another")


def check_expression(expr: object, allowed: Collection[Expression], where: str) -> Expression:
    """Return the canonical form of a number or a formula in some symbols; refuse anything else."""
    try:
        form = canonical(expression(expr))
        unknown = form.symbols.difference(allowed)
        if unknown:
            name, names = min(s.name for s in unknown), [s.name for s in allowed]
            raise ProblemError(
                f"unknown symbol {name}: this expression may use {_name_list(names)}"
            )
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}" if where else str(error)) from None
    return form


def _name_list(names: Sequence[str]) -> str:
    """Say which names there are, many of them as `x1, x2, ..., x7`."""
    if not names:
        return "numbers only"
    return ", ".join(names if len(names) <= 6 else [*names[:2], "...", names[-1]])


# Tokens -------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    """A number, a name with its component, an operator, or the end; columns count from 0."""

    kind: str
    text: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"{self.text!r:.40}"


@final
class _Text:
    """A text cut into tokens, the last of kind "end", and what it is, such as a file's line."""

    def __init__(self, text: str, where: str) -> None:
        self._text, self._where = text, where
        self.tokens: list[_Token] = []
        if not isinstance(text, str):
            raise self.error(f"must be text in quotes, got {text!r:.40}")
        if len(text) > MAX_CHARACTERS:
            raise self.error(
                f"the text must have at most {MAX_CHARACTERS} characters, got {len(text)}"
            )
        column = 0
        while column < len(text):
            match = _TOKEN.match(text, column)
            if match is None:
                raise self.error(_bad_character(text[column]), _Token("", "", column))
            if match.lastgroup != "space":
                shown = "".join(match.group().split())
                self.tokens.append(_Token(str(match.lastgroup), shown, column))
            column = match.end()
        if not self.tokens:
            raise self.error("the text is empty")
        if (count := len(self.tokens)) > MAX_TOKENS:
            raise self.error(
                f"the text must have at most {MAX_TOKENS} numbers, names and signs, got {count}"
            )
        self.tokens.append(_Token("end", "", column))

    def error(self, message: str, token: _Token | None = None) -> ProblemError:
        """An error about this text, with a caret under the token it concerns."""
        lines = [f"{self._where}: {message}" if self._where else message]
        if token is not None:
            # People may count columns, so what cannot be printed still takes one place.
            line = "".join(char if char.isprintable() else " " for char in self._text)
            column = token.column
            start, stop = max(0, column - _CONTEXT), column + _CONTEXT
            before = "..." if start > 0 else ""
            after = "..." if stop < len(line) else ""
            lines.append(f"    {before}{line[start:stop]}{after}")
            lines.append(f"    {' ' * (len(before) + column - start)}^ column {column + 1}")
        return ProblemError("\n".join(lines))


def _bad_character(char: str) -> str:
    if char in _REPLACEMENTS:
        return f"unexpected {char!r}: write {_REPLACEMENTS[char]}"
    if char == ".":
        return "unexpected '.': a dot belongs inside a number, as in 0.5"
    if char.isascii() and char.isprintable():
        return f"unexpected {char!r}: only numbers, names, brackets and + - * / ** are known"
    name = unicodedata.name(char, "no printable character")
    return f"unexpected U+{ord(char):04X} ({name}): use plain ASCII"


# Formulas -----------------------------------------------------------------------------------------


@final
class _Parser:
    """Reads tokens from the left.

        sum = power {("*" | "/") power} {("+" | "-") power {("*" | "/") power}}
        power = {"+" | "-"} atom ["**" power]

    Operators and operands are checked to alternate one token ahead, before a name is looked up.
    """

    def __init__(
        self,
        text: _Text,
        symbols: Mapping[str, Expression],
        total: Callable[..., Expression] | None = None,
        inside: Mapping[str, Expression] = MappingProxyType({}),
    ) -> None:
        self.text = text
        self._symbols, self._total, self._inside = symbols, total, inside
        self._names = symbols  # inside a total those of its fleet
        self._tokens, self._next = text.tokens, 0
        self._open: list[_Token | None] = []  # per open bracket the function that it belongs to
        # Powers, divisors and calls, which may have no value, each with the token to name if so.
        self._fallible: list[tuple[Expression, _Token]] = []

    def sides(self) -> list[tuple[Expression, _Token]]:
        """The formulas between comparisons, each with the comparison or the end behind it."""
        sides = [(self._sum(), self._take())]
        while sides[-1][1].kind != "end":
            sides.append((self._sum(), self._take()))
        return sides

    def canonical(self, formula: Expression) -> Expression:
        """The canonical form; an error names the innermost place that has no value."""
        try:
            return canonical(formula)
        except ProblemError as error:
            for part, token in self._fallible:
                self._checked(token, canonical, part)
            raise self.text.error(str(error)) from None

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _sum(self) -> Expression:
        terms: list[Expression] = []
        negative = False
        while True:
            factors = [self._power()]
            while self._token.text in ("*", "/"):
                sign, factor = self._take(), self._power()
                if sign.text == "/":
                    factor = self._fallible_at(sign, Expression(Op.POW, (factor,), -1))
                factors.append(factor)
            term = factors[0] if len(factors) == 1 else Expression(Op.MUL, tuple(factors))
            terms.append(-term if negative else term)
            if self._token.text not in ("+", "-"):
                return terms[0] if len(terms) == 1 else Expression(Op.ADD, tuple(terms))
            negative = self._take().text == "-"

    def _power(self) -> Expression:
        """Signs and powers: ``-a**-b**c`` is ``-(a**(-(b**c)))``."""
        operands: list[tuple[bool, _Token, Expression]] = []
        while not operands or self._token.text in ("**", "^"):
            self._next += bool(operands)
            negative = False
            while self._token.text in ("+", "-"):
                negative ^= self._take().text == "-"
            operands.append((negative, self._token, self._atom()))
        *bases, (negative, _, value) = operands
        value = -value if negative else value
        for negative, token, base in reversed(bases):
            value = self._fallible_at(token, self._checked(token, to_power, base, value))
            value = -value if negative else value
        return value

    def _atom(self) -> Expression:
        token = self._token
        if token.text == "(":
            return self._bracketed(None)[0]
        if token.kind not in ("number", "name"):
            message = f"expected a number, a name, a function or '(', got {token}"
            raise self.text.error(message, token)
        self._next += 1
        if token.kind == "name" and self._token.text == "(":
            return self._fallible_at(token, self._call(token))
        self._require_follower()
        return self._number(token) if token.kind == "number" else self._named(token)

    def _bracketed(self, function: _Token | None) -> list[Expression]:
        """What stands in brackets; several formulas only behind a function."""
        if len(self._open) == MAX_BRACKETS:
            message = f"more than {MAX_BRACKETS} brackets inside each other"
            raise self.text.error(message, self._token)
        self._open.append(function)
        formulas: list[Expression] = []
        while self._take().text != ")":  # the bracket, then commas
            formulas.append(self._sum())
        self._open.pop()
        self._require_follower()
        return formulas

    def _require_follower(self) -> None:
        """Refuse what cannot stand behind an operand."""
        token, before = self._token, self._tokens[self._next - 1]
        if token.text in _OPERATORS:
            return
        if self._open and (token.text == ")" or (token.text == "," and self._open[-1])):
            return
        if not self._open and (token.text in _COMPARISONS or token.kind == "end"):
            return
        if before.kind == "name" and token.text == "[":
            index, after = self._tokens[self._next + 1 : self._next + 3]
            if not index.text.isdecimal():
                message = f"a component is an integer as in x3[2], got {index}"
                raise self.text.error(message, index)
            raise self.text.error(f"expected ']', got {after}", after)
        if token.kind in ("number", "name") or token.text in ("(", "["):
            message = f"expected an operator before {token}: write * to multiply"
        else:
            message = f"expected {repr(')') if self._open else 'the end'}, got {token}"
        raise self.text.error(message, token)

    def _call(self, token: _Token) -> Expression:
        name = token.text
        if name == "total" and self._total is not None and self._names is self._symbols:
            self._names = self._inside
            terms = self._state() or [self.canonical(term) for term in self._bracketed(token)]
            self._names = self._symbols
            return self._checked(token, self._total, terms)
        if name == "sum" and (state := self._state()):
            return Expression(Op.ADD, (ZERO, *state))
        if name not in _FUNCTIONS:
            message = _REMEDIES.get(name.lower(), f"unknown function {name:.40}: use {_KNOWN}")
            if name in self._symbols:
                message = f"{name} is not a function: write * to multiply"
            raise self.text.error(message, token)
        arguments, most = self._bracketed(token), _MOST_ARGUMENTS.get(name, 1)
        if len(arguments) > most:
            limit = "one argument" if most == 1 else f"at most {most} arguments"
            raise self.text.error(f"{name} takes {limit}, got {len(arguments)}", token)
        return self._checked(token, _FUNCTIONS[name], *arguments)

    def _state(self) -> list[Expression]:
        """The components of a state that stands alone in brackets; none if it does not."""
        name, *behind = self._tokens[self._next + 1 : self._next + 3]
        state: list[Expression] = []
        if behind and behind[0].text == ")":
            while (component := f"{name.text}[{len(state) + 1}]") in self._names:
                state.append(self._names[component])
        if state:
            self._next += 3
            self._require_follower()
        return state

    def _number(self, token: _Token) -> Expression:
        """An exact integer, or the double that Python reads."""
        if token.text.isdecimal():
            if len(token.text) > MAX_DIGITS:
                message = f"an integer must have at most {MAX_DIGITS} digits; else write 1e40"
                raise self.text.error(message, token)
            return number(int(token.text))
        value = float(token.text)
        zero = not token.text.lower().partition("e")[0].strip("0.")
        if not (zero or sys.float_info.min <= value < math.inf):
            raise self.text.error("a number must be 0 or between 2.3e-308 and 1.7e308", token)
        return number(value)

    def _named(self, token: _Token) -> Expression:
        key = token.text
        if key == "pi":
            return number(math.pi)
        if key in ("e", "E"):
            message = "e is not a name: write exp(1), and exp(x) for its powers"
        elif key in _FUNCTIONS:
            message = f"{key} is a function: write {key}(...)"
        elif key in self._names:
            return self._names[key]
        else:
            message = _unknown(key, self._names)
        raise self.text.error(message, token)

    def _fallible_at(self, token: _Token, formula: Expression) -> Expression:
        self._fallible.append((formula, token))
        return formula

    def _checked(
        self, token: _Token, function: Callable[..., Expression], *args: Any
    ) -> Expression:
        try:
            return function(*args)
        except ProblemError as error:
            raise self.text.error(str(error), token) from None


def _unknown(key: str, names: Mapping[str, Expression]) -> str:
    name = key.partition("[")[0]
    components = [n for n in names if n.startswith(f"{name}[")]
    if components:
        return f"{key:.40} is unknown: {name} has the components {_name_list(components)}"
    if name in names:
        return f"{key:.40} is unknown: {name} is a number, without components"
    return f"unknown name {key!r:.40}: this problem has {_name_list(list(names))}"
