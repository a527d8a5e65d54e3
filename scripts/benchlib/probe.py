"""What a fresh process sees of a store: how long it takes to open, how much memory an epoch needs.

A program of its own, started once per figure, so that nobody else's memory and imports count.
Run as `python probe.py open|first|epoch STORE THREADS`; prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

Figures = dict[str, float]

STATUS = Path("/proc/self/status")


def run(what: str, store: Path, threads: int) -> Figures:
    """Start this file as a process and return what it measured."""
    command = [sys.executable, __file__, what, str(store), str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def first(store: str, threads: int) -> Figures:
    """Milliseconds to open a store and take the first batch of a shuffled epoch."""
    import h5store

    start = time.perf_counter()
    reader = h5store.Reader(store, threads=threads)
    next(iter(reader.loader(batch_size=256, shuffle=True, seed=0).epoch(0)))
    return {"first_batch_ms": (time.perf_counter() - start) * 1000}


def open_and_batch(store: str, threads: int) -> Figures:
    """Milliseconds to open a store, and on to a batch of its first samples."""
    import h5store

    start = time.perf_counter()
    reader = h5store.Reader(store, threads=threads)
    opened = time.perf_counter()
    reader.batch(range(min(256, len(reader))))
    return {"open_ms": (opened - start) * 1000, "batch_ms": (time.perf_counter() - start) * 1000}


def epoch(store: str, threads: int) -> Figures:
    """Seconds of a second shuffled epoch, and the memory that both took above the import, in MB."""
    import h5store

    before = memory_mb("VmRSS")
    forget_peak()
    reader = h5store.Reader(store, threads=threads, cache=0)
    loader = reader.loader(batch_size=256, shuffle=True, seed=0)
    for number in (0, 1):
        start = time.perf_counter()
        for _ in loader.epoch(number):
            pass
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "memory_mb": memory_mb("VmHWM") - before}


def memory_mb(what: str) -> float:
    """A figure of /proc/self/status; where there is none, the peak since the start, which is larger."""
    if STATUS.exists():
        lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(lines[what].split()[0]) * 1024 / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def forget_peak() -> None:
    """Set the peak back to the present, or the import's own peak could hide the epoch's."""
    if STATUS.exists():
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    probes = {"open": open_and_batch, "first": first, "epoch": epoch}
    print(json.dumps(probes[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
