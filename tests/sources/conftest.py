"""What tests of sources share: packing with interruptions, and comparing files byte by byte."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import h5store


class Stopped(Exception):
    """Stands for whatever interrupts a pack."""


class Stopping:
    """A source that breaks off after some blocks."""

    def __init__(self, source: Any, after: int) -> None:
        self._source, self._after = source, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def blocks(self, start: int = 0) -> Iterator[Any]:
        for i, block in enumerate(self._source.blocks(start)):
            if i == self._after:
                break
            yield block
        raise Stopped


@pytest.fixture
def resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], bytes]:
    """Check that a pack which is interrupted after each of its first blocks resumes to the same file; gives it."""
    for module in ("base", "files", "hdf5", "order", "tables", "tfrecord"):
        # Not by its dotted name: the package has functions of the same names.
        monkeypatch.setattr(importlib.import_module(f"h5store.sources.{module}"), "BLOCK_BYTES", 400)
    monkeypatch.setattr("h5store.sources.files._MOST_SAMPLES", 4)

    def check(make: Callable[[], Any], most: int = 3) -> bytes:
        whole, broken = tmp_path / "whole.h5", tmp_path / "broken.h5"
        h5store.pack(whole, make(), progress=False)
        for after in range(1, most + 1):
            with pytest.raises(Stopped):
                h5store.pack(broken, Stopping(make(), after), progress=False)
            assert not broken.exists()
            h5store.pack(broken, make(), progress=False, resume=True)
            assert broken.read_bytes() == whole.read_bytes()
            broken.unlink()
        return whole.read_bytes()

    return check
