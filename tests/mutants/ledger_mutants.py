"""Budgets that are charged too little, and copies of a store that release a round again."""

from __future__ import annotations

from mutant import Mutant

ACCOUNTS = "tests/privacy/test_ledger.py::"
FENCE = "tests/privacy/test_fence.py::"

LEDGER = (
    Mutant(
        name="ledger rounds what is spent down",
        file="privacy/exact_mu.py",
        old="return math.ceil(mu * (1 << BITS))",
        new="return math.floor(mu * (1 << BITS))",
        killed_by=ACCOUNTS + "test_the_last_bit_of_a_budget_can_be_spent_and_no_more",
    ),
    Mutant(
        name="ledger does not wait for the disk",
        file="privacy/ledger_file.py",
        old='database.execute("PRAGMA synchronous = FULL")',
        new='database.execute("PRAGMA synchronous = OFF")',
        killed_by=ACCOUNTS + "test_the_file_waits_for_the_disk_at_every_commit",
    ),
    Mutant(
        name="the last of two charges of one agent counts",
        file="privacy/ledger.py",
        old="if len(asked) < len(listed):",
        new="if False:",
        killed_by=ACCOUNTS + "test_spend_refuses_an_agent_that_is_charged_twice",
    ),
    Mutant(
        name="runs of all radii charged alike",
        file="privacy/charge.py",
        old="ratio = Fraction(radius) / Fraction(planned)",
        new="ratio = Fraction(1)",
        killed_by=ACCOUNTS + "test_runs_of_other_radii_are_charged_in_units_of_the_account",
    ),
    Mutant(
        name="rounding shrinks with the radius",
        file="privacy/charge.py",
        old="max(Fraction(0), 1 - ratio) * Fraction(allowance)",
        new="0 * Fraction(allowance)",
        killed_by="tests/privacy/test_charge.py::"
        "test_a_charge_is_never_below_the_promise_at_the_protected_distance",
    ),
    Mutant(
        name="an account for everything charged with runs for less",
        file="privacy/charge.py",
        old='"everything": ("everything",),',
        new='"everything": ("trajectory", "per-round", "everything"),',
        killed_by="tests/privacy/test_charge.py::"
        "test_only_runs_that_speak_of_all_protected_pairs_are_charged",
    ),
    Mutant(
        name="a round sent without a fence",
        file="network/release.py",
        old="self._fence.rise(record.k, record.digest)",
        new="pass",
        killed_by="tests/network/test_fenced_run.py::"
        "test_a_round_is_in_the_store_then_in_the_ledger_then_sent",
    ),
    Mutant(
        name="a fence raised by two clouds",
        file="privacy/fence.py",
        old="if risen != 1:",
        new="if risen > 1:",
        killed_by=FENCE + "test_of_two_clouds_on_two_copies_one_releases_a_round",
    ),
    Mutant(
        name="a fence that forgets what it let through",
        file="privacy/fence.py",
        old="if fence > 0 and digest(fence) != known:",
        new="if False:",
        killed_by=FENCE + "test_a_copy_that_committed_but_never_sent_a_round_"
        "does_not_pass_for_the_one_that_did",
    ),
    Mutant(
        name="a store behind the fence goes on",
        file="privacy/fence.py",
        old="if rounds < fence:",
        new="if rounds < 0:",
        killed_by=FENCE + "test_a_store_behind_the_fence_is_refused",
    ),
)
