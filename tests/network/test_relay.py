"""A relay between a cloud and those below changes nothing but who talks to whom."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from network_harness import Site, completed, contributed, plan_for, reached, taking_part

from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.network import Straggler, identity
from sottovoce.network.agent import Agent, AgentResult
from sottovoce.network.failures import IdentityError, RefusedError
from sottovoce.network.protocol.actions import (
    Close,
    Commit,
    Finish,
    Incident,
    Send,
    SendUp,
    Stop,
    Wait,
)
from sottovoce.network.protocol.client_machine import ClientPhase
from sottovoce.network.protocol.cloud_machine import CloudMachine
from sottovoce.network.protocol.codec import pack, pack_whole, unpack_whole
from sottovoce.network.protocol.messages import (
    RECEIPT,
    Code,
    Contribution,
    Done,
    Hello,
    Round,
    Welcome,
)
from sottovoce.network.protocol.receipt import ReceiptSigner
from sottovoce.network.protocol.relay_machine import RelayMachine
from sottovoce.network.relay import Relay
from sottovoce.network.setup import Parties, fallbacks_of, make_config, parties_below, setup_of
from sottovoce.paper.tikhonov import Tikhonov
from sottovoce.problem.groups import lower_bounds
from sottovoce.problem.problem import Problem
from sottovoce.simulation.simulate import simulate
from sottovoce.study.noise import audit_store

BELOW = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def relay_keys(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cloud's keys, with relays for agents 1 to 4, 1 to 2 and all, and gateways."""
    folder = tmp_path_factory.mktemp("relays") / "keys"
    shutil.copytree(keys, folder)
    for agents in (range(1, 5), range(1, 3), range(1, 8)):
        identity.issue_keys(folder, agents=agents, relay=["relay.example"])
    for agents in (range(3, 5), range(1, 4), range(4, 8)):
        identity.issue_keys(folder, agents=agents)
    return folder


@pytest.fixture
def site(paper: Problem, relay_keys: Path, tmp_path: Path) -> Site:
    return Site(paper, relay_keys, tmp_path)


@asynccontextmanager
async def relaying(
    problem: Problem, agents: range, above: int, keys: Path, **settings: Any
) -> AsyncIterator[tuple[int, asyncio.Task[int]]]:
    """A relay that listens: its port, and the task that ends with the run."""
    relay = Relay(
        problem.cloud,
        agents,
        above=f"wss://127.0.0.1:{above}",
        keys=keys / "agents" / f"{agents[0]}-{agents[-1]}",
        allow_simulated=True,
        longest_pause=0.2,
        **settings,
    )
    task = asyncio.create_task(relay.run(linger=10))
    try:
        await relay.opened.wait()
        yield relay.port, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def together(agents: list[Agent]) -> list[AgentResult]:
    return await asyncio.gather(*(agent.run() for agent in agents))


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_run_behind_relays_is_that_of_solve_bit_for_bit(site: Site, depth: int) -> None:
    """Cloud - relay of 1 to 4 - (relay of 1, 2 -) agents, and agents beside them."""

    plan = site.plan()
    same = {"allow_simulated": True}
    async with (
        site.serving(plan, rounds=20, seed=3) as cloud,
        relaying(site.problem, range(1, 5), cloud.port, site.keys) as (port, upper),
        relaying(site.problem, range(1, 3), port, site.keys) as (second, lower),
    ):
        ports = [second if depth == 2 else port] * 2 + [port] + [cloud.port] * 3
        parts = [[1], [2], [3, 4], [5], [6], [7]]
        if depth == 1:
            lower.cancel()
        agents = [site.member(at, *part, **same) for part, at in zip(parts, ports, strict=True)]
        result, ended = await completed(cloud, *agents)
        assert await upper == 20
        if depth == 2:
            assert await lower == 20
    here = simulate(site.problem, plan, rounds=20, seed=3)
    assert np.concatenate([e.x for e in ended]).tolist() == here.x[0].tolist()
    assert result.price.tolist() == here.price[0].tolist()
    for each in ended:
        assert each.price.tolist() == here.price[0].tolist()


async def test_a_relay_that_is_killed_and_started_again_continues_the_same_run(site: Site) -> None:
    plan = site.plan()
    same = {"allow_simulated": True}
    async with site.serving(plan, rounds=30, seed=3) as cloud:
        rest = [site.member(cloud, i, **same) for i in (5, 6, 7)]
        others = asyncio.create_task(together(rest))
        async with relaying(site.problem, range(1, 5), cloud.port, site.keys) as (port, _):
            below = [site.member(port, i, **same) for i in BELOW]
            tasks = asyncio.create_task(together(below))
            await reached(cloud, 9)
        async with relaying(
            site.problem, range(1, 5), cloud.port, site.keys, listen=("127.0.0.1", port)
        ):
            await cloud.finished(linger=10)
            ended = [*await tasks, *await others]
    here = simulate(site.problem, plan, rounds=30, seed=3)
    assert np.concatenate([e.x for e in ended]).tolist() == here.x[0].tolist()


def test_a_relays_certificate_is_for_agents_of_one_cloud(relay_keys: Path, tmp_path: Path) -> None:
    below = relay_keys / "agents" / "1-4"
    names = {path.name for path in below.iterdir()}
    assert names == {"ca.pem", "cert.pem", "key.pem", "revoked.txt", "server.key", "server.pem"}
    assert (below / "revoked.txt").read_text() == (relay_keys / "revoked.txt").read_text()
    with pytest.raises(IdentityError, match="agents"):
        identity.issue_keys(relay_keys, operator=True, relay=["h"])
    identity.create_keys(tmp_path / "split", agents=2, helper=["helper.example"])
    with pytest.raises(IdentityError, match="split"):
        identity.issue_keys(tmp_path / "split", agents=range(1, 3), relay=["h"])


async def test_a_relay_refuses_what_it_cannot_add_up(site: Site) -> None:
    plan = plan_for(site.problem, method="paper")
    settings: Any = {"rounds": 3, "seed": 1, "algorithm": Tikhonov()}
    async with site.serving(plan, **settings) as cloud:
        relay = Relay(
            site.problem.cloud,
            range(1, 5),
            above=f"wss://127.0.0.1:{cloud.port}",
            keys=site.keys / "agents" / "1-4",
            allow_simulated=True,
        )
        with pytest.raises(RefusedError, match="contributions only"):
            await relay.run()


class Tree:
    """A relay's machine, driven by hand between a cloud's machine and peers below."""

    def __init__(self, problem: Problem, rounds: int = 3, straggler: Straggler = "wait") -> None:
        self.plan = plan_for(problem)
        config = make_config(
            self.plan, DualAveraging(), rounds=rounds, noise="secure", run_id="run"
        )
        self.setup = setup_of(self.plan, config)
        notary = ReceiptSigner(bytes(32), config.hash)
        self.cloud = CloudMachine(self.setup, notary, lambda k: None)
        self.below: Parties
        self.relay = RelayMachine(BELOW, lambda welcome: None, self.describe, straggler=straggler)
        self.cloud.connect(0, range(1, 8))
        self.x = lower_bounds(self.plan.domain)

    def describe(self, welcome: Welcome) -> Any:
        self.below, fallbacks = parties_below(welcome, self.plan.cloud, BELOW)
        return msgspec.structs.replace(self.setup, rounds=3, party=self.below, fallbacks=fallbacks)

    def welcome(self, *agents: int) -> Welcome:
        """What the cloud itself would say to agents."""
        return self.setup.welcome(self.setup.party(agents), self.cloud.round, 0)

    def join(self) -> None:
        (hello,) = self.relay.connected()
        assert isinstance(hello, SendUp)
        sent = self.cloud.receive(0, hello.message)
        for action in sent:
            assert isinstance(action, Send)
            self.relay.hear(action.message)  # type: ignore[arg-type]

    def hello(self, peer: int, agents: list[int], k: int = 0, receipt: bytes = b"") -> list[Any]:
        self.relay.below.connect(peer, range(1, 8))
        return self.relay.below.receive(
            peer, Hello(agents=agents, config=b"", round=k, receipt=receipt)
        )

    def say(self, peer: int, k: int, data: bytes | None = None) -> list[Any]:
        party = self.below(self.relay.below.agents_of(peer))
        said = contributed(self.plan, party, self.x) if data is None else data
        done: list[Any] = []
        for action in self.relay.below.receive(peer, Contribution(round=k, values=said)):
            full = isinstance(action, Commit)
            done += self.relay.contribute(action) if full else [action]  # type: ignore[arg-type]
        return done

    def told(self, k: int, mark: int = 1) -> list[Any]:
        prices = pack(np.full(self.setup.prices, float(k)))
        return self.relay.hear(
            Round(round=k, price=prices, y=b"", receipt=bytes([k, mark]) * (RECEIPT // 2))
        )


def codes(actions: list[Any]) -> set[Code]:
    return {a.code for a in actions if isinstance(a, Incident | Close)}


def test_a_relay_welcomes_as_a_cloud_and_says_the_total(coupled: Problem, paper: Problem) -> None:
    tree = Tree(paper)
    tree.join()
    for peer, agents in ((1, [1, 3]), (2, [2]), (3, [4])):
        (welcome,) = (a.message for a in tree.hello(peer, agents) if isinstance(a, Send))
        expected = tree.welcome(*agents)
        assert welcome == expected
    assert tree.say(1, 1) == tree.say(2, 1) == []
    (up,) = tree.say(3, 1)
    everybody = tree.setup.party(BELOW)
    assert up == SendUp(
        message=Contribution(round=1, values=contributed(tree.plan, everybody, tree.x))
    )
    sent = [a for a in tree.told(1) if isinstance(a, Send)]
    assert [a.peers for a in sent] == [(1, 2, 3)]
    assert sent[0].message == Round(
        round=1,
        price=pack(np.full(tree.setup.prices, 1.0)),
        y=b"",
        receipt=bytes([1, 1]) * (RECEIPT // 2),
    )


def test_what_is_said_below_is_clipped_into_the_range_of_whoever_says_it(paper: Problem) -> None:
    tree = Tree(paper)
    tree.join()
    for peer, agents in ((1, [1]), (2, [2, 3, 4])):
        tree.hello(peer, agents)
    far = tree.below((1,)).most + 2**40
    found = tree.say(1, 1, pack_whole(far))
    assert codes(found) == {Code.CLIPPED}
    (up,) = tree.say(2, 1)
    most = np.zeros(tree.setup.prices, dtype=np.int64)
    far_one, rest = tree.below((1,)), tree.below((2, 3, 4))
    most[far_one.sums] += far_one.most
    most[rest.sums] += unpack_whole(contributed(tree.plan, rest, tree.x))
    assert unpack_whole(up.message.values).tolist() == most[tree.setup.party(BELOW).sums].tolist()


def test_nobody_below_speaks_for_agents_of_others(paper: Problem) -> None:
    tree = Tree(paper)
    tree.join()
    assert codes(tree.hello(1, [5])) == {Code.NOT_YOURS}


def test_who_is_ahead_of_a_relay_comes_later_and_wrong_receipts_harm_no_other(
    paper: Problem,
) -> None:
    tree = Tree(paper)
    tree.join()
    tree.hello(1, [1])
    tree.told(1)
    other = bytes([9]) * RECEIPT
    assert codes(tree.hello(2, [2], k=2, receipt=other)) == {Code.FUTURE_ROUND}
    assert codes(tree.hello(3, [2], k=1, receipt=other)) == {Code.FORGED_RECEIPT}
    assert tree.relay.below.agents_of(1) == (1,)
    assert not codes(tree.hello(4, [2], k=1, receipt=bytes([1, 1]) * (RECEIPT // 2)))


def test_a_round_that_went_on_without_those_below_reaches_them(paper: Problem) -> None:
    tree = Tree(paper)
    tree.join()
    tree.hello(1, list(BELOW))
    (sent,) = (a.message for a in tree.told(1) if isinstance(a, Send))
    assert isinstance(sent, Round)
    assert sent.round == 1
    assert tree.relay.below.round == 2
    (up,) = tree.say(1, 2)
    assert up.message.round == 2


def test_what_was_said_while_nobody_was_above_is_said_when_somebody_is(paper: Problem) -> None:
    tree = Tree(paper)
    tree.join()
    tree.relay.lost()
    tree.hello(1, list(BELOW))
    assert tree.say(1, 1) == []
    (hello,) = tree.relay.connected()
    assert isinstance(hello, SendUp)
    welcome = tree.welcome(*BELOW)
    (up,) = tree.relay.hear(welcome)
    assert up.message.round == 1  # type: ignore[attr-defined]


def test_a_cloud_that_forgets_or_contradicts_itself_is_left(paper: Problem) -> None:
    tree = Tree(paper)
    tree.join()
    tree.hello(1, list(BELOW))
    tree.told(1)
    assert tree.told(1) == []
    (stop,) = tree.told(1, mark=2)
    assert (type(stop), stop.code) == (Stop, Code.HALTED)
    again = Tree(paper)
    again.join()
    again.told(1)
    again.relay.lost()
    again.relay.connected()
    (stop,) = again.relay.hear(again.welcome(*BELOW))
    assert isinstance(stop, Stop)
    assert stop.code is Code.HALTED


def test_the_end_is_passed_on_with_its_answer(paper: Problem) -> None:
    tree = Tree(paper)
    tree.join()
    tree.hello(1, list(BELOW))
    for k in (1, 2):
        tree.told(k)
    assert tree.told(3) == []
    answer = pack(np.linspace(0.0, 1.0, tree.setup.prices))
    done = Done(rounds=3, price=answer, confirmed=True, wait=2.0)
    *sent, finish = tree.relay.hear(done)
    passed = [a.message for a in sent if isinstance(a, Send)][-1]
    assert isinstance(passed, Done)
    assert 1.0 < passed.wait <= done.wait
    assert msgspec.structs.replace(passed, wait=done.wait) == done
    assert isinstance(finish, Finish)
    assert finish.confirmed is True
    assert tree.relay.phase is ClientPhase.DONE


async def test_a_relay_does_without_late_agents_and_tells_the_cloud(site: Site) -> None:
    """Agent 2 below the relay never comes: the others below it count all the same."""
    plan, same = site.plan(), {"allow_simulated": True}
    settings: dict[str, Any] = {"rounds": 120, "keep_states": True}
    quick = {"first_deadline": 0.5, "deadline": 0.2}
    async with (
        site.serving(plan, **settings) as cloud,
        relaying(site.problem, range(1, 5), cloud.port, site.keys, **quick) as (port, _),
    ):
        below = [site.member(port, *p, **same) for p in ([1], [3, 4])]
        others = [site.member(cloud, i, **same) for i in (5, 6, 7)]
        async with taking_part(*below, *others):
            result = await cloud.finished(linger=5)
    assert result.held == 0  # the cloud has the relay's total in every round
    assert audit_store(plan, site.store).noise.passed


def test_a_relays_total_has_fallbacks_and_names_their_rounds(paper: Problem) -> None:
    tree = Tree(paper, straggler="fallback")
    tree.join()
    for peer, agents in ((1, [1]), (2, [4])):
        tree.hello(peer, agents)
    (wait,) = tree.say(1, 1)
    assert wait == Wait(k=1)
    assert tree.say(2, 1) == []
    (full,) = tree.relay.below.deadline(1)
    assert isinstance(full, Commit)
    (up,) = tree.relay.contribute(full)
    missing = fallbacks_of(tree.plan)(frozenset({2, 3}))
    expected = np.zeros_like(missing)
    for agent in (1, 4):
        party = tree.below((agent,))
        expected[party.sums] += unpack_whole(contributed(tree.plan, party, tree.x))
    everybody = tree.setup.party(BELOW)
    values = pack_whole((expected + missing)[everybody.sums])
    assert up == SendUp(message=Contribution(round=1, values=values, missed=[(2, 3, 1, 1)]))
    assert everybody.range.holds(values)
    late = tree.say(3, 1) if tree.hello(3, [2]) else []
    assert late == []  # kept, and of no use
    (sent, again) = tree.told(1)
    assert isinstance(sent, Send)
    assert again == Wait(k=2)
    assert tree.relay.below.last is not None
    assert tree.relay.below.last.held == {2, 3}
