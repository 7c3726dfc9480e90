"""Budgets that are charged too little, and copies of a store that release a round again."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

from fault import Fault, returning

from sottovoce.errors import RollbackError
from sottovoce.privacy.charge import Protected


def forgives(*words: str) -> Any:
    """A fence that lets one kind of store through."""

    def breaks(sound: Any) -> Any:
        def broken(*given: Any) -> None:
            try:
                sound(*given)
            except RollbackError as error:
                if not any(word in str(error) for word in words):
                    raise

        return broken

    return breaks


def everything_for_less(amount: Any) -> Any:
    def broken(charge: Any, account: Protected) -> int:
        if account.hide == "everything":
            charge = replace(charge, protected=account)
        units: int = amount(charge, account)
        return units

    return broken


def unsynchronised(connect: Any) -> Any:
    def broken(*given: Any) -> Any:
        database = connect(*given)
        database.execute("PRAGMA synchronous = OFF")
        return database

    return broken


def without_fence(durable: Any) -> Any:
    return lambda commit, fence, k, digest: durable(commit, None, k, digest)


def two_rise(rise: Any) -> Any:
    def broken(*given: Any) -> None:
        with contextlib.suppress(RollbackError):
            rise(*given)

    return broken


LEDGER = (
    Fault("ledger rounds what is spent down", "units of mu",
          lambda sound: lambda mu: sound(mu) - (sound(mu) != mu * 2**100),
          "test_the_last_bit_of_a_budget_can_be_spent_and_no_more"),
    Fault("ledger forgets a charge", "spend", returning(),
          "test_the_last_bit_of_a_budget_can_be_spent_and_no_more"),
    Fault("a clock set back frees a period", "ledger's time",
          lambda _: lambda database: int(time.time()),
          "test_a_clock_that_is_set_back_frees_nothing"),
    Fault("a period forgets its runs", "window of a period",
          lambda sound: lambda database, protected, per, now: dict.fromkeys(protected, 0),
          "test_runs_of_one_second_share_its_window"),
    Fault("ledger does not wait for the disk", "ledger's connection", unsynchronised,
          "test_the_file_waits_for_the_disk_at_every_commit"),
    Fault("the last of two charges of one agent counts", "charges by agent",
          lambda _: lambda run, charges: {c.agent: c for c in charges},
          "test_spend_refuses_an_agent_that_is_charged_twice"),
    Fault("runs of all radii charged alike", "charge in units",
          lambda units: lambda mu, allowance, *_: units(mu, allowance, 1.0, 1.0),
          "test_runs_of_other_radii_are_charged_in_units_of_the_account"),
    Fault("rounding shrinks with the radius", "charge in units",
          lambda units: lambda mu, _, *radii: units(mu, 0.0, *radii),
          "test_a_charge_is_never_below_the_promise_at_the_protected_distance"),
    Fault("an account for everything charged with runs for less", "amount of a charge",
          everything_for_less, "test_only_runs_that_speak_of_all_protected_pairs_are_charged"),
    Fault("a round sent without a fence", "order of a release", without_fence,
          "test_a_round_is_in_the_store_then_in_the_ledger_then_sent"),
    Fault("a fence raised by two clouds", "fence that rises", two_rise,
          "test_of_two_clouds_on_two_copies_one_releases_a_round"),
    Fault("a fence that forgets what it let through", "fence at start", forgives("got another"),
          "test_a_copy_that_committed_but_never_sent_does_not_pass"),
    Fault("a store behind the fence goes on", "fence at start",
          forgives("every round that was released"), "test_a_store_behind_the_fence_is_refused"),
    Fault("the run's name in the log alone", "checkpoint of a new store", returning(),
          "test_a_store_that_lost_log_and_mark_is_noticed_by_the_fence"),
)  # fmt: skip
