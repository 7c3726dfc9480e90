"""The rolling example: a day of runs over real processes, the service killed in the middle."""

from __future__ import annotations

import math
import runpy
import stat
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_harness import free_port

from sottovoce.network.store import CloudStore
from sottovoce.privacy.gaussian import gdp_mu_of
from sottovoce.privacy.ledger import Ledger

ROLLING = Path(__file__).parents[2] / "examples" / "rolling"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the example's player."""
    monkeypatch.syspath_prepend(str(ROLLING))
    monkeypatch.delitem(sys.modules, "day", raising=False)
    return runpy.run_path(str(ROLLING / "play.py"))


def spent_by(folder: Path, runs: int) -> None:
    """The ledger has so many runs, each of the plan's charge, and the day's budget covers 18."""
    account = Ledger(folder / "ledger.db").accounts()[0]
    (day,) = account.periods
    each = float(gdp_mu_of(0.69, 1e-6))
    assert len({spend.run_id for spend in Ledger(folder / "ledger.db").history()}) == runs
    assert 0.95 * math.sqrt(runs) * each < day.spent <= math.sqrt(runs) * each * (1 + 1e-9)
    assert 18 * each**2 <= day.budget**2


def test_a_service_killed_in_a_run_goes_on(play: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "day"
    drawn = play["played"](folder, port=free_port(), runs=2, kill=1)
    alike = play["without_privacy"](runs=2)
    assert drawn[:, :2].sum() > 100.0
    assert np.abs(drawn.sum(axis=0) - alike.sum(axis=0)).max() < 15.0  # no limit binds so early
    spent_by(folder, 2)
    store = CloudStore(folder / "series.db")
    note = store.series()
    store.close()
    assert note is not None
    assert [(run.number, run.status, run.agents) for run in note.runs] == [
        (1, "done", 1000),
        (2, "done", 1000),
    ]
    private = [folder / "1-250.state", *folder.glob("drawn-*.npy")]
    assert len(private) == 5
    assert {stat.S_IMODE(file.stat().st_mode) for file in private} == {0o600}
    values = [v for v in (*play["Cars"].drawn().need, *drawn[:, :2].ravel()) if v != round(v, 3)]
    assert len(values) > 1000
    for file in folder.iterdir():
        if (
            file.is_file()
            and file not in private
            and not file.name.endswith(("state", "state-wal"))
        ):
            read = file.read_bytes()
            words = [struct.pack("<d", v) for v in values] + [f"{v:.5f}".encode() for v in values]
            assert not [word for word in words if word in read], file.name


@pytest.mark.slow
def test_a_day_costs_at_most_0_6_percent_more(play: dict[str, Any], tmp_path: Path) -> None:
    drawn, need = play["played"](tmp_path / "day", port=free_port()), play["Cars"].drawn().need
    powers = (drawn, play["without_privacy"](), play["clairvoyant"]())
    plans = [play["Plan"]("", each) for each in powers]
    assert play["cost"](plans[0].drawn) <= 1.006 * play["cost"](plans[1].drawn)
    assert plans[0].over == plans[1].over == 0.0
    assert np.abs(drawn.sum(axis=1) - need).max() < 1e-3
    assert play["cost"](plans[2].drawn) < play["cost"](plans[1].drawn)
    spent_by(tmp_path / "day", 18)
    play["draw_day"](plans, tmp_path / "rolling.png", 9)
    assert (tmp_path / "rolling.png").stat().st_size > 10_000


def test_a_late_gateway_states_what_its_cars_can_still_have(play: dict[str, Any]) -> None:
    lot = play["Lot"](play["Cars"].drawn(), np.arange(250))
    stated = {s.name: v for s, v in lot.problem(play["public"](9)).groups[0].parameters.items()}
    need = stated.pop("need")
    most = np.sum(list(stated.values()), axis=0)
    assert need[:250].sum() > 0
    assert np.all(need <= most + 1e-9)
    assert not need[250:].any()
    assert not most[250:].any()
