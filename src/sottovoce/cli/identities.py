"""``sottovoce identity``: keys and certificates for a cloud and its agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli.console import console
from sottovoce.errors import InputError
from sottovoce.network.defaults import DAYS

identity_group = typer.Typer(help="Keys and certificates for a cloud and its agents.")

Folder = Annotated[Path, typer.Option("--dir", help="folder of the authority and the cloud")]
Days = Annotated[int, typer.Option(min=0, help="how long certificates last")]


@identity_group.command("init")
def init_command(
    folder: Folder,
    agents: Annotated[int, typer.Option(min=1, help="number of agents")],
    host: Annotated[
        list[str] | None, typer.Option(help="name or address of the cloud; may be repeated")
    ] = None,
    gateway: Annotated[
        list[str] | None, typer.Option(help="agents on one connection, e.g. 1-250; repeatable")
    ] = None,
    helper: Annotated[
        bool, typer.Option("--helper", help="keys for a cloud in two halves, and for masks")
    ] = False,
    helper_host: Annotated[
        list[str] | None, typer.Option(help="name or address of the helper; may be repeated")
    ] = None,
    days: Days = DAYS,
) -> None:
    """Make a private authority and certificates for the cloud, its operator and every agent.

    With --helper the folder is the authority's own, and belongs to neither half: give the cloud its
    cloud/, the helper its helper/, and each device its folder.

    Example: sottovoce identity init --dir cloud-keys --agents 7
    """
    from sottovoce.network.identity import keys
    from sottovoce.network.identity.roles import parse_range

    ranges = [parse_range(text) for text in gateway or ()]
    names = (helper_host or ()) if helper or helper_host else None
    keys.create_keys(
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
def issue_command(
    folder: Folder,
    agents: Annotated[str | None, typer.Option(help="a number, or a range for a gateway")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="renew the cloud's certificate under these names")
    ] = None,
    operator: Annotated[bool, typer.Option("--operator", help="the operator's")] = False,
    helper_host: Annotated[
        list[str] | None, typer.Option(help="renew the helper's certificate under these names")
    ] = None,
    relay_host: Annotated[
        list[str] | None, typer.Option(help="make --agents those of a relay under these names")
    ] = None,
    days: Days = DAYS,
) -> None:
    """Issue certificates anew, before they end or after a key has leaked.

    Example: sottovoce identity issue --dir cloud-keys --agents 3
    """
    from sottovoce.network.identity import keys
    from sottovoce.network.identity.roles import parse_range

    wanted = None if agents is None else parse_range(agents)
    keys.issue_keys(
        folder,
        agents=wanted,
        hosts=host,
        operator=operator,
        helper=helper_host,
        relay=relay_host,
        days=days,
    )
    console.print(f"issued in {folder}", soft_wrap=True)


@identity_group.command("revoke")
def revoke_command(
    folder: Folder,
    certificate: Annotated[Path | None, typer.Argument(help="the certificate, cert.pem")] = None,
    serial: Annotated[
        str | None, typer.Option(help="its serial number in issued.txt, if the file is gone")
    ] = None,
) -> None:
    """Revoke a certificate; a running cloud drops its owner within seconds.

    Example: sottovoce identity revoke cloud-keys/agents/3/cert.pem --dir cloud-keys
    """
    from sottovoce.network.identity import keys

    if certificate is not None and serial is None:
        done = keys.revoke_certificate(folder, certificate)
    elif serial is not None and certificate is None:
        done = keys.revoke_serial(folder, serial)
    else:
        raise InputError("revoke must be given a certificate or --serial, and one of them only")
    console.print(f"revoked {done}", soft_wrap=True)
