"""sottovoce: differentially private, cloud-based, constrained multi-agent optimization.

Most names are imported when they are first used, so that an agent on a small device does not load
what only a study needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.algorithm.dual_averaging import DualAveraging
    from sottovoce.algorithm.tikhonov import Tikhonov
    from sottovoce.certify.certificate import Certificate, certify
    from sottovoce.certify.saddle import SaddlePoint, saddle_point
    from sottovoce.engine.result import Result, load
    from sottovoce.engine.solve import solve
    from sottovoce.errors import (
        BudgetError,
        CertificateError,
        ConvexityError,
        InputError,
        PrivacyError,
        ProblemError,
        RollbackError,
        SottovoceError,
        UnavailableError,
    )
    from sottovoce.formula.functions import (
        exp,
        huber,
        log,
        logsumexp,
        maximum,
        minimum,
        norm,
        pos,
        sqrt,
        sum_squares,
    )
    from sottovoce.network.agent import Agent
    from sottovoce.network.cloud import Cloud
    from sottovoce.network.errors import NetworkError
    from sottovoce.network.helper import Helper
    from sottovoce.network.household import Household
    from sottovoce.network.relay import Relay
    from sottovoce.privacy.charge import Charge, Protected
    from sottovoce.privacy.feasibility import Feasibility, Feasible
    from sottovoce.privacy.hide import Everything, Offset, Trajectory
    from sottovoce.privacy.ledger import Ledger
    from sottovoce.privacy.limit import Limit, limit
    from sottovoce.privacy.noise_plan import Guarantee, NoisePlan
    from sottovoce.privacy.paper_method import Constants
    from sottovoce.privacy.plan import plan
    from sottovoce.privacy.sampler import SecureSampler, SimulatedSampler
    from sottovoce.privacy.trust import OneCloud, SplitCloud
    from sottovoce.problem import gallery
    from sottovoce.problem.agents import fleet, states
    from sottovoce.problem.code import Objective
    from sottovoce.problem.constraints import hard, total
    from sottovoce.problem.folder import load_problem
    from sottovoce.problem.problem import Problem
    from sottovoce.problem.save import save_problem
    from sottovoce.study.advice import Advice
    from sottovoce.study.advise import advise
    from sottovoce.study.audit import Audit, audit

_HOME = {
    "Advice": "sottovoce.study.advice",
    "Agent": "sottovoce.network.agent",
    "Audit": "sottovoce.study.audit",
    "BudgetError": "sottovoce.errors",
    "Certificate": "sottovoce.certify.certificate",
    "CertificateError": "sottovoce.errors",
    "Charge": "sottovoce.privacy.charge",
    "Cloud": "sottovoce.network.cloud",
    "Constants": "sottovoce.privacy.paper_method",
    "ConvexityError": "sottovoce.errors",
    "DualAveraging": "sottovoce.algorithm.dual_averaging",
    "Everything": "sottovoce.privacy.hide",
    "Feasibility": "sottovoce.privacy.feasibility",
    "Feasible": "sottovoce.privacy.feasibility",
    "Guarantee": "sottovoce.privacy.noise_plan",
    "Helper": "sottovoce.network.helper",
    "Household": "sottovoce.network.household",
    "InputError": "sottovoce.errors",
    "Ledger": "sottovoce.privacy.ledger",
    "Limit": "sottovoce.privacy.limit",
    "NetworkError": "sottovoce.network.errors",
    "NoisePlan": "sottovoce.privacy.noise_plan",
    "Objective": "sottovoce.problem.code",
    "Offset": "sottovoce.privacy.hide",
    "OneCloud": "sottovoce.privacy.trust",
    "PrivacyError": "sottovoce.errors",
    "Problem": "sottovoce.problem.problem",
    "ProblemError": "sottovoce.errors",
    "Protected": "sottovoce.privacy.charge",
    "Relay": "sottovoce.network.relay",
    "Result": "sottovoce.engine.result",
    "RollbackError": "sottovoce.errors",
    "SaddlePoint": "sottovoce.certify.saddle",
    "SecureSampler": "sottovoce.privacy.sampler",
    "SimulatedSampler": "sottovoce.privacy.sampler",
    "SottovoceError": "sottovoce.errors",
    "SplitCloud": "sottovoce.privacy.trust",
    "Tikhonov": "sottovoce.algorithm.tikhonov",
    "Trajectory": "sottovoce.privacy.hide",
    "UnavailableError": "sottovoce.errors",
    "advise": "sottovoce.study.advise",
    "audit": "sottovoce.study.audit",
    "certify": "sottovoce.certify",
    "exp": "sottovoce.formula.functions",
    "fleet": "sottovoce.problem.agents",
    "gallery": "sottovoce.problem.gallery",
    "hard": "sottovoce.problem.constraints",
    "huber": "sottovoce.formula.functions",
    "limit": "sottovoce.privacy.limit",
    "load": "sottovoce.engine.result",
    "load_problem": "sottovoce.problem.folder",
    "log": "sottovoce.formula.functions",
    "logsumexp": "sottovoce.formula.functions",
    "maximum": "sottovoce.formula.functions",
    "minimum": "sottovoce.formula.functions",
    "norm": "sottovoce.formula.functions",
    "plan": "sottovoce.privacy.plan",
    "pos": "sottovoce.formula.functions",
    "saddle_point": "sottovoce.certify.saddle",
    "save_problem": "sottovoce.problem.save",
    "solve": "sottovoce.engine.solve",
    "sqrt": "sottovoce.formula.functions",
    "states": "sottovoce.problem.agents",
    "sum_squares": "sottovoce.formula.functions",
    "total": "sottovoce.problem.constraints",
}

__all__ = [
    "Advice",
    "Agent",
    "Audit",
    "BudgetError",
    "Certificate",
    "CertificateError",
    "Charge",
    "Cloud",
    "Constants",
    "ConvexityError",
    "DualAveraging",
    "Everything",
    "Feasibility",
    "Feasible",
    "Guarantee",
    "Helper",
    "Household",
    "InputError",
    "Ledger",
    "Limit",
    "NetworkError",
    "NoisePlan",
    "Objective",
    "Offset",
    "OneCloud",
    "PrivacyError",
    "Problem",
    "ProblemError",
    "Protected",
    "Relay",
    "Result",
    "RollbackError",
    "SaddlePoint",
    "SecureSampler",
    "SimulatedSampler",
    "SottovoceError",
    "SplitCloud",
    "Tikhonov",
    "Trajectory",
    "UnavailableError",
    "advise",
    "audit",
    "certify",
    "exp",
    "fleet",
    "gallery",
    "hard",
    "huber",
    "limit",
    "load",
    "load_problem",
    "log",
    "logsumexp",
    "maximum",
    "minimum",
    "norm",
    "plan",
    "pos",
    "saddle_point",
    "save_problem",
    "solve",
    "sqrt",
    "states",
    "sum_squares",
    "total",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Looked up when somebody asks: reading the installed package's facts takes its time.
        from importlib.metadata import version

        return version("sottovoce")
    if name not in _HOME:
        raise AttributeError(f"module 'sottovoce' has no attribute {name!r}")
    module = import_module(_HOME[name])
    return module if name in ("certify", "gallery") else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
