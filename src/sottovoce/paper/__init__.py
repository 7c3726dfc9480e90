"""The method of Hale and Egerstedt for boxes X_i: their release, algorithm, plan and figures.

Agents send states; the cloud releases noisy values and gradients of the constraints (Theorems 2
and 3) and takes the steps of Algorithm 1. Plans, simulations and the network reach it through the
registry in ``sottovoce.privacy.releases``, by the name "paper".
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sottovoce.privacy.releases import register_release

if TYPE_CHECKING:
    from sottovoce.paper.paper_plan import Constants as Constants
    from sottovoce.paper.paper_plan import paper_plan
    from sottovoce.paper.reproduction import PUBLISHED as PUBLISHED
    from sottovoce.paper.reproduction import Reproduction as Reproduction
    from sottovoce.paper.reproduction import reproduce as reproduce
    from sottovoce.paper.tikhonov import Tikhonov as Tikhonov

    plan = paper_plan

_MODULES = {
    "Constants": "paper_plan.Constants",
    "PUBLISHED": "reproduction.PUBLISHED",
    "Reproduction": "reproduction.Reproduction",
    "Tikhonov": "tikhonov.Tikhonov",
    "plan": "paper_plan.paper_plan",
    "reproduce": "reproduction.reproduce",
}
__all__ = sorted(_MODULES)

register_release(
    "paper", "tikhonov", load=lambda: import_module("sottovoce.paper.tikhonov").RELEASE
)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sottovoce.paper' has no attribute {name!r}")
    module, _, attribute = _MODULES[name].partition(".")
    return getattr(import_module(f"sottovoce.paper.{module}"), attribute)
