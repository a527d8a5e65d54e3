"""Limits and shuffles: what is left out, that the order is recorded, seeded, mixed, and resumes."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

import h5store
from h5store import sources
from h5store.errors import JournalError, OptionError, SchemaError
from h5store.packing import preview

N = 41
X = np.arange(N * 3, dtype="f4").reshape(N, 3)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("X.npy", X)
    np.savez_compressed("X.npz", X)
    with h5py.File("X.h5", "w") as file:
        file["x"] = X
    os.mkdir("parts")
    for i, x in enumerate(X):
        np.savez(f"parts/{i}.npz", x=x)


KINDS = {
    "memory": lambda: sources.arrays(features={"x": X}),
    "npy": lambda: sources.arrays(features={"x": "X.npy"}),
    "npz": lambda: sources.arrays(features={"x": "X.npz"}),
    "hdf5": lambda: sources.hdf5("X.h5", features="x"),
    "files": lambda: sources.samples("parts", features="x"),
    "generator": lambda: sources.stream(({"x": x} for x in X), features="x", each="sample"),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> object:
    return KINDS[request.param]


def taken(path: str = "out.h5") -> dict[str, np.ndarray]:
    with h5store.Reader(path) as reader:
        return reader.take(slice(None))


def test_a_shuffled_pack_records_its_order(make: object) -> None:
    h5store.pack("out.h5", make(), progress=False, shuffle=3)
    found = taken()
    order = found["source_index"]
    assert sorted(order) == list(range(N)) and (order != np.arange(N)).any()
    np.testing.assert_array_equal(found["x"], X[order])
    assert sorted(p for p in os.listdir() if p.startswith("out.h5")) == ["out.h5"]


def test_a_seed_makes_one_order_and_another_seed_another(make: object) -> None:
    for path, seed in (("a.h5", 1), ("b.h5", 1), ("c.h5", 2)):
        h5store.pack(path, make(), progress=False, shuffle=seed)
    assert Path("a.h5").read_bytes() == Path("b.h5").read_bytes()
    assert (taken("a.h5")["source_index"] != taken("c.h5")["source_index"]).any()


def test_a_limit_takes_the_first_samples(make: object) -> None:
    h5store.pack("out.h5", make(), progress=False, limit=7)
    np.testing.assert_array_equal(taken()["x"], X[:7])
    h5store.pack("more.h5", make(), progress=False, limit=7, shuffle=0)
    assert sorted(taken("more.h5")["source_index"]) == list(range(7))
    h5store.pack("all.h5", make(), progress=False, limit=1000)
    assert len(taken("all.h5")["x"]) == N


class Stopped(Exception):
    """Stands for whatever interrupts a pack."""


def test_an_interrupted_shuffled_pack_resumes_to_the_same_file(
    make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("h5store.sources.order.BLOCK_BYTES", 100)
    monkeypatch.setattr("h5store.sources.order._WINDOW_BYTES", 300)
    monkeypatch.setattr("h5store.sources.order._RUN_BYTES", 40)
    monkeypatch.setattr("h5store.sources.files._MOST_SAMPLES", 4)
    h5store.pack("whole.h5", make(), progress=False, shuffle=5)
    write, calls = h5store.Writer.write, []

    def breaking(self: h5store.Writer, block: object) -> None:
        calls.append(block)
        if self.path.endswith("broken.h5") and len(calls) > 4:
            raise Stopped
        write(self, block)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(h5store.Writer, "write", breaking)
        h5store.pack("broken.h5", make(), progress=False, shuffle=5)
    with pytest.raises(JournalError, match="was begun by pack, shuffle=5 of 41 samples, and this is pack, shuffle=6"):
        h5store.pack("broken.h5", make(), progress=False, shuffle=6, resume=True)
    h5store.pack("broken.h5", make(), progress=False, shuffle=5, resume=True)
    assert Path("broken.h5").read_bytes() == Path("whole.h5").read_bytes()


def test_a_class_sorted_source_is_mixed() -> None:
    y = np.repeat(np.arange(4), 2500)
    h5store.pack("out.h5", sources.arrays(features={"x": np.zeros((10_000, 50))}, labels={"y": y}), progress=False,
                 shuffle=0)
    blocks = taken()["y"][:9984].reshape(-1, 256)
    assert min(len(set(block)) for block in blocks) == 4


def test_mistakes_are_told(make: object) -> None:
    for name in ("limit", "shuffle"):
        with pytest.raises(OptionError, match=f"{name}: expected an int of at least"):
            h5store.pack("out.h5", make(), progress=False, **{name: "few"})
    with pytest.raises(SchemaError, match="has a field 'source_index' already"):
        h5store.pack("out.h5", sources.arrays(features={"source_index": X}), progress=False, shuffle=1)
    assert not os.path.exists("out.h5")


def test_a_preview_tells_what_a_pack_makes(make: object) -> None:
    found = preview(make(), "gzip", 10)
    assert found.samples in (N, None)
    assert (str(found.layout.codec), found.layout.block) == ("gzip:6", 10) or found.layout.block == 10
    assert found.schema["x"].shape == (3,)
    assert not os.path.exists("out.h5")
