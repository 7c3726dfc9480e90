"""The functions of a kernel that pass over the agents of one fleet.

Agents lie in blocks of ``WIDTH``, ``x[(block * d + component) * WIDTH + lane]``, and what differs
between them (parameters, bounds that are not the same for all) likewise in ``data``, so that one
loop over the lanes becomes vector code. Sums are kept per lane and per chunk of blocks and added
in a fixed order: no number depends on how many threads there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.algorithm.home_block import FREE
from sottovoce.engine.block_text import block_proximal, block_round, block_settle, lay_source
from sottovoce.engine.emit import Emitter
from sottovoce.engine.formulas import Fleet
from sottovoce.engine.home_shape import Separable, Shape
from sottovoce.engine.interior_text import call_interior, derive_body, derive_source
from sottovoce.engine.separable_text import rows_of, space
from sottovoce.engine.slopes import names_in, slopes_of, used_parameters
from sottovoce.engine.source import block, call
from sottovoce.engine.vectors import WIDTH
from sottovoce.engine.weight_text import WeightText, kind_of, weight_arrays, weight_rows
from sottovoce.problem.epigraph import HomeForm

MEASURES = 4
"""What a measuring pass adds up besides g: objective, residual, squared errors of answer and x."""

Step = Literal["round", "near", "project"]
Pass = Literal["step", "minimise", "look", "measure", "settle"]
_UNDAMPED = "1, 0.0"  # the number and the damping where there is no round


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetText:
    """Writes the passes over one fleet.

    Attributes:
        index: the fleet's number, part of all names.
        fleet: its formulas.
        algorithm: whose steps to take.
        size: how many states the named agents have; mu follows them in ``state``.
        rows: how many sums, or rows of g, there are.
        gridded: whether contributions are rounded to the public grid, as agents send them; sums
            then count grid steps.
        known: whether the saddle point is known.
        shared_lower: whether all agents have the same lower bounds.
        shared_upper: whether all agents have the same upper bounds.
        shape: how they minimise; None: by steps in their boxes.
    """

    index: int
    fleet: Fleet
    algorithm: Algorithm
    size: int
    rows: int
    gridded: bool
    known: bool
    shared_lower: bool
    shared_upper: bool
    shape: Shape = None

    @property
    def minimises(self) -> bool:
        """Whether agents minimise at home, and average; otherwise they take gradient steps."""
        return not isinstance(self.algorithm, GradientSteps)

    @property
    def numbers(self) -> tuple[str, ...]:
        """What a step takes besides the state, the same for all agents."""
        if isinstance(self.algorithm, GradientSteps):
            return self.algorithm.scalars
        return ("number", "theta", "share")

    @property
    def dim(self) -> int:
        """The dimension d of a state."""
        return self.fleet.group.dim

    @property
    def data_rows(self) -> int:
        """How many numbers per agent ``data`` holds."""
        own = (not self.shared_lower) + (not self.shared_upper)
        return len(used_parameters(self.fleet)) + own * self.dim + 2 * self.extra

    @property
    def extra(self) -> int:
        """How many variables more than the state's components an agent minimises over."""
        return len(self.shape.extra) if isinstance(self.shape, HomeForm) else 0

    def arguments(self) -> list[tuple[str, str]]:
        """How many agents there are, and their arrays; at last where searches are found, if any."""
        names = [("x", "float64"), ("data", "float64"), ("bounds", "float64"), ("hat", "float64")]
        if self.minimises:
            names.append(("mean", "float64"))
        for s, part in enumerate(self.fleet.sums):
            names += weight_arrays(s, part)
        arrays = [(f"{name}_{self.index}", f"{kind}[::1]") for name, kind in names]
        found = [(f"home_{self.index}", "int64[::1]")]
        return [(self.count, "int64"), *arrays, *([] if self.shape is None else found)]

    @property
    def _shared(self) -> str:
        """The names of these, as functions take them and hand them on."""
        return ", ".join(name for name, _ in self.arguments())

    @property
    def count(self) -> str:
        """What kernels call the number of agents: an argument, so that one serves any number."""
        return f"count_{self.index}"

    @property
    def blocks(self) -> str:
        """The number of their blocks."""
        return f"(({self.count} + {WIDTH - 1}) // {WIDTH})"

    @property
    def bound_by_rows(self) -> bool:
        """Whether agents keep to rows of their own, beside their bounds."""
        return self.minimises and self.fleet.local is not None and self.fleet.local.rows > 0

    def searches(self) -> set[int]:
        """Over how many rows searches go: in a round, and to the nearest point of an own set."""
        if not isinstance(self.shape, Separable):
            return set()
        own = {len(rows_of(self.shape, "project"))} if self.bound_by_rows else set()
        return {len(self.shape.rows)} | own

    def layout(self) -> dict[str, int]:
        """Where each part of the scratch array begins, in units of WIDTH."""
        at: dict[str, int] = {}
        end = 0
        for s, part in enumerate(self.fleet.sums):
            terms = len(part.terms)
            weighted = kind_of(part) != "plain"
            sums = {"plain": terms, "dense": terms * weight_rows(part), "sparse": 0, "table": 0}
            for name, length in (
                ("m", terms if weighted else 0),
                ("h", terms if weighted else 0),
                ("sum", sums[kind_of(part)]),
            ):
                at[f"{name}{s}"], end = end, end + length
        at["measure"], end = end, end + MEASURES
        at["home"] = end
        needed = space(self.dim) if isinstance(self.shape, Separable) else self.dim
        at["end"] = end + (0 if self.shape is None else needed)
        return at

    def source(self) -> str:
        """Both passes: ``pass<i>`` takes the step, ``measure<i>`` measures.

        Where agents minimise, a pass steps first and adds up contributions at the new states, for
        the next round; ``look<i>`` adds them up at the states as they are, to begin with.
        """
        given, scalars = "first, last, state, part, work, grid", ", ".join(self.numbers)
        step = f"\n\ndef pass{self.index}({given}, {scalars}, {self._shared}):"
        arguments = f"({given}, {self._shared}):"
        lines = [step, *self._pass("minimise" if self.minimises else "step")]
        lines += [f"\n\ndef measure{self.index}{arguments}", *self._pass("measure")]
        if self.minimises and self.shape is None:
            lines = [*self._own_slope("slope"), *self._own_slope("pull"), *lines]
        if isinstance(self.shape, HomeForm):
            lines = [*self._own_slope("pull"), *lines]
        lines = [*(line for task in self._alone() for line in self._home(task)), *lines]
        if isinstance(self.shape, Separable):
            lines = [*lay_source(self), *lines]
        if self.minimises:
            lines += [f"\n\ndef look{self.index}{arguments}", *self._pass("look")]
        if self.bound_by_rows:
            lines += [f"\n\ndef settle{self.index}{arguments}", *self._pass("settle")]
        return "\n".join(lines)

    def _pass(self, what: Pass) -> list[str]:
        at = self.layout()
        i = self.index
        lines = [f"    for s in range({at['home'] * WIDTH}):", "        work[s] = 0.0"]
        lines.append(block(self.scalars(), 1))
        lines += [
            "    for b in range(first, last):",
            f"        width = min({WIDTH}, {self.count} - b * {WIDTH})",
        ]
        sums = self._weighted()
        lines += [block(one.multipliers(), 2) for one in sums]
        lines += [
            f"        at = b * {self.dim * WIDTH}",
            f"        own = b * {max(1, self.data_rows) * WIDTH}",
        ]
        if isinstance(self.shape, Separable) and what in ("minimise", "settle"):
            lines.append(block(block_round(self) if what == "minimise" else block_settle(self), 2))
        else:
            if isinstance(self.shape, Separable) and what == "measure" and self.bound_by_rows:
                lines.append(block(block_proximal(self), 2))
            lines += ["        for lane in range(width):", block(self._lane(what), 3)]
        if what == "settle":
            return [line for line in [*lines, f"    return x_{i}.size"] if line.strip()]
        rounded = self.gridded and what in ("minimise", "look")
        lines += [block(one.scatter(rounded=rounded), 2) for one in sums]
        lines += [block(one.gather(), 1) for one in sums]
        if what == "measure":
            lines += [
                f"    for s in range({MEASURES}):",
                f"        for lane in range({WIDTH}):",
                f"            value = work[{at['measure'] * WIDTH} + s * {WIDTH} + lane]",
                f"            part[{self.rows} + s] += value",
            ]
        lines.append(f"    return x_{i}.size")
        return [line for line in lines if line.strip()]

    def scalars(self) -> list[str]:
        """What is the same for all agents, read once."""
        lines = self._plain_prices()
        for side, shared in (("lower", self.shared_lower), ("upper", self.shared_upper)):
            if shared:
                first = 0 if side == "lower" else self.dim
                lines += [f"{side}{c} = bounds_{self.index}[{first + c}]" for c in range(self.dim)]
        return lines

    def _plain_prices(self) -> list[str]:
        return [
            f"m{s}_{t} = state[{self.size + part.row + t}]"
            for s, part in enumerate(self.fleet.sums)
            if kind_of(part) == "plain"
            for t in range(len(part.terms))
        ]

    def _weighted(self) -> list[WeightText]:
        at = self.layout()
        return [
            WeightText(
                part=part,
                names=f"{s}_{self.index}",
                prices=self.size + part.row,
                multiplier=at[f"m{s}"] * WIDTH,
                contribution=at[f"h{s}"] * WIDTH,
                total=at[f"sum{s}"] * WIDTH,
            )
            for s, part in enumerate(self.fleet.sums)
        ]

    def _lane(self, what: Pass) -> list[str]:
        """One agent: read, evaluate, then step or measure, and add to the sums.

        Bounds are read where they are used and results stored where they arise: an agent has more
        numbers than the processor has registers.
        """
        if what == "settle":
            return [self._at_home("project", _UNDAMPED)]
        averaged = [self._mean(c) for c in range(self.dim)]
        before = self._minimising() if what == "minimise" else []
        if what == "minimise":
            # What was released is averaged; without a plan the answer is what is found last.
            before = averaged + before if self.gridded else before + averaged
        if what == "measure" and isinstance(self.shape, HomeForm):
            before = [self._at_home("near", _UNDAMPED)]
        page = self._page("mean" if what == "measure" and self.minimises else "x")
        self._sums(page, rounded=self.gridded and what in ("minimise", "look"))
        if what == "step":
            self._stepping(page)
        if what == "measure":
            self._measuring(page)
        return before + page.lines

    def _stepping(self, page: Emitter) -> None:
        steps, prices = self.algorithm, self._prices(page)
        assert isinstance(steps, GradientSteps)  # noqa: S101  the caller has asked
        for c, slope in enumerate(slopes_of(page, self.fleet, prices)):
            values = {"x": f"x{c}", "slope": slope}
            values |= {side: self._bound(side, c) for side in ("lower", "upper")}
            values |= {name: name for name in steps.scalars}
            after = call("agent", steps.agent_step, values)
            page.lines.append(f"x_{self.index}[at + {c * WIDTH} + lane] = {after}")

    def _measuring(self, page: Emitter) -> None:
        i, prices = self.index, self._prices(page)
        error, residual, last = [], [], []
        slopes = [""] * self.dim
        if not self.bound_by_rows:
            slopes = list(slopes_of(page, self.fleet, prices))
        for c, slope in enumerate(slopes):
            lower, upper = self._bound("lower", c), self._bound("upper", c)
            near = f"project(x{c} - {slope}, {lower}, {upper})"
            if self.bound_by_rows:
                found = FREE * self.dim if isinstance(self.shape, Separable) else 0
                near = f"work[{(self.layout()['home'] + found + c) * WIDTH} + lane]"
            residual.append(page.assign(f"(x{c} - {near}) ** 2"))
            at = f"at + {c * WIDTH} + lane"
            hat = f"hat_{i}[{at}]" if self.known else "math.nan"
            error.append(page.assign(f"(x{c} - {hat}) ** 2"))
            last.append(page.assign(f"(x_{i}[{at}] - {hat}) ** 2"))
        first = self.layout()["measure"]
        sums = [page.value(self.fleet.objective)]
        sums += [page.fold("+", terms) for terms in (residual, error, last)]
        page.lines += [_add(f"{(first + q) * WIDTH} + lane", v) for q, v in enumerate(sums)]

    def _minimising(self) -> list[str]:
        """The agent's minimisation; its slope reads what differs between agents from ``data``."""
        if self._alone():
            return [self._at_home("round")]
        i, lower, upper = self.index, self._bound("lower", 0), self._bound("upper", 0)
        step = (
            f"agent_round(slope{i}, pull{i}, context, x_{i}[at + lane], {lower}, "
            f"{upper}, number, theta)"
        )
        return [f"context = (own, lane, state, work, data_{i})", f"x_{i}[at + lane] = {step}"]

    def _alone(self) -> tuple[Step, ...]:
        """What an agent does in a function of its own, as it makes arrays, given back there."""
        if isinstance(self.shape, HomeForm):
            return ("round", "near", "project") if self.bound_by_rows else ("round", "near")
        return ("round",) if self.minimises and self.shape is None and self.dim > 1 else ()

    def _at_home(self, task: Step, numbers: str = "number, theta") -> str:
        """The call of what ``_home`` writes, or its head."""
        return f"{task}{self.index}(at, own, lane, state, work, {numbers}, {self._shared})"

    def _home(self, task: Step) -> list[str]:
        """``round<i>``, ``near<i>`` or ``project<i>``: one agent's minimisation."""
        ways = {"round": ("x", f"x_{self.index}"), "near": ("mean", "work")}
        if self.shape is None:
            lines = self._vector_round()
        else:
            lines = self._interior(task, *ways.get(task, ways["round"]))
        return [
            f"\n\ndef {self._at_home(task)}:",
            block([*self.scalars(), *lines, "return None"], 1),
        ]

    def _vector_round(self) -> list[str]:
        """One agent's steps in its box."""
        i, d = self.index, self.dim
        lines = [f"context = (own, lane, state, work, data_{i})"]
        lines += [f"{name} = np.empty({d})" for name in ("x", "lower", "upper")]
        for c in range(d):
            lines.append(f"x[{c}] = x_{i}[at + {c * WIDTH} + lane]")
            lines += [f"{side}[{c}] = {self._bound(side, c)}" for side in ("lower", "upper")]
        lines.append(
            f"x = vector_round(slope{i}, pull{i}, context, x, lower, upper, number, theta)"
        )
        return lines + [f"x_{i}[at + {c * WIDTH} + lane] = x[{c}]" for c in range(d)]

    def _interior(self, task: Step, source: str, to: str) -> list[str]:
        """One agent's minimisation by the interior-point method; its answer goes to an array."""
        assert isinstance(self.shape, HomeForm)  # noqa: S101  the callers have asked
        i, d, extra = self.index, self.dim, self.extra
        first = self.data_rows - 2 * extra
        names = ("x", "lower", "upper", "weight")
        lines = [f"context = (own, lane, state, work, data_{i})"]
        lines += [f"{name} = np.empty({d + extra})" for name in names]
        for c in range(d):
            lines.append(f"x[{c}] = {source}_{i}[at + {c * WIDTH} + lane]")
            lines += [f"{side}[{c}] = {self._bound(side, c)}" for side in ("lower", "upper")]
            lines.append(f"weight[{c}] = 1.0")
        for e in range(extra):
            for side, row in (("lower", first + e), ("upper", first + extra + e)):
                lines.append(f"{side}[{d + e}] = data_{i}[own + {row * WIDTH} + lane]")
            lines.append(f"x[{d + e}] = 0.5 * (lower[{d + e}] + upper[{d + e}])")
            lines.append(f"weight[{d + e}] = 0.0")
        if task == "round":
            given = f"context, x[:{d}], lower, upper, number, theta"
            lines.append(f"weight[:{d}] = dampings(pull{i}, {given})")
        given = f"own, lane, {'0.0' if task == 'project' else '1.0'}, state, work, data_{i}"
        lines.append(call_interior(f"home_{i}[0], home_{i}[1]", given, self.shape))
        begin = f"{self.layout()['home'] * WIDTH}" if to == "work" else "at"
        return lines + [f"{to}[{begin} + {c * WIDTH} + lane] = x[{c}]" for c in range(d)]

    def derive_source(self) -> str:
        """The module that derives what the agents minimise, for the interior-point method."""
        assert isinstance(self.shape, HomeForm)  # noqa: S101  the caller has asked
        at, sums = self.layout(), list(enumerate(self.fleet.sums))
        prices = [[f"m{s}_{t}" for t in range(len(part.terms))] for s, part in sums]
        context = [f"data_{self.index} = data", *self._parameters(), *self._plain_prices()]
        context += [
            f"m{s}_{t} = work[{(at[f'm{s}'] + t) * WIDTH} + lane]"
            for s, part in sums
            if kind_of(part) != "plain"
            for t in range(len(part.terms))
        ]
        return derive_source(derive_body(self.fleet, self.shape, prices, context))

    def _own_slope(self, name: str) -> list[str]:
        """``slope<i>(context, x)`` of an agent's Lagrangian; ``pull<i>`` of its prices alone."""
        i, vector = self.index, self.dim > 1
        page = Emitter(names_in(self.fleet))
        page.lines.append(f"own, lane, state, work, data_{i} = context")
        page.lines += [f"x{c} = x[{c}]" if vector else "x0 = x" for c in range(self.dim)]
        page.lines += self._parameters()
        page.lines += self._plain_prices()
        whole = name == "slope"
        slopes = list(slopes_of(page, self.fleet, self._prices(page), objective=whole))
        if vector:
            page.lines.append(f"out = np.empty({self.dim})")
            page.lines += [f"out[{c}] = {slope}" for c, slope in enumerate(slopes)]
        page.lines.append("return out" if vector else f"return {slopes[0]}")
        return [f"\n\ndef {name}{i}(context, x):", block(page.lines, 1)]

    def _mean(self, c: int) -> str:
        at = f"at + {c * WIDTH} + lane"
        to, x = f"mean_{self.index}[{at}]", f"x_{self.index}[{at}]"
        return f"{to} += share * ({x} - {to})"

    def _sums(self, page: Emitter, *, rounded: bool) -> None:
        at = self.layout()
        for s, part in enumerate(self.fleet.sums):
            for t, h in enumerate(part.terms):
                value = page.value(h)
                if kind_of(part) == "plain" and rounded:
                    value = page.assign(f"np.rint({value} / grid[{part.row + t}])")
                if kind_of(part) == "plain":
                    page.lines.append(_add(f"{(at[f'sum{s}'] + t) * WIDTH} + lane", value))
                else:
                    to = f"{(at[f'h{s}'] + t) * WIDTH} + lane"
                    page.lines.append(f"work[{to}] = {value}")

    def bound_row(self, side: str, c: int) -> int | None:
        """Which of an agent's numbers in ``data`` is its bound; None if all have the same."""
        if self.shared_lower if side == "lower" else self.shared_upper:
            return None
        row = len(used_parameters(self.fleet)) + c
        return row + (self.dim if side == "upper" and not self.shared_lower else 0)

    def _bound(self, side: str, c: int) -> str:
        """The text of a bound of component c: a scalar, or the agent's own."""
        row = self.bound_row(side, c)
        if row is None:
            return f"{side}{c}"
        return f"data_{self.index}[own + {row * WIDTH} + lane]"

    def _parameters(self) -> list[str]:
        return [
            f"p{q} = data_{self.index}[own + {q * WIDTH} + lane]"
            for q in range(len(used_parameters(self.fleet)))
        ]

    def _page(self, source: str) -> Emitter:
        """A page with the agent's state, from array ``source``, and parameters by their names."""
        page = Emitter(names_in(self.fleet))
        for c in range(self.dim):
            page.lines.append(f"x{c} = {source}_{self.index}[at + {c * WIDTH} + lane]")
        page.lines += self._parameters()
        return page

    def _prices(self, page: Emitter) -> list[list[str]]:
        """The multiplier of every term of every sum, for this agent."""
        at = self.layout()
        return [
            [
                f"m{s}_{t}"
                if kind_of(part) == "plain"
                else page.assign(f"work[{(at[f'm{s}'] + t) * WIDTH} + lane]")
                for t in range(len(part.terms))
            ]
            for s, part in enumerate(self.fleet.sums)
        ]


def _add(to: str, value: str) -> str:
    return f"work[{to}] += {value}"
