"""The kernel of gradient steps for agents stated one by one: runs side by side, one per lane.

Everything that rounds change in a block of runs lies in one flat array, ``state[row * LANES +
lane]``: x, mu and the round of failure (see ``NamedText.layout``).
The text is written from the problem's formulas; data (bounds, sigmas, steps) come as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.engine.emit import Emitter
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.source import QUANTITIES, block, call, head

_SIGNATURE = (
    "void(int64, int64, int64, float64[::1], uint64[::1], float64[::1], float64[::1], "
    "float64[::1], float64[::1], int64[::1], float64[::1], float64[::1])"
)
_ARGUMENTS = (
    "done, until, width, steps, seeds, state, bounds, sigma, saddle, marks, trace, transcript"
)
_BUFFER = 2560  # normals drawn ahead, few enough to stay in the first-level cache


def named_source(
    text: NamedText,
    steps: GradientSteps,
    offset: Sequence[float],
    *,
    lanes: int,
    transcript: bool,
) -> str:
    """Return the text of a module with ``advance``, the kernel that runs rounds.

    Args:
        text: writes the formulas.
        steps: the algorithm.
        offset: constants of the rows of g.
        lanes: runs per block; 1 draws the noise of many rounds at once instead.
        transcript: whether every released number is written down.
    """
    pairs, scalars = text.noise.pairs, steps.scalars
    ahead = max(1, min(64, _BUFFER // max(1, 2 * pairs * lanes)))
    z_round, z_normal = (1, ahead) if lanes == 1 else (2 * pairs * lanes, lanes)
    drawn = f"k, min({ahead}, until - k), {pairs}"
    if lanes == 1:
        fill = f"normals.fill_rounds(seeds[0], {drawn}, {ahead}, z)"
    else:
        fill = f"normals.fill_lanes(seeds, {drawn}, {lanes}, z)"
    measure = "measure(width, state, bounds, saddle, trace, "
    released = text.rows + len(text.noise.entries)
    return "\n".join(
        [
            *head(text.algorithm),
            "\n\ndef measure(width, state, bounds, saddle, trace, at):",
            block(text.bounds(), 1),
            block([f"hat{i} = saddle[{i}]" for i in range(text.size + text.rows)], 1),
            "    for lane in range(width):",
            block(_measured(text, offset, lanes), 2),
            f'\n\n@entry("{_SIGNATURE}")',
            f"def advance({_ARGUMENTS}):",
            block(text.bounds(), 1),
            block([f"sigma{j} = sigma[{j}]" for j in range(text.noise.count)], 1),
            f"    z = np.empty({max(1, 2 * pairs * lanes * ahead)})",
            "    mark = 0",
            "    if done == 0 and marks.size > 0 and marks[0] == 0:",
            f"        {measure} 0)",
            "        mark = 1",
            "    for k in range(done, until):",
            f"        b = (k - done) % {ahead}",
            *([f"        if b == 0:\n            {fill}"] if pairs else []),
            *[
                f"        {name} = steps[(k - done) * {len(scalars)} + {s}]"
                for s, name in enumerate(scalars)
            ],
            "        number = np.float64(k + 1)",
            f"        at_z = b * {z_round}",
            f"        out = (k - done) * {released * lanes}",
            "        for lane in range(width):",
            block(_round(text, steps, offset, lanes, z_normal, transcript=transcript), 3),
            "        if mark < marks.size and marks[mark] == k + 1:",
            f"            {measure} mark * {len(QUANTITIES) * lanes})",
            "            mark += 1",
            "",
        ]
    )


def _evaluated(
    text: NamedText, offset: Sequence[float], lanes: int, first: int = 0
) -> tuple[Emitter, list[str]]:
    """A page with one lane's x and mu, from row ``first`` of the state, and the values of g."""
    page = text.emitter()
    names = [f"x{i}" for i in range(text.size)] + [f"mu{j}" for j in range(text.rows)]
    for row, name in enumerate(names, start=first):
        page.lines.append(f"{name} = state[{row * lanes} + lane]")
    exprs = zip(text.named.constraints, offset, strict=True)
    return page, [page.value(expr + constant) for expr, constant in exprs]


def _round(
    text: NamedText,
    steps: GradientSteps,
    offset: Sequence[float],
    lanes: int,
    z_normal: int,
    *,
    transcript: bool,
) -> list[str]:
    """The lines that take one lane from x(k), mu(k) to x(k+1), mu(k+1)."""

    def normal(order: int) -> str:
        return f"sigma{order} * z[at_z + {order * z_normal} + lane]"

    page, y = _evaluated(text, offset, lanes)
    for order, j in enumerate(text.noise.rows):
        y[j] = page.assign(f"{y[j]} + {normal(order)}")
    released = text.released(page, normal)
    if transcript:
        outputs = [*y, *(released[entry] for entry in text.noise.entries)]
        page.lines += [
            f"transcript[out + {row * lanes} + lane] = {name}" for row, name in enumerate(outputs)
        ]
    after = text.agents(page, text.slopes(page, released), steps)
    shared = {name: name for name in steps.scalars}
    for j, value in enumerate(y):
        cloud = call("cloud", steps.cloud_step, {**shared, "mu": f"mu{j}", "y_g": value})
        after.append(page.assign(cloud))
    page.lines += [f"state[{i * lanes} + lane] = {name}" for i, name in enumerate(after)]
    at, total = text.layout()["failed"] * lanes, page.fold("+", after)
    page.lines.append(f"failed = state[{at} + lane]")
    # A finite sum less itself is zero, any other is not.
    fine = f"failed > 0.0 or {total} - {total} == 0.0"
    page.lines.append(f"state[{at} + lane] = failed if {fine} else number")
    return page.lines


def _measured(text: NamedText, offset: Sequence[float], lanes: int) -> list[str]:
    """The lines that measure one lane: the answer's quality, and the last iterate's errors."""
    page, g = _evaluated(text, offset, lanes, text.layout()["mean"])
    residual = text.residuals(page)
    residual += [page.assign(f"(mu{j} - positive(mu{j} + {y})) ** 2") for j, y in enumerate(g)]
    worst = "0.0"
    for y in g:
        worst = page.assign(f"max({worst}, {y})")
    x, mu = range(text.size), range(text.size, text.size + text.rows)
    last = [f"state[{row * lanes} + lane]" for row in (*x, *mu)]
    answer = [f"x{i}" for i in x] + [f"mu{j}" for j in range(text.rows)]

    def distance(names: Sequence[str], rows: range) -> str:
        squares = [page.assign(f"({names[row]} - hat{row}) ** 2") for row in rows]
        return f"math.sqrt({page.fold('+', squares)})"

    values = {
        "error_x": distance(answer, x),
        "error_price": distance(answer, mu),
        "violation": worst,
        "residual": f"math.sqrt({page.fold('+', residual)})",
        "objective": text.objective(page),
        "last_error_x": distance(last, x),
        "last_error_price": distance(last, mu),
    }
    stores = [
        f"trace[at + {q * lanes} + lane] = {values[quantity]}"
        for q, quantity in enumerate(QUANTITIES)
    ]
    return page.lines + stores
