"""Text to formulas: arithmetic, comparisons and a few functions; text is never executed.

    constraint = sum ("<=" | ">=" | "==") sum
    atom       = number | name | name "[" integer "]" | function "(" sum {"," sum} ")" | "(" sum ")"
               | "sum" "(" name ")" | "total" "(" name ")" | "total" "(" sum {"," sum} ")"

between the atoms ``+ - * / **`` (or ``^``) with Python's precedence. ``sum(x3)`` adds the
components of one state; ``total(ev)`` adds over the agents of a fleet, a row for every component,
and stands in constraints of problems that have fleets.

A text is cut into tokens, which the shunting-yard algorithm (Dijkstra 1961) brings into postfix
order; a stack of formulas evaluates them. Time and memory are linear in the text, whose length and
brackets are limited, and an error points at the token that it concerns.
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, final

from sottovoce.errors import ProblemError
from sottovoce.formula import functions
from sottovoce.formula.canonical import canonical
from sottovoce.formula.expression import ZERO, Expression, Op, expression, node, number, raised

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
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "negate": 3, "**": 4, "^": 4}
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


class TotalReader(Protocol):
    """Takes the totals over fleets that a constraint names; ``problem.files`` has one."""

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
    reader = _Reader(_Text(text, where), symbols, None)
    for step in (steps := _Shunting(reader.text).steps):
        if step.op == "compare":
            raise reader.text.error("an expression must not hold a comparison", step.token)
    return reader.canonical(reader.values(steps)[0])


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
    reader = _Reader(_Text(text, where), symbols, totals)
    steps = _Shunting(reader.text).steps
    signs = [step.token for step in steps if step.op == "compare"]
    if not signs:
        raise reader.text.error("expected <=, >= or ==, got the end", reader.text.tokens[-1])
    if _COMPARISONS[signs[0].text]:
        raise reader.text.error(_COMPARISONS[signs[0].text], signs[0])
    if len(signs) > 1:
        message = "a constraint must have one comparison: write two constraints"
        raise reader.text.error(message, signs[1])
    left, right = reader.values([step for step in steps if step.op != "compare"])
    difference = right - left if signs[0].text == ">=" else left - right
    return reader.canonical(difference), signs[0].text == "=="


def parse_number(text: str, *, where: str = "") -> float:
    """Read a constant such as `ln(3)`, `1/3` or `1e-6` as a double."""
    return float(parse_expression(text, {}, where=where))


def check_name(name: str, *, where: str = "") -> None:
    """Refuse a name that expressions could not use for a state.

    Raises:
        ProblemError: If it is not one ASCII word, or means something else in expressions.
    """
    text = _Text(name, where)
    if [(token.kind, token.text) for token in text.tokens[:-1]] != [("name", name)] or "[" in name:
        raise text.error(f"a name must be letters, digits and underscores, got {name!r:.40}")
    if name in RESERVED_NAMES:
        raise text.error(f"the name {name} has a meaning in expressions; choose another")


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
            raise ProblemError(f"unknown symbol {name}: this expression may use {_listed(known)}")
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}" if where else str(error)) from None
    return form


def _listed(names: Sequence[str]) -> str:
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
            token = _Token(str(match and match.lastgroup), "", column)
            if match is None:
                raise self.error(_bad_character(text[column]), token)
            if token.kind != "space":
                self.tokens.append(token._replace(text="".join(match.group().split())))
            column = match.end()
        if not self.tokens:
            raise self.error("the text is empty")
        if len(self.tokens) > MAX_TOKENS:
            count = len(self.tokens)
            raise self.error(
                f"the text must have at most {MAX_TOKENS} numbers, names and signs, got {count}"
            )
        self.tokens.append(_Token("end", "", column))

    def error(self, message: str, at: _Token | None = None) -> ProblemError:
        """An error about this text, with a caret under the token it concerns."""
        lines = [f"{self._where}: {message}" if self._where else message]
        if at is not None:
            # People may count columns, so what cannot be printed still takes one place.
            line = "".join(char if char.isprintable() else " " for char in self._text)
            start, stop = max(0, at.column - _CONTEXT), at.column + _CONTEXT
            before = "..." if start > 0 else ""
            after = "..." if stop < len(line) else ""
            lines.append(f"    {before}{line[start:stop]}{after}")
            lines.append(f"    {' ' * (len(before) + at.column - start)}^ column {at.column + 1}")
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


# Postfix order ------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """A number, a name, an operator or a call, after its operands.

    Attributes:
        op: "number", "name", "state" (a name alone in ``sum`` or ``total``), "call", "negate",
            "compare" or an operator.
        token: where it stands; of a call, the function's name.
        operands: how many it takes.
        totals: how many totals it stands in.
    """

    op: str
    token: _Token
    operands: int
    totals: int


@final
class _Shunting:
    """Brings tokens into postfix order; operands and operators must alternate, brackets match."""

    def __init__(self, text: _Text) -> None:
        self._text, self._tokens = text, text.tokens
        self.steps: list[_Step] = []
        self._waiting: list[tuple[str, _Token]] = []  # operators and open brackets
        self._opened: list[tuple[_Token | None, int]] = []  # per bracket: function, arguments
        self._totals = 0
        operand = True  # whether one must follow
        for k, token in enumerate(self._tokens):
            operand = self._begin(k, token) if operand else self._follow(k, token)

    def _begin(self, k: int, token: _Token) -> bool:
        """Read a token where an operand begins; return whether one must still follow."""
        before = self._tokens[k - 1] if k else None
        if token.text == "(":
            if len(self._opened) == MAX_BRACKETS:
                message = f"more than {MAX_BRACKETS} brackets inside each other"
                raise self._text.error(message, token)
            function = before if before is not None and before.kind == "name" else None
            self._waiting.append(("(", token))
            self._opened.append((function, 1))
            self._totals += function is not None and function.text == "total"
            return True
        if token.text in ("+", "-"):
            if token.text == "-" and self._waiting[-1:] and self._waiting[-1][0] == "negate":
                self._waiting.pop()
            elif token.text == "-":
                self._waiting.append(("negate", token))
            return True
        if token.kind not in ("number", "name"):
            message = f"expected a number, a name, a function or '(', got {token}"
            raise self._text.error(message, token)
        after = self._tokens[k + 1].text
        if token.kind == "name" and after == "(":
            return True
        whole = k > 1 and before is not None and before.text == "(" and after == ")"
        state = whole and token.kind == "name" and self._tokens[k - 2].text in ("sum", "total")
        self.steps.append(_Step("state" if state else token.kind, token, 0, self._totals))
        return False

    def _follow(self, k: int, token: _Token) -> bool:
        """Read a token behind an operand; return whether another must follow."""
        function = self._opened[-1][0] if self._opened else None
        if token.text in _PRECEDENCE:
            self._pop(_PRECEDENCE[token.text] + (token.text in ("**", "^")))
            self._waiting.append((token.text, token))
            return True
        if token.text == ")" and self._opened:
            self._pop(0)
            self._waiting.pop()
            function, arguments = self._opened.pop()
            if function is not None:
                self._totals -= function.text == "total"
                self.steps.append(_Step("call", function, arguments, self._totals))
            return False
        if token.text == "," and function is not None:
            self._pop(0)
            self._opened[-1] = function, self._opened[-1][1] + 1
            return True
        if (token.text in _COMPARISONS or token.kind == "end") and not self._opened:
            self._pop(0)
            if token.kind != "end":
                self.steps.append(_Step("compare", token, 0, 0))
            return token.kind != "end"
        raise self._misplaced(k, token)

    def _pop(self, least: int) -> None:
        """Take the operators that bind at least so tightly, up to the last open bracket."""
        while self._waiting and _PRECEDENCE.get(self._waiting[-1][0], -1) >= least:
            op, token = self._waiting.pop()
            self.steps.append(_Step(op, token, 1 if op == "negate" else 2, self._totals))

    def _misplaced(self, k: int, token: _Token) -> ProblemError:
        if self._tokens[k - 1].kind == "name" and token.text == "[":
            index, after = self._tokens[k + 1 : k + 3]
            if not index.text.isdecimal():
                message = f"a component is an integer as in x3[2], got {index}"
                return self._text.error(message, index)
            return self._text.error(f"expected ']', got {after}", after)
        if token.kind in ("number", "name") or token.text in ("(", "["):
            message = f"expected an operator before {token}: write * to multiply"
        else:
            wanted = "')'" if self._opened else "the end"
            message = f"expected {wanted}, got {token}"
        return self._text.error(message, token)


# Formulas -----------------------------------------------------------------------------------------


@final
class _Reader:
    """Evaluates postfix order with a stack of formulas."""

    def __init__(
        self, text: _Text, symbols: Mapping[str, Expression], totals: TotalReader | None
    ) -> None:
        self.text = text
        self._symbols, self._totals = symbols, totals
        self._inside = symbols if totals is None else totals.inside
        self._components: dict[Expression, list[Expression]] = {}  # of a state in sum or total
        # What may have no value, with the place to name if so: powers, divisors and calls.
        self._fallible: list[tuple[Expression, _Token]] = []

    def values(self, steps: Sequence[_Step]) -> list[Expression]:
        """The formula of an expression, or both sides of a constraint."""
        stack: list[tuple[Expression, _Token]] = []  # formulas, and where they begin
        for step in steps:
            first = len(stack) - step.operands
            below = [formula for formula, _ in stack[first:]]
            infix = step.op in _PRECEDENCE and step.op != "negate"
            begin = stack[first][1] if infix else step.token
            del stack[first:]
            stack.append((self._formula(step, below, begin), begin))
        return [formula for formula, _ in stack]

    def canonical(self, formula: Expression) -> Expression:
        """The canonical form; an error names the innermost place that has no value."""
        try:
            return canonical(formula)
        except ProblemError as error:
            for part, at in self._fallible:
                self._checked(at, canonical, part)
            raise self.text.error(str(error)) from None

    def _formula(self, step: _Step, below: list[Expression], begin: _Token) -> Expression:
        names = self._inside if step.totals else self._symbols
        if step.op == "number":
            return self._number(step.token)
        if step.op in ("name", "state"):
            return self._named(step, names)
        if step.op == "call":
            return self._fallible_at(step.token, self._call(step, below))
        if step.op == "negate":
            return -below[0]
        left, right = below
        if step.op in ("+", "-"):
            return node(Op.ADD, (left, right if step.op == "+" else -right))
        if step.op == "*":
            return node(Op.MUL, (left, right))
        if step.op == "/":
            divisor = self._fallible_at(step.token, node(Op.POW, (right,), -1))
            return node(Op.MUL, (left, divisor))
        return self._fallible_at(begin, self._checked(begin, raised, left, right))

    def _call(self, step: _Step, below: list[Expression]) -> Expression:
        at, name = step.token, step.token.text
        if name == "total" and self._totals is not None and not step.totals:
            state = self._components.get(below[0])
            terms = [self.canonical(b) for b in below] if state is None else state
            return self._checked(at, self._totals.add, terms)
        if name == "sum" and below[0] in self._components:
            return below[0]
        if name not in _FUNCTIONS:
            message = _REMEDIES.get(name.lower(), f"unknown function {name:.40}: use {_KNOWN}")
            if name in self._symbols:
                message = f"{name} is not a function: write * to multiply"
            raise self.text.error(message, at)
        most = _MOST_ARGUMENTS.get(name, 1)
        if len(below) > most:
            wanted = "one argument" if most == 1 else f"at most {most} arguments"
            raise self.text.error(f"{name} takes {wanted}, got {len(below)}", at)
        return self._checked(at, _FUNCTIONS[name], *below)

    def _number(self, at: _Token) -> Expression:
        """An exact integer, or the double that Python reads."""
        if at.text.isdecimal():
            if len(at.text) > MAX_DIGITS:
                message = f"an integer must have at most {MAX_DIGITS} digits; else write 1e40"
                raise self.text.error(message, at)
            return number(int(at.text))
        value = float(at.text)
        zero = not at.text.lower().partition("e")[0].strip("0.")
        if not (zero or sys.float_info.min <= value < math.inf):
            raise self.text.error("a number must be 0 or between 2.3e-308 and 1.7e308", at)
        return number(value)

    def _named(self, step: _Step, names: Mapping[str, Expression]) -> Expression:
        key = step.token.text
        if step.op == "state" and f"{key}[1]" in names:
            state = [names[f"{key}[1]"]]
            while (component := f"{key}[{len(state) + 1}]") in names:
                state.append(names[component])
            added = node(Op.ADD, (ZERO, *state))
            self._components[added] = state
            return added
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
        raise self.text.error(message, step.token)

    def _fallible_at(self, at: _Token, formula: Expression) -> Expression:
        self._fallible.append((formula, at))
        return formula

    def _checked(
        self, at: _Token, function: Callable[..., Expression], *arguments: object
    ) -> Expression:
        try:
            return function(*arguments)
        except ProblemError as error:
            raise self.text.error(str(error), at) from None


def _unknown(key: str, names: Mapping[str, Expression]) -> str:
    name = key.partition("[")[0]
    components = [known for known in names if known.startswith(f"{name}[")]
    if components:
        return f"{key:.40} is unknown: {name} has the components {_listed(components)}"
    if name in names:
        return f"{key:.40} is unknown: {name} is a number, without components"
    return f"unknown name {key!r:.40}: this problem has {_listed(list(names))}"
