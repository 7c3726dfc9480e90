"""``sottovoce serve``, a fleet and the runs that follow each other, and ``sottovoce run start``."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
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
from sottovoce.cli.services import CloudOptions, duration, own_process, planned, run_party
from sottovoce.errors import InputError, NetworkError, SottovoceError
from sottovoce.network.observe import logs

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from sottovoce.network.series import Series
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.files.load import Public

run_group = typer.Typer(help="Runs of a series.", no_args_is_help=True)

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_LEFT_OUT: Final = frozenset({"new", "helper", "linger", "log_level"})  # of a cloud's options
_PATHS: Final = frozenset({"problem", "keys", "store", "ledger", "public"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesOptions(CloudOptions):
    """A table ``[series.NAME]`` of a service file: a cloud's options, and when runs open."""

    public: Path | None = None
    every: str | None = None
    first: str | None = None
    runs: int | None = None
    quorum: str = "1"
    gather: str = "10 s"
    shift: int = 0

    def public_data(self) -> Public:
        """Return the public numbers of a run that opens now."""
        from sottovoce.network.series import read_public
        from sottovoce.problem.files.load import load_public, replace_public

        return replace_public(load_public(self.problem), read_public(self.public))

    def series(self, name: str, pool: Executor) -> Series:
        """Return the series."""
        from sottovoce.network.series import Series
        from sottovoce.problem.files.load import load_public

        async def plan(public: Public) -> NoisePlan:
            from asyncio import get_running_loop

            return (await get_running_loop().run_in_executor(pool, planned, self, public))[0]

        problem = load(self.problem, agents=())
        cloud = {k: v for k, v in self.arguments().items() if k not in _LEFT_OUT}
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
            **cloud,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What a service is started with."""

    file: Path = argument("the service file, with a table series.NAME for every series")
    log_level: str = "info"

    def tables(self) -> dict[str, SeriesOptions]:
        """Read the service file; paths in it begin at its folder."""
        try:
            tables = tomllib.loads(self.file.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{self.file} must be readable: {error.strerror}") from None
        except ValueError as error:
            raise InputError(f"{self.file} must be TOML: {error}") from None
        stated = tables.get("series")
        if tables.keys() != {"series"} or not isinstance(stated, dict) or not stated:
            raise InputError(f"{self.file} must have tables [series.NAME], and no others")
        return {name: self._series(name, table) for name, table in stated.items()}

    def _series(self, name: str, table: object) -> SeriesOptions:
        header = f"{self.file}: [series.{name}]"
        if not _NAME.fullmatch(name) or not isinstance(table, Mapping):
            raise InputError(f"{header} must be a table with a name of letters, digits, - and _")
        kinds = get_type_hints(SeriesOptions)
        options = {one.name: one for one in fields(SeriesOptions) if one.name not in _LEFT_OUT}
        values: dict[str, Any] = {"log_level": self.log_level}
        for key, value in table.items():
            field = key.replace("-", "_")
            if field not in options:
                names = ", ".join(sorted(k.replace("_", "-") for k in options))
                raise InputError(f"{header} may have {names}, got {key!r:.60}")
            path = isinstance(value, str) and field in _PATHS and "://" not in value
            text = str(self.file.parent / str(value)) if path else value
            values[field] = _converted(text, kinds[field], f"{header} {key}")
        for field, one in options.items():
            if one.default is MISSING and field not in values:
                raise InputError(f"{header} needs {field}: add a line {field} = ...")
        return SeriesOptions(**values)


def _converted(value: object, kind: Any, where: str) -> Any:
    from msgspec import ValidationError, convert

    text = value if isinstance(value, bool | list | dict) else str(value)
    try:
        return convert(text, kind, strict=False, dec_hook=lambda path, text: path(text))
    except ValidationError as error:
        raise InputError(f"{where} must be what its option is: {error}") from None


@with_options
def serve_command(options: ServiceOptions) -> None:
    """Serve series of runs: fleets that plan again and again.

    A run opens on a schedule, or by sottovoce run start. Agents stay connected. Killed at any
    moment, the same command goes on with the interrupted run, then with the series.

    Example: sottovoce serve service.toml
    """
    logs.configure(options.log_level)
    tables = options.tables()

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

    numbers = read_public(public)
    answer = run_party(lambda: _post(cloud, keys, {"public": numbers} if numbers else {}))
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
