"""``sottovoce helper``: the half of a split cloud that knows the masks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli.cloud import address, run_rounds
from sottovoce.cli.console import errors
from sottovoce.cli.options import Delta, EachRow, Epsilon, Feasible, HideOption, Radius
from sottovoce.network.observe import logs
from sottovoce.progress import watched

if TYPE_CHECKING:
    from sottovoce.privacy.noise_plan import NoisePlan


def helper(
    folder: Annotated[Path, typer.Argument(help="folder with problem.toml; no agents/ needed")],
    keys: Annotated[Path, typer.Option(help="helper/ from sottovoce identity init --helper")],
    store: Annotated[Path, typer.Option(help="file of its answers; go on from it if it exists")],
    listen: Annotated[str, typer.Option(help="address:port")] = "127.0.0.1:8444",
    rounds: Annotated[int | None, typer.Option(help="rounds, as the cloud's")] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    radius: Radius = None,
    hide: HideOption = None,
    feasible: Feasible = None,
    each_row: EachRow = False,
    ledger: Annotated[
        Path | None, typer.Option(help="the helper's own accounts: no run that they do not cover")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error")] = "info",
) -> None:
    """Run the helper of a split cloud: it adds noise and takes masks off, and sees no contribution.

    It must be run by somebody who does not collude with the cloud's operator, with the same
    problem.toml and the same privacy options. Killed at any moment, the same command continues.

    Example: sottovoce helper examples/paper --keys helper-keys --store helper.db
    """
    logs.configure(log_level)
    with watched(None) as tell:
        tell(f"reading {folder}")
        from sottovoce.certificate.certificate import certify
        from sottovoce.cli.request import make_plan
        from sottovoce.network import loop
        from sottovoce.privacy.ledger import Ledger
        from sottovoce.problem.files.load import read_public

        problem = read_public(folder)
        plan = make_plan(
            problem,
            certify(problem.cloud, progress=tell),
            epsilon=epsilon,
            delta=delta,
            radius=radius,
            hide=hide,
            feasible=feasible,
            each_row=each_row,
            rounds=run_rounds(problem, rounds),
            split=True,
            progress=tell,
        )
    accounts = None if ledger is None else Ledger(ledger)
    where = address(listen)
    loop.run(_serve(plan, keys=keys, store=store, listen=where, ledger=accounts))
    errors.print("done: the cloud has all answers")


async def _serve(plan: NoisePlan, **settings: Any) -> None:
    from sottovoce.network.helper import Helper

    await Helper(plan, **settings).run()
