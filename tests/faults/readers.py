"""Many readers at once: forked, forkserver, spawned and in threads, while the parent reads; and a soak over many files.

    python tests/faults/readers.py reads [--count 1000000]
    python tests/faults/readers.py soak [--stores 1000] [--workers 16] [--rounds 6]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.random  # noqa: F401  now: its first use in a thread would hold the import lock over a fork

import h5store
from h5store.storage.handles import CAP

SAMPLES, BATCH, WORKERS = 20_000, 250, 4


def values(ids: np.ndarray) -> np.ndarray:
    return (ids[:, None] * np.arange(1, 33)).astype("f4")


def make(path: Path, samples: int = SAMPLES, codec: str | None = "lz4") -> None:
    ids = np.arange(samples)
    h5store.pack(path, features={"x": values(ids)}, meta={"id": ids}, codec=codec, progress=False, chunk=64)


def read(reader: h5store.Reader, count: int, seed: int) -> int:
    """Random samples, compared with what they must be; returns how many were wrong."""
    dice, wrong = np.random.default_rng(seed), 0
    for _ in range(count // BATCH):
        ids = dice.integers(0, len(reader), BATCH)
        found = reader.take(ids)
        wrong += int((found["id"] != ids).sum() + (found["x"] != values(ids)).any(axis=1).sum())
    return wrong


def work(reader: h5store.Reader, count: int, seed: int, answers: Any) -> None:
    answers.put(read(reader, count, seed))


def reads(options: argparse.Namespace, folder: Path) -> int:
    path, bad = folder / "many.h5", 0
    make(path)
    share = options.count // (4 * WORKERS) // BATCH * BATCH + BATCH
    for way in ("fork", "spawn", "forkserver", "threads"):
        start = time.monotonic()
        # A small cache, so that files are read and chunks come and go.
        with h5store.Reader(path, cache="64KiB") as reader:
            stop, in_parent = threading.Event(), [0]

            def busy() -> None:
                seed = 10_000
                while not stop.is_set():
                    in_parent[0] += read(reader, BATCH, seed)
                    seed += 1

            parent = threading.Thread(target=busy)
            parent.start()
            if way == "threads":
                wrong, lock = [0], threading.Lock()

                def task(seed: int) -> None:
                    found = read(reader, share, seed)
                    with lock:
                        wrong[0] += found

                threads = [threading.Thread(target=task, args=(i,)) for i in range(WORKERS)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(600)
                    bad += thread.is_alive()
                found = wrong[0]
            else:
                context = multiprocessing.get_context(way)
                answers = context.Queue()
                workers = [context.Process(target=work, args=(reader, share, i, answers)) for i in range(WORKERS)]
                for worker in workers:
                    worker.start()
                found = sum(answers.get(timeout=600) for _ in workers)
                for worker in workers:
                    worker.join(60)
                    bad += worker.exitcode != 0
            stop.set()
            parent.join()
            bad += found + in_parent[0]
        print(f"{way}: {share * WORKERS:,} samples read, {found} wrong, {in_parent[0]} wrong in the parent "
              f"({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{4 * WORKERS * share:,} reads, {bad} bad")
    return bad


def memory() -> int:
    """Bytes of this process alone, without what it shares with its parent."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))


def soak_one(paths: list[str], rounds: int, seed: int, together: Any, answers: Any) -> None:
    dice, sizes, most = np.random.default_rng(seed), [], 0
    before = len(os.listdir("/proc/self/fd"))
    readers = [h5store.Reader(p, cache=0, threads=1) for p in paths]
    for _ in range(rounds):
        for i in dice.permutation(len(readers)):
            ids = dice.integers(0, len(readers[i]), 8)
            assert (readers[i].take(ids)["id"] == ids).all()
            if i % 50 == 0:
                most = max(most, len(os.listdir("/proc/self/fd")) - before)
        together.wait(3000)  # pages shared with a worker that has ended would become this one's own
        sizes.append(memory())
    answers.put((most, sizes))


def soak(options: argparse.Namespace, folder: Path) -> int:
    make(folder / "0.h5", 500)
    paths = [str(folder / f"{i}.h5") for i in range(options.stores)]
    for path in paths[1:]:
        shutil.copyfile(paths[0], path)
    context = multiprocessing.get_context("fork")
    answers, together = context.Queue(), context.Barrier(options.workers)
    workers = [context.Process(target=soak_one, args=(paths, options.rounds, i, together, answers))
               for i in range(options.workers)]
    for worker in workers:
        worker.start()
    told = [answers.get(timeout=3000) for _ in workers]
    for worker in workers:
        worker.join()
    most = max(files for files, _ in told)
    # The first half warms up: buffers of threads, tables of the allocator.
    growth = max(sizes[-1] / sizes[len(sizes) // 2 - 1] - 1 for _, sizes in told)
    print(f"{options.workers} workers x {options.stores:,} stores x {options.rounds} rounds: at most {most} "
          f"descriptors (cap {CAP}); memory {max(s[-1] for _, s in told) / 2**20:.1f} MiB, growth over the last "
          f"half at most {growth:.2%}")
    return int(most > CAP + 2 or growth > 0.01)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("campaign", choices=("reads", "soak"))
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--stores", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        return int(bool({"reads": reads, "soak": soak}[options.campaign](options, Path(folder).resolve())))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
