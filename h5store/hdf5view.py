"""What other tools see: whether HDF5's own index leads to the bytes that the chunk table leads to.

libhdf5 can be made to crash or to hang by metadata that somebody forged, so it looks in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py

from h5store.schema import Field
from h5store.storage.layout import dataset_path
from h5store.storage.opening import hdf5_file
from h5store.storage.store import Store

#: Seconds and address space that the process gets.
_SECONDS, _MEMORY = 120, 8 << 30


def problems(path: str) -> list[str]:
    """Where the HDF5 view of a store differs from its chunk table, told by a child process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    try:
        done = subprocess.run([sys.executable, "-m", "h5store.hdf5view", path], env=environment, timeout=_SECONDS,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return [f"HDF5 had not read the file's index after {_SECONDS} seconds: it is damaged or forged"]
    try:
        return [str(line) for line in json.loads(done.stdout)]
    except ValueError:
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return [f"HDF5 broke off on reading the file's index ({ended}): it is damaged or forged"]


def _look(store: Store) -> Iterator[str]:
    assert store.layout is not None
    try:
        with hdf5_file(store.path, keep=False) as file:
            for f in store.layout.columns:
                told = _dataset_problem(store, file, f)
                if told:
                    yield f"field {f.name!r}: {told}"
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        yield f"HDF5 cannot read the file: {error}"


def _dataset_problem(store: Store, file: h5py.File, f: Field) -> str | None:
    layout, where = store.layout, dataset_path(f)
    assert layout is not None
    dataset = file.get(where) if isinstance(file.get(where, getlink=True), h5py.HardLink) else None
    if not isinstance(dataset, h5py.Dataset) or dataset.is_virtual or dataset.external:
        return f"{where!r} is not a dataset of this file"
    shape = (layout.rows(f), *f.shape)
    if dataset.shape != shape or dataset.chunks != layout.chunk_shape(f) or dataset.dtype != f.dtype:
        return (f"the dataset is {dataset.dtype} {dataset.shape} in chunks {dataset.chunks}, expected {f.dtype} "
                f"{shape} in chunks {layout.chunk_shape(f)}")
    found: dict[int, tuple[int, int]] = {}
    per = dataset.chunks[0]
    dataset.id.chunk_iter(lambda c: found.update({c.chunk_offset[0] // per: (c.byte_offset, c.size)}))
    table = store.table(f.name)
    for i, here in enumerate(zip(table.offsets.tolist(), table.sizes.tolist())):
        if found.get(i) != here:
            return f"chunk {i}: HDF5's index says bytes {found.get(i)}, the chunk table {here}"
    return None


def main(path: str) -> None:
    """Look, and print what was found as JSON."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    store = Store.open(path, cache=0, threads=1)
    print(json.dumps(list(_look(store))))
    store.close()


if __name__ == "__main__":
    main(sys.argv[1])
