"""Reads: planned, done in tasks, each chunk checked; damage and cut files told."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import h5store
from h5store.errors import CorruptChunkError
from h5store.storage import fetch, native
from h5store.storage.handles import FileSource
from h5store.storage.store import Store

N, PER = 100, 8


@pytest.fixture(params=[(cache, how) for cache in ("256MiB", "1KiB", 0) for how in ("kernel", "python")],
                ids=lambda p: f"cache={p[0]}-{p[1]}")
def made(tmp_path, request, monkeypatch):
    """An open store and its samples; `made.reads` are the byte ranges that were read from the file."""
    x = np.random.default_rng(0).integers(0, 99, (N, 500)).astype("i4")
    h5store.pack(tmp_path / "a.h5", features={"x": x}, labels={"y": np.arange(N)}, progress=False, chunk=PER)
    cache, how = request.param
    if how == "python":
        monkeypatch.setattr(native, "kernel", lambda **field: None)
    elif native.kernel(row=1, nbytes=1, few=0, verify=True, blosc=True, alone=True) is None:
        pytest.skip("the kernel was not compiled when h5store was installed")
    store = Store.open(tmp_path / "a.h5", cache=cache, threads=2)
    reads, plain, fast, lock = [], FileSource.read_into, native.Kernel.__call__, threading.Lock()

    def read_into(self, fd, offset, buffer):
        with lock:
            reads.append(offset)
        plain(self, fd, offset, buffer)

    def copy(self, fd, pieces, *rest):
        done = fast(self, fd, pieces, *rest)
        with lock:
            reads.extend(pieces[:done, 4].tolist())
        return done

    monkeypatch.setattr(FileSource, "read_into", read_into)
    monkeypatch.setattr(native.Kernel, "__call__", copy)
    store.reads, store.x = reads, x
    yield store
    store.close()


def gathered(store, ids):
    out = {"x": np.full((len(ids), 500), -1, "i4")}
    store.gather(np.asarray(ids, np.int64), out).result()
    return out["x"]


def chunks_of(store, offsets):
    where = {int(o): i for i, o in enumerate(store.table("x").offsets)}
    return [where[o] for o in offsets]


@pytest.mark.parametrize("ids", [[], [0], [99], [5, 5, 5], [99, 0, 50, 0], list(range(N)), list(range(N))[::-1],
                                 [7, 8], [96, 97, 98, 99], list(range(0, N, 9))], ids=len)
def test_gather(made, ids):
    np.testing.assert_array_equal(gathered(made, ids), made.x[ids])


@pytest.mark.parametrize("ranges", [[], [(0, N)], [(3, 5)], [(0, 8), (8, 16)], [(90, 100), (0, 1), (40, 73)], [(4, 4)],
                                    [(5, 30), (5, 30)], [(99, 100)], [(0, 1), (1, 2), (2, 3)]], ids=repr)
def test_runs(made, ranges):
    ids = np.concatenate([np.arange(lo, hi) for lo, hi in ranges] or [np.zeros(0, int)])
    out = {"x": np.full((len(ids), 500), -1, "i4")}
    made.runs(np.array(ranges, np.int64).reshape(-1, 2), out).result()
    np.testing.assert_array_equal(out["x"], made.x[ids])


def test_a_chunk_is_read_once_however_often_it_is_asked_for(made):
    gathered(made, [3, 80, 2, 81, 3, 0, 7, 83])
    assert sorted(chunks_of(made, made.reads)) == [0, 10]


def test_reads_no_chunk_that_is_not_asked_for(made):
    gathered(made, [17])
    made.runs(np.array([[40, 56]]), {"x": np.empty((16, 500), "i4")}).result()
    assert sorted(chunks_of(made, made.reads)) == [2, 5, 6]


def test_what_the_cache_keeps_is_not_read_again(made):
    gathered(made, range(N))
    first = len(made.reads)
    gathered(made, range(N)[::-1])
    again = len(made.reads) - first
    assert again == (0 if made.cache.whole("x") else first)
    made.close()
    gathered(made, [0])
    assert len(made.reads) == first + again + 1


def test_a_read_that_fails_leaves_nothing_writing(made):
    with open(made.path, "r+b") as f:
        f.seek(int(made.table("x").offsets[6]))
        f.write(b"\0\0\0\0")
    out = {"x": np.full((N, 500), -1, "i4")}
    with pytest.raises(CorruptChunkError, match=r"\['x'\] chunk 6 \(samples 48-55\): checksum differs"):
        made.gather(np.arange(N), out).result()
    before = out["x"].copy()
    np.testing.assert_array_equal(gathered(made, range(48)), made.x[:48])
    np.testing.assert_array_equal(out["x"], before)


def test_a_bad_chunk_is_told_again_and_not_kept(made):
    with open(made.path, "r+b") as f:
        f.seek(int(made.table("x").offsets[0]) + 20)
        f.write(b"\xff\xff")
    for _ in range(2):
        with pytest.raises(CorruptChunkError, match=r"chunk 0 \(samples 0-7\)"):
            gathered(made, [1])
    np.testing.assert_array_equal(gathered(made, [8]), made.x[[8]])


def test_a_file_that_ends_early(made):
    size = int(made.table("x").offsets[-1])
    with open(made.path, "r+b") as f:
        f.truncate(size + 3)
    with pytest.raises(CorruptChunkError, match="the file ends at byte"):
        gathered(made, [N - 1])
    np.testing.assert_array_equal(gathered(made, [0]), made.x[[0]])


def test_cancelled_reads_write_no_more(made):
    for _ in range(20):
        out = {"x": np.full((N, 500), -1, "i4")}
        pending = made.gather(np.arange(N), out)
        pending.cancel()
        before = out["x"].copy()
        made.cache.clear()
        gathered(made, range(0, N, 3))
        np.testing.assert_array_equal(out["x"], before)


def test_many_reads_under_way_at_once(made):
    rng = np.random.default_rng(1)
    under_way = []
    for _ in range(40):
        ids = rng.integers(0, N, 30)
        out = {"x": np.empty((30, 500), "i4")}
        under_way.append((ids, out, made.gather(ids, out)))
    for ids, out, pending in under_way[::-1]:
        pending.result()
        np.testing.assert_array_equal(out["x"], made.x[ids])


def test_emptying_the_cache_under_readers(made):
    stop, wrong = threading.Event(), []

    def read(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            ids = rng.integers(0, N, 20)
            if not np.array_equal(gathered(made, ids), made.x[ids]):
                wrong.append(ids)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for _ in range(200):
        made.close()
        stop.wait(0.001)
    stop.set()
    for t in threads:
        t.join()
    assert not wrong


def test_expand():
    ids, to = fetch.expand(np.array([[3, 5], [0, 0], [9, 12]]), None)
    assert ids.tolist() == [3, 4, 9, 10, 11]
