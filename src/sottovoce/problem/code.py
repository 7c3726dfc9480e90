"""Objectives given by Python callables, and a monitor of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import SupportsFloat, final

import numpy as np
from numpy.typing import ArrayLike

from sottovoce.errors import InputError, ProblemError
from sottovoce.problem.groups import Array

_FALLS = 1e-9  # how far a gradient may fall, relative to its size, before it counts as falling
# Where a gradient is probed: along how many components, at how many points of each and of all.
_AXES, _ALONG, _POINTS = 32, 17, 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """A convex objective f_i given by Python callables.

    Args:
        gradient: ``x_i -> df_i/dx_i (x_i)``, arrays of shape (d,); it must be monotone,
            ``(f'(x) - f'(y))'(x - y) >= 0``, because f_i is convex.
        value: ``x_i -> f_i(x_i)``, for reports of the objective.
    """

    gradient: Callable[[Array], ArrayLike]
    value: Callable[[Array], SupportsFloat] | None = None

    def __post_init__(self) -> None:
        for name, function in (("gradient", self.gradient), ("value", self.value)):
            if function is not None and not callable(function):
                raise ProblemError(
                    f"{name} of an Objective must be a function of the state, got "
                    f"{type(function).__name__}"
                )


@final
class Watched:
    """A gradient that is monitored while it is used: its shape, and whether it is monotone.

    Every value is compared with the one before it and with probes of the box: a minimiser that
    stands where the gradient vanishes would never ask for a second one.

    ``report`` is called once, when the gradient first falls; without arguments, because its values
    and where they were taken are private. Errors name the agent ``name``.
    """

    def __init__(
        self,
        name: str,
        gradient: Callable[[Array], ArrayLike],
        dim: int,
        report: Callable[[], None],
    ) -> None:
        self._name, self._gradient, self._dim, self._report = name, gradient, dim, report
        self._points, self._values = np.zeros((0, dim)), np.zeros((0, dim))
        self._probed = 0  # how many of these are probes; one more is the last
        self.monotone = True

    def __call__(self, x: Array) -> Array:
        """The gradient at x, shape (d,)."""
        value = np.asarray(self._gradient(np.array(x)), dtype=np.float64).reshape(-1)
        if value.shape != (self._dim,) or not np.isfinite(value).all():
            numbers = "1 finite number" if self._dim == 1 else f"{self._dim} finite numbers"
            got = f"{value.size} of them" if value.size != self._dim else "NaN or infinity"
            raise InputError(f"the gradient of {self._name} must return {numbers}, got {got}")
        if self.monotone:
            self._compare(np.asarray(x, dtype=np.float64), value)
        return value

    def probe(self, lower: Array, upper: Array) -> None:
        """Evaluate the gradient around a box, once: along its components.

        Points at which the code raises are left out: the minimiser may never visit them.
        """
        if self._probed or not self.monotone:
            return
        for x in _probes(lower, upper):
            with suppress(Exception):
                self(x)
            self._probed = self._points.shape[0]

    def _compare(self, x: Array, value: Array) -> None:
        """``(f'(x) - f'(y))'(x - y) >= 0`` for every y that is remembered."""
        steps, changes = x - self._points, value - self._values
        sizes = np.linalg.norm(value) + np.linalg.norm(self._values, axis=1)
        slack = _FALLS * sizes * np.linalg.norm(steps, axis=1)
        if np.any(np.einsum("ij,ij->i", changes, steps) < -slack):
            self.monotone = False
            self._points = self._values = np.zeros((0, self._dim))
            self._report()
            return
        n = self._probed
        self._points = np.vstack([self._points[:n], x])
        self._values = np.vstack([self._values[:n], value])


def _probes(lower: Array, upper: Array) -> Array:
    """Points of a box, shape (count, d): its middle, two corners, and along components."""
    middle = lower + (upper - lower) / 2
    some = np.unique(np.linspace(0, lower.size - 1, min(lower.size, _AXES)).astype(int))
    each = int(np.clip(_POINTS // some.size, 2, _ALONG))
    points = [lower, middle, upper] if lower.size > 1 else []
    for c in some:
        for value in np.linspace(lower[c], upper[c], each):
            points.append(np.where(np.arange(lower.size) == c, value, middle))
    return np.array(points)
