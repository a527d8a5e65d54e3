"""The fast path equals its slow twin: chunk table, positional reads and own decoding against h5py."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import h5store
from h5store.storage.foreign import SlowField
from h5store.storage.handles import drop
from h5store.storage.store import Store

hdf5plugin = pytest.importorskip("hdf5plugin")

FOLDER = tempfile.TemporaryDirectory(prefix="parity-")
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
SHAPES = [(), (1,), (3,), (2, 3), (5, 1, 2), (40,), (300,)]
#: Samples and chunk: chunks that fit, tails of one and of all but one, one chunk, a sample a chunk, no sample.
LENGTHS = [(24, 8), (25, 8), (31, 8), (7, 100), (9, 1), (1, 4), (0, 4), (200, 64)]
CODECS = ["lz4", "gzip", "gzip:1", "zstd", "zstd:9", None]


def values(n, shape, dtype):
    rng = np.random.default_rng(n + len(shape))
    flat = rng.integers(-100, 100, (n, *shape)).cumsum(axis=-1 if shape else 0)
    if dtype in "c8c16":
        return (flat * (1 - 2j)).astype(dtype)
    if dtype == "?":
        return flat % 3 == 0
    with np.errstate(all="ignore"):
        return flat.astype(dtype)


@functools.cache
def store(length, shape, dtype, codec):
    """A store's path and its samples in memory."""
    n, chunk = length
    path = Path(FOLDER.name) / f"{abs(hash((length, shape, dtype, codec)))}.h5"
    data = values(n, shape, dtype)
    if not path.exists():
        h5store.pack(path, features={"x": data}, labels={"y": np.arange(n)}, progress=False, codec=codec, chunk=chunk)
    return path, data


@functools.cache
def with_h5py(path):
    """What h5py itself reads."""
    with h5py.File(path) as file:
        return file["features/x"][...]


def twin(path, ids):
    """What the slow path of the project reads."""
    opened = Store.open(path, cache=0)
    field = opened.schema["x"]
    slow = SlowField(field, "/features/x", None, opened.source, None)
    out = np.empty((len(ids), *field.shape), slow.dtype)
    try:
        for task in slow.gather(np.asarray(ids, np.int64), out).work:
            task()
    finally:
        slow.close()
        drop(opened.source)
    return out


def selections(n):
    """Everything that numpy takes on the first axis."""
    kinds = [st.slices(n) if n else st.just(slice(None)), st.lists(st.booleans(), min_size=n, max_size=n).map(
        lambda m: np.array(m, bool)), st.just(slice(None)), st.just(Ellipsis), st.just([])]
    if n:
        ids = st.integers(-n, n - 1)
        some = st.lists(ids, min_size=1, max_size=9)
        kinds += [ids, ids.map(np.int16), st.lists(ids, max_size=40), some.map(np.array),
                  st.lists(st.tuples(ids, ids), min_size=1, max_size=5).map(np.array),
                  st.lists(st.integers(0, n - 1), min_size=1, max_size=9).map(lambda i: np.array(i, "u8"))]
    return st.one_of(kinds)


def inner(shape):
    """An index into a sample, for as many of its axes as one likes."""
    def axis(size):
        return st.one_of(st.integers(-size, size - 1), st.slices(size), st.just([0, -1]))

    return st.integers(0, len(shape)).flatmap(lambda k: st.tuples(*map(axis, shape[:k])))


@st.composite
def cases(draw):
    length, shape = draw(st.sampled_from(LENGTHS)), draw(st.sampled_from(SHAPES))
    made = store(length, shape, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(CODECS)))
    options = {"cache": draw(st.sampled_from(["256MiB", "3KiB", 0])), "threads": draw(st.sampled_from([1, 2, 4])),
               "verify": draw(st.booleans())}
    return made, options


def equal(found, wanted):
    assert np.shape(found) == np.shape(wanted)
    assert np.asarray(found).dtype == np.asarray(wanted).dtype
    assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


@settings(max_examples=250)
@given(cases(), st.data())
def test_a_field_reads_what_h5py_reads(case, data):
    (path, memory), options = case
    wanted = with_h5py(path)
    equal(wanted, memory)
    with h5store.Reader(path, **options) as reader:
        for _ in range(3):  # the second time, some of it is in the cache
            key = data.draw(selections(len(memory)))
            into = data.draw(inner(memory.shape[1:]))
            key = key if key is Ellipsis else (key, *into)
            try:
                chosen = memory[key]
            except IndexError:  # lists that do not broadcast
                with pytest.raises(IndexError):
                    reader["x"][key]
                continue
            equal(reader["x"][key], chosen)


@settings(max_examples=150)
@given(cases(), st.data())
def test_take_and_batch_equal_the_slow_twin(case, data):
    (path, memory), options = case
    n = len(memory)
    ids = data.draw(st.lists(st.integers(-n, n - 1), max_size=60) if n else st.just([]))
    absolute = np.array(ids, np.int64) % max(n, 1)
    slow = twin(path, absolute)
    equal(slow, memory[absolute])
    with h5store.Reader(path, **options) as reader:
        for _ in range(2):
            equal(reader.take(ids)["x"], slow)
            x, y = reader.batch(ids)
            equal(x, slow)
            equal(y, absolute)


@settings(max_examples=100)
@given(cases(), st.data())
def test_views_of_views(case, data):
    (path, memory), options = case
    with h5store.Reader(path, **options) as reader:
        view = reader
        for _ in range(data.draw(st.integers(1, 3))):
            n = len(view)
            chosen = data.draw(st.one_of(
                st.slices(n) if n else st.just(slice(None)),
                st.lists(st.booleans(), min_size=n, max_size=n).map(lambda m: np.array(m, bool)),
                st.lists(st.integers(-n, n - 1), max_size=30) if n else st.just([])))
            view, memory = view.select(chosen), memory[chosen if len(np.shape(chosen)) == 0 or len(chosen) else []]
        assert len(view) == len(memory)
        equal(view["x"][:], memory)
        n = len(memory)
        ids = data.draw(st.lists(st.integers(-n, n - 1), max_size=9) if n else st.just([]))
        equal(view.take(ids)["x"], memory[ids] if ids else memory[:0])


@settings(max_examples=80)
@given(cases(), st.data())
def test_an_epoch_equals_reading_its_ids(case, data):
    (path, memory), options = case
    if not len(memory):
        return
    shuffle, size = data.draw(st.sampled_from([True, "full", False])), data.draw(st.integers(1, 40))
    with h5store.Reader(path, **options) as reader:
        chosen = data.draw(st.one_of(st.none(), st.lists(st.integers(0, len(memory) - 1), min_size=1, max_size=30)))
        view = reader if chosen is None else reader.select(chosen)
        loader = view.loader(batch_size=size, shuffle=shuffle, seed=data.draw(st.integers(0, 9)),
                             window=data.draw(st.sampled_from(["1KiB", "32MiB"])))
        start = data.draw(st.integers(0, len(loader) - 1))
        seen = 0
        for step, (x, y) in enumerate(loader.epoch(1, start), start):
            equal(x, memory[y])
            whole = loader.batch(1, step)
            equal(y, whole[1])
            seen += len(y)
        assert seen == len(view) - start * size


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_with_every_codec(dtype, codec):
    for length, shape in [((31, 8), (40,)), ((25, 8), ())]:
        path, memory = store(length, shape, dtype, codec)
        ids = np.random.default_rng(0).integers(0, len(memory), 50)
        slow = twin(path, ids)
        for cache in ("1MiB", 0):
            with h5store.Reader(path, cache=cache) as reader:
                equal(reader.take(ids)["x"], slow)
                equal(reader["x"][:], with_h5py(path))


@pytest.mark.parametrize("codec", ["lz4", "gzip", None])
def test_special_values_are_bit_for_bit(tmp_path, codec):
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000000, 0x8000000000000000, 1, 0x7FF0000000000000], "u8")
    data = np.tile(bits, (9, 3)).view("f8")
    h5store.pack(tmp_path / "a.h5", features=data, progress=False, codec=codec, chunk=4)
    with h5store.Reader(tmp_path / "a.h5") as reader:
        assert reader["features"][:].tobytes() == data.tobytes()
        assert reader.take([5])["features"].tobytes() == data[5].tobytes()
