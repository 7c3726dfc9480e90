"""What the TOML files of a problem may say, as typed structs; refusals name file, line and key."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import fields

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


class ProblemFile(_Table, frozen=True):
    """``problem.toml``, whose tables are read one by one."""

    format: Annotated[Literal[1], Meta(description=f"{FORMAT}", extra=_NEWER)] = 1
    agents: Annotated[list[Any], Meta(description="a list of tables [[agents]]")] = []
    fleet: Annotated[list[Any], Meta(description="a list of tables [[fleet]]")] = []
    constraints: Annotated[
        list[Any] | None, Meta(description="a list of tables [[constraints]]")
    ] = None
    privacy: Annotated[dict[str, Any], Meta(description="a table [privacy]")] = {}
    schedule: Annotated[dict[str, Any], Meta(description="a table [schedule]")] = {}


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

    def convert(
        self, kind: type[_Kind], table: Any, what: str, *, header: str = "", nth: int = 0
    ) -> _Kind:
        """Read a table of the file as a struct.

        Args:
            kind: the struct.
            table: the table.
            what: what people call the table; nothing for the file itself.
            header: the line before it, such as ``[[agents]]``.
            nth: how many such lines come before that one.

        Raises:
            ProblemError: naming what is wrong with it.
        """
        try:
            return msgspec.convert(table, kind)
        except msgspec.ValidationError:
            name = what or Path(self.path).name
        if not isinstance(table, dict):
            raise refusal(self.path, f"{name} must be a table, got {table!r:.60}")
        hints = _hints(kind)
        for key in table:
            where = self.at(key, table=header, nth=nth)
            if key not in hints:
                raise refusal(where, f"{name} may have {', '.join(hints)}, got {key!r:.60}")
            if (rule := _broken(hints[key], table[key])) is not None:
                raise refusal(where, f"{key}{f' of {what}' if what else ''} must be {rule}")
        missing = next(f.name for f in fields(kind) if f.required and f.name not in table)
        raise refusal(self.path, _needs(name, missing))

    def convert_each(
        self, kind: type[_Kind], tables: Iterable[Any], noun: str, header: str
    ) -> list[_Kind]:
        """Read a list of tables, which people count from 1."""
        structs = []
        for nth, table in enumerate(tables):
            named = kind is FleetTable and isinstance(table, dict) and "name" in table
            what = f"{noun} {table['name'] if named else nth + 1}"
            structs.append(self.convert(kind, table, what, header=header, nth=nth))
        return structs


def _broken(hint: Any, value: Any) -> str | None:
    """What a value must be, and what it is; None if it is that."""
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        meta = _meta(hint)
        extra = meta.extra or {}
        got = f"{value!r:.60}"
        if extra.get("unsaid"):
            kinds = sorted({type(entry).__name__ for entry in value} if type(value) is list else ())
            got = type(value).__name__ + (f" of {', '.join(kinds)}" if kinds else "")
        return f"{meta.description}, got {got}{extra.get('remedy', '')}"
    return None


def refusal(where: str, message: str) -> ProblemError:
    """An error about a place of a file, or about what is stated in Python."""
    return ProblemError(f"{where}: {message}" if where else message)


def _needs(what: str, key: str) -> str:
    return f"{what} needs {key!r}: add a line {key} = ..."


def required(document: Document, what: str, key: str, value: Any) -> Any:
    """Return what a file says under ``key``, which must be there."""
    if value is None:
        raise refusal(document.path, _needs(what, key))
    return value


@lru_cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    """The types of the fields, in the order in which messages list them."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _parts(hint: Any) -> list[Any]:
    return [hint, *(part for inner in get_args(hint) for part in _parts(inner))]


def _meta(hint: Any) -> Meta:
    """How messages describe a type; a choice by its words."""
    words = [part for part in _parts(hint) if isinstance(part, str)]
    listed = Meta(description=f"one of {', '.join(words)}")
    metas: Iterator[Meta] = (m for p in _parts(hint) for m in getattr(p, "__metadata__", ()))
    return next(metas, listed)


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
    file = document or Document(path="", text="", tables={})
    kind, header = Privacy if name == "privacy" else Schedule, f"[{name}]"
    file.convert(kind, table, header, header=header)
    for key, value in table.items():
        where, meta = file.at(key, table=header), _meta(_hints(kind)[key])
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, float) and not math.isfinite(entry):
                raise refusal(where, f"{key} of {header} must be {meta.description}, got {entry}")
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
