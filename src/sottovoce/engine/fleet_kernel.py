"""The kernel for problems with fleets: a team of threads takes every round together.

Each thread passes over its chunks of every fleet, and all meet. Then each does for itself, to the
same bits, what is small: the named agents and the cloud. So one meeting a round is enough, with
two sets of sums in turn: nobody can be two rounds ahead of anybody.
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.engine.fleet_text import MEASURES, WIDTH, FleetText
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.source import OPTIONS, QUANTITIES, block, call, head

_ARGUMENTS = {
    "me": "int64",
    "team": "int64",
    "counter": "int64[::1]",
    "done": "int64",
    "until": "int64",
    "steps": "float64[::1]",
    "seed": "uint64",
    "state": "float64[::1]",
    "bounds": "float64[::1]",
    "offset": "float64[::1]",
    "sigma": "float64[::1]",
    "order": "int64[::1]",
    "saddle": "float64[::1]",
    "marks": "int64[::1]",
    "trace": "float64[::1]",
    "transcript": "float64[::1]",
    "normal": "float64[::1]",
    "g": "float64[::1]",
    "part": "float64[::1]",
    "work": "float64[::1]",
}


def fleet_source(
    text: NamedText, fleets: Sequence[FleetText], chunks: int, *, transcript: bool
) -> str:
    """Return the text of a module with ``advance``, the kernel that runs rounds.

    Args:
        text: writes the named agents' formulas.
        fleets: write the fleets' passes.
        chunks: into how many chunks every fleet is cut; sums depend on it, so it is fixed.
        transcript: whether every released number is written down.
    """
    arguments = [*_ARGUMENTS.items(), *(a for fleet in fleets for a in fleet.arguments())]
    signature = ", ".join(kind for _, kind in arguments)
    m, scalars = text.rows, text.algorithm.scalars
    steps = [f"{name} = steps[(k - done) * {len(scalars)} + {s}]" for s, name in enumerate(scalars)]
    measure = _measure(text, fleets, chunks)
    return "\n".join(
        [
            *head(text.algorithm),
            "from sottovoce.engine.intrinsics import meet",
            *(fleet.source() for fleet in fleets),
            f"\n\n@njit({OPTIONS})",
            "def add_up(g, offset, part, stride):",
            f"    for j in range({m}):",
            "        g[j] = offset[j]",
            f"    for c in range({chunks}):",
            f"        for j in range({m}):",
            "            g[j] += part[c * stride + j]",
            *_named(text, transcript=transcript),
            *_measured(text, chunks),
            *_cloud(text, transcript=transcript),
            f'\n\n@njit("void({signature})", nogil=True, cache=CACHE, {OPTIONS})',
            f"def advance({', '.join(name for name, _ in arguments)}):",
            "    met, mark = 0, 0",
            "    if done == 0 and marks.size > 0 and marks[0] == 0:",
            block(measure, 2),
            "    for k in range(done, until):",
            block(steps, 2),
            block(_round(text, fleets, chunks), 2),
            "        if mark < marks.size and marks[mark] == k + 1:",
            block(measure, 3),
            "",
        ]
    )


def _chunk_loop(
    text: NamedText, fleets: Sequence[FleetText], chunks: int, name: str, between: str
) -> list[str]:
    """All fleets' passes over this thread's chunks, and a meeting after them."""
    stride = text.rows + MEASURES
    lines = [
        f"for c in range(me * {chunks} // team, (me + 1) * {chunks} // team):",
        f"    mine = sums[c * {stride}:(c + 1) * {stride}]",
        "    mine[:] = 0.0",
    ]
    for fleet in fleets:
        blocks = -(-fleet.fleet.group.count // WIDTH)
        own = ", ".join(a for a, _ in fleet.arguments())
        lines.append(
            f"    {name}{fleet.index}(c * {blocks} // {chunks}, (c + 1) * {blocks} // {chunks}, "
            f"state, mine, work, {between}{own})"
        )
    return lines + _meeting()


def _meeting() -> list[str]:
    return ["met += team", "meet(counter, met)"]


def _sums(text: NamedText, chunks: int, which: str) -> str:
    size = chunks * (text.rows + MEASURES)
    return f"sums = part[{which} * {size}:({which} + 1) * {size}]"


def _round(text: NamedText, fleets: Sequence[FleetText], chunks: int) -> list[str]:
    pairs, scalars = text.noise.pairs, ", ".join(text.algorithm.scalars)
    turn = f"(k % 2) * {2 * pairs}"
    lines = [_sums(text, chunks, "(k % 2)"), f"z = normal[{turn}:{turn} + {2 * pairs}]"]
    if any(fleet.noisy for fleet in fleets):
        share = f"me * {pairs} // team, (me + 1) * {pairs} // team"
        lines += [f"normals.fill_pairs(seed, k, {pairs}, {share}, z)", *_meeting()]
    elif pairs:
        lines += [f"normals.fill_pairs(seed, k, {pairs}, 0, {pairs}, z)"]
    released = text.rows + len(text.noise.entries)
    return [
        *lines,
        *_chunk_loop(text, fleets, chunks, "pass", f"z, sigma, {scalars}, "),
        f"add_up(g, offset, sums, {text.rows + MEASURES})",
        f"out = transcript[(k - done) * {released}:]",
        f"named(state, bounds, sigma, z, g, out, {scalars})",
        f"cloud_rows(state, sigma, order, z, g, out, np.float64(k + 1), {scalars})",
    ]


def _named(text: NamedText, *, transcript: bool) -> list[str]:
    """The named agents' step; what they add to g goes to ``g``."""

    def normal(order: int) -> str:
        return f"sigma[{order}] * z[{order}]"

    page = text.emitter()
    slopes, released = text.slopes(page, normal)
    after = text.agents(page, slopes)
    sums = [
        f"g[{j}] += {page.value(expr)}"
        for j, expr in enumerate(text.named.constraints)
        if expr != 0
    ]
    lines = [*page.lines, *sums, *(f"state[{i}] = {name}" for i, name in enumerate(after))]
    if transcript:
        first = text.rows - len(text.noise.rows)
        lines += [f"out[{first + order}] = {name}" for order, name in released.items()]
    scalars = ", ".join(text.algorithm.scalars)
    return [
        f"\n\n@njit({OPTIONS})",
        f"def named(state, bounds, sigma, z, g, out, {scalars}):",
        block([*_read(text), *text.bounds(), *lines, "return None"], 1),
    ]


def _read(text: NamedText) -> list[str]:
    if not text.size:
        return []
    return [f"x{i} = state[{i}]" for i in range(text.size)] + [
        f"mu{j} = state[{text.size + j}]" for j in range(text.rows)
    ]


def _cloud(text: NamedText, *, transcript: bool) -> list[str]:
    n, m = text.size, text.rows
    values = {"mu": f"state[{n} + j]", "y_g": "y", **{s: s for s in text.algorithm.scalars}}
    step = call("cloud", text.algorithm.cloud_step, values)
    scalars = ", ".join(text.algorithm.scalars)
    return [
        f"\n\n@njit({OPTIONS})",
        f"def cloud_rows(state, sigma, order, z, g, out, number, {scalars}):",
        "    total = 0.0",
        f"    for i in range({n}):",
        "        total += state[i]",
        f"    for j in range({m}):",
        "        y = g[j]",
        "        if order[j] >= 0:",
        "            y += sigma[order[j]] * z[order[j]]",
        *(["        out[j] = y"] if transcript else []),
        f"        state[{n} + j] = {step}",
        f"        total += state[{n} + j]",
        # A finite sum less itself is zero, any other is not; the first such round is kept.
        f"    if state[{n + m}] == 0.0 and not total - total == 0.0:",
        f"        state[{n + m}] = number",
    ]


def _measure(text: NamedText, fleets: Sequence[FleetText], chunks: int) -> list[str]:
    return [
        _sums(text, chunks, "2"),
        *_chunk_loop(text, fleets, chunks, "measure", ""),
        "if me == 0:",
        f"    add_up(g, offset, sums, {text.rows + MEASURES})",
        f"    measured(state, bounds, saddle, g, sums, trace[mark * {len(QUANTITIES)}:])",
        "mark += 1",
    ]


def _measured(text: NamedText, chunks: int) -> list[str]:
    """Put together what the passes and the named agents give."""
    n, m = text.size, text.rows
    page = text.emitter()
    own = text.residuals(page)
    sums = [
        f"g[{j}] += {page.value(expr)}"
        for j, expr in enumerate(text.named.constraints)
        if expr != 0
    ]
    own_residual = page.fold("+", own) if own else "0.0"
    own_objective = text.objective(page)
    return [
        f"\n\n@njit({OPTIONS})",
        "def measured(state, bounds, saddle, g, part, out):",
        block([*_read(text), *text.bounds(), *page.lines, *sums], 1),
        f"    objective, error, residual = {own_objective}, 0.0, {own_residual}",
        f"    for c in range({chunks}):",
        f"        at = c * {m + MEASURES} + {m}",
        "        objective += part[at]",
        "        error += part[at + 1]",
        "        residual += part[at + 2]",
        f"    for i in range({n}):",
        "        error += (state[i] - saddle[i]) ** 2",
        "    error_mu, violation = 0.0, 0.0",
        f"    for j in range({m}):",
        f"        mu = state[{n} + j]",
        f"        error_mu += (mu - saddle[{n} + j]) ** 2",
        "        residual += (mu - positive(mu + g[j])) ** 2",
        "        violation = max(violation, g[j])",
        "    out[0], out[1], out[2] = math.sqrt(error), math.sqrt(error_mu), violation",
        "    out[3], out[4] = math.sqrt(residual), objective",
    ]
