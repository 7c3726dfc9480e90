"""Noise that is clamped, correlated, used twice, too small, or not noise at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from fault import Fault, changed, returning

from sottovoce.network.round_arithmetic import SimulatedSampler, noisy_sigma
from sottovoce.privacy.sampler import STEPS, Released, Sampler, SecureSampler

SAMPLER = "privacy/test_sampler.py::"
LAW = SAMPLER + "test_few_draws_are_gaussian_independent_fresh_and_on_every_output"
RELEASE = "network/test_release.py::"
EACH_DRAW = SAMPLER + "test_every_draw_is_released_once_as_it_came_however_large"


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
            drawn = take(pool, count)
            if next(calls) % every == 0:
                pool._draws += drawn.tolist()
            return drawn

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
        noise = sampler._own_pool().take(len(values)) * sampler.grid
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
    Fault(name="noise clamped at 3 sigma", seam="source of draws",
          breaks=source(lambda z: np.clip(z, -3, 3)), killed_by=LAW),
    Fault(name="noise a tenth too small", seam="source of draws",
          breaks=source(lambda z: 0.9 * z), killed_by=LAW),
    Fault(name="noise off centre", seam="source of draws",
          breaks=source(lambda z: z + 0.1), killed_by=LAW),
    Fault(name="noise that is uniform", seam="source of draws",
          breaks=source(lambda z: np.random.default_rng(2).uniform(-3**0.5, 3**0.5, z.size)),
          killed_by=LAW),
    Fault(name="correlation at lag 997", seam="source of draws", breaks=source(echo()),
          killed_by=LAW),
    Fault(name="draws that saturate at 32 bits", seam="source of draws",
          breaks=lambda sound: lambda: lambda at: [
              max(-(2**31), min(2**31 - 1, z)) for z in sound()(at)],
          killed_by=SAMPLER + "test_the_source_of_draws_does_not_saturate"),
    Fault(name="two outputs correlated 0.6", seam="draws of the pool", breaks=taken(correlated),
          killed_by=LAW),
    Fault(name="first output bare in every sixteenth release", seam="draws of the pool",
          breaks=taken(bare_in_sixteen), killed_by=LAW),
    Fault(name="draws clamped at 5 sigma in the pool", seam="draws of the pool",
          breaks=taken(lambda z, _: np.clip(z, -5 * STEPS, 5 * STEPS)), killed_by=EACH_DRAW),
    Fault(name="every 997th release's noise used again", seam="draws of the pool",
          breaks=put_back(997), killed_by=EACH_DRAW),
    Fault(name="pool not emptied", seam="draws of the pool", breaks=put_back(1), killed_by=LAW),
    Fault(name="noise from NumPy's generator", seam="draws of the pool",
          breaks=lambda _: lambda pool, count: np.rint(
              STEPS * np.random.default_rng().normal(size=count)).astype(np.int64),
          killed_by=EACH_DRAW),
    Fault(name="float noise instead of integers", seam="secure release", breaks=floats,
          killed_by=SAMPLER + "test_low_bits_of_secure_outputs_say_nothing_about_the_value"),
    Fault(name="values not rounded to their grid before the noise", seam="secure release",
          breaks=coarse, killed_by=EACH_DRAW + "[release]"),
    Fault(name="draws reused after a fork", seam="process of the pool",
          breaks=returning((1, 0)),
          killed_by=SAMPLER + "test_a_pool_that_another_process_filled_is_not_used"),
    Fault(name="copies share the pool", seam="copy of a sampler", breaks=with_pool,
          killed_by=SAMPLER + "test_copies_and_pickles_carry_no_noise"),
    Fault(name="noise drawn after what is said is known", seam="noise drawn ahead",
          breaks=returning(),
          killed_by="network/test_rounds.py::"
          "test_noise_is_drawn_before_what_is_said_in_its_round_is_known"),
    Fault(name="noise added to the wrong sum", seam="totals",
          breaks=changed(lambda total: np.roll(total, 1)),
          killed_by="network/test_rounds.py::test_the_same_contributions_and_noise_"
          "give_the_same_release_as_solve_bit_for_bit[paper]"),
    Fault(name="cloud's sampler made with less noise than planned", seam="deployed sampler",
          breaks=changed(Weaker),
          killed_by=RELEASE + "test_the_cloud_adds_the_planned_sigma_to_every_kind_of_output"
          "[joint]"),
    Fault(name="sigma of later outputs too small", seam="sigma of a release",
          breaks=changed(less),
          killed_by=RELEASE
          + "test_what_is_sent_has_independent_gaussian_noise_of_the_planned_sigma[paper]"),
    Fault(name="simulated noise in a real run", seam="deployed sampler",
          breaks=lambda _: lambda plan: SimulatedSampler(noisy_sigma(plan), 1, done=0),
          killed_by="network/test_cloud.py::"
          "test_secure_runs_differ_and_store_integers_whose_noise_has_the_right_size"),
)  # fmt: skip
