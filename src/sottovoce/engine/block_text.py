"""Lines that take a whole block of agents at once, in vector registers, where a search serves them.

Every name stands for one number of each agent: ``x0`` is the first component of all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sottovoce.algorithm.home_block import CURVATURE, FREE, LOWER, POINT, SLOPE, UPPER
from sottovoce.engine.emit import Emitter
from sottovoce.engine.home_shape import Separable
from sottovoce.engine.separable_text import laid_out, rows_of
from sottovoce.engine.slopes import names_in, used_parameters
from sottovoce.engine.source import block

if TYPE_CHECKING:
    from sottovoce.engine.fleet_text import FleetText


def lay_source(text: FleetText) -> list[str]:
    """``lay<i>``: the problems of block b's agents, with their states in an array ``x``."""
    i, first = text.index, text.layout()["home"]
    page = _page(text)
    page.lines += [f"x{c} = load_row(x, b * {text.dim} + {c})" for c in range(text.dim)]
    bounds = [[_bound(text, side, c) for c in range(text.dim)] for side in ("lower", "upper")]
    numbers = list(laid_out(page, text.fleet, _shape(text), _prices(text, page), bounds))
    page.lines += [f"store_row(work, {first + to}, {name})" for to, name in numbers]
    return [
        f"\n\ndef lay{i}(b, x, state, work, data_{i}, bounds_{i}, number, theta, near):",
        block([*text.scalars(), *page.lines, "return None"], 1),
    ]


def block_round(text: FleetText) -> list[str]:
    """Block b's round: average what was released, search, keep what is found and add it up.

    Without a plan nothing is released, and the answer is what is found last.
    """
    i, d, found = text.index, text.dim, text.layout()["home"] + FREE * text.dim
    page = _page(text)
    averaged = [
        f"for c in range({d}):",
        f"    mean = load_row(mean_{i}, b * {d} + c)",
        f"    y = load_row(x_{i}, b * {d} + c)",
        f"    store_row(mean_{i}, b * {d} + c, mean + share * (y - mean))",
    ]
    page.lines += [
        *(averaged if text.gridded else []),
        *_searched(text, f"x_{i}", "number, theta, 0.0"),
        f"for c in range({d}):",
        f"    store_row(x_{i}, b * {d} + c, load_row(work, {found} + c))",
        *([] if text.gridded else averaged),
        *(f"x{c} = load_row(work, {found + c})" for c in range(d)),
    ]
    _add_up(text, page)
    return page.lines


def block_proximal(text: FleetText) -> list[str]:
    """A proximal step of block b's agents from their answers: FREE is where it leads."""
    return _searched(text, f"mean_{text.index}", "1, 0.0, 1.0")


def block_settle(text: FleetText) -> list[str]:
    """Take block b's states to the nearest points of their agents' own sets."""
    i, d, first = text.index, text.dim, text.layout()["home"]
    page = _page(text)
    ends = []
    for side, vector in (("lower", LOWER), ("upper", UPPER)):
        row = text.bound_row(side, 0)
        shared = f"bounds_{i}[{0 if side == 'lower' else d} + c]"
        value = shared if row is None else f"load_row(data_{i}, b * {text.data_rows} + {row} + c)"
        ends.append(f"    store_row(work, {first + vector * d} + c, {value})")
    names = [["0.0"] * d] * 2
    vectors = 5 * d  # the others are filled by loops
    numbers = list(laid_out(page, text.fleet, _shape(text), [], names, "project"))
    rows = len(rows_of(_shape(text), "project"))
    return [
        *page.lines,
        f"for c in range({d}):",
        f"    store_row(work, {first + POINT * d} + c, load_row(x_{i}, b * {d} + c))",
        f"    store_row(work, {first + SLOPE * d} + c, 0.0)",
        f"    store_row(work, {first + CURVATURE * d} + c, 1.0)",
        *ends,
        *(f"store_row(work, {first + to}, {name})" for to, name in numbers if to >= vectors),
        f"invoke(home_{i}[{rows}], ({d}, {first}, work))",
        f"for c in range({d}):",
        f"    store_row(x_{i}, b * {d} + c, load_row(work, {first + FREE * d} + c))",
    ]


def _searched(text: FleetText, source: str, numbers: str) -> list[str]:
    i, d, first = text.index, text.dim, text.layout()["home"]
    given = f"b, {source}, state, work, data_{i}, bounds_{i}, {numbers}"
    search = f"home_{i}[{len(_shape(text).rows)}]"
    return [f"lay{i}({given})", f"invoke({search}, ({d}, {first}, work))"]


def _shape(text: FleetText) -> Separable:
    assert isinstance(text.shape, Separable)  # noqa: S101  the callers have asked
    return text.shape


def _page(text: FleetText) -> Emitter:
    """A page with the parameters of block b."""
    rows = max(1, text.data_rows)
    page = Emitter(names_in(text.fleet))
    page.lines += [
        f"p{q} = load_row(data_{text.index}, b * {rows} + {q})"
        for q in range(len(used_parameters(text.fleet)))
    ]
    return page


def _bound(text: FleetText, side: str, c: int) -> str:
    row = text.bound_row(side, c)
    if row is None:
        return f"{side}{c}"
    return f"load_row(data_{text.index}, b * {text.data_rows} + {row})"


def _prices(text: FleetText, page: Emitter) -> list[list[str]]:
    """The multiplier of every term of every sum."""
    at = text.layout()
    return [
        [
            f"m{s}_{t}"
            if part.weights is None
            else page.assign(f"load_row(work, {at[f'm{s}'] + t})")
            for t in range(len(part.terms))
        ]
        for s, part in enumerate(text.fleet.sums)
    ]


def _add_up(text: FleetText, page: Emitter) -> None:
    """Add contributions to the sums, but not those of lanes without an agent."""
    at = text.layout()
    for s, part in enumerate(text.fleet.sums):
        plain = part.weights is None
        for t, h in enumerate(part.terms):
            value = page.value(h)
            if plain and text.gridded:
                value = page.assign(f"rint({value} / grid[{part.row + t}])")
            to = at[f"sum{s}" if plain else f"h{s}"] + t
            total = f"load_row(work, {to}) + leading({value}, width)" if plain else value
            page.lines.append(f"store_row(work, {to}, {total})")
