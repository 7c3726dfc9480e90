"""Text cut into tokens, and errors that point into it."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from sottovoce.errors import ProblemError

MAX_CHARACTERS = 10_000
MAX_TOKENS = 5_000

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
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
_CONTEXT = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One number, name or operator, or the end of the text; `column` counts from 0."""

    kind: str
    text: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"{self.text!r:.40}"


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


def tokenize(source: Source) -> list[Token]:
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
        if match.lastgroup != "space":
            tokens.append(Token(kind=str(match.lastgroup), text=match.group(), column=column))
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
