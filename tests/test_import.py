"""`import h5store` is cheap: no extra, no thread, no file until something is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

EXTRAS = ("tensorflow", "keras", "torch", "jax", "grain", "matplotlib", "PIL", "pandas", "pyarrow", "sklearn")

REPORT = f"""
import json, os, sys, threading

def open_files():
    folder = "/proc/self/fd"
    links = [os.path.join(folder, number) for number in (os.listdir(folder) if os.path.isdir(folder) else ())]
    return sorted(os.readlink(link) for link in links if os.path.exists(link))

before = open_files()
import h5store
print(json.dumps({{
    "extras": [name for name in {EXTRAS!r} if name in sys.modules],
    "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
    "files": [path for path in open_files() if path not in before],
}}))
"""


@pytest.fixture
def imported(run_python: Callable[..., str]) -> dict[str, list[str]]:
    """What a fresh process has loaded, started and opened after `import h5store`."""
    return json.loads(run_python(REPORT))


def test_importing_loads_no_extra_starts_no_thread_and_opens_no_file(imported: dict[str, list[str]]) -> None:
    assert imported == {"extras": [], "threads": [], "files": []}
