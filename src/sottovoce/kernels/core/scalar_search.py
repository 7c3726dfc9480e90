"""The minimiser of a convex function of one variable on an interval, from its slope alone.

    x = argmin over [lower, upper] of  phi(x) + weight (x - anchor)^2 / 2

phi' is a tape and must not decrease. The minimiser lies within ``|phi'(anchor)| / weight`` of the
anchor, so the search starts there and goes outwards until the slope changes its sign; then
Chandrupatla's method (1997) closes in, never slower than bisection. NaN if a slope is.

``minimise_lanes`` does the same for 16 agents: each lane makes the same evaluations as alone, so it
has the same bits. Lanes that are done wait for the others.
"""

try:
    import cython

    if not cython.compiled:
        raise ModuleNotFoundError
except ModuleNotFoundError:
    from . import plain as cython

if not cython.compiled:
    from .lanes import LANES, copy, row
    from .plain import fabs
    from .tape import tape_run, tape_run_one

PRECISION = 1e-13  # of a minimiser, relative to the width of its interval
FIRST_STEP = 2.0**-10  # relative to the width: minimisers move little from round to round
GROWTH = 32.0  # of the step while going outwards
MAX_EVALUATIONS = 100
OUTWARDS, CLOSING, DONE = 1.0, 2.0, 3.0  # phases of a lane


def slope(problem, x):
    """phi'(x)."""
    problem.r[problem.x] = x
    tape_run_one(problem.one, problem.one_size, problem.r)
    value = problem.r[problem.output]
    if not cython.compiled:
        if problem.callback is not None:  # an objective that is Python code
            return value + problem.callback(x)
    return value


def minimise(problem, anchor, lower, upper, weight):
    """Return the minimiser; ``problem`` has the slope's tape, and registers it reads."""
    here, force = anchor, slope(problem, anchor)
    if not lower < upper or force == 0.0:
        return anchor
    if force != force:
        return force
    width = upper - lower
    reach = min(fabs(force) / weight, width) if weight > 0.0 else width
    distance = min(reach, FIRST_STEP * width)
    while True:
        there = anchor - distance if force > 0.0 else anchor + distance
        there = min(max(there, lower), upper)
        if there == here:
            return here
        farther = slope(problem, there) + weight * (there - anchor)
        if farther != farther:
            return farther
        if farther == 0.0 or (farther > 0.0) != (force > 0.0):
            return find_zero(
                problem, anchor, weight, here, force, there, farther, PRECISION * width
            )
        if distance >= reach:
            return there
        here, force, distance = there, farther, min(reach, GROWTH * distance)


def find_zero(problem, anchor, weight, b, slope_b, a, slope_a, tolerance):
    """The zero of the slope between a and b, where it has opposite signs."""
    share = slope_a / (slope_a - slope_b)  # where a straight line would have its zero
    for _ in range(MAX_EVALUATIONS):
        least = tolerance / fabs(b - a)
        if slope_a == 0.0 or slope_b == 0.0 or not least < 0.5:
            break
        share = max(least, min(share, 1.0 - least)) if share == share else 0.5
        x = a + share * (b - a)
        value = slope(problem, x) + weight * (x - anchor)
        if (value > 0.0) == (slope_a > 0.0):
            c, slope_c = a, slope_a
        else:
            c, slope_c, b, slope_b = b, slope_b, a, slope_a
        a, slope_a = x, value
        share = 0.5
        if slope_c != slope_a and slope_c != slope_b:
            place, level = (a - b) / (c - b), (slope_a - slope_b) / (slope_c - slope_b)
            if level * level < place and (1.0 - level) * (1.0 - level) < 1.0 - place:
                # The inverse parabola through all three is trustworthy here.
                head = slope_a / (slope_b - slope_a) * slope_c / (slope_b - slope_c)
                tail = slope_a / (slope_c - slope_a) * slope_b / (slope_c - slope_b)
                share = head + (c - a) / (b - a) * tail
    return a if fabs(slope_a) <= fabs(slope_b) else b


def search_rows():
    """How many rows of 16 lanes ``minimise_lanes`` takes."""
    return 13


def lay_out(search, work):
    """Point to the parts of a search's work."""
    search.anchor = work
    search.lower = row(work, 1)
    search.upper = row(work, 2)
    search.weight = row(work, 3)
    search.a = row(work, 4)
    search.slope_a = row(work, 5)
    search.b = row(work, 6)
    search.slope_b = row(work, 7)
    search.reach = row(work, 8)
    search.distance = row(work, 9)
    search.phase = row(work, 10)
    search.answer = row(work, 11)
    search.evaluations = row(work, 12)


def minimise_lanes(problem, search):
    """Fill ``search.answer``; anchor, lower, upper and weight are filled in."""
    x, force = row(problem.r, problem.x), row(problem.r, problem.output)
    copy(x, search.anchor)
    tape_run(problem.lanes, problem.lanes_size, problem.r)
    start_lanes(
        search.anchor, search.lower, search.upper, search.weight, force, x, search.a,
        search.slope_a, search.b, search.slope_b, search.reach, search.distance, search.phase,
        search.answer, search.evaluations,
    )  # fmt: skip
    while any_open(search.phase):
        tape_run(problem.lanes, problem.lanes_size, problem.r)
        advance_lanes(
            search.anchor, search.lower, search.upper, search.weight, force, x, search.a,
            search.slope_a, search.b, search.slope_b, search.reach, search.distance, search.phase,
            search.answer, search.evaluations,
        )  # fmt: skip


def any_open(phase):
    """Whether a lane is not done."""
    for lane in range(LANES):
        if phase[lane] < DONE:
            return True
    return False


def start_lanes(
    anchors, lowers, uppers, weights, force, x, a, slope_a, b, slope_b, reaches, distances, phases,
    answers, evaluations,
):  # fmt: skip
    """What the slopes at the anchors say; the next x of every lane.

    Here and below: loaded first, chosen by one comparison each, stored last, so that the loop
    becomes vector code.
    """
    for lane in range(LANES):
        anchor, lower, upper = anchors[lane], lowers[lane], uppers[lane]
        weight, f = weights[lane], force[lane]
        width = upper - lower
        reach = fabs(f) / (weight if weight > 0.0 else 1.0)
        reach = width if width < reach else reach
        reach = reach if weight > 0.0 else width
        distance = FIRST_STEP * width
        distance = distance if distance < reach else reach
        there = anchor - distance
        there = there if f > 0.0 else anchor + distance
        there = lower if lower > there else there
        there = upper if upper < there else there
        phase = OUTWARDS if lower < upper else DONE
        phase = DONE if there == anchor else phase
        phase = DONE if f == 0.0 else phase
        phase = phase if f == f else DONE
        answer = f if f != f else anchor
        answer = answer if lower < upper else anchor
        a[lane] = anchor
        slope_a[lane] = f
        b[lane] = anchor
        slope_b[lane] = f
        reaches[lane] = reach
        distances[lane] = distance
        phases[lane] = phase
        answers[lane] = answer
        evaluations[lane] = 0.0
        x[lane] = there if phase < DONE else anchor


def advance_lanes(
    anchors, lowers, uppers, weights, force, xs, as_, slopes_a, bs, slopes_b, reaches, distances,
    phases, answers, evaluations,
):  # fmt: skip
    """Take every lane that is not done one evaluation further."""
    most_looks = MAX_EVALUATIONS + 0.0
    for lane in range(LANES):
        anchor, lower, upper = anchors[lane], lowers[lane], uppers[lane]
        weight, x = weights[lane], xs[lane]
        a, f_a, b, f_b = as_[lane], slopes_a[lane], bs[lane], slopes_b[lane]
        reach, distance, phase = reaches[lane], distances[lane], phases[lane]
        answer, looks = answers[lane], evaluations[lane]
        value = force[lane] + weight * (x - anchor)
        up = 1.0 if value > 0.0 else 0.0
        # Outwards: has the sign changed, and if not, is there anything farther?
        crossed = 0.0 if up == (1.0 if f_b > 0.0 else 0.0) else 1.0
        crossed = 1.0 if value == 0.0 else crossed
        wider = GROWTH * distance
        wider = wider if wider < reach else reach
        farther = anchor - wider
        farther = farther if value > 0.0 else anchor + wider
        farther = lower if lower > farther else farther
        farther = upper if upper < farther else farther
        over = DONE if farther == x else OUTWARDS
        over = DONE if distance >= reach else over
        # Closing in: c is the third point.
        same = 1.0 if up == (1.0 if f_a > 0.0 else 0.0) else 0.0
        c, f_c = a if same > 0.0 else b, f_a if same > 0.0 else f_b
        d, f_d = b if same > 0.0 else a, f_b if same > 0.0 else f_a
        other, f_other = d if phase == CLOSING else b, f_d if phase == CLOSING else f_b
        secant = value / (value - f_other)
        place, level = (x - other) / (c - other), (value - f_other) / (f_c - f_other)
        head = value / (f_other - value) * f_c / (f_other - f_c)
        tail = value / (f_c - value) * f_other / (f_c - f_other)
        parabola = head + (c - x) / (other - x) * tail
        parabola = parabola if level * level < place else 0.5
        parabola = parabola if (1.0 - level) * (1.0 - level) < 1.0 - place else 0.5
        parabola = 0.5 if f_c == value else parabola
        parabola = 0.5 if f_c == f_other else parabola
        share = parabola if phase == CLOSING else secant
        looks = looks + 1.0 if phase == CLOSING else looks
        least = PRECISION * (upper - lower) / fabs(other - x)
        ended = CLOSING if least < 0.5 else DONE
        ended = DONE if value == 0.0 else ended
        ended = DONE if f_other == 0.0 else ended
        ended = DONE if looks >= most_looks else ended
        best = x if fabs(value) <= fabs(f_other) else other
        most = 1.0 - least
        inner = most if most < share else share
        inner = inner if inner > least else least
        inner = inner if share == share else 0.5
        inside = x + inner * (other - x)
        # What becomes of a lane: outwards, closing in, or done.
        closes = crossed if phase == OUTWARDS else 1.0
        following = ended if closes > 0.0 else over
        following = following if value == value else DONE
        following = DONE if phase == DONE else following
        following = ended if phase == CLOSING else following
        result = best if closes > 0.0 else x
        result = result if value == value else value
        result = best if phase == CLOSING else result
        as_[lane] = x
        slopes_a[lane] = value
        bs[lane] = other if closes > 0.0 else x
        slopes_b[lane] = f_other if closes > 0.0 else value
        distances[lane] = distance if closes > 0.0 else wider
        evaluations[lane] = looks
        answers[lane] = answer if phase == DONE else result
        phases[lane] = following
        goes = inside if closes > 0.0 else farther
        xs[lane] = goes if following < DONE else x
