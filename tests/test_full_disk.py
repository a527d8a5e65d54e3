"""A disk that is really full: a clear error, nothing lost that was committed, nothing in the way, then on again."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h5store import Reader, Writer, pack
from h5store.errors import JournalError

SIZE = 5 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 5 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def noise(lo: int, hi: int) -> np.ndarray:
    """Samples [lo, hi) of 1 KiB that no codec makes smaller."""
    return np.stack([np.random.default_rng(i).bytes(1024) for i in range(lo, hi)]).view("u1").reshape(-1, 1024)


def fill(folder: Path, leave: int) -> Path:
    """Take all room but some."""
    free = shutil.disk_usage(folder).free
    file = folder / "filler"
    with open(file, "wb") as out:
        out.write(bytes(max(0, free - leave)))
    return file


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def uninterrupted(folder: Path, n: int) -> str:
    with Writer(folder / "whole.h5", chunk="16KiB") as writer:
        writer.append(features=noise(0, n))
    return sha(folder / "whole.h5")


def full(error: OSError) -> bool:
    return error.errno == errno.ENOSPC and bool(error.strerror) and bool(error.filename)


def test_commits_on_a_full_disk(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = uninterrupted(tmp_path, 1500)
    filler = fill(small, leave=600 << 10)
    writer = Writer(small / "a.h5", chunk="16KiB")
    committed = 0
    with pytest.raises(OSError, match="make room and commit again") as caught:
        for at in range(0, 1500, 100):
            writer.append(features=noise(at, at + 100))
            writer.commit()
            committed = at + 100
    assert full(caught.value) and 0 < committed < 1500 and len(writer) == committed
    # Also the same writer goes on: what it took is not lost.
    for _ in range(3):
        with pytest.raises(OSError):
            writer.commit()
    filler.unlink()
    writer.commit()
    assert len(writer) == committed + 100
    writer.append(features=noise(committed + 100, 1500))
    writer.close()
    assert sha(small / "a.h5") == whole


def test_an_append_that_cannot_be_committed_in_time_is_not_lost_and_the_next_takes_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = uninterrupted(tmp_path, 700)
    monkeypatch.setattr("h5store.writer._COMMIT_BYTES", 100 << 10)  # each append is due
    filler = fill(small, leave=350 << 10)
    at = 0
    with pytest.raises(OSError) as caught:
        writer = Writer(small / "a.h5", chunk="16KiB")
        for at in range(0, 700, 100):
            writer.append(features=noise(at, at + 100))
    assert full(caught.value) and len(writer) < at
    filler.unlink()
    for lo in range(at, 700, 100):  # the block whose append raised is given again
        writer.append(features=noise(lo, lo + 100))
    writer.close()
    assert sha(small / "a.h5") == whole


def test_going_on_later_with_resume(small: Path, tmp_path: Path) -> None:
    whole = uninterrupted(tmp_path, 1500)
    filler = fill(small, leave=600 << 10)
    committed = 0
    with pytest.raises(OSError) as caught:
        with Writer(small / "a.h5", chunk="16KiB") as writer:
            for at in range(0, 1500, 100):
                writer.append(features=noise(at, at + 100))
                writer.commit()
                committed = len(writer)
    assert full(caught.value)
    assert sorted(p.name for p in small.iterdir()) == ["a.h5.journal", "filler"]
    filler.unlink()
    with Writer(small / "a.h5", resume=True) as writer:
        assert len(writer) == committed
        writer.append(features=noise(committed, 1500))
    assert sha(small / "a.h5") == whole


def test_a_block_larger_than_the_room(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h5store.writer._PIECE_BYTES", 64 << 10)
    monkeypatch.setattr("h5store.writer._COMMIT_BYTES", 64 << 10)
    filler = fill(small, leave=600 << 10)
    writer = Writer(small / "a.h5", chunk="16KiB")
    writer.append(features=noise(0, 100))
    writer.commit()
    with pytest.raises(OSError) as caught:
        writer.append(features=noise(100, 1500))
    assert full(caught.value)
    filler.unlink()
    with pytest.raises(JournalError, match="interrupted half-way.*resume=True"):
        writer.commit()

    with Writer(small / "a.h5", resume=True) as writer:
        at = len(writer)
        assert 100 <= at < 1500
        writer.append(features=noise(at, 1500))
    with Reader(small / "a.h5") as reader:
        assert np.array_equal(reader["features"][:], noise(0, 1500))


def test_sealing_is_not_begun_without_room(small: Path, tmp_path: Path) -> None:
    whole = uninterrupted(tmp_path, 1500)
    filler = fill(small, leave=2500 << 10)
    with pytest.raises(OSError, match=r"No space left on device to seal: [\d,]+ bytes are needed, [\d,]+ are free; all "
                       "1,500 samples are safe in .*a.h5.journal: make room and open again with resume=True") as caught:
        pack(small / "a.h5", features=noise(0, 1500), chunk="16KiB", progress=False)
    assert full(caught.value)
    assert sorted(p.name for p in small.iterdir()) == ["a.h5.journal", "filler"]
    filler.unlink()
    pack(small / "a.h5", features=noise(0, 1500), chunk="16KiB", progress=False, resume=True)
    assert sha(small / "a.h5") == whole and [p.name for p in small.iterdir()] == ["a.h5"]


@pytest.mark.parametrize("leave", [0, 1, 8, 40, 200, 1000])
def test_room_that_vanishes_while_sealing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: int
) -> None:
    whole = uninterrupted(tmp_path, 1500)
    writer = Writer(small / "a.h5", chunk="16KiB")
    writer.append(features=noise(0, 1500))
    writer.commit()
    filler = fill(small, leave=leave << 10)
    with monkeypatch.context() as patch:
        # Somebody else took it after we had looked.
        plenty: Callable[[Any], Any] = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)  # noqa: E731
        patch.setattr("shutil.disk_usage", plenty)
        with pytest.raises(OSError, match="while sealing; all 1,500 samples are safe in .*resume=True") as caught:
            writer.close()
    assert full(caught.value)
    assert sorted(p.name for p in small.iterdir()) == ["a.h5.journal", "filler"]
    filler.unlink()
    with Writer(small / "a.h5", resume=True) as writer:
        assert len(writer) == 1500
    assert sha(small / "a.h5") == whole


def test_an_addition_without_room_leaves_the_old_store(small: Path) -> None:
    pack(small / "a.h5", features=noise(0, 1000), chunk="16KiB", progress=False)
    before = sha(small / "a.h5")
    filler = fill(small, leave=1200 << 10)
    with pytest.raises(OSError, match="to seal") as caught:
        pack(small / "a.h5", features=noise(1000, 1100), progress=False, append=True)
    assert full(caught.value) and sha(small / "a.h5") == before
    filler.unlink()
    pack(small / "a.h5", features=noise(1000, 1100), progress=False, append=True, resume=True)
    with Reader(small / "a.h5") as reader:
        assert np.array_equal(reader["features"][:], noise(0, 1100))


def test_no_room_for_a_single_byte(small: Path) -> None:
    filler = fill(small, leave=0)
    for _ in range(2):  # the failure keeps no lock
        with pytest.raises(OSError) as caught:
            pack(small / "a.h5", features=noise(0, 10), progress=False)
        assert caught.value.errno == errno.ENOSPC
    filler.unlink()
    pack(small / "a.h5", features=noise(0, 10), progress=False)
    assert os.listdir(small) == ["a.h5"]


def test_a_folder_that_cannot_be_written(small: Path) -> None:
    pack(small / "a.h5", features=noise(0, 10), progress=False)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    for options in ({}, {"overwrite": True}, {"append": True}, {"resume": True}):
        with pytest.raises(OSError) as caught:
            Writer(small / "b.h5", **options)
        assert caught.value.errno == errno.EROFS and "b.h5" in str(caught.value)
    with Reader(small / "a.h5") as reader:  # reading needs no permission to write
        assert len(reader) == 10 and np.array_equal(reader["features"][:], noise(0, 10))
