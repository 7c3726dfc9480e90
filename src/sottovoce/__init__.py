"""sottovoce: differentially private, cloud-based, constrained multi-agent optimization.

Names are imported when they are first used, so that an agent on a small device does not load what
only a study needs. ``sv.errors``, ``sv.network``, ``sv.paper`` and ``sv.gallery`` are namespaces.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sottovoce import paper as paper  # registers the paper's release

if TYPE_CHECKING:
    from sottovoce import errors as errors
    from sottovoce import network as network
    from sottovoce.algorithm.dual_averaging import DualAveraging as DualAveraging
    from sottovoce.certificate.certificate import certify as certify
    from sottovoce.certificate.optimum import reference_optimum as reference_optimum
    from sottovoce.errors import SottovoceError as SottovoceError
    from sottovoce.formula.functions import exp as exp
    from sottovoce.formula.functions import huber as huber
    from sottovoce.formula.functions import log as log
    from sottovoce.formula.functions import logsumexp as logsumexp
    from sottovoce.formula.functions import maximum as maximum
    from sottovoce.formula.functions import minimum as minimum
    from sottovoce.formula.functions import norm as norm
    from sottovoce.formula.functions import pos as pos
    from sottovoce.formula.functions import sqrt as sqrt
    from sottovoce.formula.functions import sum_squares as sum_squares
    from sottovoce.network.agent import Agent as Agent
    from sottovoce.network.cloud import Cloud as Cloud
    from sottovoce.privacy.adjacency import Everything as Everything
    from sottovoce.privacy.adjacency import Offset as Offset
    from sottovoce.privacy.adjacency import Trajectory as Trajectory
    from sottovoce.privacy.ledger import Ledger as Ledger
    from sottovoce.privacy.limit import accuracy_limit as accuracy_limit
    from sottovoce.privacy.plan import plan as plan
    from sottovoce.privacy.trust import SplitCloud as SplitCloud
    from sottovoce.problem import gallery as gallery
    from sottovoce.problem.agents import agents as agents
    from sottovoce.problem.code import Objective as Objective
    from sottovoce.problem.constraints import hard as hard
    from sottovoce.problem.constraints import total as total
    from sottovoce.problem.from_cvxpy import from_cvxpy as from_cvxpy
    from sottovoce.problem.problem import Problem as Problem
    from sottovoce.simulation.result import Result as Result
    from sottovoce.simulation.simulate import simulate as simulate
    from sottovoce.study.advise import advise as advise
    from sottovoce.study.audit import audit as audit
    from sottovoce.study.compare import compare as compare

_NAMES = {
    "algorithm.dual_averaging": "DualAveraging",
    "certificate.certificate": "certify",
    "certificate.optimum": "reference_optimum",
    "errors": "SottovoceError",
    "formula.functions": "exp huber log logsumexp maximum minimum norm pos sqrt sum_squares",
    "network.agent": "Agent",
    "network.cloud": "Cloud",
    "privacy.adjacency": "Everything Offset Trajectory",
    "privacy.ledger": "Ledger",
    "privacy.limit": "accuracy_limit",
    "privacy.plan": "plan",
    "privacy.trust": "SplitCloud",
    "problem.agents": "agents",
    "problem.code": "Objective",
    "problem.constraints": "hard total",
    "problem.from_cvxpy": "from_cvxpy",
    "problem.problem": "Problem",
    "simulation.result": "Result",
    "simulation.simulate": "simulate",
    "study.advise": "advise",
    "study.audit": "audit",
    "study.compare": "compare",
}
_NAMESPACES = {
    "errors": "errors",
    "gallery": "problem.gallery",
    "network": "network",
    "paper": "paper",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*sorted(_MODULES), *sorted(_NAMESPACES)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Looked up on demand: reading the installed package's metadata takes 20 ms.
        from importlib.metadata import version

        return version("sottovoce")
    if name in _NAMESPACES:
        return import_module(f"sottovoce.{_NAMESPACES[name]}")
    if name not in _MODULES:
        raise AttributeError(f"module 'sottovoce' has no attribute {name!r}")
    return getattr(import_module(f"sottovoce.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
