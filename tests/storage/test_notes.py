"""Notes: added to a sealed store without changing a byte that was there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import h5store
from h5store.errors import CorruptChunkError, FormatError, StaleStoreError, StoreLockedError
from h5store.storage import notes
from h5store.storage.lock import WriterLock


Open = Callable[..., h5store.Reader]


@pytest.fixture
def opened() -> Iterator[Open]:
    """`h5store.Reader`, closed when the test ends."""
    made: list[h5store.Reader] = []

    def open_(*args: Any, **options: Any) -> h5store.Reader:
        made.append(h5store.Reader(*args, **options))
        return made[-1]

    yield open_
    for reader in made:
        reader.close()


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "x.h5")
    h5store.pack(path, features=np.arange(600.0).reshape(200, 3), labels=np.arange(200), progress=False)
    return path


def test_what_is_written_is_read(store: str) -> None:
    assert notes.keys(store) == []
    assert notes.read(store, "a") is None
    notes.write(store, {"a": b"one", "b/c": b"", "..": b"dots", "ü 1": bytes(range(256)) * 50})
    assert notes.keys(store) == sorted(["a", "b/c", "..", "ü 1"])
    assert notes.read(store, "a") == b"one"
    assert notes.read(store, "b/c") == b""
    assert notes.read(store, "..") == b"dots"
    assert notes.read(store, "ü 1") == bytes(range(256)) * 50
    notes.write(store, {"a": b"two", "b/c": None, "never": None})
    assert notes.keys(store) == sorted(["a", "..", "ü 1"])
    assert notes.read(store, "a") == b"two"


def test_the_store_is_the_same_with_and_without(store: str, opened: Open) -> None:
    reader = opened(store, cache=0)
    notes.write(store, {"a": b"one"})
    after = opened(store, cache=0)
    assert after._store.fingerprint == reader._store.fingerprint
    assert h5store.verify(store).ok
    assert np.array_equal(after["features"][:], np.arange(600.0).reshape(200, 3))
    assert np.array_equal(reader["labels"][:], np.arange(200))  # through the handle that it had
    reader.close()
    after.close()


def test_a_note_is_written_under_the_lock_and_into_a_copy(store: str) -> None:
    lock = WriterLock(store)
    before = os.stat(store).st_ino
    with pytest.raises(StoreLockedError):
        notes.write(store, {"a": b"one"})
    lock.release()
    assert os.stat(store).st_ino == before
    notes.write(store, {"a": b"one"})
    assert os.stat(store).st_ino != before
    assert os.listdir(os.path.dirname(store)) == ["x.h5"]


def test_a_failed_write_leaves_the_old_store(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notes.write(store, {"a": b"one"})
    before = Path(store).read_bytes()

    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(notes.rest, "refresh", full)
    with pytest.raises(OSError, match="No space"):
        notes.write(store, {"a": b"two"})
    assert Path(store).read_bytes() == before
    assert os.listdir(os.path.dirname(store)) == ["x.h5"]


def test_another_store_at_the_path_is_told(store: str) -> None:
    with pytest.raises(StaleStoreError, match="another store"):
        notes.write(store, {"a": b"one"}, seal="0" * 32)


def test_read_only_stores_keep_their_mode(store: str) -> None:
    os.chmod(store, 0o444)
    notes.write(store, {"a": b"one"})
    assert os.stat(store).st_mode & 0o777 == 0o444
    assert notes.read(store, "a") == b"one"


def test_a_damaged_note_is_told(store: str) -> None:
    notes.write(store, {"a": b"one two three four"})
    raw = Path(store).read_bytes()
    assert raw.count(b"one two three four") == 1
    Path(store).write_bytes(raw.replace(b"one two three four", b"one two thrEe four"))
    with pytest.raises(CorruptChunkError, match="'a'.*checksum"):
        notes.read(store, "a")
    report = h5store.verify(store)
    assert not report.ok and "'a'" in report.problems[0]


def test_links_and_other_shapes_of_notes_are_refused(store: str) -> None:
    def soft(file: h5py.File) -> None:
        file["_h5store/notes"] = h5py.SoftLink("/_h5store/schema")

    def chunked(file: h5py.File) -> None:
        file.create_dataset("_h5store/notes", data=np.zeros(100, "u1"), chunks=(10,), compression="gzip")

    def short(file: h5py.File) -> None:
        file.create_dataset("_h5store/notes", data=np.full(5, 255, "u1"))

    for change in (soft, chunked, short):
        with h5py.File(store, "r+", libver=("v110", "v110")) as file:
            if "notes" in file["_h5store"]:
                del file["_h5store/notes"]
            change(file)
        with pytest.raises(FormatError, match="notes are damaged"):
            notes.keys(store)


def test_there_may_be_many_notes(store: str) -> None:
    wanted = {f"key {i}/é.": bytes([i]) * i for i in range(40)}
    for key, value in wanted.items():
        notes.write(store, {key: value})
    assert notes.keys(store) == sorted(wanted)
    assert {key: notes.read(store, key) for key in wanted} == wanted
    assert h5store.verify(store).ok


def test_append_leaves_notes_out_and_says_so(store: str, opened: Open) -> None:
    opened(store).split({"train": 0.5, "val": 0.5}, save=True)
    with pytest.warns(UserWarning, match="200 samples.*train.*val"):
        with h5store.Writer(store, append=True) as writer:
            writer.append(features=np.zeros((3, 3)), labels=np.arange(3))
    assert notes.keys(store) == []
    assert len(opened(store)) == 203


def test_opening_for_append_and_adding_nothing_keeps_notes(store: str, opened: Open) -> None:
    opened(store).split({"train": 0.5, "val": 0.5}, save=True)
    with h5store.Writer(store, append=True):
        pass
    assert len(notes.keys(store)) == 1
