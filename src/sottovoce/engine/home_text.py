"""Lines of a kernel in which named agents minimise at home: their slopes as functions, and a loop.

``slope(context, x)`` is one agent's own part of the Lagrangian, differentiated, and ``pull`` what
prices add to it; ``context`` says which agent, and where prices lie. Scalar states and vectors have
functions of their own; an agent's number picks its formula. Agents whose problem a search or an
interior-point method serves have a function each, ``home_of<who>``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias, final

from sottovoce.algorithm.home_block import FREE
from sottovoce.engine.emit import Emitter
from sottovoce.engine.home_shape import Separable, shape_of
from sottovoce.engine.interior_text import call_interior, derive_body, derive_source
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.separable_text import SEARCHES, laid_out, space
from sottovoce.engine.slopes import Prices, names_in
from sottovoce.engine.source import block
from sottovoce.engine.vectors import WIDTH
from sottovoce.problem.epigraph import HomeForm

Step: TypeAlias = Literal["round", "near"]
"""A round's minimisation; or a proximal step from the answer."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HomeText:
    """Writes ``at_home``, which takes all named agents from x(k) to x(k+1).

    Attributes:
        text: the formulas and where the state's parts lie.
        shapes: how agents minimise, by their number; others take steps in their boxes.
    """

    text: NamedText
    shapes: Mapping[int, Separable | HomeForm]

    @staticmethod
    def of(text: NamedText) -> HomeText:
        """Return the text with the structure of every agent's problem."""
        found = {who: shape_of(own) for who, own in enumerate(text.named.alone)}
        return HomeText(text=text, shapes={who: s for who, s in found.items() if s is not None})

    @property
    def first(self) -> list[int]:
        """The first state of every agent, and the number of all."""
        return [0, *accumulate(self.text.named.dims)]

    def states(self, who: int) -> range:
        """The places of an agent's components among all named agents' states."""
        return range(self.first[who], self.first[who + 1])

    @property
    def bound_by_rows(self) -> list[int]:
        """The agents that keep to rows of their own, beside their bounds."""
        own = enumerate(self.text.named.alone)
        return [who for who, one in own if one.local is not None and one.local.rows]

    @property
    def space(self) -> int:
        """How many numbers of each lane minimising takes."""
        return max((space(self.text.named.dims[who]) for who in self.shapes), default=0)

    def searches(self) -> set[int]:
        """Over how many rows searches go."""
        return {len(s.rows) for s in self.shapes.values() if isinstance(s, Separable)}

    def derive_source(self) -> str | None:
        """The module that derives what agents without structure minimise; None if all have it."""
        bodies = {
            who: derive_body(
                self.text.named.alone[who], shape, self._prices(who), self._read_prices(who)
            )
            for who, shape in self.shapes.items()
            if isinstance(shape, HomeForm)
        }
        return derive_source(bodies) if bodies else None

    def source(self) -> str:
        """The functions ``slope``, ``pull``, their vector twins, and ``at_home``."""
        dims = [self.text.named.dims[who] for who in self._stepping]
        vectors = any(self.text.named.dims[who] != 1 for who in self._pulled)
        parts = []
        if 1 in dims:
            parts += [self._function("slope", scalar=True), self._function("pull", scalar=True)]
        if any(d != 1 for d in dims):
            parts += [self._function("gradient", scalar=False)]
        if vectors:
            parts += [self._function("pulls", scalar=False)]
        parts += [self._home_of(who) for who in self.shapes]
        parts += [self._at_home(), self._residual()]
        return "\n".join(parts)

    @property
    def _stepping(self) -> list[int]:
        """Agents that take steps in their boxes."""
        return [who for who in range(len(self.text.named.dims)) if who not in self.shapes]

    @property
    def _pulled(self) -> list[int]:
        """Agents whose damping is worked out from what prices add to their slope."""
        general = [who for who, s in self.shapes.items() if isinstance(s, HomeForm)]
        return sorted([*self._stepping, *general])

    def _function(self, name: str, *, scalar: bool) -> str:
        lines = [f"\n\ndef {name}(context, x):"]
        lines.append("    who, state = context")
        own = name in ("slope", "gradient")
        for agent in self._stepping if own or scalar else self._pulled:
            if (self.text.named.dims[agent] == 1) == scalar or agent in self.shapes:
                lines.append(f"    if who == {agent}:")
                lines.append(block(self._agent(agent, scalar=scalar, own=own), 2))
        lines.append("    return math.nan" if scalar else "    return np.full(x.size, math.nan)")
        return "\n".join(lines)

    def _agent(self, agent: int, *, scalar: bool, own: bool) -> list[str]:
        """One agent's derivative: of its priced contributions, and of its objective if own."""
        named, at = self.text.named, self.text.layout()["price"]
        begin, end = self.first[agent], self.first[agent + 1]
        page = Emitter({named.symbols[i]: f"x{i}" for i in range(begin, end)})
        if scalar:
            page.lines.append(f"x{begin} = x")
        else:
            page.lines += [f"x{i} = x[{i - begin}]" for i in range(begin, end)]
            page.lines.append(f"out = np.empty({end - begin})")
        used = sorted({j for i in range(begin, end) for j in named.jacobian[i]})
        page.lines += [f"mu{j} = state[{at + j}]" for j in used]
        for i in range(begin, end):
            terms = [page.value(named.gradient[i])] if own else []
            terms += [page.times(f"mu{j}", named.jacobian[i][j]) for j in named.jacobian[i]]
            total = page.fold("+", terms) if terms else "0.0"
            page.lines.append(f"return {total}" if scalar else f"out[{i - begin}] = {total}")
        return page.lines if scalar else [*page.lines, "return out"]

    def _at_home(self) -> str:
        stepping, n = self._stepping, self.text.size
        lines = [
            f"\n\nFIRST = {tuple(self.first)}",
            f"STEPPING = {(*stepping, -1)}",
            "\n\ndef at_home(state, bounds, k, theta, work, searches):",
            *(f"    home_of{who}(state, bounds, k, theta, work, searches)" for who in self.shapes),
            f"    for place in range({len(stepping)}):",
            "        who = STEPPING[place]",
            "        context = (who, state)",
            "        i = FIRST[who]",
        ]
        scalar = [
            f"state[i] = agent_round(slope, pull, context, state[i], bounds[i], bounds[{n} + i], "
            "k, theta)"
        ]
        vector = [
            "end = FIRST[who + 1]",
            "state[i:end] = vector_round(gradient, pulls, context, state[i:end].copy(), "
            f"bounds[i:end], bounds[{n} + i:{n} + end], k, theta)",
        ]
        kinds = {self.text.named.dims[who] == 1 for who in stepping}
        if not kinds:
            return "\n".join([*lines[:-4], "    return None"])
        if kinds == {True, False}:
            lines += [
                "        if FIRST[who + 1] == i + 1:", block(scalar, 3),
                "        else:", block(vector, 3),
            ]  # fmt: skip
        else:
            lines.append(block(scalar if kinds == {True} else vector, 2))
        return "\n".join(lines)

    def _home_of(self, who: int) -> str:
        """``home_of<who>``: one agent's minimisation."""
        first = self.first[who]
        found, answer = self._minimised(who, "round", first)
        kept = [f"state[{first + c}] = {name}" for c, name in enumerate(answer)]
        return "\n".join(
            [
                f"\n\ndef home_of{who}(state, bounds, number, theta, work, searches):",
                block([*found, *kept, "return None"], 1),
            ]
        )

    def _residual(self) -> str:
        """``own_residual``: of agents with rows, how far a proximal step leads from the answer."""
        answer, parts = self.text.layout()["mean"], ["total = 0.0"]
        for who in self.bound_by_rows:
            first = answer + self.first[who]
            found, near = self._minimised(who, "near", first)
            parts += found
            parts += [f"total += (state[{first + c}] - {name}) ** 2" for c, name in enumerate(near)]
        return "\n".join(
            [
                "\n\ndef own_residual(state, bounds, work, searches):",
                block([*parts, "return total"], 1),
            ]
        )

    def _minimised(self, who: int, task: Step, first: int) -> tuple[list[str], list[str]]:
        """Lines that minimise for an agent, its state at ``state[first]``; the answer's names."""
        shape, dim = self.shapes[who], self.text.named.dims[who]
        if isinstance(shape, Separable):
            lines = self._searched(who, shape, task, first)
            return lines, [f"work[{(FREE * dim + c) * WIDTH}]" for c in range(dim)]
        return self._interior(who, shape, task, first), [f"x[{c}]" for c in range(dim)]

    def _searched(self, who: int, shape: Separable, task: Step, first: int) -> list[str]:
        """One agent in all lanes alike."""
        own, n, dim = self.text.named.alone[who], self.text.size, self.text.named.dims[who]
        page = Emitter(names_in(own))
        page.lines += [f"x{c} = state[{first + c}]" for c in range(dim)]
        page.lines += self._read_prices(who, averaged=task == "near")
        page.lines += ["near = 0.0"] if task == "round" else ["number, theta, near = 1, 0.0, 1.0"]
        sides = [[f"bounds[{side + i}]" for i in self.states(who)] for side in (0, n)]
        numbers = list(laid_out(page, own, shape, self._prices(who), sides))
        page.lines += [f"store_row(work, {to}, {name})" for to, name in numbers]
        return [*page.lines, f"invoke(searches[{len(shape.rows)}], ({dim}, 0, work))"]

    def _interior(self, who: int, shape: HomeForm, task: Step, first: int) -> list[str]:
        dim, n, begin = self.text.named.dims[who], self.text.size, self.first[who]
        size = dim + len(shape.extra)
        lines = [f"{name} = np.empty({size})" for name in ("x", "lower", "upper", "weight")]
        for c in range(dim):
            lines.append(f"x[{c}] = state[{first + c}]")
            lines += [
                f"{side}[{c}] = bounds[{from_ + begin + c}]"
                for side, from_ in (("lower", 0), ("upper", n))
            ]
            lines.append(f"weight[{c}] = 1.0")
        for e in range(len(shape.extra)):
            low, high = float(shape.lower[0, e]), float(shape.upper[0, e])
            lines += [f"lower[{dim + e}], upper[{dim + e}] = {low!r}, {high!r}"]
            lines += [f"x[{dim + e}], weight[{dim + e}] = {0.5 * (low + high)!r}, 0.0"]
        if task == "round":
            given = f"({who}, state), x[:{dim}], lower, upper, number, theta"
            lines.append(f"weight[:{dim}] = dampings(pulls, {given})")
        read = "state" if task == "round" else f"state[{self.text.layout()['mean']}:]"
        at = f"searches[{len(SEARCHES)}], searches[{len(SEARCHES) + 1}]"
        return [*lines, call_interior(at, f"{who}, 0, 1.0, {read}, work, bounds", shape)]

    def _prices(self, who: int) -> Prices:
        return [[f"m{s}_0"] for s in range(len(self.text.named.alone[who].sums))]

    def _read_prices(self, who: int, *, averaged: bool = False) -> list[str]:
        at = self.text.layout()["price"] + (self.text.layout()["mean"] if averaged else 0)
        sums = self.text.named.alone[who].sums
        return [f"m{s}_0 = state[{at + part.row}]" for s, part in enumerate(sums)]
