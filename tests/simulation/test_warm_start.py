"""A run that begins with what an earlier one learnt: the same bits everywhere, and fewer rounds."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
import sottovoce.simulation.simulate as simulate_module
from plans import planned
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.price_memory import MOST_ROUNDS, REMEMBERED, PriceMemory
from sottovoce.algorithm.public_sum import PublicSum
from sottovoce.errors import InputError
from sottovoce.kernels.cloud_kernel import CloudKernel, price_memory
from sottovoce.privacy.averaging import answer_shares
from sottovoce.problem.gallery import chargers, paper
from sottovoce.simulation.result import Result
from sottovoce.simulation.simulate import simulate

PAPER = paper()
SUMS = planned(radius=0.5)
EARLIER = simulate(PAPER, SUMS, rounds=50, seed=9)


def drifted(shift: float) -> sv.Problem:
    """The paper's constraints, with other objectives."""
    a, b, c, d, e, f, g = x = sv.agents([f"x{i + 1}" for i in range(7)], lower=-10, upper=10)
    return sv.Problem(
        agents=x,
        objectives=[
            (a - 9 - shift) ** 2 + a, (b + 4) ** 4, (c - 1) ** 8, d**2 + d + 6, (e + 3) ** 6,
            (f - 7 + shift) ** 2, (g - 5 - shift) ** 2,
        ],
        constraints=[
            a + b + c <= 3, e**2 + f**4 / 12 + g**4 / 12 <= 20, c**2 + d + f <= 1, f**2 + g**2 <= 5
        ],
    )  # fmt: skip


def assert_same(one: Result, other: Result) -> None:
    assert one.memory is not None
    assert other.memory is not None
    assert one.memory.fingerprint == other.memory.fingerprint
    for name in ("x", "price", "last_x", "last_price"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_run_of_drifted_data_needs_a_third_of_the_rounds() -> None:
    near = drifted(0.05)
    errors = {
        warm: simulate(near, rounds=24, warm_start=earlier, record=[8, 24]).trace.error_x[0]
        for warm, earlier in ((False, None), (True, simulate(PAPER, rounds=100)))
    }
    assert errors[True][0] < errors[False][1]


@pytest.mark.parametrize("shift", [3.0, -3.0])
def test_a_run_of_quite_other_data_is_not_misled(shift: float) -> None:
    other, before = drifted(shift), simulate(drifted(-shift), rounds=100)
    warm, cold = (
        simulate(other, rounds=60, warm_start=earlier, record=[60]).trace.error_x[0, 0]
        for earlier in (before, None)
    )
    assert warm < max(1e-6, 2.0 * cold)


def test_the_first_prices_are_the_earlier_answers_and_agents_hear_them_after_round_1() -> None:
    warm = simulate(PAPER, SUMS, rounds=1, warm_start=EARLIER)
    np.testing.assert_array_equal(warm.last_price[0], EARLIER.price[0])
    other_start = simulate(PAPER, SUMS, rounds=1, warm_start=EARLIER, x0=np.full(7, 1.0), seed=4)
    np.testing.assert_array_equal(other_start.last_price, warm.last_price)


def test_a_file_threads_and_other_places_give_the_same_bits(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"rounds": 30, "runs": 3, "seed": 5}
    whole = simulate(PAPER, SUMS, warm_start=EARLIER, **asked)
    EARLIER.save(tmp_path / "earlier.npz")
    loaded = Result.load(tmp_path / "earlier.npz")
    assert_same(whole, simulate(PAPER, SUMS, warm_start=loaded, **asked))
    assert_same(whole, simulate(PAPER, SUMS, warm_start=loaded.warm_start(), threads=1, **asked))
    with ThreadPoolExecutor(2) as pool:
        assert_same(whole, simulate(PAPER, SUMS, warm_start=loaded, executor=pool, **asked))
    cold = simulate(PAPER, SUMS, **asked)
    assert np.all(cold.price[:, 0] != whole.price[:, 0])


def test_a_team_of_threads_begins_with_the_same_memory_as_one() -> None:
    fleet = chargers(400, hours=4)
    earlier = simulate(fleet, rounds=30)
    one, two = (simulate(fleet, rounds=9, warm_start=earlier, threads=n) for n in (1, 2))
    assert_same(one, two)


def test_an_interrupted_warm_run_resumes_to_the_same_bits_and_no_other_start_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, asked = tmp_path / "run.ckpt", dict[str, Any](rounds=400, warm_start=EARLIER)
    whole = simulate(PAPER, SUMS, **asked)

    def stopping(size: int, seconds: float) -> int:
        signal.raise_signal(signal.SIGINT)
        return 40

    with monkeypatch.context() as patch:
        patch.setattr(simulate_module, "_next_size", stopping)
        part = simulate(PAPER, SUMS, **asked, checkpoint=file)
    assert part.interrupted
    other = simulate(PAPER, SUMS, rounds=50, seed=8)
    for wrong in (None, other):
        with pytest.raises(InputError, match="another simulation"):
            simulate(PAPER, SUMS, **(asked | {"warm_start": wrong}), checkpoint=file)
    assert_same(whole, simulate(PAPER, SUMS, **asked, checkpoint=file))


def wrong_kind() -> Any:
    return 3


def linear(unit: float) -> tuple[PublicSum, Any]:
    """Three sums of noise ``unit`` that answer to prices as ``4 - R lambda``."""
    root = np.random.default_rng(3).normal(size=(3, 3))
    known = PublicSum(lower=np.full(3, -np.inf), upper=np.ones(3), unit=np.full(3, unit),
                      noise=np.ones(3))  # fmt: skip
    return known, root @ root.T + np.eye(3)


def learnt(unit: float, warm: PriceMemory | None = None, rounds: int = 400) -> PriceMemory:
    public, response = linear(unit)
    cloud = CloudKernel(public, DualAveraging(), planned=True, warm=warm)
    rng = np.random.default_rng(1)
    for k in range(1, rounds + 1):
        y = 4.0 - response @ cloud.price + unit * rng.normal(size=3)
        cloud.round(k, y, share=float(answer_shares(k, rounds)[0]))
    before = 0 if warm is None else warm.begun
    return price_memory(cloud.memory, cloud.answer, public, ["a", "b", "c"], rounds + before)


def test_what_is_kept_is_prices_means_and_the_slope_in_the_units_of_the_sums() -> None:
    kept, (_, response) = learnt(0.01), linear(0.01)
    optimum = np.linalg.solve(response, np.full(3, 3.0))
    np.testing.assert_allclose(kept.price, optimum, rtol=0.02)
    np.testing.assert_allclose(kept.mean_price, optimum, rtol=0.02)
    np.testing.assert_allclose(kept.mean_sum, np.ones(3), atol=0.02)
    np.testing.assert_allclose(kept.aim, np.ones(3), atol=0.02)
    np.testing.assert_allclose(kept.slope, kept.slope.T)
    spread = np.linalg.eigh(kept.covariance)[1][:, -1]  # where prices moved most
    np.testing.assert_allclose(spread @ kept.slope @ spread, spread @ response @ spread, rtol=0.2)


def test_a_memory_comes_back_as_it_was_under_another_noise() -> None:
    kept = learnt(0.01)
    public, _ = linear(7.0)
    again = CloudKernel(public, DualAveraging(), planned=True, warm=kept)
    same = price_memory(again.memory, again.answer, public, kept.labels, kept.rounds)
    assert same.count == REMEMBERED * kept.count
    for field in fields(PriceMemory):
        if isinstance(values := getattr(kept, field.name), np.ndarray):
            np.testing.assert_allclose(getattr(same, field.name), values, rtol=1e-14)


def test_rounds_add_up_over_a_series_and_count_up_to_a_bound() -> None:
    first = learnt(0.1, rounds=5)
    second = learnt(0.1, first, rounds=6)
    assert (first.rounds, second.rounds) == (5, 11)
    long = learnt(0.1, replace(second, rounds=10**6), rounds=1)
    assert (long.rounds, long.begun) == (MOST_ROUNDS + 1, MOST_ROUNDS)


def test_many_sums_keep_a_diagonal_slope() -> None:
    many = chargers(30, hours=30)
    earlier = simulate(many, rounds=60)
    assert earlier.memory is not None
    assert earlier.memory.slope.shape == (30,)
    warm = simulate(many, rounds=4, warm_start=earlier.warm_start(shift=1))
    assert np.all(np.isfinite(warm.x))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4))
def test_a_horizon_that_moves_on_moves_every_part_alike(steps: int) -> None:
    result = simulate(chargers(5, hours=5), rounds=20, record=[])
    kept, moved = result.warm_start(), result.warm_start(shift=steps)
    for hour in range(5):
        source = (hour + steps) % 5
        assert moved.price[hour] == kept.price[source]
        assert moved.mean_sum[hour] == kept.mean_sum[source]
        assert moved.slope[hour, 0] == kept.slope[source, steps % 5]
    back = moved.shifted(5 - steps)
    assert back.fingerprint == kept.fingerprint != moved.fingerprint


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: simulate(chargers(3, hours=4), rounds=3, warm_start=EARLIER), "the same sums"),
        (lambda: simulate(PAPER, rounds=3, warm_start=wrong_kind()), "warm_start must be a"),
        (
            lambda: simulate(PAPER, rounds=3, warm_start=EARLIER, algorithm=sv.paper.Tikhonov()),
            r"must be for sv\.DualAveraging",
        ),
        (lambda: EARLIER.warm_start(shift=1), r"shift must be for sums that are a list.*got g1"),
        (
            lambda: simulate(chargers(3, hours=4), rounds=3).warm_start(shift=4),
            "shift must be an integer from 0 to 3",
        ),
        (
            lambda: simulate(PAPER, rounds=3, algorithm=sv.paper.Tikhonov()).warm_start(),
            r"a warm start must be from a run of sv\.DualAveraging",
        ),
    ],
)
def test_a_wrong_start_is_refused_with_a_remedy(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrong()
