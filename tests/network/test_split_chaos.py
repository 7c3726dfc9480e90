"""Kill any party of a split cloud; afterwards stores and all that was said must tell one story.

The four nevers: never two different releases or answers for one round, never the same noise for two
rounds, never a release or answer that is not in its store, never two contributions under one mask.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from network_harness import Site, free_port, split_plan
from scipy import stats
from test_chaos import check_frames, lines, rounds_done, start, witness_agents

from sottovoce.network.journal import Journal
from sottovoce.network.masks import HelperKeys
from sottovoce.network.protocol.codec import (
    MASK_HEAD,
    Integers,
    decode_from_agent,
    decode_from_helper,
    encode,
    mask_of,
    unpack_whole,
)
from sottovoce.network.protocol.messages import Answer, Masked
from sottovoce.network.setup import parties_of
from sottovoce.network.store import transcript
from sottovoce.privacy.sampler import STEPS
from sottovoce.problem.problem import Problem

FALSE_ALARM = 1e-7
"""Of each of the four statistical checks of a run's noise: of all together below 1e-6."""


def check_the_four_nevers(problem: Problem, keys: Path, folder: Path, rounds: int) -> None:
    answers = check_stores(problem, keys, folder, rounds)
    for frame in lines(folder / "answers"):
        message = decode_from_helper(frame)
        assert isinstance(message, Answer)
        assert answers[message.round] == message.values
    with Journal.open(folder / "run.db") as journal:
        check_frames(folder, list(journal.rounds()), rounds)
    check_masks(folder)


def check_masks(folder: Path) -> None:
    """Never two contributions under one mask."""
    under: dict[tuple[str, bytes, int], bytes] = {}
    for path in folder.glob("*.said"):
        for frame in lines(path):
            said = decode_from_agent(frame)
            assert isinstance(said, Masked)
            name = path.stem, said.session, said.round
            assert under.setdefault(name, said.values) == said.values, "a mask was used twice"
    assert under


def check_stores(problem: Problem, keys: Path, folder: Path, rounds: int) -> dict[int, bytes]:
    """Take both stores apart with everybody's keys: sums, and the noise of either half."""
    plan = split_plan(problem)
    kept = transcript(folder / "run.db")
    assert kept.said is not None
    assert kept.config is not None
    assert len(kept.said) == rounds
    helper = Journal(folder / "helper.db", "helper", keep=True)
    bodies = [row.release for row in helper.rounds()]
    helper.close()
    assert len(bodies) - rounds in (0, 1)  # the helper answers before the cloud commits
    known, parties = HelperKeys.of_folder(keys / "helper"), parties_of(plan)
    noise: list[list[Integers]] = [[], []]
    answers = dict(enumerate(bodies, start=1))
    for k, (parts, release) in enumerate(zip(kept.said, kept.multiples, strict=True), start=1):
        total, masks = (np.zeros(plan.sigma.size, dtype=np.int64) for _ in range(2))
        for agents, data in parts:
            mask, sums = mask_of(data), parties(agents).sums
            secret = known.secret(mask.key)
            stream = secret.stream(kept.config.hash, mask.session, agents, sums.size)
            own = stream.rounds(mask.round, 1)[0]
            said = unpack_whole(data[MASK_HEAD:]) - own
            assert np.all(np.abs(said) < 2**45)  # a contribution, once its mask is off
            total[sums] += said
            masks[sums] += own
        of_helper = unpack_whole(answers[k]) - masks
        noise[0].append(of_helper)
        noise[1].append(release - total + of_helper)
    check_noise(np.array(noise))
    return answers


def check_noise(noise: Integers) -> None:
    """Never the same noise, whole numbers of shape (2 halves, rounds, sums), and of its sigma.

    Two draws of sigma = 2^26 steps are alike with a chance of 2^-27.8, so of some thousand rounds a
    few may be, but no more than chance allows. All four of a round are alike with 2^-111: of a
    million rounds no two, but for a chance of 1e-21.
    """
    vectors = noise.reshape(-1, noise.shape[-1])
    assert len(np.unique(vectors, axis=0)) == len(vectors), "a round's noise was used twice"
    draws = noise.size
    alike = draws * (draws - 1) / 2 / (2 * np.sqrt(np.pi) * STEPS)
    repeated = draws - np.unique(noise).size
    assert repeated <= stats.poisson.isf(FALSE_ALARM, alike), "draws were used twice"
    for half in noise:
        low, high = stats.chi2.interval(1 - FALSE_ALARM, half.size)
        assert low < np.square(half / STEPS).sum() < high


def test_halves_killed_at_any_instant_and_agents_that_lose_their_states_continue_one_run(
    split_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, port, second = 60, free_port(), free_port()
    witness_agents(split_site.folder, monkeypatch)
    words = ("cloud", port, split_site.keys, split_site.folder, rounds, "--helper", second)

    def begin(i: int) -> asyncio.Task[object]:
        return asyncio.create_task(split_site.member(port, i).run())

    async def reached(k: int) -> None:
        while rounds_done(split_site.store) < k:
            await asyncio.sleep(0.005)

    async def again(i: int, state: Path | None) -> asyncio.Task[object]:
        """Agent i is ended, and begins with an old state or with none."""
        tasks[i].cancel()
        await asyncio.wait([tasks[i]])
        own = split_site.folder / f"{i}.state"
        own.unlink()
        if state is not None:
            shutil.copy(state, own)
        return begin(i)

    async def main() -> None:
        async with asyncio.timeout(240):
            for i in range(1, 8):
                tasks[i] = begin(i)
            await reached(15)
            shutil.copy(split_site.folder / "2.state", split_site.folder / "old")
            await reached(20)
            halves[0].kill()
            halves[0].wait()
            tasks[1] = await again(1, None)  # while the cloud is away: it may have asked already
            halves[0] = start(*words)
            await reached(30)
            halves[1].kill()
            halves[1].wait()
            tasks[2] = await again(2, split_site.folder / "old")
            halves[1] = start("helper", second, split_site.keys, split_site.folder)
            await asyncio.gather(*tasks.values())
            assert await asyncio.to_thread(halves[0].wait) == 0

    tasks: dict[int, asyncio.Task[object]] = {}
    halves = [start(*words), start("helper", second, split_site.keys, split_site.folder)]
    try:
        asyncio.run(main())
    finally:
        for process in halves:
            process.kill()
            process.wait()
    check_the_four_nevers(split_site.problem, split_site.keys, split_site.folder, rounds)


async def soak(problem: Problem, keys: Path, folder: Path, *, kills: int) -> int:
    """Kill so many processes of every kind, let the run go on, and return how far it came."""
    rng = random.Random(23)  # noqa: S311
    rounds = 1_000_000  # more than there is time for
    port, second = free_port(), free_port()
    begin: dict[int, Callable[[], subprocess.Popen[bytes]]] = {
        -1: lambda: start("helper", second, keys, folder),
        0: lambda: start("cloud", port, keys, folder, rounds, "--helper", second),
    }
    for i in range(1, problem.agents + 1):
        begin[i] = lambda i=i: start("agent", port, keys, folder, i)  # type: ignore[misc]
    crew = {who: begun() for who, begun in begin.items()}
    began = time.monotonic()
    try:
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.5, 6.0))
            victim = rng.choice([-1, -1, 0, 0, *range(1, problem.agents + 1)])
            crew[victim].kill()
            crew[victim].wait()
            if victim > 0 and rng.random() < 0.2:
                (folder / f"{victim}.state").unlink(missing_ok=True)  # its disk is gone, too
            crew[victim] = begin[victim]()
        settled = rounds_done(folder / "run.db") + 100
        while rounds_done(folder / "run.db") < settled:
            assert all(process.poll() is None for process in crew.values()), "somebody gave up"
            assert time.monotonic() - began < 1_800, "the run does not go on"
            await asyncio.sleep(0.2)
    finally:
        for process in crew.values():
            process.kill()
            process.wait()
    return rounds_done(folder / "run.db")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills_of_halves_and_agents_leave_one_story(split_site: Site) -> None:
    rounds = asyncio.run(soak(split_site.problem, split_site.keys, split_site.folder, kills=60))
    assert rounds > 100
    check_the_four_nevers(split_site.problem, split_site.keys, split_site.folder, rounds)


@pytest.mark.parametrize("rounds", [60, 3_000, 20_000])
def test_the_check_of_the_noise_notices_what_is_used_twice(rounds: int) -> None:
    """Repeated draws: numbers of 27 bits alone are alike by chance in nearly every long run."""
    drawn = np.random.default_rng(rounds).normal(0.0, STEPS, (2, rounds, 4))
    noise = np.rint(drawn).astype(np.int64)
    check_noise(noise)
    again = noise.copy()
    again[0, 40] = again[1, 7]  # one round, by the other half
    with pytest.raises(AssertionError, match="round's noise was used twice"):
        check_noise(again)
    again = noise.copy()
    again[1, :, 2] = again[1, ::-1, 0]  # one sum's, for another sum in another round
    with pytest.raises(AssertionError, match="draws were used twice"):
        check_noise(again)
    with pytest.raises(AssertionError):
        check_noise(2 * noise)


def test_the_check_itself_notices_a_mask_under_two_contributions(tmp_path: Path) -> None:
    one = encode(Masked(round=3, session=bytes(16), values=bytes(8)))
    two = encode(Masked(round=3, session=bytes(16), values=bytes(7) + b"1"))
    (tmp_path / "1.said").write_text(f"{one.hex()}\n{one.hex()}\n")
    check_masks(tmp_path)
    (tmp_path / "1.said").write_text(f"{one.hex()}\n{two.hex()}\n")
    with pytest.raises(AssertionError, match="used twice"):
        check_masks(tmp_path)
