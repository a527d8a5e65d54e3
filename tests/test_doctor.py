"""What `doctor` tells of a machine and a store, and of those that are not as they should be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

import h5store
from h5store.doctor import Diagnosis, Finding


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "x.h5"
    h5store.pack(path, features=np.arange(600.0).reshape(200, 3), progress=False)
    return path


def finding(diagnosis: Diagnosis, what: str) -> Finding:
    return next(f for f in diagnosis.findings if f.what == what)


def test_a_whole_store_on_a_sound_machine(store: Path) -> None:
    before = {name: (store.parent / name).read_bytes() for name in os.listdir(store.parent)}
    told = h5store.doctor(store)
    assert h5store.__version__ in finding(told, "versions").found
    assert h5py.version.hdf5_version in finding(told, "versions").found
    assert "blosc" in finding(told, "filters").found and not finding(told, "filters").advice
    assert "200 samples" in finding(told, "store").found
    assert "flock works" in finding(told, "locks").found
    assert "MB/s" in finding(told, "disk").found
    assert "none" in finding(told, "writer").found
    assert str(told).count("\n") >= len(told.findings) - 1
    assert {name: (store.parent / name).read_bytes() for name in os.listdir(store.parent)} == before


def test_without_a_store_only_the_machine_is_looked_at() -> None:
    told = h5store.doctor()
    assert told.path is None
    assert {f.what for f in told.findings} == {"versions", "filters", "kernel", "cores", "descriptors", "HDF5 locks"}


def test_a_damaged_store_is_told_with_the_way_out(store: Path) -> None:
    store.write_bytes(store.read_bytes()[:-100])
    told = h5store.doctor(store)
    assert "cut short" in finding(told, "store").found
    assert "--repair" in finding(told, "store").advice
    assert not told.ok


def test_nothing_there_is_no_crash(tmp_path: Path) -> None:
    told = h5store.doctor(tmp_path / "missing" / "x.h5")
    assert "no such file" in finding(told, "store").found
    assert "no folder" in finding(told, "locks").found
    assert "cannot be told" in finding(told, "disk").found


def test_a_writer_at_work_and_an_interrupted_one(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    writer = h5store.Writer(path)
    writer.append(features=np.zeros((5, 2)))
    writer.commit()
    assert "at work" in finding(h5store.doctor(path), "writer").found
    del writer
    told = finding(h5store.doctor(path), "writer")
    assert "interrupted" in told.found and "resume=True" in told.advice


def test_few_descriptors_and_a_lock_setting_are_seen(run_python: Callable[..., str]) -> None:
    out = run_python("import os, resource, h5store\n"
                     "os.environ['HDF5_USE_FILE_LOCKING'] = 'FALSE'\n"
                     "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
                     "told = h5store.doctor(); print(told); print(told.ok)")
    assert "ulimit -n" in out and "'FALSE'" in out and out.split()[-1] == "False"


def test_network_file_systems_are_known_by_their_mount(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    import sys

    module = sys.modules["h5store.doctor"]
    monkeypatch.setattr(module, "_mount_of", lambda path: ("nfs4", "/data"))
    told = finding(h5store.doctor(store), "file system")
    assert "another machine" in told.found and "local disk" in told.advice
