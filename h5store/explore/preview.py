"""A look at a few samples, for the card: how many bytes it may read is bounded, whatever the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from h5store.errors import H5StoreError
from h5store.explore import pictures
from h5store.explore.facts import channels_last, human, kind_of
from h5store.explore.html import escape
from h5store.explore.sample import distinct
from h5store.schema import Field, Role

if TYPE_CHECKING:
    from h5store.reader import Reader

# Decoded bytes of one preview, and of a chunk that it may open: some 10 ms. All previews of a card share the budget.
BUDGET = 32 * 2**20
_CHUNK = 8 * 2**20
_IMAGES = 8
_SERIES = 4
#: Values that a count of classes looks at.
_COUNTED = 2**18
_BINS = 24


@dataclass
class Budget:
    """Bytes that a card may still decode."""

    left: int = BUDGET

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


def preview(reader: Reader, field: Field, budget: Budget) -> str:
    """HTML of a few samples of a field; or why there is none."""
    count = {"image": _IMAGES, "series": _SERIES, "vector": _SERIES}.get(kind_of(field.seen.shape), 0)
    if not count or not len(reader) or field.text:
        return ""
    chunk = reader._store.chunk_bytes(field.name)
    if chunk is None:
        return ""
    if chunk > _CHUNK:
        return f'<span class="h5s-dim">no preview: a chunk is {human(chunk)}</span>'
    count = min(count, len(reader))
    if not budget.take(count * chunk):
        return ""
    places = np.linspace(0, len(reader) - 1, count).astype(np.int64)
    try:
        if field.ragged:
            size = int(reader._store.lengths(field.name, reader.ids[places]).sum()) * field.nbytes
            if not budget.take(size):
                return f'<span class="h5s-dim">no preview: {count} samples are {human(size)}</span>'
        samples: Any = reader.take(places, fields=[field.name])[field.name]
    except (H5StoreError, OSError) as error:
        return f'<span class="h5s-bad">cannot be read: {escape(error, 300)}</span>'
    titles = [f"sample {i}" for i in places.tolist()]
    if isinstance(samples, np.ndarray):
        return drawn(field.seen.shape, samples, titles)
    return "".join(drawn(s.shape, s[None], [t]) for s, t in zip(samples, titles) if s.size)


def drawn(shape: tuple[int, ...], samples: np.ndarray, titles: Sequence[str]) -> str:
    """Samples of one shape as small pictures."""
    kind = kind_of(shape)
    if kind == "image":
        images = pictures.as_pixels(pictures.thinned(pictures.as_images(samples)))
        height, width = images.shape[1:3]
        scale = 48 / max(height, width)
        size = f'width="{max(1, round(width * scale))}" height="{max(1, round(height * scale))}"'
        return "".join(f'<img src="{pictures.data_uri(image)}" {size} title="{escape(title)}" alt="{escape(title)}"/>'
                       for image, title in zip(images, titles))
    if kind == "series":
        order = [0, *(a + 1 for a in channels_last(shape))]
        moved = np.abs(samples) if samples.dtype.kind == "c" else samples
        moved = moved.transpose(order) if len(shape) == 2 else moved[..., None]
        return "".join(f'<span title="{escape(t)}">{pictures.sparkline(s)}</span>' for s, t in zip(moved, titles))
    if kind == "other":
        return ""
    values = (np.abs(samples) if samples.dtype.kind == "c" else samples).reshape(len(samples), -1)
    return "".join(f'<span title="{escape(t)}">{pictures.bars(s)}</span>' for s, t in zip(values, titles))


@dataclass
class Seen:
    """Values of a scalar field: `sample` of all `of`; fewer where reading all would take long."""

    values: np.ndarray
    of: int

    @property
    def whole(self) -> bool:
        return len(self.values) == self.of


def scalars(reader: Reader, field: Field, budget: Budget) -> Seen | None:
    """Values of a scalar field, all or from places spread evenly over the samples; None if that costs too much.

    Raises
    ------
    CorruptChunkError
    """
    chunk = reader._store.chunk_bytes(field.name)
    if chunk is None or chunk > _CHUNK or not len(reader):
        return None
    total = len(reader)
    if total <= _COUNTED and budget.take(max(chunk, total * field.nbytes)):
        places = np.arange(total)
    else:
        per = max(1, chunk // field.nbytes)
        runs = max(1, min(64, budget.left // (2 * chunk), -(-total // per)))
        if not budget.take(runs * chunk):
            return None
        length = min(per, _COUNTED // runs, total // runs)
        starts = np.linspace(0, total - length, runs).astype(np.int64)
        # No two runs overlap: together they are no longer than all samples.
        places = (starts[:, None] + np.arange(length)).reshape(-1)
    ids = places if reader._ids is None else reader._ids[places]
    return Seen(reader._read([field.name], ids)[field.name], total)


def is_classed(field: Field) -> bool:
    """Whether the values of a field are classes to be counted: text, and labels that are whole numbers."""
    return not field.shape and (field.text or field.role is Role.LABELS and field.dtype.kind in "bui")


def class_counts(field: Field, seen: Seen, most: int) -> tuple[list[tuple[Any, int]], int]:
    """Classes by name and their counts, and how many classes there are.

    In their order; of more than `most`, those that are the most frequent, the most frequent first.
    """
    low, found, counts = distinct(seen.values)
    places = np.arange(len(found)) if len(found) <= most else np.argsort(-counts, kind="stable")[:most]
    names = field.classes or ()
    items = [(low + value, count) for value, count in zip(found[places].tolist(), counts[places].tolist())]
    if field.text:
        items = [(names[c] if 0 <= c < len(names) else f"code {c}", n) for c, n in items]
    return items, len(found)


def histogram(seen: Seen) -> str:
    """Bars of how often values occur between the smallest and the largest."""
    values = np.abs(seen.values) if seen.values.dtype.kind == "c" else seen.values.astype(np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return '<span class="h5s-dim">no finite value</span>'
    low, high = float(values.min()), float(values.max())
    if low == high:
        return f'<span class="h5s-dim">all {low:g}</span>'
    if high / 2 - low / 2 > np.finfo(np.float64).max / 4:
        return f'<span class="h5s-dim">from {low:g} to {high:g}</span>'
    counts, _ = np.histogram(values, bins=_BINS, range=(low, high))
    return (f'<span class="h5s-dim">{low:.4g}</span> {pictures.bars(counts.astype(np.float64))} '
            f'<span class="h5s-dim">{high:.4g}</span>')
