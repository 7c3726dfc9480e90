"""A separable convex quadratic over a box and one linear row: a search for the row's multiplier.

    minimise  sum_c g_c (x_c - p_c) + w_c/2 (x_c - p_c)^2    over  lower <= x <= upper,
    with      least <= a'x <= most,   or with the price  (a'x - goal)^2 / (2 give)  of a miss

Given the row's multiplier nu every component has its minimiser in closed form,
``x_c(nu) = inside(p_c - (g_c + nu a_c)/w_c)``, and ``a'x(nu) - goal - give nu`` falls in nu, in
straight pieces: Newton's steps find its zero, kept between two multipliers on either side of it.
The answer mixes the points at both so that the row holds exactly; on one straight piece that is the
minimiser itself, and where components without curvature jump it is one of the minimisers.
"""

from __future__ import annotations

from typing import Any

from sottovoce.algorithm.home_block import (
    CURVATURE,
    EXACT,
    F_LEFT,
    F_RIGHT,
    FALL,
    FREE,
    GIVE,
    GOAL,
    LEAST,
    LEFT,
    LOWER,
    MOST,
    NU,
    OPEN,
    POINT,
    RIGHT,
    ROW,
    SLOPE,
    STEP,
    SUM,
    UPPER,
    VECTORS,
    every,
    inside,
    larger,
    load,
    select,
    some,
    store,
)  # fmt: skip

_TURNS = 140
_NEWTON = 6  # turns after which every other one halves the bracket: 64 halvings always suffice
_EXACT = 2.0**-46  # of the row's own size, where rounding begins
_LEAST_SQUARE = 2.0**-400
_SLIGHT = 2.0**-36  # the least curvature, as a share of the steepest slope over a width


def box_search(size: Any, at: Any, work: Any) -> None:
    """Fill FREE with the minimiser over the box alone: ``inside(p - g/w)``."""
    curvatures(size, at, work)
    low, high, free = at + LOWER * size, at + UPPER * size, at + FREE * size
    for c in range(size):
        y = inside(load(work, free + c), load(work, low + c), load(work, high + c))
        store(work, free + c, y)


def row_search(size: Any, at: Any, work: Any) -> None:
    """Fill FREE with the minimiser over the box and one row.

    Args:
        size: d, the number of components.
        at: where the agent's numbers begin: the vectors POINT, SLOPE, CURVATURE, LOWER, UPPER and
            ROW, and the row's LEAST, MOST and GIVE.
        work: holds them, and scratch.
    """
    curvatures(size, at, work)
    steps(size, at, ROW, work)
    solve_row(size, at, work)


def solve_row(size: Any, at: Any, work: Any) -> None:
    """Take ``p - g/w`` in FREE to the minimiser over the box and the row."""
    first = at + VECTORS * size
    bracket(size, at, work)
    if intervals(first, work):
        residual(size, at, work)
    choose_goal(first, work)
    first_multiplier(size, at, work)
    for turn in range(_TURNS):
        residual(size, at, work)
        if not advance(first, work, turn > _NEWTON and turn % 2 == 0):
            break
    mix(size, at, work)


def curvatures(size: Any, at: Any, work: Any) -> None:
    """Raise curvatures to where a quotient is safe, and fill FREE with ``p - g/w``.

    A component without curvature gets so little that it only settles ties, towards p.
    """
    slope, curvature, free = at + SLOPE * size, at + CURVATURE * size, at + FREE * size
    low, high, point = at + LOWER * size, at + UPPER * size, at + POINT * size
    steepest = every(0.0)
    for c in range(size):
        steepest = larger(steepest, abs(load(work, slope + c)))
    slight = _SLIGHT * select(steepest > 0.0, steepest, 1.0)
    for c in range(size):
        width = load(work, high + c) - load(work, low + c)
        w = larger(slight / select(width > 0.0, width, 1.0), load(work, curvature + c))
        store(work, curvature + c, w)
        store(work, free + c, load(work, point + c) - load(work, slope + c) / w)


def steps(size: Any, at: Any, row: Any, work: Any) -> None:
    """Fill the vector after a row's factors a with ``a/w``, how far x goes per unit of nu."""
    factor, step, curvature = at + row * size, at + (row + 1) * size, at + CURVATURE * size
    for c in range(size):
        store(work, step + c, load(work, factor + c) / load(work, curvature + c))


def bracket(size: Any, at: Any, work: Any) -> None:
    """Fill LEFT and RIGHT with multipliers at which all components of the row are at a bound.

    F_LEFT and F_RIGHT become the greatest and the least value of the row in the box.
    """
    low, high, free = at + LOWER * size, at + UPPER * size, at + FREE * size
    row, curvature, first = at + ROW * size, at + CURVATURE * size, at + VECTORS * size
    greatest, least, scale = every(0.0), every(0.0), every(0.0)
    strongest, weakest = every(0.0), every(0.0)
    for c in range(size):
        lower, upper, y = load(work, low + c), load(work, high + c), load(work, free + c)
        a = load(work, row + c)
        one, other = a * lower, a * upper
        greatest = greatest + larger(one, other)
        least = least + select(one > other, other, one)
        scale = scale + larger(abs(one), abs(other))
        force = load(work, curvature + c) * larger(abs(y - lower), abs(y - upper))
        factor = abs(a)
        strongest = select(factor > 0.0, larger(strongest, force), strongest)
        smaller = (factor > 0.0) & ((weakest == 0.0) | (factor < weakest))
        weakest = select(smaller, factor, weakest)
    reach = 2.0 * strongest / select(weakest > 0.0, weakest, 1.0)
    store(work, first + LEFT, -reach)
    store(work, first + RIGHT, reach)
    store(work, first + F_LEFT, greatest)
    store(work, first + F_RIGHT, least)
    store(work, first + EXACT, _EXACT * scale)


def intervals(first: Any, work: Any) -> Any:
    """Whether the row is an interval; NU and GOAL are then 0."""
    goal = load(work, first + LEAST)
    interval = goal < load(work, first + MOST)
    store(work, first + NU, every(0.0))
    store(work, first + GOAL, select(interval, 0.0, goal))
    return some(interval)


def choose_goal(first: Any, work: Any) -> None:
    """Where a row is an interval, see from its value at ``nu = 0``, SUM, which end holds, if any.

    F_LEFT and F_RIGHT come as the row's greatest and least value and leave as the residual's.
    """
    least, most = load(work, first + LEAST), load(work, first + MOST)
    found = load(work, first + SUM)
    interval = least < most
    over, under = interval & (found > most), interval & (found < least)
    held = interval & (found <= most) & (found >= least)
    goal = select(interval, inside(found, least, most), least)
    store(work, first + GOAL, goal)
    store(work, first + OPEN, select(held, 0.0, 1.0))
    nothing = every(0.0)
    above = larger(nothing, load(work, first + F_LEFT) - goal)
    below = -larger(nothing, goal - load(work, first + F_RIGHT))
    beyond = found - goal
    store(work, first + F_LEFT, select(held, nothing, select(over, beyond, above)))
    store(work, first + F_RIGHT, select(held, nothing, select(under, beyond, below)))
    store(work, first + LEFT, select(over | held, nothing, load(work, first + LEFT)))
    store(work, first + RIGHT, select(under | held, nothing, load(work, first + RIGHT)))
    store(work, first + EXACT, load(work, first + EXACT) + _EXACT * abs(goal))


def first_multiplier(size: Any, at: Any, work: Any) -> None:
    """Fill NU with the multiplier if no bound takes or leaves hold of a component since p."""
    low, high, point = at + LOWER * size, at + UPPER * size, at + POINT * size
    row, step, free = at + ROW * size, at + STEP * size, at + FREE * size
    first, nothing = at + VECTORS * size, every(0.0)
    total, fall = -load(work, first + GOAL), load(work, first + GIVE)
    for c in range(size):
        p, a = load(work, point + c), load(work, row + c)
        loose = (p > load(work, low + c)) & (p < load(work, high + c))
        total = total + a * select(loose, load(work, free + c), p)
        fall = fall + select(loose, a * load(work, step + c), nothing)
    left, right = load(work, first + LEFT), load(work, first + RIGHT)
    nu = total / select(fall > 0.0, fall, 1.0)
    within = (nu > left) & (nu < right)
    store(work, first + NU, select(within, nu, 0.5 * (left + right)))


def residual(size: Any, at: Any, work: Any) -> None:
    """Fill SUM with ``a'x(nu) - goal - give nu``, and FALL with how fast it falls in nu."""
    low, high, first = at + LOWER * size, at + UPPER * size, at + VECTORS * size
    row, step, free = at + ROW * size, at + STEP * size, at + FREE * size
    nu, fall, nothing = load(work, first + NU), load(work, first + GIVE), every(0.0)
    total = -load(work, first + GOAL) - fall * nu
    for c in range(size):
        a, v = load(work, row + c), load(work, step + c)
        lower, upper = load(work, low + c), load(work, high + c)
        y = load(work, free + c) - nu * v
        total = total + a * inside(y, lower, upper)
        fall = fall + select((y > lower) & (y < upper), a * v, nothing)
    store(work, first + SUM, total)
    store(work, first + FALL, fall)


def advance(first: Any, work: Any, halve: Any) -> Any:
    """Take NU to the next multiplier to look at; whether there is one."""
    nu, f, fall = load(work, first + NU), load(work, first + SUM), load(work, first + FALL)
    shut = load(work, first + OPEN) <= 0.0
    # A residual that is no number ends the search on both sides: the answer is none either.
    rising, falling = shut | (f < 0.0), shut | (f > 0.0)
    left = select(rising, load(work, first + LEFT), nu)
    right = select(falling, load(work, first + RIGHT), nu)
    store(work, first + LEFT, left)
    store(work, first + RIGHT, right)
    store(work, first + F_LEFT, select(rising, load(work, first + F_LEFT), f))
    store(work, first + F_RIGHT, select(falling, load(work, first + F_RIGHT), f))
    there = 0.5 * (left + right)
    if not halve:
        newton = nu + f / select(fall > 0.0, fall, 1.0)
        there = select((newton > left) & (newton < right), newton, there)
    inexact = abs(f) > load(work, first + EXACT)
    again = select(shut, 0.0, 1.0) > 0.0
    again = again & inexact & (there > left) & (there < right)
    store(work, first + NU, select(again, there, nu))
    store(work, first + OPEN, select(again, 1.0, 0.0))
    return some(again)


def mix(size: Any, at: Any, work: Any) -> None:
    """Fill FREE with the point between x(LEFT) and x(RIGHT) at which the row holds."""
    low, high, first = at + LOWER * size, at + UPPER * size, at + VECTORS * size
    step, free = at + STEP * size, at + FREE * size
    left, right = load(work, first + LEFT), load(work, first + RIGHT)
    share = mixed_share(first, work)
    for c in range(size):
        lower, upper = load(work, low + c), load(work, high + c)
        u, v = load(work, free + c), load(work, step + c)
        one, other = inside(u - left * v, lower, upper), inside(u - right * v, lower, upper)
        store(work, free + c, inside(one + share * (other - one), lower, upper))


def mixed_share(first: Any, work: Any) -> Any:
    """How far from LEFT to RIGHT a straight line between both residuals is 0."""
    above, below = load(work, first + F_LEFT), load(work, first + F_RIGHT)
    apart = above - below
    return select(apart > 0.0, above / select(apart > 0.0, apart, 1.0), 0.0)


def softness(k: Any) -> Any:
    """``give`` of a square ``k (a'x - e)^2`` in the objective: ``1/(2 k)``, finite also for 0."""
    return 0.5 / larger(_LEAST_SQUARE, k)
