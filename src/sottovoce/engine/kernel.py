"""The kernel of whole rounds: a team of threads takes every round together.

Each thread passes over its chunks of every fleet, and all meet. Then each does for itself, to the
same bits, what is small: the named agents and the cloud. So one meeting a round is enough, with
two sets of sums in turn: nobody can be two rounds ahead of anybody. With prices the cloud comes
first: a pass then minimises with the new prices and adds up contributions for the round after it.
With gradient steps agents and cloud move at the same time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final
from weakref import WeakKeyDictionary

from sottovoce.algorithm.algorithm import GradientSteps, PriceRounds
from sottovoce.engine.emit import Emitter
from sottovoce.engine.fleet_text import MEASURES, FleetText
from sottovoce.engine.formulas import Named
from sottovoce.engine.home_text import HomeText
from sottovoce.engine.named_text import NamedText
from sottovoce.engine.source import QUANTITIES, block, call, head
from sottovoce.formula.expression import Expression

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
    "grid": "float64[::1]",
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
_ADDRESSES = {"turn": "int64", "nearest": "int64", "searches": "int64[::1]"}
_CLOUD = {"constants": "float64[::1]", "unit": "float64[::1]", "noisy": "float64[::1]"}
_LIMITS = {"least": "float64[::1]", "most": "float64[::1]"}  # of C as stated, not as aimed at
_written: WeakKeyDictionary[Named, dict[Hashable, str]] = WeakKeyDictionary()


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelText:
    """Writes ``advance``, the kernel that runs rounds.

    Attributes:
        text: writes the named agents' formulas.
        home: writes how they minimise.
        fleets: write the fleets' passes.
        chunks: into how many chunks every fleet is cut; sums depend on it, so it is fixed.
        transcript: whether every released number is written down.
        public: C as the cloud's round takes it, with their kinds; for prices.
        gridded: whether contributions are rounded to the public grid, as agents send them.
        stated: constraints over named agents, as stated, whose sums do not show how much they are
            violated.
    """

    text: NamedText
    home: HomeText
    fleets: Sequence[FleetText]
    chunks: int
    transcript: bool
    public: Mapping[str, str] = field(default_factory=dict)
    stated: Sequence[Expression] = ()
    gridded: bool = False

    @property
    def _stride(self) -> int:
        return self.text.rows + MEASURES

    def source(self) -> str:
        """The text of the module; that of named agents is remembered with their formulas."""
        steps = self.text.algorithm
        if self.fleets or not isinstance(steps, Hashable):
            return self._write()
        noise, known = self.text.noise, _written.setdefault(self.text.named, {})
        key = (steps, noise.rows, *noise.entries.items(), self.chunks, self.transcript,
               *self.public.items(), *self.stated, self.gridded)  # fmt: skip
        if key not in known:
            known[key] = self._write()
        return known[key]

    def _write(self) -> str:
        steps = self.text.algorithm
        arguments = dict(_ARGUMENTS)
        if isinstance(steps, GradientSteps):
            numbers, before, one_round = steps.scalars, [], self._gradient_round(steps)
            functions = [*self._named(steps), *self._cloud_rows(steps)]
        else:
            arguments |= {**_ADDRESSES, **_LIMITS, **_CLOUD, **self.public}
            numbers, before = ("share", "steer"), self._first(steps)
            one_round = self._price_round()
            functions = self._contributed()
            functions += [self.home.source()] if self.text.size else []
        every = [*arguments.items(), *(a for fleet in self.fleets for a in fleet.arguments())]
        read = [
            f"{name} = steps[(k - done) * {len(numbers)} + {s}]" for s, name in enumerate(numbers)
        ]
        measure = self._measure()
        return "\n".join(
            [
                *head(steps),
                "from sottovoce.engine.intrinsics import meet",
                *(fleet.source() for fleet in self.fleets),
                *self._settle(),
                *self._add_up(),
                *functions,
                *self._measured(),
                f'\n\n@entry("void({", ".join(k for _, k in every)})")',
                f"def advance({', '.join(name for name, _ in every)}):",
                "    met, mark = 0, 0",
                block(before, 1),
                "    if done == 0 and marks.size > 0 and marks[0] == 0:",
                block(measure, 2),
                *([block(self._look(), 1)] if before else []),
                "    for k in range(done, until):",
                block(read, 2),
                block(one_round, 2),
                "        if mark < marks.size and marks[mark] == k + 1:",
                block(measure, 3),
                "",
            ]
        )

    def _first(self, algorithm: PriceRounds) -> list[str]:
        """What prices need before the first round."""
        at, p = self.text.layout(), self.text.rows
        return [
            f"theta = constants[{algorithm.constants._fields.index('theta')}]",
            f"price = state[{at['price']}:{at['price'] + p}]",
            f"memory = state[{at['memory']}:{at['failed']}]",
            *([f"inside, scratch = work[:{p}], work[{p}:]"] if self.gridded else []),
        ]

    def _price_round(self) -> list[str]:
        at, n, p = self.text.layout(), self.text.size, self.text.rows
        failed = f"state[{at['failed']}]"
        public = ", ".join([*_CLOUD, *self.public])
        averaged = [
            f"for i in range({n + p}):",
            f"    state[{at['mean']} + i] += share * (state[i] - state[{at['mean']} + i])",
        ]
        return [
            self._sums("(k % 2)"),
            *self._noise(),
            f"add_up(g, offset, sums, {self._stride})",
            *(["contributed(state, grid, g)"] if n else []),
            f"for j in range({p}):",
            *(["    g[j] *= grid[j]"] if self.gridded else []),
            "    if order[j] >= 0:",
            "        g[j] += sigma[order[j]] * z[order[j]]",
            *(["    out[j] = g[j]"] if self.transcript else []),
            *(averaged + self._steered() if self.gridded else []),
            "number = k + 1",
            f"fine = invoke(turn, (number, g, price, memory, {public}))",
            f"if not fine and {failed} == 0.0:",
            f"    {failed} = np.float64(number)",
            *(["at_home(state, bounds, number, theta, work, searches)"] if n else []),
            *([] if self.gridded else averaged),
            self._sums("((k + 1) % 2)"),
            *self._chunk_loop("pass", "grid, number, theta, share, "),
        ]

    def _steered(self) -> list[str]:
        """Average the releases, and take off what that average has too much of."""
        at, p = self.text.layout()["released"], self.text.rows
        return [
            f"released = state[{at}:{at + p}]",
            f"for j in range({p}):",
            "    released[j] += share * (g[j] - released[j])",
            "if steer > 0.0:",
            f"    invoke(nearest, (released, inside, scratch, {', '.join(self.public)}))",
            f"    for j in range({p}):",
            "        g[j] += steer * (released[j] - inside[j])",
        ]

    def _gradient_round(self, steps: GradientSteps) -> list[str]:
        scalars = ", ".join(steps.scalars)
        failed = f"state[{self.text.layout()['failed']}]"
        return [
            self._sums("(k % 2)"),
            *self._noise(),
            *self._chunk_loop("pass", f"grid, {scalars}, "),
            f"add_up(g, offset, sums, {self._stride})",
            f"named(state, bounds, g, {scalars})",
            f"cloud_rows(state, sigma, order, z, g, out, {scalars})",
            "total = 0.0",
            f"for i in range({self.text.size + self.text.rows}):",
            "    total += state[i]",
            # A finite sum less itself is zero, any other is not.
            f"if {failed} == 0.0 and not total - total == 0.0:",
            f"    {failed} = np.float64(k + 1)",
        ]

    def _chunk_loop(self, name: str, between: str) -> list[str]:
        """All fleets' passes over this thread's chunks, and a meeting after them."""
        chunks, stride = self.chunks, self._stride
        lines = [
            f"for c in range(me * {chunks} // team, (me + 1) * {chunks} // team):",
            f"    mine = sums[c * {stride}:(c + 1) * {stride}]",
            "    mine[:] = 0.0",
        ]
        for fleet in self.fleets:
            own = ", ".join(a for a, _ in fleet.arguments())
            lines.append(
                f"    {name}{fleet.index}(c * {fleet.blocks} // {chunks}, "
                f"(c + 1) * {fleet.blocks} // {chunks}, state, mine, work, {between}{own})"
            )
        return [*lines, "met += team", "meet(counter, met)"]

    def _sums(self, which: str) -> str:
        size = self.chunks * self._stride
        return f"sums = part[{which} * {size}:({which} + 1) * {size}]"

    def _noise(self) -> list[str]:
        """Fill ``z`` with the round's normals."""
        pairs = self.text.noise.pairs
        turn = f"(k % 2) * {2 * pairs}"
        lines = [f"z = normal[{turn}:{turn} + {2 * pairs}]"]
        if pairs:
            lines += [f"normals.fill_round(seed, k, {pairs}, 0, {pairs}, z)"]
        return [*lines, f"out = transcript[(k - done) * {self.text.rows}:]"]

    def _look(self) -> list[str]:
        """Sums at the states as they are, before the first round."""
        return [self._sums("(done % 2)"), *self._chunk_loop("look", "grid, ")]

    def _settle(self) -> list[str]:
        """``settle<i>_all``: a fleet's states to the nearest points of its agents' own sets."""
        lines = []
        for fleet in self.fleets:
            if fleet.bound_by_rows:
                shared = [(name, "float64[::1]") for name in ("state", "part", "work", "grid")]
                every = [*shared, *fleet.arguments()]
                names, kinds = (", ".join(p[q] for p in every) for q in (0, 1))
                lines += [
                    f'\n\n@entry("void({kinds})")',
                    f"def settle{fleet.index}_all({names}):",
                    f"    settle{fleet.index}(0, {fleet.blocks}, {names})",
                ]
        return lines

    def _add_up(self) -> list[str]:
        m = self.text.rows
        return [
            "\n\ndef add_up(g, offset, part, stride):",
            f"    for j in range({m}):",
            "        g[j] = offset[j]",
            f"    for c in range({self.chunks}):",
            f"        for j in range({m}):",
            "            g[j] += part[c * stride + j]",
        ]

    def _added(self, page: Emitter) -> list[str]:
        """What the named agents add to the rows."""
        return [
            f"g[{j}] += {page.value(expr)}"
            for j, expr in enumerate(self.text.named.constraints)
            if not expr.is_zero
        ]

    def _read(self, first: int = 0) -> list[str]:
        if not self.text.size:
            return []
        n = self.text.size
        return [f"x{i} = state[{first + i}]" for i in range(n)] + [
            f"mu{j} = state[{first + n + j}]" for j in range(self.text.rows)
        ]

    def _contributed(self) -> list[str]:
        """``contributed``: what each named agent contributes to the sums."""
        if not self.text.size:
            return []
        page = self.text.emitter()
        sums = []
        for j, h in self.text.named.contributions:
            value = page.value(h)
            rounded = f"np.rint({value} / grid[{j}])" if self.gridded else value
            sums.append(f"g[{j}] += {rounded}")
        states = [f"x{i} = state[{i}]" for i in range(self.text.size)]
        return [
            "\n\ndef contributed(state, grid, g):",
            block([*states, *page.lines, *sums, "return None"], 1),
        ]

    def _named(self, steps: GradientSteps) -> list[str]:
        """The named agents' gradient step; what they add to g goes to ``g``."""
        page = self.text.emitter()
        after = self.text.agents(page, self.text.slopes(page), steps)
        sums = self._added(page)
        lines = [*page.lines, *sums, *(f"state[{i}] = {name}" for i, name in enumerate(after))]
        return [
            f"\n\ndef named(state, bounds, g, {', '.join(steps.scalars)}):",
            block([*self._read(), *self.text.bounds(), *lines, "return None"], 1),
        ]

    def _cloud_rows(self, steps: GradientSteps) -> list[str]:
        mu = f"state[{self.text.size} + j]"
        values = {name: name for name in steps.scalars} | {"mu": mu, "y_g": "y"}
        return [
            f"\n\ndef cloud_rows(state, sigma, order, z, g, out, {', '.join(steps.scalars)}):",
            f"    for j in range({self.text.rows}):",
            "        y = g[j]",
            "        if order[j] >= 0:",
            "            y += sigma[order[j]] * z[order[j]]",
            *(["        out[j] = y"] if self.transcript else []),
            f"        {mu} = {call('cloud', steps.cloud_step, values)}",
        ]

    def _measure(self) -> list[str]:
        prices = not isinstance(self.text.algorithm, GradientSteps)
        public = ", ".join(["", "nearest", *_LIMITS, *self.public]) if prices else ""
        public += ", work, searches" if prices else ""
        return [
            self._sums("2"),
            *self._chunk_loop("measure", "grid, "),
            "if me == 0:",
            f"    add_up(g, offset, sums, {self._stride})",
            f"    measured(state, bounds, saddle, g, sums{public}, "
            f"trace[mark * {len(QUANTITIES)}:])",
            "mark += 1",
        ]

    def _measured(self) -> list[str]:
        """Put together what the passes and the named agents give."""
        n, m, answer = self.text.size, self.text.rows, self.text.layout()["mean"]
        prices = not isinstance(self.text.algorithm, GradientSteps)
        page = self.text.emitter()
        bound = self.home.bound_by_rows if prices else []
        own = self.text.residuals(page, [i for who in bound for i in self.home.states(who)])
        sums = self._added(page)
        violated = [f"violation = max(violation, {page.value(expr)})" for expr in self.stated]
        own_residual = page.fold("+", own) if own else "0.0"
        own_objective = self.text.objective(page)
        rows = _PRICE_ROWS if prices else _GRADIENT_ROWS
        public = ["nearest", *_LIMITS, *self.public, "work", "searches"] if prices else []
        return [
            f"\n\ndef measured(state, bounds, saddle, g, part{', '.join(['', *public])}, out):",
            block([*self._read(answer), *self.text.bounds(), *page.lines, *sums], 1),
            f"    objective, residual, error, last = {own_objective}, {own_residual}, 0.0, 0.0",
            *(["    residual += own_residual(state, bounds, work, searches)"] if bound else []),
            f"    for c in range({self.chunks}):",
            f"        at = c * {self._stride} + {m}",
            "        objective += part[at]",
            "        residual += part[at + 1]",
            "        error += part[at + 2]",
            "        last += part[at + 3]",
            f"    for i in range({n}):",
            f"        error += (state[{answer} + i] - saddle[i]) ** 2",
            "        last += (state[i] - saddle[i]) ** 2",
            "    error_price, last_price, violation = 0.0, 0.0, 0.0",
            block(violated, 1),
            block(
                rows.format(
                    n=n, m=m, answer=answer, last=n + m, public=", ".join(self.public)
                ).splitlines(),
                1,
            ),
            "    out[0], out[1], out[2] = math.sqrt(error), math.sqrt(error_price), violation",
            "    out[3], out[4] = math.sqrt(residual), objective",
            "    out[5], out[6] = math.sqrt(last), math.sqrt(last_price)",
        ]


_GRADIENT_ROWS = """\
for j in range({n}, {last}):
    mu = state[{answer} + j]
    error_price += (mu - saddle[j]) ** 2
    last_price += (state[j] - saddle[j]) ** 2
    residual += (mu - positive(mu + g[j - {n}])) ** 2
    violation = max(violation, g[j - {n}])"""

# The residual of s in C and of lambda in its normal cone there: s = P_C(s + lambda).
_PRICE_ROWS = """\
beyond, inside, scratch = work[:{m}], work[{m}:2 * {m}], work[2 * {m}:]
for j in range({m}):
    beyond[j] = g[j] + state[{answer} + {n} + j]
invoke(nearest, (beyond, inside, scratch, {public}))
for j in range({m}):
    error_price += (state[{answer} + {n} + j] - saddle[{n} + j]) ** 2
    last_price += (state[{n} + j] - saddle[{n} + j]) ** 2
    residual += (g[j] - inside[j]) ** 2
    violation = max(violation, max(g[j] - most[j], least[j] - g[j]))"""
