"""Bytes: from a base, a journal and a tail to one sealed file that takes its place in a single step."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping

import numpy as np

from h5store.errors import CorruptChunkError, StaleStoreError
from h5store.schema import Field
from h5store.storage import rest
from h5store.storage.chunks import checksum
from h5store.storage.handles import Identity
from h5store.storage.journal import FieldLog, Journal
from h5store.storage.layout import Layout, fsync, write_file
from h5store.storage.opening import StoreFile, open_store
from h5store.storage.tail import Tail, decode_chunk, recoded


class Base:
    """The sealed store that a writer adds to, open until `close`."""

    def __init__(self, path: str) -> None:
        self._fd = -1
        self.file: StoreFile = open_store(path)
        self.layout = self.file.layout
        # A handle of its own, not one that readers share: what it keeps open is not needed after sealing.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if Identity.of(os.fstat(self._fd)) != self.file.source.identity:
            self.close()
            raise StaleStoreError(f"{path}: was replaced while it was opened, by what is no writer; try again")

    def chunk(self, field: Field, i: int) -> bytes:
        """Stored bytes of a chunk, checked.

        Raises
        ------
        CorruptChunkError
        """
        source, table = self.file.source, self.file.tables[field.name]
        stored = bytearray(int(table.sizes[i]))
        source.read_into(self._fd, int(table.offsets[i]), memoryview(stored))
        if table.sums is None or checksum(stored) != table.sums[i]:
            raise CorruptChunkError(f"{source.path}[{field.name!r}] chunk {i}: checksum differs; the file is damaged, "
                                    f"run 'h5store verify {source.path}'")
        return bytes(stored)

    def rows(self, field: Field) -> bytes:
        """Raw samples beyond the last whole chunk."""
        rest = self.layout.rows(field) % self.layout.chunks[field.name]
        if not rest:
            return b""
        chunk = decode_chunk(self.layout.filters(field), self.chunk(field, self.layout.count(field) - 1),
                             self.layout.chunk_shape(field), field.dtype)
        return chunk[:rest].tobytes()

    def made_from(self, journal: Journal) -> bool:
        """Whether this is the store that sealing `journal` made: its length, its fields, its samples at the end."""
        header = Layout.from_json(journal.header["layout"])
        if self.layout.length != journal.length or header.schema.mismatch(self.layout.schema):
            return False
        for field in self.layout.columns:
            if field.text:  # its codes may have been put in another order
                continue
            whole, added = self.layout.rows(field) // self.layout.chunks[field.name], journal.fields[field.name].sums
            sums = self.file.tables[field.name].sums
            if sums is None or sums[whole - len(added):whole].tolist() != added.tolist():
                return False
            if not self.rows(field).endswith(journal.rows(field.name)):
                return False
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def seal(path: str, layout: Layout, base: Base | None, journal: Journal | None, tails: Mapping[str, Tail],
         mappings: Mapping[str, np.ndarray | None]) -> None:
    """Write the store beside `path`, put it there, and remove the journal.

    Parameters
    ----------
    layout : Layout
        Finished: with the length and the classes.
    mappings : mapping of str to ndarray or None
        Of text fields: code while writing -> final code; None where they are the same.

    Raises
    ------
    OSError
        Nothing has changed at `path`, and the journal is as it was.
    """
    _check_space(path, layout, base, journal)
    aside = f"{path}.sealing"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)

    def chunks(field: Field) -> Iterator[bytes]:
        found = _chunks(field, base, journal, tails[field.name])
        mapping = mappings.get(field.name)
        if mapping is None:
            return found
        return recoded(field, layout.filters(field), layout.chunks[field.name], layout.length, mapping, found)

    try:
        write_file(aside, layout, chunks)
        rest.refresh(aside)
        with contextlib.suppress(OSError):
            shutil.copymode(path, aside)
        os.replace(aside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        if not isinstance(error, OSError) or error.errno is None:
            raise
        raise OSError(error.errno, f"{os.strerror(error.errno)} while sealing{_safe(layout, journal)}mend that and "
                      "open again with resume=True", path) from error
    fsync(os.path.dirname(path))
    if journal is not None:
        journal.close()
        os.unlink(journal.path)


def _chunks(field: Field, base: Base | None, journal: Journal | None, tail: Tail) -> Iterator[bytes]:
    """All chunks of a field in order: of the base, of the journal, of the tail."""
    if base is not None:
        for i in range(base.layout.rows(field) // base.layout.chunks[field.name]):
            yield base.chunk(field, i)
    log = journal.fields[field.name] if journal is not None else FieldLog()
    for i in range(len(log.offsets)):
        assert journal is not None
        yield journal.chunk(field.name, i)
    yield from tail.last_chunk()


def _check_space(path: str, layout: Layout, base: Base | None, journal: Journal | None) -> None:
    # HDF5's index and the table take some bytes a chunk; the rest is headers.
    need = (journal.size if journal is not None else 0) + 64 * sum(map(layout.count, layout.columns)) + (1 << 16)
    if base is not None:
        need += base.file.source.identity.size
    usage = shutil.disk_usage(os.path.dirname(path))
    if usage.total and usage.free < need:  # some network file systems tell nothing, as zeros
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} to seal: {need:,} bytes are needed, {usage.free:,} "
                      f"are free{_safe(layout, journal)}make room and open again with resume=True", path)


def _safe(layout: Layout, journal: Journal | None) -> str:
    return "; " if journal is None else f"; all {layout.length:,} samples are safe in {journal.path}: "
