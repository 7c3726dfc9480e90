"""A separable convex quadratic over a box and up to two linear rows, sixteen agents in lanes.

    minimise  sum_c g_c (x_c - p_c) + w_c/2 (x_c - p_c)^2    over  lower <= x <= upper,
    with      least <= a'x <= most,   or with the penalty  (a'x - goal)^2 / (2 slack)  of a miss

Given the row's multiplier nu every component has its minimiser in closed form,
``x_c(nu) = clip(p_c - (g_c + nu a_c)/w_c)``, and the residual ``a'x(nu) - goal - slack nu`` falls
in nu, in straight pieces: Newton's steps find its zero, kept inside a bracket. The answer mixes the
points at both ends of the bracket so that the row holds exactly; on one straight piece that is the
minimiser itself, and where components without curvature jump it is one of the minimisers.

Two rows: for a multiplier of the second row the search over the first minimises; the second row's
residual falls in its own multiplier, so the search around is the same search.
"""

from . import plain as cython
from .plain import *
from .plain import Struct as SeparableProblem

MAX_STEPS, BEFORE_BISECTION = 140, 6  # then every other step bisects: 64 suffice
OUTER_STEPS, OUTER_BEFORE_BISECTION = 240, 12
ROW_EXACT = 2.0**-46  # of the row's own size, where rounding begins
OUTER_EXACT = 2.0**-44
MIN_CURVATURE = 2.0**-36  # as a share of the steepest slope over a width
NEARLY_PARALLEL = 2.0**40  # how much larger multipliers may be where rows are nearly parallel


def search_rows(d):
    """How many rows of lanes a search over d components takes."""
    return 9 * d


def lay_out_separable(problem, d, work):
    """Point to the parts of a search's work; point, bounds and x are the caller's."""
    if not cython.compiled:
        problem.first, problem.second = LaneStruct(), LaneStruct()
    problem.d = d
    problem.gradient = work
    problem.curvature = row(work, d)
    problem.first.factor = row(work, 2 * d)
    problem.first.step = row(work, 3 * d)
    problem.second.factor = row(work, 4 * d)
    problem.second.step = row(work, 5 * d)
    problem.unpriced = row(work, 6 * d)
    problem.left_end = row(work, 7 * d)
    problem.right_end = row(work, 8 * d)


def search(problem, rows):
    """Fill x with the minimiser over the box and no row, one or two."""
    free_minimum(problem)
    if rows == 0:
        for c in range(problem.d):
            clip_rows(row(problem.x, c), row(problem.lower, c), row(problem.upper, c))
        return
    set_steps(problem, cython.address(problem.first))
    if rows == 1:
        search_one(problem)
    else:
        search_two(problem)


def search_two(problem):
    """Take ``p - g/w`` in x to the minimiser over the box and both rows."""
    line = cython.address(problem.second)
    set_steps(problem, line)
    outer_bracket(problem)
    for c in range(problem.d):
        copy(row(problem.unpriced, c), row(problem.x, c))
    if any_interval(line):
        outer_residual(problem)
    choose_goal(line)
    for step in range(OUTER_STEPS):
        outer_residual(problem)
        for c in range(problem.d):
            left_end, right_end = row(problem.left_end, c), row(problem.right_end, c)
            keep_end(row(problem.x, c), left_end, right_end, line, step == 0)
        advance_row(line, step <= OUTER_BEFORE_BISECTION or step % 2 == 1)
        if not any_positive(line.open):
            break
    for c in range(problem.d):
        left_end, right_end = row(problem.left_end, c), row(problem.right_end, c)
        lower, upper = row(problem.lower, c), row(problem.upper, c)
        mix_ends(row(problem.x, c), left_end, right_end, lower, upper, line)


def search_one(problem):
    """Take ``p - g/w`` in x to the minimiser over the box and the first row."""
    line = cython.address(problem.first)
    bracket(problem)
    if any_interval(line):
        row_residual(problem)
    choose_goal(line)
    first_multiplier(problem)
    for step in range(MAX_STEPS):
        row_residual(problem)
        advance_row(line, step <= BEFORE_BISECTION or step % 2 == 1)
        if not any_positive(line.open):
            break
    for c in range(problem.d):
        lower, upper = row(problem.lower, c), row(problem.upper, c)
        mix_row(row(problem.x, c), row(line.step, c), lower, upper, line)


def free_minimum(problem):
    """Raise curvatures to where a quotient is safe, and fill x with ``p - g/w``.

    A component without curvature gets so little that it only breaks ties, towards p.
    """
    least = cython.declare(cython.double[16])
    spread(least, 0.0)
    for c in range(problem.d):
        slope = row(problem.gradient, c)
        for lane in range(LANES):
            size = fabs(slope[lane])
            least[lane] = size if size > least[lane] else least[lane]
    for lane in range(LANES):
        least[lane] = MIN_CURVATURE * (least[lane] if least[lane] > 0.0 else 1.0)
    for c in range(problem.d):
        free_component(
            row(problem.lower, c), row(problem.upper, c), least, row(problem.curvature, c),
            row(problem.point, c), row(problem.gradient, c), row(problem.x, c),
        )  # fmt: skip


def free_component(lower, upper, steep, curvature, point, slope, x):
    """One component of ``p - g/w``."""
    for lane in range(LANES):
        width = upper[lane] - lower[lane]
        least = steep[lane] / (width if width > 0.0 else 1.0)
        w = curvature[lane] if curvature[lane] > least else least
        curvature[lane] = w
        x[lane] = point[lane] - slope[lane] / w


def clip_rows(x, lower, upper):
    """Move x into the box."""
    for lane in range(LANES):
        y = lower[lane] if x[lane] < lower[lane] else x[lane]
        x[lane] = upper[lane] if y > upper[lane] else y


def set_steps(problem, line):
    """``a/w``: how far x goes per unit of nu."""
    for c in range(problem.d):
        quotient(row(line.step, c), row(line.factor, c), row(problem.curvature, c))


def quotient(to, a, b):
    """``a / b``."""
    for lane in range(LANES):
        to[lane] = a[lane] / b[lane]


def bracket(problem):
    """Fill the bracket with multipliers at which all components of the row are at a bound.

    The residuals at its ends become the row's greatest and least value in the box.
    """
    line = cython.address(problem.first)
    greatest, least, scale, strongest, weakest = (
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
        cython.declare(cython.double[16]),
    )  # fmt: skip
    for lane in range(LANES):
        greatest[lane] = least[lane] = scale[lane] = strongest[lane] = weakest[lane] = 0.0
    for c in range(problem.d):
        lower, upper, free = row(problem.lower, c), row(problem.upper, c), row(problem.x, c)
        factor, curvature = row(line.factor, c), row(problem.curvature, c)
        for lane in range(LANES):
            a = factor[lane]
            one, other = a * lower[lane], a * upper[lane]
            greatest[lane] = greatest[lane] + (other if other > one else one)
            least[lane] = least[lane] + (other if one > other else one)
            one, other = fabs(one), fabs(other)
            scale[lane] = scale[lane] + (other if other > one else one)
            one, other = fabs(free[lane] - lower[lane]), fabs(free[lane] - upper[lane])
            force = curvature[lane] * (other if other > one else one)
            a = fabs(a)
            more = force if force > strongest[lane] else strongest[lane]
            strongest[lane] = more if a > 0.0 else strongest[lane]
            smaller = a if a < weakest[lane] else weakest[lane]
            smaller = a if weakest[lane] == 0.0 else smaller
            weakest[lane] = smaller if a > 0.0 else weakest[lane]
    for lane in range(LANES):
        reach = 2.0 * strongest[lane] / (weakest[lane] if weakest[lane] > 0.0 else 1.0)
        line.left[lane] = -reach
        line.right[lane] = reach
        line.residual_left[lane] = greatest[lane]
        line.residual_right[lane] = least[lane]
        line.exact[lane] = ROW_EXACT * scale[lane]


def any_interval(line):
    """Whether any lane's row is an interval; nu and goal are then 0."""
    interval: cython.bint = False
    for lane in range(LANES):
        line.nu[lane] = 0.0
        line.goal[lane] = 0.0 if line.least[lane] < line.most[lane] else line.least[lane]
        interval = interval or line.least[lane] < line.most[lane]
    return interval


def choose_goal(line):
    """Where a row is an interval, its value at nu = 0 tells which end is active, if any.

    The residuals at the ends come as the row's greatest and least value.
    """
    for lane in range(LANES):
        low, high, value = line.least[lane], line.most[lane], line.residual[lane]
        interval = low < high
        over, under = interval & (value > high), interval & (value < low)
        inactive = interval & (value <= high) & (value >= low)
        near = low if value < low else value
        near = high if near > high else near
        aim = near if interval else low
        line.goal[lane] = aim
        line.open[lane] = 0.0 if inactive else 1.0
        above = line.residual_left[lane] - aim
        above = above if above > 0.0 else 0.0
        below = aim - line.residual_right[lane]
        below = -(below if below > 0.0 else 0.0)
        beyond = value - aim
        one, other = line.left[lane], line.right[lane]
        above = beyond if over else above
        below = beyond if under else below
        line.residual_left[lane] = 0.0 if inactive else above
        line.residual_right[lane] = 0.0 if inactive else below
        line.left[lane] = 0.0 if over | inactive else one
        line.right[lane] = 0.0 if under | inactive else other
        line.exact[lane] = line.exact[lane] + ROW_EXACT * fabs(aim)


def first_multiplier(problem):
    """Fill nu with the multiplier if the active bounds are those of p, or the bracket's middle."""
    line = cython.address(problem.first)
    total, fall = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    for lane in range(LANES):
        total[lane] = -line.goal[lane]
        fall[lane] = line.slack[lane]
    for c in range(problem.d):
        point, free, lower = row(problem.point, c), row(problem.x, c), row(problem.lower, c)
        upper, factor, step = row(problem.upper, c), row(line.factor, c), row(line.step, c)
        for lane in range(LANES):
            p, a, low, high = point[lane], factor[lane], lower[lane], upper[lane]
            y, v = free[lane], a * step[lane]
            y, v = y if p > low else p, v if p > low else 0.0
            y, v = y if p < high else p, v if p < high else 0.0
            total[lane] = total[lane] + a * y
            fall[lane] = fall[lane] + v
    for lane in range(LANES):
        value = total[lane] / (fall[lane] if fall[lane] > 0.0 else 1.0)
        within = (value > line.left[lane]) & (value < line.right[lane])
        line.nu[lane] = value if within else 0.5 * (line.left[lane] + line.right[lane])


def row_residual(problem):
    """Fill ``a'x(nu) - goal - slack nu``, and how fast it falls in nu."""
    line = cython.address(problem.first)
    total, fall = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    for lane in range(LANES):
        fall[lane] = line.slack[lane]
        total[lane] = -line.goal[lane] - line.slack[lane] * line.nu[lane]
    for c in range(problem.d):
        factor, step, free = row(line.factor, c), row(line.step, c), row(problem.x, c)
        lower, upper = row(problem.lower, c), row(problem.upper, c)
        for lane in range(LANES):
            a, v, low, high = factor[lane], step[lane], lower[lane], upper[lane]
            y = free[lane] - line.nu[lane] * v
            near = low if y < low else y
            near = high if near > high else near
            v = a * v if y > low else 0.0
            v = v if y < high else 0.0
            total[lane] = total[lane] + a * near
            fall[lane] = fall[lane] + v
    for lane in range(LANES):
        line.residual[lane] = total[lane]
        line.fall[lane] = fall[lane]


def advance_row(line, newton_too):
    """Take nu to the next multiplier to look at; ``open`` says whether there is one.

    Loaded first, chosen by one comparison each, stored last: so the loop becomes vector code.
    """
    takes = 1.0 if newton_too else 0.0
    for lane in range(LANES):
        nu, f, fall = line.nu[lane], line.residual[lane], line.fall[lane]
        was, least = line.open[lane], line.exact[lane]
        left, right = line.left[lane], line.right[lane]
        above, below = line.residual_left[lane], line.residual_right[lane]
        one, other = left if f < 0.0 else nu, right if f > 0.0 else nu
        over, under = above if f < 0.0 else f, below if f > 0.0 else f
        left, right = left if was <= 0.0 else one, right if was <= 0.0 else other
        above, below = above if was <= 0.0 else over, below if was <= 0.0 else under
        half = 0.5 * (left + right)
        newton = nu + f / (fall if fall > 0.0 else 1.0)
        newton = newton if takes > 0.0 else half
        there = newton if newton > left else half
        there = there if newton < right else half
        again = was if fabs(f) > least else 0.0
        again = again if there > left else 0.0
        again = again if there < right else 0.0
        line.left[lane] = left
        line.right[lane] = right
        line.residual_left[lane] = above
        line.residual_right[lane] = below
        line.nu[lane] = there if again > 0.0 else nu
        line.open[lane] = 1.0 if again > 0.0 else 0.0


def mix_row(x, step, lower, upper, line):
    """The point between x(left) and x(right) at which the row holds."""
    for lane in range(LANES):
        low, high, u, v = lower[lane], upper[lane], x[lane], step[lane]
        above, below = line.residual_left[lane], line.residual_right[lane]
        apart = above - below
        share = above / (apart if apart > 0.0 else 1.0)
        share = share if apart > 0.0 else 0.0
        one, other = u - line.left[lane] * v, u - line.right[lane] * v
        one = low if one < low else one
        one = high if one > high else one
        other = low if other < low else other
        other = high if other > high else other
        y = one + share * (other - one)
        y = low if y < low else y
        x[lane] = high if y > high else y


def outer_bracket(problem):
    """Fill the second row's bracket; of its ends' residuals only the signs are known."""
    line = cython.address(problem.second)
    strongest, scale = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    for lane in range(LANES):
        strongest[lane] = scale[lane] = 0.0
    for c in range(problem.d):
        lower, upper, free = row(problem.lower, c), row(problem.upper, c), row(problem.x, c)
        factor, curvature = row(line.factor, c), row(problem.curvature, c)
        for lane in range(LANES):
            low, high, y, a = lower[lane], upper[lane], free[lane], fabs(factor[lane])
            one, other = fabs(low), fabs(high)
            scale[lane] = scale[lane] + a * (other if other > one else one)
            one, other = fabs(y - low), fabs(y - high)
            force = curvature[lane] * (other if other > one else one)
            force = force / (a if a > 0.0 else 1.0)
            force = force if a > 0.0 else 0.0
            strongest[lane] = force if force > strongest[lane] else strongest[lane]
    for lane in range(LANES):
        line.left[lane] = -NEARLY_PARALLEL * strongest[lane]
        line.right[lane] = NEARLY_PARALLEL * strongest[lane]
        line.residual_left[lane] = 4.0 * scale[lane]
        line.residual_right[lane] = -4.0 * scale[lane]
        line.exact[lane] = OUTER_EXACT * scale[lane]


def outer_residual(problem):
    """Minimise at the second row's multiplier; fill x, its residual and how fast that falls.

    With the first row active, x moves along what is left of the second: the residual falls by
    ``D22 - D12^2/D11`` of the components that no bound holds.
    """
    first, line = cython.address(problem.first), cython.address(problem.second)
    total, fall, own, cross = (
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
    )  # fmt: skip
    for c in range(problem.d):
        price_row(row(problem.x, c), row(problem.unpriced, c), row(line.step, c), line.nu)
    search_one(problem)
    for lane in range(LANES):
        fall[lane] = line.slack[lane]
        own[lane] = first.slack[lane]
        cross[lane] = 0.0
        total[lane] = -line.goal[lane] - line.slack[lane] * line.nu[lane]
    for c in range(problem.d):
        xs, lower, upper = row(problem.x, c), row(problem.lower, c), row(problem.upper, c)
        factor, step = row(first.factor, c), row(first.step, c)
        factor2, step2 = row(line.factor, c), row(line.step, c)
        for lane in range(LANES):
            x, a, b = xs[lane], factor[lane], factor2[lane]
            s, v = step2[lane], a * step[lane]
            s, v = s if x > lower[lane] else 0.0, v if x > lower[lane] else 0.0
            s, v = s if x < upper[lane] else 0.0, v if x < upper[lane] else 0.0
            total[lane] = total[lane] + b * x
            own[lane] = own[lane] + v
            cross[lane] = cross[lane] + a * s
            fall[lane] = fall[lane] + b * s
    for lane in range(LANES):
        inactive = (first.left[lane] == 0.0) & (first.right[lane] == 0.0)
        lost = cross[lane] * cross[lane] / (own[lane] if own[lane] > 0.0 else 1.0)
        line.residual[lane] = total[lane]
        line.fall[lane] = fall[lane] - (0.0 if inactive else lost)


def price_row(x, unpriced, step, nu):
    """``p - (g + nu a)/w`` with the second row's a."""
    for lane in range(LANES):
        x[lane] = unpriced[lane] - nu[lane] * step[lane]


def keep_end(xs, left_end, right_end, line, starting):
    """Keep the point just computed as that of the end of the bracket that nu becomes."""
    always = 1.0 if starting else 0.0
    for lane in range(LANES):
        x, f, was = xs[lane], line.residual[lane], line.open[lane]
        left, right = left_end[lane], right_end[lane]
        left = left if f < 0.0 else x
        right = right if f > 0.0 else x
        left = left_end[lane] if was <= 0.0 else left
        right = right_end[lane] if was <= 0.0 else right
        left_end[lane] = x if always > 0.0 else left
        right_end[lane] = x if always > 0.0 else right


def mix_ends(x, left_end, right_end, lower, upper, line):
    """The point between both ends' at which the second row holds, too."""
    for lane in range(LANES):
        above, below = line.residual_left[lane], line.residual_right[lane]
        low, high, one, other = lower[lane], upper[lane], left_end[lane], right_end[lane]
        apart = above - below
        share = above / (apart if apart > 0.0 else 1.0)
        share = share if apart > 0.0 else 0.0
        y = one + share * (other - one)
        y = low if y < low else y
        x[lane] = high if y > high else y


def run_search(d, rows, data, work):
    """A search from Python.

    Args:
        d: components.
        rows: none, one or two.
        data: rows of lanes: point, gradient, curvature, lower, upper, the result and both rows'
            factors, d each; then ``least, most, slack`` of both rows.
        work: ``search_rows(d)`` rows.
    """
    problem = cython.declare(SeparableProblem)
    at = cython.address(problem)
    lay_out_separable(at, d, doubles(work))
    numbers = doubles(data)
    at.point = numbers
    at.gradient = row(numbers, d)
    at.curvature = row(numbers, 2 * d)
    at.lower = row(numbers, 3 * d)
    at.upper = row(numbers, 4 * d)
    at.x = row(numbers, 5 * d)
    for order in range(2):
        line = cython.address(at.first) if order == 0 else cython.address(at.second)
        line.factor = row(numbers, (6 + order) * d)
        limits = row(numbers, 8 * d + 3 * order)
        copy(line.least, limits)
        copy(line.most, row(limits, 1))
        copy(line.slack, row(limits, 2))
    search(at, rows)
