"""Checkpoints: the state of a solve on disk, to go on from to the same bits."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, final

import numpy as np

from sottovoce.errors import InputError
from sottovoce.simulation.result import read_npz, write_npz

_EVERY_SECONDS = 10.0


@final
@dataclass(slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A file that is rewritten now and then with all that rounds change.

    Attributes:
        path: the file.
        identity: a hash of the request; a file of another request is refused.
        arrays: what to keep.
    """

    path: Path
    identity: str
    arrays: dict[str, Any]
    _saved: float = field(default_factory=perf_counter)

    def resume(self) -> int:
        """Fill the arrays from the file, if there is one, and return the rounds it had done."""
        if not self.path.exists():
            return 0
        meta, arrays = read_npz(self.path, kind="checkpoint")
        if meta["identity"] != self.identity:
            raise InputError(
                f"checkpoint {self.path} must belong to the same problem, plan, algorithm and "
                "arguments, got one of another solve: remove it or name another file"
            )
        for name, array in self.arrays.items():
            np.copyto(array, arrays[name])
        return int(meta["done"])

    def save(self, done: int, *, now: bool = False) -> None:
        """Write the file if the last time was a while ago, or in any case if ``now``."""
        if now or perf_counter() - self._saved > _EVERY_SECONDS:
            meta = {"kind": "checkpoint", "identity": self.identity, "done": done}
            write_npz(self.path, meta, self.arrays)
            self._saved = perf_counter()


def checkpoint_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a checkpoint whose folder exists."""
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(f"checkpoint must lie in a folder that exists, got {target}")
    return target
