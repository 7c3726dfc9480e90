"""The configuration of a run, pinned by a hash that cloud, store and agents all check."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from sottovoce.algorithm.algorithm import Algorithm, GradientSteps
from sottovoce.algorithm.dual_averaging import DualAveraging
from sottovoce.errors import InputError
from sottovoce.network.protocol.messages import Welcome
from sottovoce.privacy.releases import REGISTERED, release_of
from sottovoce.problem.problem import CloudView

Noise = Literal["secure", "simulated"]


class SeriesRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which run of a series it is."""

    name: str
    origin: str  # made with the series' store: a rolled-back one cannot pass for another series
    number: int  # from 1, rising
    public: dict[str, float | list[float]] = {}  # in place of the table [public] of problem.toml


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is, in one canonical text."""

    run_id: str  # names the run for ever, also in the ledger
    problem: str  # fingerprint of the public problem
    plan: str  # fingerprint of every output with its sigma, and of the domain
    algorithm: Mapping[str, Any]  # its name and numbers
    rounds: int  # T
    noise: Noise  # "simulated" keeps nothing private
    warm_start: str | None = None  # fingerprint of the prices and the slope that it begins with
    series: SeriesRun | None = None
    # What the plan hides ("hide", with "radius", None for everything, and "rounds"), by which
    # agents choose a substitute where their code fails, and for people the worst agent's figures.
    promise: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(msgspec.to_builtins(self), sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> bytes:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).digest()

    @property
    def split(self) -> bool:
        """Whether the cloud has a helper, and agents mask what they send."""
        return bool(self.promise.get("trust", "one") == "split")


def read_config(text: str) -> RunConfig:
    """Read a configuration that another machine wrote."""
    try:
        return msgspec.convert(json.loads(text), RunConfig)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        names = ", ".join(RunConfig.__struct_fields__)
        raise InputError(
            f"the configuration of a run must be JSON with {names}, and no others: {error}"
        ) from None


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """Return an algorithm as plain values."""
    name, algorithms = type(algorithm).__name__, _algorithms()
    if name not in algorithms:
        raise InputError(
            f"algorithm must be one that agents know ({', '.join(algorithms)}), got {name}"
        )
    values = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithms[name])}
    return {"name": name} | {key: np.asarray(value).tolist() for key, value in values.items()}


def algorithm_of(description: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm that ``describe`` described."""
    values = dict(description)
    name = values.pop("name", None)
    kinds = {name: DualAveraging} if name == DualAveraging.__name__ else _algorithms()
    if name not in kinds:
        raise InputError(
            f"the run's algorithm must be one of {', '.join(kinds)}: upgrade sottovoce"
        )
    try:
        algorithm: Algorithm = kinds[name](**values)
    except TypeError:
        raise InputError(f"{name} does not have these settings: upgrade sottovoce") from None
    return algorithm


def _algorithms() -> dict[str, Any]:
    """Algorithms that a configuration can name: frozen dataclasses of plain numbers."""
    others = (release_of(name).algorithm for name in REGISTERED)
    return {cls.__name__: cls for cls in (DualAveraging, *others)}


def welcome_objection(welcome: Welcome, cloud: CloudView, *, allow_simulated: bool) -> str | None:
    """Return why not to take part in the run that a cloud describes, None to do so."""
    try:
        config = read_config(welcome.config)
        algorithm = algorithm_of(config.algorithm)
    except InputError as error:
        return str(error)
    if config.problem != cloud.fingerprint:
        return "the cloud runs another problem than this agent's problem.toml"
    if config.noise != "secure" and not allow_simulated:
        return "the cloud's noise is simulated, so nothing would be private"
    if config.promise.get("feasible") is None and any(c.hard for c in cloud.constraints):
        return "a constraint is hard, and the run has no margin that keeps it"
    states = isinstance(algorithm, GradientSteps)
    expected = (config.rounds, states, cloud.rows if states else cloud.sums.count)
    if (welcome.rounds, welcome.states, welcome.prices) != expected:
        return "the cloud contradicts the configuration of its run"
    return None
