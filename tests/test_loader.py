"""Loader: a store times a plan, read ahead, ending cleanly; and going on elsewhere from a saved state."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import h5store
from h5store.errors import CorruptChunkError, OptionError, SchemaError

N = 530
KINDS = [True, "full", False]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("loader") / "a.h5"
    i = np.arange(N)
    h5store.pack(path, features={"x": np.repeat(i, 60).reshape(N, 60).astype("i4")}, aux={"z": i.astype("f8")},
                 labels={"y": np.array(["even", "odd"])[i % 2]}, meta={"id": i}, progress=False, chunk=7)
    return path


@pytest.fixture(params=["256MiB", "20KiB", 0], ids=lambda c: f"cache={c}")
def reader(path, request):
    """Every kind of keeping: fields whole, some chunks, nothing."""
    with h5store.Reader(path, cache=request.param, threads=2) as r:
        yield r


def ids_of(batch):
    (inputs, labels), = [batch]
    x, z = inputs["x"], inputs["z"]
    assert (x == z[:, None]).all() and (labels == z % 2).all() and labels.dtype == np.int64
    return z.astype(int).tolist()


def served(batches):
    return [ids_of(b) for b in batches]


def flat(lists):
    return list(itertools.chain(*lists))


def same(a, b):
    return len(a) == len(b) and all(ids_of(p) == ids_of(q) for p, q in zip(a, b))


# ---- an epoch


@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize("batch_size", [1, 7, 64, 265, 530, 1000])
def test_an_epoch_serves_each_sample_once(reader, shuffle, batch_size):
    loader = reader.loader(batch_size=batch_size, shuffle=shuffle, seed=3, window="40KiB")
    for epoch in range(2):
        batches = served(loader.epoch(epoch))
        assert [len(b) for b in batches] == [batch_size] * (N // batch_size) + [N % batch_size] * (N % batch_size > 0)
        assert len(batches) == len(loader)
        assert sorted(flat(batches)) == list(range(N))
        assert (flat(batches) == list(range(N))) == (shuffle is False)


@pytest.mark.parametrize("shuffle", KINDS)
def test_batches_are_what_the_reader_gives_for_the_ids_of_the_plan(reader, shuffle):
    loader = reader.loader(batch_size=50, shuffle=shuffle, seed=3, window="40KiB")
    for step, batch in enumerate(loader.epoch(2)):
        for other in (reader.batch(loader.plan.batch(2, step)), loader.batch(2, step)):
            assert list(batch[0]) == list(other[0]) == ["x", "z"]
            for name in batch[0]:
                np.testing.assert_array_equal(batch[0][name], other[0][name])
                assert batch[0][name].dtype == other[0][name].dtype
            np.testing.assert_array_equal(batch[1], other[1])


@pytest.mark.parametrize("shuffle", KINDS)
def test_start_gives_the_tail(reader, shuffle):
    loader = reader.loader(batch_size=48, shuffle=shuffle, seed=1, window="30KiB")
    whole = served(loader.epoch(4))
    for start in (0, 1, 5, len(loader) - 1, len(loader)):
        assert served(loader.epoch(4, start)) == whole[start:]
    for bad in (-1, len(loader) + 1):
        with pytest.raises(IndexError, match="no step"):
            loader.epoch(4, start=bad)


def test_a_seed_decides_whatever_the_threads_and_the_cache(path):
    orders = []
    for cache, threads in itertools.product(["256MiB", 0], [1, 2, 5]):
        with h5store.Reader(path, cache=cache, threads=threads) as r:
            np.random.seed(threads)
            orders.append(served(r.loader(batch_size=32, seed=9, window="40KiB").epoch(1)))
    assert all(order == orders[0] for order in orders)
    with h5store.Reader(path) as r:
        assert served(r.loader(batch_size=32, seed=10, window="40KiB").epoch(1)) != orders[0]
        assert served(r.loader(batch_size=32, seed=9, window="40KiB").epoch(2)) != orders[0]


def test_without_a_seed_one_is_drawn_and_shown(path):
    with h5store.Reader(path) as r:
        one, two = r.loader(batch_size=32), r.loader(batch_size=32)
        assert one.seed != two.seed and f"seed {one.seed}" in repr(one)
        assert served(r.loader(batch_size=32, seed=one.seed).epoch(0)) == served(one.epoch(0))


def test_drop_last(reader):
    loader = reader.loader(batch_size=100, seed=0, drop_last=True)
    sizes = [len(b) for b in served(loader.epoch(0))]
    assert sizes == [100] * 5 == [100] * len(loader)
    left = [set(range(N)) - set(flat(served(loader.epoch(e)))) for e in range(3)]
    assert all(len(s) == 30 for s in left) and left[0] != left[1]


@pytest.mark.parametrize("n, sizes", [(13, [4, 4, 4, 1]), (12, [4, 4, 4])])
def test_sizes_that_divide_and_that_do_not(tmp_path, n, sizes):
    h5store.pack(tmp_path / "a.h5", features=np.arange(n), progress=False)
    with h5store.Reader(tmp_path / "a.h5") as r:
        plain = [b.tolist() for b, in r.loader(batch_size=4, shuffle=False).epoch(0)]
        assert [len(b) for b in plain] == sizes and flat(plain) == list(range(n))
        loader = r.loader(batch_size=4, seed=0)
        epochs = [[b.tolist() for b, in loader.epoch(e)] for e in range(2)]
        assert all([len(b) for b in e] == sizes and sorted(flat(e)) == list(range(n)) for e in epochs)
        assert epochs[0] != epochs[1]


def test_a_file_sorted_by_class_gives_mixed_batches(tmp_path):
    y = np.repeat(np.arange(4), 250)
    h5store.pack(tmp_path / "a.h5", features=np.random.default_rng(0).random((1000, 8)).astype("f4"), labels=y,
                 meta={"id": np.arange(1000)}, progress=False)
    with h5store.Reader(tmp_path / "a.h5") as r:
        epochs = []
        for _ in range(2):
            loader = r.loader(batch_size=32, shuffle=True, seed=5)
            epochs.append([[labels.tolist() for _, labels in loader.epoch(e)] for e in range(3)])
        assert epochs[0] == epochs[1]
        assert epochs[0][0] != epochs[0][1] != epochs[0][2]
        for e in range(3):
            full = [b for b in epochs[0][e] if len(b) == 32]
            assert np.mean([len(set(b)) >= 3 for b in full]) >= 0.95
            ids = flat([loader.plan.batch(e, s).tolist() for s in range(len(loader))])
            assert sorted(ids) == list(range(1000))


def test_batches_belong_to_the_caller(reader):
    loader = reader.loader(batch_size=40, seed=0, window="30KiB")
    kept = list(loader.epoch(0))
    copies = [b[0]["x"].copy() for b in kept]
    for batch in loader.epoch(1):
        batch[0]["x"][...] = -1
        batch[0]["z"][...] = -1
        batch[1][...] = -1
    for batch, copied in zip(kept, copies):
        np.testing.assert_array_equal(batch[0]["x"], copied)
    assert sorted(flat(served(loader.epoch(2)))) == list(range(N))
    assert sorted(flat(served(kept))) == list(range(N))


# ---- views


@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize("ids", [np.arange(100, 300), np.arange(0, N, 3), np.array([400, 3, 3, 77, 400]),
                                 np.arange(N)[::-1], np.array([5])], ids=len)
def test_views(reader, shuffle, ids):
    view = reader.select(ids)
    loader = view.loader(batch_size=16, shuffle=shuffle, seed=2, window="20KiB")
    batches = served(loader.epoch(1))
    assert sorted(flat(batches)) == sorted(ids.tolist())
    if shuffle is False:
        assert flat(batches) == ids.tolist()
    assert served(loader.epoch(1, len(loader) // 2)) == batches[len(loader) // 2:]
    assert ids_of(loader.batch(1, 0)) == batches[0]


def test_split_parts_train(reader):
    parts = reader.split({"train": 0.7, "val": 0.3}, by="y", seed=1)
    seen = [flat(served(p.loader(batch_size=32, seed=0).epoch(0))) for p in parts.values()]
    assert sorted(flat(seen)) == list(range(N))


# ---- ends


def pool_threads():
    return [t for t in threading.enumerate() if not t.name.startswith("h5store")]


@pytest.mark.parametrize("end", ["break", "error", "close", "drop", "unstarted"])
def test_read_ahead_ends_with_the_loop(reader, end):
    before = pool_threads()
    loader = reader.loader(batch_size=16, seed=0, window="20KiB")
    batches = loader.epoch(0)
    if end == "break":
        for _ in batches:
            break
    elif end == "error":
        with pytest.raises(ZeroDivisionError):
            for _ in batches:
                1 / 0
    elif end == "close":
        next(batches)
        batches.close()
        with pytest.raises(StopIteration):
            next(batches)
    elif end == "drop":
        next(batches)
    del batches
    gc.collect()
    assert pool_threads() == before
    assert sorted(flat(served(loader.epoch(1)))) == list(range(N))


def test_two_iterators_at_once(reader):
    loader = reader.loader(batch_size=32, seed=0, window="20KiB")
    wanted = [served(loader.epoch(e)) for e in (0, 1)]
    both = list(zip(loader.epoch(0), loader.epoch(1)))
    assert [served(b) for b in zip(*both)] == wanted


def test_iterators_in_threads(reader):
    loader = reader.loader(batch_size=32, seed=0, window="20KiB")
    wanted = {e: served(loader.epoch(e)) for e in range(6)}
    found = {}
    threads = [threading.Thread(target=lambda e=e: found.update({e: served(loader.epoch(e))})) for e in wanted]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == wanted


def test_a_damaged_chunk_is_told_and_the_rest_still_read(tmp_path):
    import h5py

    x = np.random.default_rng(0).integers(0, 99, (200, 500)).astype("u1")
    path = tmp_path / "a.h5"
    h5store.pack(path, features=x, progress=False, chunk=40)
    with h5py.File(path) as f:
        place = f["features/features"].id.get_chunk_info(2)
    with open(path, "r+b") as f:
        f.seek(place.byte_offset + place.size // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1]))
    for cache in ("1MiB", 0):
        with h5store.Reader(path, cache=cache) as r:
            loader = r.loader(batch_size=20, shuffle=False)
            for _ in range(2):
                with pytest.raises(CorruptChunkError, match=r"chunk 2 \(samples 80-119\)"):
                    for _ in loader.epoch(0):
                        pass
            loader = r.select(np.r_[:80, 120:200]).loader(batch_size=20, seed=0)
            assert sum(len(b) for b, in loader.epoch(0)) == 160


CTRL_C = """
import sys, threading, time, numpy as np, h5store
loader = h5store.Reader(sys.argv[1], cache=0).loader(batch_size=8, seed=0, window="20KiB")
# What numpy imports on first use is compiled code, and some of that drops an interrupt.
for batch in loader.epoch(0):
    pass
try:
    print("ready", flush=True)
    for e in range(10**6):
        for batch in loader.epoch(e):
            pass
except KeyboardInterrupt:
    ids = np.concatenate([b[0]["z"] for b in loader.epoch(0)])
    assert sorted(ids) == list(range(530)), ids
    left = [t.name for t in threading.enumerate() if not t.name.startswith("h5store") and t.name != "MainThread"]
    print("interrupted", left, flush=True)
"""


@pytest.mark.parametrize("wait", [0.0, 0.13, 0.31])
def test_ctrl_c(path, wait, start_python):
    child = start_python(CTRL_C, str(path))
    assert child.stdout.readline() == "ready\n"
    threading.Event().wait(wait)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (0, "interrupted []\n", "")


INTERRUPTED = """
import random, signal, sys, time, numpy as np, h5store

def ring(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, ring)
reader = h5store.Reader(sys.argv[1], cache=sys.argv[2], threads=2)
loader = reader.loader(batch_size=8, seed=0, window="6KiB")
list(loader.epoch(0))
for k in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.random() * 0.01 + 1e-4)
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            for _ in loader.epoch(k):
                pass
            reader.take(np.arange(k, 0, -1))
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
assert sorted(np.concatenate([b[0]["z"] for b in loader.epoch(0)])) == list(range(530))
print("whole")
"""


@pytest.mark.parametrize("cache", ["1MiB", "0"])
def test_interrupted_anywhere_it_reads_on(path, run_python, cache):
    """A signal may end any line of ours: no lock stays held, no read waits for ever."""
    assert run_python(INTERRUPTED, str(path), cache) == "whole\n"


@pytest.mark.parametrize("shuffle", [True, "full", False])
@pytest.mark.parametrize("n, batch_size, world_size", [(5, 1, 2), (7, 1, 3), (9, 2, 4), (23, 1, 2)])
def test_a_rank_that_repeats_its_last_sample_is_served_what_it_asks_for(tmp_path, shuffle, n, batch_size, world_size):
    h5store.pack(tmp_path / "a.h5", features=np.arange(n) * 11 + 5, progress=False, chunk=1)
    for cache in (0, "1MiB"):
        with h5store.Reader(tmp_path / "a.h5", cache=cache) as r:
            for seed, rank in itertools.product(range(5), range(world_size)):
                loader = r.loader(batch_size=batch_size, shuffle=shuffle, seed=seed, rank=rank,
                                  world_size=world_size, window=1)
                for step, batch in enumerate(loader.epoch(seed)):
                    np.testing.assert_array_equal(batch[0], loader.batch(seed, step)[0])


def test_memory_is_flat_over_epochs(tmp_path):
    h5store.pack(tmp_path / "a.h5", features=np.random.default_rng(0).random((4000, 100)), progress=False,
                 chunk="4KiB")
    with h5store.Reader(tmp_path / "a.h5", cache=0) as r:
        loader = r.loader(batch_size=64, seed=0, window="200KiB")
        tracemalloc.start()
        try:
            held = []
            for e in range(6):
                for _ in loader.epoch(e):
                    pass
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert held[-1] - held[1] < 100_000
        assert peak < 3_000_000  # the data are 3.2 MB; two windows and a batch are 0.5


# ---- ranks


@pytest.mark.parametrize("shuffle", KINDS)
@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_ranks_cover_all_samples_once(reader, shuffle, world_size):
    loaders = [reader.loader(batch_size=32, shuffle=shuffle, seed=1, rank=k, world_size=world_size, window="40KiB")
               for k in range(world_size)]
    assert len({len(loader) for loader in loaders}) == 1
    shares = [flat(served(loader.epoch(2))) for loader in loaders]
    assert sorted(flat(shares)) == list(range(N))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert f"rank 1 of {world_size}" in repr(loaders[1])


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_ranks_that_shuffle_without_a_seed_are_refused(reader, shuffle):
    with pytest.raises(OptionError, match="needs seed="):
        reader.loader(batch_size=8, shuffle=shuffle, rank=0, world_size=2)
    reader.loader(batch_size=8, shuffle=False, rank=0, world_size=2)


@pytest.mark.parametrize("options, name", [
    ({"batch_size": 0}, "batch_size"), ({"batch_size": 2.5}, "batch_size"), ({"batch_size": "8"}, "batch_size"),
    ({"shuffle": "yes"}, "shuffle"), ({"seed": -1}, "seed"), ({"seed": "a"}, "seed"), ({"window": "big"}, "window"),
    ({"rank": 2, "world_size": 2}, "rank"), ({"world_size": 0}, "world_size"), ({"world_size": 10**6}, "ranks"),
    ({"drop_last": 3}, "drop_last"),
])
def test_bad_knobs(reader, options, name):
    with pytest.raises(OptionError, match=name) as told:
        reader.loader(**{"batch_size": 8, "seed": 0, **options})
    assert str(told.value).startswith(reader.path) or name == "window"
    assert "EpochPlan" not in str(told.value)


def test_nothing_to_serve_is_said(reader):
    loader = reader.loader(batch_size=N + 1, drop_last=True)
    assert len(loader) == 0
    with pytest.raises(SchemaError, match="530 samples in batches of 531 with drop_last=True"):
        loader.epoch(0)
    with pytest.raises(SchemaError, match="no batches"):
        next(iter(reader.select([]).loader(batch_size=4)))


def test_repr(reader):
    shown = repr(reader.loader(batch_size=32, seed=7))
    assert "17 batches of 32" in shown and "seed 7" in shown and "'a.h5'" in shown and len(shown) <= 160


# ---- state


@pytest.mark.parametrize("shuffle", KINDS)
def test_iterating_goes_through_the_epochs(reader, shuffle):
    loader = reader.loader(batch_size=100, shuffle=shuffle, seed=4)
    for epoch in range(3):
        assert served(loader) == served(loader.epoch(epoch))


@pytest.mark.parametrize("at", [0, 1, 5, 6, 9])
def test_a_state_goes_on_with_the_next_batch(reader, at):
    loader = reader.loader(batch_size=100, seed=4, window="40KiB")
    wanted = flat(served(loader.epoch(e)) for e in range(3))
    stream = itertools.chain(loader, loader, loader)
    for _ in range(at):
        next(stream)
    state = json.loads(json.dumps(loader.state_dict()))
    other = reader.loader(batch_size=100, seed=4, window="40KiB")
    other.load_state_dict(state)
    assert served(itertools.islice(itertools.chain(other, other, other), 18 - at)) == wanted[at:]


GO_ON = """
import json, sys, h5store
path, state, threads, rank, world_size, batch_size = sys.argv[1:]
loader = h5store.Reader(path, threads=int(threads), cache=0).loader(
    batch_size=int(batch_size), seed=4, window="40KiB", rank=int(rank), world_size=int(world_size))
loader.load_state_dict(json.loads(state))
rest = [b[0]["z"].astype(int).tolist() for b in loader]
more = [b[0]["z"].astype(int).tolist() for b in loader]
print(json.dumps([rest, more]))
"""


def elsewhere(path, state, threads, rank, world_size, batch_size):
    done = subprocess.run([sys.executable, "-c", GO_ON, str(path), json.dumps(state), *map(str, (
        threads, rank, world_size, batch_size))], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_state_goes_on_in_another_process_with_other_threads(path):
    with h5store.Reader(path) as r:
        loader = r.loader(batch_size=40, seed=4, window="40KiB")
        wanted = served(loader.epoch(0)), served(loader.epoch(1))
        for _ in itertools.islice(loader, 5):
            pass
        rest, more = elsewhere(path, loader.state_dict(), 3, 0, 1, 40)
    assert rest == wanted[0][5:] and more == wanted[1]


@pytest.mark.parametrize("before, after, batch_size", [(1, 3, 40), (3, 2, 40), (2, 1, 25), (1, 1, 16)])
def test_another_world_size_takes_over_the_unseen_samples(path, before, after, batch_size):
    seen, states = [], []
    with h5store.Reader(path) as r:
        for rank in range(before):
            loader = r.loader(batch_size=40, seed=4, window="40KiB", rank=rank, world_size=before)
            seen += flat(served(itertools.islice(loader, 3)))
            states.append(loader.state_dict())
        assert all(s == states[0] for s in states)
    shares = [elsewhere(path, states[0], 2, rank, after, batch_size) for rank in range(after)]
    rest = flat(flat(s[0]) for s in shares)
    assert sorted(seen + rest) == list(range(N))
    assert sorted(flat(flat(s[1]) for s in shares)) == list(range(N))


def test_a_second_change_of_world_size(path):
    with h5store.Reader(path) as r:
        make = lambda k, size: r.loader(batch_size=20, seed=4, window="40KiB", rank=k, world_size=size)  # noqa: E731
        first = make(0, 1)
        seen = flat(served(itertools.islice(first, 4)))
        state = first.state_dict()
        for size in (3, 2, 5):
            loaders = [make(k, size) for k in range(size)]
            for loader in loaders:
                loader.load_state_dict(state)
                seen += flat(served(itertools.islice(loader, 2)))
            state = loaders[0].state_dict()
        last = make(0, 1)
        last.load_state_dict(state)
        seen += flat(served(last))
        assert sorted(seen) == list(range(N))


@pytest.mark.parametrize("change, text", [
    ({"version": 99}, "version 99"), ({"seed": 5}, "seed"), ({"shuffle": "full"}, "shuffle"),
    ({"store": "other"}, "store"), ({"window": 1}, "window"), ({"drop_last": True}, "drop_last"),
])
def test_a_state_of_something_else_is_refused(reader, change, text):
    loader = reader.loader(batch_size=20, seed=4)
    with pytest.raises(OptionError, match=text):
        loader.load_state_dict({**loader.state_dict(), **change})


@pytest.mark.parametrize("state", [{}, {"version": 1}, None, 3], ids=repr)
def test_what_is_no_state_is_refused(reader, state):
    with pytest.raises(OptionError, match="load_state_dict"):
        reader.loader(batch_size=20, seed=4).load_state_dict(state)


def test_a_state_belongs_to_the_samples_of_a_view(reader):
    one, two = (reader.select(np.arange(k, N, 2)).loader(batch_size=20, seed=4) for k in (0, 1))
    with pytest.raises(OptionError, match="store"):
        two.load_state_dict(one.state_dict())


def test_a_loader_pickles_with_its_place(reader):
    loader = reader.loader(batch_size=20, seed=4, window="20KiB")
    list(itertools.islice(loader, 3))
    raw = pickle.dumps(loader)
    assert len(raw) < 3000
    other = pickle.loads(raw)
    assert served(other) == served(loader)
    other.reader.close()


@pytest.mark.parametrize("fewer", [0, 1, 2])
def test_a_held_batch_is_known_however_the_interpreter_counts(monkeypatch, fewer):
    count = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda array: count(array) - fewer)
    spec = importlib.util.find_spec("h5store.windows")
    windows = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(windows)
    buffer = {"x": np.zeros(8), "y": np.zeros(8)}
    assert windows._unshared(buffer)
    held = buffer["y"][2:4]
    assert not windows._unshared(buffer)
    del held
    assert windows._unshared(buffer)
