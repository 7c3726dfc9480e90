"""The ledger: exact sums, refusals before the release, and real processes that race and die."""

from __future__ import annotations

import math
import stat
import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databases import file_of, sqlite
from sottovoce.errors import BudgetError, InputError, PrivacyError, UnavailableError
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.fence import ledger_transaction
from sottovoce.privacy.gaussian import gdp_mu_of
from sottovoce.privacy.ledger import Ledger

BUDGET = gdp_mu_of(1.0, 1e-6)


WITHIN_1 = Protected("trajectory", 1.0)
AS_PLANNED: dict[str, Any] = {"hide": "trajectory", "radius": 1.0}


def costs(mus: Mapping[str, float], protected: Protected = WITHIN_1) -> list[Charge]:
    """Charges of which nothing is known but mu."""
    return [
        Charge(agent=agent, protected=protected, mu=mu, allowance=mu) for agent, mu in mus.items()
    ]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger")
    made.grant(["pump", "valve"], 1.0, 1e-6, **AS_PLANNED)
    return made


def exact_sum(ledger: Ledger, agent: str) -> Fraction:
    """Return the sum of the squares in the history, without rounding."""
    mus = (s.charge.mu for s in ledger.history() if s.charge.agent == agent)
    return sum((Fraction(mu) ** 2 for mu in mus), Fraction(0))


def assert_never_undercounts(ledger: Ledger) -> None:
    for account in ledger.accounts():
        assert Fraction(account.spent) ** 2 >= exact_sum(ledger, account.agent)
        assert exact_sum(ledger, account.agent) <= Fraction(account.budget) ** 2


def test_the_last_bit_of_a_budget_can_be_spent_and_no_more(ledger: Ledger) -> None:
    ledger.spend("most", costs({"pump": BUDGET / 3}))
    ledger.spend("rest", costs({"pump": ledger.remaining("pump")}))
    with pytest.raises(BudgetError):
        ledger.spend("more", costs({"pump": BUDGET * 1e-7}))
    ledger.spend("whole", costs({"valve": BUDGET}))
    assert ledger.remaining("valve") == 0.0
    with pytest.raises(BudgetError):
        ledger.spend("least", costs({"valve": math.ulp(0.0)}))
    ledger.spend("nothing", costs({"valve": 0.0}))


@settings(max_examples=25, deadline=None)
@given(mus=st.lists(st.just(0.0) | st.floats(1e-12, 0.2), min_size=1, max_size=8))
def test_sums_are_never_below_the_exact_ones_and_remaining_is_spendable(
    tmp_path_factory: pytest.TempPathFactory, mus: list[float]
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "file")
    ledger.grant("pump", 1.0, 1e-6, **AS_PLANNED)
    for number, mu in enumerate(mus):
        allowed = exact_sum(ledger, "pump") + Fraction(mu) ** 2 <= Fraction(BUDGET) ** 2
        if allowed:
            ledger.spend(f"run {number}", costs({"pump": mu}))
        else:
            with pytest.raises(BudgetError):
                ledger.spend(f"run {number}", costs({"pump": mu}))
        assert_never_undercounts(ledger)
        assert Fraction(ledger.spent("pump")) ** 2 <= exact_sum(ledger, "pump") * (1 + 2**-50)
    ledger.spend("rest", costs({"pump": ledger.remaining("pump")}))
    assert_never_undercounts(ledger)


def test_a_refusal_names_what_is_spent_and_asked_and_records_nothing(ledger: Ledger) -> None:
    ledger.spend("first", costs({"pump": 0.2}))
    before = ledger.history(), ledger.accounts()
    with pytest.raises(BudgetError, match=r"agent 'pump' would exceed.*nothing") as refusal:
        ledger.spend("second", costs({"valve": 0.1, "pump": 0.15}))
    assert "trajectory within 1.0" in str(refusal.value)
    for number in (0.2, 0.15, BUDGET, ledger.remaining("pump")):
        assert repr(number) in str(refusal.value)
    assert (ledger.history(), ledger.accounts()) == before


@pytest.mark.parametrize("amounts", [{"pump": 0.1}, {"pump": 0.1, "valve": 0.05}, {"pump": 0.2}])
def test_no_run_is_recorded_again_with_other_amounts(
    ledger: Ledger, amounts: dict[str, float]
) -> None:
    ledger.spend("run", costs({"pump": 0.1, "valve": 0.1}))
    with pytest.raises(BudgetError, match="run 'run' is already recorded with other"):
        ledger.spend("run", costs(amounts))
    assert len(ledger.history()) == 2


def test_spend_refuses_an_agent_that_is_charged_twice(ledger: Ledger) -> None:
    twice = [*costs({"valve": 0.1, "pump": 0.2}), *costs({"pump": 0.1})]
    with pytest.raises(InputError, match="charge every agent once, got 'pump' twice"):
        ledger.spend("run", twice)
    assert ledger.history() == ()


def test_runs_of_other_radii_are_charged_in_units_of_the_account(ledger: Ledger) -> None:
    """A promise for a thousandth of the distance is a thousand times weaker."""
    ledger.grant(["near", "far"], 2.0, 1e-6, hide="trajectory", radius=1.0)
    near = costs({"near": 0.0001}, Protected("trajectory", 0.001))
    ledger.spend("run", [*near, *costs({"far": 0.1})])
    assert ledger.spent("near") == pytest.approx(0.1, rel=1e-15)
    assert ledger.spent("far") == 0.1
    assert ledger.account("near").protected == WITHIN_1
    with pytest.raises(BudgetError, match=r"asked 10\..*mu=0.01 for trajectory within 0.001"):
        ledger.spend("more", costs({"near": 0.01}, Protected("trajectory", 0.001)))


def test_a_run_of_an_adjacency_that_bounds_nothing_is_refused(ledger: Ledger) -> None:
    ledger.grant("pump", 2.0, 1e-6, hide="everything")
    for kind in ("trajectory", "offset"):
        with pytest.raises(BudgetError, match=f"account for everything, and a run for {kind} with"):
            ledger.spend(kind, costs({"pump": 0.1}, Protected(kind, 100.0)))
    assert ledger.history() == ()
    ledger.spend("run", costs({"pump": 0.1}, Protected("everything")))
    assert ledger.spent("pump") == 0.1
    assert ledger.account("pump").spent_per_radius is None


def test_another_grant_charges_the_history_anew_for_what_is_then_protected(ledger: Ledger) -> None:
    ledger.grant(["pump", "valve"], 1.0, 1e-6, hide="offset", radius=1.0)
    ledger.spend("a", costs({"pump": 0.03, "valve": 0.1}, Protected("offset", 1.0)))
    ledger.spend("b", costs({"pump": 0.04}, Protected("offset", 1.0)))
    ledger.grant("pump", 1.0, 1e-6, hide="trajectory", radius=3.0)
    assert ledger.spent("pump") == pytest.approx(0.15, rel=1e-15)
    assert ledger.account("pump").spent_per_radius == pytest.approx(0.05, rel=1e-15)
    assert ledger.spent("valve") == 0.1
    before = ledger.accounts()
    with pytest.raises(BudgetError, match="must cover what is already spent"):
        ledger.grant("pump", 1.0, 1e-6, hide="offset", radius=100.0)
    with pytest.raises(BudgetError, match=r"a run for offset within 1\.0 bounds nothing"):
        ledger.grant("pump", 9.0, 1e-6, hide="everything")
    assert ledger.accounts() == before


def test_a_fleet_is_charged_in_one_transaction(ledger: Ledger) -> None:
    fleet = [f"charger {i}" for i in range(5_000)]
    ledger.grant(fleet, 1.0, 1e-6, **AS_PLANNED)
    ledger.spend("run", costs(dict.fromkeys(fleet, 0.1)))
    assert [a.agent for a in ledger.accounts() if a.spent == 0.1] == sorted(fleet)
    asked = dict.fromkeys(fleet, 0.1) | {"charger 4999": 0.3}
    with pytest.raises(BudgetError, match="agent 'charger 4999' would exceed"):
        ledger.spend("next", costs(asked))
    assert len(ledger.history()) == 5_000


def test_only_the_owner_can_read_the_files(ledger: Ledger) -> None:
    with ledger_transaction(ledger.address):  # keeps the files of the write-ahead log alive
        ledger.spend("run", costs({"pump": 0.1}))
        files = list(file_of(ledger).parent.iterdir())
        assert len(files) == 3
        assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}


def test_the_file_waits_for_the_disk_at_every_commit(ledger: Ledger) -> None:
    with ledger_transaction(ledger.address) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_what_is_not_a_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    empty, text, other = tmp_path / "empty", tmp_path / "text", tmp_path / "other"
    empty.touch()
    text.write_text("monday: 0.3\n" * 1000)
    sqlite(other, "CREATE TABLE t (x)")
    for path in (empty, text, other):
        before = path.read_bytes()
        with pytest.raises(PrivacyError, match=r"not a ledger|not a database"):
            Ledger(path)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        (1, "does not say for which adjacency.*grant that much in a new file"),
        (4, "use the release"),
    ],
)
def test_another_schema_version_is_refused_and_left_alone(
    version: int, remedy: str, ledger: Ledger
) -> None:
    sqlite(file_of(ledger), f"PRAGMA user_version = {version}")
    before = file_of(ledger).read_bytes()
    with pytest.raises(PrivacyError, match=f"must have schema version 3, got {version}.*{remedy}"):
        Ledger(file_of(ledger))
    assert file_of(ledger).read_bytes() == before


def test_a_damaged_ledger_is_refused_and_left_alone(ledger: Ledger) -> None:
    agents = [f"agent {i}" for i in range(500)]
    ledger.grant(agents, 1.0, 1e-6, **AS_PLANNED)
    damaged = bytearray(file_of(ledger).read_bytes())
    for start in range(4096, len(damaged), 4096):
        damaged[start : start + 200] = bytes(200)
    file_of(ledger).write_bytes(damaged)
    with pytest.raises(PrivacyError, match=r"is damaged|cannot be used"):
        Ledger(file_of(ledger))
    assert file_of(ledger).read_bytes() == bytes(damaged)


def test_a_ledger_that_vanished_does_not_come_back_empty(ledger: Ledger) -> None:
    file_of(ledger).unlink()
    with pytest.raises(UnavailableError, match="unable to open"):
        ledger.spend("run", costs({"pump": 0.1}))
    assert not file_of(ledger).exists()


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    # newer Pythons warn about forking a process that has threads
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", COSTS + script]
    return subprocess.Popen(
        [*command, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


COSTS = """
from sottovoce.privacy.charge import Charge, Protected

def costs(mus):
    within = Protected("trajectory", 1.0)
    return [Charge(agent=a, protected=within, mu=mu, allowance=mu) for a, mu in mus.items()]
"""

RACER = """
import sys
from sottovoce.errors import BudgetError
from sottovoce.privacy.ledger import Ledger
ledger, name, mu = Ledger(sys.argv[1]), sys.argv[2], float(sys.argv[3])
print("ready", flush=True)
for agent in map(str.strip, sys.stdin):
    try:
        ledger.spend(f"{name} {agent}", costs({agent: mu, "everyone": mu / 100}))
        print("won", flush=True)
    except BudgetError:
        print("lost", flush=True)
"""


def test_of_two_processes_racing_for_the_last_budget_exactly_one_wins(ledger: Ledger) -> None:
    prizes = [f"agent {i}" for i in range(25)]
    ledger.grant([*prizes, "everyone"], 1.0, 1e-6, **AS_PLANNED)
    racers = [python(RACER, file_of(ledger), name, 0.8 * BUDGET) for name in ("a", "b")]
    assert [said(racer) for racer in racers] == ["ready", "ready"]
    for prize in prizes:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(f"{prize}\n")
            racer.stdin.flush()
        assert sorted(said(racer) for racer in racers) == ["lost", "won"]
    for racer in racers:
        racer.communicate(timeout=60)
        assert racer.returncode == 0
    assert len(ledger.history()) == 2 * len(prizes)
    assert_never_undercounts(ledger)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# SQLite calls the trace just before it runs a statement; child n dies before its n-th statement,
# until one child reaches the end.
KILLED_BEFORE_EACH_STATEMENT = """
import itertools, os, signal, sqlite3, sys
from sottovoce.privacy import ledger as module
path = sys.argv[1]
connect = sqlite3.connect

def mortal(life):
    def connecting(*arguments, **options):
        database = connect(*arguments, **options)
        count = itertools.count(1)
        def trace(statement):
            if next(count) == life:
                os.kill(os.getpid(), signal.SIGKILL)
        database.set_trace_callback(trace)
        return database
    return connecting

for life in itertools.count(1):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        ledger = module.Ledger(path)
        sqlite3.connect = mortal(life)
        ledger.spend(f"life {life}", costs({"pump": 0.001, "valve": 0.002}))
        os.write(writer, f"life {life}\\n".encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reader) as reports:
        sys.stdout.write(reports.read())
    if not os.WIFSIGNALED(status):
        print(life - 1, "deaths")
        break
"""


def assert_whole(ledger: Ledger, reported: list[str]) -> None:
    """Check that every reported spend is recorded, for both agents or for none, and summed up."""
    runs = {
        agent: [s.run_id for s in ledger.history() if s.charge.agent == agent]
        for agent in ("pump", "valve")
    }
    assert runs["pump"] == runs["valve"]
    assert set(reported) <= set(runs["pump"])
    assert_never_undercounts(ledger)


def test_no_kill_between_two_statements_loses_or_halves_a_spend(ledger: Ledger) -> None:
    output, _ = python(KILLED_BEFORE_EACH_STATEMENT, file_of(ledger)).communicate(timeout=60)
    *reported, deaths = output.splitlines()
    assert int(deaths.split()[0]) >= 10
    assert reported
    assert_whole(Ledger(file_of(ledger)), reported)
