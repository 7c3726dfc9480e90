"""The cloud's round: dual averaging with a learnt slope.

The cloud sees noisy sums ``y(k) = s(x(k)) + w(k)`` and answers with prices. Inside, rows are in
units of their noise (``y := y/sigma``, ``lambda := lambda sigma``, C alike), so the units of x and
of g cancel; ``start`` is the only number with a unit, that of f, and is outgrown at once.

    e = y - ybar + B (lambda - lbar)                  innovation: what the model did not predict
    n := n + 1,  or  1 + n 100 p / |e|^2  where |e|^2 > 100 p and innovations are getting smaller
    eta = (1 + a) / (m + a),  A = 1/eta               recent means; m = max(n, min(k, p + 2))
    lbar += eta (lambda - lbar),  ybar += eta (y - ybar)
    C_l = recent cov(lambda),  E = -recent cov(y, lambda),  C_l = V diag(c) V'
    (V'BV)_ef = (V'(E + E')V)_ef / (c_e + c_f), negative eigenvalues -> 0
    spread_e^2 = c_e + max(start, 0.03 largest)^2
    D_o = doubt sqrt(A) (1 + 0.3 r_o^2 / A)           r: sigma over the certified range of the sum
    R_e = (|D V_e| + A |V'(ybar - u)|_e / reach(k)) / spread_e
    H = sqrt(n) B + V diag(R) V'
    lambda = argmax  A ybar'lambda - A support_C(lambda) - (lambda - lbar)'H(lambda - lbar)/2

n counts for how many rounds the model has been right up to noise. It sets both how long releases
are remembered and the gain ``n^-1/2``: an innovation that noise cannot explain makes the step a
secant step from few rounds, which is what noise-free tails and fleets need; under noise n is k, and
the step that of stochastic approximation with Polyak and Juditsky's averaging. D is the noise of
what has accumulated; it keeps prices where they are while a sum, wherever it is in its range,
cannot be told from its noise. In ``100 p`` only sums with noise count, and D is 0 without noise.

After round ``EVERY_ROUND`` V and B are learnt once in k // 100 rounds. More than ``DENSE`` sums are
learnt row by row: V is the identity, C_l, E and B are diagonal, and m is at least min(k, 3).
"""

from . import plain as cython
from .linear import add_spectral, eigen, multiply_matrices
from .plain import *
from .plain import Struct as CloudView
from .plain import Struct as DualModel
from .plain import Struct as PublicSet
from .plain import fill_struct as fill_cloud_view
from .plain import fill_struct as fill_public_set
from .prices import TINY, maximise, prices_work
from .projection import project
from .public_cost import prox

DENSE = 24  # up to so many sums the slope is a full matrix
EXPLAINED = 100.0  # ten standard deviations; three make prices follow noise: 1.20 against 1.09
OBSCURED = 0.3  # of (sigma / range)^2; 0 lets noise multiply prices, 1 is slow where range = sigma
FIRST_ROUNDS = 10.0  # in which the unit of prices is still to be found
NOISE_FREE = 0.4  # of the reach where there is no noise to average out
SEARCH_ROUNDS = 100.0  # without noise, after which the reach falls: flat agents' secants mislead
MIN_MEMORY = 2.0  # rounds remembered besides one per direction, or secants would be of rounding
MIN_SPREAD = 0.03  # what a direction may need at any time, as a share of the largest
STILL = 1e-10  # in units of the sums: a move this small is rounding and teaches no slope
ALIKE = 1e-9  # relative: eigenvalues of C whose sum is below are not divided by
RUNAWAY = 1e20  # no objective is worth so much: contributions do not answer to prices
EVERY_ROUND = 200  # rounds that learn a new slope each; later ones once per hundredth of k


def entries(p):
    """The length of a matrix over p sums: full, or its diagonal where there are many."""
    return p * p if p <= DENSE else p


def kept_size(p):
    """How much of the memory lasts from round to round; what follows is scratch.

    n, the last squared innovation, then of length p each ``lbar, ybar, u, c``, then
    ``C, E, B, V``, row by row, each of length ``entries(p)``.
    """
    return 2 + 4 * p + 4 * entries(p)


def memory_size(p):
    """The length of the memory, scratch at its end included."""
    return kept_size(p) + 5 * p + 4 * entries(p) + prices_work(p, entries(p))


def lay_out_cloud(cloud):
    """Point to the parts of the memory."""
    p, m = cloud.p, entries(cloud.p)
    at = skip(cloud.memory, 2)
    cloud.mean_price = at
    cloud.mean_sum = skip(at, p)
    cloud.aim = skip(at, 2 * p)
    cloud.spread = skip(at, 3 * p)
    at = skip(at, 4 * p)
    cloud.covariance = at
    cloud.response = skip(at, m)
    cloud.slope = skip(at, 2 * m)
    cloud.basis = skip(at, 3 * m)
    at = skip(at, 4 * m)
    cloud.total = at
    cloud.pull = skip(at, p)
    cloud.H = skip(at, 2 * p)
    cloud.work = skip(at, 2 * p + m)


def cloud_round(cloud, k, y, share, steer):
    """One round: averages, steering, ``cloud_step``; return whether prices stay bounded.

        answer += share (lambda - answer),   Ybar += share (y - Ybar)
        y := y + steer (Ybar - P_C(Ybar))

    With a plan the answer averages the prices whose releases it averages; without one it is the
    last. Steering aims prices so that the average of all releases, not the last ones, meets C.

    A run that begins with an earlier one's memory goes on as its round ``begun + k``. Its first
    release teaches nothing: agents have heard no price yet.

    Args:
        cloud: the cloud's state and what is public.
        k: the round, from 1.
        y: its release; with steering it is changed.
        share: the round's weight in the answer.
        steer: the gain of steering, 0 for none.
    """
    p = cloud.p
    if cloud.planned:
        for o in range(p):
            cloud.answer[o] += share * (cloud.price[o] - cloud.answer[o])
            cloud.released[o] += share * (y[o] - cloud.released[o])
        if steer > 0.0:
            nearest, ones, rest = cloud.work, skip(cloud.work, p), skip(cloud.work, 2 * p)
            fill(ones, 1.0, p)
            project(cloud.released, ones, cloud.public_set, nearest, rest)
            for o in range(p):
                y[o] += steer * (cloud.released[o] - nearest[o])
    bounded: cython.bint = True
    if k > 1 or cloud.begun == 0:
        bounded = cloud_step(cloud, k + cloud.begun, y)
    if not cloud.planned:
        for o in range(p):
            cloud.answer[o] += share * (cloud.price[o] - cloud.answer[o])
    return bounded


def cloud_step(cloud, k, y):
    """Turn lambda(k) into lambda(k+1), in place; return whether prices stay bounded."""
    p, memory = cloud.p, cloud.memory
    if k == 1:
        first_aim(cloud, y)
    for o in range(p):
        cloud.price[o] *= cloud.unit[o]
    count_rounds(cloud, k, y)
    dense: cython.bint = p <= DENSE
    kept = max(memory[0], min(k + 0.0, MIN_MEMORY + (p if dense else 1)))
    w = (1.0 + cloud.memory_power) / (kept + cloud.memory_power)
    remember(cloud, w)
    if k < EVERY_ROUND or k % (k // 100) == 0:
        if dense:
            learn(cloud)
        else:
            learn_rows(cloud)
    regularise(cloud, 1.0 / w, reach_now(cloud, k))
    build_model(cloud, sqrt(memory[0]))
    for o in range(p):
        cloud.total[o] = cloud.mean_sum[o] / w
    maximise_model(cloud, 1.0 / w)
    bounded: cython.bint = True
    for o in range(p):
        # A comparison with NaN is false.
        bounded = bounded and fabs(cloud.price[o]) < RUNAWAY and fabs(cloud.total[o]) < RUNAWAY
        cloud.price[o] /= cloud.unit[o]
    return bounded


def first_aim(cloud, y):
    """Where sums should be at prices 0: in C, at a low public cost, and near y.

    A cost counts against a move by one unit as the first step does, by ``start``, and moves no sum
    further than it can go.
    """
    public_set, weight = cloud.public_set, cloud.pull
    fill(weight, 1.0, cloud.p)
    for r in range(public_set.regions):
        for i in range(public_set.starts[r], public_set.starts[r + 1]):
            o = public_set.members[i]
            if public_set.kinds[r] > LEVEL:
                weight[o] = cloud.start / (cloud.unit[o] * cloud.unit[o])
    prox(y, weight, public_set, cloud.aim, cloud.work)
    for r in range(public_set.regions):
        for i in range(public_set.starts[r], public_set.starts[r + 1]):
            o = public_set.members[i]
            if public_set.kinds[r] > LEVEL:
                cloud.aim[o] = min(max(cloud.aim[o], public_set.least[i]), public_set.most[i])
    for o in range(cloud.p):
        cloud.aim[o] /= cloud.unit[o]


def maximise_model(cloud, recent):
    """The inner problem."""
    model = cython.declare(DualModel)
    model.p = cloud.p
    model.dense = cloud.p <= DENSE
    model.H = cloud.H
    model.recent = recent
    model.total = cloud.total
    model.unit = cloud.unit
    model.public_set = cloud.public_set
    maximise(cython.address(model), cloud.mean_price, cloud.price, cloud.aim, cloud.work)


def count_rounds(cloud, k, y):
    """Count how long the model has been right, in ``memory[0]``; fill what is new into work.

    ``work[:p] = lambda - lbar`` and ``work[p:2p] = y - ybar``, with the means before this round.
    """
    p, memory, work = cloud.p, cloud.memory, cloud.work
    for o in range(p):
        work[o] = cloud.price[o] - cloud.mean_price[o]
        work[p + o] = y[o] / cloud.unit[o] - cloud.mean_sum[o]
    innovation, explained = 0.0, 0.0
    for o in range(p):
        error = work[p + o]
        for q in range(0 if p <= DENSE else o, p if p <= DENSE else o + 1):
            error += cloud.slope[o * p + q if p <= DENSE else o] * work[q]
        innovation += error * error
        explained += EXPLAINED if cloud.noise[o] > 0.0 else 0.0
    if k > 1 and explained < innovation and innovation < memory[1]:
        memory[0] *= explained / innovation
    memory[0] += 1.0
    if k > 1:
        memory[1] = max(innovation, 0.5 * memory[1])


def remember(cloud, w):
    """Take this round into the recent means and covariances."""
    p, fresh = cloud.p, cloud.work
    moved = 0.0
    for o in range(p):
        # A sum that is off its aim and yet does not move has a slope of 0, which is to be learnt.
        missed = cloud.mean_sum[o] + fresh[p + o] - cloud.aim[o]
        moved = max(moved, fabs(fresh[p + o]), fabs(missed))
    dense: cython.bint = p <= DENSE
    for o in range(p if moved > STILL else 0):
        for q in range(0 if dense else o, p if dense else o + 1):
            i = o * p + q if dense else o
            cloud.covariance[i] = (1.0 - w) * (cloud.covariance[i] + w * fresh[o] * fresh[q])
            cloud.response[i] = (1.0 - w) * (cloud.response[i] - w * fresh[p + o] * fresh[q])
    for o in range(p):
        cloud.mean_price[o] += w * fresh[o]
        cloud.mean_sum[o] += w * fresh[p + o]


def learn(cloud):
    """The metric: ``C = V diag(c) V'`` and ``B = V'(E + E')V / (c_e + c_f)``, not negative."""
    p, m = cloud.p, cloud.p * cloud.p
    matrix, rotated, other = cloud.work, skip(cloud.work, m), skip(cloud.work, 2 * m)
    values, spread, basis = skip(cloud.work, 3 * m), cloud.spread, cloud.basis
    copy_some(matrix, cloud.covariance, m)
    eigen(p, matrix, spread, basis)
    largest = 0.0
    for e in range(p):
        spread[e] = max(spread[e], 0.0)
        largest = max(largest, spread[e])
    for o in range(p):
        for q in range(p):
            matrix[o * p + q] = cloud.response[o * p + q] + cloud.response[q * p + o]
    multiply_matrices(p, matrix, basis, other)
    for e in range(p):
        for f in range(e + 1):
            value = 0.0
            for o in range(p):
                value += basis[o * p + e] * other[o * p + f] + basis[o * p + f] * other[o * p + e]
            value = 0.5 * value / (spread[e] + spread[f] + ALIKE * largest + TINY)
            matrix[e * p + f] = value
            matrix[f * p + e] = value
    eigen(p, matrix, values, rotated)
    multiply_matrices(p, basis, rotated, other)
    for e in range(p):
        values[e] = max(values[e], 0.0)
    fill(cloud.slope, 0.0, m)
    add_spectral(p, other, values, cloud.slope)


def learn_rows(cloud):
    """The same row by row: ``c = C_oo`` and ``B_oo = E_oo / C_oo``, not negative."""
    for o in range(cloud.p):
        spread = max(cloud.covariance[o], 0.0)
        cloud.spread[o] = spread
        cloud.slope[o] = max(cloud.response[o], 0.0) / (spread + TINY)


def reach_now(cloud, k):
    """``reach (1 + min(1, 10/k))``; without noise ``0.4 reach (1 + min(1, 100/k))``."""
    most = cloud.reach if cloud.planned else NOISE_FREE * cloud.reach
    return most * (1.0 + min(1.0, (FIRST_ROUNDS if cloud.planned else SEARCH_ROUNDS) / k))


def regularise(cloud, recent, reach):
    """Fill ``R_e``: what holds prices back where no slope is seen yet."""
    p, basis = cloud.p, cloud.basis
    dense: cython.bint = p <= DENSE
    largest = 0.0
    for e in range(p):
        along = cloud.price[e] - cloud.mean_price[e]
        if dense:
            along = 0.0
            for o in range(p):
                along += basis[o * p + e] * (cloud.price[o] - cloud.mean_price[o])
        largest = max(largest, cloud.spread[e], along * along)
    pooled = max(cloud.start, MIN_SPREAD * sqrt(largest))
    pooled = pooled * pooled
    for e in range(p):
        along, noisy = 0.0, 0.0
        for o in range(0 if dense else e, p if dense else e + 1):
            part, noise = basis[o * p + e] if dense else 1.0, cloud.noise[o]
            along += part * (cloud.mean_sum[o] - cloud.aim[o])
            if noise > 0.0:
                part *= 1.0 + OBSCURED * noise * noise / recent
                noisy += part * part
        held = cloud.doubt * sqrt(noisy * recent) + recent * fabs(along) / reach
        cloud.pull[e] = max(held, TINY) / sqrt(cloud.spread[e] + pooled)


def build_model(cloud, inverse_gain):
    """Fill ``H = B / gamma + V diag(R) V'``."""
    p = cloud.p
    for i in range(entries(p)):
        cloud.H[i] = cloud.slope[i] * inverse_gain + (cloud.pull[i] if p > DENSE else 0.0)
    if p <= DENSE:
        add_spectral(p, cloud.basis, cloud.pull, cloud.H)


class CloudCore:
    """Owns what a ``CloudView`` points to; ``sottovoce.kernels.cloud_kernel`` makes it.

    Args:
        arrays: by name, those of ``CloudView`` and ``PublicSet``; all are kept as they are.
        constants: ``memory_power, doubt, reach, start, planned, begun``.
    """

    def __init__(self, arrays, constants):
        self.arrays = arrays
        if not cython.compiled:
            self.c_set, self.view = PublicSet(), CloudView()
        view = cython.address(self.view)
        fill_public_set(cython.address(self.c_set), arrays)
        self.c_set.sums = len(arrays["lower"])
        self.c_set.regions = len(arrays["radii"])
        fill_cloud_view(view, arrays | constants)
        view.p = len(arrays["price"])
        view.public_set = cython.address(self.c_set)
        lay_out_cloud(view)

    def round(self, k, y, share, steer):
        """``cloud_round``; y is changed by steering."""
        return cloud_round(cython.address(self.view), k, doubles(y), share, steer)

    def nearest(self, v, metric, u, work, priced):
        """Fill u with the point of C nearest to v; ``priced``, with the public cost of u beside."""
        c_set, weight = cython.address(self.c_set), doubles(metric)
        if priced:
            prox(doubles(v), weight, c_set, doubles(u), doubles(work))
        else:
            project(doubles(v), weight, c_set, doubles(u), doubles(work))


def cloud_view(core):
    """The struct of a ``CloudCore``."""
    return cython.address(core.view)
