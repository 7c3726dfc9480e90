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
from .plain import LaneStruct as SeparableProblem

MAX_STEPS, BEFORE_BISECTION = 140, 6  # then every other step bisects: 64 suffice
OUTER_STEPS, OUTER_BEFORE_BISECTION = 240, 12
ROW_EXACT = 2.0**-46  # of the row's own size, where rounding begins
OUTER_EXACT = 2.0**-44
MIN_CURVATURE = 2.0**-36  # as a share of the steepest slope over a width
NEARLY_PARALLEL = 2.0**40  # how much larger multipliers may be where rows are nearly parallel


def search_rows(d):
    """How many rows of lanes a search over d components takes."""
    return 4 * d


def lay_out_separable(problem, d, work):
    """Point to the parts of a search's work; registers, point, bounds and x are the caller's."""
    if not cython.compiled:
        problem.first, problem.second = LaneStruct(), LaneStruct()
    problem.d = d
    problem.flexibility = work
    problem.unpriced = row(work, d)
    problem.left_end = row(work, 2 * d)
    problem.right_end = row(work, 3 * d)


def point_to_row(problem, line, start):
    """A row whose factors, limits and slack are the registers ``outputs[start:]``."""
    d, r = problem.d, problem.r
    line.factor = skip_int(problem.outputs, start)
    copy(line.least, row(r, line.factor[d]))
    copy(line.most, row(r, line.factor[d + 1]))
    copy(line.slack, row(r, line.factor[d + 2]))


def free_minimum(problem, worth, theta, near):
    """Fill x with ``p - g/w``, and the flexibility ``1/w``.

    ``w = f'' + near + theta W / width^2``: with the proximal term of ``passes``. All is in units of
    the width. A component without curvature gets so little that it only breaks ties, towards p.
    ``force`` becomes what takes every component to a bound.
    """
    d, r, outputs = problem.d, problem.r, problem.outputs
    steepest = cython.declare(cython.double[16])
    spread(steepest, 0.0)
    spread(problem.narrowest, inf)
    for c in range(d):
        keep_largest(steepest, row(r, outputs[c]))
    for lane in range(LANES):
        problem.least[lane] = MIN_CURVATURE * (steepest[lane] if steepest[lane] > 0.0 else 1.0)
        problem.stiffest[lane] = problem.least[lane]
        problem.proximal[lane] = theta * worth[lane]
    for c in range(d):
        free_component(
            problem, row(problem.x, c), row(problem.flexibility, c), row(problem.point, c),
            row(r, outputs[c]), row(r, outputs[d + c]), row(problem.lower, c),
            row(problem.upper, c), near,
        )  # fmt: skip
    for lane in range(LANES):
        stiffest = problem.stiffest[lane] + problem.proximal[lane] / problem.narrowest[lane]
        problem.force[lane] = steepest[lane] + stiffest


def keep_largest(largest, a):
    """``max(largest, |a|)``."""
    for lane in range(LANES):
        size = fabs(a[lane])
        largest[lane] = size if size > largest[lane] else largest[lane]


def free_component(problem, x, flexibility, point, slope, curvature, lower, upper, near):
    """One component of ``p - g/w`` and of ``1/w``; the largest ``(f'' + near) width`` so far."""
    for lane in range(LANES):
        width = upper[lane] - lower[lane]
        width = width if width > 0.0 else 1.0
        curved = curvature[lane] + near
        stiff, softest = (
            curved * (width * width) + problem.proximal[lane], problem.least[lane] * width
        )  # fmt: skip
        flexible = width * width / (stiff if stiff > softest else softest)
        flexibility[lane] = flexible
        x[lane] = point[lane] - slope[lane] * flexible
        most, across = problem.stiffest[lane], curved * width
        problem.stiffest[lane] = across if across > most else most
        narrowest = problem.narrowest[lane]
        problem.narrowest[lane] = width if width < narrowest else narrowest


def search(problem, rows, start):
    """Take ``p - g/w`` in x to the minimiser over the box and no row, one or two.

    The rows begin at ``outputs[start]``.
    """
    for c in range(problem.d if rows == 0 else 0):
        clip_rows(row(problem.x, c), row(problem.lower, c), row(problem.upper, c))
    if rows > 0:
        point_to_row(problem, cython.address(problem.first), start)
    if rows == 1:
        search_one(problem)
    elif rows == 2:
        point_to_row(problem, cython.address(problem.second), start + problem.d + 3)
        search_two(problem)


def clip_rows(x, lower, upper):
    """Move x into the box."""
    for lane in range(LANES):
        y = lower[lane] if x[lane] < lower[lane] else x[lane]
        x[lane] = upper[lane] if y > upper[lane] else y


def search_two(problem):
    """Minimise over the box and both rows."""
    line = cython.address(problem.second)
    force, strongest = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    survey(problem, line)
    copy(force, problem.force)
    spread(strongest, 0.0)
    for c in range(problem.d):
        copy(row(problem.unpriced, c), row(problem.x, c))
        keep_largest(strongest, row(problem.r, line.factor[c]))
    for lane in range(LANES):
        line.left[lane] *= NEARLY_PARALLEL
        line.right[lane] *= NEARLY_PARALLEL
        line.exact[lane] *= OUTER_EXACT / ROW_EXACT
    if any_interval(line):
        outer_residual(problem, force, strongest)
    choose_goal(line)
    for step in range(OUTER_STEPS):
        outer_residual(problem, force, strongest)
        for c in range(problem.d):
            left_end, right_end = row(problem.left_end, c), row(problem.right_end, c)
            keep_end(row(problem.x, c), left_end, right_end, line, step == 0)
        advance_row(line, step <= OUTER_BEFORE_BISECTION or step % 2 == 1)
        if not any_positive(line.open):
            break
    choose_share(line)
    for c in range(problem.d):
        copy(row(problem.x, c), row(problem.left_end, c))
        lower, upper = row(problem.lower, c), row(problem.upper, c)
        mix_ends(row(problem.x, c), row(problem.right_end, c), lower, upper, line.share)


def search_one(problem):
    """Minimise over the box and the first row."""
    line = cython.address(problem.first)
    survey(problem, line)
    if any_interval(line):
        row_residual(problem)
    choose_goal(line)
    first_multiplier(line)
    for step in range(MAX_STEPS):
        row_residual(problem)
        advance_row(line, step <= BEFORE_BISECTION or step % 2 == 1)
        if not any_positive(line.open):
            break
    choose_share(line)
    mixes: cython.bint = any_positive(line.open)
    for c in range(problem.d):
        x, flexibility, factor = (
            row(problem.x, c), row(problem.flexibility, c), row(problem.r, line.factor[c])
        )  # fmt: skip
        lower, upper = row(problem.lower, c), row(problem.upper, c)
        if mixes:
            mix_row(x, flexibility, factor, lower, upper, line)
        else:
            end_row(x, flexibility, factor, lower, upper, line.nu)


def survey(problem, line):
    """What one look at a row tells: the size of its value, a bracket, a first multiplier.

    At the ends of the bracket all components of the row are at a bound; of the residuals there only
    the signs are known. The first multiplier is that of the bounds that hold the last state.
    """
    scale, weakest, total, fall = (
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
    )  # fmt: skip
    for lane in range(LANES):
        scale[lane] = total[lane] = fall[lane] = 0.0
        weakest[lane] = inf
    for c in range(problem.d):
        factor, flexibility = row(problem.r, line.factor[c]), row(problem.flexibility, c)
        last, free = row(problem.last, c), row(problem.x, c)
        lower, upper = row(problem.lower, c), row(problem.upper, c)
        for lane in range(LANES):
            a, low, high, p, y = factor[lane], lower[lane], upper[lane], last[lane], free[lane]
            v, size = a * (a * flexibility[lane]), fabs(a)
            scale[lane] = scale[lane] + size * (high if high > -low else -low)
            y, v = y if p > low else p, v if p > low else 0.0
            y, v = y if p < high else p, v if p < high else 0.0
            total[lane] = total[lane] + a * y
            fall[lane] = fall[lane] + v
            size = size if size > 0.0 else inf
            weakest[lane] = size if size < weakest[lane] else weakest[lane]
    for lane in range(LANES):
        reach = 2.0 * problem.force[lane] / weakest[lane]
        line.left[lane] = -reach
        line.right[lane] = reach
        line.residual_left[lane] = 4.0 * scale[lane]
        line.residual_right[lane] = -4.0 * scale[lane]
        line.exact[lane] = ROW_EXACT * scale[lane]
        line.start[lane] = total[lane]
        line.start_fall[lane] = fall[lane] + line.slack[lane]


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


def first_multiplier(line):
    """Fill nu with the multiplier if the active bounds are those of p, or the bracket's middle."""
    for lane in range(LANES):
        fall, left, right = line.start_fall[lane], line.left[lane], line.right[lane]
        value = (line.start[lane] - line.goal[lane]) / (fall if fall > 0.0 else 1.0)
        within = (value > left) & (value < right)
        line.nu[lane] = value if within else 0.5 * (left + right)


def row_residual(problem):
    """Fill ``a'x(nu) - goal - slack nu``, and how fast it falls in nu."""
    line = cython.address(problem.first)
    total, fall = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    for lane in range(LANES):
        fall[lane] = line.slack[lane]
        total[lane] = -line.goal[lane] - line.slack[lane] * line.nu[lane]
    for c in range(problem.d):
        factor, flexibility = row(problem.r, line.factor[c]), row(problem.flexibility, c)
        free, lower, upper = row(problem.x, c), row(problem.lower, c), row(problem.upper, c)
        for lane in range(LANES):
            a, low, high = factor[lane], lower[lane], upper[lane]
            v = a * flexibility[lane]
            y = free[lane] - line.nu[lane] * v
            near = low if y < low else y
            near = high if near > high else near
            total[lane] = total[lane] + a * near
            fall[lane] = fall[lane] + (a * v if near == y else 0.0)
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


def choose_share(line):
    """How far from x(left) to x(right) the row holds; 0 or 1 where it holds at an end.

    Mixing would take components off their bounds by rounding, and the next search would not know
    which bounds hold.
    """
    for lane in range(LANES):
        above, below, exact = line.residual_left[lane], line.residual_right[lane], line.exact[lane]
        apart = above - below
        share = above / (apart if apart > 0.0 else 1.0)
        share = 1.0 if -below <= exact else share
        share = 0.0 if above <= exact else share
        left, right = line.left[lane], line.right[lane]
        line.share[lane] = share
        line.nu[lane] = left if share <= 0.0 else right
        inside = 0.0 if share >= 1.0 else 1.0  # NaN, too
        line.open[lane] = 0.0 if share <= 0.0 else inside


def end_row(x, flexibility, factor, lower, upper, nu):
    """The point at one end of the bracket, at which the row holds."""
    for lane in range(LANES):
        y = x[lane] - nu[lane] * (factor[lane] * flexibility[lane])
        y = lower[lane] if y < lower[lane] else y
        x[lane] = upper[lane] if y > upper[lane] else y


def mix_row(x, flexibility, factor, lower, upper, line):
    """The point between x(left) and x(right) at which the row holds."""
    for lane in range(LANES):
        low, high, u, v = lower[lane], upper[lane], x[lane], factor[lane] * flexibility[lane]
        one, other = u - line.left[lane] * v, u - line.right[lane] * v
        one = low if one < low else one
        one = high if one > high else one
        other = low if other < low else other
        other = high if other > high else other
        y = one + line.share[lane] * (other - one)
        y = y if line.share[lane] < 1.0 else other
        y = low if y < low else y
        x[lane] = high if y > high else y


def outer_residual(problem, force, strongest):
    """Minimise at the second row's multiplier; fill x, its residual and how fast that falls.

    With the first row active, x moves along what is left of the second: the residual falls by
    ``D22 - D12^2/D11`` of the components that no bound holds.
    """
    first, line = cython.address(problem.first), cython.address(problem.second)
    total, fall, d11, d12 = (
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
    )  # fmt: skip
    for c in range(problem.d):
        factor2, flexibility = row(problem.r, line.factor[c]), row(problem.flexibility, c)
        price_row(row(problem.x, c), row(problem.unpriced, c), factor2, flexibility, line.nu)
    for lane in range(LANES):
        problem.force[lane] = force[lane] + strongest[lane] * fabs(line.nu[lane])
    search_one(problem)
    for lane in range(LANES):
        fall[lane] = line.slack[lane]
        d11[lane] = first.slack[lane]
        d12[lane] = 0.0
        total[lane] = -line.goal[lane] - line.slack[lane] * line.nu[lane]
    for c in range(problem.d):
        xs, lower, upper = row(problem.x, c), row(problem.lower, c), row(problem.upper, c)
        factor, factor2 = row(problem.r, first.factor[c]), row(problem.r, line.factor[c])
        flexibility = row(problem.flexibility, c)
        for lane in range(LANES):
            x, a, b, s = xs[lane], factor[lane], factor2[lane], flexibility[lane]
            s = s if x > lower[lane] else 0.0
            s = s if x < upper[lane] else 0.0
            total[lane] = total[lane] + b * x
            d11[lane] = d11[lane] + a * (a * s)
            d12[lane] = d12[lane] + a * (b * s)
            fall[lane] = fall[lane] + b * (b * s)
    for lane in range(LANES):
        inactive = (first.left[lane] == 0.0) & (first.right[lane] == 0.0)
        lost = d12[lane] * d12[lane] / (d11[lane] if d11[lane] > 0.0 else 1.0)
        line.residual[lane] = total[lane]
        line.fall[lane] = fall[lane] - (0.0 if inactive else lost)


def price_row(x, unpriced, factor, flexibility, nu):
    """``p - (g + nu a)/w`` with the second row's a."""
    for lane in range(LANES):
        x[lane] = unpriced[lane] - nu[lane] * (factor[lane] * flexibility[lane])


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


def mix_ends(x, right_end, lower, upper, share):
    """The point between both ends' at which the second row holds, too; x is at the left end's."""
    for lane in range(LANES):
        low, high, other = lower[lane], upper[lane], right_end[lane]
        y = x[lane] + share[lane] * (other - x[lane])
        y = y if share[lane] < 1.0 else other
        y = low if y < low else y
        x[lane] = high if y > high else y


def run_search(d, rows, data, outputs, work):
    """A search from Python.

    Args:
        d: components.
        rows: none, one or two.
        data: rows of lanes: point, gradient, curvature, pull, lower, upper, the result and both
            rows' factors, d each; then ``least, most, slack`` of both rows.
        outputs: which of them are gradient, curvature, pull, and by row factors, least, most and
            slack.
        work: ``search_rows(d)`` rows.
    """
    storage = cython.declare(SeparableProblem)
    problem = cython.address(storage)
    lay_out_separable(problem, d, doubles(work))
    numbers = doubles(data)
    problem.r = numbers
    problem.outputs = ints(outputs)
    problem.point = numbers
    problem.last = numbers
    problem.lower = row(numbers, 4 * d)
    problem.upper = row(numbers, 5 * d)
    problem.x = row(numbers, 6 * d)
    free_minimum(problem, numbers, 0.0, 0.0)
    search(problem, rows, 3 * d)
