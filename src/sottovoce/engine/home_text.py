"""Lines of a kernel in which named agents minimise at home: their slopes as functions, and a loop.

``slope(context, x)`` is one agent's own part of the Lagrangian, differentiated, and ``pull`` what
prices add to it; ``context`` says which agent, and where prices lie. Scalar states and vectors have
functions of their own; an agent's number picks its formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import final

from sottovoce.engine.emit import Emitter
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.source import OPTIONS, block


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HomeText:
    """Writes ``at_home``, which takes all named agents from x(k) to x(k+1).

    Attributes:
        text: the formulas and where the state's parts lie.
    """

    text: NamedText

    @property
    def first(self) -> list[int]:
        """The first state of every agent, and the number of all."""
        return [0, *accumulate(self.text.named.dims)]

    def source(self) -> str:
        """The functions ``slope``, ``pull``, their vector twins, and ``at_home``."""
        dims = self.text.named.dims
        parts = []
        if 1 in dims:
            parts += [self._function("slope", scalar=True), self._function("pull", scalar=True)]
        if any(d != 1 for d in dims):
            parts += [self._function("gradient", scalar=False)]
            parts += [self._function("pulls", scalar=False)]
        return "\n".join([*parts, self._at_home()])

    def _function(self, name: str, *, scalar: bool) -> str:
        lines = [f"\n\n@njit({OPTIONS})", f"def {name}(context, x):"]
        lines.append("    who, state = context")
        own = name in ("slope", "gradient")
        for agent, dim in enumerate(self.text.named.dims):
            if (dim == 1) == scalar:
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
        page.lines += [f"mu{j} = load(state, {at + j})" for j in used]
        for i in range(begin, end):
            terms = [page.value(named.gradient[i])] if own else []
            terms += [page.times(f"mu{j}", named.jacobian[i][j]) for j in named.jacobian[i]]
            total = page.fold("+", terms) if terms else "0.0"
            page.lines.append(f"return {total}" if scalar else f"out[{i - begin}] = {total}")
        return page.lines if scalar else [*page.lines, "return out"]

    def _at_home(self) -> str:
        dims, n = self.text.named.dims, self.text.size
        lines = [
            f"\n\nFIRST = {tuple(self.first)}",
            f"\n\n@njit({OPTIONS})",
            "def at_home(state, bounds, k, theta):",
            f"    for who in range({len(dims)}):",
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
        kinds = {d == 1 for d in dims}
        if kinds == {True, False}:
            lines += [
                "        if FIRST[who + 1] == i + 1:", block(scalar, 3),
                "        else:", block(vector, 3),
            ]  # fmt: skip
        else:
            lines.append(block(scalar if kinds == {True} else vector, 2))
        return "\n".join(lines)
