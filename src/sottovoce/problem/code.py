"""Objectives that are any code: an agent is whatever can tell its own gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from sottovoce.errors import InputError, ProblemError
from sottovoce.problem.agents import Array

_FALLS = 1e-9  # how far a gradient may fall, relative to its size, before it counts as falling


@final
@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """A convex objective f_i that is no formula but code.

    Args:
        gradient: ``x_i -> df_i/dx_i (x_i)``, arrays of shape (d,); it must be monotone,
            ``(f'(x) - f'(y))'(x - y) >= 0``, which is what convex means.
        value: ``x_i -> f_i(x_i)``, if anybody asks for it.
    """

    gradient: Callable[[Array], Any]
    value: Callable[[Array], Any] | None = None

    def __post_init__(self) -> None:
        for name, function in (("gradient", self.gradient), ("value", self.value)):
            if function is not None and not callable(function):
                raise ProblemError(
                    f"{name} of an Objective must be a function of the state, got "
                    f"{type(function).__name__}"
                )


@final
class Watched:
    """A gradient that is looked at while it is used: what it gives, and whether it is monotone.

    Args:
        gradient: of one agent.
        dim: how many numbers it must give.
        report: called once, the first time that the gradient falls; with nothing, because what it
            was and where is private.
    """

    def __init__(
        self, gradient: Callable[[Array], Any], dim: int, report: Callable[[], None]
    ) -> None:
        self._gradient, self._dim, self._report = gradient, dim, report
        self._last: tuple[Array, Array] | None = None
        self.monotone = True

    def __call__(self, x: Array) -> Array:
        """The gradient at x, shape (d,).

        Raises:
            InputError: if it is no vector of finite numbers.
        """
        value = np.asarray(self._gradient(np.array(x)), dtype=np.float64).reshape(-1)
        if value.shape != (self._dim,) or not np.isfinite(value).all():
            raise InputError(f"gradient must return {self._dim} finite numbers")
        if self.monotone and self._last is not None:
            step, change = x - self._last[0], value - self._last[1]
            size = np.linalg.norm(value) + np.linalg.norm(self._last[1])
            if float(change @ step) < -_FALLS * float(size * np.linalg.norm(step)):
                self.monotone = False
                self._report()
        self._last = (np.array(x, dtype=np.float64), value)
        return value
