"""Play a day of the car park: a service, four gateways, 18 runs, and a figure.

    python examples/rolling/play.py OUT

starts ``sottovoce serve`` and four gateways, opens a run for every hour, kills the service with
SIGKILL in the middle of the ninth and starts it again, and compares what the cars have drawn with
the same plan without privacy, and with that of someone who knows all cars in advance.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from day import CARS, DAY, FIRST, LIMIT, PRICE, RUNS, Array, Cars, Lot, charging, cost, public
from matplotlib.figure import Figure

import sottovoce as sv
from sottovoce.network import identity
from sottovoce.network.identity.tls import client_context
from sottovoce.network.store import summarise
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.statement import down, up

HERE = Path(__file__).resolve().parent
GATEWAYS = [range(first, first + 250) for first in range(1, CARS + 1, 250)]
ROUNDS = 100  # of service.toml, and of a plan without noise
KILL = 9  # the run in which the service is killed
PATIENCE_SECONDS = 60.0


class Park:
    """The processes of a day, in a folder of its own."""

    def __init__(self, folder: Path, port: int, runs: int) -> None:
        self.folder, self.address = folder, f"127.0.0.1:{port}"
        shutil.copytree(HERE / "problem", folder / "problem")
        text = (HERE / "service.toml").read_text(encoding="utf-8")
        text = text.replace("127.0.0.1:8471", self.address).replace("runs = 18", f"runs = {runs}")
        (folder / "service.toml").write_text(text)
        identity.create_keys(folder / "keys", agents=CARS, gateways=GATEWAYS)
        self._operator = client_context(folder / "keys" / "operator")
        labels = sv.Problem.load(folder / "problem", agents=[]).cloud.agent_labels()
        ledger = Ledger(folder / "ledger.db")
        ledger.grant(labels, 30, 1e-4, hide="offset", radius=0.5)
        ledger.grant_period(labels, 3, 1e-5, per="day")

    def service(self) -> subprocess.Popen[bytes]:
        """Start the service, or start it again."""
        return self._start("service", Path(sys.executable).with_name("sottovoce"), "serve",
                           "service.toml")  # fmt: skip

    def gateways(self) -> list[subprocess.Popen[bytes]]:
        """Start a gateway for every 250 cars."""
        names = [f"{agents[0]}-{agents[-1]}" for agents in GATEWAYS]
        command = (sys.executable, HERE / "gateway.py")
        return [self._start(n, *command, n, ".", f"wss://{self.address}") for n in names]

    def open_run(self, hour: int) -> None:
        """Open the run of an hour, as ``sottovoce run start`` does."""
        body = json.dumps({"public": public(hour)}).encode()

        def opened() -> bool:
            try:
                url = f"https://{self.address}/runs"
                urllib.request.urlopen(url, body, timeout=10, context=self._operator).close()
            except (urllib.error.URLError, ConnectionError):  # starting, or at the run before
                return False
            return True

        wait_for(opened, every=0.2)

    def in_the_middle(self) -> bool:
        """Whether the service has a run of which ten rounds are done, and not all."""
        run = summarise(self.folder / "series.db")
        return run.status == "running" and 10 <= run.rounds < ROUNDS

    def drawn(self) -> Array:
        """Return what all cars have drawn, of which each gateway knows a part."""
        return sum(
            (np.load(file) for file in self.folder.glob("drawn-*.npy")), np.zeros((CARS, RUNS))
        )

    def _start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen([*map(str, words)], cwd=self.folder, stderr=log)  # noqa: S603


def wait_for(condition: Callable[[], bool], *, every: float = 0.01) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the day does not go on: look at the logs")
        time.sleep(every)


def played(folder: Path, *, port: int = 8471, runs: int = RUNS, kill: int = KILL) -> Array:
    """Play the day; return what cars have drawn."""
    park = Park(folder, port, runs)
    with ExitStack() as processes:

        def started(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
            processes.enter_context(process)
            processes.callback(process.kill)  # unless it has ended by then
            return process

        service = started(park.service())
        gateways = [started(process) for process in park.gateways()]
        for number, hour in enumerate(range(FIRST, FIRST + runs), 1):
            park.open_run(hour)
            print(f"{hour:2}:00  run {number} of {runs}", flush=True)
            if number == kill:
                wait_for(park.in_the_middle)
                service.kill()  # SIGKILL
                service.wait()
                print("       service killed and started again", flush=True)
                service = started(park.service())
        for process in (service, *gateways):
            process.wait(timeout=PATIENCE_SECONDS)
    return park.drawn()


@dataclass(frozen=True)
class Plan:
    """What all cars drew by one way to plan."""

    name: str
    drawn: Array  # kW, cars x hours

    @property
    def over(self) -> float:
        """The most by which a limit is exceeded, 0 if none is, kW rounded up."""
        most = (self.drawn.sum(axis=0) - LIMIT[DAY]).max() - 1e-6  # what rounding may add up to
        return max(0.0, float(np.ceil(10 * most) / 10))


def without_privacy(runs: int = RUNS) -> Array:
    """Return the same rolling plan without noise."""
    lot, memory = Lot(Cars.drawn()), None
    for hour in range(FIRST, FIRST + runs):
        result = sv.simulate(lot.problem(public(hour)), rounds=ROUNDS, warm_start=memory)
        lot.apply(result.x[0].reshape(CARS, -1))
        memory = result.warm_start(shift=1)
    return lot.drawn


def clairvoyant() -> Array:
    """Return the best plan of the day for all cars, known in advance, without noise."""
    cars = Cars.drawn()
    problem = charging(PRICE[DAY], LIMIT[DAY], cars.need, cars.power(DAY))
    drawn: Array = sv.simulate(problem, rounds=4 * ROUNDS).x[0].reshape(CARS, RUNS)
    return drawn


def draw_day(plans: list[Plan], file: Path, kill: int) -> None:
    """Draw load and limit by hour, and the energy delivered so far."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    load, energy = figure.subplots(2, 1, sharex=True)
    hours = np.append(DAY, DAY[-1] + 1)
    load.stairs(LIMIT[DAY], hours, color="black", linewidth=2.5, label="limit", baseline=None)
    for plan, style in zip(plans, ("-", "--", ":"), strict=True):
        total = plan.drawn.sum(axis=0)
        load.stairs(total, hours, label=plan.name, linestyle=style, linewidth=1.8, baseline=None)
        energy.plot(hours, np.append(0, np.cumsum(total)) / 1000, style)
    load.axvline(FIRST + kill - 1, color="red", linewidth=1, label="service killed")
    load.set_ylabel("power of all cars, kW")
    energy.set_ylabel("energy delivered, MWh")
    energy.set_xlabel("hour of the day")
    energy.set_xticks(hours[::2])
    for axes in (load, energy):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3)
    figure.savefig(file, dpi=120)


def main() -> None:
    """Play the day, print what each way to plan costs, and draw the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, help="a new folder")
    out, began = parser.parse_args().out, time.monotonic()
    plans = [
        Plan("private, planned anew every hour", played(out)),
        Plan("the same without privacy", without_privacy()),
        Plan("all cars known in advance", clairvoyant()),
    ]
    base, need = cost(plans[1].drawn), Cars.drawn().need
    for plan in plans:
        total = cost(plan.drawn)
        print(f"{plan.name:34} {total:9.2f} euro ({total / base - 1:+.2%}), "
              f"{plan.drawn.sum() / need.sum():.2%} of the energy, "
              f"limit exceeded by {plan.over:.1f} kW")  # fmt: skip
    account = Ledger(out / "ledger.db").accounts()[0]
    (day,) = account.periods
    print(f"budget of a day: mu {down(day.budget, 4)}, spent by {RUNS} runs {up(day.spent, 4)}")
    draw_day(plans, out / "rolling.png", KILL)
    print(f"figure: {out / 'rolling.png'}, after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
