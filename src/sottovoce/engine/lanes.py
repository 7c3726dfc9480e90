"""Runs of gradient steps of named agents, side by side in the lanes of vector registers."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import numpy as np

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.engine.compile import load_kernel
from sottovoce.engine.drive import Final, Task
from sottovoce.engine.formulas import Formulas
from sottovoce.engine.named_kernel import named_source
from sottovoce.engine.named_text import NamedText, first_state
from sottovoce.engine.normals import stream_seeds
from sottovoce.engine.setting import Setting
from sottovoce.engine.source import QUANTITIES, steps_of
from sottovoce.problem.agents import Array, lower_bounds, upper_bounds

WIDE = 32
"""Runs per block in an ensemble: enough for LLVM to fill its vector registers."""

_FEW = 8  # up to this many runs, one by one is faster than a block with empty lanes


@final
class Lanes:
    """Blocks of runs and the kernel that advances them; which block a run is in changes nothing."""

    def __init__(self, formulas: Formulas, algorithm: GradientSteps, setting: Setting) -> None:
        s = setting
        self._setting = s
        self._lanes = 1 if s.runs <= _FEW else WIDE
        text = NamedText(named=formulas.named, noise=s.noise, algorithm=algorithm)
        source = named_source(
            text, algorithm, formulas.offset.tolist(), lanes=self._lanes, transcript=s.transcript
        )
        kernel = load_kernel(source, *steps_of(algorithm))
        self._advance = kernel.advance
        blocks = -(-s.runs // self._lanes)
        lower = lower_bounds(s.domain)
        upper = upper_bounds(s.domain)
        self._bounds = np.concatenate([lower, upper])
        x0 = np.clip(np.concatenate([part.ravel() for part in s.start]), lower, upper)
        start = first_state(text, x0, s.price0)
        self._at = text.layout()
        self._state = np.empty((blocks, start.size, self._lanes))
        self._state[:] = start[:, np.newaxis]
        numbers = range(s.first, s.first + blocks * self._lanes)
        self._seeds = stream_seeds(s.seed, numbers).reshape(blocks, -1)
        self._trace = np.full((blocks, s.marks.size, len(QUANTITIES), self._lanes), np.nan)
        kept = s.rounds if s.transcript else 0
        self._transcript = np.zeros((blocks, kept, s.released, self._lanes))
        unknown = np.full(x0.size + s.price0.size, np.nan)
        self._saddle = unknown if s.saddle is None else np.concatenate(s.saddle)

    def tasks(self, done: int, until: int, steps: Array) -> list[Task]:
        """What takes the blocks through rounds ``done + 1 .. until``, one each."""
        blocks = range(self._state.shape[0])
        return [partial(self._run, block, done, until, steps) for block in blocks]

    def _run(self, block: int, done: int, until: int, steps: Array) -> None:
        s = self._setting
        first, last = s.records(done, until)
        self._advance(
            done,
            until,
            min(self._lanes, s.runs - block * self._lanes),
            steps,
            self._seeds[block],
            self._state[block].ravel(),
            self._bounds,
            s.sigma,
            self._saddle,
            s.marks[first:last],
            self._trace[block, first:last].reshape(-1),
            self._transcript[block, done:until].reshape(-1),
        )

    def arrays(self) -> dict[str, Any]:
        """Everything that rounds change, for a checkpoint; ``restore`` writes into them."""
        return {"state": self._state, "trace": self._trace, "transcript": self._transcript}

    def final(self) -> Final:
        """Where every run ended."""
        flat = self._by_run(self._state)
        n = self._at["price"]
        last, answer = (
            flat[:, self._at[name] :][:, : n + self._setting.price0.size] for name in ("x", "mean")
        )
        return Final(
            x=answer[:, :n].copy(),
            price=answer[:, n:].copy(),
            last_x=last[:, :n].copy(),
            last_price=last[:, n:].copy(),
            failed=flat[:, -1].astype(np.int64),
        )

    def trace(self, records: int) -> dict[str, Array]:
        """What was measured at the first ``records`` marks, arrays of shape (runs, records)."""
        flat = self._by_run(self._trace[:, :records])
        return {name: flat[:, :, q].copy() for q, name in enumerate(QUANTITIES)}

    def released(self, rounds: int) -> Array:
        """The released numbers, shape (runs, rounds, rows of g and gradient entries)."""
        return self._by_run(self._transcript[:, :rounds])

    def _by_run(self, blocks: Array) -> Array:
        moved = np.moveaxis(blocks, -1, 1)
        runs = moved.shape[0] * moved.shape[1]
        return moved.reshape(runs, *moved.shape[2:])[: self._setting.runs]
