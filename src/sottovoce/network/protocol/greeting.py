"""Hello and welcome, as a cloud or a relay hears the one and says the other."""

from __future__ import annotations

from collections.abc import Container

from sottovoce.network.protocol.actions import Party, Setup
from sottovoce.network.protocol.codec import pack, pack_whole
from sottovoce.network.protocol.messages import KEY, VERSION, Code, Hello, Welcome
from sottovoce.network.protocol.receipt import Receipts


def objection(
    hello: Hello, setup: Setup, allowed: Container[int], *, halted: bool, notary: Receipts
) -> Code | None:
    """Return why whoever says hello cannot take part, if so.

    Args:
        hello: what was said.
        setup: the run.
        allowed: the agents that the peer's certificate speaks for.
        halted: whether the run has ended for good.
        notary: tells genuine receipts.
    """
    increasing = all(a < b for a, b in zip(hello.agents, hello.agents[1:], strict=False))
    if hello.version != VERSION:
        return Code.VERSION
    if not increasing or bool(hello.round) != bool(hello.receipt):
        return Code.MALFORMED
    known = len(hello.mask) == KEY or not setup.split
    listed = all(a <= setup.agents and a in allowed for a in hello.agents)
    if not (known and listed):
        return Code.NOT_YOURS
    if halted:
        return Code.HALTED
    if hello.config not in (b"", setup.config_hash):
        return Code.OTHER_RUN
    if hello.round and notary.digest(hello.round, hello.receipt) is None:
        return Code.FORGED_RECEIPT
    return None


def welcome_of(setup: Setup, party: Party, k: int, spoke: int, pledge: bytes) -> Welcome:
    """Describe a run to a party, while round k is being collected.

    Args:
        setup: the run.
        party: the agents on the connection.
        k: the round.
        spoke: the last round in which one of these agents spoke.
        pledge: the helper's signature, of a split cloud.
    """
    return Welcome(
        version=VERSION,
        config=setup.config,
        round=k,
        rounds=setup.rounds,
        spoke=spoke,
        states=setup.states,
        prices=setup.prices,
        lower=pack(party.lower),
        upper=pack(party.upper),
        sums=party.sums.tolist(),
        grid=pack(party.grid),
        least=pack_whole(party.least),
        most=pack_whole(party.most),
        rows=party.rows.tolist(),
        columns=party.entry_columns.tolist(),
        pledge=pledge,
    )
