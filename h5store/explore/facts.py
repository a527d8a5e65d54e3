"""What is known of a store without reading a sample: the figures that its repr and its card show."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from h5store.errors import H5StoreError
from h5store.moments import channel_axis, is_picture
from h5store.splits import part_names, part_sizes

if TYPE_CHECKING:
    from h5store.reader import Reader

#: A sample with more values than this along its only axis is a series; with fewer, a vector.
_VECTOR = 32
#: Splits of more samples are named, not counted.
_COUNTED = 2**22


def kind_of(shape: tuple[Any, ...]) -> str:
    """What a sample of this shape looks like: "scalar", "vector", "series", "image" or "other".

    Parameters
    ----------
    shape : tuple of int

    Returns
    -------
    str
        "image": (height, width), or with 1, 3 or 4 colours last or first. "series": one long axis, one of any
        length, or (time, channels) in either order. "vector": one axis of at most 32.
    """
    if not shape:
        return "scalar"
    if shape[0] is None:
        return "series" if len(shape) < 3 else "other"
    if len(shape) == 1:
        return "vector" if shape[0] <= _VECTOR else "series"
    if len(shape) == 2:
        return "image" if is_picture(shape) else "series"
    if len(shape) == 3 and (shape[-1] in (1, 3, 4) or shape[0] in (1, 3, 4)) and math.prod(shape) >= 16:
        return "image"
    return "other"


def shape_text(shape: tuple[Any, ...], most: int = 5) -> str:
    """A shape as ``100 × 6``; of many axes the first and the last; "any" for a length that differs."""
    if not shape:
        return "scalar"
    axes = ["any" if s is None else str(s) for s in shape]
    if len(shape) > most:
        return f"{' × '.join(axes[:2])} × … × {axes[-1]} ({len(axes)} axes)"
    return " × ".join(axes)


def human(size: float) -> str:
    """A number of bytes, e.g. ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size /= 1024
    else:
        unit = "TiB"
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


@dataclass(frozen=True)
class Facts:
    """Figures of a store and of the view of it.

    Attributes
    ----------
    samples, of : int
        In this view, and in the file.
    size, raw : int
        Bytes of the file, and of all samples decoded.
    codec : str or None
        None for a file that others wrote.
    stored, raw_of : dict of str to int
        Stored and decoded bytes of each field.
    chunks : dict of str to int
        Samples a chunk of each field.
    roles : str
        E.g. "3 features, 1 labels".
    splits : list of dict of str to int or None
        Parts of the saved splits, and their samples; None where there are too many to count.
    """

    samples: int
    of: int
    size: int
    raw: int
    codec: str | None
    stored: dict[str, int]
    raw_of: dict[str, int]
    chunks: dict[str, int]
    roles: str
    splits: list[dict[str, int | None]]

    @property
    def summary(self) -> str:
        """One line: samples, size, codec, ratio."""
        of = "" if self.samples == self.of else f" of {self.of:,}"
        plural = "" if self.samples == 1 else "s"
        codec = f", {self.codec}" if self.codec else ""
        ratio = f", {self.size / self.raw:.2f} of raw" if self.codec and self.raw else ""
        return f"{self.samples:,}{of} sample{plural}, {human(self.size)}{codec}{ratio}"


def facts_of(reader: Reader, most_fields: int = 64, splits: bool = False) -> Facts:
    """Facts of a reader; of the first `most_fields` fields where a store has more."""
    store, layout = reader._store, reader._store.layout
    fields = list(store.schema)[:most_fields]
    stored = {f.name: int(store.table(f.name).sizes.sum()) for f in fields} if layout else {}
    chunks = {f.name: layout.chunks[f.name] for f in fields} if layout else {}
    raw = sum(store.mean_bytes(f.name) for f in store.schema) * store.length
    roles = Counter(str(f.role) for f in store.schema)
    decoded = {f.name: store.mean_bytes(f.name) * store.length for f in fields}
    return Facts(len(reader), store.length, store.file_bytes, raw, str(layout.codec) if layout else None,
                 stored, decoded, chunks, ", ".join(f"{count:,} {role}" for role, count in roles.items()),
                 _splits(reader) if splits and layout else [])


def _splits(reader: Reader) -> list[dict[str, int | None]]:
    # The file may be gone by now; what is shown of it then lacks its splits, and reading says why.
    with contextlib.suppress(OSError, H5StoreError):
        length = reader._store.length
        return [dict(part_sizes(reader.path, names, length)) if length <= _COUNTED else dict.fromkeys(names)
                for names in part_names(reader.path)[:8]]
    return []


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Order of a sample's axes that puts its channels last."""
    axis = channel_axis(shape)
    axes = tuple(range(len(shape)))
    return axes if axis is None else (*axes[:axis], *axes[axis + 1:], axis)
