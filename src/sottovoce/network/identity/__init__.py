"""Who is who: a private certificate authority for one cloud and its agents.

    KEYS/ca.pem, ca.key           the authority; keep the key offline
    KEYS/server.pem, server.key   the cloud
    KEYS/round.key                signs receipts; outside the store, and never restored with it
    KEYS/revoked.txt              serial numbers of certificates that no longer count
    KEYS/issued.txt               serial number, role and end of every certificate ever issued
    KEYS/fleet-ca.pem, fleet.toml   if devices have certificates of a fleet's own authority: it, and
                                  the agents or role of each certificate by its URI or common name
    KEYS/agents/3/                what device 3 gets: ca.pem, cert.pem, key.pem
    KEYS/operator/                likewise, for the live page, /metrics and /status

For a split cloud the authority alone has all of it, and every folder goes to another party:

    KEYS/ca.pem, ca.key, issued.txt   the authority, which must be neither cloud nor helper
    KEYS/cloud/                   what the cloud gets: the above, and cert.pem, key.pem to ask the
                                  helper with
    KEYS/helper/                  what the helper gets: server.pem, server.key, mask.key, round.key,
                                  revoked.txt, and agents/3.pem, the agents' certificates
    KEYS/agents/3/                besides: mask.key and helper.pem, the helper's certificate. An
                                  agent that has one takes part in runs with this helper only

A certificate says whom it speaks for in a URI: ``sottovoce:agent:3``, for a gateway
``sottovoce:agent:1-250``, ``sottovoce:operator``, of a split cloud ``sottovoce:cloud`` and
``sottovoce:helper``; and in ``sottovoce:mask:`` and 64 hexadecimal digits the X25519 key of an
agent or of the helper, from which masks follow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.network.identity.authority import create_keys as create_keys
    from sottovoce.network.identity.authority import issue_keys as issue_keys
    from sottovoce.network.identity.authority import revoke_certificate as revoke_certificate


def __getattr__(name: str) -> Any:
    if name not in ("create_keys", "issue_keys", "revoke_certificate"):
        raise AttributeError(f"module 'sottovoce.network.identity' has no attribute {name!r}")
    return getattr(import_module("sottovoce.network.identity.authority"), name)
