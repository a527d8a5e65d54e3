"""What is measured on: three made-up data sets that compress as real ones do, kept as .npy memory maps.

Noise would flatter whoever stores without a codec, constants whoever compresses, so each workload imitates
the regularities of its kind: whole counts, padded tails, pictures with calm and busy areas.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Block = dict[str, np.ndarray]

VERSION = 1  # part of the folder's name: raise it when a generator changes, so that old data are not reused
BLOCK_BYTES = 32 << 20  # made and written a block at a time, so that memory stays small at any --samples
IMAGE_SIDE = 128
CLASSES_LIGHT_CURVES = 15
CLASSES_IMAGES = 10


@dataclass(frozen=True)
class BenchField:
    """One array of a workload: its name, its role in a store, and the shape and dtype of a sample."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def sample_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Workload:
    """A kind of data: its fields and the function that makes a block of samples."""

    key: str
    title: str
    samples: int
    fields: tuple[BenchField, ...]
    make: Callable[[np.random.Generator, int], Block]

    @property
    def sample_bytes(self) -> int:
        return sum(field.sample_bytes for field in self.fields)


@dataclass(frozen=True)
class Data:
    """A workload on disk: a folder of one .npy file a field, and beside them the contenders' files."""

    workload: Workload
    samples: int
    folder: Path

    @property
    def raw_bytes(self) -> int:
        return self.samples * self.workload.sample_bytes

    def maps(self) -> Block:
        """The fields as read-only memory maps, as a user would open them."""
        return {field.name: np.load(self.folder / f"{field.name}.npy", mmap_mode="r")
                for field in self.workload.fields}

    def roles(self, stop: int | None = None) -> dict[str, Block]:
        """Role -> field -> memory map of the first `stop` samples: the keywords of `h5store.pack`."""
        maps = self.maps()
        roles: dict[str, Block] = {}
        for field in self.workload.fields:
            roles.setdefault(field.role, {})[field.name] = maps[field.name][:stop]
        return roles

    def blocks(self, samples: int | None = None) -> Iterator[tuple[int, Block]]:
        """(start, block) over the whole data, for writers that append."""
        step = samples or max(1, BLOCK_BYTES // self.workload.sample_bytes)
        maps = self.maps()
        for start in range(0, self.samples, step):
            yield start, {name: array[start:start + step] for name, array in maps.items()}


def light_curves(rng: np.random.Generator, n: int) -> Block:
    """Photometry in six bands: a few harmonics, whole counts, and a tail of zeros where the season ended."""
    phase = np.linspace(0, 2 * np.pi, 100, dtype=np.float32)[None, :, None]
    period = rng.uniform(0.5, 6, (n, 1, 1)).astype(np.float32)
    shape = np.zeros((n, 100, 6), np.float32)
    for harmonic in (1, 2, 3):
        amplitude = rng.uniform(0, 1 / harmonic, (n, 1, 6)).astype(np.float32)
        shift = rng.uniform(0, 2 * np.pi, (n, 1, 6)).astype(np.float32)
        shape += amplitude * np.sin(harmonic * period * phase + shift)
    level = rng.lognormal(6.5, 0.8, (n, 1, 6)).astype(np.float32)
    counts = level * (1 + 0.3 * shape)
    counts += np.sqrt(level) * 0.5 * rng.standard_normal(counts.shape, np.float32)
    flux = np.maximum(np.rint(counts), 0)
    observed = np.where(rng.random(n) < 0.4, rng.integers(40, 100, n), 100)
    flux[np.arange(100)[None, :] >= observed[:, None]] = 0
    labels = np.zeros((n, CLASSES_LIGHT_CURVES), np.float32)
    labels[np.arange(n), rng.integers(0, CLASSES_LIGHT_CURVES, n)] = 1
    redshift = np.rint(rng.gamma(2, 0.2, n) * 1000) / 1000
    extinction = np.rint(rng.exponential(0.1, n) * 1000) / 1000
    host = np.stack([redshift, extinction], axis=1).astype(np.float32)
    return {"flux": flux, "host": host, "class": labels}


def images(rng: np.random.Generator, n: int) -> Block:
    """Small photographs: a smooth sky, grainy ground below a horizon, flat discs and boxes in front."""
    side = IMAGE_SIDE
    y, x = np.mgrid[:side, :side].astype(np.float32) / side
    low, high = rng.integers(40, 160, (2, n, 1, 1, 3)).astype(np.float32)
    tilt = rng.uniform(-0.5, 0.5, (n, 1, 1)).astype(np.float32)
    ramp = np.clip(y + tilt * x, 0, 1)[..., None]
    picture = (np.rint((low + (high - low) * ramp) / 6) * 6).astype(np.uint8)  # a smooth sky has few levels
    horizon = rng.uniform(0.3, 0.6, (n, 1, 1)) + 0.08 * np.sin(6 * x + rng.uniform(0, 6, (n, 1, 1)))
    grain = rng.integers(0, 24, picture.shape, np.uint8)
    picture += grain * (y > horizon)[..., None]
    for _ in range(3):
        paint_shape(rng, picture, x, y)
    return {"image": picture, "label": rng.integers(0, CLASSES_IMAGES, n)}


def paint_shape(rng: np.random.Generator, picture: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Paint one flat disc or box into each picture of a block."""
    n = len(picture)
    cx, cy = rng.uniform(0.1, 0.9, (2, n, 1, 1)).astype(np.float32)
    radius = rng.uniform(0.04, 0.16, (n, 1, 1)).astype(np.float32)
    dx, dy = np.abs(x - cx), np.abs(y - cy)
    round_ones = rng.random((n, 1, 1)) < 0.5
    inside = np.where(round_ones, dx * dx + dy * dy < radius * radius, np.maximum(dx, dy) < radius)
    colour = np.broadcast_to(rng.integers(0, 256, (n, 1, 1, 3), np.uint8), picture.shape)
    np.copyto(picture, colour, where=inside[..., None])


def table(rng: np.random.Generator, n: int) -> Block:
    """Orders: categorical codes, counts, prices in sixteenths, a few measured columns, some filled rarely."""
    columns = np.empty((n, 32), np.float32)
    columns[:, 0:8] = rng.integers(0, [2, 2, 3, 4, 7, 12, 24, 60], (n, 8))
    columns[:, 8:16] = rng.poisson([0.2, 0.5, 1, 2, 4, 9, 25, 80], (n, 8))
    columns[:, 16:22] = np.rint(rng.lognormal(5, 1, (n, 6)) * 16) / 16
    columns[:, 22:26] = np.rint(rng.normal(0, 1, (n, 4)) * 4096) / 4096
    columns[:, 26:32] = np.where(rng.random((n, 6)) < 0.05, rng.integers(1, 1000, (n, 6)), 0)
    target = np.rint(columns[:, 16] * (1 + columns[:, 8]) + rng.normal(0, 2, n)).astype(np.float32)
    return {"columns": columns, "target": target}


WORKLOADS = {
    "W1": Workload("W1", "light curves (100, 6) float32", 200_000, (
        BenchField("flux", "features", (100, 6), "float32"),
        BenchField("host", "aux", (2,), "float32"),
        BenchField("class", "labels", (CLASSES_LIGHT_CURVES,), "float32")), light_curves),
    "W2": Workload("W2", "images (128, 128, 3) uint8", 8_000, (
        BenchField("image", "features", (IMAGE_SIDE, IMAGE_SIDE, 3), "uint8"),
        BenchField("label", "labels", (), "int64")), images),
    "W3": Workload("W3", "table (32,) float32", 2_000_000, (
        BenchField("columns", "features", (32,), "float32"),
        BenchField("target", "labels", (), "float32")), table),
}


def make_data(workload: Workload, scale: float, root: Path) -> Data:
    """The workload's data under `root`, made if they are not there yet: the same numbers in every run."""
    samples = max(64, int(workload.samples * scale))
    data = Data(workload, samples, root / f"{workload.key}-{samples}-v{VERSION}")
    if data.folder.exists():
        return data
    part = data.folder.with_name(data.folder.name + ".part")  # a killed run leaves no half-made folder behind
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    targets = {field.name: np.lib.format.open_memmap(part / f"{field.name}.npy", "w+", field.dtype,
                                                     (samples, *field.shape)) for field in workload.fields}
    step = max(1, BLOCK_BYTES // workload.sample_bytes)
    for number, start in enumerate(range(0, samples, step)):
        block = workload.make(np.random.default_rng([VERSION, number]), min(step, samples - start))
        for name, array in block.items():
            targets[name][start:start + step] = array
    for target in targets.values():
        target.flush()
    part.rename(data.folder)
    return data
