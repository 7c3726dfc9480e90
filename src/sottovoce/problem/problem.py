"""The problem: minimise sum_i f_i(x_i) + U(s(x)) under constraints; who knows what.

``CloudView`` holds what the cloud knows (boxes and constraints) and cannot name an objective or a
local set; ``AgentView`` holds what one agent knows (its objective, set and start) and cannot name a
constraint; ``Problem`` is both together, for simulations and studies, which may see everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sottovoce.arguments import agent_index, array
from sottovoce.errors import ProblemError
from sottovoce.formula.expression import NAN, ZERO, Expression
from sottovoce.problem.code import Objective
from sottovoce.problem.constraints import Constraint, row_labels
from sottovoce.problem.costs import Cost, read_cost
from sottovoce.problem.feasible import read_fallback, require_nonempty
from sottovoce.problem.fingerprint import fingerprint
from sottovoce.problem.fleets import Fleet, fleets_of
from sottovoce.problem.groups import (
    Array,
    Group,
    lower_bounds,
    read_only,
    state_columns,
    upper_bounds,
)
from sottovoce.problem.local import LocalSet, local_rows, local_set, per_group, read_start
from sottovoce.problem.numeric import Formulas, Numeric
from sottovoce.problem.stating import (
    Row,
    read_constraints,
    read_objectives,
    resolve_agents,
    stated_cost,
    stated_rows,
)
from sottovoce.problem.sums import SplitConstraints, Sums, sums_of
from sottovoce.tables import PlainTable, facts_html

_SHOWN, _SHOWN_ROWS = 8, 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CloudView:
    """What the cloud knows: ``X_1, ..., X_n`` and ``g_1, ..., g_m``; no objective, no start.

    Attributes:
        groups: the agents, with the parameters that constraints use and no others.
        constraints: the families of constraints that couple agents, as they were stated.
        cost: the public cost; None where there is none.
        sums: constraints and cost as sums, a public set and a function of them, which is how
            they are kept.
        separable: constraints that name one agent, or the agents of one fleet one by one.
        local_rows: of these, per group, the rows that are no bounds; agents keep them locally.
        fingerprint: a hash of agents and constraints; certificates and plans carry it.
    """

    groups: tuple[Group, ...]
    constraints: tuple[Constraint, ...]
    cost: Cost | None
    sums: Sums
    separable: tuple[Constraint, ...]
    local_rows: tuple[tuple[Row, ...], ...]
    fingerprint: str

    @property
    def agents(self) -> int:
        """The number of agents n."""
        return sum(group.count for group in self.groups)

    @property
    def rows(self) -> int:
        """The number of scalar constraints m."""
        return sum(constraint.rows for constraint in self.constraints)

    @property
    def size(self) -> int:
        """The number of scalar states, ``sum_i d_i``."""
        return sum(group.count * group.dim for group in self.groups)

    def without_cost(self) -> CloudView:
        """The same constraints and sums without the public cost."""
        return replace(self, cost=None, sums=replace(self.sums, costs=()))

    def agent_labels(self) -> list[str]:
        """The labels of the agents, in order."""
        return [g.label(i) for g in self.groups for i in range(g.count)]

    def row_labels(self) -> list[str]:
        """The labels of the constraints, in order."""
        return row_labels(self.constraints)

    def lower(self) -> Array:
        """The lower bounds of all states in one vector of length ``size``."""
        return lower_bounds(self.groups)

    def upper(self) -> Array:
        """The upper bounds of all states in one vector of length ``size``."""
        return upper_bounds(self.groups)

    def locate(self, agent: int | str) -> tuple[int, int]:
        """The group of an agent, named by its label or its place, and its place there, from 0."""
        number = agent_index(agent, self.agents, self.agent_labels)
        ends = np.cumsum([group.count for group in self.groups])
        index = int(np.searchsorted(ends, number, side="right"))
        return index, number - int(ends[index] - self.groups[index].count)

    def split_states(self, name: str, x: ArrayLike) -> list[Array]:
        """Take one vector of all states apart: an array (count, d) per group."""
        requirement = f"one vector of all {self.size} states"
        flat = array(name, x, requirement)
        if flat.shape != (self.size,):
            raise ProblemError(f"{name} must be {requirement}, got shape {flat.shape}")
        pairs = zip(self.groups, state_columns(self.groups), strict=True)
        return [flat[columns].reshape(group.count, group.dim) for group, columns in pairs]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AgentView:
    """What agent i alone knows: ``f_i``, ``X_i`` and where it starts.

    Attributes:
        objective: f_i in ``symbols``, parameters filled in; NaN if it is code.
        start: x_i(1), shape (d,) as the bounds have.
        local: its local set, parameters filled in.
        code: f_i if it is no formula but code.
        fallback: what it applies while there is no answer; None: where it starts.
    """

    name: str
    symbols: tuple[Expression, ...]
    lower: Array
    upper: Array
    objective: Expression
    start: Array
    local: LocalSet
    code: Objective | None = None
    fallback: Array | None = None


@final
class Problem:
    """Minimise ``sum_i f_i(x_i) + U(s(x))`` with ``g_j(x) <= 0`` or ``= 0``, ``x_i in X_i``.

    Values are checked when the problem is stated and never change afterwards.

    Args:
        objectives: f_i for every agent, or one formula in ``ev.x`` for all of ``ev``, in the order
            in which agents were made; a formula may be text such as ``"(x1 - 9)**2 + x1"``. A
            named agent may have an ``Objective`` instead: a callable that returns the gradient.
        constraints: comparisons such as ``x[0] + x[1] <= 3`` or ``total(ev.x) <= 40``,
            equalities such as ``x[0] + x[1] == 3``, or text; a mapping gives them names.
        cost: a public convex function U of sums over agents, added to the objectives:
            ``sv.sum_squares(base + sv.total(ev.x))``, ``50 * sv.maximum(*sv.total(ev.x))``.
        local: private rows in one agent's state, or in one fleet's state and parameters: convex
            inequalities such as ``ev.x.sum() >= ev["need"]`` and affine equalities.
        agents: from ``sv.agents``, one or several in order, where formulas are text or name none;
            by default those that the formulas name.
        start: x_i(1) per agent or fleet in the same order; by default the point of X_i nearest 0.
        fallback: what agents apply while there is no answer, per agent or fleet in the same order,
            in their own sets; None, the default, is their start.
        privacy: settings from a problem file's ``[privacy]`` table.
        schedule: settings from a problem file's ``[schedule]`` table.
        source: the files it was read from, by relative path.
    """

    groups: tuple[Group, ...]
    objectives: tuple[Expression, ...]
    code: tuple[Objective | None, ...]
    cloud: CloudView
    local: tuple[LocalSet, ...]
    start: tuple[Array, ...]
    fallback: tuple[Array | None, ...]
    privacy: Mapping[str, Any]
    schedule: Mapping[str, Any]
    source: Mapping[str, str] | None

    def __init__(
        self,
        *,
        objectives: object,
        constraints: object = (),
        cost: object = None,
        local: object = None,
        agents: object = None,
        start: object = None,
        fallback: object = None,
        privacy: Mapping[str, Any] | None = None,
        schedule: Mapping[str, Any] | None = None,
        source: Mapping[str, str] | None = None,
    ) -> None:
        if source is not None and not isinstance(source, Mapping):
            raise ProblemError(f"source must map paths to texts, got {source!r:.60}")
        rows = stated_rows(constraints, "g")
        private_rows = stated_rows([] if local is None else local)
        stated, formulas, rows, private_rows, plain_cost = resolve_agents(
            agents, objectives, rows, private_rows, stated_cost(cost)
        )
        split = SplitConstraints(stated, read_constraints(rows, stated))
        groups, private = split.groups, local_rows(private_rows, stated)
        sets = tuple(
            local_set(group, public, private[group.name])
            for group, public in zip(groups, split.local_rows, strict=True)
        )
        for group, agent_set in zip(groups, sets, strict=True):
            require_nonempty(group, agent_set)
        read = read_objectives(formulas, stated)
        vars(self).update(
            groups=groups,
            objectives=tuple(NAN if isinstance(f, Objective) else f for f in read),
            code=tuple(f if isinstance(f, Objective) else None for f in read),
            cloud=_cloud(split, plain_cost),
            local=sets,
            start=tuple(map(read_start, per_group("start", start, groups), groups)),
            fallback=tuple(
                map(read_fallback, per_group("fallback", fallback, groups), groups, sets)
            ),
            privacy=_settings("privacy", privacy),
            schedule=_settings("schedule", schedule),
            source=None if source is None else MappingProxyType(dict(source)),
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Problem never changes, cannot set {name}: state a new one")

    def __getstate__(self) -> dict[str, object]:
        # Read-only views of tables do not travel between processes; the tables do.
        return {
            name: dict(value) if isinstance(value, MappingProxyType) else value
            for name, value in vars(self).items()
            if name not in ("fingerprint", "fleets")
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(
            {
                name: MappingProxyType(value) if isinstance(value, dict) else value
                for name, value in state.items()
            }
        )

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The families of constraints."""
        return self.cloud.constraints

    @property
    def agents(self) -> int:
        """The number of agents n."""
        return self.cloud.agents

    @property
    def rows(self) -> int:
        """The number of scalar constraints m."""
        return self.cloud.rows

    @property
    def size(self) -> int:
        """The number of scalar states, ``sum_i d_i``."""
        return self.cloud.size

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything: constraints, boxes, objectives, local sets, parameters, starts."""
        private = tuple(
            (row.g, row.equality) for agent_set in self.local for row in agent_set.stated
        )
        parts = (self.groups, self.constraints, *_content(self.cloud.cost))
        parts += (*self.objectives, *self.start)
        return fingerprint(*parts, *((private,) if private else ()))

    @property
    def coded(self) -> dict[int, Objective]:
        """Objectives that are code, by their group, from 0."""
        return {i: code for i, code in enumerate(self.code) if code is not None}

    @property
    def formulas(self) -> list[Expression]:
        """The objective of every group, 0 where it is code."""
        pairs = zip(self.objectives, self.code, strict=True)
        return [f if code is None else ZERO for f, code in pairs]

    @cached_property
    def fleets(self) -> Sequence[Fleet]:
        """All agents as fleets with what they add to the sums; the objective of code is 0."""
        families, alone = self.cloud.sums.families, self.coded
        return fleets_of(self.groups, families, self.formulas, self.local, alone=alone)

    def under(self, cloud: CloudView) -> Problem:
        """Return the same agents with the constraints of another public part, for a study."""
        other = object.__new__(Problem)
        other.__setstate__(self.__getstate__() | {"cloud": cloud})
        return other

    def agent(self, agent: int | str) -> AgentView:
        """What an agent, named by its label or its place, from 0, knows."""
        index, place = self.cloud.locate(agent)
        group = self.groups[index]
        fallback = self.fallback[index]
        return AgentView(
            name=group.label(place),
            symbols=group.symbols,
            lower=group.lower[place],
            upper=group.upper[place],
            objective=group.fill(self.objectives[index], place),
            start=self.start[index][place],
            fallback=None if fallback is None else fallback[place],
            local=self.local[index].of_agent(group, place),
            code=self.code[index],
        )

    def evaluate(self, x: ArrayLike) -> Evaluation:
        """The objective and every public constraint at x, all states in one vector."""
        numeric, parts = Numeric(self), self.cloud.split_states("x", x)
        flat = np.concatenate([part.ravel() for part in parts])
        rows, equality = [numeric.constraints(flat)], [numeric.equality]
        pairs = zip(self.groups, parts, strict=True)
        agents = {s: (g, states) for g, states in pairs for s in g.symbols}
        for row in self.cloud.separable:
            group, states = next(agents[s] for s in row.formulas[0].symbols if s in agents)
            values = Formulas(row.formulas, group).values(states)[0]
            rows.append(values[[np.argmax(violation(values, np.array(row.equality)))]])
            equality.append(np.array([row.equality]))
        with np.errstate(all="ignore"):
            return Evaluation(
                objective=numeric.objective(flat),
                rows=read_only(np.concatenate(rows)),
                labels=(*self.cloud.row_labels(), *(row.name for row in self.cloud.separable)),
                equality=np.concatenate(equality),
            )

    @classmethod
    def load(cls, folder: str | Path, *, agents: Iterable[int] | None = None) -> Problem:
        """Read a problem from a folder: ``problem.toml``, and agents' files under ``agents/``.

        Nothing in the files is ever executed: formulas go through the parser of ``formula.parse``.

        Args:
            folder: the folder.
            agents: whose private files to read, numbers from 1, on a gateway or a device; none for
                a cloud; all by default, and then no other may be there.
        """
        from sottovoce.problem.files.load import load_problem

        return load_problem(folder, agents=agents)

    def save(self, folder: str | Path, *, agents: Iterable[int] | None = None) -> None:
        """Write the problem as a folder of TOML files that ``Problem.load`` reads back.

        Args:
            folder: created if missing; other content that is there already is refused.
            agents: whose private files to write, numbers from 1: all by default, none for a cloud.
        """
        from sottovoce.problem.files.save import save_problem

        save_problem(self, folder, agents=agents)

    def __repr__(self) -> str:
        return f"Problem(agents={self.agents}, constraints={self.rows}, states={self.size})"

    def _repr_html_(self) -> str:
        pairs = zip(self.groups, self.local, strict=True)
        local = sum(group.count for group, agent_set in pairs if agent_set.rows)
        return facts_html(
            "Problem",
            agents=f"{self.agents:,}",
            states=f"{self.size:,}",
            constraints=f"{self.rows:,} as {self.cloud.sums.count:,} sums",
            named=", ".join(family.name for family in self.constraints[:_SHOWN]),
            agents_with_private_sets=f"{local:,}",
            privacy=dict(self.privacy) or "not asked for",
            fingerprint=self.cloud.fingerprint[:16],
        )


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """The objective and the constraints of a problem at one point.

    Attributes:
        objective: ``sum_i f_i(x_i) + U(s(x))``; NaN where an objective is code without a value.
        rows: ``g_j(x)``, one number per stated constraint: those that couple agents, then those on
            one agent, which its set keeps; of a row of every agent of a fleet the worst one's.
        equality: which of them must be 0 and not just at most 0.
    """

    objective: float
    rows: Array
    labels: tuple[str, ...]
    equality: NDArray[np.bool_]

    @property
    def violation(self) -> Array:
        """``max(0, g_j)``, or ``|g_j|`` of an equality, one number per constraint."""
        return violation(self.rows, self.equality)

    def __repr__(self) -> str:
        worst = float(np.max(self.violation, initial=0.0))
        return (
            f"Evaluation(objective={self.objective:.6g}, rows={self.rows.size}, "
            f"violation={worst:.3g})"
        )

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def __str__(self) -> str:
        return str(self._table())

    def _table(self) -> PlainTable:
        pairs = zip(self.labels, self.rows.tolist(), self.violation.tolist(), strict=True)
        rows = tuple((name, f"{g:.6g}", f"{off:.3g}") for name, g, off in list(pairs)[:_SHOWN_ROWS])
        more = self.rows.size - len(rows)
        return PlainTable(
            title=f"objective {self.objective:.6g}",
            columns=("constraint", "g", "violation"),
            rows=rows,
            notes=(f"... and {more:,} more",) if more else (),
        )


def violation(rows: Array, equality: NDArray[np.bool_]) -> Array:
    """Return ``max(0, g_j)``, or ``|g_j|`` of an equality, along the last axis."""
    return np.where(equality, np.abs(rows), np.maximum(rows, 0.0))


def _cloud(split: SplitConstraints, formula: Expression | None) -> CloudView:
    groups, families = split.groups, split.coupling
    cost = None if formula is None else read_cost(formula, groups)
    rows = [*families, *(() if cost is None else cost.families)]
    used = {s for family in rows for part in family.sums for h in part.terms for s in h.symbols}
    used |= {s for row in split.separable for s in row.rest[0].symbols}
    public = {
        group.name: replace(
            group, parameters={s: a for s, a in group.parameters.items() if s in used}
        )
        for group in groups
    }
    constraints = tuple(family.with_groups(public) for family in families)
    public_groups = tuple(public.values())
    if cost is not None:
        cost = replace(cost, families=tuple(f.with_groups(public) for f in cost.families))
    elif not constraints:
        raise ProblemError(
            "a problem needs at least one constraint that couples agents, or a public cost, got "
            "none: let every agent minimise its objective alone"
        )
    local = tuple(tuple((row.g, row.equality) for row in rows) for rows in split.local_rows)
    return CloudView(
        groups=public_groups,
        constraints=constraints,
        cost=cost,
        sums=sums_of(public_groups, constraints, cost),
        separable=tuple(split.separable),
        local_rows=split.local_rows,
        fingerprint=fingerprint(
            public_groups, constraints, *((local,) if any(local) else ()), *_content(cost)
        ),
    )


def _content(cost: Cost | None) -> tuple[object, ...]:
    """What a hash of a problem takes of its cost; nothing where there is none."""
    return () if cost is None else (cost.families, cost.formula)


def _settings(name: Literal["privacy", "schedule"], stated: object) -> Mapping[str, Any]:
    """The table ``[name]``, checked; the parts that read files load only where there is one."""
    if stated is None:
        return MappingProxyType({})
    from sottovoce.problem.files.schema import check_settings

    return MappingProxyType(check_settings(name, stated))
