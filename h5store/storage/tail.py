"""Bytes: samples of one field on their way into chunks. The same samples make the same chunks, however cut."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from h5store.schema import CODE_DTYPE, Field
from h5store.storage import codecs, pool
from h5store.storage.journal import Entry
from h5store.storage.tasks import Pending, Tasks

#: Chunks that one task encodes: enough that handing it over costs nothing beside the encoding.
_BATCH_BYTES = 1 << 19


class Tail:
    """Encodes whole chunks as they fill; holds the samples beyond the last whole one.

    Parameters
    ----------
    field : Field
    samples : int
        Per chunk.
    filters : Filters
    threads : int
    """

    def __init__(self, field: Field, samples: int, filters: codecs.Filters, threads: int) -> None:
        self.field, self.filters, self._threads = field, filters, threads
        self._rows = np.zeros((samples, *field.shape), field.dtype)
        self._filled = 0
        self._journaled = 0  # of the rows in the tail, those that a commit has written
        self._ready: list[bytes] = []

    def restore(self, rows: bytes) -> None:
        """Take back the samples beyond the last whole chunk, from a journal or a store."""
        samples = np.frombuffer(rows, self.field.dtype).reshape(-1, *self.field.shape)
        self._rows[:len(samples)] = samples
        self._filled = self._journaled = len(samples)

    def add(self, samples: np.ndarray) -> None:
        """Samples of the field's own dtype, C-contiguous. They are not referred to when this returns."""
        per, at = len(self._rows), 0
        if self._filled:
            at = min(per - self._filled, len(samples))
            self._rows[self._filled:self._filled + at] = samples[:at]
            self._filled += at
            if self._filled < per:
                return
            self._encode(self._rows)
        whole = (len(samples) - at) // per * per
        if whole:
            self._encode(samples[at:at + whole])
            at += whole
        rest = samples[at:]
        if at:
            self._filled = self._journaled = 0
        self._rows[self._filled:self._filled + len(rest)] = rest
        self._filled += len(rest)

    def _encode(self, samples: np.ndarray) -> None:
        """Encode whole chunks in the pool, in order, and wait: the caller may change its array afterwards."""
        # One axis a sample: with all of its own, and one for the chunks, numpy before 2.0 has too few.
        chunks = samples.reshape(len(samples) // len(self._rows), len(self._rows), -1)
        step = max(1, _BATCH_BYTES // max(1, self._rows.nbytes))

        parts = [chunks[i:i + step] for i in range(0, len(chunks), step)]
        encoded: list[list[bytes]] = [[] for _ in parts]

        def work(i: int) -> None:
            encoded[i] = [codecs.encode(self.filters, chunk) for chunk in parts[i]]

        Pending([Tasks([partial(work, i) for i in range(len(parts))])], self._threads, ahead=True).result()
        for part in encoded:
            self._ready += part

    @property
    def filled(self) -> int:
        """Samples beyond the last whole chunk."""
        return self._filled

    @property
    def pending_bytes(self) -> int:
        """Bytes that a commit would write."""
        return sum(map(len, self._ready)) + (self._filled - self._journaled) * self.field.nbytes

    def entry(self) -> Entry:
        """What is new since the last commit."""
        return Entry(self._ready, self._rows[self._journaled:self._filled].tobytes())

    def committed(self) -> None:
        """The last `entry` is in the journal."""
        self._ready = []
        self._journaled = self._filled

    def last_chunk(self) -> Iterator[bytes]:
        """The chunk of the tail, filled up with zeros, if there is one."""
        if self._filled:
            # As bytes: a longdouble's zero brings whatever lies in its padding.
            self._rows.reshape(-1).view(np.uint8)[self._filled * self.field.nbytes:] = 0
            yield encode_chunk(self.filters, self._rows)


def encode_chunk(filters: codecs.Filters, chunk: np.ndarray) -> bytes:
    """One chunk, encoded off the main thread."""
    out: bytes = pool.submit(codecs.encode, filters, chunk).result()
    return out


def decode_chunk(filters: codecs.Filters, stored: bytes, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """One chunk, decoded off the main thread."""
    out = np.empty(shape, dtype)
    pool.submit(codecs.decode, filters, np.frombuffer(bytearray(stored), np.uint8),
                out.reshape(-1).view(np.uint8)).result()
    return out


def recoded(field: Field, filters: codecs.Filters, samples: int, length: int, mapping: np.ndarray,
            chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Chunks of a text field with every code replaced by ``mapping[code]``; padding stays zero."""
    for i, stored in enumerate(chunks):
        codes = decode_chunk(filters, stored, (samples, *field.shape), CODE_DTYPE)
        left = length - i * samples
        codes[:left] = mapping[codes[:left]]
        yield encode_chunk(filters, codes)
