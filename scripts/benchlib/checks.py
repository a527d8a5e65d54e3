"""What h5store promises about speed, size and memory, each as one figure with the bound it must keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchlib import probe
from benchlib.contender import Limit, Unavailable
from benchlib.fit import fit_ratio, seconds_of
from benchlib.ours import Store, pack, packed_store
from benchlib.peers import H5py, MemoryMap, need
from benchlib.proof import Proof
from benchlib.rounds import Entry, Settings, quiet, race, ratio, ready
from benchlib.workloads import Data

SLOW = Limit(batches=2)  # automatic chunks serve under 100 samples a second: two batches a round tell enough
MANY_CHUNKS = 1_000_000

# For each ratio: our entry, theirs, and per workload what it must and, where set, should reach.
RACES: tuple[tuple[str, str, str, dict[str, tuple[float, float | None]]], ...] = (
    ("shuffled epoch / np.memmap, full permutation", "lz4", "memmap",
     {"W1": (0.35, 0.7), "W2": (0.6, 0.9), "W3": (0.8, 2.5)}),
    ("the same, codec=None", "none", "memmap", {"W1": (0.6, 1.2), "W2": (0.8, 2.0), "W3": (1.0, 2.9)}),
    ("the same, shuffle=\"full\", cached, second epoch", "full", "memmap",
     {"W1": (0.8, None), "W2": (0.8, None), "W3": (0.5, None)}),
    ("random batches, chunk=\"random\" / h5py gzip, automatic chunks (2 batches)", "random", "h5py auto",
     {"W1": (1000, None), "W2": (400, None), "W3": (500, None)}),
    ("random batches, default chunks / h5py lz4, 128 KiB", "lz4 random", "h5py lz4",
     {"W1": (4, None), "W2": (20, None), "W3": (4, None)}),
    ("shuffled epoch, codec=\"gzip\" / h5py gzip, slices of 256", "gzip", "h5py gzip",
     {"W1": (2, None), "W2": (2, None), "W3": (2, None)}),
)
DISK = {"W1": 0.5, "W2": 0.6, "W3": 0.65}
PACK = {"W1": 1.0, "W2": 0.7, "W3": 1.0}
MEMORY_MB = {"W1": 100.0, "W2": 150.0, "W3": 100.0}
FIRST_BATCH_MS = 20.0


@dataclass(frozen=True)
class Verdict:
    """One figure beside its bound."""

    what: str
    workload: str
    value: float
    must: float
    aim: float | None = None
    unit: str = "x"
    at_most: bool = False

    @property
    def kept(self) -> bool:
        return self.value <= self.must if self.at_most else self.value >= self.must


Check = Callable[[Data, Settings], Iterator[Verdict]]


def contenders(seconds: float) -> dict[str, Entry]:
    """Everyone who runs in the races, by the names that RACES uses."""
    part = Limit(seconds)
    return {
        "memmap": Entry(MemoryMap("shuffled")),
        "lz4": Entry(Store("h5store")),
        "none": Entry(Store("h5store, codec none", codec=None)),
        "full": Entry(Store("h5store, shuffle full", shuffle="full", cache="2GiB")),
        "gzip": Entry(Store("h5store, codec gzip", codec="gzip")),
        "random": Entry(Store("h5store, chunk random", "random", chunk="random", cache=0), part),
        "lz4 random": Entry(Store("h5store", "random", cache=0), part),
        "h5py auto": Entry(H5py("gzip", "auto", "random"), SLOW),
        "h5py lz4": Entry(H5py("lz4", "128 KiB", "random"), part),
        "h5py gzip": Entry(H5py("gzip", "256 samples", "batches"), part),
    }


def races(data: Data, settings: Settings) -> Iterator[Verdict]:
    """Every ratio of RACES, in one set of interleaved rounds, and the size of the file."""
    key = data.workload.key
    entries = contenders(settings.seconds)
    present = ready(entries.values(), data, Proof.of(data), settings)
    race(present, settings.rounds)
    if entries["memmap"].runs and (share := quiet(entries["memmap"])) < 0.9:
        settings.say(f"{key}: the machine was busy, np.memmap had {share:.0%} of a core; "
                     "who uses more cores lost more")
    for what, ours, theirs, bounds in RACES:
        if entries[ours].runs and entries[theirs].runs:
            must, aim = bounds[key]
            yield Verdict(what, key, ratio(entries[ours], entries[theirs]), must, aim)
    yield Verdict("file / raw", key, entries["lz4"].disk_bytes / data.raw_bytes, DISK[key], at_most=True)
    for entry in present:
        entry.contender.close()


def packing(data: Data, settings: Settings) -> Iterator[Verdict]:
    """Ours with journal, checksums and fsync; h5py's without any of them."""
    need("h5py", "hdf5plugin", "h5store")
    theirs = H5py("lz4", "128 KiB", "random")
    ours_path, theirs_path = data.folder / "pack-ours.h5", data.folder / "pack-theirs.h5"
    ratios = []
    for _ in range(settings.rounds):
        ours_s = seconds_of(lambda: pack(data, ours_path, threads=settings.threads))
        theirs_s = seconds_of(lambda: theirs.write(theirs_path, data))
        ratios.append(theirs_s / ours_s)
    ours_path.unlink()
    theirs_path.unlink()
    key = data.workload.key
    yield Verdict("pack / h5py lz4, 128 KiB", key, median(ratios), PACK[key])


def probed(what: str, figure: str, store: Path, settings: Settings) -> float:
    """The median of a figure over as many fresh processes as there are rounds."""
    return median(probe.run(what, store, settings.threads)[figure] for _ in range(settings.rounds))


def fresh_process(data: Data, settings: Settings) -> Iterator[Verdict]:
    """Memory of an epoch and time to the first batch, each in a process of its own."""
    need("h5store")
    key, store = data.workload.key, packed_store(data, settings.threads)
    memory = probed("epoch", "memory_mb", store, settings)
    yield Verdict("memory above the import, cache off", key, memory, MEMORY_MB[key], unit="MB", at_most=True)
    batch = probed("open", "batch_ms", store, settings)
    yield Verdict("open and `batch` of 256 samples", key, batch, FIRST_BATCH_MS, unit="ms", at_most=True)
    first = probed("first", "first_batch_ms", store, settings)
    yield Verdict("open and first batch, shuffled epoch", key, first, FIRST_BATCH_MS, unit="ms", at_most=True)


def two_threads(data: Data, settings: Settings) -> Iterator[Verdict]:
    """What a second core brings to a shuffled epoch."""
    one, two = Entry(Store("1 thread", threads=1)), Entry(Store("2 threads", threads=2))
    yield Verdict("2 threads / 1 thread", data.workload.key, _race_of(two, one, data, settings.rounds), 1.4)


def checksums(data: Data, settings: Settings) -> Iterator[Verdict]:
    """Seconds of an epoch with checksums to seconds without: more rounds, for so small a difference."""
    on = Entry(Store("verified", threads=settings.threads))
    off = Entry(Store("unverified", threads=settings.threads, verify=False))
    value = _race_of(off, on, data, 2 * settings.rounds + 1)
    yield Verdict("epoch with checksums / without", data.workload.key, value, 1.05, at_most=True)


def _race_of(ours: Entry, theirs: Entry, data: Data, rounds: int) -> float:
    for entry in (ours, theirs):
        entry.contender.prepare(data, 1)
    race([ours, theirs], 1)
    for entry in (ours, theirs):
        entry.runs.clear()
    race([ours, theirs], rounds)
    for entry in (ours, theirs):
        entry.contender.close()
    return ratio(ours, theirs)


def twice_the_samples(data: Data, settings: Settings) -> Iterator[Verdict]:
    """Half of the data against all of them: time must grow as the data, memory must not."""
    need("h5store")
    half = packed_store(data, settings.threads, samples=data.samples // 2)
    whole = packed_store(data, settings.threads)
    pairs = [[probe.run("epoch", store, settings.threads) for store in (half, whole)]
             for _ in range(settings.rounds)]
    seconds = median(two["seconds"] / one["seconds"] for one, two in pairs)
    memory = median(two["memory_mb"] / one["memory_mb"] for one, two in pairs)
    yield Verdict("epoch of twice the samples", data.workload.key, seconds, 2.2, at_most=True)
    yield Verdict("memory of twice the samples", data.workload.key, memory, 1.1, at_most=True)


def many_chunks(data: Data, settings: Settings) -> Iterator[Verdict]:
    """Seconds to open a store of a million chunks, one sample of 1 KiB in each; fewer with --samples."""
    need("h5store")
    import h5py
    import h5store

    chunks = max(1000, MANY_CHUNKS * data.samples // data.workload.samples)
    store = data.folder / f"h5store-{chunks}-chunks.h5"
    samples = np.broadcast_to(np.int32(0), (chunks, 256))
    h5store.pack(store, features=samples, chunk="1KiB", progress=False, overwrite=True,
                 threads=settings.threads)
    with h5py.File(store, "r") as file:
        stored = file["features/features"].id.get_num_chunks()
    seconds = probed("open", "open_ms", store, settings) / 1000
    yield Verdict(f"open a store of {stored:,} chunks", "-", seconds, 0.5, unit="s", at_most=True)


def training(data: Data, settings: Settings) -> Iterator[Verdict]:
    """Keras `fit` from the store against from memory."""
    value = fit_ratio(data, settings.threads, min(settings.rounds, 3))
    yield Verdict("Keras fit from the store / from memory", data.workload.key, value, 1.15, at_most=True)


# The checks beside the races, and the workloads each is made on; Keras last, for its threads stay.
CHECKS: tuple[tuple[Check, tuple[str, ...]], ...] = (
    (packing, ("W1", "W2", "W3")),
    (fresh_process, ("W1", "W2", "W3")),
    (two_threads, ("W1", "W2")),
    (checksums, ("W1", "W2", "W3")),
    (twice_the_samples, ("W1",)),
    (many_chunks, ("W1",)),
    (training, ("W1",)),
)


def check(everything: dict[str, Data], settings: Settings) -> list[Verdict]:
    """All the figures; a check whose package is missing is left out with a printed line."""
    verdicts: list[Verdict] = []
    for data in everything.values():
        settings.say(f"{data.workload.key}: races of {settings.rounds} rounds")
        verdicts += races(data, settings)
    for run, keys in CHECKS:
        for data in (everything[key] for key in keys if key in everything):
            what = f"{data.workload.key}: {run.__name__.replace('_', ' ')}"
            settings.say(what)
            try:
                verdicts += run(data, settings)
            except Unavailable as error:
                settings.say(f"{what} skipped: {error}")
    return verdicts
