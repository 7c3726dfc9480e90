"""A file that a long simulation rewrites as it goes and resumes from."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import final

import numpy as np

from sottovoce.errors import InputError
from sottovoce.problem.groups import Array
from sottovoce.simulation.result import read_npz, write_npz

_SAVE_SECONDS = 10.0  # between two savings


@final
class Checkpoint:
    """A file that is rewritten every few seconds with the ``arrays`` that rounds change.

    A file of another ``identity`` belongs to another simulation and is refused.
    """

    def __init__(
        self, path: str | os.PathLike[str], identity: str, arrays: dict[str, Array]
    ) -> None:
        self._path, self._identity, self._arrays = Path(path), identity, arrays
        self._saved = perf_counter()
        if not self._path.parent.is_dir():
            raise InputError(f"checkpoint must lie in a folder that exists, got {self._path}")

    def resume(self) -> int:
        """Fill the arrays from the file, if there is one, and return the rounds it had done."""
        if not self._path.exists():
            return 0
        meta, arrays = read_npz(self._path, kind="checkpoint")
        if meta["identity"] != self._identity:
            raise InputError(
                f"checkpoint {self._path} must belong to the same problem, plan, algorithm and "
                "arguments, got one of another simulation: remove it or name another file"
            )
        for name, target in self._arrays.items():
            np.copyto(target, arrays[name])
        return int(meta["done"])

    def save(self, done: int, *, now: bool) -> None:
        """Write the file if the last time was a while ago, or in any case if ``now``."""
        if now or perf_counter() - self._saved > _SAVE_SECONDS:
            meta = {"kind": "checkpoint", "identity": self._identity, "done": done}
            write_npz(self._path, meta, self._arrays)
            self._saved = perf_counter()
