"""A fleet in memory: states, parameters, weights, tapes; prices in, contributions out.

Agents lie in blocks of ``width`` lanes, 16 or 1: component c of lane l of block b is
``x[(b d + c) width + l]``; parameters, bounds and dense weights are laid out likewise. Registers of
a block: x (n: the d components and variables more), parameters, multipliers m_t of the T terms,
multipliers of local rows, and what tapes use besides.

A term h_t adds to the sums in one of three ways:

    plain     h_t to row term_row[t]
    dense     W[r, i] h_t to row first_row + r terms + t, W laid out by blocks
    entries   by agent: weight times h_term to row, a sparse table; all terms of an agent alone

Sums are kept per lane and chunk of blocks and added in a fixed order: no number depends on how many
threads there are.
"""

from . import plain as cython
from .interpreter import accumulate, accumulate_product
from .plain import *
from .plain import Struct as FleetView
from .plain import fill_struct as fill_fleet_view


def output(fleet, tape, i):
    """Where output i of a tape is."""
    return skip(fleet.r, tape.outputs[i] * fleet.width)


def lower_of(fleet, b):
    """The lower bounds of block b."""
    return skip(fleet.lower, b * fleet.lower_stride)


def upper_of(fleet, b):
    """Its upper bounds."""
    return skip(fleet.upper, b * fleet.upper_stride)


def lanes_used(fleet, b):
    """How many lanes of block b have an agent."""
    return min(fleet.width, fleet.count - b * fleet.width)


def load(fleet, b, states):
    """States and parameters of block b into registers."""
    width, size = fleet.width, fleet.parameters * fleet.width
    copy_some(fleet.r, skip(states, b * fleet.d * width), fleet.d * width)
    copy_some(skip(fleet.r, fleet.n * width), skip(fleet.data, b * size), size)


def set_prices(fleet, price):
    """The multipliers of plain terms, the same for all blocks."""
    for t in range(fleet.terms):
        if fleet.term_row[t] >= 0:
            to = skip(fleet.r, (fleet.multiplier + t) * fleet.width)
            fill(to, price[fleet.term_row[t]], fleet.width)


def weigh_prices(fleet, b, price):
    """The multipliers ``m_t = sum_r price_rt W[r, i]`` of weighted terms of block b."""
    width = fleet.width
    if fleet.weighted == 0:
        return
    multiplier = skip(fleet.r, fleet.multiplier * width)
    for t in range(fleet.terms):
        if fleet.term_row[t] < 0:
            fill(skip(multiplier, t * width), 0.0, width)
    for s in range(fleet.dense):
        rows, terms, first = fleet.dense_rows[s], fleet.dense_terms[s], fleet.dense_first[s]
        weights = skip(fleet.dense_weights, fleet.dense_start[s] + b * rows * width)
        for t in range(terms):
            to = skip(multiplier, (first + t) * width)
            for r in range(rows):
                value = price[fleet.dense_row[s] + r * terms + t]
                add_scaled(to, skip(weights, r * width), value, width)
    if fleet.entries > 0:
        for lane in range(lanes_used(fleet, b)):
            weigh_entries(fleet, b * width + lane, skip(multiplier, lane), price)


def weigh_entries(fleet, agent, multiplier, price):
    """Add the entries' part of an agent's multipliers."""
    for e in range(fleet.entry_start[agent], fleet.entry_start[agent + 1]):
        t = fleet.entry_term[e] * fleet.width
        multiplier[t] += price[fleet.entry_row[e]] * fleet.entry_weight[e]


def add_scaled(to, a, value, width):
    """``to += value a``."""
    if width == LANES:
        add_scaled_row(to, a, value)
    else:
        to[0] += value * a[0]


def add_scaled_row(to, a, value):
    """``to += value a`` in lanes."""
    for lane in range(LANES):
        to[lane] += value * a[lane]


def add_contributions(fleet, b, tape, grid, gridded, sums):
    """Add h of block b, the first outputs of a tape, to the sums; as grid steps if ``gridded``.

    Entries go to ``sums`` at once, all others stay in lanes until ``gather``.
    """
    width, used = fleet.width, lanes_used(fleet, b)
    for t in range(fleet.terms):
        o = fleet.term_row[t]
        if o >= 0:
            to, step = skip(fleet.lane_sums, t * width), grid[o] if gridded else 0.0
            add_term(to, output(fleet, tape, t), step, used)
    for s in range(fleet.dense):
        rows, terms, first = fleet.dense_rows[s], fleet.dense_terms[s], fleet.dense_first[s]
        weights = skip(fleet.dense_weights, fleet.dense_start[s] + b * rows * width)
        for r in range(rows):
            for t in range(terms):
                i = r * terms + t
                to = skip(fleet.lane_sums, (fleet.dense_sum[s] + i) * width)
                step = grid[fleet.dense_row[s] + i] if gridded else 0.0
                h = output(fleet, tape, first + t)
                add_weighted(to, h, skip(weights, r * width), step, used)
    if fleet.entries > 0:
        for lane in range(used):
            add_entries(fleet, b * width + lane, lane, tape, grid, gridded, sums)


def add_entries(fleet, agent, lane, tape, grid, gridded, sums):
    """Add the entries of an agent."""
    for e in range(fleet.entry_start[agent], fleet.entry_start[agent + 1]):
        o = fleet.entry_row[e]
        value = output(fleet, tape, fleet.entry_term[e])[lane] * fleet.entry_weight[e]
        sums[o] += rint(value / grid[o]) if gridded else value


def add_term(to, h, step, used):
    """``to += h``, in grid steps where there is a grid."""
    if step > 0.0:
        for lane in range(used):
            to[lane] += rint(h[lane] / step)
    elif used == LANES:
        accumulate(to, h, LANES)
    else:
        for lane in range(used):
            to[lane] += h[lane]


def add_weighted(to, h, weight, step, used):
    """``to += h w``, in grid steps where there is a grid."""
    if step > 0.0:
        for lane in range(used):
            to[lane] += rint(h[lane] * weight[lane] / step)
    elif used == LANES:
        accumulate_product(to, h, weight, LANES)
    else:
        for lane in range(used):
            to[lane] += h[lane] * weight[lane]


def clear(fleet):
    """Empty the lanes' sums before a chunk."""
    fill(fleet.lane_sums, 0.0, fleet.sum_rows * fleet.width)


def gather(fleet, sums):
    """Add the lanes' sums to a chunk's, in order."""
    width = fleet.width
    for t in range(fleet.terms):
        if fleet.term_row[t] >= 0:
            gather_row(skip(fleet.lane_sums, t * width), skip(sums, fleet.term_row[t]), width)
    for s in range(fleet.dense):
        for r in range(fleet.dense_rows[s] * fleet.dense_terms[s]):
            lanes = skip(fleet.lane_sums, (fleet.dense_sum[s] + r) * width)
            gather_row(lanes, skip(sums, fleet.dense_row[s] + r), width)


def gather_row(lanes, total, width):
    """Add up lanes."""
    value = total[0]
    for lane in range(width):
        value += lanes[lane]
    total[0] = value


class FleetCore:
    """Owns what a ``FleetView`` points to; ``sottovoce.kernels.fleet_kernel`` makes it.

    Args:
        sizes: the integers of ``FleetView``, by name.
        arrays: its arrays, by name; all are kept as they are.
        tapes: its tapes, by name: code for one, for lanes, and the outputs.
    """

    def __init__(self, sizes, arrays, tapes):
        self.arrays = arrays
        self.tapes = tapes
        if not cython.compiled:
            self.view = FleetView()
        view = cython.address(self.view)
        fill_fleet_view(view, sizes | arrays | tapes)
        view.blocks = (view.count + view.width - 1) // view.width
        view.weighted = view.dense + view.entries


def fleet_view(core):
    """The struct of a ``FleetCore``."""
    return cython.address(core.view)
