"""``problem.toml``: agents and fleets with their boxes, constraints, privacy and schedule.

Everything in it, and in the tables that it names, is known to the cloud and to every agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse

from sottovoce.errors import ProblemError
from sottovoce.formula.expression import ZERO, Relation
from sottovoce.formula.parse import parse_constraint
from sottovoce.problem.agents import Array, Group, fleet, states
from sottovoce.problem.constraints import Weights, hard
from sottovoce.problem.document import Document, read_document
from sottovoce.problem.matrix_rows import MATRIX, matrix_constraint
from sottovoce.problem.settings import Setting, check_setting
from sottovoce.problem.table import AGENT, Table, read_table
from sottovoce.problem.totals import BOUND, Totals

FORMAT = 1

_BOUNDS = ("lower", "upper")
_TRIPLET = {"row", "agent", "weight"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stated:
    """Agents as ``problem.toml`` states them: one by itself, or a fleet.

    Attributes:
        name: what people call the agent or the fleet.
        alone: whether it is an agent by itself.
        numbers: the agents' numbers, from 1.
        arguments: of ``states`` or ``fleet``.
    """

    name: str
    alone: bool
    numbers: range
    arguments: Mapping[str, Any]

    def group(self, private: Mapping[str, Array]) -> Group:
        """Return the agents with their private parameters as well."""
        if self.alone:
            own = {key: _one(key, value) for key, value in self.arguments.items()}
            return states(1, names=[self.name], **own).groups[0]
        public = self.arguments["parameters"]
        for name in private:
            if name in public:
                raise ProblemError(
                    f"parameter {name} of {self.name} must be public or private, got it in both "
                    "tables: remove one column"
                )
        return fleet(
            len(self.numbers),
            name=self.name,
            **{**self.arguments, "parameters": {**public, **private}},
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PublicFile:
    """What ``problem.toml`` and the tables beside it say.

    Attributes:
        document: the file itself.
        stated: agents and fleets, in the order of their numbers.
        tables: the tables that were read, by their names.
    """

    document: Document
    stated: tuple[Stated, ...]
    tables: Mapping[str, Table]

    def arguments(self, groups: Sequence[Group]) -> dict[str, Any]:
        """Return what else ``Problem`` must be told, for these agents."""
        return {
            "states": list(groups),
            "constraints": _constraints(self, groups),
            "privacy": _settings(self.document, "privacy"),
            "schedule": _settings(self.document, "schedule"),
        }


def read_public_file(root: Path) -> PublicFile:
    """Read ``problem.toml`` and the tables it names.

    Raises:
        ProblemError: naming the file, the line and the key.
    """
    document = read_document(root / "problem.toml")
    known = ("format", "agents", "fleet", "constraints", "privacy", "schedule")
    document.check_keys(document.tables, known, "problem.toml")
    number = document.tables.get("format", FORMAT)
    if isinstance(number, bool) or number != FORMAT:
        raise ProblemError(
            f"{document.at('format')}: format must be {FORMAT}, got {number!r:.60}: "
            "this file needs a newer version of sottovoce"
        )
    tables: dict[str, Table] = {}
    alone = [] if _only_fleets(document) else _agents(document)
    fleets = [_fleet(document, root, t, tables) for t in document.listed_or_none("fleet")]
    if not alone and not fleets:
        raise ProblemError(f"{document.at('agents')}: a problem needs at least one agent, got none")
    for name in (*_weight_files(document), *_matrix_files(document)):
        tables[name] = read_table(root / name)
    return PublicFile(document=document, stated=_numbered(document, alone, fleets), tables=tables)


def _only_fleets(document: Document) -> bool:
    return "agents" not in document.tables and "fleet" in document.tables


def _agents(document: Document) -> list[dict[str, Any]]:
    found = []
    for i, table in enumerate(document.listed("agents")):
        what = f"agent {i + 1}"
        document.check_keys(table, ("name", "dim", *_BOUNDS), what)
        found.append(
            {
                "name": document.text_of({"name": f"x{i + 1}", **table}, "name", what),
                "count": 1,
                "first": None,
                "dim": document.whole({"dim": 1, **table}, "dim", what),
                **{key: document.numbers(table, key, what) for key in _BOUNDS},
            }
        )
    return found


def _fleet(document: Document, root: Path, table: Any, tables: dict[str, Table]) -> dict[str, Any]:
    known = ("name", "count", "dim", *_BOUNDS, "parameters", "first")
    document.check_keys(table, known, "a fleet")
    name = document.text_of(table, "name", "a fleet")
    what = f"fleet {name}"
    count = document.whole(table, "count", what)
    dim = document.whole({"dim": 1, **table}, "dim", what)
    first = document.whole(table, "first", what) if "first" in table else None
    read = None
    if "parameters" in table:
        file = document.text_of(table, "parameters", what)
        read = tables[file] = read_table(root / inside(file, document.at(file)))
        if AGENT in read.columns or read.lines != count:
            raise ProblemError(
                f"{read.path} must have a line for each of {count:,} agents in order and no column "
                f"{AGENT!r}, got {read.lines:,} lines and {', '.join(read.columns):.60}"
            )
    bounds = {key: _bound(document, table, key, what, read, dim) for key in _BOUNDS}
    parameters = {} if read is None else read.parameters(_BOUNDS)
    return {"name": name, "count": count, "first": first, "dim": dim, "parameters": parameters,
            **bounds}  # fmt: skip


def _bound(
    document: Document, table: Mapping[str, Any], key: str, what: str, read: Table | None, dim: int
) -> Any:
    column = None if read is None else read.block(key, dim)
    if column is None:
        return document.numbers(table, key, what)
    if key in table:
        raise ProblemError(
            f"{document.at(key, after=str(table['name']))}: {key} of {what} must be said once, "
            "got it here and as a column of its table: remove one"
        )
    return column


def inside(name: str, where: str) -> str:
    """Return the name of a table, which must lie in the folder of the file that names it.

    Raises:
        ProblemError: if it leads elsewhere.
    """
    if Path(name).name != name:
        raise ProblemError(f"{where}: a table must be a file in the same folder, got {name!r:.60}")
    return name


def _numbered(
    document: Document, alone: Sequence[dict[str, Any]], fleets: Sequence[dict[str, Any]]
) -> tuple[Stated, ...]:
    """Number the agents from 1: those by themselves, then fleets, unless a fleet says its first."""
    placed = {f["first"]: f for f in fleets if f["first"] is not None}
    waiting = [*alone, *(f for f in fleets if f["first"] is None)]
    found: list[Stated] = []
    following = 1
    while waiting or following in placed:
        facts = dict(placed.pop(following) if following in placed else waiting.pop(0))
        name, count = facts.pop("name"), facts.pop("count")
        del facts["first"]
        numbers = range(following, following + count)
        found.append(
            Stated(name=name, alone="parameters" not in facts, numbers=numbers, arguments=facts)
        )
        following += count
    for first, facts in placed.items():
        raise ProblemError(
            f"{document.at('first')}: first of fleet {facts['name']} must be the number after "
            f"another agent's or fleet's last, got {first}: leave it out to put the fleet last"
        )
    return tuple(found)


def _one(key: str, value: Any) -> Any:
    return value if key == "dim" else [value]


def _weight_files(document: Document) -> list[str]:
    found = []
    for entry in document.listed("constraints"):
        named = entry.get("weights", {}) if isinstance(entry, dict) else {}
        if not isinstance(named, dict) or not all(isinstance(f, str) for f in named.values()):
            raise ProblemError(
                f"{document.at('weights')}: weights must name a table for each fleet, such as "
                'weights = { ev = "feeders.csv" }'
            )
        found += [inside(file, document.at(file)) for file in named.values()]
    return found


def _matrix_files(document: Document) -> list[str]:
    tables = [t for t in document.listed("constraints") if isinstance(t, dict) and "matrix" in t]
    named = [document.text_of(table, "matrix", "a constraint") for table in tables]
    return [inside(file, document.at(file)) for file in named]


def _constraints(public: PublicFile, groups: Sequence[Group]) -> dict[str, Any]:
    document = public.document
    symbols = {s.name: s for group in groups if group.count == 1 for s in group.symbols}
    constraints: dict[str, Any] = {}
    for j, entry in enumerate(document.listed("constraints")):
        what = f"constraint {j + 1}"
        table: dict[str, Any] = {"expression": entry} if isinstance(entry, str) else entry
        keys = ("name", "expression", "bound", "weights", "matrix", "hard")
        document.check_keys(table, keys, what)
        name = document.text_of({"name": f"g{j + 1}", **table}, "name", what)
        text = document.text_of(table, "expression", what)
        where = document.at(text.split("\n")[0], after="constraints")
        if name in constraints:
            raise ProblemError(f"{where}: names must differ, got constraint {name} twice")
        totals = _totals(public, groups)
        known = symbols | ({"bound": BOUND} if "bound" in table else {})
        known |= {"matrix": MATRIX} if "matrix" in table else {}
        g, equality = parse_constraint(text, known, where=where, totals=totals)
        bound = document.numbers(table, "bound", what) if "bound" in table else None
        stated: Any
        if "matrix" in table:
            read = public.tables[table["matrix"]]
            stated = matrix_constraint(g, read, groups, equality=equality, bound=bound, where=where)
        elif totals is None or not totals.symbols:
            _require_plain(table, what, where)
            stated = Relation(g, "==" if equality else "<=", ZERO)
        else:
            stated = totals.family(
                g,
                equality=equality,
                bound=bound,
                weights=_weights(public, table.get("weights", {}), where),
                where=where,
            )
        constraints[name] = hard(stated) if _is_hard(table, where) else stated
    return constraints


def _is_hard(table: Mapping[str, Any], where: str) -> bool:
    given = table.get("hard", False)
    if not isinstance(given, bool):
        raise ProblemError(f"{where}: hard must be true or false, got {given!r:.60}")
    return given


def _totals(public: PublicFile, groups: Sequence[Group]) -> Totals | None:
    fleets = [(g, s) for g, s in zip(groups, public.stated, strict=True) if not s.alone]
    if not fleets:
        return None
    return Totals([g for g, _ in fleets], {n for _, s in fleets for n in s.arguments["parameters"]})


def _require_plain(table: Mapping[str, Any], what: str, where: str) -> None:
    for key in ("bound", "weights"):
        if key in table:
            raise ProblemError(
                f"{where}: {what} must have {key} for a total over a fleet or a matrix only, got "
                "neither: remove it"
            )


def _weights(public: PublicFile, named: Mapping[str, str], where: str) -> dict[str, Weights]:
    found: dict[str, Weights] = {}
    for fleet_name, file in named.items():
        stated = [s for s in public.stated if s.name == fleet_name and not s.alone]
        if not stated:
            raise ProblemError(f"{where}: weights must be for a fleet, got {fleet_name!r:.60}")
        found[fleet_name] = _matrix(public.tables[file], stated[0].numbers)
    return found


def _matrix(table: Table, numbers: range) -> Weights:
    """W of a table: columns row, agent, weight, or a line per agent and a column per row."""
    if set(table.columns) != _TRIPLET:
        places = table.numbers(numbers) - numbers.start
        rows = [column for name, column in table.columns.items() if name != "agent"]
        dense = np.zeros((len(rows), len(numbers)))
        dense[:, places] = rows
        return dense
    row, agent = (table.columns[key].astype(np.int64) for key in ("row", "agent"))
    if row.size and (row.min() < 1 or agent.min() < numbers.start or agent.max() >= numbers.stop):
        raise ProblemError(
            f"{table.path}: row must count from 1, and agent lie in {numbers.start} to "
            f"{numbers.stop - 1}, got others"
        )
    shape = (int(row.max(initial=1)), len(numbers))
    entries = (table.columns["weight"], (row - 1, agent - numbers.start))
    return sparse.csr_array(entries, shape=shape)


def _settings(document: Document, name: str) -> dict[str, Setting]:
    table = document.tables.get(name, {})
    if not isinstance(table, dict):
        raise ProblemError(f"{document.at(name)}: {name} must be a table [{name}]")
    found = {}
    for key, value in table.items():
        try:
            found[key] = check_setting(name, key, value)
        except ProblemError as error:
            raise ProblemError(f"{document.at(key, after=f'[{name}]')}: {error}") from None
    return found
