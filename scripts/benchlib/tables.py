"""The table of everyone: who runs, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchlib.contender import Limit
from benchlib.ours import Store
from benchlib.peers import H5py, InMemory, MemoryMap, Zarr
from benchlib.peers_tf import FromGenerator, TFRecord
from benchlib.proof import Proof
from benchlib.rounds import Entry, Settings, race, ratio, ready
from benchlib.workloads import Data

WHOLE = Limit()  # ours, numpy and memory maps finish an epoch in a second or two
SLOW = Limit(batches=2)  # h5py's automatic chunks: under 100 samples a second
REFERENCE = "np.memmap"
STORES: tuple[tuple[str, str | None, str], ...] = (
    ("h5store", "lz4", "128KiB"), ("h5store, codec none", None, "128KiB"),
    ("h5store, codec gzip", "gzip", "128KiB"), ("h5store, codec zstd", "zstd", "128KiB"),
    ("h5store, chunk random", "lz4", "random"))


@dataclass(frozen=True)
class Row:
    """A contender's figures of one kind of access."""

    contender: str
    access: str
    samples_per_s: float
    runs: tuple[float, ...]
    to_memmap: float
    disk_to_raw: float
    mix: float
    batches: int
    whole: bool
    fault: str

    @property
    def correct(self) -> bool:
        return not self.fault


def contenders(names: Sequence[str], seconds: float) -> list[Entry]:
    """Everyone, or those whose name begins with one of `names`; the reference always."""
    part = Limit(seconds)  # who is slow, and random access, go as far as they come
    entries = [Entry(InMemory("shuffled"), WHOLE), Entry(InMemory("random"), part),
               Entry(MemoryMap("shuffled"), WHOLE), Entry(MemoryMap("random"), part)]
    for name, codec, chunk in STORES:
        entries += [Entry(Store(name, "shuffled", codec=codec, chunk=chunk), WHOLE),
                    Entry(Store(name, "random", codec=codec, chunk=chunk, cache=0), part)]
    entries += [Entry(Store("h5store, shuffle full, cached", shuffle="full", cache="2GiB"), WHOLE),
                Entry(H5py("gzip", "auto", "shuffled"), SLOW), Entry(H5py("gzip", "auto", "random"), SLOW),
                Entry(H5py("lz4", "128 KiB", "shuffled"), part),
                Entry(H5py("lz4", "128 KiB", "random"), part),
                Entry(FromGenerator(), part), Entry(TFRecord(), part),
                Entry(Zarr("shuffled"), part), Entry(Zarr("random"), part)]
    wanted = (REFERENCE, *names) if names else ("",)
    return [entry for entry in entries if entry.contender.name.startswith(wanted)]


def table(data: Data, names: Sequence[str], settings: Settings) -> list[Row]:
    """Race everyone on one workload."""
    entries = ready(contenders(names, settings.seconds), data, Proof.of(data), settings)
    race(entries, settings.rounds)
    references = {entry.contender.access: entry for entry in entries if entry.contender.name == REFERENCE}
    for entry in entries:
        entry.contender.close()
    return [row_of(entry, references[entry.contender.access], data) for entry in entries]


def row_of(entry: Entry, reference: Entry, data: Data) -> Row:
    """An entry's runs as figures."""
    last = entry.runs[-1]
    return Row(contender=entry.contender.name, access=entry.contender.access, samples_per_s=entry.rate,
               runs=tuple(run.rate for run in entry.runs), to_memmap=ratio(entry, reference),
               disk_to_raw=entry.disk_bytes / data.raw_bytes, mix=entry.mix, batches=last.batches,
               whole=last.whole, fault=entry.fault)
