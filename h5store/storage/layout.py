"""Bytes: where things lie in a store's file, format 1. The first of the few rooms that import h5py.

``docs/format.md`` is the written form of this module, and a test holds the two together.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import h5py
import numpy as np
import xxhash
from h5py import h5d, h5f, h5fd, h5g, h5p, h5s, h5t

from h5store.errors import OptionError, SchemaError
from h5store.schema import Column, Field, Schema, dumps
from h5store.storage.cache import parse_bytes
from h5store.storage.chunks import checksum
from h5store.storage.codecs import Codec, Filters
from h5store.storage.sink import Sink

FORMAT = 1
#: The group of what only h5store reads. Field datasets lie in one group a role.
PRIVATE = "_h5store"
#: The group of where the samples of variable-length fields end.
ENDS = f"{PRIVATE}/ends"
#: Length of the digest of what is not a chunk; see `h5store.storage.rest`.
REST_BYTES = 16

# 128 KiB: smaller chunks cost ratio and time for each, larger ones random reads and mixing.
# docs/decisions.md.
DEFAULT_CHUNK, DEFAULT_BYTES = "128KiB", 128 * 1024
# Fields of small samples get chunks of several blocks up to this size: a shuffled read takes single blocks of
# them, and what it decodes beside its block must stay small against the block of the large fields.
_SMALL_CHUNK = 16 * 1024
# "random": one sample of a light curve or an image, a few dozen of a table.
_RANDOM_CHUNK = 2 * 1024
# Samples of variable length may be of any size: what is read together must not depend on those that came first.
_RAGGED_BLOCK = 16
#: Of all chunks but those of one larger sample. A chunk is encoded and decoded whole, also where few samples are in it.
_MOST_ASKED = 64 << 20
#: Blosc holds sizes in 31 bits; HDF5 itself would stop at 4 GiB.
MAX_CHUNK = 2**31 - 2**16


@dataclass(frozen=True)
class Layout:
    """All that decides the bytes of a store beside its samples.

    Parameters
    ----------
    schema : Schema
    block : int
        Samples that are read together; every field's chunk is a whole multiple of it.
    chunks : mapping of str to int
        Samples per chunk of every field.
    codec : Codec
    length : int
        Samples in the store.
    """

    schema: Schema
    block: int
    chunks: Mapping[str, int]
    codec: Codec
    length: int = 0
    #: Rows of values of each variable-length field.
    totals: Mapping[str, int] = field(default_factory=dict)
    #: See `h5store.storage.origin`.
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def plan(cls, schema: Schema, codec: Any, chunk: Any) -> Layout:
        """Choose chunks for a schema.

        Raises
        ------
        OptionError, SchemaError
        """
        codec, spec = Codec.parse(codec), parse_chunk(chunk)
        largest = max((c for f in schema for c in f.columns), key=lambda f: f.nbytes)
        if largest.nbytes > MAX_CHUNK:
            raise SchemaError(f"field {largest.name!r}: one sample of shape {largest.shape} takes "
                              f"{largest.nbytes / 2**30:.1f} GiB; a chunk holds at least one sample and at most "
                              f"{MAX_CHUNK / 2**30:.1f} GiB; cut the samples smaller")
        if isinstance(spec, int):
            block, small = spec, _SMALL_CHUNK
            if block > 1 and block * largest.nbytes > _MOST_ASKED:
                raise OptionError(f"chunk: {block} samples of {largest.name!r} take "
                                  f"{block * largest.nbytes / 2**20:,.0f} MiB, and every chunk is decoded whole; "
                                  f"expected at most {max(1, _MOST_ASKED // largest.nbytes)} samples, "
                                  f"{_MOST_ASKED >> 20} MiB")
        else:
            block, small = max(1, spec[0] // largest.nbytes), min(spec[0], _SMALL_CHUNK)
            if any(f.ragged for f in schema):
                block = min(block, _RAGGED_BLOCK)
        chunks = {}
        for column in (c for f in schema for c in f.columns):
            size = DEFAULT_BYTES if isinstance(spec, int) else spec[0]
            chunks[column.name] = (max(1, size // column.nbytes) if cls._is_values(column)
                                   else block * max(1, small // (block * column.nbytes)))
        return cls(schema, block, chunks, codec)

    @property
    def columns(self) -> tuple[Field, ...]:
        """The datasets of all fields, in order."""
        return tuple(column for f in self.schema for column in f.columns)

    def rows(self, column: Field) -> int:
        """Length of a column: the samples, or of the values of a variable-length field, those of all samples."""
        return self.totals.get(column.name, 0) if self._is_values(column) else self.length

    def of(self, column: Field) -> str:
        """What the rows of a column are, for errors."""
        return "values" if self._is_values(column) else "samples"

    @staticmethod
    def _is_values(column: Field) -> bool:
        return isinstance(column, Column) and not column.ends

    def filters(self, field: Field) -> Filters:
        return self.codec.filters(field.dtype.itemsize, field.shape)

    def count(self, field: Field) -> int:
        """Chunks of a field."""
        return -(-self.rows(field) // self.chunks[field.name])

    def chunk_shape(self, field: Field) -> tuple[int, ...]:
        return (self.chunks[field.name], *field.shape)

    def finished(self, length: int, classes: Mapping[str, tuple[str, ...]], totals: Mapping[str, int]) -> Layout:
        return replace(self, length=length, schema=self.schema.with_classes(classes), totals=totals)

    def to_json(self) -> dict[str, Any]:
        fields = []
        for f in self.schema:
            first, *ends = [{"chunk": self.chunks[c.name],
                             "filters": [[number, list(values)] for number, values in self.filters(c)]}
                            for c in f.columns]
            more = {"rows": self.totals.get(f.name, 0), "ends": ends[0]} if ends else {}
            fields.append({**f.to_json(), **first, **more})
        return {"format": FORMAT, "length": self.length, "block": self.block, "codec": str(self.codec),
                "provenance": dict(self.provenance), "fields": fields}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        schema = Schema(tuple(Field.from_json(f) for f in data["fields"]))
        raws = [raw for f, one in zip(schema, data["fields"]) for raw in ([one, one["ends"]] if f.ragged else [one])]
        columns = [column for f in schema for column in f.columns]
        layout = cls(schema, int(data["block"]), {c.name: int(raw["chunk"]) for c, raw in zip(columns, raws)},
                     Codec.parse(data["codec"]), int(data["length"]),
                     {f.name: int(one["rows"]) for f, one in zip(schema, data["fields"]) if f.ragged},
                     dict(data.get("provenance", {})))
        if layout.block < 1 or layout.length < 0 or min(layout.totals.values(), default=0) < 0:
            raise ValueError("block or length is out of range")
        for c, raw in zip(columns, raws):
            chunk, unit = layout.chunks[c.name], 1 if cls._is_values(c) else layout.block
            if chunk < 1 or chunk % unit or math.prod(layout.chunk_shape(c)) * c.dtype.itemsize > 2**32:
                raise ValueError(f"chunk of field {c.name!r} is out of range")
            if [number for number, _ in raw["filters"]] != [number for number, _ in layout.filters(c)]:
                raise ValueError(f"filters of field {c.name!r} are not those of codec {layout.codec}")
        return layout


def parse_chunk(chunk: Any) -> int | tuple[int]:
    """The ``chunk=`` knob: samples as an int, or a 1-tuple of bytes for the largest field.

    Raises
    ------
    OptionError
    """
    if isinstance(chunk, (int, np.integer)) and not isinstance(chunk, bool):
        if chunk < 1:
            raise OptionError(f"chunk: expected at least 1 sample, got {chunk}")
        return int(chunk)
    if chunk == "random":
        return (_RANDOM_CHUNK,)
    size = parse_bytes(chunk, "chunk")
    if not 1024 <= size <= _MOST_ASKED:
        raise OptionError(f"chunk: expected a size from 1KiB to 64MiB, samples as an int, or 'random'; got {chunk!r}")
    return (size,)


def dataset_path(field: Field) -> str:
    if isinstance(field, Column) and field.ends:
        return f"/{ENDS}/{field.name.rpartition('/')[0]}"
    return f"/{field.role}/{field.name}"


def seal_of(schema_json: bytes, table: np.ndarray) -> str:
    """XXH3-128 over the format, the schema and the chunk table, as 32 hexadecimal digits."""
    digest = xxhash.xxh3_128(b"h5store %d\0" % FORMAT)
    digest.update(schema_json)
    digest.update(np.ascontiguousarray(table, "<u8").data)
    return digest.hexdigest()


def write_file(path: str, layout: Layout, chunks: Callable[[Field], Iterable[bytes]]) -> None:
    """Write a store to `path`, new; `h5store.storage.rest.refresh` makes it whole and durable.

    The same layout and chunks give the same bytes: no clock and no name goes into the file.

    Raises
    ------
    OSError
        With the errno of the call that failed.
    """
    import hdf5plugin  # noqa: F401  registers the filters that a dataset names; 10 ms, so only where needed

    sink = Sink(path)
    try:
        with _create(sink) as file:
            table = np.concatenate([np.zeros((0, 3), "<u8")] + [
                _write_field(file, layout, column, _unless_failed(sink, chunks(column))) for column in layout.columns])
            schema_json = dumps(layout.to_json())
            _write_plain(file, f"{PRIVATE}/schema", np.frombuffer(schema_json, np.uint8))
            _write_plain(file, f"{PRIVATE}/chunks", table)
            _write_plain(file, f"{PRIVATE}/rest", np.zeros(REST_BYTES, np.uint8))
            file.attrs["format"] = np.bytes_(b"h5store")
            file.attrs["format_version"] = np.uint32(FORMAT)
            file.attrs["seal"] = np.bytes_(seal_of(schema_json, table).encode())
    except Exception:
        sink.check()  # where a write failed, what libhdf5 made of it later is no news
        raise
    finally:
        sink.close()
    sink.check()


def _unless_failed(sink: Sink, chunks: Iterable[bytes]) -> Iterator[bytes]:
    for stored in chunks:
        sink.check()
        yield stored


def fsync(path: str) -> None:
    """Make a file or a folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _create(sink: Sink) -> h5py.File:
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fileobj_driver(h5fd.fileobj_driver, sink)
    # v110: HDF5 checksums its own metadata, and every HDF5 since 2016 reads it.
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    creation = h5p.create(h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    return h5py.File(h5f.create(b"%x" % id(sink), h5f.ACC_TRUNC, fcpl=creation, fapl=access))


def _group(file: h5py.File, name: str) -> None:
    if name not in file:
        creation = h5p.create(h5p.GROUP_CREATE)
        creation.set_obj_track_times(False)
        h5g.create(file.id, name.encode(), gcpl=creation)


def _write_field(file: h5py.File, layout: Layout, field: Field, chunks: Iterable[bytes]) -> np.ndarray:
    """Write a field's chunks; returns its part of the chunk table, (chunks, 3)."""
    folder = dataset_path(field)[1:].rpartition("/")[0]
    _group(file, folder.partition("/")[0])
    _group(file, folder)
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_chunk(layout.chunk_shape(field))
    creation.set_fill_time(h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    for number, values in layout.filters(field):
        creation.set_filter(number, h5py.h5z.FLAG_MANDATORY, values)
    # The sample axis may grow: HDF5 would refuse a chunk longer than a fixed axis.
    space = h5s.create_simple((layout.rows(field), *field.shape), (h5s.UNLIMITED, *field.shape))
    dataset = h5d.create(file.id, dataset_path(field).encode(), h5t.py_create(field.dtype, logical=True), space,
                         dcpl=creation)
    table = np.zeros((layout.count(field), 3), "<u8")
    zeros = (0,) * len(field.shape)
    for i, stored in enumerate(chunks):
        dataset.write_direct_chunk((i * layout.chunks[field.name], *zeros), stored)
        table[i, 2] = checksum(stored)

    def place(info: Any) -> None:
        table[info.chunk_offset[0] // layout.chunks[field.name], :2] = info.byte_offset, info.size

    dataset.chunk_iter(place)
    return table


def _write_plain(file: h5py.File, name: str, data: np.ndarray) -> None:
    _group(file, PRIVATE)
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_layout(h5d.CONTIGUOUS)
    creation.set_obj_track_times(False)
    dataset = h5d.create(file.id, name.encode(), h5t.py_create(data.dtype), h5s.create_simple(data.shape),
                         dcpl=creation)
    if data.size:
        dataset.write(h5s.ALL, h5s.ALL, np.ascontiguousarray(data))
