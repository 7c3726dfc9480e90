"""The kernel for agents stated one by one: all runs of a block side by side, one per lane.

Everything that rounds change in a block of runs lies in one flat array, ``state[row * LANES +
lane]``: x, mu, the cloud's memory, averages and the round of failure (see ``NamedText.layout``).
The text is written from the problem's formulas; data (bounds, sigmas, steps) come as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.algorithm.algorithm import averages
from sottovoce.engine.emit import Emitter
from sottovoce.engine.home_text import HomeText
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.source import OPTIONS, QUANTITIES, block, head

_SIGNATURE = (
    "void(int64, int64, int64, float64[::1], uint64[::1], float64[::1], float64[::1], "
    "float64[::1], float64[::1], float64[::1], int64[::1], float64[::1], float64[::1])"
)
_ARGUMENTS = (
    "done, until, width, steps, seeds, state, bounds, sigma, slopes, saddle, marks, trace, "
    "transcript"
)
_BUFFER = 2560  # normals drawn ahead, few enough to stay in the first-level cache


def named_source(text: NamedText, offset: Sequence[float], *, lanes: int, transcript: bool) -> str:
    """Return the text of a module with ``advance``, the kernel that runs rounds.

    Args:
        text: writes the formulas.
        offset: constants of the rows of g.
        lanes: runs per block; 1 draws the noise of many rounds at once instead.
        transcript: whether every released number is written down.
    """
    pairs, scalars = text.noise.pairs, text.algorithm.scalars
    ahead = max(1, min(64, _BUFFER // max(1, 2 * pairs * lanes)))
    z_round, z_normal = (1, ahead) if lanes == 1 else (2 * pairs * lanes, lanes)
    drawn = f"k, min({ahead}, until - k), {pairs}"
    if lanes == 1:
        fill = f"normals.fill_rounds(seeds[0], {drawn}, {ahead}, z)"
    else:
        fill = f"normals.fill_lanes(seeds, {drawn}, {lanes}, z)"
    measure = "measure(width, state, bounds, saddle, trace, "
    released = text.rows + len(text.noise.entries)
    home = HomeText(text=text, lanes=lanes)
    return "\n".join(
        [
            *head(text.algorithm),
            *([home.source()] if text.algorithm.thinks else []),
            f"\n\n@njit({OPTIONS})",
            "def measure(width, state, bounds, saddle, trace, at):",
            block(text.bounds(), 1),
            block([f"hat{i} = saddle[{i}]" for i in range(text.size + text.rows)], 1),
            "    for lane in range(width):",
            block(_measured(text, offset, lanes), 2),
            f'\n\n@njit("{_SIGNATURE}", nogil=True, cache=CACHE, {OPTIONS})',
            f"def advance({_ARGUMENTS}):",
            block(text.bounds(), 1),
            block([f"sigma{j} = sigma[{j}]" for j in range(text.noise.count)], 1),
            f"    z = np.empty({max(1, 2 * pairs * lanes * ahead)})",
            f"    linear, coupling = np.zeros({text.size}), np.zeros({text.size})",
            "    mark = 0",
            "    if done == 0 and marks.size > 0 and marks[0] == 0:",
            f"        {measure} 0)",
            "        mark = 1",
            "    for k in range(done, until):",
            f"        b = (k - done) % {ahead}",
            *([f"        if b == 0:\n            {fill}"] if pairs else []),
            *[
                f"        {name} = load(steps, (k - done) * {len(scalars)} + {s})"
                for s, name in enumerate(scalars)
            ],
            "        number = np.float64(k + 1)",
            f"        at_z = b * {z_round}",
            f"        out = (k - done) * {released * lanes}",
            "        for lane in range(width):",
            block(_round(home, offset, z_normal, transcript=transcript), 3),
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
        page.lines.append(f"{name} = load(state, {row * lanes} + lane)")
    exprs = zip(text.named.constraints, offset, strict=True)
    return page, [page.value(expr + constant) for expr, constant in exprs]


def _round(
    home: HomeText, offset: Sequence[float], z_normal: int, *, transcript: bool
) -> list[str]:
    """The lines that take one lane from x(k), mu(k) to x(k+1), mu(k+1)."""
    text, lanes = home.text, home.lanes

    def normal(order: int) -> str:
        return f"sigma{order} * load(z, at_z + {order * z_normal} + lane)"

    page, y = _evaluated(text, offset, lanes)
    for order, j in enumerate(text.noise.rows):
        y[j] = page.assign(f"{y[j]} + {normal(order)}")
    released = text.released(page, normal)
    if transcript:
        outputs = [*y, *(released[entry] for entry in text.noise.entries)]
        page.lines += [
            f"store(transcript, out + {row * lanes} + lane, {name})"
            for row, name in enumerate(outputs)
        ]
    if text.algorithm.thinks:
        exact = text.exact(page)
        after = [f"load(state, {i * lanes} + lane)" for i in range(text.size)]
        page.lines += _cloud(text, y, lanes)
        page.lines += home.priced({**exact, **released})
        page.lines.append(
            f"think(lane, state, bounds, linear, coupling, {', '.join(text.algorithm.scalars)})"
        )
    else:
        after = text.agents(page, text.slopes(page, released))
        page.lines += _cloud(text, y, lanes)
        page.lines += [f"store(state, {i * lanes} + lane, {x})" for i, x in enumerate(after)]
    _end(text, page, after, lanes)
    return page.lines


def _cloud(text: NamedText, y: Sequence[str], lanes: int) -> list[str]:
    """The cloud's step, row by row: mu and memory get their new values, and are stored."""
    at, memory = text.layout(), text.algorithm.memory
    held = {name: [(at[name] + j) * lanes for j in range(text.rows)] for name in ("mu", *memory)}
    sigma = dict.fromkeys(range(text.rows), "0.0")
    sigma |= {j: f"sigma{order}" for order, j in enumerate(text.noise.rows)}
    lines = []
    if "worth" in memory:
        lines.append("largest = 0.0")
        lines += [f"largest = max(largest, load(state, {w} + lane))" for w in held["worth"]]
    for j, value in enumerate(y):
        values = {name: f"load(state, {held[name][j]} + lane)" for name in memory}
        values |= {"mu": f"mu{j}", "y_g": value, "sigma": sigma[j]}
        values["coupled"] = "1.0" if text.is_coupled(j) else "0.0"
        targets = "".join(f"{name}{j}, " for name in held)
        lines.append(f"{targets}= {text.cloud(values)}")
        lines += [f"store(state, {rows[j]} + lane, {name}{j})" for name, rows in held.items()]
    return lines


def _end(text: NamedText, page: Emitter, after: Sequence[str], lanes: int) -> None:
    """Keep the first round whose numbers are not finite, and the averages if there are any."""
    at = text.layout()
    total = page.fold("+", [*after, *(f"mu{j}" for j in range(text.rows))])
    lines = page.lines
    lines.append(f"failed = load(state, {at['failed'] * lanes} + lane)")
    # A finite sum less itself is zero, any other is not.
    fine = f"failed > 0.0 or {total} - {total} == 0.0"
    lines.append(f"store(state, {at['failed'] * lanes} + lane, failed if {fine} else number)")
    if averages(text.algorithm):
        for row in range(text.size):
            to = f"{(at['mean'] + row) * lanes} + lane"
            lines.append(f"mean = load(state, {to})")
            new = f"load(state, {row * lanes} + lane)"
            lines.append(f"store(state, {to}, mean + share * ({new} - mean))")


def _measured(text: NamedText, offset: Sequence[float], lanes: int) -> list[str]:
    """The lines that measure one lane: the answer's quality, and the last iterate's errors."""
    page, g = _evaluated(text, offset, lanes, text.layout()["mean"])
    residual = text.residuals(page)
    residual += [page.assign(f"(mu{j} - positive(mu{j} + {y})) ** 2") for j, y in enumerate(g)]
    worst = "0.0"
    for y in g:
        worst = page.assign(f"max({worst}, {y})")
    x, mu = range(text.size), range(text.size, text.size + text.rows)
    last = [f"load(state, {row * lanes} + lane)" for row in (*x, *mu)]
    answer = [f"x{i}" for i in x] + [f"mu{j}" for j in range(text.rows)]

    def distance(names: Sequence[str], rows: range) -> str:
        squares = [page.assign(f"({names[row]} - hat{row}) ** 2") for row in rows]
        return f"math.sqrt({page.fold('+', squares)})"

    values = {
        "error_x": distance(answer, x),
        "error_mu": distance(answer, mu),
        "violation": worst,
        "residual": f"math.sqrt({page.fold('+', residual)})",
        "objective": text.objective(page),
        "last_error_x": distance(last, x),
        "last_error_mu": distance(last, mu),
    }
    stores = [
        f"store(trace, at + {q * lanes} + lane, {values[quantity]})"
        for q, quantity in enumerate(QUANTITIES)
    ]
    return page.lines + stores
