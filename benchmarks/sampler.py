"""Cost of one release of 20 outputs, secure and simulated."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np

from sottovoce.network.round_arithmetic import SimulatedSampler
from sottovoce.privacy.sampler import Sampler, SecureSampler

OUTPUTS = 20
RELEASES = 500
REPEATS = 5


def run() -> list[dict[str, str | float]]:
    """Return one row per sampler; `ratio` is against the simulated one in the same run."""
    sigma = np.linspace(1.0, 10.0, OUTPUTS)
    simulated, pooled, drawing = (
        SimulatedSampler(sigma, 1),
        SecureSampler(sigma),
        SecureSampler(sigma),
    )
    seconds: dict[str, list[float]] = {"simulated": [], "secure, pooled": [], "secure, drawing": []}
    for _ in range(REPEATS):  # interleaved, so that a busy machine slows all three alike
        pooled.refill(RELEASES)
        for times, sampler in zip(seconds.values(), (simulated, pooled, drawing), strict=True):
            times.append(_seconds_per_release(sampler))
    reference = median(seconds["simulated"])
    return [
        {
            "what": f"release of {OUTPUTS} outputs: {name}",
            "microseconds": 1e6 * median(times),
            "ratio": median(times) / reference,
        }
        for name, times in seconds.items()
    ]


def _seconds_per_release(sampler: Sampler) -> float:
    values = np.ones(OUTPUTS)
    start = perf_counter()
    for _ in range(RELEASES):
        sampler.release(values)
    return (perf_counter() - start) / RELEASES
