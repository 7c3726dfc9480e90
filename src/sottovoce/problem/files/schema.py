"""What the TOML files of a problem may say, as typed structs; refusals name file, line and key."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

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
_NUMBER = "a finite number, or text such as 'ln(3)'"
_LARGEST = sys.float_info.max

Text: TypeAlias = Annotated[str, Meta(description="text in quotes")]
Count: TypeAlias = Annotated[int, Meta(ge=1, description="an integer of at least 1")]
Switch: TypeAlias = Annotated[bool, Meta(description="true or false")]
Numbers: TypeAlias = Annotated[
    float | list[float], Meta(description="a number or a list of numbers", extra=_UNSAID)
]
_Finite: TypeAlias = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]  # NaN is neither
Setting: TypeAlias = Annotated[int | _Finite | str, Meta(description=_NUMBER)]
Settings: TypeAlias = Annotated[
    int | _Finite | str | list[int | _Finite | str], Meta(description=_NUMBER)
]
Bound: TypeAlias = Annotated[
    float | list[float] | str,
    Meta(description="a number, a list of numbers or a name of the table [public]"),
]
PublicNumbers: TypeAlias = Annotated[
    dict[str, _Finite | list[_Finite]],
    Meta(description="a table [public] of finite numbers and lists of such"),
]
Rows: TypeAlias = Annotated[
    list[str], Meta(description='a list of texts such as ["x3[1] + x3[2] >= 5"]', extra=_UNSAID)
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
    bound: Bound | None = None
    weights: Weighted = {}
    matrix: Text | None = None
    hard: Switch = False


class SumTable(_Table, frozen=True, kw_only=True):
    """``[[sums]]``: rows that a public cost names; the left side of a constraint."""

    name: Text
    expression: Text
    weights: Weighted = {}
    matrix: Text | None = None


class CostTable(_Table, frozen=True, kw_only=True):
    """``[[cost]]``: a public cost, in agents' states and in sums such as ``load[2]``."""

    expression: Text


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


class ProblemFile(_Table, frozen=True, kw_only=True):
    """``problem.toml``."""

    format: Annotated[Literal[1], Meta(description=f"{FORMAT}", extra=_NEWER)] = 1
    agents: Annotated[list[AgentTable], Meta(description="a list of tables [[agents]]")] = []
    fleet: Annotated[list[FleetTable], Meta(description="a list of tables [[fleet]]")] = []
    constraints: Annotated[
        list[str | ConstraintTable], Meta(description="a list of tables [[constraints]]")
    ] = []
    sums: Annotated[list[SumTable], Meta(description="a list of tables [[sums]]")] = []
    cost: Annotated[list[CostTable], Meta(description="a list of tables [[cost]]")] = []
    public: PublicNumbers = {}
    privacy: Annotated[Privacy, Meta(description="a table [privacy]")] = Privacy()
    schedule: Annotated[Schedule, Meta(description="a table [schedule]")] = Schedule()


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
    """One TOML file."""

    path: str = ""  # where it is, for messages
    text: str = ""  # what it says, letter by letter
    tables: Mapping[str, object]  # what it says, as TOML

    def line_of(self, needle: str, *, table: str = "", nth: int = 0) -> str:
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
        """Read the file as a struct."""
        try:
            return msgspec.convert(self.tables, kind)
        except msgspec.ValidationError:
            raise self.explain(kind, self.tables, what) from None

    def explain(
        self, kind: type[Struct], table: object, what: str, header: str = "", nth: int = 0
    ) -> ProblemError:
        """Return the error of a table that is no ``kind``; messages call it ``what``.

        ``header`` is the line before it, such as ``[[agents]]``, the ``nth`` of its kind from 0.
        """
        name = what or Path(self.path).name
        if not isinstance(table, Mapping):
            return refusal(self.path, f"{name} must be a table, got {table!r:.60}")
        hints = _hints(kind)
        for key, value in table.items():
            where = self.line_of(key, table=header, nth=nth)
            if key not in hints:
                return refusal(where, f"{name} may have {', '.join(hints)}, got {key!r:.60}")
            if _fits(value, hints[key]):
                continue
            kinds = (p for p in _parts(hints[key]) if isinstance(p, type))
            inner = next((p for p in kinds if issubclass(p, Struct)), None)
            tables = [p for p in _parts(hints[key]) if get_origin(p) is list]
            if inner is not None and tables and isinstance(value, list):
                nth = next(n for n, v in enumerate(value) if not _fits(v, *get_args(tables[0])))
                fleet = inner is FleetTable and isinstance(value[nth], dict)
                label = value[nth].get("name", nth + 1) if fleet else nth + 1
                noun = f"{key.removesuffix('s')} {label}"
                return self.explain(inner, value[nth], noun, f"[[{key}]]", nth)
            if inner is not None and not tables and isinstance(value, dict):
                return self.explain(inner, value, f"[{key}]", f"[{key}]")
            owner = f" of {what}" if what else ""
            return refusal(where, f"{key}{owner} must be {_rule(value, hints[key])}")
        missing = next(f.name for f in fields(kind) if f.required and f.name not in table)
        return refusal(self.path, needs(name, missing))


def _fits(value: object, hint: object) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def _rule(value: object, hint: object) -> str:
    """What a value must be, and what it is."""
    meta = _meta(hint)
    extra = meta.extra or {}
    got = f"{value!r:.60}"
    if extra.get("unsaid"):
        kinds = sorted({type(entry).__name__ for entry in value} if isinstance(value, list) else ())
        got = type(value).__name__ + (f" of {', '.join(kinds)}" if kinds else "")
    return f"{meta.description}, got {got}{extra.get('remedy', '')}"


def refusal(where: str, message: str) -> ProblemError:
    """An error about a place of a file, or about what is stated in Python."""
    return ProblemError(f"{where}: {message}" if where else message)


def needs(what: str, key: str) -> str:
    """What to say where a table lacks a key."""
    return f"{what} needs {key!r}: add a line {key} = ..."


@lru_cache
def _hints(kind: type[Struct]) -> dict[str, object]:
    """The types of the fields, in the order in which messages list them."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _parts(hint: object) -> list[object]:
    return [hint, *(part for inner in get_args(hint) for part in _parts(inner))]


def _meta(hint: object) -> Meta:
    """How messages describe a type; a choice by its words."""
    words = [part for part in _parts(hint) if isinstance(part, str)]
    choice = Meta(description=f"one of {', '.join(words)}")
    metas: Iterator[Meta] = (m for p in _parts(hint) for m in getattr(p, "__metadata__", ()))
    return next(metas, choice)


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


def check_settings(
    name: Literal["privacy", "schedule"], stated: object, document: Document | None = None
) -> dict[str, Any]:
    """Return the table ``[name]``, empty for None, as plain numbers, texts and lists."""
    if stated is None:
        return {}
    table = _plain(stated)
    kind, header = Privacy if name == "privacy" else Schedule, f"[{name}]"
    file = document or Document(tables={})
    if not isinstance(table, dict) or not _fits(table, kind):
        raise file.explain(kind, table, header, header)
    for key, value in table.items():
        where = file.line_of(key, table=header)
        texts = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, str)]
        for text in texts if _meta(_hints(kind)[key]).description == _NUMBER else ():
            for part in text.split(","):
                parse_number(part, where=f"{where or name}: {key}")
    return dict(table)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value
