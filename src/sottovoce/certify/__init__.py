"""What is proven of a problem before anything is released.

The package is also the function ``certify``: ``sottovoce.certify(problem)`` calls
``certify.certificate.certify``, and ``import sottovoce.certify.saddle`` finds the modules inside.
One name cannot be bound to a function and to a package otherwise.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, final


@final
class _CallablePackage(ModuleType):
    """A package that can be called like the function of its name."""

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function())

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return _function()(*args, **settings)

    def __reduce__(self) -> tuple[Any, ...]:
        # Process pools pickle the function that they are given.
        return import_module, (__name__,)


def _function() -> Any:
    from sottovoce.certify.certificate import certify

    return certify


sys.modules[__name__].__class__ = _CallablePackage
