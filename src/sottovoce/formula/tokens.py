"""Text cut into tokens, in an order that the grammar of formulas allows; errors point into it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from sottovoce.errors import ProblemError

MAX_CHARACTERS = 10_000
MAX_TOKENS = 5_000
MAX_BRACKETS = 100

_COMPARISONS = {
    "<=": "",
    ">=": "",
    "==": "",
    "<": "a constraint must include its border: write <=",
    ">": "a constraint must include its border: write >=",
    "=": "an equality is written with ==",
    "!=": "a set with a hole is not convex: write <=, >= or ==",
}
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
_CONTEXT = 30  # characters shown on either side of the place that an error concerns


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A text and what it is, such as `problem.toml, line 12`."""

    text: str
    where: str

    def error(self, message: str, column: int | None = None) -> ProblemError:
        """An error about this text, with a caret under the column (counted from 0) it concerns."""
        lines = [f"{self.where}: {message}" if self.where else message]
        if column is not None:
            # People may count columns, so what cannot be printed still takes one place.
            line = "".join(char if char.isprintable() else " " for char in self.text)
            start, stop = max(0, column - _CONTEXT), column + _CONTEXT
            before = "..." if start > 0 else ""
            after = "..." if stop < len(line) else ""
            lines.append(f"    {before}{line[start:stop]}{after}")
            lines.append(f"    {' ' * (len(before) + column - start)}^ column {column + 1}")
        return ProblemError("\n".join(lines))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A number, a name with its component, an operator, or the end; columns count from 0."""

    kind: str
    text: str
    column: int

    @property
    def starts_operand(self) -> bool:
        """Whether it is an operand, or opens one."""
        return self.kind in ("number", "name") or self.text in ("(", "[")

    @property
    def ends_operand(self) -> bool:
        """Whether it is an operand, or closes one."""
        return self.kind in ("number", "name") or self.text in (")", "]")

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"{self.text!r:.40}"


def cut(source: Source) -> list[Token]:
    """Cut a text into tokens, the last of kind "end", or refuse it."""
    text = source.text
    if not isinstance(text, str):
        raise source.error(f"must be text in quotes, got {text!r:.40}")
    if len(text) > MAX_CHARACTERS:
        raise source.error(
            f"the text must have at most {MAX_CHARACTERS} characters, got {len(text)}"
        )
    tokens: list[Token] = []
    column = 0
    while column < len(text):
        match = _TOKEN.match(text, column)
        if match is None:
            raise source.error(_bad_character(text[column]), column)
        kind, part = str(match.lastgroup), "".join(match.group().split())
        if kind != "space":
            tokens.append(Token(kind=kind, text=part, column=column))
        column = match.end()
    if not tokens:
        raise source.error("the text is empty")
    if len(tokens) > MAX_TOKENS:
        raise source.error(
            f"the text must have at most {MAX_TOKENS} numbers, names and signs, got {len(tokens)}"
        )
    return [*tokens, Token(kind="end", text="", column=column)]


def _bad_character(char: str) -> str:
    if char in _REPLACEMENTS:
        return f"unexpected {char!r}: write {_REPLACEMENTS[char]}"
    if char == ".":
        return "unexpected '.': a dot belongs inside a number, as in 0.5"
    if char.isascii() and char.isprintable():
        return f"unexpected {char!r}: only numbers, names, brackets and + - * / ** are known"
    name = unicodedata.name(char, "no printable character")
    return f"unexpected U+{ord(char):04X} ({name}): use plain ASCII"


@final
class Tokens:
    """The tokens of a text, in an order that the grammar allows.

    Args:
        source: the text.
        constraint: whether it must hold a comparison, or must not.
    """

    def __init__(self, source: Source, *, constraint: bool) -> None:
        self.source = source
        self.listed = cut(source)
        self._check_order()
        self.sign = self._comparison() if constraint else ""
        if not constraint:
            for token in self.listed:
                if token.text in _COMPARISONS:
                    raise self.error("an expression must not hold a comparison", token)

    def error(self, message: str, at: Token) -> ProblemError:
        """An error with a caret under a token."""
        return self.source.error(message, at.column)

    def _check_order(self) -> None:
        """Operands and operators alternate, brackets match, commas stand between arguments."""
        opened: list[bool] = []  # of every open bracket, whether it follows the name of a function
        before = Token(kind="start", text="", column=0)
        for k, token in enumerate(self.listed):
            if before.ends_operand:
                self._check_after_operand(k, before, opened)
            elif token.text == "[" or not (token.starts_operand or token.text in ("+", "-")):
                raise self.error(
                    f"expected a number, a name, a function or '(', got {token}", token
                )
            if token.text == "(":
                opened.append(before.kind == "name")
                if len(opened) > MAX_BRACKETS:
                    raise self.error(f"more than {MAX_BRACKETS} brackets inside each other", token)
            elif token.text == ")":
                opened.pop()
            before = token

    def _check_after_operand(self, k: int, before: Token, opened: Sequence[bool]) -> None:
        token = self.listed[k]
        if before.kind == "name" and token.text == "[":
            raise self._component(k + 1)
        if token.starts_operand:
            if before.kind == "name" and token.text == "(":
                return
            raise self.error(f"expected an operator before {token}: write * to multiply", token)
        fits = {
            ")": bool(opened),
            ",": bool(opened) and opened[-1],
            "]": False,
            "": not opened,  # the end
            **dict.fromkeys(_COMPARISONS, not opened),
        }
        if not fits.get(token.text, True):
            wanted = "')'" if opened else "the end"
            raise self.error(f"expected {wanted}, got {token}", token)

    def _component(self, k: int) -> ProblemError:
        index = self.listed[k]
        if not index.text.isdecimal():
            return self.error(f"a component is a whole number as in x3[2], got {index}", index)
        return self.error(f"expected ']', got {self.listed[k + 1]}", self.listed[k + 1])

    def _comparison(self) -> str:
        """The sign of a constraint."""
        signs = [token for token in self.listed if token.text in _COMPARISONS]
        if not signs:
            end = self.listed[-1]
            raise self.error(f"expected <=, >= or ==, got {end}", end)
        if _COMPARISONS[signs[0].text]:
            raise self.error(_COMPARISONS[signs[0].text], signs[0])
        if len(signs) > 1:
            raise self.error(
                "a constraint must have one comparison: write two constraints", signs[1]
            )
        return signs[0].text
