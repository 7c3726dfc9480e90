"""The distinguishing game: an attack on deployed code must find no more than the plan claims.

The game: in world A one agent behaves in one way, in world B in an adjacent one; everything else is
the same. The rounds are played by the cloud's and the agents' own code, byte by byte, with the
sampler that a cloud uses. The attacker receives every release, knows everything but the world, and
scores the transcript; what its hits and false alarms prove is set against the claim. A game needs
thousands of draws to see a tenth of the noise missing, and cannot see a missing tail at all, so the
noise itself is held against its statement too: residuals ``(released - F(x)) / sigma`` of all games
(``study.noise``). And whatever is sent must follow from the releases alone (``find_leak``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple, TypeAlias, final

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from sottovoce.algorithm.algorithm import Algorithm
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.arguments import instance, whole
from sottovoce.errors import InputError
from sottovoce.network.helper_rounds import Blinding
from sottovoce.network.round_arithmetic import deployed_sampler
from sottovoce.privacy.adjacency import Kind
from sottovoce.privacy.gaussian import Attacker, epsilon_of
from sottovoce.privacy.noise_plan import NoisePlan
from sottovoce.privacy.sampler import Sampler
from sottovoce.privacy.statement import down, up
from sottovoce.privacy.trust import ViewName
from sottovoce.problem.groups import Array, read_only
from sottovoce.problem.problem import Problem
from sottovoce.progress import Progress, silent, watched
from sottovoce.simulation.scatter import executor_of, scatter, split_runs
from sottovoce.study.loopback import Loopback, find_absence_leak, find_leak, masks_reused
from sottovoce.study.noise import FALSE_ALARM, NoiseChecks, check_noise, verdict
from sottovoce.study.released_outputs import (
    ReleasedOutputs,
    WorstPair,
    agent_columns,
    agent_outputs,
    released_outputs,
    worst_pair,
)
from sottovoce.tables import PlainTable

CONFIDENCE = 1.0 - FALSE_ALARM
_SCORE_THRESHOLDS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of the score, in units of the claimed mu
_LEAST_GAMES = 25  # per task: a game takes milliseconds, its making a second
_CLOSED_LOOP_PERIOD = 6
"""In every sixth round all agents take their own iterates, so that the loop stays closed."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audit:
    """What an attacker achieved against one agent, and what was claimed.

    Attributes:
        agent: the agent's index, from 0; ``name`` is its label.
        view: who attacked: "outside", or half of a split cloud with all other agents.
        runs: games played in each world, of so many ``rounds``.
        claimed_mu: the Gaussian-DP parameter the plan claims for the rounds played differently.
        played_mu: the shift the chosen behaviours cause, in units of the stated noise.
        measured_mu: lower bound on the Gaussian-DP parameter at ``CONFIDENCE``.
        clopper_pearson_epsilon: lower bound on epsilon from hits and false alarms alone.
        false_alarms: rates of false alarms over the thresholds of the score, ``misses`` likewise.
        noise: the noise of all games against its statement.
        leaks: what messages tell besides the releases; "" for nothing.
        absences: whether games with absent agents were played for ``leaks``; of a split cloud none.
    """

    agent: int
    name: str
    view: ViewName
    runs: int
    rounds: int
    claimed_mu: float
    delta: float
    played_mu: float
    measured_mu: float
    clopper_pearson_epsilon: float
    false_alarms: Array
    misses: Array
    noise: NoiseChecks
    leaks: str
    absences: bool

    @property
    def claimed_epsilon(self) -> float:
        """The claimed mu as epsilon at ``delta``."""
        return epsilon_of(self.claimed_mu, self.delta)

    @property
    def measured_epsilon(self) -> float:
        """The measured mu, likewise."""
        return epsilon_of(self.measured_mu, self.delta)

    @property
    def played_share(self) -> float:
        """How much of the claim the behaviours that were played use up: 1 is all of it."""
        return self.played_mu / self.claimed_mu if self.claimed_mu > 0 else 1.0

    @property
    def game_passed(self) -> bool:
        """Whether neither the behaviours nor any lower bound exceed the claim."""
        return (
            self.played_mu <= self.claimed_mu
            and self.measured_mu <= self.claimed_mu
            and self.clopper_pearson_epsilon <= self.claimed_epsilon
        )

    @property
    def passed(self) -> bool:
        """Whether game, noise and messages are all as claimed."""
        return self.game_passed and self.noise.passed and not self.leaks

    def table(self) -> PlainTable:
        """Return claim and measurement side by side."""
        side = "outside" if self.view == "outside" else f"the {self.view}"
        nothing = f"nothing else{', also where agents are absent' if self.absences else ''}"
        messages = f"tell {self.leaks}" if self.leaks else f"tell the releases, {nothing}"
        share = f"{down(100.0 * self.played_share, 3)}% of the claim"
        return PlainTable(
            title=f"Agent {self.name}, attacked from {side}: {self.runs:,} games of {self.rounds} "
            f"rounds per world, bounds at {CONFIDENCE:.3%} confidence",
            columns=("", "Gaussian-DP mu", f"epsilon at delta = {up(self.delta, 4)}"),
            rows=(
                ("claimed, at most", up(self.claimed_mu, 5), up(self.claimed_epsilon, 5)),
                ("behaviours played", down(self.played_mu, 5), share),
                ("measured, at least", down(self.measured_mu, 5), down(self.measured_epsilon, 5)),
                ("Clopper-Pearson, at least", "", down(self.clopper_pearson_epsilon, 5)),
                ("the claim", verdict(self.game_passed)),
                ("messages", verdict(not self.leaks), messages),
            ),
        )

    def data(self) -> dict[str, object]:
        """Return everything as plain values for JSON; the agent's number counts from 1."""
        return asdict(self) | {
            "agent": self.agent + 1,
            "claimed_epsilon": self.claimed_epsilon,
            "measured_epsilon": self.measured_epsilon,
            "played_share": self.played_share,
            "noise": self.noise.data(),
            "passed": self.passed,
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw misses against false alarms: claimed bound, measured attack, blind guessing."""
        from matplotlib.figure import Figure

        from sottovoce.simulation.summary import draw

        figure = Figure(figsize=(6.0, 5.6), layout="constrained")
        axes = figure.subplots()
        alarm = np.linspace(0.0, 1.0, 400)
        axes.plot(alarm, Attacker(self.claimed_mu).miss_rate(alarm), color="tab:blue",
                  label=f"claimed: no attack below (mu = {up(self.claimed_mu, 4)})")  # fmt: skip
        axes.plot(self.false_alarms, self.misses, color="tab:red", marker=".", markersize=4,
                  label="measured: log-likelihood ratio")  # fmt: skip
        axes.plot(
            alarm, 1.0 - alarm, color="grey", linestyle=":", label="perfect privacy: guessing"
        )
        axes.set(xlabel="false alarms", ylabel="misses", xlim=(0, 1), ylim=(0, 1), aspect="equal",
                 title=f"Telling two behaviours of agent {self.name} apart")  # fmt: skip
        axes.grid(alpha=0.25)
        axes.legend(fontsize=9)
        draw(figure, path)

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.noise.table()}"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + self.noise.table()._repr_html_()


def audit(
    problem: Problem,
    plan: NoisePlan,
    *,
    agent: int | str | None = None,
    runs: int = 400,
    rounds: int = 30,
    algorithm: Algorithm | None = None,
    view: ViewName = "outside",
    sampler: Sampler | None = None,
    helper: Blinding | None = None,
    progress: bool | Progress | None = None,
    executor: object = None,
) -> Audit:
    """Play the distinguishing game against the deployed code and test its noise.

    In five rounds of six the agent's two behaviours take two states that move the outputs most in
    units of the noise (``worst_pair``). Of a trajectory's radius all these rounds have a share, or
    one has all of it, whichever moves outputs more. Other agents follow the algorithm, but for the
    paper's release, where their states are the worst. The score is the exact log-likelihood ratio,
    ``sum_k sum_o ((o - F(x))^2 - (o - F(x'))^2) / 2 sigma_o^2``.

    Args:
        problem: the whole problem.
        plan: its noise and its claim.
        agent: the agent under attack, a label or an index from 0; by default the worst-off.
        runs: games per world.
        rounds: rounds per game.
        algorithm: what agents and cloud run; by default that of the plan's release.
        view: who attacks: "outside" receives every release, as does the "helper" of a split cloud,
            which subtracts its noise; its "cloud" sees masked contributions, and looks for a mask
            that was used twice.
        sampler: the source of noise; by default that of a cloud. A broken one must fail.
        helper: that of the helper's noise.
        progress: as for ``sv.simulate``.
        executor: likewise. Every process draws noise of its own from its operating system.
    """
    instance("problem", problem, Problem, "sv.Problem(...)")
    instance("plan", plan, NoisePlan, "sv.plan(...)")
    runs, rounds = whole("runs", runs, least=100), whole("rounds", rounds, least=2)
    plan.require_problem(problem)
    if rounds > plan.rounds:
        raise InputError(
            f"rounds must be at most {plan.rounds:,}, which the plan covers, got rounds={rounds}"
        )
    if executor is not None and not (sampler is None and helper is None):
        raise InputError(
            "sampler must be left out with executor, got both: each process would draw its noise "
            "again"
        )
    build = partial(Game, problem, plan, agent, rounds=rounds, algorithm=algorithm, view=view)
    with watched(progress) as report:
        report("preparing the game")
        game = build(sampler=sampler, helper=helper)
        if executor is None:
            games = [_play_games(game, runs, report)]
        else:
            games = _play_distributed(build, runs, executor_of(executor), report)
    return _judge_games(game, games, runs)


def _judge_games(game: Game, games: Sequence[_GameScores], runs: int) -> Audit:
    """Set what the games show against what the plan claims."""
    delta = game.attacked.requested[1]
    a, b = np.concatenate([scores for scores, _ in games], axis=1)
    bound = _bound_mu(a, b, delta, game.claimed)
    return Audit(
        agent=game.attacked.agent,
        name=game.attacked.name,
        view=game.view,
        runs=runs,
        rounds=game.loopback.setup.rounds,
        claimed_mu=game.claimed,
        delta=delta,
        played_mu=game.played_mu,
        measured_mu=bound.mu,
        clopper_pearson_epsilon=bound.epsilon,
        false_alarms=read_only(bound.false_alarms),
        misses=read_only(bound.misses),
        noise=check_noise(np.concatenate([noise for _, noise in games])),
        leaks=game.leaks(),
        absences=not game.loopback.setup.split,
    )


_GameScores: TypeAlias = tuple[Array, Array]
"""Scores of the games in either world, shape (2, runs), and the noise of all of them."""


def _play_games(game: Game, runs: int, report: Progress) -> _GameScores:
    scores, residuals = np.empty((2, runs)), []
    for run in range(runs):
        report(f"playing {runs:,} games in either world", run / runs)
        for world in (0, 1):
            scores[world, run], noise = game.play(world)
            residuals.append(noise)
    return scores, np.concatenate(residuals)


def _play_distributed(
    build: Callable[[], Game], runs: int, executor: Executor, report: Progress
) -> list[_GameScores]:
    sizes = [len(block) for block in split_runs(runs, least=_LEAST_GAMES)]
    words = f"{runs:,} games elsewhere"
    games, interrupted = scatter(executor, _play_task, build, sizes, report=report, activity=words)
    if interrupted:
        raise KeyboardInterrupt  # the number of games was fixed beforehand, as the bounds need it
    return games


def _play_task(build: Callable[[], Game], runs: int) -> _GameScores:
    """Games in any process, with noise of its own."""
    return _play_games(build(), runs, silent)


@final
class Game:
    """One plan and agent, ready to be played many times."""

    def __init__(
        self,
        problem: Problem,
        plan: NoisePlan,
        agent: int | str | None = None,
        *,
        rounds: int = 30,
        algorithm: Algorithm | None = None,
        view: ViewName = "outside",
        sampler: Sampler | None = None,
        helper: Blinding | None = None,
    ) -> None:
        seen_mu = plan.mu_seen_by(view)
        self.attacked = plan.guarantee(agent)
        number = self.attacked.agent + 1  # the network counts from 1
        deployed = DualAveraging() if plan.release is None else plan.release.algorithm()
        self.view, self.columns = view, agent_columns(problem.cloud, number)
        self.outputs = released_outputs(plan)
        self.loopback = Loopback(
            problem,
            plan,
            algorithm=algorithm or deployed,
            sampler=sampler or deployed_sampler(plan),
            rounds=rounds,
            agent=number,
            helper=helper,
        )
        # An outsider faces the noise of both halves: sqrt(2) sigma.
        self.noise_factor = float(np.sqrt(plan.trust.noise_sources)) if view == "outside" else 1.0
        attackable_rounds = tuple(k for k in range(1, rounds + 1) if k % _CLOSED_LOOP_PERIOD != 1)
        outputs, columns = agent_outputs(plan, number)
        pair, self.attacked_rounds = _choose_behaviours(
            plan.radius(self.attacked.agent), plan.hide.kind, outputs, columns, attackable_rounds
        )
        means = outputs(np.stack([pair.begin, pair.end]))
        self.shift = (means[1] - means[0]) / outputs.sigma / self.noise_factor
        self.played_mu = float(np.linalg.norm(self.shift) * np.sqrt(len(self.attacked_rounds)))
        self.worlds = tuple(self._fill_states(side, columns) for side in (pair.begin, pair.end))
        share = 1.0 if plan.hide.kind == "trajectory" else len(self.attacked_rounds) / plan.rounds
        self.claimed = float(seen_mu[self.attacked.agent]) * float(np.sqrt(share))

    def play(self, world: int) -> tuple[float, Array]:
        """Play a game in world 0 (A) or 1 (B): the score, high for B, and the noise."""
        states, attacked = self.worlds[world], self.attacked_rounds
        played = self.loopback.play(lambda k: states if k in attacked else None)
        outside = self.view == "outside"
        values = played.values if outside else played.noisy_sums(self.view) * self.outputs.grid
        rounds = [k - 1 for k in self.attacked_rounds]
        in_a = played.states[rounds]  # an attacker knows all others, and both behaviours
        in_a[:, self.columns] = self.worlds[0][self.columns]
        residuals = self.outputs.standardised(in_a, values[rounds]) / self.noise_factor
        score = float((residuals @ self.shift - self.shift @ self.shift / 2.0).sum())
        return score, self.outputs.standardised(played.states, values) / self.noise_factor

    def leaks(self) -> str:
        """Return what the messages of a game reveal besides its releases, "" for nothing."""
        if self.view == "cloud":
            # Agents that crash and come back with an old state must not reuse a mask either.
            setup, groups = self.loopback.setup, self.loopback.groups
            parties = tuple(setup.party(group.agents) for group in groups)
            first, second = self.worlds
            middle = setup.rounds // 2 + 1
            crashed = self.loopback.play(lambda k: first, crash=(middle, lambda k: second))
            if any(masks_reused(run.masked, parties) for run in (self.loopback.play(), crashed)):
                return "contributions, two of them behind one mask"
        lower, upper = self.outputs.lower, self.outputs.upper
        leak = find_leak(self.loopback, self.loopback.play(), lower, upper)
        if leak or self.loopback.setup.split:  # neither half can tell noise from contributions
            return leak
        return find_absence_leak(self.loopback, self.worlds)

    def _fill_states(self, states: Array, columns: slice) -> Array:
        """All states of a round that is played; NaN for agents that keep their own iterates."""
        if states.size == self.outputs.lower.size:
            return states
        everyone = np.full(self.outputs.lower.size, np.nan)
        everyone[self.columns] = states[columns]
        return everyone


def _choose_behaviours(
    radius: float | None,
    hide: Kind,
    outputs: ReleasedOutputs,
    columns: slice,
    rounds: tuple[int, ...],
) -> tuple[WorstPair, tuple[int, ...]]:
    """Return the pair to play and the rounds in which it is played."""
    if hide != "trajectory" or radius is None:
        return worst_pair(outputs, columns, np.inf if radius is None else radius), rounds
    at_once = worst_pair(outputs, columns, radius)
    shared = worst_pair(outputs, columns, radius / float(np.sqrt(len(rounds))))
    if at_once.shift >= shared.shift * np.sqrt(len(rounds)):
        return at_once, (rounds[len(rounds) // 2],)
    return shared, rounds


class _MeasuredBounds(NamedTuple):
    mu: float
    epsilon: float
    false_alarms: Array
    misses: Array


def _bound_mu(a: Array, b: Array, delta: float, claimed: float) -> _MeasuredBounds:
    """Lower bounds on mu and epsilon from scores in both worlds.

    Whatever the threshold, ``Phi^-1(hits) - Phi^-1(false alarms) <= mu`` and the share of games
    judged rightly is at most ``Phi(mu/2)``; the latter knows both worlds at once and is sharper
    where the two errors are alike. The thresholds are fixed beforehand, around where the best test
    of the claim has its own; all these bounds share the allowed error.
    """
    error = (1.0 - CONFIDENCE) / (2.0 * len(_SCORE_THRESHOLDS) + 1.0)
    right = int(np.sum(a <= 0.0) + np.sum(b > 0.0))
    mu = 2.0 * float(ndtri(_bound_rate(right, a.size + b.size, error, upper=False)))
    mu, epsilon = max(mu, 0.0), 0.0
    for threshold in claimed * np.array(_SCORE_THRESHOLDS):
        alarm = _bound_rate(int(np.sum(a > threshold)), a.size, error, upper=True)
        hit = _bound_rate(int(np.sum(b > threshold)), b.size, error, upper=False)
        mu = max(mu, float(ndtri(hit) - ndtri(alarm)))
        if hit > delta:
            epsilon = max(epsilon, float(np.log((hit - delta) / alarm)))
    curve = np.quantile(np.concatenate([a, b]), np.linspace(0.002, 0.998, 121))
    alarms, hits = (np.mean(scores[:, np.newaxis] > curve, axis=0) for scores in (a, b))
    return _MeasuredBounds(mu=mu, epsilon=epsilon, false_alarms=alarms, misses=1 - hits)


def _bound_rate(count: int, games: int, error: float, *, upper: bool) -> float:
    """The exact one-sided confidence bound on a rate."""
    if upper:
        return 1.0 if count == games else float(beta.ppf(1.0 - error, count + 1, games - count))
    return 0.0 if count == 0 else float(beta.ppf(error, count, games - count + 1))
