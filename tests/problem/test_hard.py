"""Constraints behind which a physical limit stands, in Python and in files."""

import sottovoce as sv


def stated(*, marked: bool) -> sv.Problem:
    def mark(constraint: object) -> object:
        return sv.hard(constraint) if marked else constraint

    x = sv.agents(["a", "b"], lower=0, upper=5)
    ev = sv.agents(3, lower=0, upper=1, name="ev")
    return sv.Problem(
        agents=[x, ev],
        objectives=[x[0] ** 2, x[1] ** 2, (ev.x - 1) ** 2],
        constraints={
            "fuse": mark(x[0] + x[1] <= 3),
            "line": mark(sv.total(ev.x) + x[0] <= 4),
            "both": mark(["a - b <= 1", x[1] - x[0] <= 1]),
            "soft": x[0] + 2 * x[1] <= 9,
        },
        privacy={"epsilon": 1.0, "delta": 0.05, "radius": 0.1, "feasible": 0.95, "each_row": True},
    )


def test_every_row_of_what_is_marked_is_hard_as_everybody_agrees_on() -> None:
    hard, soft = (stated(marked=marked) for marked in (True, False))
    assert [family.hard for family in hard.constraints] == [True, True, True, True, False]
    assert not any(family.hard for family in soft.constraints)
    assert hard.cloud.fingerprint != soft.cloud.fingerprint
