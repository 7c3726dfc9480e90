"""``sottovoce identity`` and ``ledger``: certificates and privacy budgets of agents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.cli.console import console, picked, show_result
from sottovoce.cli.options import REQUIRED, one_number, option, with_options
from sottovoce.errors import InputError
from sottovoce.network import CERTIFICATE_DAYS
from sottovoce.tables import PlainTable

if TYPE_CHECKING:
    from sottovoce.privacy.ledger import Account

identity_group = typer.Typer(help="Keys and certificates for a cloud and its agents.")
ledger_group = typer.Typer(help="Lifetime privacy budgets of agents.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--dir", help="folder of the authority and the cloud")]
Days = Annotated[int, typer.Option(min=0, help="how long certificates last")]
LedgerName = Annotated[str, typer.Argument(metavar="LEDGER", help="its file, or postgresql://...")]

DIGITS = 5


@identity_group.command("init")
@with_options
def init_command(
    folder: Folder,
    agents: Annotated[int, typer.Option(min=1, help="number of agents")],
    host: list[str] | None = option(None, "name or address of the cloud; may be repeated"),
    gateway: list[str] | None = option(None, "agents on one connection, e.g. 1-250; repeatable"),
    helper: bool = option(False, "keys for a cloud in two halves, and for masks"),
    helper_host: list[str] | None = option(None, "name or address of the helper; repeatable"),
    days: Days = CERTIFICATE_DAYS,
) -> None:
    """Make a private authority and certificates for the cloud, its operator and every agent.

    With --helper the folder is the authority's own, and belongs to neither half: give the cloud its
    cloud/, the helper its helper/, and each device its folder.

    Example: sottovoce identity init --dir cloud-keys --agents 7
    """
    from sottovoce.network.identity import authority
    from sottovoce.network.identity.tls import parse_range

    ranges = [parse_range(text) for text in gateway or ()]
    names = (helper_host or ()) if helper or helper_host else None
    authority.create_keys(
        folder, agents=agents, hosts=host or (), gateways=ranges, helper=names, days=days
    )
    halves = ""
    if names is not None:
        halves = f"the cloud {folder / 'cloud'}, the helper {folder / 'helper'}, which must not "
        halves += "collude, "
    console.print(
        f"wrote {folder}: give {halves}each device its folder under {folder / 'agents'}, the "
        f"operator {folder / 'operator'}, and move {folder / 'ca.key'} to a safe place",
        soft_wrap=True,
    )


@identity_group.command("issue")
@with_options
def issue_command(
    folder: Folder,
    agents: str | None = option(None, "a number, or a range for a gateway"),
    host: list[str] | None = option(None, "renew the cloud's certificate under these names"),
    operator: bool = option(False, "the operator's"),
    helper_host: list[str] | None = option(None, "renew the helper's under these names"),
    relay_host: list[str] | None = option(None, "make --agents those of a relay of these names"),
    days: Days = CERTIFICATE_DAYS,
) -> None:
    """Issue certificates anew, before they end or after a key has leaked.

    Example: sottovoce identity issue --dir cloud-keys --agents 3
    """
    from sottovoce.network.identity import authority
    from sottovoce.network.identity.tls import parse_range

    authority.issue_keys(
        folder,
        agents=None if agents is None else parse_range(agents),
        hosts=host,
        operator=operator,
        helper=helper_host,
        relay=relay_host,
        days=days,
    )
    console.print(f"issued in {folder}", soft_wrap=True)


@identity_group.command("revoke")
@with_options
def revoke_command(
    folder: Folder,
    certificate: Annotated[Path | None, typer.Argument(help="the certificate, cert.pem")] = None,
    serial: str | None = option(None, "its serial number in issued.txt, if the file is gone"),
) -> None:
    """Revoke a certificate; a running cloud drops its owner within seconds.

    Example: sottovoce identity revoke cloud-keys/agents/3/cert.pem --dir cloud-keys
    """
    from sottovoce.network.identity import authority

    if certificate is not None and serial is None:
        done = authority.revoke_certificate(folder, certificate)
    elif serial is not None and certificate is None:
        done = authority.revoke_serial(folder, serial)
    else:
        raise InputError("revoke must be given a certificate or --serial, and one of them only")
    console.print(f"revoked {done}", soft_wrap=True)


@ledger_group.command("show")
@with_options
def show_command(ledger: LedgerName, json: bool = False) -> None:
    """Show what every agent protects, and has granted, spent and left for it.

    Figures are Gaussian-DP mu for two lifetimes that differ by no more than the radius within
    every run. What is spent is rounded up, what remains is rounded down.

    Example: sottovoce ledger show budget.db
    """
    from sottovoce.database import address_of
    from sottovoce.privacy.ledger import Ledger

    address = address_of("ledger", ledger)
    if address.file is not None and not address.file.exists():
        raise InputError(f"{ledger} must exist, got no such file: grant a budget first")
    accounts = Ledger(ledger).accounts()
    name = address.file.name if address.file else address.name
    title = f"Budgets in {name}: granted as epsilon, delta; spent in Gaussian-DP mu"
    columns = ("agent", "protects", "radius", "granted as", "spent", "mu/radius", "remaining")
    rows = tuple(map(_cells, accounts))
    table = PlainTable(title=title, columns=columns, rows=rows, framed=True)
    figures = ("epsilon", "delta", "budget", "spent", "spent_per_radius", "remaining")
    data = [
        {"agent": a.agent, **picked(a.protected, "hide", "radius"), **picked(a, *figures)}
        for a in accounts
    ]
    show_result(data, table, json=json)


@ledger_group.command("grant")
@with_options
def grant_command(
    ledger: LedgerName,
    agent: list[str] = option(REQUIRED, "agent's name; repeat for several"),
    epsilon: str = option(REQUIRED, "lifetime privacy loss, e.g. 'ln(3)'"),
    delta: str = option(REQUIRED, "lifetime failure probability"),
    hide: str = option(REQUIRED, "what is protected: trajectory, offset or everything"),
    radius: str | None = option(None, "how far apart behaviours may be; not for everything"),
) -> None:
    """Grant agents a lifetime budget; it may be changed later, never below what is spent.

    Example: sottovoce ledger grant budget.db --agent x1 --agent x2 --epsilon 'ln(3)' --delta 0.05
    --hide trajectory --radius 1
    """
    from sottovoce.privacy.ledger import Ledger

    Ledger(ledger).grant(
        agent,
        one_number(epsilon, "epsilon"),
        one_number(delta, "delta"),
        hide=hide,
        radius=None if radius is None else one_number(radius, "radius"),
    )
    show_command(ledger)


def _cells(account: Account) -> tuple[str, ...]:
    from sottovoce.privacy.statement import down, up

    radius, per_radius = account.protected.radius, account.spent_per_radius
    return (
        account.agent,
        account.protected.hide,
        "any" if radius is None else down(radius, DIGITS),
        f"{up(account.epsilon, DIGITS)}, {up(account.delta, DIGITS)}",
        up(account.spent, DIGITS),
        "-" if per_radius is None else up(per_radius, DIGITS),
        down(account.remaining, DIGITS),
    )
