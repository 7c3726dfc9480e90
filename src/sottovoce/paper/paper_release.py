"""The paper's release under its name: how plans, simulations and the network reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, final

from sottovoce.privacy.releases import Release

if TYPE_CHECKING:
    from sottovoce.certificate.optimum import ReferenceOptimum
    from sottovoce.network.agent_group import LocalGroup
    from sottovoce.network.protocol.messages import Welcome
    from sottovoce.paper.agent_step import GradientStep
    from sottovoce.paper.cloud_round import Multipliers, PaperOutputs
    from sottovoce.paper.ensemble import EnsembleRuns
    from sottovoce.paper.tikhonov import Tikhonov
    from sottovoce.privacy.noise_plan import NoisePlan
    from sottovoce.problem.agents import Array
    from sottovoce.problem.problem import CloudView, Problem
    from sottovoce.simulation.setting import Setting


@final
class PaperRelease(Release):
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

    def engine(self, problem: Problem, setting: Setting) -> EnsembleRuns:
        """Return runs of named agents, side by side in the lanes of vector registers."""
        from sottovoce.paper.ensemble import EnsembleRuns

        return EnsembleRuns(problem, setting)

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
        from sottovoce.paper.agent_step import GradientStep, own_terms

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
        from sottovoce.paper.cloud_round import PaperOutputs

        return PaperOutputs(plan)

    def prices(self, plan: NoisePlan, algorithm: Tikhonov) -> Multipliers:
        """Return the cloud's step from released values to multipliers."""
        from sottovoce.paper.cloud_round import Multipliers

        return Multipliers(plan, algorithm)


RELEASE = PaperRelease()
