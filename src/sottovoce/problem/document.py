"""One TOML file of a problem folder, and errors that name its line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.errors import ProblemError


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One TOML file.

    Attributes:
        path: where it is, for messages.
        text: what it says, letter by letter.
        tables: what it says, as TOML.
    """

    path: str
    text: str
    tables: Mapping[str, Any]

    def at(self, needle: str, *, nth: int = 0, after: str = "") -> str:
        """The file and the line of the ``nth`` (from 0) ``needle`` behind the word ``after``."""
        place = max(self.text.find(after), 0) if after else 0
        for skipped in range(nth + 1):
            place = self.text.find(needle, place + len(needle) * bool(skipped))
            if place < 0:
                return self.path
        return f"{self.path}, line {self.text.count(chr(10), 0, place) + 1}"

    def check_keys(self, table: Any, known: tuple[str, ...], what: str) -> None:
        """Refuse what is no table, or has a key that is not known."""
        if not isinstance(table, dict):
            raise ProblemError(f"{self.path}: {what} must be a table, got {table!r:.60}")
        for key in table:
            if key not in known:
                raise ProblemError(
                    f"{self.at(key)}: {what} may have {', '.join(known)}, got {key!r:.60}"
                )

    def text_of(self, table: Mapping[str, Any], key: str, what: str) -> str:
        """The text under ``key``, which must be there."""
        value = self._required(table, key, what)
        if not isinstance(value, str):
            raise ProblemError(
                f"{self.at(key)}: {key} of {what} must be text in quotes, got {value!r:.60}"
            )
        return value

    def whole(self, table: Mapping[str, Any], key: str, what: str) -> int:
        """The whole number of at least 1 under ``key``, which must be there."""
        value = self._required(table, key, what)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ProblemError(
                f"{self.at(key)}: {key} of {what} must be a whole number of at least 1, "
                f"got {value!r:.60}"
            )
        return value

    def numbers(self, table: Mapping[str, Any], key: str, what: str) -> Any:
        """The number, or the list of numbers, under ``key``, which must be there."""
        value = self._required(table, key, what)
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, bool) or not isinstance(entry, int | float):
                # Its type alone: a start is private, and messages end up in logs.
                raise ProblemError(
                    f"{self.at(key)}: {key} of {what} must be a number or a list of numbers, "
                    f"got {type(entry).__name__}"
                )
        return value

    def listed_or_none(self, key: str) -> list[Any]:
        """The list under ``key`` of the file itself; no entries if it is not there."""
        return self.listed(key) if key in self.tables else []

    def listed(self, key: str) -> list[Any]:
        """The list under ``key`` of the file itself, which must be there."""
        value = self._required(self.tables, key, Path(self.path).name)
        if not isinstance(value, list):
            raise ProblemError(
                f"{self.at(key)}: {key} must be a list of tables [[{key}]], got {value!r:.60}"
            )
        return value

    def _required(self, table: Mapping[str, Any], key: str, what: str) -> Any:
        if key not in table:
            raise ProblemError(f"{self.path}: {what} needs {key!r}: add a line {key} = ...")
        return table[key]


def read_document(path: Path) -> Document:
    """Read a TOML file, or say why it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        return Document(path=str(path), text=text, tables=tomllib.loads(text))
    except (FileNotFoundError, NotADirectoryError):
        raise ProblemError(f"{path} must exist, got no such file: write it by hand or save a "
                           "problem with Problem.save") from None  # fmt: skip
    except OSError as error:
        raise ProblemError(f"{path} must be readable, got {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path} must be UTF-8 text, got other bytes") from error
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise ProblemError(f"{path} must be TOML: {error}") from error
    except RecursionError:
        raise ProblemError(f"{path} must be TOML without deep nesting") from None
