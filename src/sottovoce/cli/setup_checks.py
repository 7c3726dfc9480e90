"""``sottovoce check-setup``: what a role lacks before it starts; it changes nothing."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from functools import cache, partial
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

import typer

from sottovoce.cli.console import show_result
from sottovoce.cli.options import load, with_role_options
from sottovoce.cli.serve import SeriesOptions, ServiceOptions
from sottovoce.cli.services import (
    AgentOptions,
    CloudOptions,
    DeviceOptions,
    GatewayOptions,
    HelperOptions,
    RelayOptions,
    listen_address,
    planned,
)
from sottovoce.errors import InputError, NetworkError, SottovoceError
from sottovoce.tables import framed_table

if TYPE_CHECKING:
    from sottovoce.network.journal import Role
    from sottovoce.privacy.noise_plan import NoisePlan

FEW_DAYS: Final = 30  # that a certificate lasts: time to renew it
SKEW_SECONDS: Final = 60.0  # between clocks; certificates begin an hour before they are issued
ANSWER_SECONDS: Final = 5.0  # to wait for the other side
LITTLE_SPACE: Final = 1 << 30  # bytes free; a round takes some hundred
NO_SPACE: Final = 64 << 20

Check: TypeAlias = tuple[str, Callable[[], str]]
"""A name, and what returns a detail or raises an error, or a ``UserWarning``."""

check_setup_group = typer.Typer(
    help="Check what a role needs before it starts: keys, clock, port, disk, store, budgets.",
    no_args_is_help=True,
)


def carry_out(check: Check) -> dict[str, str]:
    """Return a check's name, its status, and what is there or what must be, with the remedy."""
    name, call = check
    status = "missing"
    try:
        status, detail = "ok", call()
    except UserWarning as warning:
        status, detail = "warning", str(warning)
    except SottovoceError as error:
        detail = str(error)
    except OSError as error:
        detail = f"{error.filename or name} must be readable, got: {error.strerror}"
    return {"check": name, "status": status, "detail": detail}


def _add(role: str, options: type, checks: Callable[[Any], Iterator[Check]]) -> None:
    """Add a command that takes a role's options and carries out its checks."""

    def check(options: Any, json: bool = False) -> None:
        rows = [carry_out(one) for one in checks(options)]
        columns, cells = ("check", "status", "detail"), (tuple(row.values()) for row in rows)
        table = framed_table(f"Setup: {role}", columns, cells, words=True)
        show_result(rows, table, json=json)
        if any(row["status"] == "missing" for row in rows):
            raise typer.Exit(1)

    place = {"agent": "FOLDER/agents/3.toml", "serve": "service.toml"}.get(role, "FOLDER")
    check.__doc__ = (
        f"Check what sottovoce {role} needs, given the same options or --config.\n\n"
        "Every check is ok, a warning or missing, with the remedy; exit code 1 if one is missing."
        f"\n\nExample: sottovoce check-setup {role} {place} --config {role}.toml"
    )
    check.__annotations__ = {"options": options, "json": bool}
    check_setup_group.command(role)(with_role_options(check))


def _of_half(options: HelperOptions, role: Role) -> Iterator[Check]:
    """Yield what cloud, helper and every run of a series need."""
    from sottovoce.network.identity.tls import CLOUD, HELPER
    from sottovoce.network.setup import round_key

    @cache
    def plan() -> NoisePlan:
        from sottovoce.network.cloud import Cloud
        from sottovoce.network.helper import Helper

        public = options.public_data() if isinstance(options, SeriesOptions) else None
        stated, rounds, algorithm = planned(options, public)
        # Without the ledger, which would be made if it is missing.
        if isinstance(options, CloudOptions):
            Cloud(stated, rounds=rounds, algorithm=algorithm, **options.settings())
        else:
            Helper(stated, **options.settings())
        return stated

    def promise() -> str:
        return f"certified for {plan().cloud.agents:,} agents and {plan().rounds:,} rounds"

    yield "problem", partial(_public_problem, options.problem)
    yield from _of_server(options, (HELPER,) if role == "helper" else ())
    yield "round key", lambda: f"{len(round_key(options.keys))} bytes"
    yield from _of_store(options.store, role, options)
    yield "promise", promise
    yield "budgets", partial(_budgets, options, plan)
    if isinstance(options, CloudOptions) and options.helper is not None:
        yield from _of_client(options.keys, (CLOUD,), options.helper, "helper")


def _of_series(options: ServiceOptions) -> Iterator[Check]:
    for name, series in options.tables().items():

        def public(series: SeriesOptions = series) -> str:
            return ", ".join(series.public_data()) or "none"

        for check, call in (("public data", public), *_of_half(series, "cloud")):
            yield f"{name}: {check}", call


def _of_helper(options: HelperOptions) -> Iterator[Check]:
    def masks() -> str:
        from sottovoce.network.masks import HelperKeys

        return f"{len(list(HelperKeys.of_folder(options.keys).listed()))} certificates of agents"

    yield from _of_half(options, "helper")
    yield "masks", masks


def _of_relay(options: RelayOptions) -> Iterator[Check]:
    from sottovoce.network.identity.tls import parse_range

    yield "problem", partial(_public_problem, options.problem)
    yield from _of_server(options, ())
    yield from _of_client(options.keys, parse_range(options.agents), options.cloud, "cloud")


def _of_agent(options: AgentOptions) -> Iterator[Check]:
    file = options.file
    folder = file.absolute().parent.parent
    yield from _of_device(folder, [file], options, file.stem, file.with_suffix(".state"))


def _of_gateway(options: GatewayOptions) -> Iterator[Check]:
    private, agents = options.problem / "agents", options.agents
    files = [path for path in private.iterdir() if path.is_file()] if private.is_dir() else []
    yield from _of_device(options.problem, files, options, agents, private / f"{agents}.state")


def _of_device(
    folder: Path, files: list[Path], options: DeviceOptions, agents: str, state: Path
) -> Iterator[Check]:
    """Yield what the process of these agents needs."""
    from sottovoce.network.identity.tls import client_context, parse_range

    numbers = parse_range(agents)

    def problem() -> str:
        from sottovoce.network.agent_group import AgentGroup

        try:
            return f"{len(AgentGroup.of_folder(folder, numbers).agents):,} agents"
        except SottovoceError as error:  # its text may quote what is private
            raise InputError(
                f"the files of agents {agents} must state a problem, got {type(error).__name__}: "
                "sottovoce agent or gateway says where"
            ) from None

    def keys() -> str:
        client_context(options.keys)
        return f"{options.keys}, the key readable by its owner only"

    yield "problem", problem
    yield "private files", partial(_private, files)
    yield "keys", keys
    yield from _of_store(options.state or state, "agent")
    yield from _of_client(options.keys, numbers, options.cloud, "cloud")


def _of_client(
    keys: Path, members: tuple[str, ...] | range, url: str, other: str
) -> Iterator[Check]:
    """Yield what a process needs that connects to another."""
    yield f"certificate for the {other}", partial(_certificate, keys / "cert.pem", members)
    yield f"{other} and clock", partial(_other_side, url, keys)


def _of_server(options: HelperOptions | RelayOptions, roles: tuple[str, ...]) -> Iterator[Check]:
    """Yield what a process needs that others connect to."""

    def usable() -> str:
        from sottovoce.network.identity.certificates import Authorization

        Authorization(options.keys)
        return f"{options.keys}, the key readable by its owner only, and revocations"

    def free(name: str, text: str) -> str:
        from sottovoce.network.failures import not_listening

        host, port = address = listen_address(text, name)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            socket.create_server(address, family=family).close()
        except OSError as error:
            raise not_listening(name, address, error) from None
        return f"{host}, port {port}"

    yield "keys", usable
    yield "certificate", partial(_certificate, options.keys / "server.pem", roles)
    for name, text in (("listen", options.listen), ("health-listen", options.health_listen)):
        if text is not None:
            yield f"port of {name}", partial(free, name, text)


def _of_store(
    store: str | Path, role: Role, options: HelperOptions | None = None
) -> Iterator[Check]:
    """Yield the checks of a store or an agent's state, and of the disk below it."""
    from sottovoce.database import address_of, connect
    from sottovoce.network.failures import StoreError
    from sottovoce.network.journal import ENDED, JournalReader
    from sottovoce.network.journal_place import translated
    from sottovoce.network.store import read_series

    address = address_of("store", store)
    most = options.runs if isinstance(options, SeriesOptions) else None

    def stored() -> str:
        if address.file is None:
            with translated(address.name), closing(connect(address, mode="ro")) as database:
                new = database.stamp("rounds") is None
        else:
            new = not address.file.exists() or not address.file.stat().st_size
            if new and address.file.with_name(f"{address.file.name}.mark").exists():
                raise StoreError(f"{address.name} has lost its run: put the newest file back")
        if new:
            return f"{address.name} will be made"
        with JournalReader.open(store) as journal:
            run, series = journal.read_run(), read_series(journal.notes())
        single = bool(run.config) and series is None
        misplaced = single if isinstance(options, SeriesOptions) else series is not None
        if run.role != role or run.status in ENDED or misplaced:
            kind = "one run" if series is None else "a series"
            raise StoreError(
                f"{address.name} must be of a run of this {role} that goes on, got {kind} of "
                f"{run.role}, {run.status}: choose another file"
            )
        last = series is not None and series.number == most and not series.running
        if last or (single and run.status == "done"):
            raise UserWarning(
                f"{address.name} is of {'runs' if last else 'a run'} that are over: agents that "
                "missed the end still learn it; for others choose another file"
            )
        return f"{address.name} is of a run, {run.status}"

    if address.file is not None:
        yield "folder and disk", partial(_folder, address.file.resolve().parent)
    yield "store" if role != "agent" else "state", stored


def _folder(folder: Path) -> str:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{folder} must be a folder that this user may write to")
    free = shutil.disk_usage(folder).free
    if free < NO_SPACE:
        raise InputError(f"the disk of {folder} must have {NO_SPACE:,} bytes free, got {free:,}")
    if free < LITTLE_SPACE:
        raise UserWarning(f"the disk of {folder} has {free:,} bytes free: make room")
    return _private([folder])


def _private(paths: list[Path]) -> str:
    if others := [path for path in paths if os.name == "posix" and path.stat().st_mode & 0o077]:
        raise UserWarning(f"{others[0]} can be read by others: chmod go= {others[0]}")
    return ", ".join(map(str, paths[:1])) + (f" and {len(paths) - 1} more" if paths[1:] else "")


def _public_problem(folder: Path) -> str:
    public = load(folder, agents=()).cloud
    return f"agents: {public.agents:,}, sums: {public.sums.count:,}"


def _certificate(file: Path, members: tuple[str, ...] | range) -> str:
    """Check that a certificate names roles, or speaks for agents, now and for some time."""
    from cryptography import x509

    from sottovoce.network.failures import IdentityError
    from sottovoce.network.identity.certificates import issued_by, read_identity
    from sottovoce.network.identity.tls import require_current

    identity = read_identity(file)
    require_current(file)
    certificate, authority = (
        x509.load_pem_x509_certificate(path.read_bytes()) for path in (file, file.parent / "ca.pem")
    )
    if time.time() < certificate.not_valid_before_utc.timestamp():
        raise IdentityError(f"{file} is not good yet: set this machine's clock")
    if not issued_by(certificate, authority):
        if isinstance(members, range):
            raise UserWarning(f"{file} is of a fleet's authority: fleet.toml there must name it")
        raise IdentityError(f"{file} must be of the authority of {file.parent / 'ca.pem'}")
    lacking = [m for m in members if not (m in identity.roles or m in identity)]
    if lacking:
        raise IdentityError(
            f"{file} must speak for {lacking[0]}, got {sorted(identity.roles) or 'no role'}: copy "
            "the right one, or issue it with sottovoce identity issue"
        )
    days = int((identity.expires - time.time()) // 86400)
    if days < FEW_DAYS:
        raise UserWarning(f"{file} ends in {days} days: renew it with sottovoce identity issue")
    return f"{file}, {days} days left"


def _budgets(options: HelperOptions, plan: Callable[[], NoisePlan]) -> str:
    from sottovoce.cli.accounts import opened_ledger
    from sottovoce.errors import BudgetError
    from sottovoce.network.journal import JournalReader

    if options.ledger is None:
        raise UserWarning("without --ledger nothing limits what runs spend together")
    ledger, name = opened_ledger(options.ledger)
    series = isinstance(options, SeriesOptions)
    with suppress(NetworkError), JournalReader.open(options.store) as journal:
        if not series and journal.read_run().run_id in {spend.run_id for spend in ledger.history()}:
            return f"{name}: the run of this store is paid for"
    forecasts = ledger.forecast(plan().charges())
    refusals = [forecast.refusal for forecast in forecasts if forecast.refusal]
    if series and 0 < len(refusals) < len(forecasts):
        raise UserWarning(f"{len(refusals):,} agents would sit out the next run: {refusals[0]}")
    if refusals:
        raise BudgetError(f"{len(refusals):,} agents cannot afford this run: {refusals[0]}")
    now, in_all = (n if n is not None else "any" for n in (forecasts[0].runs, forecasts[0].in_all))
    return f"{name}: {now} runs now, {in_all} in all"


def _other_side(url: str, keys: Path) -> str:
    """Connect as the role does, and hold this machine's clock against the answer's date."""
    from sottovoce.arguments import websocket_address
    from sottovoce.network.identity.tls import client_context

    websocket_address("cloud", url)
    parts, context = urlsplit(url), client_context(keys)
    link = HTTPSConnection(
        parts.hostname or "", parts.port or 443, timeout=ANSWER_SECONDS, context=context
    )
    try:
        link.connect()
        try:
            link.request("GET", "/healthz")
            answer = link.getresponse()
        except (OSError, HTTPException) as error:  # TLS 1.3 says so after the handshake
            raise NetworkError(
                f"{url} must accept {keys / 'cert.pem'}, and ended the connection "
                f"({type(error).__name__}): copy the certificate of its authority"
            ) from None
    except ssl.SSLError as error:
        raise NetworkError(
            f"{url} must have a certificate of {keys / 'ca.pem'} for this name, got {error.reason}"
        ) from None
    except OSError as error:
        raise UserWarning(f"{url} does not answer now ({type(error).__name__})") from None
    finally:
        link.close()
    if answer.status in (401, 403):
        raise NetworkError(f"{url} refuses {keys / 'cert.pem'}: ask its operator for a new one")
    date = answer.headers["Date"]
    skew = abs(parsedate_to_datetime(date).timestamp() - time.time()) if date else 0.0
    if skew > SKEW_SECONDS:
        raise UserWarning(f"the clocks here and at {url} differ by {skew:.0f} s: set the wrong one")
    return f"{url} answers, clocks agree"


CHECKS: Final[dict[str, tuple[type, Callable[[Any], Iterator[Check]]]]] = {
    "cloud": (CloudOptions, partial(_of_half, role="cloud")),
    "helper": (HelperOptions, _of_helper),
    "relay": (RelayOptions, _of_relay),
    "agent": (AgentOptions, _of_agent),
    "gateway": (GatewayOptions, _of_gateway),
    "serve": (ServiceOptions, _of_series),
}
"""The options of every role, and its checks of them."""

for _role, _of_role in CHECKS.items():
    _add(_role, *_of_role)
