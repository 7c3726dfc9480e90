"""Budgets that are charged too little, and copies of a store that release a round again."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from fault import Fault, returning

from sottovoce.errors import RollbackError
from sottovoce.privacy.charge import Protected

ACCOUNTS = "privacy/test_ledger.py::"
CHARGE = "privacy/test_charge.py::"
FENCE = "privacy/test_fence.py::"
FENCED = "network/test_fenced_run.py::"


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
    Fault(name="ledger rounds what is spent down", seam="units of mu",
          breaks=lambda sound: lambda mu: sound(mu) - (sound(mu) != mu * 2**100),
          killed_by=ACCOUNTS + "test_the_last_bit_of_a_budget_can_be_spent_and_no_more"),
    Fault(name="ledger forgets a charge", seam="spend", breaks=returning(),
          killed_by=ACCOUNTS + "test_the_last_bit_of_a_budget_can_be_spent_and_no_more"),
    Fault(name="ledger does not wait for the disk", seam="ledger's connection",
          breaks=unsynchronised,
          killed_by=ACCOUNTS + "test_the_file_waits_for_the_disk_at_every_commit"),
    Fault(name="the last of two charges of one agent counts", seam="charges by agent",
          breaks=lambda _: lambda run, charges: {c.agent: c for c in charges},
          killed_by=ACCOUNTS + "test_spend_refuses_an_agent_that_is_charged_twice"),
    Fault(name="runs of all radii charged alike", seam="charge in units",
          breaks=lambda units: lambda mu, allowance, *_: units(mu, allowance, 1.0, 1.0),
          killed_by=ACCOUNTS + "test_runs_of_other_radii_are_charged_in_units_of_the_account"),
    Fault(name="rounding shrinks with the radius", seam="charge in units",
          breaks=lambda units: lambda mu, _, *radii: units(mu, 0.0, *radii),
          killed_by=CHARGE + "test_a_charge_is_never_below_the_promise_at_the_protected_distance"),
    Fault(name="an account for everything charged with runs for less", seam="amount of a charge",
          breaks=everything_for_less,
          killed_by=CHARGE + "test_only_runs_that_speak_of_all_protected_pairs_are_charged"),
    Fault(name="a round sent without a fence", seam="order of a release", breaks=without_fence,
          killed_by=FENCED + "test_a_round_is_in_the_store_then_in_the_ledger_then_sent"),
    Fault(name="a fence raised by two clouds", seam="fence that rises", breaks=two_rise,
          killed_by=FENCE + "test_of_two_clouds_on_two_copies_one_releases_a_round"),
    Fault(name="a fence that forgets what it let through", seam="fence at start",
          breaks=forgives("got another"),
          killed_by=FENCE + "test_a_copy_that_committed_but_never_sent_a_round_does_not_pass_for_"
          "the_one_that_did"),
    Fault(name="a store behind the fence goes on", seam="fence at start",
          breaks=forgives("every round that was released"),
          killed_by=FENCE + "test_a_store_behind_the_fence_is_refused"),
    Fault(name="the run's name in the log alone", seam="checkpoint of a new store",
          breaks=returning(),
          killed_by=FENCED + "test_a_store_that_lost_log_and_mark_is_noticed_by_the_fence"),
)  # fmt: skip
