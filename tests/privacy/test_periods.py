"""Budgets by period: windows recomputed in fractions, clocks that jump, races, forecasts."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databases import file_of, sqlite
from sottovoce.errors import BudgetError, InputError, PrivacyError
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.fence import TABLES
from sottovoce.privacy.gaussian import delta_of, epsilon_of, gdp_mu_of
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.standing import SECONDS
from sottovoce.privacy.statement import period_promise

WITHIN_1 = Protected("offset", 1.0)
LIFE, DAY = gdp_mu_of(20.0, 1e-5), gdp_mu_of(1.0, 1e-5)
NOON = 1_800_000_000
P = SECONDS["day"]


class Clock:
    """The machine's, which tests set."""

    def __init__(self, patch: pytest.MonkeyPatch, now: float = NOON) -> None:
        self.now = now
        patch.setattr("time.time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def cost(mu: float, *agents: str, protected: Protected = WITHIN_1) -> list[Charge]:
    return [
        Charge(agent=agent, protected=protected, mu=mu, allowance=mu) for agent in agents or ("a",)
    ]


def granted(path: Path | str, *agents: str) -> Ledger:
    ledger, names = Ledger(path), agents or ("a",)
    ledger.grant(names, 20.0, 1e-5, hide="offset", radius=1.0)
    ledger.grant_period(names, 1.0, 1e-5, per="day")
    return ledger


@pytest.fixture
def ledger(clock: Clock, tmp_path: Path) -> Ledger:
    return granted(tmp_path / "ledger")


STEPS = [0.0, 0.4, 1.0, 1000.0, P / 2, P - 1, P - 0.4, P, P + 0.4, P + 1, -0.6, -P, 7 * P]


@settings(max_examples=40, deadline=None)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from([0.25, 0.5, 0.75, 1.0])),
        min_size=1,
        max_size=14,
    )
)
def test_a_run_is_admitted_if_every_window_keeps_its_budget_and_only_then(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[float, float]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        ledger = Ledger(tmp_path_factory.mktemp("ledger") / "file")
        ledger.grant("a", 3.0, 1e-5, hide="offset", radius=1.0)
        ledger.grant_period("a", 1.0, 1e-5, per="day")
        ledger.grant_period("a", 2.0, 1e-5, per="week")
        budgets = {P: gdp_mu_of(1.0, 1e-5), 7 * P: gdp_mu_of(2.0, 1e-5)}
        lifetime = Fraction(gdp_mu_of(3.0, 1e-5)) ** 2
        admitted: list[tuple[int, float, Fraction]] = []
        last = 0
        for number, (step, share) in enumerate(runs):
            clock.now += step
            last = max(last, int(clock.now // 1))
            mu = share * DAY
            square = Fraction(mu) ** 2
            fits = sum((s for _, _, s in admitted), square) <= lifetime
            for span, budget in budgets.items():
                recent = sum((s for t, _, s in admitted if last - t <= span), square)
                fits = fits and recent <= Fraction(budget) ** 2
            refused = ledger.unaffordable(cost(mu))
            assert bool(refused) is not fits
            if not fits:
                with pytest.raises(BudgetError, match="would exceed"):
                    ledger.spend(f"run {number}", cost(mu))
                continue
            ledger.spend(f"run {number}", cost(mu))
            admitted.append((last, clock.now, square))
        # The promise itself, by the clock's own fractions of seconds where it never went back.
        times = [now for _, now, _ in admitted]
        if all(step >= 0 for step, _ in runs):
            for span, budget in budgets.items():
                for begin in times:
                    inside = (s for _, t, s in admitted if begin <= t <= begin + span)
                    assert sum(inside, Fraction(0)) <= Fraction(budget) ** 2


def test_a_clock_that_is_set_back_frees_nothing(ledger: Ledger, clock: Clock) -> None:
    ledger.spend("first", cost(DAY))
    for back in (1, P, 3 * P, NOON):
        clock.now = NOON - back
        with pytest.raises(BudgetError, match="per day"):
            ledger.spend("second", cost(DAY))
    ledger.grant_period("a", 2.0, 1e-5, per="day")
    ledger.spend("second", cost(DAY))
    ledger.grant_period("a", 1.0, 1e-5, per="day")
    first, second = ledger.history()
    assert first.at == second.at == "2027-01-15T08:00:00Z"
    clock.now = NOON + P
    assert ledger.unaffordable(cost(DAY))
    clock.now = NOON + P + 1
    assert not ledger.unaffordable(cost(DAY))


def test_runs_of_one_second_share_its_window(ledger: Ledger) -> None:
    half = DAY / 2
    for number in range(4):
        ledger.spend(f"run {number}", cost(half))
    with pytest.raises(BudgetError):
        ledger.spend("run 4", cost(1e-9))


def test_an_aborted_run_stays_charged_and_its_restart_is_free(ledger: Ledger, clock: Clock) -> None:
    fence = ledger.begin("run", cost(DAY), rounds=0, digest=lambda k: None)
    fence.close()  # killed before round 1
    clock.now += 60
    with pytest.raises(BudgetError):
        ledger.spend("other", cost(DAY))
    ledger.begin("run", cost(DAY), rounds=0, digest=lambda k: None).close()
    clock.now = NOON + 2 * P
    ledger.spend("other", cost(DAY))
    ledger.begin("run", cost(DAY), rounds=0, digest=lambda k: None).close()
    assert [spend.at for spend in ledger.history()] == [
        "2027-01-15T08:00:00Z", "2027-01-17T08:00:00Z"
    ]  # fmt: skip
    assert not [name for name in dir(ledger) if "refund" in name or "cancel" in name]


def test_a_lower_grant_holds_at_once_and_another_radius_counts_anew(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.spend("first", cost(DAY / 2))
    ledger.grant_period("a", 0.1, 1e-5, per="day")
    assert ledger.unaffordable(cost(1e-6))
    (period,) = ledger.account("a").periods
    assert period.remaining == 0.0
    assert period.spent == DAY / 2
    ledger.grant_period("a", 1.0, 1e-5, per="day")
    ledger.grant("a", 20.0, 1e-5, hide="offset", radius=2.0)
    (period,) = ledger.account("a").periods
    assert period.spent == DAY
    assert ledger.unaffordable(cost(1e-6))


def test_a_period_budget_needs_a_lifetime_budget_and_a_known_period(ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="must have a lifetime budget"):
        ledger.grant_period(["a", "stranger"], 0.5, 1e-5, per="day")
    with pytest.raises(InputError, match="per must be hour, day, week, 30-days, got per='month'"):
        ledger.grant_period("a", 0.5, 1e-5, per="month")
    (period,) = ledger.account("a").periods
    assert period.epsilon == 1.0


def test_a_forecast_counts_what_can_be_spent_and_says_when(clock: Clock, tmp_path: Path) -> None:
    ledger = granted(tmp_path / "ledger", "a", "b", "c")
    ledger.grant("poor", 1.0, 1e-5, hide="offset", radius=1.0)
    mu = 0.33 * DAY
    ledger.spend("before", cost(DAY * 0.9, "b"))
    clock.now += 10
    listed = {f.agent: f for f in ledger.forecast(cost(mu, "a", "b", "poor", "stranger"))}
    assert next(iter(listed)) == "stranger"
    assert listed["stranger"].refusal.startswith("agent 'stranger' has no budget")
    a, b = listed["a"], listed["b"]
    assert (a.runs, a.per, a.refusal, a.next_at) == (9, {"day": 9}, "", "2027-01-15T08:00:10Z")
    assert listed["poor"].in_all == listed["poor"].runs == 9
    assert b.runs == int((1 - 0.81) / 0.33**2) == 1
    for number in range(9):
        ledger.spend(f"run {number}", cost(mu, "a"))
        clock.now += 60
    (done,) = ledger.forecast(cost(mu, "a"))
    assert (done.runs, done.refusal != "", done.next_at) == (0, True, "2027-01-16T08:00:11Z")
    clock.now = NOON + P + 10
    assert ledger.unaffordable(cost(mu, "a"))
    clock.now += 1
    assert not ledger.unaffordable(cost(mu, "a"))
    (never,) = ledger.forecast(cost(2 * DAY, "a"))
    assert (never.runs, never.per, never.next_at) == (0, {"day": 0}, None)
    assert "no later run fits" in never.refusal
    (free,) = ledger.forecast(cost(0.0, "a"))
    assert (free.runs, free.in_all, free.refusal) == (None, None, "")


@settings(max_examples=25, deadline=None)
@given(
    spent=st.lists(st.sampled_from([0.2, 0.5, 0.7]), max_size=4),
    share=st.sampled_from([0.3, 0.35, 0.61, 1.0]),
)
def test_as_many_runs_as_forecast_are_admitted_and_not_one_more(
    tmp_path_factory: pytest.TempPathFactory, spent: list[float], share: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        ledger = granted(tmp_path_factory.mktemp("ledger") / "file")
        for number, part in enumerate(spent):
            clock.now += 3600
            if not ledger.unaffordable(cost(part * DAY)):
                ledger.spend(f"before {number}", cost(part * DAY))
        (told,) = ledger.forecast(cost(share * DAY))
        assert told.runs is not None
        for number in range(told.runs):
            ledger.spend(f"run {number}", cost(share * DAY))
        with pytest.raises(BudgetError):
            ledger.spend("one more", cost(share * DAY))
        (told,) = ledger.forecast(cost(share * DAY))
        assert told.next_at is not None
        clock.now = _seconds(told.next_at) - 1
        assert ledger.unaffordable(cost(share * DAY))
        clock.now += 1
        ledger.spend("next", cost(share * DAY))


def _seconds(text: str) -> int:
    from datetime import datetime

    return int(datetime.fromisoformat(text).timestamp())


RACER = """
import sys
from sottovoce.errors import BudgetError
from sottovoce.privacy.charge import Charge, Protected
from sottovoce.privacy.ledger import Ledger
ledger, name, mu = Ledger(sys.argv[1]), sys.argv[2], float(sys.argv[3])
print("ready", flush=True)
for agent in map(str.strip, sys.stdin):
    within = Protected("offset", 1.0)
    try:
        charge = Charge(agent=agent, protected=within, mu=mu, allowance=mu)
        ledger.spend(f"{name} {agent}", [charge])
        print("won", flush=True)
    except BudgetError:
        print("lost", flush=True)
"""


def test_of_two_processes_that_race_for_a_window_exactly_one_wins(tmp_path: Path) -> None:
    agents = [f"agent {i}" for i in range(10)]
    ledger = granted(tmp_path / "ledger", *agents)
    command, pipe = [sys.executable, "-c", RACER, str(file_of(ledger))], subprocess.PIPE
    racers = [
        subprocess.Popen([*command, name, str(0.8 * DAY)], stdin=pipe, stdout=pipe, text=True)
        for name in ("x", "y")
    ]
    named = "".join(f"{agent}\n" for agent in agents)
    outputs = [racer.communicate(named, timeout=60)[0] for racer in racers]
    for one, other in zip(*(text.split()[1:] for text in outputs), strict=True):
        assert sorted((one, other)) == ["lost", "won"]


def test_a_ledger_without_periods_is_brought_up_to_date(ledger: Ledger) -> None:
    ledger.spend("run", cost(DAY))
    path, before = file_of(ledger), ledger.history()
    sqlite(path, "DROP TABLE periods")
    sqlite(path, "PRAGMA user_version = 2")
    again = Ledger(path)
    assert again.history() == before
    assert again.account("a").periods == ()
    assert again.account("a").spent == DAY
    again.grant_period("a", 1.0, 1e-5, per="day")
    assert again.unaffordable(cost(1e-6))  # what was spent before counts
    made = sqlite(path, "SELECT sql FROM sqlite_master WHERE name = 'periods'")
    assert made == [(TABLES[-1],)]
    assert sqlite(path, "PRAGMA user_version") == [(3,)]


def test_the_words_for_many_periods_never_promise_more_than_holds(ledger: Ledger) -> None:
    (period,) = ledger.account("a").periods
    words = period_promise(period, LIFE)
    assert words.startswith("all runs that begin within any 24 hours: (1, 1e-05), mu <= ")
    for count in (7, 30):
        said = float(words.partition(f"{count} periods (")[2].partition(",")[0])
        mu = Fraction(DAY) ** 2 * count
        exact = float(epsilon_of(float(mu) ** 0.5, 1e-5))
        assert exact <= said < exact * 1.001
        assert delta_of(float(mu) ** 0.5, said) <= 1e-5
    assert float(words.partition("365 periods (")[2].partition(",")[0]) >= 20.0 - 1e-3
    assert "never more than the lifetime's" in words


def test_a_damaged_period_is_not_a_wider_one(ledger: Ledger) -> None:
    sqlite(file_of(ledger), "UPDATE periods SET per = 'fortnight'")
    with pytest.raises(PrivacyError, match="must be per hour, day"):
        ledger.spend("run", cost(DAY))
