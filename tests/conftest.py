"""What every test may use, and what every test is held to: no file and no thread left behind."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

# Deadlines measure the machine's other work, not ours. CI draws the same examples every time.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

FD_FOLDER = Path("/proc/self/fd")
GRACE = 2.0  # seconds for what has been told to stop to be gone

# A child ends with the process that started it; and Ctrl-C reaches it even where the tests run in a shell's
# background, whose processes begin by ignoring it.
CHILD = """import ctypes, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def open_files(folder: Path) -> set[str]:
    """Paths under `folder` that this process holds open; empty where the system does not tell."""
    if not FD_FOLDER.is_dir():
        return set()
    found = set()
    for link in FD_FOLDER.iterdir():
        try:
            target = os.readlink(link)
        except OSError:  # the descriptor that listed the folder
            continue
        if Path(target).is_relative_to(folder):
            found.add(target)
    return found


def threads_to_wait_for() -> set[threading.Thread]:
    """Threads that would keep the interpreter from ending; those of the process's one pool stay, and may."""
    return {
        thread for thread in threading.enumerate()
        if not thread.daemon and not re.fullmatch(r"h5store_\d+", thread.name)
    }


def left_over(look: Callable[[], set]) -> set:
    """What `look` still finds once cycles are collected and GRACE has passed."""
    end = time.monotonic() + GRACE
    found = look()
    while found and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
        found = look()
    return found


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail a test that leaves a thread running which is no daemon."""
    before = threads_to_wait_for()
    yield
    left = left_over(lambda: threads_to_wait_for() - before)
    assert not left, f"threads left running: {sorted(thread.name for thread in left)}"


@pytest.fixture(autouse=True)
def no_file_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a file in its own folder open."""
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder = request.getfixturevalue("tmp_path")
    yield
    left = left_over(lambda: open_files(folder))
    assert not left, f"files left open: {sorted(left)}"


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Run Python code in a process of its own, in the test's folder; gives what it printed."""

    def run(code: str, *args: str, timeout: float = 100) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            cwd=tmp_path, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def start_python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python code in a process of its own, with pipes; it ends with the test at the latest."""
    with ExitStack() as stack:

        def start(code: str, *args: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD + code, *args],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start
