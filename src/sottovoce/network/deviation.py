"""How sure an agent can be of its own setpoint, from public figures and its own formulas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.formula.expression import Expression
from sottovoce.network.agent_group import AgentGroup, LocalGroup
from sottovoce.network.config import algorithm_of, read_config
from sottovoce.network.protocol.codec import unpack
from sottovoce.network.protocol.messages import Welcome
from sottovoce.privacy.feasibility import weights_norm
from sottovoce.privacy.sampler import STEPS
from sottovoce.problem.agents import Array
from sottovoce.problem.blocks import Block
from sottovoce.problem.numeric import Formulas
from sottovoce.problem.sums import agents_of
from sottovoce.simulation.formulas import Fleet

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

    Not a number with the paper's algorithm, whose answers are no averages, and before any price is
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
    fleet, block = own.fleet, _block(own.fleet)
    out = np.zeros((block.count, block.dim, block.dim))
    if own.gradient is None:
        Formulas([fleet.objective], block).add_hessian(x, np.ones((1, 1)), out)
    else:
        out += np.eye(block.dim)
    for terms, weights in _weighted(fleet):
        nu = np.zeros((block.count, len(terms)))
        for row, t, w in weights:
            nu[:, t] += price[row] * w
        Formulas(terms, block).add_hessian(x, nu, out)
    return out


def _slopes(fleet: Fleet, x: Array) -> Iterator[tuple[int, Array]]:
    """The slopes of every agent's contribution to every sum, shape (count, d) each."""
    block = _block(fleet)
    found: dict[int, Array] = {}
    for terms, weights in _weighted(fleet):
        slopes = Formulas(terms, block).gradients(x)
        for row, t, w in weights:
            mine = np.reshape(w, (-1, 1)) * slopes[:, t]
            found[row] = found.get(row, np.zeros((block.count, block.dim))) + mine
    yield from found.items()


def _weighted(
    fleet: Fleet,
) -> Iterator[tuple[tuple[Expression, ...], list[tuple[int, int, Array]]]]:
    """For each part of the sums its terms, and every row's term with the agents' weights."""
    for part in fleet.sums:
        count, terms = fleet.group.count, len(part.terms)
        if part.weights is None:
            listed = [(part.row + t, t, np.ones(count)) for t in range(terms)]
        else:
            dense = part.weights
            dense = np.asarray(dense.toarray() if hasattr(dense, "toarray") else dense)
            listed = [
                (part.row + r, t, dense[r, t::terms])
                if part.table
                else (part.row + r * terms + t, t, dense[r])
                for r in range(dense.shape[0])
                for t in range(terms)
            ]
        yield part.terms, [(row, t, w) for row, t, w in listed if np.any(w)]


def _block(fleet: Fleet) -> Block:
    group = fleet.group
    size = group.count * group.dim
    return Block(
        index=slice(0, size),
        count=group.count,
        symbols=group.symbols,
        parameters=group.parameters,
    )
