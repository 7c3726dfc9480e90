"""Result files: complete, versioned, refused when damaged; and the figure."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_result import made_result

from sottovoce.errors import InputError
from sottovoce.simulation.result import FORMAT, Result, write_npz


@pytest.mark.parametrize("known", [True, False])
def test_a_saved_result_loads_with_every_field_the_same(known: bool, tmp_path: Path) -> None:
    before = made_result(known=known, kept=known)
    before.save(tmp_path / "r.npz")
    after = Result.load(tmp_path / "r.npz")
    for name in Result.__dataclass_fields__:
        one, other = getattr(before, name), getattr(after, name)
        if name in ("trace", "assessed") or (name == "transcript" and known):
            for part in type(one).__dataclass_fields__:
                np.testing.assert_array_equal(getattr(one, part), getattr(other, part))
        elif isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other
            assert type(one) is type(other)


def test_errors_are_distances_to_the_saddle_point_or_unknown() -> None:
    known = made_result()
    assert known.error_x is not None
    np.testing.assert_allclose(known.error_x, np.sqrt((known.x**2).sum(axis=1)))
    assert made_result(known=False).error_price is None


def test_arrays_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        made_result().x[0, 0] = 1.0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    file = tmp_path / "r.npz"
    made_result().save(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=r"r\.npz"):
        Result.load(file)


def test_a_file_with_a_flipped_byte_is_refused_or_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "r.npz"
    before = made_result()
    before.save(file)
    whole = file.read_bytes()
    at = whole.index(before.x.tobytes()) + 5
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(InputError, match="damaged"):
        Result.load(file)


def rewritten(file: Path, **change: Any) -> None:
    with np.load(file) as data:
        arrays = {name: data[name] for name in data.files}
    meta = json.loads(str(arrays.pop("meta")))
    np.savez(file, meta=np.array(json.dumps(meta | change)), **arrays)


def test_a_newer_version_is_refused_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "r.npz"
    made_result().save(file)
    rewritten(file, format=FORMAT + 1)
    with pytest.raises(InputError, match="newer sottovoce; upgrade"):
        Result.load(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must exist"):
        Result.load(tmp_path / "none.npz")
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(InputError, match="not a result file"):
        Result.load(text)
    np.savez(tmp_path / "other.npz", a=np.zeros(2))
    with pytest.raises(InputError, match="damaged"):
        Result.load(tmp_path / "other.npz")
    write_npz(tmp_path / "c.npz", {"kind": "checkpoint"}, {})
    with pytest.raises(InputError, match="must be a result file, got a checkpoint file"):
        Result.load(tmp_path / "c.npz")
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    with pytest.raises(InputError, match="damaged"):
        Result.load(tmp_path / "empty.npz")


def test_saving_fails_whole_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.npz"
    made_result().save(file)
    old = file.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(InputError, match="No space left"):
        made_result().save(file)
    assert file.read_bytes() == old
    assert list(tmp_path.iterdir()) == [file]


def test_saving_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        made_result().save(tmp_path / "no" / "r.npz")


@pytest.mark.parametrize("known", [True, False])
def test_the_figure_is_an_image_also_with_failed_runs(known: bool, tmp_path: Path) -> None:
    drawn = made_result(known=known)
    drawn.plot(tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="cannot draw"):
        drawn.plot(tmp_path / "c.unknown")
