"""Variable-length fields: written however cut, read by any rule, padded, bucketed; damage is told."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import h5store
from h5store.errors import OptionError, SchemaError, SelectionError
from h5store.ragged import Ragged

Open = Callable[..., h5store.Reader]
N = 200
LENGTHS = np.random.default_rng(0).integers(0, 30, N)
SERIES = [np.arange(n * 3, dtype="f4").reshape(n, 3) + np.float32(1000 * i) for i, n in enumerate(LENGTHS)]
SCHEMA = h5store.Schema((h5store.Field("s", "features", "f4", (None, 3)), h5store.Field("y", "labels", "i8")))


@pytest.fixture
def opened() -> Iterator[Open]:
    made: list[h5store.Reader] = []

    def open_(*args: Any, **options: Any) -> h5store.Reader:
        made.append(h5store.Reader(*args, **options))
        return made[-1]

    yield open_
    for reader in made:
        reader.close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    h5store.pack(tmp_path / "s.h5", features={"s": SERIES}, labels={"y": np.arange(N)}, chunk="1KiB", progress=False)
    return tmp_path / "s.h5"


def write(path: Path, start: int, stop: int, cut: int, **options: Any) -> None:
    with h5store.Writer(path, chunk="1KiB", **options) as writer:
        for a in range(start, stop, cut):
            b = min(a + cut, stop)
            writer.append(features={"s": SERIES[a:b]}, labels={"y": np.arange(a, b)})
            writer.commit()


def same(found: Any, ids: Any) -> bool:
    return len(found) == len(ids) and all(np.array_equal(a, SERIES[i]) for a, i in zip(found, ids))


@pytest.mark.parametrize("codec", ["lz4", "gzip", "zstd", None])
@pytest.mark.parametrize("cache", [0, "1MiB"])
def test_every_selection_gives_the_samples(tmp_path: Path, opened: Open, codec: Any, cache: Any) -> None:
    h5store.pack(tmp_path / "s.h5", features={"s": SERIES}, labels={"y": np.arange(N)}, codec=codec, progress=False)
    reader = opened(tmp_path / "s.h5", cache=cache)
    view = reader["s"]
    assert view.shape == (N, None, 3) and reader.schema["s"].ragged
    assert np.array_equal(view[7], SERIES[7]) and np.array_equal(view[-1, 0], SERIES[-1][0])
    assert isinstance(view[3:6], list) and same(view[3:60:7], range(3, 60, 7)) and same(view[:], range(N))
    ids = np.random.default_rng(1).integers(-N, N, 500)
    assert same(view[ids], ids) and same(reader.take(ids)["s"], ids) and view[[]] == []
    assert same(reader.select(ids)["s"][::-1], ids[::-1]) and same(view[LENGTHS == 0], np.flatnonzero(LENGTHS == 0))
    assert same(np.asarray(view), range(N)) and same(list(view), range(N))
    with pytest.raises(SelectionError, match="differ in length"):
        view[3:6, 0]


@pytest.mark.parametrize("cut", [1, 7, 64, N])
def test_the_file_is_the_same_however_it_was_cut(store: Path, cut: int, tmp_path: Path) -> None:
    write(tmp_path / "c.h5", 0, N, cut, schema=SCHEMA)
    assert (tmp_path / "c.h5").read_bytes() == store.read_bytes()


@pytest.mark.parametrize("at", [0, 1, 90, N])
@pytest.mark.parametrize("how", ["append", "resume"])
def test_going_on_makes_the_same_file(store: Path, tmp_path: Path, at: int, how: str) -> None:
    path = tmp_path / "c.h5"
    if how == "append":
        write(path, 0, at, 13, schema=SCHEMA)
    else:
        with pytest.raises(ZeroDivisionError), h5store.Writer(path, chunk="1KiB", schema=SCHEMA) as writer:
            writer.append(features={"s": SERIES[:at]}, labels={"y": np.arange(at)})
            writer.commit()
            1 / 0
    write(path, at, N, 31, schema=SCHEMA, **{how: True})
    assert path.read_bytes() == store.read_bytes()
    assert h5store.verify(path).ok


def test_other_tools_read_values_and_ends(store: Path) -> None:
    with h5py.File(store) as file:
        values, ends = file["features/s"][:], file["_h5store/ends/s"][:]
    assert np.array_equal(values, np.concatenate(SERIES)) and np.array_equal(ends, np.cumsum(LENGTHS))


def test_what_is_taken(tmp_path: Path, opened: Open) -> None:
    objects = np.empty(3, object)
    objects[:] = [np.zeros((2, 3), "f4"), np.ones((5, 3), "f4"), np.ones((0, 3), "f4")]
    with h5store.Writer(tmp_path / "t.h5", schema=SCHEMA) as writer:
        writer.append(features={"s": objects}, labels={"y": np.arange(3)})
        writer.append(features={"s": np.full((2, 4, 3), 2, "f4")}, labels={"y": np.arange(2)})
        writer.append(features={"s": [[[1, 2, 3]], np.zeros((0, 3), "f4")]}, labels={"y": np.arange(2)})
        writer.append(features={"s": []}, labels={"y": np.zeros(0, int)})
    assert [len(s) for s in opened(tmp_path / "t.h5")["s"]] == [2, 5, 0, 4, 4, 1, 0]


@pytest.mark.parametrize("bad, told", [
    ([np.zeros((2, 3), "f4"), np.zeros((2, 4), "f4")], r"'s' sample 1 has shape \(2, 4\), expected \(length, 3\)"),
    ([np.zeros((2, 3), "f4"), np.zeros(3, "f4")], r"'s' sample 1 has shape \(3,\)"),
    ([np.zeros((2, 3), "f8")] * 2, "'s' sample 0 has dtype float64, expected float32"),
    ([[[1, 2, 3], [4]]] * 2, "'s' sample 0 does not make an array"),
    (7, "'s' is int, expected a list"),
])
def test_what_does_not_fit_is_named(tmp_path: Path, bad: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told), h5store.Writer(tmp_path / "b.h5", schema=SCHEMA) as writer:
        writer.append(features={"s": bad}, labels={"y": np.arange(2)})


def test_text_of_variable_length_is_refused() -> None:
    with pytest.raises(SchemaError, match="text of variable length"):
        h5store.Field("t", "meta", str, (None,))
    with pytest.raises(SchemaError, match="shape"):
        h5store.Field("t", "meta", "f4", (3, None))


@pytest.mark.parametrize("shuffle", [True, "full", False])
@pytest.mark.parametrize("bucket", [None, "s"])
def test_batches_pad_and_hold_each_sample_once(store: Path, opened: Open, shuffle: Any, bucket: str | None) -> None:
    reader = opened(store).padded(value=-1, mask=True, lengths=True)
    if bucket and shuffle is False:
        with pytest.raises(OptionError, match="bucket= changes the order"):
            reader.loader(batch_size=16, shuffle=False, bucket=bucket)
        return
    loader = reader.loader(batch_size=16, shuffle=shuffle, seed=1, bucket=bucket, window="4KiB")
    for epoch in range(2):
        seen, spread = [], 0
        for inputs, labels in loader.epoch(epoch):
            assert inputs["s"].shape[1] == LENGTHS[labels].max()
            assert inputs["s_lengths"].tolist() == LENGTHS[labels].tolist()
            for row, mask, i in zip(inputs["s"], inputs["s_mask"], labels):
                assert np.array_equal(row[mask], SERIES[i]) and (row[~mask] == -1).all()
            seen += labels.tolist()
            spread += int(np.ptp(LENGTHS[labels]))
        assert sorted(seen) == list(range(N))
        assert (spread < 13 * 8) == bool(bucket)
    assert loader.batch(1, 3)[1].tolist() == list(loader.epoch(1))[3][1].tolist()


def test_views_keep_how_they_pad(store: Path, opened: Open) -> None:
    view = opened(store).padded(4).select([5, 6, 7]).split({"a": 2, "b": 1})["a"]
    again = pickle.loads(pickle.dumps(view))
    assert view.batch([0, 1])[0].shape == again.batch([0, 1])[0].shape == (2, 4, 3)
    again.close()
    found = view.unpadded().batch([1, 0])[0]
    assert isinstance(found, Ragged) and same(found, view.ids[[1, 0]])
    with pytest.raises(OptionError, match="padded: length=0"):
        view.padded(0)


def test_damaged_ends_are_told(store: Path, opened: Open) -> None:
    reader = opened(store)
    table = reader._store.table("s/ends")
    raw = bytearray(store.read_bytes())
    raw[int(table.offsets[0]) + 3] ^= 0xFF
    store.with_name("d.h5").write_bytes(raw)
    report = h5store.verify(store.with_name("d.h5"))
    assert not report.ok and "s/ends" in str(report)
    with pytest.raises(h5store.errors.CorruptChunkError, match="s/ends"):
        opened(store.with_name("d.h5"))["s"][0]


def test_non_finite_values_are_found(tmp_path: Path) -> None:
    h5store.pack(tmp_path / "n.h5", features={"s": [np.array([1, np.nan]), np.zeros(3)]}, progress=False)
    report = h5store.verify(tmp_path / "n.h5")
    assert report.ok and report.nonfinite["s"].values == 1


def test_one_dimensional_bytes(tmp_path: Path, opened: Open) -> None:
    blobs = [np.frombuffer(os.urandom(n), np.uint8) for n in (5, 0, 70_000, 1, 200_000)]
    h5store.pack(tmp_path / "b.h5", features={"blob": blobs}, labels=np.arange(5), progress=False)
    reader = opened(tmp_path / "b.h5")
    order = [4, 2, 0, 3, 1]
    assert all(np.array_equal(a, blobs[i]) for a, i in zip(reader["blob"][order], order))


@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), max_size=12), st.data())
def test_ragged_is_its_list(lengths: list[int], data: st.DataObject) -> None:
    samples = [np.arange(n) + 10 * i for i, n in enumerate(lengths)]
    ragged = Ragged.of(np.concatenate([np.zeros(0, int), *samples]), lengths)
    assert [a.tolist() for a in ragged] == [a.tolist() for a in samples]
    a, b = data.draw(st.integers(-13, 13)), data.draw(st.integers(-13, 13))
    assert [x.tolist() for x in ragged[a:b]] == [x.tolist() for x in samples[a:b]]
    assert [x.tolist() for x in ragged[a:b:-2]] == [x.tolist() for x in samples[a:b:-2]]
    length = data.draw(st.one_of(st.none(), st.integers(1, 8)))
    padded, mask = ragged.padded(length, -5), ragged.mask(length)
    assert padded.shape == mask.shape == (len(lengths), max(lengths, default=0) if length is None else length)
    for row, inside, sample in zip(padded, mask, samples):
        assert row[inside].tolist() == sample[:padded.shape[1]].tolist() and (row[~inside] == -5).all()
