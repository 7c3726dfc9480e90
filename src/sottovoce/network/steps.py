"""An algorithm's step for one round, called by the names of its arguments."""

from __future__ import annotations

import inspect
from typing import Any, Final, final

import numpy as np

from sottovoce.algorithm.algorithm import Algorithm

_AHEAD: Final = 256


@final
class Step:
    """The agent's or the cloud's step with the round's own numbers filled in.

    Args:
        function: ``algorithm.agent_step`` or ``algorithm.cloud_step``.
        algorithm: whose schedule gives gamma(k) and the like.
    """

    def __init__(self, function: Any, algorithm: Algorithm) -> None:
        self._function = function
        self._algorithm = algorithm
        self._names = tuple(inspect.signature(function).parameters)
        self._first = 0
        self._rows: Any = ()

    def __call__(self, k: int, **values: Any) -> Any:
        """Take the step of round k."""
        if not self._first <= k < self._first + len(self._rows):
            # Many rounds cost hardly more than one.
            self._first, self._rows = k, self._algorithm.schedule(np.arange(k, k + _AHEAD))
        values.update(zip(self._algorithm.scalars, self._rows[k - self._first], strict=True))
        return self._function(*(values[name] for name in self._names))
