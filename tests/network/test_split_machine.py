"""The cloud's machine in a split run: agents wait for the helper, and masks go with words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from network_harness import Site, halves, member, run, split_plan
from test_cloud_machine import HASH, KEY, Table, hello, setup

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network import Straggler
from sottovoce.network.helper_rounds import HelperRounds
from sottovoce.network.protocol.actions import Close, Commit, Meet, Part, Send
from sottovoce.network.protocol.cloud_machine import CloudMachine
from sottovoce.network.protocol.codec import MASK_HEAD, mask_of, pack_whole
from sottovoce.network.protocol.messages import Code, Contribution, Error, Masked, Welcome
from sottovoce.network.protocol.receipt import ReceiptSigner
from sottovoce.network.setup import make_config
from sottovoce.network.store import summarise
from sottovoce.privacy.adjacency import Adjacency, Everything, Offset, Trajectory
from sottovoce.privacy.sampler import SecureSampler
from sottovoce.problem.problem import Problem
from sottovoce.study.loopback import Keys

SESSION = bytes(range(16))


def table(*, straggler: Straggler = "wait") -> Table:
    made = Table()
    made.setup = replace(setup(), split=True)
    made.machine = CloudMachine(
        made.setup, ReceiptSigner(KEY, HASH), made._digest, straggler=straggler
    )
    return made


def key(agent: int) -> bytes:
    return bytes([agent]) * 32


def seat(made: Table, peer: int) -> None:
    """Agent number ``peer`` comes, and the helper signs."""
    made.machine.connect(peer, {peer})
    (met,) = made.do(made.machine.receive(peer, hello(peer, mask=key(peer))))
    assert met == Meet(peer=peer, agents=(peer,), mask=key(peer))
    (sent,) = made.do(made.machine.pledged(peer, b"signed"))
    assert isinstance(sent, Send)
    assert isinstance(sent.message, Welcome)
    assert sent.message.pledge == b"signed"


def masked(k: int, *values: int) -> Masked:
    return Masked(round=k, session=SESSION, values=pack_whole(np.array(values, dtype=np.int64)))


def codes(actions: Sequence[object]) -> list[str]:
    return [a.message.code for a in actions if isinstance(a, Send) and isinstance(a.message, Error)]


def test_agents_are_let_in_when_the_helper_has_signed() -> None:
    made = table()
    made.machine.connect(1, {1})
    made.do(made.machine.receive(1, hello(1, mask=key(1))))
    assert made.machine.agents_of(1) == ()
    assert made.machine.refuse(1, Code.SILENT) == []  # it is the helper that is silent
    dropped = made.do(made.machine.receive(1, masked(1, 5)))
    assert codes(dropped) == ["unexpected"]
    assert made.machine.pledged(1, b"signed") == []  # gone meanwhile
    seat(made, 1)
    assert made.machine.agents_of(1) == (1,)


def test_agents_without_a_key_or_with_one_that_the_helper_does_not_know_are_refused() -> None:
    made = table()
    made.machine.connect(1, {1})
    assert codes(made.do(made.machine.receive(1, hello(1)))) == ["not-yours"]
    made.machine.connect(2, {2})
    made.do(made.machine.receive(2, hello(2, mask=key(2))))
    refused = made.do(made.machine.pledged(2, None))
    assert codes(refused) == ["not-yours"]
    assert any(isinstance(action, Close) for action in refused)


def test_masked_words_keep_what_names_their_mask_and_bare_ones_are_refused() -> None:
    made = table()
    for peer in (1, 2, 3):
        seat(made, peer)
    made.do(made.machine.receive(1, masked(1, 2**62)))  # nothing is clipped: nobody can
    made.do(made.machine.receive(2, masked(1, 2, 3)))
    found = made.do(made.machine.receive(3, masked(1, -4)))
    (full,) = [action for action in found if isinstance(action, Commit)]
    assert [mask_of(part.data).key for part in full.parts] == [key(1), key(2), key(3)]
    assert {mask_of(part.data).round for part in full.parts} == {1}
    assert full.parts[0].data[MASK_HEAD:] == pack_whole(np.array([2**62]))
    bare = Contribution(round=2, values=pack_whole(np.array([1])))
    assert codes(made.do(made.machine.receive(1, bare))) == ["unexpected"]
    assert codes(made.do(made.machine.receive(2, masked(2, 1)))) == ["malformed"]


def test_what_was_asked_before_a_restart_is_asked_again() -> None:
    made = table()
    for peer in (1, 2, 3):
        seat(made, peer)
    made.do(made.machine.receive(1, masked(1, 1)))
    made.do(made.machine.receive(2, masked(1, 2, 3)))
    found = made.do(made.machine.receive(3, masked(1, 4)))
    (full,) = [action for action in found if isinstance(action, Commit)]
    again = table()
    parts = [Part(party=again.setup.party(p.party.agents), data=p.data) for p in full.parts]
    (asked,) = again.machine.remembered(parts)
    assert isinstance(asked, Commit)
    assert [p.data for p in asked.parts] == [p.data for p in full.parts]
    assert asked.held == frozenset()


def test_a_held_agent_counts_with_the_mask_of_the_round_it_spoke_in() -> None:
    made = table(straggler="hold")
    for peer in (1, 2, 3):
        seat(made, peer)
    for k in (1, 2):
        made.do(made.machine.receive(1, masked(k, k)))
        made.do(made.machine.receive(2, masked(k, k, k)))
        if k == 1:
            made.do(made.machine.receive(3, masked(1, 9)))
    found = made.do(made.machine.deadline(2))
    (full,) = [action for action in found if isinstance(action, Commit)]
    assert full.held == frozenset({3})
    assert {mask_of(p.data).key: mask_of(p.data).round for p in full.parts} == {
        key(1): 2,
        key(2): 2,
        key(3): 1,
    }


@pytest.mark.parametrize(
    ("hide", "covered"),
    [
        (Trajectory(radius=1.0), False),
        (Offset(radius=1.0, rounds=9), True),
        (Everything(rounds=9), True),
    ],
)
def test_the_helper_goes_by_its_own_plan(hide: Adjacency, covered: bool, paper: Problem) -> None:
    plan = split_plan(paper, hide=hide)
    config = make_config(plan, DualAveraging(), rounds=9, noise="secure", run_id="r")
    keys = Keys(((1,),))
    sampler = SecureSampler(plan.sigma)
    assert HelperRounds(plan, config, keys.helper, sampler).hold is covered


# --- A cloud in two halves over real sockets: it runs, and neither half sees a contribution ---


async def played(
    problem: Problem, keys: Path, folder: Path, parties: list[list[int]], **settings: Any
) -> Any:
    async with halves(split_plan(problem), keys, folder, **settings) as (cloud, helper):
        agents = [member(problem, party, cloud, keys, folder) for party in parties]
        tasks = [asyncio.create_task(agent.run()) for agent in agents]
        done = asyncio.create_task(cloud.finished(linger=10))
        await asyncio.wait([*tasks, done], return_when=asyncio.FIRST_EXCEPTION)
        result = await done
        await asyncio.gather(*tasks)
        assert helper.round == result.rounds
    return result


@pytest.mark.parametrize("parties", [[[i] for i in range(1, 8)], [[1, 2, 3], [4, 5, 6, 7]]])
def test_a_split_cloud_runs_to_its_end(split_site: Site, parties: list[list[int]]) -> None:
    result = run(played(split_site.problem, split_site.keys, split_site.folder, parties, rounds=20))
    assert result.rounds == 20
    assert np.isfinite(result.price).all()
    assert not result.refused
    assert summarise(split_site.store).status == "done"
