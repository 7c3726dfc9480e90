"""The same over a box and two linear rows: a search for one multiplier around that for another.

For a multiplier of the second row ``solve_row`` minimises over the box and the first row. The
second row's residual falls in its own multiplier, so the search around is the same search.
"""

from __future__ import annotations

from typing import Any

from sottovoce.algorithm.dual_search import (
    advance,
    choose_goal,
    curvatures,
    intervals,
    mixed_share,
    solve_row,
    steps,
)  # fmt: skip
from sottovoce.algorithm.home_block import (
    CURVATURE,
    EXACT,
    F_LEFT,
    F_RIGHT,
    FALL,
    FREE,
    GIVE,
    GOAL,
    LEFT,
    LOWER,
    NU,
    NUMBERS,
    ONE,
    OPEN,
    OTHER,
    RIGHT,
    ROW,
    SIDEWAYS,
    START,
    STEP,
    SUM,
    TWO,
    UPPER,
    VECTORS,
    every,
    inside,
    larger,
    load,
    select,
    store,
)  # fmt: skip

_TURNS = 240
_NEWTON = 12
_EXACT = 2.0**-44  # of the row's own size, where rounding begins
_FAR = 2.0**40  # how much larger multipliers may be where rows are nearly parallel


def two_row_search(size: Any, at: Any, work: Any) -> None:
    """Fill FREE with the minimiser over the box and two rows, ROW and OTHER with their numbers.

    The arguments are those of ``row_search``.
    """
    second = at + VECTORS * size + NUMBERS
    curvatures(size, at, work)
    steps(size, at, ROW, work)
    steps(size, at, OTHER, work)
    wide_bracket(size, at, work)
    for c in range(size):
        store(work, at + START * size + c, load(work, at + FREE * size + c))
    if intervals(second, work):
        other_residual(size, at, work)
    choose_goal(second, work)
    for turn in range(_TURNS):
        other_residual(size, at, work)
        keep_ends(size, at, work, turn == 0)
        if not advance(second, work, turn > _NEWTON and turn % 2 == 0):
            break
    mix_ends(size, at, work)


def wide_bracket(size: Any, at: Any, work: Any) -> None:
    """Fill the second row's bracket; what its ends' residuals are nobody knows but their signs."""
    low, high, free = at + LOWER * size, at + UPPER * size, at + FREE * size
    row, curvature = at + OTHER * size, at + CURVATURE * size
    second, strongest, scale = at + VECTORS * size + NUMBERS, every(0.0), every(0.0)
    for c in range(size):
        lower, upper, y = load(work, low + c), load(work, high + c), load(work, free + c)
        a = abs(load(work, row + c))
        scale = scale + a * larger(abs(lower), abs(upper))
        force = load(work, curvature + c) * larger(abs(y - lower), abs(y - upper))
        force = force / select(a > 0.0, a, 1.0)
        strongest = larger(strongest, select(a > 0.0, force, 0.0))
    store(work, second + LEFT, -_FAR * strongest)
    store(work, second + RIGHT, _FAR * strongest)
    store(work, second + F_LEFT, 4.0 * scale)
    store(work, second + F_RIGHT, -4.0 * scale)
    store(work, second + EXACT, _EXACT * scale)


def other_residual(size: Any, at: Any, work: Any) -> None:
    """Minimise at the second row's multiplier; fill its SUM and FALL, and FREE.

    With the first row holding, x moves along what is left of the second: FALL is
    ``D22 - D12^2/D11`` of the components that no bound holds.
    """
    first, nothing = at + VECTORS * size, every(0.0)
    second = first + NUMBERS
    free, start, sideways = at + FREE * size, at + START * size, at + SIDEWAYS * size
    low, high, step = at + LOWER * size, at + UPPER * size, at + STEP * size
    row, other = at + ROW * size, at + OTHER * size
    nu = load(work, second + NU)
    for c in range(size):
        store(work, free + c, load(work, start + c) - nu * load(work, sideways + c))
    solve_row(size, at, work)
    fall, own, cross = load(work, second + GIVE), load(work, first + GIVE), nothing
    total = -load(work, second + GOAL) - fall * nu
    for c in range(size):
        x, a, b = load(work, free + c), load(work, row + c), load(work, other + c)
        loose = (x > load(work, low + c)) & (x < load(work, high + c))
        s = select(loose, load(work, sideways + c), nothing)
        total = total + b * x
        own = own + select(loose, a * load(work, step + c), nothing)
        cross = cross + a * s
        fall = fall + b * s
    idle = (load(work, first + LEFT) == 0.0) & (load(work, first + RIGHT) == 0.0)
    lost = cross * cross / select(own > 0.0, own, 1.0)
    store(work, second + SUM, total)
    store(work, second + FALL, fall - select(idle, nothing, lost))


def keep_ends(size: Any, at: Any, work: Any, begin: Any) -> None:
    """Keep the point just found as that of the end of the bracket which NU is about to become."""
    free, one, two = at + FREE * size, at + ONE * size, at + TWO * size
    second = at + VECTORS * size + NUMBERS
    f, shut = load(work, second + SUM), load(work, second + OPEN) <= 0.0
    rising, falling = shut | (f < 0.0), shut | (f > 0.0)
    for c in range(size):
        x = load(work, free + c)
        left, right = load(work, one + c), load(work, two + c)
        store(work, one + c, x if begin else select(rising, left, x))
        store(work, two + c, x if begin else select(falling, right, x))


def mix_ends(size: Any, at: Any, work: Any) -> None:
    """Fill FREE with the point between both ends' at which the second row holds too."""
    free, one, two = at + FREE * size, at + ONE * size, at + TWO * size
    low, high = at + LOWER * size, at + UPPER * size
    share = mixed_share(at + VECTORS * size + NUMBERS, work)
    for c in range(size):
        x, y = load(work, one + c), load(work, two + c)
        mixed = inside(x + share * (y - x), load(work, low + c), load(work, high + c))
        store(work, free + c, mixed)
