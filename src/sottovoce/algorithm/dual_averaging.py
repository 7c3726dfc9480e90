"""Dual averaging with a learnt slope: the cloud's round, as plain functions of arrays.

The cloud sees noisy sums ``y(k) = s(x(k)) + w(k)`` and answers with prices. Inside, rows are in
units of their noise (``y := y/sigma``, ``lambda := lambda sigma``, C alike), so the units of x and
of g cancel; ``start`` is the only number with a unit, that of f, and is outgrown at once.

    e = y - ybar + B (lambda - lbar)                  surprise: what the model did not foresee
    n := n + 1,  or  1 + n 9 p / |e|^2  where |e|^2 > 9 p and surprises are getting smaller
    w = (1 + a) / (n + a),  A = 1/w                   recent means, weights n^a
    lbar += w (lambda - lbar),  ybar += w (y - ybar)
    C = recent cov(lambda),  E = -recent cov(y, lambda),  C = V diag(c) V'
    B_ef = (V'(E + E')V)_ef / (c_e + c_f), negative eigenvalues -> 0
    spread_e^2 = c_e + max(start, 0.03 largest)^2
    R_e = (doubt sqrt(A) + A |V'(ybar - u)|_e / reach) / spread_e
    H = V (sqrt(n) B + diag R) V'
    lambda = argmax  A ybar'lambda - A support_C(lambda) - (lambda - lbar)'H(lambda - lbar)/2

n counts for how many rounds the model has been right up to noise. It sets both how long releases
are remembered and the gain ``n^-1/2``: a surprise that noise cannot explain makes the step a secant
step from few rounds, which is what noise-free tails and fleets need; under noise n is k, and the
step that of stochastic approximation with Polyak and Juditsky's averaging.

More than ``DENSE`` sums are learnt row by row: V is the identity, C, E and B are diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite, sqrt
from typing import Any, NamedTuple, final

import numpy as np

from sottovoce.algorithm.eigen import eigen
from sottovoce.algorithm.prices import argmax_price, price_work
from sottovoce.algorithm.projection import Phi, PublicSet, project
from sottovoce.arguments import real
from sottovoce.privacy.answer import answer_shares
from sottovoce.problem.agents import Array

DENSE = 24
"""Up to so many sums the slope is a full matrix."""

_SURPRISE = 9.0  # three standard deviations: noise alone passes them once in hundreds of rounds
_FEWEST = 2.0  # rounds remembered besides one per direction, or secants would be of rounding
_POOL = 0.03  # what a direction may need at any time, as a share of the largest
_STILL = 1e-10  # in units of the sums: a move this small is rounding and teaches no slope
_ALIKE = 1e-9
_TINY = 1e-300
_RUN_AWAY = 1e20  # no objective is worth so much: contributions do not answer to prices


class Constants(NamedTuple):
    """The numbers of ``DualAveraging`` as compiled code takes them."""

    memory: float
    doubt: float
    reach: float
    theta: float
    start: float


class Rows(NamedTuple):
    """What is public of the sums.

    Attributes:
        unit: sigma of every sum; where there is no noise, any positive size of the sum.
        noise: 1 for a noisy sum, 0 for one without noise.
        public: C.
    """

    unit: Array
    noise: Array
    public: PublicSet


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DualAveraging:
    """Prices that maximise what recent releases say of the dual, in a metric learnt from them.

    Attributes:
        memory: a; weights grow as ``n^a``, so that about the last third of all rounds counts: the
            slope is wanted where prices are now, not where they began.
        doubt: of the noise in the releases added up, how much holds prices back where no slope is
            seen yet. More is slower, less lets noise alone drive prices where agents saturate.
        reach: how many times their spread prices may move on evidence beyond noise: growth per
            round until sums respond.
        theta: how strongly agents hold on to their last state; it keeps those with hardly any
            curvature from jumping between ends of their boxes.
        start: the worth ``lambda sigma`` of the first step, in the unit of the objective. Small:
            a decade too low costs a round, a decade too high saturates agents.
    """

    memory: float = 2.0
    doubt: float = 0.3
    reach: float = 16.0
    theta: float = 0.5
    start: float = 0.01

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            real(field.name, value, "finite and positive", lambda v: isfinite(v) and v > 0)

    @property
    def constants(self) -> Constants:
        """The numbers as ``cloud_round`` takes them."""
        return Constants(self.memory, self.doubt, self.reach, self.theta, self.start)

    @property
    def cloud_round(self) -> Any:
        """The cloud's half of a round."""
        return cloud_round

    def memory_size(self, sums: int) -> int:
        """The length of the cloud's memory."""
        return memory_size(sums)

    def share(self, k: Any, rounds: int, *, noisy: bool) -> Array:
        """The weights of rounds k in the answer; without noise there is nothing to average."""
        return answer_shares(k, rounds) if noisy else np.ones(np.size(k))


def entries(sums: int) -> int:
    """Return the length of a matrix over the sums: full, or its diagonal where there are many."""
    return sums * sums if sums <= DENSE else sums


def kept_size(sums: int) -> int:
    """Return how much of the memory lasts from round to round; what follows is scratch.

    ``n``, the last surprise, then of length p each ``lbar, ybar, u, c``, then ``C, E, B, V``, row
    by row, each of length ``entries(p)``.
    """
    return 2 + 4 * sums + 4 * entries(sums)


def memory_size(sums: int) -> int:
    """Return the length of the cloud's memory, scratch at its end included."""
    return kept_size(sums) + 5 * sums + 4 * entries(sums) + price_work(sums, entries(sums))


def cloud_round(
    k: int, y: Array, price: Array, memory: Array, rows: Rows, constants: Constants, phi: Phi | None
) -> bool:
    """Turn lambda(k) into lambda(k+1), in place, and return whether prices stayed bounded.

    Args:
        k: the round, from 1.
        y: its release, in the units of the sums.
        price: lambda(k) in, lambda(k+1) out; 0 before round 1.
        memory: see ``kept_size``; 0 before round 1.
        rows: what is public of the sums.
        constants: of ``DualAveraging``.
        phi: the functions of C's general regions; None if it has no regions at all.
    """
    p, m = price.size, entries(price.size)
    mean_price, mean_sum, aim = (
        memory[2 : 2 + p],
        memory[2 + p : 2 + 2 * p],
        memory[2 + 2 * p :][:p],
    )
    work = memory[kept_size(p) :]
    total, pull, model = work[:p], work[p : 2 * p], work[2 * p : 2 * p + m]
    rest = work[2 * p + m :]
    if k == 1:
        for o in range(p):
            pull[o] = 1.0
        project(y, pull, rows.public, phi, aim, rest)
        for o in range(p):
            aim[o] /= rows.unit[o]
    for o in range(p):
        price[o] *= rows.unit[o]
    _count(k, y, price, memory, rows, rest)
    kept = max(memory[0], min(float(k), _FEWEST + (p if p <= DENSE else 1)))
    w = (1.0 + constants.memory) / (kept + constants.memory)
    _remember(w, memory, rest, p, m)
    if k < 200 or k % (k // 100) == 0:
        if p <= DENSE:
            _learn(memory, rest, p)
        else:
            _learn_rows(memory, p)
    _trust(1.0 / w, price, memory, rows, constants, pull)
    _build(memory, pull, model, sqrt(memory[0]))
    for o in range(p):
        total[o] = mean_sum[o] / w
    argmax_price(total, 1.0 / w, model, mean_price, rows, phi, price, aim, rest)
    bounded = True
    for o in range(p):
        # A comparison with what is no number is false, here as everywhere.
        bounded = bounded and abs(price[o]) < _RUN_AWAY and abs(total[o]) < _RUN_AWAY
        price[o] /= rows.unit[o]
    return bounded


def _count(k: int, y: Array, price: Array, memory: Array, rows: Rows, work: Array) -> None:
    """Count how long the model has been right, in ``memory[0]``; fill what is new into work.

    ``work[:p] = lambda - lbar`` and ``work[p:2p] = y - ybar``, with the means before this round.
    """
    p, m = price.size, entries(price.size)
    at = 2 + 4 * p
    surprise, explained = 0.0, 0.0
    for o in range(p):
        work[o] = price[o] - memory[2 + o]
    for o in range(p):
        fresh = y[o] / rows.unit[o] - memory[2 + p + o]
        work[p + o] = fresh
        if p <= DENSE:
            for q in range(p):
                fresh += memory[at + 2 * m + o * p + q] * work[q]
        else:
            fresh += memory[at + 2 * m + o] * work[o]
        surprise += fresh * fresh
        explained += _SURPRISE * rows.noise[o] * rows.noise[o]
    if k > 1 and explained < surprise < memory[1]:
        memory[0] *= explained / surprise
    memory[0] += 1.0
    if k > 1:
        memory[1] = max(surprise, 0.5 * memory[1])


def _remember(w: float, memory: Array, fresh: Array, p: int, m: int) -> None:
    """Take this round into the recent means and covariances."""
    at = 2 + 4 * p
    moved = 0.0
    for o in range(p):
        # What is not where it should be and yet does not move answers to no price: a slope of 0.
        missed = memory[2 + p + o] + fresh[p + o] - memory[2 + 2 * p + o]
        moved = max(moved, abs(fresh[p + o]), abs(missed))
    for o in range(p if moved > _STILL else 0):
        first = 0 if p <= DENSE else o
        last = p if p <= DENSE else o + 1
        for q in range(first, last):
            i = at + (o * p + q if p <= DENSE else o)
            memory[i] = (1.0 - w) * (memory[i] + w * fresh[o] * fresh[q])
            memory[i + m] = (1.0 - w) * (memory[i + m] - w * fresh[p + o] * fresh[q])
    for o in range(p):
        memory[2 + o] += w * fresh[o]
        memory[2 + p + o] += w * fresh[p + o]


def _learn(memory: Array, work: Array, p: int) -> None:
    """The metric: ``C = V diag(c) V'`` and ``B = V'(E + E')V / (c_e + c_f)``, not negative."""
    m, at = p * p, 2 + 4 * p
    spread = memory[2 + 3 * p : 2 + 4 * p]
    response = memory[at + m : at + 2 * m]
    slope, basis = memory[at + 2 * m : at + 3 * m], memory[at + 3 * m : at + 4 * m]
    copy, turned, other, values = work[:m], work[m : 2 * m], work[2 * m : 3 * m], work[3 * m :]
    for i in range(m):
        copy[i] = memory[at + i]
    eigen(copy, spread, basis)
    largest = 0.0
    for e in range(p):
        spread[e] = max(spread[e], 0.0)
        largest = max(largest, spread[e])
    for o in range(p):
        for f in range(p):
            value = 0.0
            for q in range(p):
                value += (response[o * p + q] + response[q * p + o]) * basis[q * p + f]
            other[o * p + f] = value
    for e in range(p):
        for f in range(e + 1):
            value = 0.0
            for o in range(p):
                value += basis[o * p + e] * other[o * p + f] + basis[o * p + f] * other[o * p + e]
            value = 0.5 * value / (spread[e] + spread[f] + _ALIKE * largest + _TINY)
            copy[e * p + f] = value
            copy[f * p + e] = value
    eigen(copy, values[:p], turned)
    for o in range(p):
        for e in range(p):
            value = 0.0
            for f in range(p):
                value += basis[o * p + f] * turned[f * p + e]
            other[o * p + e] = value
    for o in range(p):
        for q in range(p):
            value = 0.0
            for e in range(p):
                value += other[o * p + e] * max(values[e], 0.0) * other[q * p + e]
            slope[o * p + q] = value


def _learn_rows(memory: Array, p: int) -> None:
    """The same row by row: ``c = C_oo`` and ``B_oo = E_oo / C_oo``, not negative."""
    at = 2 + 4 * p
    for o in range(p):
        spread = max(memory[at + o], 0.0)
        memory[2 + 3 * p + o] = spread
        memory[at + 2 * p + o] = max(memory[at + p + o], 0.0) / (spread + _TINY)


def _trust(
    recent: float, price: Array, memory: Array, rows: Rows, constants: Constants, pull: Array
) -> None:
    """Fill ``R_e``: what holds prices back where no slope is seen yet."""
    p, m = price.size, entries(price.size)
    spread = memory[2 + 3 * p : 2 + 4 * p]
    basis = memory[2 + 4 * p + 3 * m :]
    largest = 0.0
    for e in range(p):
        along = price[e] - memory[2 + e]
        if p <= DENSE:
            along = 0.0
            for o in range(p):
                along += basis[o * p + e] * (price[o] - memory[2 + o])
        largest = max(largest, spread[e], along * along)
    pooled = max(constants.start, _POOL * sqrt(largest)) ** 2
    for e in range(p):
        along, noisy = 0.0, 0.0
        for o in range(0 if p <= DENSE else e, p if p <= DENSE else e + 1):
            part = basis[o * p + e] if p <= DENSE else 1.0
            along += part * (memory[2 + p + o] - memory[2 + 2 * p + o])
            noisy += (part * rows.noise[o]) ** 2
        trust = constants.doubt * sqrt(noisy * recent) + recent * abs(along) / constants.reach
        pull[e] = max(trust, _TINY) / sqrt(spread[e] + pooled)


def _build(memory: Array, pull: Array, model: Array, inverse_gain: float) -> None:
    """Fill ``H = V (B / gamma + diag R) V'``."""
    p, m = pull.size, entries(pull.size)
    slope, basis = memory[2 + 4 * p + 2 * m :], memory[2 + 4 * p + 3 * m :]
    for o in range(p):
        if p > DENSE:
            model[o] = slope[o] * inverse_gain + pull[o]
            continue
        for q in range(o + 1):
            value = slope[o * p + q] * inverse_gain
            for e in range(p):
                value += basis[o * p + e] * pull[e] * basis[q * p + e]
            model[o * p + q] = value
            model[q * p + o] = value


def damping(k: int, force: float, width: float, theta: float) -> float:
    """Return ``eps = theta k^-1/2 |force| / width`` of one component of an agent's state.

    The agent adds ``eps/2 (x - x(k))^2`` to what it minimises. The unit is that of the objective
    over x squared, so nothing depends on units.

    Args:
        k: the round, from 1.
        force: ``d(lambda(k+1)'h_i)/dx`` at x(k).
        width: of the component's public box, positive.
        theta: of ``DualAveraging``.
    """
    return theta * abs(force) / (sqrt(k) * width)
