"""``sottovoce serve``, a fleet and the runs that follow each other, and ``sottovoce run start``."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import typer

from sottovoce.cli.console import errors, show_result
from sottovoce.cli.options import (
    REQUIRED,
    algorithm_for,
    argument,
    load,
    option,
    run_rounds,
    with_options,
)
from sottovoce.cli.services import CloudOptions, own_process, plan_of_cloud, run_party
from sottovoce.errors import InputError, NetworkError, SottovoceError
from sottovoce.network.observe import logs

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from sottovoce.network.series import Series
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.files.load import Public

run_group = typer.Typer(help="Runs of a series.", no_args_is_help=True)

_UNITS: Final = {"s": 1, "min": 60, "h": 3600, "day": 86_400, "days": 86_400}
_DURATION: Final = re.compile(r"([0-9.]+) *(s|min|h|day|days)")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_LEFT_OUT: Final = frozenset({"new", "helper", "linger", "log_level"})  # of a cloud's options


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesOptions(CloudOptions):
    """A table ``[series.NAME]`` of a service file: a cloud's options, and when runs open."""

    problem: Path = REQUIRED
    public: Path | None = None
    every: str | None = None
    first: str | None = None
    runs: int | None = None
    quorum: str = "1"
    gather: str = "10 s"
    shift: int = 0

    def series(self, name: str, pool: Executor) -> Series:
        """Return the series."""
        from sottovoce.network.series import Series
        from sottovoce.problem.files.load import load_public

        problem = load(self.problem, agents=())

        async def plan(public: Public) -> NoisePlan:
            from asyncio import get_running_loop

            work = partial(plan_of_cloud, self.problem, self, public)
            return (await get_running_loop().run_in_executor(pool, work))[0]

        server = {k: v for k, v in self.server().items() if k not in _LEFT_OUT}
        return Series(
            problem.cloud,
            plan,
            name=name,
            rounds=run_rounds(problem, self.rounds),
            algorithm=algorithm_for(problem, self.algorithm),
            public=load_public(self.problem),
            public_file=self.public,
            every=None if self.every is None else duration("every", self.every),
            first=None if self.first is None else _moment(self.first),
            runs=self.runs,
            quorum=_quorum(self.quorum),
            gather=duration("gather", self.gather),
            shift=self.shift,
            **server,
        )


@with_options
def serve_command(
    file: Path = argument("the service file, with a table series.NAME for every series"),
    log_level: str = "info",
) -> None:
    """Serve series of runs: fleets that plan again and again.

    A run opens on a schedule, or by sottovoce run start. Agents stay connected. Killed at any
    moment, the same command goes on with the interrupted run, then with the series.

    Example: sottovoce serve service.toml
    """
    logs.configure(log_level)
    tables = read_service(file, log_level)

    async def serve() -> list[int]:
        with own_process() as pool:
            return await _all_of([one.series(name, pool) for name, one in tables.items()])

    answered = run_party(serve)
    errors.print(f"done: {sum(answered):,} runs were answered")


async def _all_of(every: list[Series]) -> list[int]:
    """Every series to its end; one that fails does not end the others."""
    import asyncio

    async def one(series: Series) -> int:
        try:
            return await series.run(linger=0.0)
        except SottovoceError as error:
            logs.note("series-failed", level=logging.ERROR, series=series.name, reason=str(error))
            raise

    ended = await asyncio.gather(*map(one, every), return_exceptions=True)
    for end in ended:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ended if isinstance(end, int)]


@run_group.callback()
def _of_series() -> None:
    """Keep the command's name, although it is the only one."""


@run_group.command("start")
@with_options
def start_command(
    cloud: str = option(REQUIRED, "the series, wss://host:port"),
    keys: Path = option(REQUIRED, "the operator's keys: ca.pem, cert.pem, key.pem"),
    public: Path | None = option(None, "TOML or JSON with this run's public numbers"),
    json: bool = False,
) -> None:
    """Open the next run of a series now, with the public numbers of a file where one is named.

    Example: sottovoce run start --cloud wss://h:8443 --keys keys/operator --public today.toml
    """
    from sottovoce.network.series import read_public

    given = read_public(public)
    answer = run_party(lambda: _post(cloud, keys, {"public": given} if given else {}))
    show_result(answer, f"run {answer['run']} of {answer['series']} will open", json=json)


async def _post(cloud: str, keys: Path, body: dict[str, Any]) -> Any:
    import json

    import aiohttp

    from sottovoce.arguments import websocket_address
    from sottovoce.network.identity.tls import client_context

    websocket_address("cloud", cloud)
    connector = aiohttp.TCPConnector(ssl=client_context(keys))
    timeout = aiohttp.ClientTimeout(total=30)
    url = f"https{cloud.removeprefix('wss').rstrip('/')}/runs"
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.post(url, json=body) as reply,
        ):
            text = await reply.text()
            if reply.status == 202:
                return await reply.json()
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise NetworkError(
            f"{cloud} must answer, got {type(error).__name__}: check the address, and that "
            "sottovoce serve runs there"
        ) from None
    with suppress(ValueError, KeyError, TypeError):  # a series refuses in JSON
        text = json.loads(text)["reason"]
    if reply.status == 400:
        raise InputError(f"the run was refused: {text}")
    raise NetworkError(f"the run was not opened (status {reply.status}): {text}")


def read_service(file: Path, log_level: str = "info") -> dict[str, SeriesOptions]:
    """Read a service file; paths in it begin at its folder."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} must be readable: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{file} must be TOML: {error}") from None
    stated = tables.get("series")
    if tables.keys() != {"series"} or not isinstance(stated, dict) or not stated:
        raise InputError(f"{file} must have tables [series.NAME], and no others")
    return {name: _series_options(file, name, table, log_level) for name, table in stated.items()}


def _series_options(file: Path, name: str, table: object, log_level: str) -> SeriesOptions:
    header = f"{file}: [series.{name}]"
    if not _NAME.fullmatch(name) or not isinstance(table, Mapping):
        raise InputError(f"{header} must be a table with a name of letters, digits, - and _")
    kinds = get_type_hints(SeriesOptions)
    known = {one.name: kinds[one.name] for one in fields(SeriesOptions)}
    values: dict[str, Any] = {"log_level": log_level}
    for key, value in table.items():
        field = key.replace("-", "_")
        if field not in known or field in _LEFT_OUT:
            listed = ", ".join(sorted(k.replace("_", "-") for k in known.keys() - _LEFT_OUT))
            raise InputError(f"{header} may have {listed}, got {key!r:.60}")
        values[field] = _converted(value, known[field], f"{header} {key}")
    for field in ("problem", "keys", "store"):
        if field not in values:
            raise InputError(f"{header} needs {field}: add a line {field} = ...")
    for field in ("problem", "keys", "store", "ledger", "public"):
        path = values.get(field)
        if path is not None and "://" not in str(path):
            values[field] = type(path)(file.parent / path)
    return SeriesOptions(**values)


def _converted(value: object, kind: Any, where: str) -> Any:
    text = str(kind)
    if isinstance(value, bool) or "bool" in text:
        if isinstance(value, bool) and "bool" in text:
            return value
        raise InputError(f"{where} must be {'true or false' if 'bool' in text else 'no switch'}")
    if isinstance(value, dict | list):
        raise InputError(f"{where} must be one value, got {value!r:.60}")
    if "int" in text or "float" in text:
        if isinstance(value, int) or (isinstance(value, float) and "float" in text):
            return value
        raise InputError(f"{where} must be a number, got {value!r:.60}")
    return Path(str(value)) if "Path" in text else str(value)


def duration(name: str, text: str) -> float:
    """Return seconds of ``15 min``, ``1 h``, ``30 s`` or ``1 day``."""
    match = _DURATION.fullmatch(text.strip())
    try:
        seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InputError(f"{name} must be a time such as '15 min', '1 h' or '30 s', got {text!r}")
    return seconds


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"first must be a time such as 2026-03-01T06:00:00Z, got {text!r}"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _quorum(text: str) -> float:
    """Agents, or a share of all below 1."""
    share = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = 0.0
    if share and 0 < number <= 100:
        return min(number / 100, 1 - 1e-9)  # 1 is one agent
    if not share and number >= 1 and number == int(number):
        return number
    raise InputError(f"quorum must be a number of agents, or a share such as 80%, got {text!r}")
