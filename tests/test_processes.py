"""Forks, spawned processes and threads: handles are each process's own, whoever was reading when."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest

import h5store
from h5store.errors import StaleStoreError

N = 2000
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def data():
    x = np.random.default_rng(3).integers(0, 250, (N, 64), dtype="u1")
    return x, x.astype("u8").sum(1)


@pytest.fixture(scope="module")
def path(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("processes") / "a.h5"
    h5store.pack(path, features={"x": data[0]}, labels={"y": data[1]}, meta={"id": np.arange(N)}, progress=False,
                 codec="gzip", chunk=50)
    return path


@pytest.fixture(params=["64MiB", "20KiB", 0], ids=lambda c: f"cache={c}")
def reader(path, request):
    with h5store.Reader(path, cache=request.param, threads=2) as r:
        yield r


def check(batches):
    """Every label fits its sample; how many there were."""
    seen = 0
    for x, y in batches:
        assert (x.astype("u8").sum(1) == y).all()
        seen += len(y)
    return seen


def in_fork(work, timeout=60):
    """Run `work` in a forked child; its error is ours, and so is its silence."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            work()
            code = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(code)
    os.close(write)
    end = time.monotonic() + timeout
    status = None
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hung")
    told = os.read(read, 5000).decode()
    os.close(read)
    assert status == 0, told


# ---- fork


def test_a_fork_reads_what_the_parent_has_read(reader, data):
    reader["x"][0]

    def work():
        rng = np.random.default_rng(os.getpid())
        for _ in range(10):
            ids = rng.integers(-N, N, 100)
            x, y = reader.batch(ids)
            assert np.array_equal(x, data[0][ids]) and np.array_equal(y, data[1][ids])

    for _ in range(4):
        in_fork(work)
    assert np.array_equal(reader["x"][:], data[0])


def test_forks_at_any_moment_of_the_parents_reading(reader, data):
    """Pool threads busy, locks held, a cache half filled: the child starts from none of it."""
    stop, wrong = threading.Event(), []

    def read(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            ids = rng.integers(0, N, 300)
            if not np.array_equal(reader.take(ids)["x"], data[0][ids]):
                wrong.append(ids)

    threads = [threading.Thread(target=read, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    try:
        for _ in range(12):
            in_fork(lambda: check(reader.loader(batch_size=128, seed=0).epoch(0)) == N or os._exit(3))
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert not wrong


def test_a_fork_in_the_middle_of_an_epoch(reader):
    loader = reader.loader(batch_size=32, seed=0, window="20KiB")
    batches = loader.epoch(0)
    seen = [next(batches)[1] for _ in range(5)]

    def work():
        with pytest.raises(RuntimeError, match="does not survive a fork"):
            next(batches)
        assert check(loader.epoch(0)) == N

    in_fork(work)
    seen += [y for _, y in batches]
    assert sum(map(len, seen)) == N


def test_an_iterator_that_was_not_begun_does_not_hang_a_fork(reader):
    batches = reader.loader(batch_size=32, seed=0, window="20KiB").epoch(0)

    def work():
        with pytest.raises(RuntimeError, match="does not survive a fork"):
            next(batches)

    in_fork(work)
    assert check(batches) == N


def test_forks_of_forks(reader):
    def child():
        assert check(reader.loader(batch_size=100, seed=0).epoch(0)) == N
        in_fork(lambda: check(reader.loader(batch_size=100, seed=1).epoch(0)) == N or os._exit(3))

    in_fork(child)


def test_a_fork_that_closes_leaves_the_parent_its_handle(reader):
    reader["x"][0]
    in_fork(reader.close)
    assert check([reader.batch(np.arange(N))]) == N


def test_a_fork_keeps_none_of_the_parents_descriptors(path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("the system does not tell")

    def held():
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return [link for link in links if os.path.realpath(link) == str(path)]

    with h5store.Reader(path) as r:
        r["x"][0]
        assert len(held()) == 1

        def work():
            assert held() == []
            r["x"][0]
            assert len(held()) == 1

        in_fork(work)


def test_four_forked_workers_three_epochs(path, data):
    """What a trainer's workers do: the parent has read, then each worker reads its share of a shuffled epoch."""
    with h5store.Reader(path) as reader:
        assert reader["x"][0].tolist() == data[0][0].tolist()
        context = multiprocessing.get_context("fork")
        for epoch in range(3):
            order = np.random.default_rng(epoch).permutation(N)
            parts = np.array_split(order, 40)
            with context.Pool(4, initializer=_set, initargs=(reader,)) as pool:
                found = pool.map(_batch, parts)
            for ids, (x, y) in zip(parts, found):
                assert np.array_equal(x, data[0][ids]) and np.array_equal(x.astype("u8").sum(1), y)


_shared = None


def _set(reader):
    global _shared
    _shared = reader


def _batch(ids):
    return _shared.batch(ids)


# ---- spawn


def test_spawned_workers(path, data):
    """A worker gets the path, not the data, and reads for itself."""
    with h5store.Reader(path, threads=1) as reader:
        reader["x"][:]
        assert len(pickle.dumps(reader)) < 1000
        parts = np.array_split(np.random.default_rng(0).permutation(N), 6)
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            found = list(pool.map(h5store.Reader.batch, [reader] * 6, parts))
        for ids, (x, y) in zip(parts, found):
            assert np.array_equal(x, data[0][ids]) and np.array_equal(y, data[1][ids])


READ_PICKLED = """
import pickle, sys, numpy as np
reader = pickle.load(open(sys.argv[1], "rb"))
x, y = reader.batch(np.arange(len(reader)))
assert (x.astype("u8").sum(1) == y).all()
print(len(reader), int(y.sum()))
"""


def test_a_pickled_view_in_another_process(path, data, tmp_path, run_python):
    ids = np.arange(0, N, 7)[::-1]
    with h5store.Reader(path) as reader:
        (tmp_path / "view").write_bytes(pickle.dumps(reader.select(ids)))
    assert run_python(READ_PICKLED, str(tmp_path / "view")).split() == [str(len(ids)), str(data[1][ids].sum())]


def test_a_worker_is_told_of_a_replaced_store(tmp_path, data):
    path = tmp_path / "a.h5"
    h5store.pack(path, features=data[0], labels=data[1], progress=False)
    with h5store.Reader(path, cache=0) as reader:
        raw = pickle.dumps(reader)
        h5store.pack(path, features=data[0][::-1], labels=data[1], progress=False, overwrite=True)
        check([reader.batch([0, 5])])  # the parent goes on with the old one

        def work():  # a fork opens anew
            with pytest.raises(StaleStoreError, match="another file is at this path"):
                reader.batch([0])

        in_fork(work)
        with pytest.raises(StaleStoreError, match="another store is at this path"):
            pickle.loads(raw)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(raw)


# ---- threads


def test_many_threads_one_reader(reader, data):
    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(15):
            ids = rng.integers(-N, N, 50)
            assert np.array_equal(reader.take(ids, "x")["x"], data[0][ids])
            assert np.array_equal(reader["y"][ids], data[1][ids])
        return check(reader.loader(batch_size=100, seed=seed).epoch(0))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [N] * 8


def test_readers_made_and_dropped_in_threads(path, data):
    def work(seed):
        for k in range(10):
            with h5store.Reader(path, cache=0) as r:
                assert np.array_equal(r["x"][k::97], data[0][k::97])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_the_pool_is_one_whatever_the_readers(path):
    readers = [h5store.Reader(path, threads=2, cache=0) for _ in range(20)]
    for r in readers:
        check(r.loader(batch_size=100, seed=0).epoch(0))
    assert sum(t.name.startswith("h5store") for t in threading.enumerate()) <= 64
    readers[0].close()


# ---- ends


ENDS = {
    "iterators alive": "loader = r.loader(batch_size=10, seed=0, window='10KiB'); it = loader.epoch(0); next(it)",
    "iterator unstarted": "it = r.loader(batch_size=10, seed=0).epoch(0)",
    "many iterators": "its = [r.loader(batch_size=10, seed=k).epoch(0) for k in range(20)]; [next(i) for i in its]",
    "cycle": "box = []; it = r.loader(batch_size=10).epoch(0); box += [box, it]; next(it)",
    "sys.exit": "it = r.loader(batch_size=10).epoch(0); next(it); import sys; sys.exit(0)",
    "reading thread": "import threading; threading.Thread(target=lambda: [r['x'][:] for _ in range(50)]).start()",
    "daemon thread": "import threading; t = threading.Thread(target=lambda: [r['x'][:] for _ in range(10**6)], "
                     "daemon=True); t.start(); import time; time.sleep(0.2)",
    "read at exit": "import atexit; atexit.register(lambda: r['x'][:])",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_ends_quietly(path, end):
    code = f"import sys, h5store\nr = h5store.Reader(sys.argv[1], cache=0)\n{ENDS[end]}"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_error_ends_the_interpreter_with_that_error(path):
    code = ("import sys, h5store\nfor b in h5store.Reader(sys.argv[1], cache=0).loader(batch_size=10).epoch(0):\n"
            "    raise KeyError('mine')")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.strip().endswith("KeyError: 'mine'")
    assert done.stderr.count("Traceback") == 1


# ---- repacking while others read


REPACK = """
import sys, numpy as np, h5store
h5store.pack(sys.argv[1], features={"x": np.ones((100, 4), "f4") * 500}, labels={"y": np.ones(100, "i8")},
             progress=False, overwrite=True)
"""


def test_repacking_while_another_process_reads(tmp_path, run_python):
    path = tmp_path / "t.h5"
    old = np.arange(400, dtype="f4").reshape(100, 4)
    h5store.pack(path, features={"x": old}, labels={"y": np.zeros(100, "i8")}, progress=False, chunk=10)
    with h5store.Reader(path, cache=0) as reader:
        for i in range(100):
            if i == 50:
                run_python(REPACK, str(path))
            np.testing.assert_array_equal(reader["x"][i], old[i])
            assert reader["y"][i] == 0
        with h5store.Reader(path) as fresh:
            assert (fresh["x"][:] == 500).all() and (fresh["y"][:] == 1).all()
