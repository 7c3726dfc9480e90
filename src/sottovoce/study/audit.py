"""An attack on our own transcript, which must find no more than the plan claims.

The game: in world A one agent behaves in one way, in world B in an adjacent one; everything else,
the closed loop included, is the same. The attacker hears every released number, knows everything
but the world, and scores the transcript. What its hits and false alarms prove about the privacy
parameter is set against the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import sympy as sp
from scipy.special import ndtri
from scipy.stats import beta

from sottovoce.algorithm.algorithm import Algorithm, by_name, cloud_rows
from sottovoce.algorithm.averaging import Averaging
from sottovoce.certify.gradients import coupled_rows
from sottovoce.engine.minds import Minds
from sottovoce.errors import InputError
from sottovoce.privacy.gaussian import epsilon_of
from sottovoce.privacy.plan import NoisePlan
from sottovoce.problem.agents import Array, lower_bounds, read_only, upper_bounds
from sottovoce.problem.problem import Problem

CONFIDENCE = 0.999
_CHUNK = 5_000
_THRESHOLDS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # in units of the claimed mu
_SAME = 1e-9  # two draws this close, in units of the noise, are one draw used twice
_SILENT = 1e-12  # stands in for a sigma of 0, so that an output sent without noise tells all
_CORNERS = 6  # components whose two ends are tried in all combinations

NoiseSource = Callable[[np.random.Generator, tuple[int, int, int]], Array]
"""Standard normals of shape (rounds, runs, outputs) from a generator."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audit:
    """What an attacker achieved against one agent, and what was claimed.

    Attributes:
        agent: the agent's number, from 1.
        runs: games played in each world.
        rounds: rounds of each game.
        claimed_mu: the Gaussian-DP parameter the plan claims for these rounds.
        claimed_epsilon: the same as epsilon at ``delta``.
        delta: the plan's delta for this agent.
        played_mu: the largest shift the chosen behaviours cause, in units of the noise.
        measured_mu: lower bound on the Gaussian-DP parameter at ``CONFIDENCE``.
        measured_epsilon: the same as epsilon at ``delta``.
        clopper_pearson_epsilon: lower bound on epsilon from hits and false alarms alone.
        attack: which score found the most.
        false_alarms: rates of false alarms over the thresholds of that score.
        misses: rates of misses at the same thresholds.
    """

    agent: int
    runs: int
    rounds: int
    claimed_mu: float
    claimed_epsilon: float
    delta: float
    played_mu: float
    measured_mu: float
    measured_epsilon: float
    clopper_pearson_epsilon: float
    attack: str
    false_alarms: Array
    misses: Array

    @property
    def passed(self) -> bool:
        """Whether no lower bound exceeds the claim."""
        return (
            self.measured_mu <= self.claimed_mu
            and self.clopper_pearson_epsilon <= self.claimed_epsilon
        )


def audit(
    problem: Problem,
    plan: NoisePlan,
    *,
    agent: int,
    runs: int = 20_000,
    rounds: int = 20,
    seed: int = 0,
    algorithm: Algorithm | None = None,
    noise: NoiseSource | None = None,
) -> Audit:
    """Play the distinguishing game on the closed loop and bound what the attacker learns.

    The agent's two behaviours send states p and p + v with ``|v| = b`` where they move the outputs
    most in units of the noise: in the middle round for trajectory adjacency, in every round
    otherwise, one state or the other. Two scores are tried: the exact log-likelihood ratio
    ``sum_k sum_o ((o - F(x))^2 - (o - F(x'))^2) / 2 sigma_o^2``, and in how many more places the
    noise repeats itself, ``(o - F(x')) / sigma_o`` against ``(o - F(x)) / sigma_o``: a draw that
    was used twice, in whatever rounds or outputs, shows under the true world only.

    Args:
        problem: agents stated one by one.
        plan: its noise and its claim.
        agent: whose behaviour is to be told, counted from 1.
        runs: games per world.
        rounds: rounds per game.
        seed: of the simulation.
        algorithm: what agents and cloud run; ``Averaging()`` by default.
        noise: where standard normals come from; a broken source must be found.
    """
    if runs < 100 or rounds < 2:
        raise InputError(f"runs must be at least 100 and rounds at least 2, got {runs}, {rounds}")
    if plan.fingerprint != problem.cloud.fingerprint:
        raise InputError("the plan must be made for this problem, got one for another: plan again")
    if any(family.sums for family in problem.constraints):
        raise InputError("an audit takes agents stated one by one, got a fleet")
    if rounds > plan.rounds:
        raise InputError(
            f"rounds must be at most {plan.rounds:,}, which the plan covers, got rounds={rounds}"
        )
    game = _Game(problem, plan, agent, rounds, algorithm or Averaging())
    draw = noise or (lambda generator, shape: generator.standard_normal(shape))
    streams = np.random.SeedSequence(seed).spawn(2)
    scores = [game.play(world, runs, streams[world], draw) for world in (0, 1)]
    share = 1.0 if plan.adjacency == "trajectory" else rounds / plan.rounds
    claimed = float(plan.gdp_mu[agent - 1]) * np.sqrt(share)
    delta = float(plan.delta[agent - 1])
    found = [_bounds(name, scores[0][name], scores[1][name], delta, claimed) for name in scores[0]]
    best = max(found, key=lambda bound: (bound.mu, bound.epsilon))
    return Audit(
        agent=agent,
        runs=runs,
        rounds=rounds,
        claimed_mu=claimed,
        claimed_epsilon=epsilon_of(claimed, delta),
        delta=delta,
        played_mu=game.played_mu,
        measured_mu=best.mu,
        measured_epsilon=epsilon_of(best.mu, delta),
        clopper_pearson_epsilon=max(bound.epsilon for bound in found),
        attack=best.name,
        false_alarms=read_only(best.false_alarms),
        misses=read_only(best.misses),
    )


class _Game:
    """One problem, plan and agent, ready to be played many times at once."""

    def __init__(
        self, problem: Problem, plan: NoisePlan, agent: int, rounds: int, algorithm: Algorithm
    ) -> None:
        self.rounds, self.algorithm, self.plan = rounds, algorithm, plan
        symbols = [s for group in problem.groups for s in group.symbols]
        g = [row for family in problem.constraints for row in family.rest]
        slopes = [[sp.diff(row, s) for s in symbols] for row in g]
        entries = [
            slopes[j][c] for j, c in zip(plan.gradient_rows, plan.gradient_columns, strict=True)
        ]
        owners = [(f, s) for f, group in zip(problem.objectives, problem.groups, strict=True)
                  for s in group.symbols]  # fmt: skip
        self.outputs = _vectorised(symbols, [*g, *entries])
        self.jacobian = _vectorised(symbols, [d for row in slopes for d in row])
        self.gradient = _vectorised(symbols, [sp.diff(f, s) for f, s in owners])
        self.rows = len(g)
        self.lower = lower_bounds(plan.domain)
        self.upper = upper_bounds(plan.domain)
        self.start = np.clip(np.concatenate([s.ravel() for s in problem.start]),
                             self.lower, self.upper)  # fmt: skip
        index, _ = problem.cloud.locate(agent)
        first = sum(group.dim for group in problem.groups[:index])
        self.own = slice(first, first + problem.groups[index].dim)
        self.sigma = np.where(plan.sigma > 0, plan.sigma, _SILENT)
        self.sent = self._worst_pair(float(plan.radius[agent - 1]))
        once = plan.adjacency == "trajectory"
        self.acted = {rounds // 2} if once else set(range(rounds))
        self.coupled = coupled_rows(plan.cloud)
        self.minds = Minds(problem, plan, algorithm) if algorithm.thinks else None
        pairs = zip(plan.gradient_rows.tolist(), plan.gradient_columns.tolist(), strict=True)
        place = {pair: self.rows + e for e, pair in enumerate(pairs)}
        self.needed = [place[entry] for entry in self.minds.entries] if self.minds else []
        self.played_mu = self._shift(*self.sent) * float(np.sqrt(len(self.acted)))

    def play(
        self, world: int, runs: int, stream: np.random.SeedSequence, draw: NoiseSource
    ) -> Mapping[str, Array]:
        """Play ``runs`` games in world 0 (A) or 1 (B); high scores speak for B."""
        pieces: list[Mapping[str, Array]] = []
        for begin in range(0, runs, _CHUNK):
            count = min(_CHUNK, runs - begin)
            generator = np.random.default_rng(stream.spawn(1)[0])
            normals = draw(generator, (self.rounds, count, self.plan.sigma.size))
            pieces.append(self._play_chunk(world, normals))
        return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}

    def _play_chunk(self, world: int, normals: Array) -> Mapping[str, Array]:
        runs = normals.shape[1]
        x = np.tile(self.start, (runs, 1))
        mu = np.zeros((runs, self.rows))
        memory: Sequence[Array] = self.algorithm.start(mu)
        schedule = self.algorithm.schedule(np.arange(1, self.rounds + 1), self.rounds)
        residuals = np.empty((2, *normals.shape))
        for k in range(self.rounds):
            means = [self.outputs(self._sent(x, k, w)) for w in (0, 1)]
            released = means[world] + self.plan.sigma * normals[k]
            for w in (0, 1):
                residuals[w, k] = (released - means[w]) / self.sigma
            x, mu, memory = self._round(x, mu, memory, released, schedule[k])
        ratio = (np.square(residuals[0]) - np.square(residuals[1])).sum(axis=(0, 2)) / 2.0
        return {
            "log-likelihood ratio": ratio,
            "repeated noise": _repeats(residuals[1]) - _repeats(residuals[0]),
        }

    def _round(
        self, x: Array, mu: Array, memory: Sequence[Array], released: Array, numbers: Array
    ) -> tuple[Array, Array, Sequence[Array]]:
        after, kept = cloud_rows(
            self.algorithm, numbers, mu, memory, released[:, : self.rows],
            sigma=self.plan.sigma_g, coupled=self.coupled,
        )  # fmt: skip
        if self.minds is not None:
            return self.minds(x, after, released[:, self.needed], numbers), after, kept
        jacobian = self.jacobian(x).reshape(x.shape[0], self.rows, -1)
        jacobian[:, self.plan.gradient_rows, self.plan.gradient_columns] = released[:, self.rows :]
        slope = self.gradient(x) + np.einsum("rjc,rj->rc", jacobian, mu)
        own = {"x": x, "slope": slope, "lower": self.lower, "upper": self.upper}
        own |= dict(zip(self.algorithm.scalars, numbers, strict=True))
        return by_name(self.algorithm.agent_step, own), after, kept

    def _sent(self, x: Array, k: int, world: int) -> Array:
        """What the cloud receives: the agent's own choice of state in the rounds it acts in."""
        if k not in self.acted:
            return x
        sent = x.copy()
        # The worlds swap roles in a pattern that no lag repeats (Thue and Morse): noise used again
        # under the same shift would stay unseen.
        sent[:, self.own] = self.sent[(world + k.bit_count()) % 2]
        return sent

    def _shift(self, begin: Array, end: Array) -> float:
        """How far a change of the agent's state moves all outputs, in units of the noise."""
        points = np.tile(self.start, (2, 1))
        points[:, self.own] = begin, end
        return float(np.linalg.norm(np.diff(self.outputs(points), axis=0)[0] / self.sigma))

    def _worst_pair(self, radius: float) -> tuple[Array, Array]:
        """Two states at most ``radius`` apart that move the outputs most in units of noise."""
        low, high = self.lower[self.own], self.upper[self.own]
        dim = low.size
        ends = product((-1.0, 0.0, 1.0), repeat=min(dim, _CORNERS))
        towards = [np.resize(np.array(e), dim) for e in ends if any(e)]
        middle = (low + high) / 2.0
        pairs = []
        for direction in towards:
            corner = np.where(direction > 0, high, np.where(direction < 0, low, middle))
            across = middle - corner
            for step in [*np.eye(dim), direction, across if across.any() else direction]:
                for begin in (corner, middle):
                    for reach in (-radius, radius):
                        end = begin + reach * step / np.linalg.norm(step)
                        pairs.append((begin, np.clip(end, low, high)))
        return max(pairs, key=lambda pair: self._shift(*pair))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Bound:
    name: str
    mu: float
    epsilon: float
    false_alarms: Array
    misses: Array


def _bounds(name: str, a: Array, b: Array, delta: float, claimed: float) -> _Bound:
    """Lower bounds on mu and epsilon from scores in both worlds.

    Whatever the threshold, ``Phi^-1(hits) - Phi^-1(false alarms) <= mu`` and the share of games
    judged rightly is at most ``Phi(mu/2)``; the latter knows both worlds at once and is sharper
    where the two errors are alike. The thresholds are fixed beforehand, around where the best test
    of the claim has its own; all these bounds and both scores share the allowed error.
    """
    error = (1.0 - CONFIDENCE) / (2.0 * (2.0 * len(_THRESHOLDS) + 1.0))
    right = int(np.sum(a <= 0.0) + np.sum(b > 0.0))
    mu = 2.0 * float(ndtri(_clopper_pearson(right, a.size + b.size, error, upper=False)))
    mu, epsilon = max(mu, 0.0), 0.0
    for threshold in claimed * np.array(_THRESHOLDS):
        alarm = _clopper_pearson(int(np.sum(a > threshold)), a.size, error, upper=True)
        hit = _clopper_pearson(int(np.sum(b > threshold)), b.size, error, upper=False)
        mu = max(mu, float(ndtri(hit) - ndtri(alarm)))
        if hit > delta:
            epsilon = max(epsilon, float(np.log((hit - delta) / alarm)))
    curve = np.quantile(np.concatenate([a, b]), np.linspace(0.002, 0.998, 121))
    alarms, hits = (_rates(scores, curve) for scores in (a, b))
    return _Bound(name=name, mu=mu, epsilon=epsilon, false_alarms=alarms, misses=1 - hits)


def _rates(scores: Array, thresholds: Array) -> Array:
    return np.asarray(
        1.0 - np.searchsorted(np.sort(scores), thresholds, side="right") / scores.size
    )


def _clopper_pearson(count: int, games: int, error: float, *, upper: bool) -> float:
    """The exact one-sided confidence bound on a rate."""
    if upper:
        return 1.0 if count == games else float(beta.ppf(1.0 - error, count + 1, games - count))
    return 0.0 if count == 0 else float(beta.ppf(error, count, games - count + 1))


def _repeats(residuals: Array) -> Array:
    """In how many places the noise of a run repeats itself; residuals (rounds, runs, outputs)."""
    runs = np.sort(np.moveaxis(residuals, 1, 0).reshape(residuals.shape[1], -1), axis=1)
    return np.asarray(np.sum(np.diff(runs, axis=1) < _SAME, axis=1), dtype=np.float64)


def _vectorised(symbols: list[sp.Symbol], exprs: list[sp.Expr]) -> Callable[[Array], Array]:
    """A function from points (count, states) to values (count, formulas)."""
    function: Any = sp.lambdify(symbols, exprs, modules="numpy", cse=True)

    def evaluate(points: Array) -> Array:
        values = function(*points.T)
        return np.stack([np.broadcast_to(v, points.shape[:1]) for v in values], axis=1)

    return evaluate
