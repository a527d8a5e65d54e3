"""A store that is watched while it is written: what is committed, nothing else, and nothing disturbed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store.errors import FormatError, OptionError, StaleStoreError
from h5store.storage import journal


def block(start: int, stop: int) -> dict[str, dict[str, Any]]:
    ids = np.arange(start, stop)
    return {"features": {"x": ids[:, None] * np.linspace(1, 2, 300)},
            "labels": {"kind": np.array(["yak", "cat", "dog"])[ids // 5 % 3]},
            "meta": {"id": ids, "series": [np.arange(i * 7 % 30) * 1.5 + i for i in range(start, stop)]}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "grow.h5"


def assert_holds(reader: h5store.Reader, count: int) -> None:
    assert len(reader) == count
    for fields in block(0, count).values():
        for name, values in fields.items():
            for found, value in zip(reader[name][:], values, strict=True):
                np.testing.assert_array_equal(found, value)
    mixed = np.random.default_rng(count).integers(0, count, 40)
    taken = reader.take(mixed)
    np.testing.assert_array_equal(taken["id"], mixed)
    for i, series in zip(mixed, taken["series"], strict=True):
        np.testing.assert_array_equal(series, np.arange(i * 7 % 30) * 1.5 + i)


@pytest.mark.parametrize("before", [0, 23])
def test_committed_samples_are_seen_as_they_come(path: Path, before: int) -> None:
    if before:
        with h5store.Writer(path, chunk=8) as writer:
            writer.append(**block(0, before))
    with h5store.Writer(path, chunk=8, append=True) as writer:
        writer.append(**block(before, before + 3))
        writer.commit()
        with h5store.Reader(path, growing=True) as reader:
            assert_holds(reader, before + 3)
            for more in (4, 30, 1):
                start = len(writer)
                writer.append(**block(start, start + more))
                assert reader.refresh() == start
                writer.commit()
                assert len(reader) == start
                assert reader.refresh() == start + more
                assert_holds(reader, start + more)
            left = len(writer)
            writer.close()
            assert_holds(reader, left)  # the journal is gone, what was opened is still there
            assert reader.refresh() == left
            assert_holds(reader, left)


def test_nothing_is_locked_or_changed(path: Path) -> None:
    with h5store.Writer(path, chunk=8) as writer:
        writer.append(**block(0, 20))
        writer.commit()
        before = {name: (path.parent / name).read_bytes() for name in os.listdir(path.parent)}
        with h5store.Reader(path, growing=True) as reader:
            reader.take(range(20))
            assert {name: (path.parent / name).read_bytes() for name in os.listdir(path.parent)} == before
        writer.append(**block(20, 30))
    with h5store.Reader(path) as reader:
        assert_holds(reader, 30)


def test_a_torn_last_frame_is_not_there_yet(path: Path) -> None:
    writer = h5store.Writer(path, chunk=8)
    writer.append(**block(0, 20))
    writer.commit()
    size = os.path.getsize(f"{path}.journal")
    writer.append(**block(20, 40))
    writer.commit()
    whole = Path(f"{path}.journal").read_bytes()
    del writer
    for cut in (size, size + 1, size + 30, len(whole) - 1):
        Path(f"{path}.journal").write_bytes(whole[:cut])
        with h5store.Reader(path, growing=True) as reader:
            assert_holds(reader, 20)
        assert os.path.getsize(f"{path}.journal") == cut


def test_before_the_first_commit_there_is_nothing_to_read(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        h5store.Reader(path, growing=True)
    Path(f"{path}.journal").write_bytes(journal.MAGIC)
    with pytest.raises(FormatError, match="not committed"):
        h5store.Reader(path, growing=True)


def test_a_sealed_store_is_read_as_any_other(path: Path) -> None:
    with h5store.Writer(path) as writer:
        writer.append(**block(0, 20))
    with h5store.Reader(path, growing=True) as reader:
        assert_holds(reader, 20)
        assert reader.refresh() == 20


def test_overwriting_is_seen_from_its_first_commit_on(path: Path) -> None:
    with h5store.Writer(path) as writer:
        writer.append(**block(0, 50))
    with h5store.Writer(path, overwrite=True) as writer, h5store.Reader(path, growing=True) as reader:
        assert len(reader) == 50
        writer.append(**block(0, 7))
        writer.commit()
        assert len(reader) == 50
        assert reader.refresh() == 7
        assert_holds(reader, 7)


def test_a_copy_in_another_process_holds_what_the_original_held(path: Path) -> None:
    with h5store.Writer(path, chunk=8) as writer:
        writer.append(**block(0, 20))
        writer.commit()
        with h5store.Reader(path, growing=True) as reader:
            pickled = pickle.dumps(reader)
        writer.append(**block(20, 40))
        writer.commit()
        with pickle.loads(pickled) as copy:
            assert_holds(copy, 20)
    with pytest.raises(StaleStoreError):
        pickle.loads(pickled)


def test_batches_come_from_a_growing_store(path: Path) -> None:
    with h5store.Writer(path, chunk=8) as writer:
        writer.append(**block(0, 45))
        writer.commit()
        with h5store.Reader(path, growing=True) as reader:
            seen = np.concatenate([x[:, 0] for x, _ in reader.loader(batch_size=7, seed=0).epoch(0)])
            np.testing.assert_array_equal(np.sort(seen), np.arange(45))


def test_only_a_growing_reader_is_refreshed(path: Path) -> None:
    with h5store.Writer(path) as writer:
        writer.append(**block(0, 20))
    with h5store.Reader(path) as reader, pytest.raises(OptionError, match="growing=True"):
        reader.refresh()
    with h5store.Reader(path, growing=True) as reader, pytest.raises(OptionError, match="view"):
        reader.select([1, 2]).refresh()
