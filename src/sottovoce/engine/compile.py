"""Compiled kernels, kept on disk under a name made from all that they depend on.

A kernel's folder holds its text, its machine code and a manifest: the entries with their
signatures, and hashes. Folders are built aside and renamed into place, so other processes see all
of one or nothing; a folder that does not match its manifest is never loaded but built again.
Whoever can write there decides what the engine runs, and a text holds private objectives: folders
have mode 0700 and files 0600, and where a folder belongs to another user, or group or others can
write to it, kernels are compiled in memory and nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from sottovoce import algorithm, compiler
from sottovoce.compiler.machine import load
from sottovoce.compiler.module import compile_module, signatures
from sottovoce.engine import intrinsics, vectors
from sottovoce.engine.reach import reach

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: two processes may build the same kernel, which costs time alone
    fcntl = None

_TEXT, _CODE, _MANIFEST = "kernel.py", "kernel.o", "manifest.json"
_loaded: dict[str, SimpleNamespace] = {}
_lock = Lock()


def cache_folder() -> Path:
    """Return where kernels are kept: ``$SOTTOVOCE_CACHE``, or the user's cache folder."""
    given = os.environ.get("SOTTOVOCE_CACHE")
    if given:
        return Path(given)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "sottovoce"


def load_kernel(source: str, *steps: Any) -> Any:
    """Return the entries of the module written in ``source``, from memory, from disk or anew.

    Args:
        source: the module's text, which marks its entries.
        steps: functions of other modules that the text compiles in, and named tuples.
    """
    key = _key(source, *steps)
    with _lock:
        if key not in _loaded:
            root = _own_folder()
            _loaded[key] = (
                _loaded_from(*compile_module(source, f"kernel {key}"))
                if root is None
                else _from_disk(root, key) or _built_once(root, source, key)
            )
        return _loaded[key]


def _key(source: str, *steps: Any) -> str:
    files, values = reach(steps)
    known = _known(frozenset(_state_of(file) for file in files))
    return hashlib.blake2b(f"{source}\0{values}\0{known}".encode(), digest_size=16).hexdigest()


def _state_of(file: Path) -> tuple[str, int, int]:
    """A file that somebody may be writing: its name, and what changes when it does."""
    found = file.stat()
    return str(file), found.st_mtime_ns, found.st_size


@lru_cache
def _known(given: frozenset[tuple[str, int, int]]) -> str:
    """A hash of all else that a kernel may compile in: a change there makes another kernel."""
    own, rooms = (intrinsics, vectors), (algorithm, compiler)
    files = {Path(str(module.__file__)) for module in own}
    files.add(Path(__file__).parent / "normals.py")
    files |= {file for room in rooms for file in Path(str(room.__file__)).parent.glob("*.py")}
    files |= {Path(name) for name, _, _ in given}
    parts = [file.read_text("utf-8") for file in sorted(files)]
    parts += [version("sottovoce"), llvmlite.__version__, platform.python_version(), sys.platform]
    parts += [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _own_folder() -> Path | None:
    """Return the cache folder, made if missing; None where nothing in it can be trusted."""
    folder = cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder if _is_own(folder) else None
    except OSError:
        return None


def _is_own(path: Path) -> bool:
    found = path.stat()
    return sys.platform == "win32" or (
        found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _from_disk(root: Path, key: str) -> SimpleNamespace | None:
    folder = root / key
    try:
        if not all(map(_is_own, (folder, *folder.iterdir()))):
            return None
        manifest = json.loads((folder / _MANIFEST).read_text("utf-8"))
        if manifest["files"] != _hashes(folder):
            return None
        return _loaded_from((folder / _CODE).read_bytes(), manifest["entries"])
    except Exception:
        # Whatever is wrong with a cache, the answer is the same: build the kernel again.
        return None


def _built_once(root: Path, source: str, key: str) -> SimpleNamespace:
    """Build a kernel while others that want the same one wait, and find it built.

    Gateways and workers that start together would all spend the same seconds otherwise.
    """
    with _turn_at(root / f"{key}.lock"):
        return _from_disk(root, key) or _build(root, source, key)


@contextmanager
def _turn_at(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process at the latest; where none can be had, go on."""
    handle = None
    with suppress(OSError):
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle is not None:
            # Whoever waits has this file open; whoever comes later finds the kernel.
            with suppress(OSError):
                path.unlink()
            os.close(handle)


def _build(root: Path, source: str, key: str) -> SimpleNamespace:
    code, entries = compile_module(source, f"kernel {key}")
    with suppress(OSError):  # where nothing can be kept, kernels are compiled every time
        aside = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=root))
        try:
            _write(aside / _TEXT, source.encode())
            _write(aside / _CODE, code)
            manifest = {"entries": entries, "files": _hashes(aside)}
            _write(aside / _MANIFEST, json.dumps(manifest).encode())
            _publish(aside, root / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return _loaded_from(code, entries)


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)


def _publish(aside: Path, folder: Path) -> None:
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix="old.", dir=folder.parent))
        with suppress(FileNotFoundError):  # another process may have moved it first
            folder.rename(old / "kernel")
        shutil.rmtree(old, ignore_errors=True)
    try:
        aside.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        # Another process was first, with the same content.


def _loaded_from(code: bytes, entries: dict[str, str]) -> SimpleNamespace:
    return SimpleNamespace(**load(code, signatures(entries)))


def _hashes(folder: Path) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): hashlib.blake2b(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != _MANIFEST
    }
