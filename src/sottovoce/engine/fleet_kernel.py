"""The kernel for problems with fleets: a team of threads takes every round together.

Each thread passes over its chunks of every fleet, and all meet. Then each does for itself, to the
same bits, what is small: the named agents and the cloud. So one meeting a round is enough, with
two sets of sums in turn: nobody can be two rounds ahead of anybody. Where agents think, the cloud
comes first: a pass then steps with the new multipliers and adds up g for the round after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sottovoce.algorithm.algorithm import averages
from sottovoce.engine.emit import Emitter
from sottovoce.engine.fleet_text import MEASURES, WIDTH, FleetText
from sottovoce.engine.home_text import HomeText
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.source import OPTIONS, QUANTITIES, block, head

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
    "slopes": "float64[::1]",
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
    home = HomeText(text=text, lanes=1)
    thinks = text.algorithm.thinks
    one_round = _thinking_round(text, fleets, chunks) if thinks else _round(text, fleets, chunks)
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
            *([home.source()] if thinks and text.size else []),
            *(_evaluated if thinks else _named)(text, transcript=transcript),
            *(_home(home) if thinks else []),
            *_measured(text, chunks),
            *_cloud(text, transcript=transcript),
            f'\n\n@njit("void({signature})", nogil=True, cache=CACHE, {OPTIONS})',
            f"def advance({', '.join(name for name, _ in arguments)}):",
            "    met, mark = 0, 0",
            "    if done == 0 and marks.size > 0 and marks[0] == 0:",
            block(measure, 2),
            *([block(_look(text, fleets, chunks), 1)] if thinks else []),
            "    for k in range(done, until):",
            block(steps, 2),
            block(one_round, 2),
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


def _noise(text: NamedText, fleets: Sequence[FleetText]) -> list[str]:
    """Fill ``z`` with the round's normals, together if every thread needs all of many."""
    pairs = text.noise.pairs
    turn = f"(k % 2) * {2 * pairs}"
    lines = [f"z = normal[{turn}:{turn} + {2 * pairs}]"]
    if any(fleet.noisy for fleet in fleets):
        share = f"me * {pairs} // team, (me + 1) * {pairs} // team"
        lines += [f"normals.fill_pairs(seed, k, {pairs}, {share}, z)", *_meeting()]
    elif pairs:
        lines += [f"normals.fill_pairs(seed, k, {pairs}, 0, {pairs}, z)"]
    released = text.rows + len(text.noise.entries)
    return [*lines, f"out = transcript[(k - done) * {released}:]"]


def _round(text: NamedText, fleets: Sequence[FleetText], chunks: int) -> list[str]:
    scalars = ", ".join(text.algorithm.scalars)
    return [
        _sums(text, chunks, "(k % 2)"),
        *_noise(text, fleets),
        *_chunk_loop(text, fleets, chunks, "pass", f"z, sigma, {scalars}, "),
        f"add_up(g, offset, sums, {text.rows + MEASURES})",
        f"named(state, bounds, sigma, z, g, out, {scalars})",
        f"cloud_rows(state, sigma, order, z, g, out, {scalars})",
        *_ended(text),
    ]


def _thinking_round(text: NamedText, fleets: Sequence[FleetText], chunks: int) -> list[str]:
    scalars = ", ".join(text.algorithm.scalars)
    return [
        _sums(text, chunks, "(k % 2)"),
        *_noise(text, fleets),
        f"add_up(g, offset, sums, {text.rows + MEASURES})",
        "evaluated(state, sigma, z, g, out, entries)",
        f"cloud_rows(state, sigma, order, z, g, out, {scalars})",
        f"at_home(state, bounds, slopes, entries, linear, coupling, {scalars})",
        *_ended(text),
        _sums(text, chunks, "((k + 1) % 2)"),
        *_chunk_loop(text, fleets, chunks, "pass", f"z, sigma, {scalars}, "),
    ]


def _look(text: NamedText, fleets: Sequence[FleetText], chunks: int) -> list[str]:
    """What thinking rounds need before the first: sums at the states as they are, and room."""
    return [
        f"entries = np.zeros({max(1, len(text.coupled))})",
        f"linear, coupling = np.zeros({max(1, text.size)}), np.zeros({max(1, text.size)})",
        _sums(text, chunks, "(done % 2)"),
        *_chunk_loop(text, fleets, chunks, "look", ""),
    ]


def _added(text: NamedText, page: Emitter) -> list[str]:
    """What the named agents add to g."""
    return [
        f"g[{j}] += {page.value(expr)}"
        for j, expr in enumerate(text.named.constraints)
        if expr != 0
    ]


def _normal(order: int) -> str:
    return f"sigma[{order}] * z[{order}]"


def _kept(text: NamedText, released: Mapping[tuple[int, int], str]) -> list[str]:
    """Write released gradient entries down."""
    first = text.rows - len(text.noise.rows)
    return [f"out[{first + text.noise.entries[e]}] = {name}" for e, name in released.items()]


def _named(text: NamedText, *, transcript: bool) -> list[str]:
    """The named agents' step; what they add to g goes to ``g``."""
    page = text.emitter()
    released = text.released(page, _normal)
    after = text.agents(page, text.slopes(page, released))
    sums = _added(text, page)
    lines = [*page.lines, *sums, *(f"state[{i}] = {name}" for i, name in enumerate(after))]
    lines += _kept(text, released) if transcript else []
    scalars = ", ".join(text.algorithm.scalars)
    return [
        f"\n\n@njit({OPTIONS})",
        f"def named(state, bounds, sigma, z, g, out, {scalars}):",
        block([*_read(text), *text.bounds(), *lines, "return None"], 1),
    ]


def _evaluated(text: NamedText, *, transcript: bool) -> list[str]:
    """What named agents add to ``g``, and the entries that those who think cannot work out."""
    page = text.emitter()
    released = text.released(page, _normal)
    entries = {**text.exact(page), **released}
    sums = _added(text, page)
    lines = [*page.lines, *sums]
    lines += [f"entries[{at}] = {entries[entry]}" for entry, at in text.coupled.items()]
    lines += _kept(text, released) if transcript else []
    return [
        f"\n\n@njit({OPTIONS})",
        "def evaluated(state, sigma, z, g, out, entries):",
        block([*_read(text), *lines, "return None"], 1),
    ]


def _home(home: HomeText) -> list[str]:
    """The named agents' minimisation, with the new multipliers."""
    text, scalars = home.text, ", ".join(home.text.algorithm.scalars)
    entries = {entry: f"entries[{at}]" for entry, at in text.coupled.items()}
    lines = [*_read(text), *home.priced(entries)]
    if text.size:
        lines.append(f"think(0, state, bounds, linear, coupling, {scalars})")
    return [
        f"\n\n@njit({OPTIONS})",
        f"def at_home(state, bounds, slopes, entries, linear, coupling, {scalars}):",
        block([*lines, "return None"], 1),
    ]


def _read(text: NamedText, first: int = 0) -> list[str]:
    if not text.size:
        return []
    return [f"x{i} = state[{first + i}]" for i in range(text.size)] + [
        f"mu{j} = state[{first + text.size + j}]" for j in range(text.rows)
    ]


def _cloud(text: NamedText, *, transcript: bool) -> list[str]:
    at, memory, m = text.layout(), text.algorithm.memory, text.rows
    held = {name: f"state[{at[name]} + j]" for name in ("mu", *memory)}
    values = held | {"y_g": "y", "sigma": "noise", "coupled": "coupled[j]"}
    flags = ", ".join(str(float(text.is_coupled(j))) for j in range(m))
    lines = ["largest = 0.0"]
    if "worth" in memory:
        lines += [f"for j in range({m}):", f"    largest = max(largest, {held['worth']})"]
    scalars = ", ".join(text.algorithm.scalars)
    return [
        f"\n\nCOUPLED = np.array([{flags}])",
        f"\n\n@njit({OPTIONS})",
        f"def cloud_rows(state, sigma, order, z, g, out, {scalars}):",
        "    coupled = COUPLED",
        block(lines, 1),
        f"    for j in range({m}):",
        "        y, noise = g[j], 0.0",
        "        if order[j] >= 0:",
        "            noise = sigma[order[j]]",
        "            y += noise * z[order[j]]",
        *(["        out[j] = y"] if transcript else []),
        f"        {', '.join(held.values())}, = {text.cloud(values)}",
    ]


def _ended(text: NamedText) -> list[str]:
    """Keep the first round whose numbers are not finite, and the averages if there are any."""
    at, small = text.layout(), text.size + text.rows
    failed = f"state[{at['failed']}]"
    lines = [
        "total = 0.0",
        f"for i in range({small}):",
        "    total += state[i]",
        # A finite sum less itself is zero, any other is not.
        f"if {failed} == 0.0 and not total - total == 0.0:",
        f"    {failed} = np.float64(k + 1)",
    ]
    if averages(text.algorithm):
        mean = f"state[{at['mean']} + i]"
        lines += [f"for i in range({text.size}):", f"    {mean} += share * (state[i] - {mean})"]
    return lines


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
    n, m, answer = text.size, text.rows, text.layout()["mean"]
    page = text.emitter()
    own = text.residuals(page)
    sums = _added(text, page)
    own_residual = page.fold("+", own) if own else "0.0"
    own_objective = text.objective(page)
    return [
        f"\n\n@njit({OPTIONS})",
        "def measured(state, bounds, saddle, g, part, out):",
        block([*_read(text, answer), *text.bounds(), *page.lines, *sums], 1),
        f"    objective, residual, error, last = {own_objective}, {own_residual}, 0.0, 0.0",
        f"    for c in range({chunks}):",
        f"        at = c * {m + MEASURES} + {m}",
        "        objective += part[at]",
        "        residual += part[at + 1]",
        "        error += part[at + 2]",
        "        last += part[at + 3]",
        f"    for i in range({n}):",
        f"        error += (state[{answer} + i] - saddle[i]) ** 2",
        "        last += (state[i] - saddle[i]) ** 2",
        "    error_mu, last_mu, violation = 0.0, 0.0, 0.0",
        f"    for j in range({n}, {n + m}):",
        f"        mu = state[{answer} + j]",
        "        error_mu += (mu - saddle[j]) ** 2",
        "        last_mu += (state[j] - saddle[j]) ** 2",
        f"        residual += (mu - positive(mu + g[j - {n}])) ** 2",
        f"        violation = max(violation, g[j - {n}])",
        "    out[0], out[1], out[2] = math.sqrt(error), math.sqrt(error_mu), violation",
        "    out[3], out[4] = math.sqrt(residual), objective",
        "    out[5], out[6] = math.sqrt(last), math.sqrt(last_mu)",
    ]
