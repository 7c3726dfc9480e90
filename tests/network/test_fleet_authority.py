"""Certificates of a fleet's own authority count by their names in fleet.toml, and no other way."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from network_harness import Site, taking_part

from sottovoce.cli.services import GatewayOptions
from sottovoce.cli.setup_checks import CHECKS, carry_out
from sottovoce.network import identity
from sottovoce.network.failures import IdentityError, RefusedError
from sottovoce.network.identity.certificates import Authorization
from sottovoce.problem.problem import Problem

MAPPING = """
[uri]
"spiffe://fleet/gateway" = "1-7"
"spiffe://fleet/charger/8" = 8
[common-name]
"control room" = "operator"
"charger eight" = "8"
"""


class FleetAuthority:
    """A root and an intermediate, which signs what devices have."""

    def __init__(self) -> None:
        self.root = self._signed("fleet root", None)
        self.issuing = self._signed("fleet issuing", self.root)

    def _signed(
        self,
        common_name: str,
        issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
        uris: Sequence[str] = (),
        *,
        ca: bool = True,
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer[0].subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if uris:
            names = [x509.UniformResourceIdentifier(uri) for uri in uris]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(key if issuer is None else issuer[1], hashes.SHA256()), key

    def issue(self, ours: Path, folder: Path, common_name: str, *uris: str) -> None:
        """Write what a device has: its certificate with the intermediate, its key, our ca.pem."""
        certificate, key = self._signed(common_name, self.issuing, uris, ca=False)
        folder.mkdir(parents=True)
        shutil.copy(ours / "ca.pem", folder / "ca.pem")
        chain = (certificate, self.issuing[0])
        pem = serialization.Encoding.PEM
        (folder / "cert.pem").write_bytes(b"".join(one.public_bytes(pem) for one in chain))
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        handle = os.open(folder / "key.pem", os.O_CREAT | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(key.private_bytes(pem, form, plain))


@pytest.fixture
def fleet() -> FleetAuthority:
    return FleetAuthority()


@pytest.fixture
def ours(keys: Path, tmp_path: Path, fleet: FleetAuthority) -> Path:
    """The cloud's keys, with the fleet's authority and names beside them."""
    folder = tmp_path / "ours"
    shutil.copytree(keys, folder)
    root = fleet.root[0].public_bytes(serialization.Encoding.PEM)
    (folder / "fleet-ca.pem").write_bytes(root)
    (folder / "fleet.toml").write_text(MAPPING)
    shutil.rmtree(folder / "agents")
    return folder


@pytest.fixture
def site(paper: Problem, ours: Path, tmp_path: Path) -> Site:
    return Site(paper, ours, tmp_path)


async def test_agents_with_fleet_certificates_take_part(site: Site, fleet: FleetAuthority) -> None:
    fleet.issue(site.keys, site.keys / "agents" / "1-7", "gateway", "spiffe://fleet/gateway")
    fleet.issue(site.keys, site.keys / "control", "control room")
    async with site.serving(rounds=4) as cloud:
        gateway = site.member(cloud, *range(1, 8))
        async with taking_part(gateway) as (task,):
            assert (await task).rounds == 4
        assert (await site.page(cloud, "control", "/status"))[0] == 200
        fleet.issue(site.keys, site.keys / "eight", "any", "spiffe://fleet/charger/8")
        assert (await site.page(cloud, "eight", "/status"))[0] == 403


@pytest.mark.parametrize(
    ("common_name", "uris"),
    [
        ("unknown", ()),
        ("unknown", ("sottovoce:agent:1", "sottovoce:operator")),
        ("sottovoce:agent:1", ("sottovoce:cloud",)),
        ("spiffe://fleet/gateway", ()),  # a common name does not count as a URI
        ("any", ("control room",)),
        ("charger eight", ("spiffe://fleet/gateway",)),  # two names that are known
        ("any", ("spiffe://fleet/gateway/", "SPIFFE://fleet/gateway")),
    ],
)
async def test_names_that_are_not_mapped_once_are_refused(
    site: Site, common_name: str, uris: tuple[str, ...], fleet: FleetAuthority
) -> None:
    fleet.issue(site.keys, site.keys / "device", common_name, *uris)
    async with site.serving(rounds=4) as cloud:
        for path in ("/status", "/healthz", "/"):
            assert (await site.page(cloud, "device", path))[0] == 403
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            async with site.peer(cloud, "device"):
                pass


async def test_another_authority_is_refused_at_the_handshake(site: Site) -> None:
    FleetAuthority().issue(site.keys, site.keys / "device", "any", "spiffe://fleet/gateway")
    async with site.serving(rounds=4) as cloud:
        with pytest.raises(aiohttp.ClientError):
            await site.page(cloud, "device", "/healthz")


async def test_a_mapped_agent_does_not_speak_for_others(site: Site, fleet: FleetAuthority) -> None:
    fleet.issue(site.keys, site.keys / "agents" / "1", "charger eight")
    async with site.serving(rounds=4) as cloud, taking_part(site.member(cloud, 1)) as (task,):
        with pytest.raises(RefusedError, match="not-yours"):
            await task


@pytest.mark.parametrize("how", ["revoked", "taken off", "moved", "no fleet"])
async def test_who_is_taken_off_stays_out(site: Site, how: str, fleet: FleetAuthority) -> None:
    fleet.issue(site.keys, site.keys / "agents" / "1-7", "gateway", "spiffe://fleet/gateway")
    async with site.serving(rounds=4) as cloud:
        async with site.peer(cloud, "agents/1-7") as gateway:
            assert (await gateway.hello(list(range(1, 8))))["type"] == "welcome"
            mapping = site.keys / "fleet.toml"
            if how == "revoked":
                identity.revoke_certificate(site.keys, site.keys / "agents" / "1-7" / "cert.pem")
            elif how == "taken off":
                mapping.write_text("[uri]\n")
            elif how == "moved":
                mapping.write_text(MAPPING.replace("1-7", "2-7"))
            else:
                mapping.unlink()
                (site.keys / "fleet-ca.pem").unlink()
            assert (await gateway.hear())["code"] == "revoked"
        if how != "moved":
            with pytest.raises(aiohttp.ClientError):
                async with site.peer(cloud, "agents/1-7"):
                    pass


async def test_names_are_reread_and_bad_files_left(site: Site, fleet: FleetAuthority) -> None:
    fleet.issue(site.keys, site.keys / "device", "charger nine")
    fleet.issue(site.keys, site.keys / "gateway", "gateway", "spiffe://fleet/gateway")
    async with site.serving(rounds=4) as cloud:
        assert (await site.page(cloud, "device", "/healthz"))[0] == 403
        (site.keys / "fleet.toml").write_text(MAPPING + '"charger nine" = "7"\n')
        await asyncio.sleep(1.5)
        assert (await site.page(cloud, "device", "/healthz"))[0] == 200
        (site.keys / "fleet.toml").write_text("[uri")
        await asyncio.sleep(1.5)
        assert (await site.page(cloud, "device", "/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[uri]\n'a' = 'cloud'\n", "got uri 'a' = 'cloud'"),
        ("[dns]\n'a' = '1'\n", "got dns 'a' = '1'"),
        ("[uri]\n'a' = '3-1'\n", "got uri 'a' = '3-1'"),
        ("[uri]\n'a' = true\n", "got uri 'a' = 'True'"),
        ("a = 1\n", "with tables uri and common-name"),
        ("[uri", "with tables uri and common-name"),
        (None, "with tables uri and common-name"),
    ],
)
def test_a_mapping_that_is_wrong_is_refused(text: str | None, named: str, ours: Path) -> None:
    if text is None:
        (ours / "fleet.toml").unlink()
    else:
        (ours / "fleet.toml").write_text(text)
    with pytest.raises(IdentityError, match=r"fleet\.toml must") as refused:
        Authorization(ours)
    assert named in str(refused.value)


def test_check_setup_says_that_the_cloud_must_name_it(ours: Path, fleet: FleetAuthority) -> None:
    fleet.issue(ours, ours / "eight", "charger eight")
    options = GatewayOptions(problem=ours, agents="8", keys=ours / "eight", cloud="wss://h:1")
    certificate = "certificate for the cloud"
    checks = dict(CHECKS["gateway"][1](options))
    assert carry_out((certificate, checks[certificate]))["status"] == "warning"


def test_names_without_the_authority_are_refused(ours: Path) -> None:
    (ours / "fleet-ca.pem").unlink()
    with pytest.raises(IdentityError, match="beside"):
        Authorization(ours)
    (ours / "fleet-ca.pem").write_text("no certificate")
    with pytest.raises(IdentityError):
        Authorization(ours)
