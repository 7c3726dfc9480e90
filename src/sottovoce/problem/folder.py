"""Problems as folders that people write by hand, split by who may read what.

``problem.toml`` holds what the cloud knows: agents and their boxes, constraints as text, privacy
and schedule. ``agents/1.toml``, ``agents/2.toml``, ... hold what one agent alone knows: its
objective as text, its start and its local set; ``agents/fleet-ev.toml`` holds the same for a fleet,
with tables for what differs between its agents. ``load_problem`` reads everything and belongs on
the machine where the problem was written; a server has the public files alone, which
``read_public`` reads; a device or a gateway has these and the private ones of its own agents, which
``read_part`` reads. All three read a file in the same way.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from sottovoce.arguments import entries, path_of, whole
from sottovoce.errors import ProblemError
from sottovoce.formula.expression import ZERO
from sottovoce.problem.agents import Group
from sottovoce.problem.private_file import (
    FOLDER,
    Own,
    PrivateFile,
    private_name,
    read_own,
    read_private_file,
)
from sottovoce.problem.problem import AgentView, CloudView, Problem
from sottovoce.problem.public_file import PublicFile, read_public_file


def load_problem(folder: str | Path) -> Problem:
    """Read a problem from a folder: ``problem.toml``, and everybody's files under ``agents/``.

    Nothing in the files is ever executed: formulas go through the parser of ``formula.parse``.
    """
    root = path_of("folder", folder)
    public = read_public_file(root)
    _refuse_surplus_agents(root, public)
    everybody = range(1, public.stated[-1].numbers.stop)
    return _read(root, public, everybody, keep=True)


def read_public(folder: str | Path) -> Problem:
    """Read the public files alone: a problem whose objectives are all 0, being private."""
    root = path_of("folder", folder)
    return _read(root, read_public_file(root), ())


def read_part(folder: str | Path, agents: Any) -> Problem:
    """Read the public files and what these agents alone know.

    Of everybody else the objective is 0; of others in the same fleet the private parameters are
    those of one that was read, since their own are elsewhere.

    Args:
        folder: the folder, or a gateway's copy with its own agents' files alone.
        agents: their numbers, from 1.
    """
    root = path_of("folder", folder)
    public = read_public_file(root)
    last = public.stated[-1].numbers.stop - 1
    listed = entries("agents", agents, "a list of agents' numbers")
    wanted = {whole("agent", a, least=1, most=last, error=ProblemError) for a in listed}
    return _read(root, public, wanted)


def read_agent(path: str | Path) -> tuple[CloudView, int, AgentView]:
    """Read ``FOLDER/agents/3.toml``: the public problem, the agent's number and what it knows."""
    file = path_of("path", path)
    if not file.stem.isdecimal():
        raise ProblemError(f"an agent's file must be called 1.toml, 2.toml, ..., got {file.name}")
    number = int(file.stem)
    problem = read_part(file.absolute().parent.parent, [number])
    return problem.cloud, number, problem.agent(number)


def _read(
    root: Path, public: PublicFile, agents: Collection[int], *, keep: bool = False
) -> Problem:
    files: list[PrivateFile | None] = []
    for stated in public.stated:
        mine = agents if len(agents) == 0 else [a for a in stated.numbers if a in agents]
        files.append(read_private_file(root, stated, mine) if mine else None)
    groups = _groups(public, files)
    symbols = {s.name: s for group in groups for s in (*group.symbols, *group.parameters)}
    known = [
        _nothing() if file is None else read_own(file, group, symbols)
        for file, group in zip(files, groups, strict=True)
    ]
    return Problem(
        **public.arguments(groups),
        objectives=[own.objective for own in known],
        start=[own.start for own in known],
        fallback=[own.fallback for own in known],
        local=[row for own in known for row in own.local],
        source=_source(public, files) if keep else None,
    )


def _groups(public: PublicFile, files: list[PrivateFile | None]) -> list[Group]:
    try:
        return [
            stated.group({} if file is None else file.parameters)
            for stated, file in zip(public.stated, files, strict=True)
        ]
    except ProblemError as error:
        raise ProblemError(f"{public.document.path}: {error}") from None


def _nothing() -> Own:
    return Own(objective=ZERO, start=None, fallback=None, local=[])


def _source(public: PublicFile, files: list[PrivateFile | None]) -> dict[str, str] | None:
    """Every file by its path, to be written back unchanged; None if one is no text."""
    texts: dict[str, str | None] = {"problem.toml": public.document.text}
    texts |= {name: table.text for name, table in public.tables.items()}
    for file in files:
        texts |= {} if file is None else file.texts
    kept = {path: text for path, text in texts.items() if text is not None}
    return kept if len(kept) == len(texts) else None


def _refuse_surplus_agents(root: Path, public: PublicFile) -> None:
    expected = {private_name(stated) for stated in public.stated}
    surplus = sorted(p.name for p in (root / FOLDER).glob("*.toml") if p.name not in expected)
    if surplus:
        raise ProblemError(
            f"agents/{surplus[0]} belongs to no agent: problem.toml has "
            f"{public.stated[-1].numbers.stop - 1}; add the agent there or remove the file"
        )
