"""What people use without h5store, outside TensorFlow: numpy, memory maps, h5py and zarr."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchlib.contender import BATCH, Unavailable, batch_ids
from benchlib.workloads import BenchField, Block, Data

CHUNK_BYTES = 128 << 10
ZARR_WINDOW = 64  # chunks read together: wide enough to mix, and for zarrs to keep every thread busy


def need(*modules: str) -> None:
    """Raise Unavailable unless every module can be imported."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise Unavailable(f"{' and '.join(missing)} not installed")


def made_once(path: Path, make: Callable[[Path], None]) -> int:
    """Make a peer's file or folder if it is not there yet; returns its size in bytes."""
    if not path.exists():
        part = path.with_name(path.name + ".part")
        shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)
        make(part)
        part.rename(path)
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def chunk_samples(field: BenchField) -> int:
    """Samples in a chunk of about 128 KiB, as h5py and zarr are told it."""
    return max(1, CHUNK_BYTES // field.sample_bytes)


class _Arrays:
    """What numpy and memory maps share: a batch is fancy indexing of every field."""

    def __init__(self, access: str) -> None:
        self.access = access
        self._arrays: Block = {}

    def epoch(self, seed: int) -> Iterator[Block]:
        samples = len(next(iter(self._arrays.values())))
        order = batch_ids(self.access, samples, seed)
        return ({name: array[ids] for name, array in self._arrays.items()} for ids in order)

    def fields(self, batch: Block) -> Block:
        return batch

    def close(self) -> None:
        self._arrays = {}


class InMemory(_Arrays):
    """Every field loaded into memory."""

    name = "numpy in memory"

    def prepare(self, data: Data, threads: int) -> int:
        self._arrays = {name: np.array(array) for name, array in data.maps().items()}
        return data.raw_bytes


class MemoryMap(_Arrays):
    """The fields as .npy files, mapped."""

    name = "np.memmap"

    def prepare(self, data: Data, threads: int) -> int:
        self._arrays = data.maps()
        return data.raw_bytes


class H5py:
    """One HDF5 file through h5py.

    Parameters
    ----------
    codec : {"gzip", "lz4"}
        As `create_dataset` is told it, with the byte shuffle for wide types.
    chunks : {"auto", "128 KiB", "256 samples"}
        h5py's own guess, samples up to 128 KiB, or a batch.
    access : {"random", "shuffled", "batches"}
        "batches" reads slices of 256 samples in shuffled order, all that these files do well.
    """

    def __init__(self, codec: str, chunks: str, access: str) -> None:
        self.name = f"h5py {codec}, chunks {chunks}"
        self.access = "random" if access == "random" else "shuffled"
        self._slices = access == "batches"
        self._codec, self._chunks = codec, chunks
        self._file: Any = None
        self._samples = 0

    def prepare(self, data: Data, threads: int) -> int:
        need("h5py", "hdf5plugin")
        import h5py
        import hdf5plugin  # noqa: F401  registers the lz4 filter

        path = data.folder / f"h5py-{self._codec}-{self._chunks.replace(' ', '')}.h5"
        size = made_once(path, lambda part: self.write(part, data))
        self._file, self._samples = h5py.File(path, "r"), data.samples
        return size

    def write(self, path: Path, data: Data) -> None:
        """Append the data block after block, as a packing script does."""
        import h5py

        with h5py.File(path, "w") as file:
            for field in data.workload.fields:
                shape = (data.samples, *field.shape)
                file.create_dataset(field.name, shape, field.dtype, **self._options(field, data))
            # automatic chunks in one go, or gzip would decode and encode each of them again and again
            step = data.samples if self._chunks == "auto" else chunk_samples(data.workload.fields[0]) * 64
            for start, block in data.blocks(step):
                for name, array in block.items():
                    file[name][start:start + len(array)] = array

    def _options(self, field: BenchField, data: Data) -> dict[str, Any]:
        import hdf5plugin

        options: dict[str, Any] = {"shuffle": np.dtype(field.dtype).itemsize > 1}
        options.update({"compression": "gzip"} if self._codec == "gzip" else hdf5plugin.LZ4())
        if self._chunks == "auto":
            return options | {"chunks": True}
        samples = BATCH if self._chunks == "256 samples" else chunk_samples(field)
        return options | {"chunks": (min(samples, data.samples), *field.shape)}

    def epoch(self, seed: int) -> Iterator[Block]:
        if self._slices:
            starts = np.random.default_rng(seed).permutation(np.arange(0, self._samples, BATCH))
            return (self._read(slice(start, start + BATCH)) for start in starts.tolist())
        return (self._take(ids) for ids in batch_ids(self.access, self._samples, seed))

    def _take(self, ids: np.ndarray) -> Block:
        ranks = np.argsort(ids)  # h5py wants increasing positions
        back = np.argsort(ranks)
        return {name: array[back] for name, array in self._read(ids[ranks]).items()}

    def _read(self, positions: slice | np.ndarray) -> Block:
        return {name: self._file[name][positions] for name in self._file}

    def fields(self, batch: Block) -> Block:
        return batch

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Zarr:
    """A zarr 3 group read through zarrs: lz4 in chunks of 128 KiB of the largest field's samples.

    zarrs takes contiguous pieces of chunks only and hands anything else to zarr's slow path, so whole chunks
    are read and the samples picked from them. A shuffled epoch reads `ZARR_WINDOW` random chunks at a time,
    permutes their samples and cuts batches: what the libraries built on zarrs do.
    """

    name = "zarr with zarrs, lz4, chunks 128 KiB"

    def __init__(self, access: str) -> None:
        self.access = access
        self._arrays: dict[str, Any] = {}
        self._samples = self._chunk = 0

    def prepare(self, data: Data, threads: int) -> int:
        need("zarr", "zarrs")
        import zarr

        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": threads})
        path = data.folder / "zarr-lz4.zarr"
        largest = max(data.workload.fields, key=lambda field: field.sample_bytes)
        self._samples, self._chunk = data.samples, min(chunk_samples(largest), data.samples)
        size = made_once(path, lambda part: self._write(part, data))
        group: Any = zarr.open_group(path, mode="r")
        self._arrays = {field.name: group[field.name] for field in data.workload.fields}
        return size

    def _write(self, path: Path, data: Data) -> None:
        import zarr
        from zarr.codecs import BloscCodec

        group = zarr.open_group(path, mode="w")
        for field in data.workload.fields:
            wide = np.dtype(field.dtype).itemsize > 1
            codec = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle" if wide else "noshuffle")
            array = group.create_array(field.name, shape=(data.samples, *field.shape), dtype=field.dtype,
                                       chunks=(self._chunk, *field.shape), compressors=codec)
            array[:] = data.maps()[field.name]

    def epoch(self, seed: int) -> Iterator[Block]:
        if self.access == "random":
            return (self._take(ids) for ids in batch_ids("random", self._samples, seed))
        return self._pooled(seed)

    def _take(self, ids: np.ndarray) -> Block:
        held, window = self._read(np.unique(ids // self._chunk))
        places = np.searchsorted(held, ids)
        return {name: array[places] for name, array in window.items()}

    def _pooled(self, seed: int) -> Iterator[Block]:
        rng = np.random.default_rng(seed)
        chunks = rng.permutation(-(-self._samples // self._chunk))
        rest: Block = {}
        for first in range(0, len(chunks), ZARR_WINDOW):
            held, window = self._read(np.sort(chunks[first:first + ZARR_WINDOW]))
            order = rng.permutation(len(held))
            pool = {name: array[order] for name, array in window.items()}
            if rest:
                pool = {name: np.concatenate([rest[name], array]) for name, array in pool.items()}
            size = len(next(iter(pool.values())))
            whole = size - size % BATCH
            for start in range(0, whole, BATCH):
                yield {name: array[start:start + BATCH] for name, array in pool.items()}
            rest = {name: array[whole:] for name, array in pool.items()}
        if len(next(iter(rest.values()))):
            yield rest

    def _read(self, chunks: np.ndarray) -> tuple[np.ndarray, Block]:
        """The sample ids of whole chunks, increasing, and their samples."""
        ids = (chunks[:, None] * self._chunk + np.arange(self._chunk)).ravel()
        ids = ids[ids < self._samples]
        return ids, {name: array.oindex[ids] for name, array in self._arrays.items()}

    def fields(self, batch: Block) -> Block:
        return batch

    def close(self) -> None:
        self._arrays = {}
