"""A file that is changed under an open reader gives the old samples or a clear error, by every way of reading."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import h5store
from h5store.errors import CorruptChunkError, StaleStoreError

N, WIDE = 400, 600
IDS = np.arange(N)
#: No value is 0, so that zeros are seen.
X = (IDS[:, None] * 7 + np.arange(1, WIDE + 1)).astype("f4")
SERIES = [np.arange(1, 2 + i % 30) + 100.0 * i for i in range(N)]


def store(path: Path, sign: int = 1, **options: Any) -> None:
    h5store.pack(path, features={"x": sign * X}, labels={"y": sign * (IDS + 1)},
                 meta={"s": [sign * s for s in SERIES]}, chunk=8, progress=False, codec=None, **options)


def foreign(path: Path, sign: int = 1, tile: int = WIDE, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=sign * X, chunks=(8, tile), **options)
        file["y"] = sign * (IDS + 1)


def grow(path: Path, sign: int = 1) -> h5store.Writer:
    writer = h5store.Writer(path, chunk=8, codec=None, overwrite=True)
    for lo in range(0, N, 25):
        part = slice(lo, lo + 25)
        writer.append(features={"x": sign * X[part]}, labels={"y": sign * (IDS[part] + 1)},
                      meta={"s": [sign * s for s in SERIES[part]]})
        writer.commit()
    return writer


# ---- what happens to the file

def cut(path: Path) -> None:
    os.truncate(path, os.path.getsize(path) // 3)


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    """Another file with the same fields, of which no sample may be seen."""
    other = path.with_name("other")
    with h5py.File(path) if path.suffix == ".h5" else open(path) as file:
        ours = path.suffix == ".h5" and "_h5store" in file
    if ours:
        store(other, -1)
    elif path.suffix == ".h5":
        foreign(other, -1)
    else:
        writer: h5store.Writer | None = grow(path.with_name("another.h5"), -1)
        os.rename(path.with_name("another.h5.journal"), other)
        with pytest.warns(UserWarning, match="lost"):
            writer = None  # noqa: F841
    os.replace(other, path)


def replace_by_text(path: Path) -> None:
    path.with_name("other").write_text("diary")
    os.replace(path.with_name("other"), path)


CHANGES = [cut, cut_to_nothing, delete, replace, replace_by_text]


# ---- who reads it

@pytest.fixture(params=["store", "foreign", "foreign in tiles", "growing"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Callable[..., h5store.Reader], Path]]:
    """(how to open a reader, the file that it reads)."""
    path, kind = tmp_path / "a.h5", request.param
    if kind == "growing":
        writer: h5store.Writer | None = grow(path)  # noqa: F841  its journal goes with it
        yield lambda **options: h5store.Reader(path, growing=True, **options), Path(f"{path}.journal")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = None  # noqa: F841
        return
    if kind == "store":
        store(path)
        yield lambda **options: h5store.Reader(path, **options), path
        return
    foreign(path, tile=WIDE if kind == "foreign" else WIDE // 3, compression="gzip")

    def open_(**options: Any) -> h5store.Reader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return h5store.Reader.from_hdf5(path, features="x", labels="y", **options)

    yield open_, path


def old(x: np.ndarray, y: np.ndarray) -> None:
    np.testing.assert_array_equal(x, X[np.asarray(y) - 1])
    assert len(y) and (np.asarray(y) > 0).all()


def tried(read: Callable[[], None]) -> bool:
    """Whether old samples were read; else it was a clear error."""
    try:
        read()
        return True
    except (CorruptChunkError, StaleStoreError) as error:
        assert ".h5" in str(error) and len(str(error)) > 60
        return False


def read_some(reader: h5store.Reader, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, N, 20)
    taken = reader.take(ids)
    np.testing.assert_array_equal(taken["y"], ids + 1)
    old(taken["x"], taken["y"])
    if "s" in taken:
        assert all(np.array_equal(s, SERIES[i]) for s, i in zip(taken["s"], ids, strict=True))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("cache", [0, "64MiB"])
@pytest.mark.parametrize("when", ["before the first read", "after some", "after all"])
def test_samples_by_id(made: tuple[Callable[..., h5store.Reader], Path], change: Callable[[Path], None], cache: Any,
                       when: str) -> None:
    open_, path = made
    with open_(cache=cache) as reader:
        if when == "after some":
            read_some(reader, 0)
        elif when == "after all":
            reader.take(range(N))
        change(path)
        found = [tried(lambda seed=seed: read_some(reader, seed)) for seed in range(1, 6)]
        if change in (delete, replace, replace_by_text):
            assert all(found), "the file that is open is still there"
        elif change is cut_to_nothing and not cache:
            assert not any(found)
        reader.close()  # it opens the file anew, and that is not the one
        assert not tried(lambda: read_some(reader, 9))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("cache", [0, "64MiB"])
@pytest.mark.parametrize("seed", [None, 3])
def test_an_epoch_in_the_middle(made: tuple[Callable[..., h5store.Reader], Path], change: Callable[[Path], None],
                                cache: Any, seed: int | None) -> None:
    open_, path = made
    with open_(cache=cache) as reader:
        seen, batches = 0, iter(reader.loader(batch_size=16, seed=seed).epoch(0))
        for _ in range(5):
            old(*next(batches))
        change(path)

        def rest() -> None:
            nonlocal seen
            for x, y in batches:
                old(x, y)
                seen += len(y)

        if tried(rest):
            assert seen == N - 5 * 16
        else:
            assert change in (cut, cut_to_nothing)
