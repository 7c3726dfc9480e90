"""Noise that is clamped, correlated, used twice, too small, or not noise at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from fault import Fault, changed, returning

from sottovoce.network.round_arithmetic import SimulatedSampler, noisy_sigma
from sottovoce.privacy.sampler import STEPS, Released, Sampler, SecureSampler

LAW = "test_few_draws_are_gaussian_independent_fresh_and_on_every_output"
EACH_DRAW = "test_every_draw_is_released_once_as_it_came"


def source(change: Any) -> Any:
    """Break the source: standard normals on their way into draws."""

    def breaks(sound: Any) -> Any:
        rng = np.random.default_rng(7)

        def draws(zeros: list[int]) -> list[int]:
            normals: list[int] = np.rint(STEPS * change(rng.normal(size=len(zeros)))).tolist()
            return [int(z) for z in normals]

        return lambda: draws

    return breaks


def taken(change: Any) -> Any:
    """Break what the pool gives: draws of one release."""

    def breaks(take: Any) -> Any:
        calls = iter(range(10**9))
        return lambda pool, count: change(take(pool, count), next(calls))

    return breaks


def echo() -> Any:
    """Noise that remembers what was drawn 997 draws ago."""
    past = np.random.default_rng(8).normal(size=997).tolist()

    def change(z: Any) -> Any:
        for one in z.tolist():
            past.append(0.8 * one + 0.6 * past[-997])
        return np.array(past[-z.size :])

    return change


def correlated(z: Any, _: int) -> Any:
    z[1] = round(0.6 * int(z[0]) + 0.8 * int(z[1]))
    return z


def bare_in_sixteen(z: Any, call: int) -> Any:
    z[0] *= call % 16 > 0
    return z


def put_back(every: int) -> Any:
    def breaks(take: Any) -> Any:
        calls = iter(range(10**9))

        def again(pool: Any, count: int) -> Any:
            draws = take(pool, count)
            if next(calls) % every == 0:
                pool._draws += draws.tolist()
            return draws

        return again

    return breaks


def with_pool(_: Any) -> Any:
    def twin(sigma: Any, draws: list[int]) -> SecureSampler:
        made = SecureSampler(sigma)
        made._pool._draws = list(draws)
        return made

    globals()["twin"] = twin  # where a pickle finds it
    twin.__qualname__ = "twin"
    return lambda sampler: (twin, (sampler._sigma, sampler._pool._draws))


def floats(_: Any) -> Any:
    def release(sampler: Any, values: Any) -> Released:
        noise = sampler._process_pool().take(len(values)) * sampler.grid
        return Released(values=np.asarray(values) + noise)

    return release


def coarse(release: Any) -> Any:
    return lambda sampler, values: release(
        sampler, np.floor(np.asarray(values) / sampler.grid / 1024) * 1024 * sampler.grid
    )


class Weaker(Sampler):
    """Four tenths of the noise of another sampler: a run of 60 rounds shows it for certain."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def release(self, values: Any) -> Released:
        return self.release_multiples(np.rint(values / self._sampler.grid).astype(np.int64))

    def release_multiples(self, multiples: Any) -> Released:
        grid = self._sampler.grid
        noise = self._sampler.release_multiples(multiples).multiples - multiples
        weak = multiples + np.rint(0.4 * noise).astype(np.int64)
        return Released(values=weak * grid, multiples=weak, grid=grid)


def less(sigma: Any) -> Any:
    sigma = sigma.copy()
    sigma[1:] *= 0.7
    return sigma


NOISE = (
    Fault("noise clamped at 3 sigma", "source of draws", source(lambda z: np.clip(z, -3, 3)), LAW),
    Fault("noise a tenth too small", "source of draws", source(lambda z: 0.9 * z), LAW),
    Fault("noise off centre", "source of draws", source(lambda z: z + 0.1), LAW),
    Fault("noise that is uniform", "source of draws",
          source(lambda z: np.random.default_rng(2).uniform(-3**0.5, 3**0.5, z.size)), LAW),
    Fault("correlation at lag 997", "source of draws", source(echo()), LAW),
    Fault("draws that saturate at 32 bits", "source of draws", lambda sound: lambda: lambda at: [
              max(-(2**31), min(2**31 - 1, z)) for z in sound()(at)],
          "test_the_source_of_draws_does_not_saturate"),
    Fault("two outputs correlated 0.6", "draws of the pool", taken(correlated), LAW),
    Fault("first output bare in every sixteenth release", "draws of the pool",
          taken(bare_in_sixteen), LAW),
    Fault("draws clamped at 5 sigma in the pool", "draws of the pool",
          taken(lambda z, _: np.clip(z, -5 * STEPS, 5 * STEPS)), EACH_DRAW),
    Fault("every 997th release's noise used again", "draws of the pool", put_back(997), EACH_DRAW),
    Fault("pool not emptied", "draws of the pool", put_back(1), LAW),
    Fault("noise from NumPy's generator", "draws of the pool",
          lambda _: lambda pool, count: np.rint(
              STEPS * np.random.default_rng().normal(size=count)).astype(np.int64), EACH_DRAW),
    Fault("float noise instead of integers", "secure release", floats,
          "test_low_bits_of_secure_outputs_say_nothing_about_the_value"),
    Fault("values not rounded to their grid before the noise", "secure release", coarse,
          EACH_DRAW + "[release]"),
    Fault("draws reused after a fork", "process of the pool", returning((1, 0)),
          "test_a_pool_that_another_process_filled_is_not_used"),
    Fault("copies share the pool", "copy of a sampler", with_pool,
          "test_copies_and_pickles_carry_no_noise"),
    Fault("noise drawn after what is said is known", "noise drawn ahead", returning(),
          "test_noise_is_drawn_before_its_round_is_known"),
    Fault("noise added to the wrong sum", "totals", changed(lambda total: np.roll(total, 1)),
          "test_releases_have_the_bits_of_simulate[paper]"),
    Fault("cloud's sampler made with less noise than planned", "deployed sampler", changed(Weaker),
          "test_the_cloud_adds_the_planned_sigma_to_every_kind_of_output[joint]"),
    Fault("sigma of later outputs too small", "sigma of a release", changed(less),
          "test_what_is_sent_has_gaussian_noise_of_the_plan[paper]"),
    Fault("simulated noise in a real run", "deployed sampler",
          lambda _: lambda plan: SimulatedSampler(noisy_sigma(plan), 1, done=0),
          "test_secure_runs_differ_and_store_integers_whose_noise_has_the_right_size"),
)  # fmt: skip
