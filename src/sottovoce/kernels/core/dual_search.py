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

try:
    import cython

    if not cython.compiled:
        raise ModuleNotFoundError
except ModuleNotFoundError:
    from . import plain as cython

if not cython.compiled:
    from .lanes import LANES, any_positive, copy, doubles, row, spread
    from .plain import Struct, fabs

    SeparableProblem = Struct

MAX_STEPS, NEWTON_STEPS = 140, 6  # after so many Newton steps every other one bisects: 64 suffice
OUTER_STEPS, OUTER_NEWTON_STEPS = 240, 12
EXACT = 2.0**-46  # of the row's own size, where rounding begins
OUTER_EXACT = 2.0**-44
MIN_CURVATURE = 2.0**-36  # as a share of the steepest slope over a width
NEARLY_PARALLEL = 2.0**40  # how much larger multipliers may be where rows are nearly parallel
VECTORS, NUMBERS = 13, 13


def search_rows(d):
    """How many rows of lanes a search over d components takes."""
    return VECTORS * d + 2 * NUMBERS


def lay_out(problem, d, work):
    """Point to the parts of a search's work."""
    problem.d = d
    problem.point = work
    problem.gradient = row(work, d)
    problem.curvature = row(work, 2 * d)
    problem.lower = row(work, 3 * d)
    problem.upper = row(work, 4 * d)
    problem.x = row(work, 5 * d)
    problem.first.factor = row(work, 6 * d)
    problem.first.step = row(work, 7 * d)
    problem.second.factor = row(work, 8 * d)
    problem.second.step = row(work, 9 * d)
    problem.unpriced = row(work, 10 * d)
    problem.left_end = row(work, 11 * d)
    problem.right_end = row(work, 12 * d)
    lay_out_row(cython.address(problem.first), row(work, VECTORS * d))
    lay_out_row(cython.address(problem.second), row(work, VECTORS * d + NUMBERS))


def lay_out_row(line, work):
    """Point to the numbers of one row."""
    line.least = work
    line.most = row(work, 1)
    line.slack = row(work, 2)
    line.nu = row(work, 3)
    line.goal = row(work, 4)
    line.left = row(work, 5)
    line.right = row(work, 6)
    line.residual_left = row(work, 7)
    line.residual_right = row(work, 8)
    line.open = row(work, 9)
    line.residual = row(work, 10)
    line.fall = row(work, 11)
    line.exact = row(work, 12)


def box_search(problem):
    """Fill x with the minimiser over the box alone: ``clip(p - g/w)``."""
    free_minimum(problem)
    for c in range(problem.d):
        clip_rows(row(problem.x, c), row(problem.lower, c), row(problem.upper, c))


def row_search(problem):
    """Fill x with the minimiser over the box and the first row."""
    free_minimum(problem)
    row_steps(problem, problem.first.factor, problem.first.step)
    solve_row(problem)


def two_row_search(problem):
    """Fill x with the minimiser over the box and both rows."""
    second = cython.address(problem.second)
    free_minimum(problem)
    row_steps(problem, problem.first.factor, problem.first.step)
    row_steps(problem, second.factor, second.step)
    outer_bracket(problem)
    for c in range(problem.d):
        copy(row(problem.unpriced, c), row(problem.x, c))
    if any_interval(second.least, second.most, second.nu, second.goal):
        outer_residual(problem)
    choose_goal(
        second.least, second.most, second.residual, second.goal, second.open, second.residual_left,
        second.residual_right, second.left, second.right, second.exact,
    )  # fmt: skip
    for step in range(OUTER_STEPS):
        outer_residual(problem)
        for c in range(problem.d):
            keep_end(
                row(problem.x, c), second.residual, second.open, row(problem.left_end, c),
                row(problem.right_end, c), 1.0 if step == 0 else 0.0,
            )  # fmt: skip
        bisects: cython.bint = step > OUTER_NEWTON_STEPS and step % 2 == 0
        advance(
            second.nu, second.residual, second.fall, second.open, second.left, second.right,
            second.residual_left, second.residual_right, second.exact, 0.0 if bisects else 1.0,
        )  # fmt: skip
        if not any_positive(second.open):
            break
    for c in range(problem.d):
        mix_ends(
            row(problem.x, c), row(problem.left_end, c), row(problem.right_end, c),
            row(problem.lower, c), row(problem.upper, c), second.residual_left,
            second.residual_right,
        )  # fmt: skip


def solve_row(problem):
    """Take ``p - g/w`` in x to the minimiser over the box and the first row."""
    first = cython.address(problem.first)
    bracket(problem)
    if any_interval(first.least, first.most, first.nu, first.goal):
        residual(problem)
    choose_goal(
        first.least, first.most, first.residual, first.goal, first.open, first.residual_left,
        first.residual_right, first.left, first.right, first.exact,
    )  # fmt: skip
    first_multiplier(problem)
    for step in range(MAX_STEPS):
        residual(problem)
        bisects: cython.bint = step > NEWTON_STEPS and step % 2 == 0
        advance(
            first.nu, first.residual, first.fall, first.open, first.left, first.right,
            first.residual_left, first.residual_right, first.exact, 0.0 if bisects else 1.0,
        )  # fmt: skip
        if not any_positive(first.open):
            break
    for c in range(problem.d):
        mix(
            row(problem.x, c), row(first.step, c), row(problem.lower, c), row(problem.upper, c),
            first.left, first.right, first.residual_left, first.residual_right,
        )  # fmt: skip


def free_minimum(problem):
    """Raise curvatures to where a quotient is safe, and fill x with ``p - g/w``.

    A component without curvature gets so little that it only breaks ties, towards p.
    """
    least = cython.declare(cython.double[16])
    spread(least, 0.0)
    for c in range(problem.d):
        steepest(least, row(problem.gradient, c))
    for lane in range(LANES):
        least[lane] = MIN_CURVATURE * (least[lane] if least[lane] > 0.0 else 1.0)
    for c in range(problem.d):
        free_component(
            row(problem.lower, c), row(problem.upper, c), least, row(problem.curvature, c),
            row(problem.point, c), row(problem.gradient, c), row(problem.x, c),
        )  # fmt: skip


def steepest(largest, slope):
    """``max |g|``."""
    for lane in range(LANES):
        size = fabs(slope[lane])
        largest[lane] = size if size > largest[lane] else largest[lane]


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


def row_steps(problem, factor, step):
    """``a/w``: how far x goes per unit of nu."""
    for c in range(problem.d):
        quotient(row(step, c), row(factor, c), row(problem.curvature, c))


def quotient(to, a, b):
    """``a / b``."""
    for lane in range(LANES):
        to[lane] = a[lane] / b[lane]


def bracket(problem):
    """Fill the bracket with multipliers at which all components of the row are at a bound.

    The residuals at its ends become the row's greatest and least value in the box.
    """
    first = cython.address(problem.first)
    greatest, least, scale, strongest, weakest = (
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
        cython.declare(cython.double[16]),
    )  # fmt: skip
    spread(greatest, 0.0)
    spread(least, 0.0)
    spread(scale, 0.0)
    spread(strongest, 0.0)
    spread(weakest, 0.0)
    for c in range(problem.d):
        extremes(
            row(problem.lower, c), row(problem.upper, c), row(problem.x, c), row(first.factor, c),
            row(problem.curvature, c), greatest, least, scale, strongest, weakest,
        )  # fmt: skip
    set_bracket(
        greatest, least, scale, strongest, weakest, first.left, first.right, first.residual_left,
        first.residual_right, first.exact,
    )  # fmt: skip


def extremes(
    lower, upper, free, factor, curvature, greatest, least, scale, strongest, weakest
):  # fmt: skip
    """One component's part of the row's extremes and of the multipliers that reach them."""
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


def set_bracket(
    greatest, least, scale, strongest, weakest, left, right, residual_left, residual_right, exact
):  # fmt: skip
    """The bracket of the first row."""
    for lane in range(LANES):
        reach = 2.0 * strongest[lane] / (weakest[lane] if weakest[lane] > 0.0 else 1.0)
        left[lane] = -reach
        right[lane] = reach
        residual_left[lane] = greatest[lane]
        residual_right[lane] = least[lane]
        exact[lane] = EXACT * scale[lane]


def any_interval(least, most, nu, goal):
    """Whether any lane's row is an interval; nu and goal are then 0."""
    interval: cython.bint = False
    for lane in range(LANES):
        nu[lane] = 0.0
        goal[lane] = 0.0 if least[lane] < most[lane] else least[lane]
        interval = interval or least[lane] < most[lane]
    return interval


def choose_goal(
    least, most, values, goal, open_, residual_left, residual_right, left, right, exact
):  # fmt: skip
    """Where a row is an interval, its value at nu = 0 tells which end is active, if any.

    The residuals at the ends come as the row's greatest and least value.
    """
    for lane in range(LANES):
        low, high, value = least[lane], most[lane], values[lane]
        interval = low < high
        over, under = interval & (value > high), interval & (value < low)
        inactive = interval & (value <= high) & (value >= low)
        near = low if value < low else value
        near = high if near > high else near
        aim = near if interval else low
        goal[lane] = aim
        open_[lane] = 0.0 if inactive else 1.0
        above = residual_left[lane] - aim
        above = above if above > 0.0 else 0.0
        below = aim - residual_right[lane]
        below = -(below if below > 0.0 else 0.0)
        beyond = value - aim
        one, other = left[lane], right[lane]
        above = beyond if over else above
        below = beyond if under else below
        residual_left[lane] = 0.0 if inactive else above
        residual_right[lane] = 0.0 if inactive else below
        left[lane] = 0.0 if over | inactive else one
        right[lane] = 0.0 if under | inactive else other
        exact[lane] = exact[lane] + EXACT * fabs(aim)


def first_multiplier(problem):
    """Fill nu with the multiplier if the active bounds are those of p."""
    first = cython.address(problem.first)
    total, fall = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    for lane in range(LANES):
        total[lane] = -first.goal[lane]
        fall[lane] = first.slack[lane]
    for c in range(problem.d):
        inactive_part(
            row(problem.point, c), row(first.factor, c), row(problem.lower, c),
            row(problem.upper, c), row(problem.x, c), row(first.step, c), total, fall,
        )  # fmt: skip
    guess(total, fall, first.left, first.right, first.nu)


def inactive_part(point, factor, lower, upper, free, step, total, fall):
    """What a component adds to residual and slope if no bound at p holds it."""
    for lane in range(LANES):
        p, a, low, high = point[lane], factor[lane], lower[lane], upper[lane]
        y, v = free[lane], a * step[lane]
        y, v = y if p > low else p, v if p > low else 0.0
        y, v = y if p < high else p, v if p < high else 0.0
        total[lane] = total[lane] + a * y
        fall[lane] = fall[lane] + v


def guess(total, fall, left, right, nu):
    """Newton's multiplier, or the middle of the bracket."""
    for lane in range(LANES):
        value = total[lane] / (fall[lane] if fall[lane] > 0.0 else 1.0)
        within = (value > left[lane]) & (value < right[lane])
        nu[lane] = value if within else 0.5 * (left[lane] + right[lane])


def residual(problem):
    """Fill ``a'x(nu) - goal - slack nu``, and how fast it falls in nu."""
    first = cython.address(problem.first)
    total, fall = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    for lane in range(LANES):
        fall[lane] = first.slack[lane]
        total[lane] = -first.goal[lane] - first.slack[lane] * first.nu[lane]
    for c in range(problem.d):
        residual_part(
            row(first.factor, c), row(first.step, c), row(problem.lower, c), row(problem.upper, c),
            row(problem.x, c), first.nu, total, fall,
        )  # fmt: skip
    copy(first.residual, total)
    copy(first.fall, fall)


def residual_part(factor, step, lower, upper, free, nu, total, fall):
    """One component's part of it."""
    for lane in range(LANES):
        a, v, low, high = factor[lane], step[lane], lower[lane], upper[lane]
        y = free[lane] - nu[lane] * v
        near = low if y < low else y
        near = high if near > high else near
        v = a * v if y > low else 0.0
        v = v if y < high else 0.0
        total[lane] = total[lane] + a * near
        fall[lane] = fall[lane] + v


def advance(
    nus, residuals, falls, open_, lefts, rights, residual_left, residual_right, exact, newton_too
):  # fmt: skip
    """Take nu to the next multiplier to look at; ``open`` says whether there is one.

    Loaded first, chosen by one comparison each, stored last: so the loop becomes vector code.
    """
    for lane in range(LANES):
        nu, f, fall = nus[lane], residuals[lane], falls[lane]
        was, least = open_[lane], exact[lane]
        left, right = lefts[lane], rights[lane]
        above, below = residual_left[lane], residual_right[lane]
        one, other = left if f < 0.0 else nu, right if f > 0.0 else nu
        over, under = above if f < 0.0 else f, below if f > 0.0 else f
        left, right = left if was <= 0.0 else one, right if was <= 0.0 else other
        above, below = above if was <= 0.0 else over, below if was <= 0.0 else under
        half = 0.5 * (left + right)
        newton = nu + f / (fall if fall > 0.0 else 1.0)
        newton = newton if newton_too > 0.0 else half
        there = newton if newton > left else half
        there = there if newton < right else half
        again = was if fabs(f) > least else 0.0
        again = again if there > left else 0.0
        again = again if there < right else 0.0
        lefts[lane] = left
        rights[lane] = right
        residual_left[lane] = above
        residual_right[lane] = below
        nus[lane] = there if again > 0.0 else nu
        open_[lane] = 1.0 if again > 0.0 else 0.0


def mix(x, step, lower, upper, left, right, residual_left, residual_right):
    """The point between x(left) and x(right) at which the row holds."""
    for lane in range(LANES):
        low, high, u, v = lower[lane], upper[lane], x[lane], step[lane]
        above, below = residual_left[lane], residual_right[lane]
        apart = above - below
        share = above / (apart if apart > 0.0 else 1.0)
        share = share if apart > 0.0 else 0.0
        one, other = u - left[lane] * v, u - right[lane] * v
        one = low if one < low else one
        one = high if one > high else one
        other = low if other < low else other
        other = high if other > high else other
        y = one + share * (other - one)
        y = low if y < low else y
        x[lane] = high if y > high else y


def outer_bracket(problem):
    """Fill the second row's bracket; of its ends' residuals only the signs are known."""
    second = cython.address(problem.second)
    strongest, scale = cython.declare(cython.double[16]), cython.declare(cython.double[16])
    spread(strongest, 0.0)
    spread(scale, 0.0)
    for c in range(problem.d):
        outer_extremes(
            row(problem.lower, c), row(problem.upper, c), row(problem.x, c), row(second.factor, c),
            row(problem.curvature, c), strongest, scale,
        )  # fmt: skip
    for lane in range(LANES):
        second.left[lane] = -NEARLY_PARALLEL * strongest[lane]
        second.right[lane] = NEARLY_PARALLEL * strongest[lane]
        second.residual_left[lane] = 4.0 * scale[lane]
        second.residual_right[lane] = -4.0 * scale[lane]
        second.exact[lane] = OUTER_EXACT * scale[lane]


def outer_extremes(lower, upper, free, factor, curvature, strongest, scale):
    """One component's part of it."""
    for lane in range(LANES):
        low, high, y, a = lower[lane], upper[lane], free[lane], fabs(factor[lane])
        one, other = fabs(low), fabs(high)
        scale[lane] = scale[lane] + a * (other if other > one else one)
        one, other = fabs(y - low), fabs(y - high)
        force = curvature[lane] * (other if other > one else one)
        force = force / (a if a > 0.0 else 1.0)
        force = force if a > 0.0 else 0.0
        strongest[lane] = force if force > strongest[lane] else strongest[lane]


def outer_residual(problem):
    """Minimise at the second row's multiplier; fill x, its residual and how fast that falls.

    With the first row active, x moves along what is left of the second: the residual falls by
    ``D22 - D12^2/D11`` of the components that no bound holds.
    """
    first, second = cython.address(problem.first), cython.address(problem.second)
    total, fall, own, cross = (
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
        cython.declare(cython.double[16]), cython.declare(cython.double[16]),
    )  # fmt: skip
    for c in range(problem.d):
        price_row(row(problem.x, c), row(problem.unpriced, c), row(second.step, c), second.nu)
    solve_row(problem)
    for lane in range(LANES):
        fall[lane] = second.slack[lane]
        own[lane] = first.slack[lane]
        cross[lane] = 0.0
        total[lane] = -second.goal[lane] - second.slack[lane] * second.nu[lane]
    for c in range(problem.d):
        outer_part(
            row(problem.x, c), row(problem.lower, c), row(problem.upper, c), row(first.factor, c),
            row(first.step, c), row(second.factor, c), row(second.step, c), total, fall, own, cross,
        )  # fmt: skip
    for lane in range(LANES):
        inactive = (first.left[lane] == 0.0) & (first.right[lane] == 0.0)
        lost = cross[lane] * cross[lane] / (own[lane] if own[lane] > 0.0 else 1.0)
        second.residual[lane] = total[lane]
        second.fall[lane] = fall[lane] - (0.0 if inactive else lost)


def price_row(x, unpriced, step, nu):
    """``p - (g + nu a)/w`` with the second row's a."""
    for lane in range(LANES):
        x[lane] = unpriced[lane] - nu[lane] * step[lane]


def outer_part(xs, lower, upper, factor, step, factor2, step2, total, fall, own, cross):
    """One component's part of the second row's residual."""
    for lane in range(LANES):
        x, a, b = xs[lane], factor[lane], factor2[lane]
        s, v = step2[lane], a * step[lane]
        s, v = s if x > lower[lane] else 0.0, v if x > lower[lane] else 0.0
        s, v = s if x < upper[lane] else 0.0, v if x < upper[lane] else 0.0
        total[lane] = total[lane] + b * x
        own[lane] = own[lane] + v
        cross[lane] = cross[lane] + a * s
        fall[lane] = fall[lane] + b * s


def keep_end(xs, residuals, open_, left_end, right_end, starting):
    """Keep the point just computed as that of the end of the bracket that nu becomes."""
    for lane in range(LANES):
        x, f, was = xs[lane], residuals[lane], open_[lane]
        left, right = left_end[lane], right_end[lane]
        left = left if f < 0.0 else x
        right = right if f > 0.0 else x
        left = left_end[lane] if was <= 0.0 else left
        right = right_end[lane] if was <= 0.0 else right
        left_end[lane] = x if starting > 0.0 else left
        right_end[lane] = x if starting > 0.0 else right


def mix_ends(x, left_end, right_end, lower, upper, residual_left, residual_right):
    """The point between both ends' at which the second row holds, too."""
    for lane in range(LANES):
        above, below = residual_left[lane], residual_right[lane]
        low, high, one, other = lower[lane], upper[lane], left_end[lane], right_end[lane]
        apart = above - below
        share = above / (apart if apart > 0.0 else 1.0)
        share = share if apart > 0.0 else 0.0
        y = one + share * (other - one)
        y = low if y < low else y
        x[lane] = high if y > high else y


def search(d, rows, work):
    """A search over no row, one or two, from Python; ``work`` is laid out as ``lay_out`` says."""
    problem = cython.declare(SeparableProblem)
    if not cython.compiled:
        problem.first, problem.second = Struct(), Struct()
    lay_out(cython.address(problem), d, doubles(work))
    if rows == 0:
        box_search(cython.address(problem))
    elif rows == 1:
        row_search(cython.address(problem))
    else:
        two_row_search(cython.address(problem))
