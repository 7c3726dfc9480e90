"""A refusal: what a user writes, the error's type, and words that its message must hold.

A message names the thing, the requirement, what was got and the remedy. Its wording may change, so
a row lists only what any wording has to say: names, values, spellings to use instead. ``a|b`` is
either of two words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

FOREIGN = re.compile(r"object at 0x|Traceback|<function |sympy|Symbol\(|numpy\.dtype")
"""What a message must not hold: addresses and internals of Python or of other libraries."""


class Refusal(NamedTuple):
    """One row of a table: what is refused, how, and what the message must name."""

    name: str
    call: Callable[..., Any]
    error: type[Exception] | tuple[type[Exception], ...]
    words: tuple[str, ...]


def listed(rows: list[Refusal]) -> list[Any]:
    """The rows as parameters; no two may have one name."""
    assert len({row.name for row in rows}) == len(rows)
    return [pytest.param(row, id=row.name) for row in rows]


def missing(message: str, words: tuple[str, ...]) -> list[str]:
    """The words that a message lacks."""
    return [w for w in words if not any(part in message for part in w.split("|"))]


def check(row: Refusal, *arguments: Any) -> None:
    """Make the call of a row and hold its refusal against the row."""
    with pytest.raises(row.error) as caught:
        row.call(*arguments)
    message = str(caught.value)
    assert not missing(message, row.words), message
    assert len(row.words) >= 2, "a row names at least a thing and a requirement, value or remedy"
    assert len(message) < 1_000, "a message is read by people"
    assert not FOREIGN.search(message), message
