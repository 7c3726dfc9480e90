"""How sure an agent can be of its own setpoint, from public figures and its own formulas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.network.agent_group import AgentGroup, LocalGroup
from sottovoce.network.config import algorithm_of, read_config
from sottovoce.network.protocol.codec import unpack
from sottovoce.network.protocol.messages import Welcome
from sottovoce.privacy.feasibility import weights_norm
from sottovoce.privacy.sampler import STEPS
from sottovoce.problem.agents import Array
from sottovoce.problem.fleet import Fleet
from sottovoce.problem.numeric import Formulas
from sottovoce.problem.sums import agents_of

_FLAT = 1e-12  # curvature, as a share of the largest, that keeps a system solvable
_AT_BOUND = 1e-9  # of a box's width: an answer so near a bound is held by it


def own_deviation(group: AgentGroup, welcome: Welcome, x: Array, price: Array) -> Array:
    """Return the standard deviation of every component of the setpoints x, shape of x.

    The released noise of sum o has, averaged into the answer, the standard deviation
    ``sigma_o |w|``. Prices answer to it so that the sums keep to their bounds, and an agent answers
    to a price by ``-B s_o``, with ``s_o`` the slopes of its contribution and B the inverse of the
    Hessian of ``f_i + lambda'h_i`` over the components that no bound holds. **Assumed**: the
    ``n_o`` agents of a sum answer to its price alike, so that one of them takes
    ``B s_o / (n_o s_o' B s_o)`` of the noise, and different sums move it independently. Local rows
    do not count. An objective that is code counts as curved alike in all components. Nothing is
    larger than half the width of the box, which is the most that it can be.

    Args:
        group: the agents.
        welcome: the run, as the cloud described it.
        x: their answers, one after the other.
        price: the answer's prices.

    Not a number with gradient steps, whose answers are no averages, and before any price is
    known.
    """
    config = read_config(welcome.config)
    if isinstance(algorithm_of(config.algorithm), GradientSteps) or price.size != welcome.prices:
        return np.full(x.size, np.nan)
    noise = np.zeros(welcome.prices)
    halves = 2.0 if config.split else 1.0
    noise[welcome.sums] = unpack(welcome.grid) * STEPS * np.sqrt(halves)
    cloud = group.cloud
    each = noise * weights_norm(config.rounds) / np.maximum(agents_of(cloud.sums, cloud.groups), 1)
    lower, upper = unpack(welcome.lower), unpack(welcome.upper)
    found, begin = np.full(x.size, np.nan), 0
    for own in group.groups:
        here = slice(begin, begin + own.size)
        box = (lower[here], upper[here])
        # The answer is there: a formula without curvature at that point must not take it away.
        with suppress(ArithmeticError, np.linalg.LinAlgError), np.errstate(all="ignore"):
            found[here] = _deviation(own, x[here], price, each, box).ravel()
        begin = here.stop
    return found


def _deviation(
    own: LocalGroup, x: Array, price: Array, each: Array, box: tuple[Array, Array]
) -> Array:
    group = own.fleet.group
    shape = (group.count, group.dim)
    lower, upper, at = box[0].reshape(shape), box[1].reshape(shape), x.reshape(shape)
    width = upper - lower
    free = (at > lower + _AT_BOUND * width) & (at < upper - _AT_BOUND * width)
    inverse = _inverse(_hessian(own, at, price), free)
    total = np.zeros(shape)
    for row, slope in _slopes(own.fleet, at):
        if price[row] == 0.0 or each[row] == 0.0:
            continue
        moved = np.einsum("iab,ib->ia", inverse, slope)
        taken = np.einsum("ia,ia->i", slope, moved)
        step = np.where(taken[:, np.newaxis] > 0, moved / taken[:, np.newaxis], 0.0)
        total += np.square(each[row] * step)
    return np.minimum(np.sqrt(total), 0.5 * width)


def _inverse(hessian: Array, free: NDArray[np.bool_]) -> Array:
    """The inverse over the free components, 0 for the others."""
    one = np.eye(hessian.shape[1])
    mask = free[:, :, np.newaxis] * free[:, np.newaxis, :]
    size = np.max(np.abs(hessian), axis=(1, 2), keepdims=True)
    kept = np.where(mask, hessian, 0.0) + one * np.where(size > 0, _FLAT * size, 1.0)
    kept = kept + one * np.where(free[:, np.newaxis, :], 0.0, 1.0)
    return np.asarray(np.where(mask, np.linalg.inv(kept), 0.0))


def _hessian(own: LocalGroup, x: Array, price: Array) -> Array:
    """Second derivatives of ``f_i + lambda'h_i``, shape (count, d, d)."""
    fleet, group = own.fleet, own.fleet.group
    out = np.zeros((group.count, group.dim, group.dim))
    if own.gradient is None:
        Formulas([fleet.objective], group).add_hessian(x, np.ones((1, 1)), out)
    else:
        out += np.eye(group.dim)
    nu = np.zeros((group.count, len(fleet.terms)))
    for part in fleet.parts():
        nu[:, part.terms] += part.spread(price)
    Formulas(fleet.terms, group).add_hessian(x, nu, out)
    return out


def _slopes(fleet: Fleet, x: Array) -> Iterator[tuple[int, Array]]:
    """The slopes of every agent's contribution to every sum, shape (count, d) each."""
    slopes = Formulas(fleet.terms, fleet.group).gradients(x)
    found: dict[int, Array] = {}
    for part in fleet.parts():
        for r, rows in enumerate(part.rows.tolist()):
            weights = np.ones(1) if part.weights is None else part.weights[[r]]
            dense = weights.toarray() if hasattr(weights, "toarray") else weights
            for row, t in zip(rows, part.terms, strict=True):
                mine = np.reshape(dense, (-1, 1)) * slopes[:, t]
                found[row] = found.get(row, np.zeros(x.shape)) + mine
    yield from found.items()
