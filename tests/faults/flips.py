"""Flip single bytes of stores of every codec: none may go unnoticed, and one in data must be told by its place.

    python tests/faults/flips.py [--count 10000] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import h5store
from h5store.errors import CorruptChunkError, H5StoreError

CODECS = ("lz4", "gzip", "zstd", None)


def make(path: Path, codec: str | None) -> None:
    ids = np.arange(300)
    h5store.pack(path, features={"flux": np.sin(ids[:, None] * np.linspace(1, 9, 80)).astype("f4")},
                 aux={"host": ids[:, None] / [3, 7]}, labels={"kind": np.array(["cat", "dög", "yak"])[ids % 3]},
                 meta={"id": ids}, codec=codec, chunk=32, progress=False, overwrite=True)


def places(path: Path) -> list[tuple[int, int, str, int]]:
    """(first byte, end, field, chunk) of every chunk."""
    with h5store.Reader(path) as reader:
        tables = {f.name: reader._store.table(f.name) for f in reader.schema}
    return [(int(o), int(o + s), name, i) for name, t in tables.items()
            for i, (o, s) in enumerate(zip(t.offsets, t.sizes))]


def outcome(path: Path, where: tuple[int, int, str, int] | None) -> str:
    """What tells of the flip. "silent" if nothing does."""
    try:
        with h5store.Reader(path, cache=0) as reader:
            try:
                reader.take(range(len(reader)))
                read = True
            except CorruptChunkError as error:
                read = False
                text = str(error)
                assert where is not None, f"a chunk is blamed for a flip elsewhere: {text}"
                assert str(path) in text and repr(where[2]) in text and f"chunk {where[3]} (samples" in text, text
            assert read == (where is None), "a flip in a chunk was not noticed on reading"
        report = h5store.verify(path)
        if report.ok:
            return "silent"
        if where is None:
            return "verify"
        assert any(d.field == where[2] and d.chunk == where[3] for d in report.damaged)
        return "reading and verify"
    except H5StoreError:
        assert where is None, "a flip in a chunk kept the store from being opened"
        return "opening"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    dice, silent = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve() / "flip.h5"
        for codec in CODECS:
            make(path, codec)
            raw, chunks, told = path.read_bytes(), places(path), Counter[str]()
            for _ in range(options.count // len(CODECS)):
                # Half of them anywhere; half outside the chunks, which are most of the file.
                at = dice.randrange(len(raw))
                while dice.random() < 0.5 and any(lo <= at < hi for lo, hi, _, _ in chunks):
                    at = dice.randrange(len(raw))
                other = bytearray(raw)
                other[at] ^= dice.randrange(1, 256)
                path.write_bytes(other)
                signal.alarm(10)
                told[outcome(path, next((c for c in chunks if c[0] <= at < c[1]), None))] += 1
                signal.alarm(0)
            silent += told["silent"]
            print(f"{codec}: {len(raw):,} bytes; noticed on " +
                  ", ".join(f"{k} {n:,}" for k, n in told.most_common()), flush=True)
    print(f"{silent} silent")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
