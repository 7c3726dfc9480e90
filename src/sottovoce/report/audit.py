"""An audit as tables and as the trade-off curve: claimed, measured, perfect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from sottovoce.privacy.gaussian import attacker
from sottovoce.privacy.statement import down, up
from sottovoce.study.audit import CONFIDENCE, Audit
from sottovoce.study.noise import FALSE_ALARM, NoiseChecks

_FROM = {"outside": "outside", "cloud": "the cloud", "helper": "the helper"}
_HOLDS, _BROKEN = "[green]holds[/]", "[bold red]BROKEN[/]"


def audit_table(audit: Audit) -> Table:
    """Return claim and measurement side by side."""
    table = Table(
        title=f"Agent {audit.agent}, attacked from {_FROM[audit.view]}: {audit.runs:,} games of "
        f"{audit.rounds} rounds per world, "
        f"bounds at {CONFIDENCE:.3%} confidence",
        title_justify="left",
    )
    for heading in ("", "Gaussian-DP mu", f"epsilon at delta = {up(audit.delta, 4)}"):
        table.add_column(heading, justify="right")
    table.add_row("claimed, at most", up(audit.claimed_mu, 5), up(audit.claimed_epsilon, 5))
    share = f"{down(100.0 * audit.played_share, 3)}% of the claim"
    table.add_row("behaviours played", down(audit.played_mu, 5), share)
    table.add_row("measured, at least", down(audit.measured_mu, 5), down(audit.measured_epsilon, 5))
    table.add_row("Clopper-Pearson, at least", "", down(audit.clopper_pearson_epsilon, 5))
    table.add_row("the claim", _HOLDS if audit.game_passed else _BROKEN, "")
    told = f"tell {audit.told}" if audit.told else "tell the releases, nothing else"
    table.add_row("messages", _BROKEN if audit.told else _HOLDS, told)
    return table


def noise_table(noise: NoiseChecks, title: str = "The noise that was released") -> Table:
    """Return every property of the noise, and how odd it looks."""
    table = Table(
        title=f"{title}: {noise.draws:,} draws in {noise.rounds:,} rounds, tails seen to "
        f"{down(noise.depth, 2)} sigma, false alarms below {FALSE_ALARM:g}",
        title_justify="left",
    )
    for heading in ("", "found", "chance", ""):
        table.add_column(heading, justify="right")
    for check in noise.checks:
        verdict = _HOLDS if check.passed else _BROKEN
        table.add_row(check.name, check.found, f"{check.chance:.2g}", verdict)
    return table


def audit_figure(audit: Audit, path: Path) -> None:
    """Draw misses against false alarms: claimed bound, measured attack, and blind guessing."""
    figure = Figure(figsize=(6.0, 5.6), layout="constrained")
    axes = figure.subplots()
    alarm = np.linspace(0.0, 1.0, 400)
    axes.plot(alarm, attacker(audit.claimed_mu).miss_rate(alarm), color="tab:blue",
              label=f"claimed: no attack below (mu = {up(audit.claimed_mu, 4)})")  # fmt: skip
    axes.plot(audit.false_alarms, audit.misses, color="tab:red", marker=".", markersize=4,
              label="measured: log-likelihood ratio")  # fmt: skip
    axes.plot(alarm, 1.0 - alarm, color="grey", linestyle=":", label="perfect privacy: guessing")
    axes.set(xlabel="false alarms", ylabel="misses", xlim=(0, 1), ylim=(0, 1), aspect="equal",
             title=f"Telling two behaviours of agent {audit.agent} apart")  # fmt: skip
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    figure.savefig(path, dpi=150)
