"""Every fault that somebody thought of makes a test fail, which passes without it."""

from __future__ import annotations

import pytest
from accounting_faults import ACCOUNTING
from certificate_faults import CERTIFIED
from fault import Fault, failures
from ledger_faults import LEDGER
from network_faults import KEPT, SENT
from noise_faults import NOISE
from seams import SEAMS
from split_faults import SPLIT

FAULTS = NOISE + SPLIT + SENT + KEPT + ACCOUNTING + LEDGER + CERTIFIED


def test_faults_have_names_of_their_own_and_every_seam_is_used() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 100
    assert {fault.seam for fault in FAULTS} == set(SEAMS)


@pytest.mark.slow
def test_the_tests_that_kill_faults_pass_without_one() -> None:
    # Slow because the ordinary suite says so too: it runs every one of them.
    assert failures(*sorted({fault.killed_by for fault in FAULTS})) == []


@pytest.mark.parametrize(
    "fault", [pytest.param(f, id=f.name, marks=[pytest.mark.slow] * f.slow) for f in FAULTS]
)
def test_a_fault_is_killed(fault: Fault) -> None:
    assert failures(fault.killed_by, fault=fault), f"{fault.killed_by} must fail"
