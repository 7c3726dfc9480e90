"""A cloud, a relay, an agent or a store that sends, accepts or keeps what it must not."""

from __future__ import annotations

import asyncio
import contextlib
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

DEPENDS = "test_what_is_sent_depends_on_what_is_said_through_the_releases_alone"
OUTSIDE = "test_nothing_outside_the_certified_domain_enters_a_round[joint]"
IN_RANGE = "test_ranges_are_those_of_the_certified_domain"


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


def last_words(play: Any) -> Any:
    said: dict[Any, Any] = {}

    def broken(self: Any, k: int, parts: Any, previous: bytes, held: Any, *more: Any) -> Any:
        said.update({part.party.agents: part for part in parts})
        there = {part.party.agents for part in parts}
        again = [p for who, p in said.items() if who not in there and held.issuperset(who)]
        return play(self, k, (*parts, *again), previous, held, *more)

    return broken


def trusting(resumed: Any) -> Any:
    def broken(store: Any, rounds: Any, setup: Any, *, secure: bool) -> Any:
        store.last = replace(store.last, context=store.memory().state[: 8 * setup.prices])
        return resumed(store, rounds, setup, secure=secure)

    return broken


def runs_away(take: Any) -> Any:
    def broken(self: Any, k: int, y: Any) -> Any:
        with contextlib.suppress(DivergedError):
            take(self, k, y)

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
    Fault("prices from sums without noise", "played round", leaking(price_leak),
          DEPENDS + "[paper-joint]"),
    Fault("a gradient entry sent bare", "played round", leaking(entry_leak),
          DEPENDS + "[coupled-paper]"),
    Fault("raw contributions hashed into receipts", "played round", leaking(digest_leak),
          DEPENDS + "[paper-joint]"),
    Fault("a contribution without noise in the answer", "played round",
          leaking(lambda record, bare: {"answer": record.answer + bare}),
          DEPENDS + "[paper-joint]"),
    Fault("gradient entries of others sent too", "message of a round", all_entries,
          "test_an_agent_is_sent_its_own_gradient_entries_only"),
    Fault("cloud checks X instead of the domain", "ranges of parties", original_boxes, IN_RANGE),
    Fault("agents told half the grid", "ranges of parties", half_grid, IN_RANGE),
    Fault("sums without noise taken from messages", "range of a party", every_sum,
          "test_a_sum_that_nobody_can_move_is_a_public_constant_and_asked_of_nobody"),
    Fault("clip left out", "clip", as_said, OUTSIDE),
    Fault("contributions clipped at the lower end only", "clip", lower_end_only, OUTSIDE),
    Fault("a clipped contribution is answered", "accepted part", answered,
          "test_what_is_out_of_range_is_clipped_and_recorded"),
    Fault("an agent counted twice in a round", "forgotten part", returning(),
          "test_agents_that_come_back_in_other_company_are_counted_once"),
    Fault("a second contribution replaces the first", "collected part", latest,
          "test_a_second_different_contribution_is_refused_and_recorded"),
    Fault("a gateway's total held for some of its agents", "deadline", holds_some,
          "test_a_gateways_total_is_held_as_a_whole_or_waited_for"),
    Fault("an absent agent counts with its real last contribution", "played round", last_words,
          "test_an_absent_agents_share_follows_from_public_figures[hide0]"),
    Fault("an absent agent counts nothing", "fallbacks",
          changed(lambda total: 0 * total),
          "test_agents_of_a_fleet_count_each_with_their_own_public_box_and_weights"),
    Fault("absences left out of the margin", "test at the end",
          lambda test: lambda self, k, averaged, held, *more: test(
              self, k, averaged, frozenset(), *more),
          "test_words_that_counted_again_widen_the_margin_by_what_they_can_be_off"),
    Fault("a rolled back store goes on", "cloud machine", forgetful,
          "test_a_liar_cannot_halt_the_run_but_a_genuine_receipt_does"),
    Fault("a relay that waits for one of its agents", "cloud machine", first_awaited,
          "test_a_relay_welcomes_as_a_cloud_and_says_the_total"),
    Fault("a relay that believes every receipt", "receipts of a relay",
          lambda _: lambda self, k, receipt: self.last[:32],
          "test_who_is_ahead_of_a_relay_comes_later_and_wrong_receipts_harm_no_other"),
    Fault("prices in the store not held against the cloud's memory", "resumed run", trusting,
          "test_prices_that_the_cloud_does_not_remember_are_refused", hangs=True),
    Fault("a round sent whose prices ran away", "cloud's step", runs_away,
          "test_prices_that_run_away_end_the_round_with_its_number"),
    Fault("a failing agent repeats itself where a trajectory is hidden",
          "substitute of a failed step", returning(None),
          "test_an_agent_behind_a_gateway_fails_alone[trajectory-0.0]"),
    Fault("contributions not rounded to the grid", "contributions",
          lambda _: lambda self, x: np.floor(x / 0.5).astype(np.int64),
          "test_contributions_are_whole_steps_of_the_grid_half_to_even_and_within_their_range"),
    Fault("a contribution sent before it is saved", "agent's step", changed(sends_first),
          "test_a_round_makes_it_step_save_and_send_in_this_order"),
    Fault("a simulation that calls itself secure", "configuration", says_secure,
          "test_agents_refuse_simulated_noise_or_other_problems", hangs=True),
    Fault("more rounds than the plan covers", "check of a request", returning(),
          "test_requests_that_no_run_meets_are_refused"),
    Fault("an undernoised plan is served", "check of a request", returning(),
          "test_an_undernoised_plan_is_never_served"),
    Fault("stragglers held where a trajectory is hidden", "check of a request", returning(),
          "test_hold_is_refused_where_a_trajectory_is_hidden"),
    Fault("a run that held agents continued where a trajectory is hidden", "check of a store",
          returning(),
          "test_held_rounds_end_where_a_trajectory_is_hidden"),
    Fault("two agents of one name", "distinct labels", returning(),
          "test_labels_of_agents_are_unique_in_a_problem"),
)  # fmt: skip

KEPT = (
    Fault("round sent before it is committed", "commit", later,
          "test_a_round_is_on_disk_before_a_byte_of_it_is_sent"),
    Fault("a store that forgets a round", "commit", forgets,
          "test_releases_are_stored_as_integers_and_never_overwritten"),
    Fault("a released round replaced by another", "commit", replaces,
          "test_releases_are_stored_as_integers_and_never_overwritten"),
    Fault("commits not durable", "store's connection", pragma("synchronous = OFF"),
          "test_every_commit_waits_for_the_disk"),
    Fault("erased contributions left on disk", "store's connection", pragma("secure_delete = OFF"),
          "test_every_commit_waits_for_the_disk"),
    Fault("what was said in earlier rounds kept", "store's connection", keeps_states,
          "test_what_was_said_is_erased_with_the_next_round"),
    Fault("a lease that is not checked", "lease", returning(),
          "test_who_lost_the_lease_can_write_nothing"),
    Fault("a mark that is not written", "mark", returning(), "test_a_halt_that_was_lost_is_missed"),
    Fault("seals that hold anything", "seal", returning(b"sealed"),
          "test_a_flipped_bit_of_the_last_round_is_found[attendance]"),
)  # fmt: skip
