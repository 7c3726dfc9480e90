"""Answers that are confirmed although they need not keep the constraints."""

from __future__ import annotations

from mutant import Mutant

CONFIRMED = "tests/privacy/test_feasibility.py::"

FEASIBLE = (
    Mutant(
        name="boxes that reach beyond a pole",
        file="privacy/feasibility.py",
        old="return low, np.minimum(y + away, most)",
        new="return y - away, y + away",
        killed_by=CONFIRMED + "test_poles_beyond_the_ranges_of_the_sums_confirm_nothing",
    ),
    Mutant(
        name="margins that reach beyond a pole",
        file="privacy/margins.py",
        old="box = cut(edge, away, noise.ranges[at], falls)",
        new="box = (edge - away, edge + away)",
        killed_by=CONFIRMED + "test_poles_within_the_margin_leave_no_room",
    ),
    Mutant(
        name="an empty box confirmed",
        file="privacy/feasibility.py",
        old="most = np.where(np.any(low > high, axis=1), np.inf, -np.inf)",
        new="most = np.full(low.shape[0], -np.inf)",
        killed_by=CONFIRMED + "test_poles_beyond_the_ranges_of_the_sums_confirm_nothing",
    ),
    Mutant(
        name="held agents widen an ellipsoid instead of adding a box",
        file="privacy/feasibility.py",
        old="np.broadcast_to(noise, y.shape)) + beside <= radius)",
        new="noise + box) <= radius)",
        killed_by=CONFIRMED
        + "test_a_ball_with_held_agents_holds_the_corners_of_what_they_may_be_off_by",
    ),
    Mutant(
        name="margins around a constraint that is not proven convex",
        file="privacy/plan.py",
        old="    require_proven_convexity(certificate, noise)\n",
        new="",
        killed_by=CONFIRMED
        + "test_unproven_convexity_of_a_constraint_that_can_be_violated_is_refused",
    ),
)
