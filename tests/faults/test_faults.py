"""A quick part of what `scripts/faults.sh` does as a whole: the writer under faults of every kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCH = [sys.executable, str(Path(__file__).with_name("bench.py"))]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the shim stands before Linux's calls"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim is compiled by gcc"),
]


def bench(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*before, *BENCH, *arguments], capture_output=True, text=True, timeout=110)


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: what the bench lays out has no need of a real fsync."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("campaign", [
    ("cuts", "--count", "2"),
    ("power", "--count", "40"),
    ("calls", "--count", "25"),
    ("kills", "--count", "6"),
], ids=lambda campaign: campaign[0])
def test_nothing_committed_is_lost(campaign: tuple[str, ...], quick: Path) -> None:
    done = bench(*campaign, "--folder", str(quick), "--seed", "1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("0 lost, 0 phantom") == 3


def test_the_bench_sees_a_writer_that_forgets_fsync(quick: Path) -> None:
    done = bench("power", "--count", "100", "--kind", "new", "--no-fsync", "--folder", str(quick))
    assert done.returncode != 0
    assert "lost: " in done.stderr or "Error" in done.stderr


def test_a_disk_that_fills_up_loses_nothing(tmp_path: Path) -> None:
    small = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1536k tmpfs "$0" && exec "$@"', str(tmp_path))
    tried = shutil.which("unshare") and subprocess.run([*small, "true"], capture_output=True).returncode == 0
    if not tried:
        pytest.skip("no leave to mount a file system")
    done = bench("full", "--count", "32768", "--kind", "append", "--folder", str(tmp_path), before=small)
    assert done.returncode == 0, done.stderr[-3000:]
    runs, refused = (int(part.split()[0]) for part in done.stdout.split(": ")[1].split(";")[0].split(", "))
    assert 0 < refused < runs
