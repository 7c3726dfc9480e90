"""The example of Hale and Egerstedt's paper: seven agents, four constraints."""

from __future__ import annotations

from sottovoce.problem.agents import states
from sottovoce.problem.gallery.optimum import KnownOptimum
from sottovoce.problem.problem import Problem

KNOWN = KnownOptimum(
    objective=56.52677833286,
    x=(
        7.591600627978,
        -4.768685950155,
        0.177085322177,
        -0.821367483110,
        -3.0,
        1.790008271779,
        1.340100886860,
    ),
    mu=(1.816798744045, 0.0, 0.642734966219, 2.731062376741),
    tolerance=1e-9,
    source="conditions of the saddle point solved with 50 digits; not the paper's own figures",
)


def paper() -> Problem:
    """Return the problem of the paper's simulation, with its privacy and step-size settings.

    Minimise ``(x1 - 9)^2 + x1 + (x2 + 4)^4 + (x3 - 1)^8 + x4^2 + x4 + 6 + (x5 + 3)^6
    + (x6 - 7)^2 + (x7 - 5)^2`` over ``[-10, 10]^7`` subject to four constraints. The objective is
    flat to fifth order at ``x5 = -3``, which is the optimum because the only constraint on x5 is
    slack there.
    """
    x = states(7, lower=-10, upper=10)
    return Problem(
        states=x,
        objectives=[
            (x[0] - 9) ** 2 + x[0],
            (x[1] + 4) ** 4,
            (x[2] - 1) ** 8,
            x[3] ** 2 + x[3] + 6,
            (x[4] + 3) ** 6,
            (x[5] - 7) ** 2,
            (x[6] - 5) ** 2,
        ],
        constraints=[
            x[0] + x[1] + x[2] <= 3,
            x[4] ** 2 + x[5] ** 4 / 12 + x[6] ** 4 / 12 <= 20,
            x[2] ** 2 + x[3] + x[5] <= 1,
            x[5] ** 2 + x[6] ** 2 <= 5,
        ],
        privacy={"epsilon": "ln(3)", "delta": 0.05, "radius": 1.0},
        schedule={"gamma_bar": 5e-4, "alpha_bar": 0.2, "c1": "1/3", "c2": "1/4"},
    )
