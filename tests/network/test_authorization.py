"""Revocation, expiry and health go on whatever happens to the files and tasks behind them."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from network_harness import Site, member, page, peer, serving

from sottovoce.errors import NetworkError
from sottovoce.network import identity
from sottovoce.network import service as service_module
from sottovoce.network.cloud import Cloud
from sottovoce.network.failures import DiskError, IdentityError, RefusedError, StoreError
from sottovoce.network.identity import revoke_certificate
from sottovoce.network.identity.authority import revoke_serial
from sottovoce.network.identity.certificates import Authorization, Identity, revoked
from sottovoce.network.identity.tls import (
    CLOUD,
    HELPER,
    OPERATOR,
    client_context,
    parse_range,
    server_context,
)
from sottovoce.network.observe import operator_pages as pages_module
from sottovoce.network.process import Supervisor
from sottovoce.network.protocol.messages import Code

TICK = 0.02


class Trouble:
    """Makes every look at a file fail as if its folder could not be read, while ``number`` says."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self.looks = 0
        real: Any = Path.stat

        def stat(this: Path, **options: Any) -> os.stat_result:
            if this == path:
                self.looks += 1
                if self.number:
                    raise OSError(self.number, os.strerror(self.number))
            found: os.stat_result = real(this, **options)
            return found

        monkeypatch.setattr(Path, "stat", stat)

    async def seen(self) -> None:
        """Wait until somebody has looked, thrice."""
        enough = self.looks + 3
        for _ in range(500):
            if self.looks >= enough:
                return
            await asyncio.sleep(TICK)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOENT])
async def test_an_unreadable_keys_folder_switches_off_neither_revocation_nor_health(
    site: Site, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = site.folder / "k"
    shutil.copytree(site.keys, mine)
    trouble = Trouble(mine / "revoked.txt", monkeypatch)
    monkeypatch.setattr(service_module, "TICK_SECONDS", TICK)

    async with serving(site.plan(), mine, site.store, rounds=3) as cloud:
        trouble.number = number
        await trouble.seen()
        async with peer(cloud, mine, "agents/2") as one:  # the last good list lets it in
            assert (await one.hello([2]))["type"] == "welcome"
        monkeypatch.setattr(pages_module, "STALE_SECONDS", 0.0)
        status, text = await page(cloud, mine, "agents/2", "/healthz")
        assert status == 503
        assert "stale-revocations" in text
        monkeypatch.setattr(pages_module, "STALE_SECONDS", 10.0)
        revoke_certificate(mine, mine / "agents" / "1" / "cert.pem")
        trouble.number = 0
        await trouble.seen()
        with pytest.raises(RefusedError) as caught:
            await member(site.problem, [1], cloud, mine, site.folder).run()
        assert caught.value.code is Code.REVOKED
        assert (await page(cloud, mine, "agents/2", "/healthz"))[0] == 200
        metrics = (await page(cloud, mine, "operator", "/metrics"))[1]
        assert "sottovoce_revocations_unreadable_total 0.0\n" not in metrics


def test_a_list_caught_while_it_is_rewritten_lets_nobody_in(keys: Path, tmp_path: Path) -> None:
    mine = tmp_path / "k"
    shutil.copytree(keys, mine)
    serial = revoke_certificate(mine, mine / "agents" / "1" / "cert.pem")
    who = Identity(agents=(range(1, 2),), serial=serial)
    authorization = Authorization(mine)
    assert authorization.objection(who) is Code.REVOKED
    (mine / "revoked.txt").write_text("")
    authorization.reload()
    assert authorization.objection(who) is Code.REVOKED


@pytest.mark.parametrize("error", [ValueError("0.1234"), asyncio.CancelledError(), None])
async def test_if_a_background_task_ends_the_process_ends(
    site: Site, error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "TICK_SECONDS", TICK)

    async def ended(cloud: Cloud) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(Cloud, "_tick", ended)
    cloud = Cloud(site.plan(), rounds=3, keys=site.keys, store=site.store)
    with pytest.raises(NetworkError, match="background task 'tick' must not end") as caught:
        await asyncio.wait_for(cloud.run(), 10)
    assert "0.1234" not in str(caught.value)


async def test_a_background_task_that_fails_with_a_named_error_keeps_it() -> None:
    failures: list[Exception] = []
    supervisor = Supervisor(failures.append)

    async def full() -> None:
        raise StoreError("the disk is full")

    async def forever() -> None:
        await asyncio.sleep(60)

    supervisor.start("full", full())
    supervisor.start("forever", forever())
    await asyncio.sleep(0.01)
    assert [str(failure) for failure in failures] == ["the disk is full"]
    await supervisor.stop()
    assert len(failures) == 1  # to be told to stop is no failure


def test_a_key_that_others_can_read_is_refused(keys: Path, tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_bytes((keys / "agents" / "1" / name).read_bytes())
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(IdentityError, match="owner"):
        client_context(tmp_path)
    with pytest.raises(IdentityError, match="must exist"):
        server_context(tmp_path)


def test_a_folder_is_never_overwritten(keys: Path) -> None:
    with pytest.raises(IdentityError, match="already"):
        identity.create_keys(keys, agents=1)


def named(uris: list[str]) -> Identity:
    """What a certificate with these URIs says."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "anybody")])
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 0xABC, now, now + dt.timedelta(days=1)
    )
    builder = builder.add_extension(names, critical=False) if uris else builder
    return Identity.of(builder.sign(key, hashes.SHA256()))


@pytest.mark.parametrize(
    ("uris", "agents", "roles", "mask"),
    [
        (["sottovoce:agent:3"], [3], set(), b""),
        (["sottovoce:agent:1-4"], [1, 2, 3, 4], set(), b""),
        (["sottovoce:operator"], [], {OPERATOR}, b""),
        (["sottovoce:agent:2", "sottovoce:operator"], [2], {OPERATOR}, b""),
        (["sottovoce:agent:2", "sottovoce:mask:" + 32 * "ab"], [2], set(), 32 * b"\xab"),
        (["sottovoce:agent:2", *2 * ["sottovoce:mask:" + 32 * "ab"]], [2], set(), b""),
    ],
)
def test_certificates_say_whom_they_speak_for(
    uris: list[str], agents: list[int], roles: set[str], mask: bytes
) -> None:
    identity = named(uris)
    assert [a for a in range(10) if a in identity] == agents
    assert identity.roles & {OPERATOR, CLOUD, HELPER} == roles
    assert (identity.mask, identity.serial, identity.takes_part) == (mask, "abc", True)


@pytest.mark.parametrize(
    "uri", ["sottovoce:agent:0", "sottovoce:agent:", "sottovoce:agent:1 ", "x:agent:1", "", HELPER]
)
def test_other_certificates_have_no_role(uri: str) -> None:
    assert not named([uri] if uri else []).takes_part


@pytest.mark.parametrize("text", ["0", "3-1", "1-", "a", "1-2-3", "-1"])
def test_ranges_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(IdentityError):
        parse_range(text)


def test_a_revoked_serial_is_on_the_list_and_a_missing_list_is_an_error(tmp_path: Path) -> None:
    identity.create_keys(tmp_path / "k", agents=1, gateways=[range(2, 4)], hosts=["cloud.example"])
    assert (tmp_path / "k" / "agents" / "2-3" / "cert.pem").exists()
    serial = revoke_certificate(tmp_path / "k", tmp_path / "k" / "agents" / "1" / "cert.pem")
    assert revoked(tmp_path / "k") == {serial}
    (tmp_path / "k" / "revoked.txt").unlink()
    with pytest.raises(DiskError):
        revoked(tmp_path / "k")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_keys_folders_are_0700_and_keys_0600_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    (tmp_path / "k").mkdir(mode=0o755)
    before = os.umask(umask)
    try:
        identity.create_keys(tmp_path / "k", agents=1)
    finally:
        os.umask(before)
    for path in (tmp_path / "k", *(tmp_path / "k").rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        secret = path.name in ("ca.key", "server.key", "round.key", "key.pem", "issued.txt")
        assert mode == (0o700 if path.is_dir() else 0o600 if secret else 0o644), path


def test_a_leaked_certificate_can_be_revoked_after_a_new_one_was_issued(tmp_path: Path) -> None:
    keys = tmp_path / "k"
    identity.create_keys(keys, agents=2)
    identity.issue_keys(keys, agents=range(2, 3))
    lines = (keys / "issued.txt").read_text().splitlines()
    first, _ = (line.split()[0] for line in lines if "agent:2" in line)
    (keys / "revoked.txt").write_text("abc")  # an editor left no end of line
    assert revoke_serial(keys, "0" + first.upper()) == first
    assert revoked(keys) == {"abc", first}
    with pytest.raises(IdentityError, match=r"issued\.txt"):
        revoke_serial(keys, "123")
    assert revoked(keys) == {"abc", first}


def test_issue_renews_the_operator_and_needs_a_role(tmp_path: Path) -> None:
    keys = tmp_path / "k"
    identity.create_keys(keys, agents=1)
    before = (keys / "operator" / "cert.pem").read_bytes()
    identity.issue_keys(keys, operator=True)
    assert (keys / "operator" / "cert.pem").read_bytes() != before
    with pytest.raises(IdentityError, match="needs a role"):
        identity.issue_keys(keys)
