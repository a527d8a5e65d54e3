"""Bytes: the chunk table, where each chunk of a field lies in the file. Knows no roles and no batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash

from h5store.errors import FormatError


def checksum(stored: object) -> int:
    """XXH3-64 of stored bytes, as in the chunk table."""
    return xxhash.xxh3_64_intdigest(stored)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ChunkTable:
    """Where the chunks of one field lie; chunk i holds samples [i * samples, (i + 1) * samples).

    Parameters
    ----------
    samples : int
        Per chunk.
    offsets, sizes : ndarray of uint64, shape (chunks,)
        First byte in the file and number of stored bytes.
    sums : ndarray of uint64, shape (chunks,), or None
        XXH3-64 of the stored bytes; None for files that others wrote.
    masks : ndarray of uint32, shape (chunks,), or None
        HDF5 filter masks, where any is not 0.
    """

    samples: int
    offsets: np.ndarray
    sizes: np.ndarray
    sums: np.ndarray | None = None
    masks: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def check(self, where: str, file_size: int, most: int) -> None:
        """Refuse a table that points outside the file or at chunks larger than `most` bytes.

        Raises
        ------
        FormatError
        """
        if not len(self):
            return
        # In uint64, offset + size can wrap around: compare without adding.
        bad = (self.offsets > file_size) | (self.sizes > file_size - np.minimum(self.offsets, file_size))
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise FormatError(
                f"{where} chunk {i}: stored at byte {int(self.offsets[i]):,} with {int(self.sizes[i]):,} bytes, but "
                f"the file has {file_size:,}; it was cut short or is not what it says, restore it from a copy"
            )
        large = np.flatnonzero(self.sizes > most)
        if len(large):
            i = int(large[0])
            raise FormatError(f"{where} chunk {i}: {int(self.sizes[i]):,} bytes are stored for a chunk that decodes to "
                              f"fewer; expected at most {most:,}; the file is damaged, "
                              "restore it from a copy")
