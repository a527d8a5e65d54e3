"""SIGKILL at random moments of a pack: what commit() has returned for is there, and resuming ends in the same file.

A server process, which has no threads, forks one packer a round; the test kills packers. Each packer writes a log
of its own beside the store: a number after every commit() that has returned.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from h5store import Reader, verify

N = 6000
SERVER = """
import json, os, sys, traceback
import hdf5plugin  # here, or every packer spends most of its life importing it
import numpy as np
import h5store

WORDS = np.array(["dog", "cat", "猫", "", "ant"])

def block(lo, hi):
    i = np.arange(lo, hi)
    return {"features": {"x": (i[:, None] * 7 % 251 + np.arange(300)).astype("f4")},
            "labels": {"y": WORDS[(i * i // 900) % 5]}, "weights": i / 7}

def pack(path, log, stop, seed, **options):
    rng = np.random.default_rng(seed)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with h5store.Writer(path, chunk="16KiB", **options) as writer:
        at = len(writer)
        os.write(fd, b"start %d\\n" % at)
        while at < stop:
            to = min(stop, at + int(rng.integers(1, 200)))
            writer.append(**block(at, to))
            at = to
            if rng.random() < 0.7:
                writer.commit()
                os.write(fd, b"commit %d\\n" % len(writer))
        os.write(fd, b"seal %d\\n" % at)
    os.write(fd, b"done %d\\n" % at)

while line := sys.stdin.readline():
    child = os.fork()
    if child == 0:
        try:
            pack(**json.loads(line))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(child, flush=True)
    sys.stdin.readline()  # until it is waited for, the child's number is nobody else's
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Packers:
    """Starts packers and kills them."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log = folder / "train.h5", folder / "log"
        self._server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def run(self, kill_after: float | None = None, kill_at: str = "start", **options: Any) -> int:
        """Status of a packer that is killed so many seconds after it has logged `kill_at`, or not at all."""
        assert self._server.stdin and self._server.stdout
        job = {"path": str(self.path), "log": str(self.log), "stop": N, "seed": random.randrange(2**31), **options}
        print(json.dumps(job), file=self._server.stdin, flush=True)
        child = int(self._server.stdout.readline())
        assert child > 1
        if kill_after is not None:
            logged, end = len(self.lines()), time.monotonic() + 60
            while not any(line.startswith(kill_at) for line in self.lines()[logged:]) and time.monotonic() < end:
                time.sleep(0.0005)
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)
        print("wait", file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def acknowledged(self) -> int:
        return max((int(line.split()[1]) for line in self.lines() if line.startswith(("commit", "done"))), default=0)

    def resumed_from(self) -> int:
        """Where the packer that ran last began."""
        return [int(line.split()[1]) for line in self.lines() if line.startswith("start")][-1]

    def clean(self) -> None:
        for file in self.path.parent.iterdir():
            file.unlink()

    def close(self) -> None:
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        self._server.wait(30)
        self._server.stdout.close()


@pytest.fixture(scope="module")
def packers() -> Iterator[Packers]:
    # In memory where that can be: a killed process loses nothing that it has written, on whatever disk, and the
    # moments of a pack that waits for fsync most of its time are mostly one moment.
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shm, prefix="h5store-crash-") as folder:
        packers = Packers(Path(folder))
        yield packers
        packers.close()


@pytest.fixture(scope="module")
def whole(packers: Packers) -> tuple[str, float, float]:
    """SHA-256 of an uninterrupted pack, and the seconds that packing and sealing take."""
    packing, all_of_it = [], []
    for _ in range(3):
        packers.clean()
        began = time.monotonic()
        packers.run(kill_after=0, kill_at="seal")
        packing.append(time.monotonic() - began)
        packers.clean()
        began = time.monotonic()
        assert packers.run() == 0
        all_of_it.append(time.monotonic() - began)
    return sha(packers), min(packing), max(0.005, min(all_of_it) - min(packing))


def sha(packers: Packers) -> str:
    return hashlib.sha256(packers.path.read_bytes()).hexdigest()


def finish(packers: Packers, digest: str, **options: Any) -> None:
    """Resume to the end: nothing that was acknowledged is missing, and the file is that of one go."""
    acknowledged = packers.acknowledged()
    assert packers.run(resume=True, **options) == 0
    assert packers.resumed_from() >= acknowledged
    assert sha(packers) == digest
    assert sorted(file.name for file in packers.path.parent.iterdir()) == ["log", "train.h5"]


@pytest.mark.timeout(300)
def test_fifty_random_moments_of_packing(packers: Packers, whole: tuple[str, float, float]) -> None:
    digest, packing, _ = whole
    killed = lost = 0
    for _ in range(50):
        packers.clean()
        for _ in range(random.choice([1, 1, 2])):  # the resumed one is killed, too
            before = packers.acknowledged()
            killed += packers.run(kill_after=random.uniform(0, packing), resume=True) == signal.SIGKILL
            lost += packers.resumed_from() < before
        finish(packers, digest)
    assert lost == 0
    assert killed >= 25, "most packers were done before they were killed: nothing was shown"


@pytest.mark.timeout(300)
def test_random_moments_of_sealing(packers: Packers, whole: tuple[str, float, float]) -> None:
    digest, _, sealing = whole
    killed = 0
    for _ in range(15):
        packers.clean()
        done = packers.run(kill_after=random.uniform(0, sealing), kill_at="seal") == 0
        killed += not done
        sealing *= 0.8 if done else 1.1  # what it takes depends on the machine's other work
        if packers.path.exists():  # never a part of a store
            assert sha(packers) == digest
        finish(packers, digest)
    assert killed >= 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", ["start", "seal"])
def test_random_moments_of_adding_to_a_store(
    packers: Packers, whole: tuple[str, float, float], moment: str
) -> None:
    digest, packing, sealing = whole
    packers.clean()
    assert packers.run(stop=2100) == 0
    base = packers.path.read_bytes()
    killed, longest = 0, packing * 0.6 if moment == "start" else sealing
    for _ in range(8):
        packers.clean()
        packers.path.write_bytes(base)
        done = packers.run(kill_after=random.uniform(0, longest), kill_at=moment, append=True) == 0
        killed += not done
        longest *= 0.8 if done else 1.1
        found = packers.path.read_bytes()
        assert found == base or hashlib.sha256(found).hexdigest() == digest, "the old store, or the new one"
        if not done:
            finish(packers, digest, append=True)
    assert killed >= 3


def test_what_is_killed_and_resumed_is_a_whole_store(packers: Packers, whole: tuple[str, float, float]) -> None:
    packers.clean()
    packers.run(kill_after=whole[1] / 2)
    finish(packers, whole[0])
    assert verify(packers.path).ok
    with Reader(packers.path) as reader:
        assert len(reader) == N and reader["weights"][:].tolist() == [i / 7 for i in range(N)]
