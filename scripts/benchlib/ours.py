"""h5store as a contender, through its public doors only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchlib.contender import BATCH, batch_ids
from benchlib.peers import need
from benchlib.workloads import BenchField, Block, Data

_PACKED: set[Path] = set()


def pack(data: Data, path: Path, *, threads: int, samples: int | None = None, **options: Any) -> None:
    """Pack the first `samples` of the data, over any older store."""
    need("h5store")
    import h5store

    options |= data.roles(samples)
    h5store.pack(path, progress=False, overwrite=True, threads=threads, **options)


def packed_store(data: Data, threads: int, codec: str | None = "lz4", chunk: str = "128KiB",
                 samples: int | None = None) -> Path:
    """A store of the data with these options, packed by this process: an older one's format may differ."""
    path = data.folder / f"h5store-{codec}-{chunk}-{samples or data.samples}.h5"
    if path not in _PACKED:
        pack(data, path, threads=threads, samples=samples, codec=codec, chunk=chunk)
        _PACKED.add(path)
    return path


class Store:
    """A store, read by its loader (access "shuffled") or by `Reader.take` (access "random").

    Parameters
    ----------
    name : str
        What the tables call it.
    access : {"shuffled", "random"}
    codec, chunk
        As `h5store.pack` takes them.
    shuffle : {True, "full"}
        As `Reader.loader` takes it.
    options
        Of `h5store.Reader`; `threads` is the run's unless given.
    """

    def __init__(self, name: str, access: str = "shuffled", *, codec: str | None = "lz4",
                 chunk: str = "128KiB", shuffle: bool | str = True, **options: Any) -> None:
        self.name, self.access = name, access
        self._codec, self._chunk, self._shuffle, self._options = codec, chunk, shuffle, options
        self._reader: Any = None
        self._loader: Any = None
        self._fields: tuple[BenchField, ...] = ()

    def prepare(self, data: Data, threads: int) -> int:
        need("h5store")
        import h5store

        path = packed_store(data, threads, self._codec, self._chunk)
        self._fields = data.workload.fields
        self._reader = h5store.Reader(path, **{"threads": threads} | self._options)
        self._loader = self._reader.loader(batch_size=BATCH, shuffle=self._shuffle, seed=0)
        return path.stat().st_size

    def epoch(self, seed: int) -> Iterator[Any]:
        if self.access == "random":
            return (self._reader.take(ids) for ids in batch_ids("random", len(self._reader), seed))
        return self._shuffled(seed)

    def _shuffled(self, seed: int) -> Iterator[Any]:
        yield from self._loader.epoch(seed)  # in a generator, so that the plan and the threads are timed too

    def fields(self, batch: Any) -> Block:
        if isinstance(batch, dict):
            return batch
        inputs, labels = batch
        names = [field.name for field in self._fields if field.role != "labels"]
        block: Block = dict(inputs) if isinstance(inputs, dict) else {names[0]: inputs}
        block.update({field.name: labels for field in self._fields if field.role == "labels"})
        return block

    def close(self) -> None:
        self._reader = self._loader = None
