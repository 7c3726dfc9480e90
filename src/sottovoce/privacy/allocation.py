"""How much noise on which output keeps every agent's promise, and how much given noise spends."""

from __future__ import annotations

import clarabel
import numpy as np
import scipy.sparse as sparse

from sottovoce.certificate.sensitivity import Sensitivity
from sottovoce.errors import PrivacyError
from sottovoce.privacy.sampler import DISCRETISATION, rounding_allowance
from sottovoce.problem.groups import Array

_UP = 1.0 + 2.0**-48  # rounds up the result of a few float64 operations
_UP_SUM = 1.0 + 2.0**-40  # rounds up a sum over all outputs
_EXCESS = 1e-7  # how far a cap may be exceeded before the final scaling corrects it
_LEAST_GAIN = 1e-7  # a solve that lowers the total by less than this was the last
_RESOLVED = 1e-6  # the least share of its last answer that a solve is trusted with
_AGENTS_PER_SOLVE = 64  # agents added per solve, so that the cone program stays small


def allocate(sensitivity: Sensitivity, caps: Array, weights: Array) -> Array:
    """Return sigma_o that minimises ``sum_o w_o sigma_o^2`` while every agent keeps its cap.

    ``sum_o S[o, l]^2 / sigma_o^2 <= caps_l`` for every agent l, and every part of its state that
    outputs do not mix with others (see ``Sensitivity.loads``). Convex in ``v_o = 1/sigma_o^2``:
    minimise ``sum_o w_o / v_o`` over linear constraints, a second-order cone program. At most as
    many agents as outputs bind, so a fleet of millions is solved by adding the agents whose caps
    are exceeded until none is. Every solve is stated relative to the last one's answer, so that
    outputs of very different size come out equally sharp; a last scaling makes every cap hold.
    Outputs that no agent can move get 0. A cap is ``(mu_l / b_l)^2``, infinite for an agent that
    never moves.
    """
    largest_ratio = sensitivity.largest(caps)
    outputs = np.flatnonzero(largest_ratio > 0)
    sigma = np.zeros(sensitivity.outputs)
    if outputs.size == 0:
        return sigma
    largest, costs = 1.0 / largest_ratio[outputs], weights[outputs]  # of v
    precision = np.zeros(sensitivity.outputs)
    precision[outputs] = largest * np.random.default_rng(0).uniform(1.0, 2.0, outputs.size)
    signature = sensitivity.signature(precision) / caps  # equal for agents with equal S and cap
    members: list[int] = []
    loads = np.empty((0, outputs.size))
    # Optimal if one agent had the largest load of all on every output: near enough to start from.
    v, least_cost = np.sqrt(costs * largest) / np.sum(np.sqrt(costs / largest)), np.inf
    while True:
        precision[outputs] = v
        ratio = sensitivity.loads(precision) / caps
        cost = ratio.max() * np.sum(costs / v)
        exceeding = _select_exceeding(ratio, signature, members)
        if exceeding.size == 0 and cost >= least_cost * (1.0 - _LEAST_GAIN):
            break
        if exceeding.size == 0:
            least_cost = cost
        members += exceeding.tolist()
        added = [sensitivity.columns(agent)[:, outputs] ** 2 / caps[agent] for agent in exceeding]
        loads = np.vstack([loads, *added])
        v = v * _solve(loads * v, costs / v, largest / v)
    sigma[outputs] = np.sqrt(ratio.max() / v) * _UP
    return sigma


def joint_scaling(S: Sensitivity, sigma: Array, caps: Array) -> float:
    """Return the share of sigma that suffices by the norm of the whole Jacobian, at most 1.

    Caps were met output by output; a difference of two states has one direction for all of them.
    """
    worst = float(np.max(S.together(_to_precision(sigma)) / caps, initial=0.0))
    return min(1.0, float(np.sqrt(worst)) * _UP) if worst > 0 else 1.0


def spent_gdp_mu(S: Sensitivity, sigma: Array, radius: Array, errors: Array, rounds: int) -> Array:
    """Return the Gaussian-DP parameter of every agent for the whole transcript, rounded up.

    ``mu_l = R_l |diag(1/sigma) J_l|_2 + sqrt(T sum_o (c_o / sigma_o)^2)``; the norm is bounded by
    ``sqrt(sum_o S[o, l]^2 / sigma_o^2)`` and, for affine contributions, taken as it is. ``radius``
    is R, c_o is made of the float64 errors of outputs, and an infinite sigma is that of an output
    which is not released.
    """
    noiseless = np.where(sigma > 0, 0.0, 1.0)
    if np.any(noiseless) and np.any(S.together(noiseless) > 0):
        raise PrivacyError(
            "every output that an agent moves must have noise, got sigma=0 for one of them"
        )
    shift = radius * np.sqrt(S.together(_to_precision(sigma))) * _UP
    rounding = rounding_shift(sigma, errors, rounds)
    return np.asarray((shift + rounding) * DISCRETISATION * _UP)


def rounding_mu(sigma: Array, errors: Array, rounds: int) -> float:
    """Return the part of ``spent_gdp_mu`` that pays for rounding, rounded up."""
    return rounding_shift(sigma, errors, rounds) * DISCRETISATION * _UP


def rounding_shift(sigma: Array, errors: Array, rounds: int) -> float:
    """What rounding adds to mu over all rounds: ``sqrt(T sum_o (c_o / sigma_o)^2)``, rounded up."""
    noisy = (sigma > 0) & np.isfinite(sigma)
    share = rounding_allowance(sigma[noisy], errors[noisy]) / sigma[noisy]
    return float(np.sqrt(rounds * np.square(share).sum()) * _UP_SUM)


def _to_precision(sigma: Array) -> Array:
    return np.divide(1.0, np.square(sigma), out=np.zeros_like(sigma), where=sigma > 0)


def _select_exceeding(ratio: Array, signature: Array, members: list[int]) -> Array:
    """The agents farthest above their caps, one of each signature, without the members so far."""
    ratio = ratio.copy()
    ratio[members] = -np.inf
    exceeding = np.flatnonzero(ratio > 1.0 + _EXCESS if members else ratio > -np.inf)
    _, first = np.unique(signature[exceeding], return_index=True)
    distinct = exceeding[first]
    if distinct.size > _AGENTS_PER_SOLVE:
        by_excess = np.argpartition(-ratio[distinct], _AGENTS_PER_SOLVE)
        distinct = distinct[by_excess[:_AGENTS_PER_SOLVE]]
    return np.asarray(distinct)


def _solve(loads: Array, costs: Array, largest: Array) -> Array:
    """Minimise ``sum_o costs_o / v_o`` subject to ``loads @ v <= 1`` and ``v <= largest``.

    The second follows from all agents' loads together, and keeps v bounded while some are missing.
    """
    agents, outputs = loads.shape
    identity = sparse.eye_array(outputs)
    limits = sparse.vstack([sparse.csr_array(loads), identity])
    linear = sparse.hstack([limits, sparse.csr_array((agents + outputs, outputs))])
    # |(t_o - v_o, 2)| <= t_o + v_o, that is t_o >= 1 / v_o
    zero = sparse.csr_array((outputs, outputs))
    pairs = sparse.block_array([[-identity, -identity], [identity, -identity], [None, zero]])
    order = np.arange(3 * outputs).reshape(3, outputs).T.ravel()
    matrix = sparse.vstack([linear, pairs.tocsr()[order]])
    bounds = np.concatenate([np.ones(agents), largest, np.tile([0.0, 0.0, 2.0], outputs)])
    cones = [clarabel.NonnegativeConeT(agents + outputs)]
    cones += [clarabel.SecondOrderConeT(3)] * outputs
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    solver = clarabel.DefaultSolver(
        sparse.csc_array((2 * outputs, 2 * outputs)),
        np.concatenate([np.zeros(outputs), costs / costs.max()]),
        sparse.csc_array(matrix),
        bounds,
        cones,
        settings,
    )
    solution = solver.solve()
    v = np.asarray(solution.x[:outputs])
    if not np.all(np.isfinite(v)):
        raise PrivacyError(
            f"the noise could not be allocated: the solver says {solution.status}; state sums in "
            "units that keep numbers near 1"
        )
    # Below the solver's resolution: the next solve starts there and resolves it.
    return np.asarray(np.maximum(v, _RESOLVED))
