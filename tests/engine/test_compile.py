"""The cache of compiled kernels: found again, safe for many writers, never trusted when damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sottovoce.compiler.module import compile_module
from sottovoce.engine import compile as compiling
from sottovoce.engine.compile import cache_folder, load_kernel
from sottovoce.engine.solve import solve
from sottovoce.problem.gallery.chargers import chargers

SOURCE = """
from sottovoce.compiler.module import entry
@entry("float64(float64)")
def advance(x):
    return 2.0 * x + 1.0
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fresh(source: str = SOURCE) -> Any:
    """Load as a new process would, without what this one keeps in memory."""
    compiling._loaded.clear()
    return load_kernel(source)


def compiles(source: str = SOURCE) -> bool:
    """Whether a new process has to compile."""
    made: list[str] = []

    def counted(*given: Any) -> Any:
        made.append("")
        return compile_module(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "compile_module", counted)
        fresh(source)
    return bool(made)


def test_a_kernel_is_compiled_once_and_then_found(cache: Path) -> None:
    assert cache_folder() == cache
    assert compiles()
    assert load_kernel(SOURCE) is load_kernel(SOURCE)
    assert not compiles()
    assert fresh().advance(3.0) == 7.0
    assert len(list(cache.iterdir())) == 1
    assert compiles(SOURCE.replace("1.0", "2.0"))
    assert len(list(cache.iterdir())) == 2


def test_whoever_wants_a_kernel_that_another_process_builds_waits_and_finds_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = fresh()  # as the other process will have left it
    (folder,) = cache.iterdir()
    folder.rename(cache / "aside")
    compiling._loaded.clear()
    monkeypatch.setattr(compiling, "_build", lambda *_: pytest.fail("built twice"))
    with ThreadPoolExecutor(1) as pool:
        with compiling._turn_at(cache / f"{folder.name}.lock"):
            waiting = pool.submit(load_kernel, SOURCE)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            (cache / "aside").rename(folder)
        found = waiting.result(timeout=30)
    assert found.advance(3.0) == built.advance(3.0)
    assert list(cache.iterdir()) == [folder]


def test_steps_of_another_module_are_part_of_the_key(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "steps.py"
    keys = []
    for text in ("def step(x):\n    return x\n", "def step(x):\n    return 2 * x\n"):
        file.write_text(text)
        scope: dict[str, Any] = {}
        exec(compile(text, str(file), "exec"), scope)  # noqa: S102
        keys.append(compiling._key(SOURCE, scope["step"]))
    assert keys[0] != keys[1]


HELPER = "RATE = 0.5\ndef half(x):\n    return RATE * x\n"
STEPS = "import {0}\nfrom {0} import RATE\ndef step(x):\n    return {0}.half(x) + RATE\n"


@pytest.mark.parametrize(
    "changed", [HELPER.replace("0.5", "0.25"), HELPER.replace("RATE * x", "RATE + x")]
)
def test_what_a_step_takes_from_other_modules_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for turn, text in enumerate((HELPER, HELPER, changed)):
        name = f"helper_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(text)
        os.utime(tmp_path / f"{name}.py", (turn, turn))
        sys.modules.pop(name, None)
        (tmp_path / "steps.py").write_text(STEPS.format(name))
        scope: dict[str, Any] = {"__name__": "steps"}
        exec(compile(STEPS.format(name), str(tmp_path / "steps.py"), "exec"), scope)  # noqa: S102
        keys.append(compiling._key(SOURCE, scope["step"]))
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    "kind", ["other entries", "emptied", "flipped", "removed", "no manifest", "not JSON"]
)
def test_a_damaged_cache_is_built_again(cache: Path, kind: str) -> None:
    fresh()
    (folder,) = cache.iterdir()
    code = folder / "kernel.o"
    if kind == "emptied":
        code.write_bytes(b"")
    elif kind == "flipped":
        data = bytearray(code.read_bytes())
        data[len(data) // 2] ^= 0xFF
        code.write_bytes(data)
    elif kind == "removed":
        code.unlink()
    elif kind == "other entries":
        manifest = folder / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"advance"', '"retreat"'))
    elif kind == "no manifest":
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_text("{")
    assert compiles()
    assert fresh().advance(3.0) == 7.0
    assert not compiles()
    assert len(list(cache.iterdir())) == 1


def test_without_a_writable_cache_kernels_still_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    monkeypatch.setenv("SOTTOVOCE_CACHE", str(file / "cache"))
    assert fresh().advance(3.0) == 7.0


@pytest.mark.parametrize("way", ["owner", "group", "others", "kernel's owner", "file's mode"])
def test_a_kernel_cache_that_somebody_else_owns_or_can_write_to_is_not_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    fresh()
    (folder,) = cache.iterdir()
    assert not compiles()
    if way == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    elif way == "group":
        cache.chmod(0o770)
    elif way == "others":
        cache.chmod(0o707)
    elif way == "file's mode":
        (folder / "kernel.o").chmod(0o666)
    else:
        own = compiling._is_own
        monkeypatch.setattr(compiling, "_is_own", lambda path: path != folder and own(path))
    assert compiles()
    if way in ("owner", "group", "others"):
        (folder / "manifest.json").unlink()
        (folder / "kernel.o").unlink()
        assert compiles()  # nothing is read there, and nothing is written
        assert [path.name for path in cache.rglob("*")] == [folder.name, "kernel.py"]


def test_private_objectives_in_a_kernel_cache_are_readable_by_their_owner_alone(
    cache: Path,
) -> None:
    before = os.umask(0)
    try:
        fresh()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (cache, *cache.rglob("*"))}
    (folder,) = cache.iterdir()
    assert modes.pop("cache") == modes.pop(folder.name) == 0o700
    assert modes == dict.fromkeys(("kernel.py", "kernel.o", "manifest.json"), 0o600)


def test_concurrent_writers_leave_one_whole_kernel(cache: Path) -> None:
    script = (
        "import sys\n"
        "from sottovoce.engine.compile import load_kernel\n"
        f"print(load_kernel({SOURCE!r}).advance(3.0))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=os.environ, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert [p.communicate(timeout=120)[0].strip() for p in processes] == ["7.0"] * 3
    assert len(list(cache.iterdir())) == 1
    assert not compiles()


def test_the_cache_lies_in_the_users_cache_folder_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SOTTOVOCE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "sottovoce"


def test_agents_of_one_form_share_a_kernel_whatever_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = solve(chargers(20), rounds=3, progress=False)
    monkeypatch.setattr(compiling, "compile_module", lambda *given: pytest.fail("compiled again"))
    more = solve(chargers(37), rounds=3, progress=False)
    assert more.x.shape[-1] * 20 == first.x.shape[-1] * 37
