"""Whole runs over a game: agents here, in Python, and the cloud's round as users run it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from benchmarks.problems.games import Agents
from benchmarks.problems.responses import force_of, respond, sums_of
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.algorithm.public_sum import PublicSum
from sottovoce.kernels.cloud_kernel import CloudKernel


class Answer(NamedTuple):
    """What a run fills in: the answers of x and price, and, if it has rows, x after each round."""

    x: Any
    price: Any
    trace: Any


def run_rounds(
    shares: Any,
    normals: Any,
    a: Agents,
    public: PublicSum,
    algorithm: DualAveraging,
    answer: Answer,
) -> int:
    """One run, the answer in place; returns the round of failure, 0 if there is none.

    Args:
        shares: the weight of every round in the answer.
        normals: standard normals, a row for every round; empty without noise.
        a: the agents.
        public: C, units and noise of the sums.
        algorithm: the gains.
        answer: what is filled in, 0 before.
    """
    noisy = normals.size > 0
    cloud = CloudKernel(public, algorithm, planned=noisy)
    unit, n = np.array(public.unit), a.lower.size
    x, y, eps = a.start.copy(), np.zeros(unit.size), np.zeros(n)
    width = np.maximum(a.upper - a.lower, 1e-300)
    for k, share in enumerate(shares.tolist(), start=1):
        sums_of(a, x, y)
        if noisy:  # what was released is averaged; without noise the answer is the last
            y += unit * normals[k - 1]
            answer.x[:] += share * (x - answer.x)
        if not cloud.round(k, y, share=share):
            return k
        force = np.array([force_of(a, c, x[c], cloud.price) for c in range(n)])
        eps[:] = algorithm.theta * np.abs(force) / (np.sqrt(k) * width)
        respond(a, cloud.price, x, x.copy(), eps)
        if not noisy:
            answer.x[:] = x
        answer.price[:] = cloud.answer
        if answer.trace.size > 0:
            answer.trace[k - 1] = x
    return 0
