"""What is wrong with a run that a cloud describes, as seen from those who were asked to join it."""

from __future__ import annotations

from sottovoce.algorithm.algorithm import GradientSteps
from sottovoce.errors import InputError
from sottovoce.network.config import algorithm_of, read_config
from sottovoce.network.protocol.messages import Welcome
from sottovoce.problem.problem import CloudView


def objection(welcome: Welcome, cloud: CloudView, *, allow_simulated: bool) -> str | None:
    """Return why not to take part, None if nothing speaks against it.

    Args:
        welcome: the cloud's description.
        cloud: the public problem as it is known here.
        allow_simulated: whether noise may be simulated, hence not private.
    """
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
