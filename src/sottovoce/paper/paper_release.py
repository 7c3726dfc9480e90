"""What the paper releases, and how plans, simulations and the network reach it by its name.

Of dg/dx some entries are public, some an agent knows by itself, and only the rest is released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from sottovoce.formula.derive import gradient
from sottovoce.formula.expression import Expression
from sottovoce.privacy.releases import StateRelease
from sottovoce.problem.agents import Group
from sottovoce.problem.problem import CloudView

if TYPE_CHECKING:
    from sottovoce.certificate.optimum import ReferenceOptimum
    from sottovoce.network.agent_group import LocalGroup
    from sottovoce.network.protocol.messages import Welcome
    from sottovoce.paper.paper_ensemble import EnsembleRuns
    from sottovoce.paper.paper_rounds import GradientStep, Multipliers, PaperOutputs
    from sottovoce.paper.tikhonov import Tikhonov
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.agents import Array
    from sottovoce.problem.problem import CloudView, Problem
    from sottovoce.simulation.request import SimulationRequest


EntryKind = Literal["public", "own", "released"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientEntry:
    """One entry ``d g_row / d x_column`` that is not zero everywhere.

    Attributes:
        row: the constraint, from 0.
        column: the component of the state vector of all agents, from 0. For a fleet, the
            component of its first agent: one entry stands for all agents of the fleet.
        agent: the agent it belongs to, from 0; the first agent of a fleet.
        kind: "public", a constant that everybody knows; "own", a public formula in the agent's own
            state, evaluated locally; "released", moved by other agents, so that the cloud must
            send it with noise.
        formula: the derivative.
    """

    row: int
    column: int
    agent: int
    kind: EntryKind
    formula: Expression


def gradient_entries(cloud: CloudView) -> tuple[GradientEntry, ...]:
    """Classify every entry of ``dg/dx``, named agents first row by row, then sums over fleets."""
    return tuple(sorted(_entries(cloud), key=lambda e: (e.row, e.column)))


def _entries(cloud: CloudView) -> Iterator[GradientEntry]:
    places: dict[str, tuple[int, int, Group]] = {}
    column = agent = 0
    for group in cloud.groups:
        places[group.name] = (column, agent, group)
        column += group.count * group.dim
        agent += group.count
    first = 0
    for family in cloud.constraints:
        for row, g in enumerate(family.named):
            for group in cloud.groups:
                if group.count == 1:
                    yield from _of_term(first + row, g, *places[group.name])
        for part in family.sums:
            for row in range(part.rows):
                h = part.terms[row % len(part.terms)]
                yield from _of_term(first + row, h, *places[part.group.name])
        first += family.rows


def _of_term(
    row: int, term: Expression, column: int, agent: int, group: Group
) -> Iterator[GradientEntry]:
    place = {s: c for c, s in enumerate(group.symbols)}
    for symbol, formula in gradient(term, group.symbols).items():
        states = formula.symbols - set(group.parameters)
        kind: EntryKind = "public"
        if states:
            kind = "own" if states <= set(group.symbols) else "released"
        yield GradientEntry(
            row=row, column=column + place[symbol], agent=agent, kind=kind, formula=formula
        )


@final
class PaperRelease(StateRelease):
    """Agents send states; the cloud releases noisy g(x) and dg/dx, and both take gradient steps.

    Parts are imported when they are needed: an agent loads no simulation, a plan no network.
    """

    name: ClassVar[str] = "paper"
    sent: ClassVar[str] = "state"

    @property
    def algorithm(self) -> type[Tikhonov]:
        """Algorithm 1."""
        from sottovoce.paper.tikhonov import Tikhonov

        return Tikhonov

    def limit(
        self, problem: Problem, plan: NoisePlan, rounds: int, optimum: ReferenceOptimum
    ) -> tuple[Array, Array, tuple[int, ...]]:
        """Return the least standard deviations of x and of mu, and the flat components of x."""
        from sottovoce.paper.paper_limit import paper_limit

        return paper_limit(problem, plan, rounds, optimum)

    def engine(self, problem: Problem, request: SimulationRequest) -> EnsembleRuns:
        """Return runs of named agents, side by side in the lanes of vector registers."""
        from sottovoce.paper.paper_ensemble import EnsembleRuns

        return EnsembleRuns(problem, request)

    def contribution(
        self,
        cloud: CloudView,
        group: LocalGroup,
        algorithm: Tikhonov,
        *,
        welcome: Welcome,
        begin: int,
        bounds: tuple[Array, Array],
    ) -> GradientStep:
        """Return an agent's step ``(k, x, mu, y) -> x(k+1)``."""
        from sottovoce.paper.paper_rounds import GradientStep, own_terms

        listed = zip(welcome.rows, welcome.columns, strict=True)
        sent = {
            (row, column - begin): place
            for place, (row, column) in enumerate(listed)
            if begin <= column < begin + group.size
        }
        terms = own_terms(cloud, group.fleet, sent)
        return GradientStep(group, algorithm, bounds=bounds, terms=terms)

    def outputs(self, plan: NoisePlan) -> PaperOutputs:
        """Return what the cloud works out from all states, and releases."""
        from sottovoce.paper.paper_rounds import PaperOutputs

        return PaperOutputs(plan)

    def prices(self, plan: NoisePlan, algorithm: Tikhonov) -> Multipliers:
        """Return the cloud's step from released values to multipliers."""
        from sottovoce.paper.paper_rounds import Multipliers

        return Multipliers(plan, algorithm)


RELEASE = PaperRelease()
