"""What is not loaded before it is needed: modules are pinned, as seconds vary by machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "aiohttp", "asyncio", "clarabel", "cryptography", "matplotlib", "msgspec", "numpy", "opendp",
    "scipy", "sympy",
}  # fmt: skip

RARE = {
    "matplotlib", "opendp", "scipy.linalg", "scipy.optimize", "scipy.sparse.csgraph", "scipy.stats",
}  # fmt: skip
"""What a cloud of many agents starts without."""


def loaded(code: str, watched: set[str] = HEAVY) -> set[str]:
    """The modules among those watched that a process has after running ``code``."""
    watch = f"{code}\nimport sys\nprint('loaded', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", watch], capture_output=True, text=True, timeout=60, check=True
    )
    return watched & set(done.stdout.rpartition("loaded")[2].split())


def helping(*words: str) -> str:
    return (
        "from sottovoce.cli import application\n"
        f"application()({[*words, '--help']!r}, standalone_mode=False)"
    )


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import sottovoce; dir(sottovoce)", set()),
        ("import sottovoce; sottovoce.SottovoceError", set()),
        ("import sottovoce; sottovoce.agents", {"numpy"}),
        (helping(), set()),
        (helping("simulate"), set()),
        (helping("cloud"), set()),
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str, heavy: set[str]) -> None:
    assert loaded(code) == heavy


def test_what_a_cloud_is_made_of_loads_nothing_that_is_rarely_used() -> None:
    names = "sv.Problem.load, sv.certify, sv.plan, sv.Cloud"
    assert loaded(f"import sottovoce as sv; {names}", RARE) == set()


def test_an_agent_takes_part_without_scipy_and_cryptography(keys: Path) -> None:
    file = Path(__file__).parents[2] / "examples" / "paper" / "agents" / "6.toml"  # in three sums
    code = (
        "from sottovoce.kernels.fleet_kernel import FleetKernel\n"
        "from sottovoce.network.agent import Agent\n"
        "from sottovoce.network.agent_group import AgentGroup\n"
        "from sottovoce.network.identity.tls import require_current\n"
        "from sottovoce.problem.sums import agents_of\n"
        f"group = AgentGroup.of_file({str(file)!r})\n"
        "fleet = group.groups[0].fleet\n"
        "FleetKernel(fleet, fleet.group.lower, fleet.group.upper)\n"
        "agents_of(group.cloud.sums, group.cloud.groups)  # for how certain its answer is\n"
        "list(fleet.parts())\n"
        f"require_current({str(keys / 'agents' / '3' / 'cert.pem')!r})  # while no cloud is there\n"
    )
    assert loaded(code, {"clarabel", "cryptography", "matplotlib", "opendp", "scipy"}) == set()


def test_options_are_read_without_pydantic() -> None:
    words = ["sottovoce", "agent", "3.toml", "--keys", "k", "--cloud", "wss://h:1"]
    code = f"import sys\nsys.argv = {words}\nfrom sottovoce.cli import main\n"
    refused = "try:\n    main()\nexcept SystemExit as ended:\n    assert ended.code == 2"
    assert loaded(code + refused, {"pydantic", "numpy"}) == {"numpy"}
