"""A result made by hand, with every part that one can have."""

from __future__ import annotations

import numpy as np

from sottovoce.simulation.result import QUANTITIES, Assessment, Result, Trace, Transcript


def made_result(*, known: bool = True, kept: bool = True, name: str = "g1") -> Result:
    """Two runs of three states under one constraint; the second failed in round 4."""
    rng = np.random.default_rng(0)
    k = np.array([0, 1, 10])
    traces = {name: rng.uniform(0.1, 1, (2, 3)) for name in QUANTITIES}
    return Result(
        x=rng.normal(size=(2, 3)),
        price=rng.uniform(size=(2, 1)),
        last_x=rng.normal(size=(2, 3)),
        last_price=rng.uniform(size=(2, 1)),
        rounds=10,
        requested=20,
        seed=2**80,
        algorithm="Tikhonov()",
        noise="none: nothing is private",
        fingerprint="ab",
        failed=np.array([0, 4]),
        interrupted=True,
        seconds=0.5,
        saddle_x=np.zeros(3) if known else None,
        saddle_price=np.ones(1) if known else None,
        trace=Trace(k=k, **traces),
        transcript=Transcript(
            y=rng.normal(size=(2, 10, 1)),
            gradients=np.zeros((2, 10, 0)),
            rows=np.zeros(0, dtype=np.int64),
            columns=np.zeros(0, dtype=np.int64),
        )
        if kept
        else None,
        assessed=Assessment(
            groups=(("x1", 1, 1), ("u", 2, 1)),
            row_labels=(name,),
            equality=np.array([False]),
            scale=np.array([4.0]),
            rows=np.array([[0.5], [9.0]]),
            objective=np.array([11.0, 99.0]),
            best=10.0 if known else float("nan"),
            price_labels=(name,),
            output_labels=(name,),
            sigma=np.array([2.0]),
            deviation=np.array([0.1, 0.2, np.nan]) if known else np.zeros(0),
            promise="x1: (1, 0.05)-differentially private",
        ),
    )
