"""A cloud, a relay, an agent or a store that sends, accepts or keeps what it must not."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
from fault import Fault, changed, returning
from msgspec.structs import replace

from sottovoce.network.failures import DivergedError
from sottovoce.network.protocol.actions import Send
from sottovoce.network.protocol.actions import SendUp as AgentSends
from sottovoce.network.protocol.codec import pack
from sottovoce.network.protocol.messages import Code
from sottovoce.network.protocol.receipt import next_digest

CLOUD = "network/test_cloud.py::"
HOLD = "network/test_hold.py::"
MACHINE = "network/test_cloud_machine.py::"
RELAY = "network/test_relay.py::"
ROUNDS = "network/test_rounds.py::"
STORE = "network/test_store.py::"
DAMAGE = "network/test_store_damage.py::"
DEPENDS = (
    "network/test_release.py::test_what_is_sent_depends_on_what_is_said_through_the_releases_alone"
)
OUTSIDE = (
    "network/test_release.py::test_nothing_from_outside_the_certified_domain_enters_a_round[joint]"
)
IN_RANGE = ROUNDS + "test_ranges_are_those_of_the_certified_domain"


class Anything:
    """What equals everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def leaking(leak: Any) -> Any:
    """A round that depends on what was said besides what is released."""

    def breaks(play: Any) -> Any:
        def broken(self: Any, k: int, parts: Any, *others: Any) -> Any:
            record, released = play(self, k, parts, *others)
            bare = float(np.frombuffer(parts[0].data, "<i8")[0] % 1021)
            return replace(record, **leak(record, bare)), released

        return broken

    return breaks


def price_leak(record: Any, bare: float) -> Any:
    price = record.price + bare
    return {"price": price, "sent_price": price}


def digest_leak(record: Any, bare: float) -> Any:
    return {"digest": next_digest(record.digest, record.k, b"", pack(np.array([bare])))}


def entry_leak(record: Any, bare: float) -> Any:
    y = np.array(record.y)
    y[:1] = bare
    return {"y": y}


def all_entries(message: Any) -> Any:
    def broken(self: Any, party: Any, record: Any) -> Any:
        return replace(message(self, party, record), y=pack(record.y))

    return broken


def original_boxes(ranges: Any) -> Any:
    return lambda plan: ranges(dataclasses.replace(plan, domain=plan.cloud.groups))


def half_grid(ranges: Any) -> Any:
    def broken(plan: Any) -> Any:
        halved = ranges(plan)
        halved._grid = 0.5 * halved._grid
        return halved

    return broken


def every_sum(of: Any) -> Any:
    def broken(self: Any, places: Any) -> Any:
        self._grid = np.where(self._grid > 0, self._grid, 1.0)
        return of(self, places)

    return broken


def as_said(nearest: Any) -> Any:
    return lambda self, data: None if nearest(self, data) is None else data


def lower_end_only(nearest: Any) -> Any:
    def broken(self: Any, data: bytes) -> Any:
        if nearest(self, data) is None or self.holds(data):
            return nearest(self, data)
        return np.maximum(np.frombuffer(data, self._kind), self._lower).tobytes()

    return broken


def answered(accept: Any) -> Any:
    def broken(self: Any, session: Any, part: Any, sent: bytes) -> Any:
        actions = accept(self, session, part, sent)
        if part.data is not sent:
            actions += self._object(session, Code.CLIPPED)
        return actions

    return broken


def latest(put: Any) -> Any:
    def broken(self: Any, part: Any) -> Any:
        self._parts.pop(part.party.agents[0], None)
        return put(self, part)

    return broken


def first_awaited(init: Any) -> Any:
    def broken(self: Any, *given: Any, awaited: Any = None, **more: Any) -> None:
        some = None if awaited is None else frozenset({min(awaited)})
        init(self, *given, awaited=some, **more)

    return broken


def forgetful(init: Any) -> Any:
    return lambda self, setup, notary, history, **more: init(
        self, setup, notary, lambda k: Anything(), **more
    )


def holds_some(deadline: Any) -> Any:
    def broken(self: Any, k: int) -> Any:
        missing = self._collected.missing
        held = [p for p in self.last.parts if not missing.isdisjoint(p.party.agents)]
        return self._full((*self._collected.parts, *held), missing)

    return broken


def trusting(_: Any) -> Any:
    def broken(store: Any, rounds: Any, setup: Any, *, secure: bool) -> Any:
        previous, last = setup.config_hash, None
        for row in store.rounds():
            last = rounds.replay(row.k, row.release, secure=secure, previous=previous)
            previous = row.digest
        return None if last is None else replace(last, parts=store.parts(setup.party)), {}

    return broken


def runs_away(take: Any) -> Any:
    def broken(self: Any, k: int, y: Any) -> Any:
        try:
            return take(self, k, y)
        except DivergedError:
            return self.price

    return broken


def says_secure(config: Any) -> Any:
    return lambda *given, noise, **more: config(*given, noise="secure", **more)


def later(commit: Any) -> Any:
    return lambda *given: asyncio.get_running_loop().call_soon(commit, *given)


def replaces(commit: Any) -> Any:
    def broken(self: Any, record: Any, released: Any) -> None:
        self._database.execute("DELETE FROM rounds WHERE k = ?", (record.k,))
        commit(self, record, released)

    return broken


def forgets(commit: Any) -> Any:
    def broken(self: Any, record: Any, released: Any) -> None:
        commit(self, record, released)
        self._database.execute("DELETE FROM rounds WHERE k = ?", (record.k,))

    return broken


def pragma(setting: str) -> Any:
    def breaks(connect: Any) -> Any:
        def broken(*given: Any, **more: Any) -> Any:
            database = connect(*given, **more)
            database.execute(f"PRAGMA {setting}")
            return database

        return broken

    return breaks


def keeps_states(connect: Any) -> Any:
    def broken(self: Any) -> Any:
        self._keep = True
        return connect(self)

    return broken


def sends_first(actions: Any) -> Any:
    return sorted(actions, key=lambda action: not isinstance(action, (Send, AgentSends)))


SENT = (
    Fault(name="prices from sums without noise", seam="played round", breaks=leaking(price_leak),
          killed_by=DEPENDS + "[paper-joint]"),
    Fault(name="a gradient entry sent bare", seam="played round", breaks=leaking(entry_leak),
          killed_by=DEPENDS + "[coupled-paper]"),
    Fault(name="raw contributions hashed into receipts", seam="played round",
          breaks=leaking(digest_leak), killed_by=DEPENDS + "[paper-joint]"),
    Fault(name="a contribution without noise in the answer", seam="played round",
          breaks=leaking(lambda record, bare: {"answer": record.answer + bare}),
          killed_by=DEPENDS + "[paper-joint]"),
    Fault(name="gradient entries of others sent too", seam="message of a round",
          breaks=all_entries,
          killed_by=MACHINE + "test_an_agent_is_sent_its_own_gradient_entries_only"),
    Fault(name="cloud checks X instead of the domain", seam="ranges of parties",
          breaks=original_boxes, killed_by=IN_RANGE),
    Fault(name="agents told half the grid", seam="ranges of parties", breaks=half_grid,
          killed_by=IN_RANGE),
    Fault(name="sums without noise taken from messages", seam="range of a party",
          breaks=every_sum,
          killed_by=ROUNDS
          + "test_a_sum_that_nobody_can_move_is_a_public_constant_and_asked_of_nobody"),
    Fault(name="clip left out", seam="clip", breaks=as_said, killed_by=OUTSIDE),
    Fault(name="contributions clipped at the lower end only", seam="clip",
          breaks=lower_end_only, killed_by=OUTSIDE),
    Fault(name="a clipped contribution is answered", seam="accepted part", breaks=answered,
          killed_by=MACHINE
          + "test_what_is_outside_its_range_is_clipped_recorded_and_never_answered"),
    Fault(name="an agent counted twice in a round", seam="forgotten part", breaks=returning(),
          killed_by=MACHINE + "test_agents_that_come_back_in_other_company_are_counted_once"),
    Fault(name="a second contribution replaces the first", seam="collected part", breaks=latest,
          killed_by=MACHINE + "test_a_second_different_contribution_is_refused_and_recorded"),
    Fault(name="a gateway's total held for some of its agents", seam="deadline",
          breaks=holds_some,
          killed_by=MACHINE + "test_a_gateways_total_is_held_as_a_whole_or_waited_for"),
    Fault(name="a rolled back store goes on", seam="cloud machine", breaks=forgetful,
          killed_by=MACHINE + "test_a_liar_cannot_halt_the_run_but_a_genuine_receipt_does"),
    Fault(name="a relay that waits for one of its agents", seam="cloud machine",
          breaks=first_awaited,
          killed_by=RELAY
          + "test_a_relay_describes_those_below_as_the_cloud_would_and_says_their_total"),
    Fault(name="a relay that believes every receipt", seam="receipts of a relay",
          breaks=lambda _: lambda self, k, receipt: self.last[:32],
          killed_by=RELAY
          + "test_whoever_is_ahead_of_a_relay_comes_back_later_and_a_wrong_receipt_harms_"
          "nobody_else"),
    Fault(name="prices in the store not held against its releases", seam="resumed run",
          breaks=trusting, hangs=True,
          killed_by=CLOUD + "test_prices_that_do_not_follow_from_the_releases_are_refused"),
    Fault(name="a round sent whose prices ran away", seam="cloud's step", breaks=runs_away,
          killed_by=ROUNDS + "test_prices_that_run_away_end_the_round_with_its_number"),
    Fault(name="a failing agent repeats itself where a trajectory is hidden",
          seam="substitute of a failed step", breaks=returning(None),
          killed_by="network/test_substitute.py::"
          "test_an_agent_behind_a_gateway_fails_alone_and_repeats_itself_where_rounds_count_by_"
          "themselves[trajectory-0.0]"),
    Fault(name="contributions not rounded to the grid", seam="contributions",
          breaks=lambda _: lambda self, x: np.floor(x / 0.5).astype(np.int64),
          killed_by="network/test_local_round.py::"
          "test_contributions_are_whole_steps_of_the_grid_half_to_even_and_within_their_range"),
    Fault(name="a contribution sent before it is saved", seam="agent's step",
          breaks=changed(sends_first),
          killed_by="network/test_agent_machine.py::"
          "test_a_round_makes_it_step_save_and_send_in_this_order"),
    Fault(name="a simulation that calls itself secure", seam="configuration",
          breaks=says_secure, hangs=True,
          killed_by=CLOUD + "test_agents_refuse_simulated_noise_and_other_problems"),
    Fault(name="more rounds than the plan covers", seam="check of a request",
          breaks=returning(), killed_by=CLOUD + "test_requests_that_cannot_be_met_are_refused"),
    Fault(name="an undernoised plan is served", seam="check of a request", breaks=returning(),
          killed_by=CLOUD + "test_an_undernoised_plan_is_never_served"),
    Fault(name="stragglers held where a trajectory is hidden", seam="check of a request",
          breaks=returning(), killed_by=HOLD + "test_hold_is_refused_where_a_trajectory_is_hidden"),
    Fault(name="a run that held agents continued where a trajectory is hidden",
          seam="check of a store", breaks=returning(),
          killed_by=HOLD
          + "test_a_store_with_held_rounds_is_not_continued_where_a_trajectory_is_hidden"),
    Fault(name="two agents of one name", seam="distinct labels", breaks=returning(),
          killed_by="problem/test_problem.py::test_labels_of_agents_are_unique_in_a_problem"),
)  # fmt: skip

KEPT = (
    Fault(name="round sent before it is committed", seam="commit", breaks=later,
          killed_by="network/test_release.py::"
          "test_a_round_is_on_disk_before_a_byte_of_it_is_sent"),
    Fault(name="a store that forgets a round", seam="commit", breaks=forgets,
          killed_by=STORE + "test_releases_are_stored_as_integers_and_never_overwritten"),
    Fault(name="a released round replaced by another", seam="commit", breaks=replaces,
          killed_by=STORE + "test_releases_are_stored_as_integers_and_never_overwritten"),
    Fault(name="commits not durable", seam="store's connection",
          breaks=pragma("synchronous = OFF"),
          killed_by=STORE + "test_every_commit_waits_for_the_disk"),
    Fault(name="erased contributions left on disk", seam="store's connection",
          breaks=pragma("secure_delete = OFF"),
          killed_by=STORE + "test_every_commit_waits_for_the_disk"),
    Fault(name="what was said in earlier rounds kept", seam="store's connection",
          breaks=keeps_states,
          killed_by=STORE
          + "test_what_was_said_is_erased_with_the_next_round_or_the_end_unless_asked_for"),
    Fault(name="a mark that is not written", seam="mark", breaks=returning(),
          killed_by=DAMAGE + "test_a_halt_that_was_lost_is_missed"),
    Fault(name="seals that hold anything", seam="seal", breaks=returning(b"sealed"),
          killed_by=DAMAGE
          + "test_a_flipped_bit_in_any_field_of_the_last_round_is_found[attendance]"),
)  # fmt: skip
