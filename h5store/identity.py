"""What samples are, whatever file holds them: a fingerprint of their values, and where a store came from."""

from __future__ import annotations

import importlib
import json
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash

from h5store.errors import OptionError, nearest
from h5store.ragged import Ragged
from h5store.reader import Reader
from h5store.schema import Field, dumps
from h5store.storage import pool

#: Algorithm -> what hashes bytes to bytes.
_ALGORITHMS: dict[str, Callable[[bytes], bytes]] = {
    "xxh3": lambda data: xxhash.xxh3_128_digest(data),
    "sha256": lambda data: importlib.import_module("hashlib").sha256(data).digest(),  # takes OpenSSL along
}
# Part of the definition: a piece is this many bytes of samples, or that many texts or samples of variable length.
_PIECE_BYTES, _PIECE_SAMPLES = 1 << 20, 4096
#: Pieces that are in memory at once.
_WINDOW = 16


def fingerprint(store: Reader | str | os.PathLike[str], *, algorithm: str = "xxh3") -> str:
    """A fingerprint of samples: the same for the same fields and values in the same order, and for no others.

    Chunks, codec, file and the cut into appends make no difference; nor does what else the file holds.

    Parameters
    ----------
    store : Reader, str or path-like
        A reader, a view of some samples, or the path of a store.
    algorithm : {"xxh3", "sha256"}
        "xxh3" (128 bits) is as fast as reading; it tells accidents. "sha256" also tells forgeries.

    Returns
    -------
    str
        E.g. ``"xxh3:"`` and 32 hexadecimal digits.

    Raises
    ------
    OptionError, FileNotFoundError, FormatError, CorruptChunkError

    Notes
    -----
    Per field, in pieces of a fixed number of samples: the hash of the little-endian values, or of each text's length
    and UTF-8 bytes, or of each sample's length and the values. Then the hash of the pieces' hashes; then that of
    the fields' names, roles, dtypes and shapes as JSON and of their hashes, in the order of the names.
    """
    if algorithm not in _ALGORITHMS:
        raise OptionError(f"algorithm: no algorithm {algorithm!r}; {nearest(algorithm, _ALGORITHMS, 'algorithms')}")
    if not isinstance(store, Reader):
        with Reader(store, cache=0) as reader:
            return fingerprint(reader, algorithm=algorithm)
    digest = _ALGORITHMS[algorithm]
    fields = sorted(store.schema, key=lambda f: f.name)
    said = [{k: v for k, v in f.to_json().items() if k != "classes"} for f in fields]
    for field, entry in zip(fields, said):
        entry["text"] = field.text
    whole = digest(dumps({"samples": len(store), "fields": said})
                   + b"".join(_field_hash(store, f, digest) for f in fields))
    return f"{algorithm}:{whole.hex()}"


def _field_hash(reader: Reader, field: Field, digest: Callable[[bytes], bytes]) -> bytes:
    fixed = not (field.text or field.ragged)
    step = max(1, _PIECE_BYTES // field.nbytes) if fixed else _PIECE_SAMPLES
    texts = [text.encode("utf-8") for text in field.classes or ()]

    def work(values: Any) -> bytes:
        return digest(_canonical(field, values, texts))

    pieces: list[bytes] = []
    for lo in range(0, len(reader), step * _WINDOW):
        hi = min(lo + step * _WINDOW, len(reader))
        ids = np.arange(lo, hi) if reader._ids is None else reader._ids[lo:hi]
        values = reader._read([field.name], ids)[field.name]
        pieces += pool.wait([pool.submit(work, values[a:a + step]) for a in range(0, hi - lo, step)])
    return digest(b"".join(pieces))


def _canonical(field: Field, values: Any, texts: list[bytes]) -> bytes:
    if field.ragged:
        assert isinstance(values, Ragged)
        return values.lengths.astype("<u8").tobytes() + _canonical_fixed(values.values)
    if field.text:
        some = [texts[code] for code in values.reshape(-1).tolist()]
        return b"".join([struct.pack("<I", len(text)) + text for text in some])
    return _canonical_fixed(values)


def _canonical_fixed(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def provenance(store: Reader | str | os.PathLike[str]) -> dict[str, Any]:
    """Where a store came from: the versions that wrote it, and what `Writer` or `pack` was told of its sources.

    Returns
    -------
    dict
        ``"versions"``, and the keys that were given; empty for a file of others.
    """
    if not isinstance(store, Reader):
        with Reader(store, cache=0) as reader:
            return provenance(reader)
    layout = store._store.layout
    return {} if layout is None else json.loads(dumps(layout.provenance))  # type: ignore[no-any-return]
