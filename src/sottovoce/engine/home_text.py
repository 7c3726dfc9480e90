"""Lines of a kernel in which named agents minimise at home: their slopes as functions, and a loop.

``slope(context, x)`` is one agent's own part of the Lagrangian, differentiated; ``context`` says
which agent, in which lane, and where mu and the priced released entries lie. Scalar states and
vectors have a function each; an agent's number picks its formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import final

from sottovoce.engine.emit import Emitter
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.source import OPTIONS, block, call


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HomeText:
    """Writes ``think``, which takes all named agents of one lane from x(k) to x(k+1).

    Attributes:
        text: the formulas and where the state's parts lie.
        lanes: runs side by side.
    """

    text: NamedText
    lanes: int

    @property
    def first(self) -> list[int]:
        """The first state of every agent, and the number of all."""
        return [0, *accumulate(self.text.named.dims)]

    def source(self) -> str:
        """The functions ``slope``, ``gradient`` and ``think``."""
        dims = self.text.named.dims
        parts = []
        if 1 in dims:
            parts.append(self._slopes("slope", scalar=True))
        if any(d != 1 for d in dims):
            parts.append(self._slopes("gradient", scalar=False))
        return "\n".join([*parts, self._think()])

    def priced(self, released: dict[tuple[int, int], str]) -> list[str]:
        """Fill ``linear`` and ``coupling``: ``sum mu_j Y_ji`` and ``sum mu_j L_ji`` per state."""
        lines = []
        for i, column in enumerate(self.text.named.columns):
            own = [(j, at) for (j, c), at in self.text.coupled.items() if c == column]
            if own:
                pulls = " + ".join(f"mu{j} * {released[j, column]}" for j, _ in own)
                holds = " + ".join(f"mu{j} * slopes[{at}]" for j, at in own)
                lines += [f"linear[{i}] = {pulls}", f"coupling[{i}] = {holds}"]
        return lines

    def _slopes(self, name: str, *, scalar: bool) -> str:
        lines = [f"\n\n@njit({OPTIONS})", f"def {name}(context, x):"]
        lines.append("    who, lane, state, linear = context")
        for agent, dim in enumerate(self.text.named.dims):
            if (dim == 1) == scalar:
                lines.append(f"    if who == {agent}:")
                lines.append(block(self._agent(agent, scalar=scalar), 2))
        lines.append("    return math.nan" if scalar else "    return np.full(x.size, math.nan)")
        return "\n".join(lines)

    def _agent(self, agent: int, *, scalar: bool) -> list[str]:
        named, at = self.text.named, self.text.layout()["mu"]
        begin, end = self.first[agent], self.first[agent + 1]
        page = Emitter({named.symbols[i]: f"x{i}" for i in range(begin, end)})
        if scalar:
            page.lines.append(f"x{begin} = x")
        else:
            page.lines += [f"x{i} = x[{i - begin}]" for i in range(begin, end)]
            page.lines.append(f"out = np.empty({end - begin})")
        used = sorted({j for i in range(begin, end) for j in self._home(i)})
        page.lines += [f"mu{j} = load(state, {(at + j) * self.lanes} + lane)" for j in used]
        for i in range(begin, end):
            terms = [page.value(named.gradient[i])]
            terms += [page.times(f"mu{j}", named.jacobian[i][j]) for j in self._home(i)]
            if any(c == named.columns[i] for _, c in self.text.coupled):
                terms.append(f"linear[{i}]")
            total = page.fold("+", terms)
            page.lines.append(f"return {total}" if scalar else f"out[{i - begin}] = {total}")
        return page.lines if scalar else [*page.lines, "return out"]

    def _home(self, i: int) -> list[int]:
        """The rows whose derivative by state i the agent works out at home."""
        column = self.text.named.columns[i]
        return [j for j in self.text.named.jacobian[i] if (j, column) not in self.text.coupled]

    def _think(self) -> str:
        dims, scalars = self.text.named.dims, ", ".join(self.text.algorithm.scalars)
        lines = [
            f"\n\nFIRST = {tuple(self.first)}",
            f"\n\n@njit({OPTIONS})",
            f"def think(lane, state, bounds, linear, coupling, {scalars}):",
            f"    for who in range({len(dims)}):",
            "        context = (who, lane, state, linear)",
            "        i = FIRST[who]",
        ]
        scalar = [
            f"at = i * {self.lanes} + lane",
            f"after = {self._step('agent', 'slope', 'load(state, at)', 'i')}",
            "store(state, at, after)",
        ]
        vector = [
            "end = FIRST[who + 1]",
            "x = np.empty(end - i)",
            "for c in range(end - i):",
            f"    x[c] = load(state, (i + c) * {self.lanes} + lane)",
            f"moved = {self._step('vector', 'gradient', 'x', 'i:end')}",
            "for c in range(end - i):",
            f"    store(state, (i + c) * {self.lanes} + lane, moved[c])",
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

    def _step(self, role: str, slope: str, x: str, index: str) -> str:
        n, algorithm = self.text.size, self.text.algorithm
        upper = f"{n} + i" if index == "i" else f"{n} + i:{n} + end"
        values = {
            "slope": slope,
            "context": "context",
            "x": x,
            "lower": f"bounds[{index}]",
            "upper": f"bounds[{upper}]",
            "coupling": f"coupling[{index}]",
            **{name: name for name in algorithm.scalars},
        }
        step = algorithm.agent_step if role == "agent" else algorithm.vector_step
        return call(role, step, values)
