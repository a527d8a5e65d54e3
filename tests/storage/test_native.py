"""The kernel: whatever it does, Python does the same, and says the same of what is damaged."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import h5store
from h5store.errors import CorruptChunkError
from h5store.storage import blosc, native

N = 150
FIELDS = {
    "bytes": ("u1", (7, 5)), "image": ("u1", (40, 30, 3)), "curve": ("f4", (100, 6)), "scalar": ("i8", ()),
    "swapped": (">i4", (3,)), "odd": ("f8", (37,)), "wide": ("u1", (20_000,)), "flag": ("?", (2,)),
}


def _kernel():
    return native.kernel(row=1, nbytes=1, few=0, verify=True, blosc=True, alone=True)


needs_kernel = pytest.mark.skipif(_kernel() is None, reason="the kernel was not compiled when h5store was installed")


def _samples(name: str) -> np.ndarray:
    dtype, shape = FIELDS[name]
    rng = np.random.default_rng(len(name))
    noise = rng.integers(0, 200, (N, *shape))
    noise[::3] //= 50  # some blocks shrink, some do not
    return noise.astype(np.dtype(dtype).newbyteorder("="))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    data = {name: _samples(name) for name in FIELDS}
    paths = {}
    for codec in ("lz4", "gzip", "zstd", None):
        for chunk in (1, 5, "64KiB"):
            path = paths[codec, chunk] = folder / f"{codec}-{chunk}.h5"
            h5store.pack(path, features=data, codec=codec, chunk=chunk, progress=False)
    return paths, data


@pytest.fixture()
def in_python(monkeypatch):
    """Opens a store that does without the kernel."""
    def open_store(path):
        with monkeypatch.context() as patch:
            patch.setattr(native, "kernel", lambda **field: None)
            return h5store.Reader(path, cache=0)

    return open_store


@needs_kernel
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_both_read_what_was_written(stores, data):
    paths, samples = stores
    path = paths[data.draw(st.sampled_from(["lz4", None, "gzip"])), data.draw(st.sampled_from([1, 5, "64KiB"]))]
    cache = data.draw(st.sampled_from([0, "300KiB", "256MiB"]))
    ids = np.array(data.draw(st.lists(st.integers(0, N - 1), max_size=40)), np.int64)
    with h5store.Reader(path, cache=cache) as r:
        for name, found in r.take(ids).items():
            np.testing.assert_array_equal(found, samples[name][ids])


@needs_kernel
@pytest.mark.parametrize("codec", ["lz4", "gzip", "zstd", None])
@pytest.mark.parametrize("chunk", [1, 5, "64KiB"])
def test_an_epoch_is_the_same_without_it(stores, in_python, codec, chunk):
    path = stores[0][codec, chunk]
    with h5store.Reader(path, cache=0) as fast, in_python(path) as slow:
        for one, other in zip(fast.loader(batch_size=32, seed=3, window="600KiB").epoch(1),
                              slow.loader(batch_size=32, seed=3, window="600KiB").epoch(1), strict=True):
            for name in FIELDS:
                np.testing.assert_array_equal(one[0][name], other[0][name])


@needs_kernel
@pytest.mark.parametrize("codec", ["lz4", None])
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_both_say_the_same_of_damage(stores, tmp_path_factory, codec, data):
    """Also where sums are not checked: the codec then sees what was flipped."""
    source = stores[0][codec, 5]
    name = data.draw(st.sampled_from(["bytes", "image", "curve", "odd"]))
    verify = data.draw(st.booleans())
    with h5store.Reader(source) as r:
        table = r._store.table(name)
    where = data.draw(st.integers(0, len(table) - 1))
    at = int(table.offsets[where]) + data.draw(st.integers(0, min(80, int(table.sizes[where]) - 1)))
    path = tmp_path_factory.mktemp("flip") / "a.h5"
    raw = bytearray(source.read_bytes())
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    told = []
    for without in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if without:
                patch.setattr(native, "kernel", lambda **field: None)
            r = h5store.Reader(path, cache=0, verify=verify)
        with r:
            try:
                told.append({k: v.tobytes() for k, v in r.take(range(N), [name]).items()})
            except CorruptChunkError as error:
                told.append(str(error))
    assert told[0] == told[1]
    if verify:
        assert "checksum differs" in told[0]


@needs_kernel
def test_a_file_cut_short_is_told(stores, tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(stores[0]["lz4", 5].read_bytes())
    with h5store.Reader(path, cache=0) as r:
        r.take([0])
        os.truncate(path, int(r._store.table("image").offsets[-1]) + 3)
        with pytest.raises(CorruptChunkError, match="cut short"):
            r.take([N - 1], ["image"])


def test_without_it_all_is_read(stores, monkeypatch):
    """No compiler, no c-blosc with the names it needs, an xxhash that keeps its functions to itself."""
    for patch in (lambda m: m.setattr(native.glob, "glob", lambda pattern: []),
                  lambda m: m.setattr(blosc, "library", lambda: None)):
        native._library.cache_clear()
        with monkeypatch.context() as m:
            patch(m)
            with h5store.Reader(stores[0]["lz4", 5], cache=0) as r:
                np.testing.assert_array_equal(r["curve"][[9, 2]], stores[1]["curve"][[9, 2]])
            assert native._library() is None
        native._library.cache_clear()


@pytest.mark.parametrize("how", ["kernel", "python"])
@pytest.mark.parametrize("codec", ["lz4", "gzip", None])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_rows_that_are_left_out_are_not_written(stores, codec, how, data):
    """Nor is what lies before and behind them: rows are written to by address."""
    paths, samples = stores
    if how == "kernel" and _kernel() is None:
        pytest.skip("the kernel was not compiled when h5store was installed")
    edges = sorted(data.draw(st.sets(st.integers(0, N), min_size=2, max_size=12)))
    ranges = np.array(list(zip(edges[::2], edges[1::2])), np.int64)
    ids = np.concatenate([np.arange(lo, hi) for lo, hi in ranges])
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))), bool)
    to = np.full(len(ids), -1)
    to[kept] = data.draw(st.permutations(range(int(kept.sum()))))
    with pytest.MonkeyPatch.context() as patch:
        if how == "python":
            patch.setattr(native, "kernel", lambda **field: None)
        r = h5store.Reader(paths[codec, data.draw(st.sampled_from([5, "64KiB"]))], cache=0)
    with r:
        for name, values in samples.items():
            room = np.frombuffer(bytearray(b"\x5a" * values[0].nbytes * (int(kept.sum()) + 4)), values.dtype)
            room = room.reshape(-1, *values.shape[1:])
            before = room.copy()
            out = {name: room[2:-2]}
            r._store.window(ranges, to, lambda: ids[kept][np.argsort(to[kept])], out).result()
            np.testing.assert_array_equal(room[2:-2][to[kept]], values[ids[kept]])
            assert room[:2].tobytes() + room[-2:].tobytes() == before[:2].tobytes() + before[-2:].tobytes()
