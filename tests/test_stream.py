"""One pass sees every sample once, in order, in the same pieces whatever the threads, and keeps nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store import stream as room
from h5store.errors import CorruptChunkError
from h5store.stream import measure, stream


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "s.h5"
    h5store.pack(path, features={"x": rng.normal(size=(5000, 7)).astype("f4")}, labels={"y": np.arange(5000)},
                 chunk="4KiB", progress=False)
    return path


def seen(reader: h5store.Reader) -> list[tuple[int, list[int], list[int]]]:
    def work(start: int, ids: np.ndarray, arrays: Any) -> tuple[int, list[int], list[int]]:
        return start, ids.tolist(), arrays["y"].tolist()

    return list(stream(reader, ["x", "y"], work))


def test_every_sample_once_and_in_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_PIECE", 8192)
    runs = []
    for threads in (1, 3):
        with h5store.Reader(path, threads=threads) as reader:
            runs.append(seen(reader))
    assert len(runs[0]) > 5
    assert runs[0] == runs[1]
    assert [i for _, ids, _ in runs[0] for i in ids] == list(range(5000))
    assert all(ids == labels and ids[0] == start for start, ids, labels in runs[0])


def test_a_view_is_read_in_the_order_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_PIECE", 8192)
    chosen = np.random.default_rng(1).permutation(5000)[:3000]
    with h5store.Reader(path) as reader:
        found = seen(reader.select(chosen))
    assert [i for _, ids, _ in found for i in ids] == sorted(chosen.tolist())
    assert [start for start, _, _ in found] == np.cumsum([0, *(len(ids) for _, ids, _ in found)])[:-1].tolist()
    assert all(ids == labels for _, ids, labels in found)


def test_moments_equal_numpy_and_leave_the_cache_empty(path: Path) -> None:
    with h5store.Reader(path) as reader:
        found = measure(reader, ["x", "y"])
        assert not reader._store.cache._arrays and not reader._store.cache._chunks
        values = reader["x"][:].astype("f8")
    np.testing.assert_allclose(found["x"].mean, values.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["x"].std, values.std(axis=0), rtol=1e-9)
    assert (found["y"].min[0], found["y"].max[0], found["y"].count[0]) == (0, 4999, 5000)


def test_no_samples_give_no_moments(path: Path) -> None:
    with h5store.Reader(path) as reader:
        found = measure(reader.select([]), ["x"])["x"]
    assert found.count.tolist() == [0] * 7
    assert np.isnan(found.mean).all()


def test_giving_up_early_and_failing_leave_nothing_running(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_PIECE", 8192)
    with h5store.Reader(path) as reader:
        first = stream(reader, ["x"], lambda start, ids, arrays: start)
        assert next(first) == 0
        first.close()
        with pytest.raises(ZeroDivisionError):
            list(stream(reader, ["x"], lambda start, ids, arrays: 1 // (start - start)))


def test_damage_is_an_error(path: Path) -> None:
    with h5store.Reader(path) as reader:
        offset = int(reader._store.table("x").offsets[3])
    data = bytearray(path.read_bytes())
    data[offset + 40] ^= 1
    path.write_bytes(data)
    with h5store.Reader(path) as reader, pytest.raises(CorruptChunkError):
        measure(reader, ["x"])
