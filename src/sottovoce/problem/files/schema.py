"""What the TOML files of a problem may say, as typed structs; refusals name file, line and key."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, Struct

from sottovoce.errors import ProblemError
from sottovoce.formula.parse import parse_number

FORMAT = 1

# A description completes "KEY must be ...". Of what may be private a refusal says the type alone:
# messages end up in logs.
_UNSAID = {"unsaid": True}
_NEWER = {"remedy": ": this file needs a newer version of sottovoce"}

Text: TypeAlias = Annotated[str, Meta(description="text in quotes")]
Count: TypeAlias = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
Switch: TypeAlias = Annotated[bool, Meta(description="true or false")]
Numbers: TypeAlias = Annotated[
    float | list[float], Meta(description="a number or a list of numbers", extra=_UNSAID)
]
Setting: TypeAlias = Annotated[
    int | float | str, Meta(description="a finite number, or text such as 'ln(3)'")
]
Settings: TypeAlias = Annotated[
    Setting | list[Setting], Meta(description="a finite number, or text such as 'ln(3)'")
]
Rows: TypeAlias = Annotated[
    list[str],
    Meta(description='a list of texts such as ["x3[1] + x3[2] >= 5"]', extra=_UNSAID),
]
Files: TypeAlias = Annotated[
    str | list[str],
    Meta(description='a table\'s name such as "fleet-ev.csv", or a list of such', extra=_UNSAID),
]
Weighted: TypeAlias = Annotated[
    dict[str, str],
    Meta(description='a table for each fleet, such as weights = { ev = "feeders.csv" }'),
]


class _Table(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table whose keys are the fields."""


class AgentTable(_Table, frozen=True, kw_only=True):
    """``[[agents]]``: an agent stated by itself."""

    name: Text | None = None
    dim: Count = 1
    lower: Numbers
    upper: Numbers


class FleetTable(_Table, frozen=True):
    """``[[fleet]]``; bounds may be columns of its table instead."""

    name: Text
    count: Count
    dim: Count = 1
    lower: Numbers | None = None
    upper: Numbers | None = None
    parameters: Text | None = None
    first: Count | None = None


class ConstraintTable(_Table, frozen=True, kw_only=True):
    """``[[constraints]]``."""

    name: Text | None = None
    expression: Text
    bound: Numbers | None = None
    weights: Weighted = {}
    matrix: Text | None = None
    hard: Switch = False


class Privacy(_Table, frozen=True):
    """``[privacy]``."""

    epsilon: Settings | None = None
    delta: Settings | None = None
    radius: Settings | None = None
    hide: Literal["trajectory", "offset", "everything"] | None = None
    rounds: Count | None = None
    feasible: Setting | None = None
    each_row: Switch | None = None


class Schedule(_Table, frozen=True):
    """``[schedule]``."""

    algorithm: Literal["dual-averaging", "tikhonov"] | None = None
    gamma_bar: Setting | None = None
    alpha_bar: Setting | None = None
    c1: Setting | None = None
    c2: Setting | None = None
    rounds: Count | None = None


class SettingTables(_Table, frozen=True):
    """The tables of settings, which ``Problem`` takes as dictionaries, too."""

    privacy: Annotated[Privacy | None, Meta(description="a table [privacy] of settings")] = None
    schedule: Annotated[Schedule | None, Meta(description="a table [schedule] of settings")] = None


class ProblemFile(SettingTables, frozen=True, kw_only=True):
    """``problem.toml``."""

    format: Annotated[Literal[1], Meta(description=f"{FORMAT}", extra=_NEWER)] = 1
    agents: Annotated[list[AgentTable], Meta(description="a list of tables [[agents]]")] = []
    fleet: Annotated[list[FleetTable], Meta(description="a list of tables [[fleet]]")] = []
    constraints: Annotated[
        list[str | ConstraintTable], Meta(description="a list of tables [[constraints]]")
    ]


class _PrivateFile(_Table, frozen=True):
    objective: Text
    start: Numbers | None = None
    fallback: Numbers | None = None
    local: Rows = []


class AgentFile(_PrivateFile, frozen=True):
    """``agents/3.toml``."""

    agent: Text | None = None


class FleetFile(_PrivateFile, frozen=True):
    """``agents/fleet-ev.toml``."""

    fleet: Text | None = None
    parameters: Files = []


_Kind = TypeVar("_Kind", bound=Struct)
_NOUNS = {"agents": "agent", "constraints": "constraint"}


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

    def at(self, needle: str, *, table: str = "", nth: int = 0) -> str:
        """The file and the line of ``needle`` behind the ``nth`` (from 0) header ``table``."""
        start = 0
        for _ in range(nth + 1 if table else 0):
            start = max(self.text.find(table, start + 1), 0)
        place = self.text.find(needle, start)
        place = self.text.find(needle) if place < 0 else place
        if place < 0:
            return self.path
        return f"{self.path}, line {self.text.count(chr(10), 0, place) + 1}"

    def convert(self, kind: type[_Kind], what: str = "") -> _Kind:
        """Read the file as a struct.

        Args:
            kind: the struct.
            what: what the file is to people; its name by default.

        Raises:
            ProblemError: if it is anything else.
        """
        try:
            return msgspec.convert(self.tables, kind)
        except msgspec.ValidationError as error:
            told = str(error)
        try:
            raise self._refusal(kind, what, told)
        except LookupError:  # a key that imitates msgspec's messages
            raise ProblemError(f"{self.path}: {told:.200}") from None

    def _refusal(self, kind: type[Struct], what: str, told: str) -> ProblemError:
        """Say in our words what msgspec found: ``Expected `int` - at `$.agents[0].dim```."""
        problem, _, path = told.partition(" - at `$")
        steps: list[str] = re.findall(r"\w+", path)
        table: Any = self.tables
        header, nth, of = "", 0, f" of {what}" if what else ""
        what = what or Path(self.path).name
        inner = _struct(_hints(kind)[steps[0]]) if steps else None
        if inner is not None and (len(steps) > 1 or "field `" in problem):
            kind, section, table = inner, steps[0], table[steps[0]]
            steps = steps[1:]
            header, what = f"[{section}]", f"[{section}]"
            if isinstance(table, list):
                nth, steps = int(steps[0]), steps[1:]
                table, what = table[nth], f"{_NOUNS.get(section, section)} {nth + 1}"
                if section == "fleet" and isinstance(table, dict) and "name" in table:
                    what = f"fleet {table['name']}"
            of = f" of {what}"
        field = re.search(r"field `(.*)`$", problem, re.DOTALL)
        if field is not None and "missing" in problem:
            return _needs(self.path, what, field[1])
        if field is not None:
            known = ", ".join(_hints(kind))
            where = self.at(field[1], table=header, nth=nth)
            return refusal(where, f"{what} may have {known}, got {field[1]!r:.60}")
        if not steps:
            return refusal(self.path, f"{what} must be a table, got {table!r:.60}")
        return self._wrong_value(table, steps, of, _meta(_hints(kind)[steps[0]]),
                                 self.at(steps[0], table=header, nth=nth))  # fmt: skip

    def _wrong_value(
        self, table: Mapping[str, Any], steps: list[str], of: str, meta: Meta, where: str
    ) -> ProblemError:
        key, extra = steps[0], meta.extra or {}
        value = table[key]
        if isinstance(value, list) and len(steps) > 1:
            value = value[int(steps[1])]
        got = type(value).__name__ if extra.get("unsaid") else f"{value!r:.60}"
        rule = f"{key}{of} must be {meta.description}, got {got}{extra.get('remedy', '')}"
        return refusal(where, rule)


def refusal(where: str, message: str) -> ProblemError:
    """An error about a place of a file, or about what is stated in Python."""
    return ProblemError(f"{where}: {message}" if where else message)


def _needs(where: str, what: str, key: str) -> ProblemError:
    return refusal(where, f"{what} needs {key!r}: add a line {key} = ...")


def required(document: Document, what: str, key: str, value: Any) -> Any:
    """Return what a file says under ``key``, which must be there."""
    if value is None:
        raise _needs(document.path, what, key)
    return value


@lru_cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    """The types of the fields, in the order in which messages list them."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _parts(hint: Any) -> list[Any]:
    return [hint, *(part for inner in get_args(hint) for part in _parts(inner))]


def _struct(hint: Any) -> type[Struct] | None:
    kinds = (p for p in _parts(hint) if isinstance(p, type) and issubclass(p, Struct))
    return next(kinds, None)


def _meta(hint: Any) -> Meta:
    """How messages describe a type; a choice by its words."""
    words = [part for part in _parts(hint) if isinstance(part, str)]
    listed = Meta(description=f"one of {', '.join(words)}")
    found: Iterator[Meta] = (m for p in _parts(hint) for m in getattr(p, "__metadata__", ()))
    return next(found, listed)


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


def check_settings(name: str, given: Any, document: Document | None = None) -> dict[str, Any]:
    """Return the table ``[name]``, empty for None, as plain numbers, texts and lists.

    Args:
        name: privacy or schedule.
        given: the table.
        document: the file that says it, if one does.
    """
    if given is None:
        return {}
    table: Any = _plain(given) if isinstance(given, Mapping) else repr(given)
    file = document or Document(path="", text="", tables={name: table})
    if document is None:
        file.convert(SettingTables)
    for key, value in table.items():
        where = file.at(key, table=f"[{name}]")
        meta = _meta(_hints(Privacy if name == "privacy" else Schedule)[key])
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, float) and not math.isfinite(entry):
                raise refusal(where, f"{key} of [{name}] must be {meta.description}, got {entry}")
            if isinstance(entry, str) and meta in (_meta(Setting), _meta(Settings)):
                for part in entry.split(","):
                    parse_number(part, where=f"{where or name}: {key}")
    return dict(table)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value
