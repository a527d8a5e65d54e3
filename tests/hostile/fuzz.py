"""Mutate files at random and open what comes out, in children that are watched for signals, time and memory.

    python tests/hostile/fuzz.py --count 100000 [--seed 0] [--workers 2]

Half of the mutants of stores have their checksums, seal and digest made to fit again, so that they get past them.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import corpus  # noqa: E402
import exercise  # noqa: E402
import h5py  # noqa: E402
import numpy as np  # noqa: E402

from h5store.storage import rest  # noqa: E402
from h5store.storage.metadata import lookup3  # noqa: E402

#: A mutant may take this long, and this much memory beside two chunks.
SECONDS, MEMORY = 2, 64 << 20
#: Mutants of one child.
SHARE = 250
_NUMBERS = [0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]


def seeds(folder: Path) -> list[tuple[bytes, bool, list[tuple[int, int]]]]:
    """(bytes, whether a store, checksummed blocks) of the files that are mutated."""
    out = []
    for codec in ("lz4", "gzip", "zstd", None):
        corpus.make_store(folder / "seed.h5", codec)
        raw = (folder / "seed.h5").read_bytes()
        out.append((raw, True, corpus.blocks(raw) + index_blocks(raw)))
    data = np.arange(40 * 30).reshape(40, 30).astype("i4")
    for libver in ("earliest", "latest"):
        for options in ({}, {"chunks": (8, 30), "compression": "gzip", "shuffle": True, "fletcher32": True},
                        {"chunks": (8, 10), "compression": "gzip"}, {"chunks": (8, 30), "compression": "lzf"},
                        {"chunks": (8, 30), "maxshape": (None, 30)}):
            with h5py.File(folder / "seed.h5", "w", libver=libver) as file:
                file.create_dataset("X", data=data, **options)
            out.append(((folder / "seed.h5").read_bytes(), False, []))
        with h5py.File(folder / "seed.h5", "w", libver=libver) as file:
            file.create_dataset("X", data=["cat", "dög", "", "yak" * 9] * 10, dtype=h5py.string_dtype())
        out.append(((folder / "seed.h5").read_bytes(), False, []))
    return out


def index_blocks(raw: bytes) -> list[tuple[int, int]]:
    """[begin, end) of the checksummed blocks of HDF5's chunk indexes, found by trying every length."""
    out = []
    for mark in (b"EAHD", b"EAIB", b"EADB", b"EASB", b"FAHD", b"FADB"):
        at = raw.find(mark)
        while at >= 0:
            for end in range(at + 12, min(at + 1200, len(raw) - 4)):
                if lookup3(raw[at:end]) == int.from_bytes(raw[end:end + 4], "little"):
                    out.append((at, end))
                    break
            at = raw.find(mark, at + 4)
    return out


def change(raw: bytearray, dice: random.Random, lo: int, hi: int) -> None:
    """One change somewhere in [lo, hi)."""
    at = dice.randrange(lo, hi)
    kind = dice.randrange(4)
    if kind == 0:
        raw[at] ^= 1 << dice.randrange(8)
    elif kind == 1:
        raw[at] = dice.randrange(256)
    elif kind == 2:
        width = dice.choice((1, 2, 4, 8))
        number = dice.choice(_NUMBERS + [len(raw), at]) & (1 << 8 * width) - 1
        raw[at:min(at + width, hi)] = number.to_bytes(width, "little")[:min(width, hi - at)]
    else:
        size = min(dice.randrange(1, 32), hi - at)
        source = dice.randrange(0, len(raw) - size)
        raw[at:at + size] = raw[source:source + size]


def mutant(seed: tuple[bytes, bool, list[tuple[int, int]]], dice: random.Random, path: Path) -> None:
    raw, store, blocks = bytearray(seed[0]), seed[1], seed[2]
    if store and dice.random() < 0.5:
        _fitting(raw, dice, blocks, path)
        return
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        change(raw, dice, 0, len(raw))
    if dice.random() < 0.1:
        del raw[dice.randrange(len(raw)):]
    path.write_bytes(raw)


def _fitting(raw: bytearray, dice: random.Random, blocks: list[tuple[int, int]], path: Path) -> None:
    """A mutant whose sums are right: of a block of metadata, of the schema, or of the chunk table."""
    if dice.random() < 0.6:
        begin, end = dice.choice(blocks)
        for _ in range(dice.choice((1, 1, 2, 4))):
            change(raw, dice, begin + 4, end)
        raw[end:end + 4] = struct.pack("<I", lookup3(bytes(raw[begin:end])))
    else:
        begin = raw.index(b'{"block"')
        end = raw.index(b"}]", begin)
        lo, hi = (begin, end) if dice.random() < 0.5 else (end + 20, min(end + 20 + 24 * 6, len(raw)))
        for _ in range(dice.choice((1, 1, 2))):
            change(raw, dice, lo, hi)
        try:
            corpus.reseal(raw)
        except Exception:
            pass  # not even the schema is where it was
    path.write_bytes(raw)
    try:
        rest.refresh(str(path))
    except Exception:
        pass


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(turn: int, count: int, found: list[Any], seed: int, folder: Path) -> int:
    """One child's share: the pipe's reading end of a child that works on mutants `turn` to `turn + count`."""
    read, write = os.pipe()
    if os.fork():
        os.close(write)
        return read
    os.close(read)
    code = 1
    try:
        path = folder / f"mutant-{turn}.h5"
        exercise.as_store(str(path))  # imports and buffers, before memory is measured
        for i in range(turn, turn + count):
            dice = random.Random(f"{seed}/{i}")
            one = dice.choice(found)
            mutant(one, dice, path)
            before = peak()
            os.write(write, f"begin {i}\n".encode())
            start = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, SECONDS * 10)
            try:
                told = exercise.as_store(str(path)) if one[1] else exercise.as_foreign(str(path))
            except Exception as error:
                told = f"not-a-clear-error-{type(error).__name__}"
            signal.setitimer(signal.ITIMER_REAL, 0)
            grown = peak() - before
            os.write(write, f"end {i} {time.monotonic() - start:.3f} {grown} {told.split(':')[0]}\n".encode())
        path.unlink()
        code = 0
    except BaseException as error:
        os.write(write, f"raised {type(error).__name__}: {str(error)[:300]!r}\n".encode())
    finally:
        os._exit(code)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    bad, late, outcomes, slowest, most = [], list[int](), Counter[str](), 0.0, 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        folder = Path(name)
        made = seeds(folder)
        turns = [(at, min(SHARE, options.count - at)) for at in range(0, options.count, SHARE)]
        for first in range(0, len(turns), options.workers):
            pipes = [run(at, count, made, options.seed, folder) for at, count in turns[first:first + options.workers]]
            for pipe in pipes:
                with open(pipe, encoding="utf-8", errors="replace") as lines:
                    last = ""
                    for line in lines:
                        last = line.strip()
                        word, *parts = last.split(" ", 4)
                        if word == "end":
                            outcomes[parts[3]] += 1
                            slowest, most = max(slowest, float(parts[1])), max(most, int(parts[2]))
                            if float(parts[1]) > SECONDS:
                                late.append(int(parts[0]))
                            if int(parts[2]) > MEMORY or parts[3].startswith("not-"):
                                bad.append(last)
                if not last.startswith("end"):
                    bad.append(last)
            for _ in pipes:
                status = os.wait()[1]
                if status:
                    bad.append(f"a child ended with status {status}")
            if first // options.workers % 20 == 19:
                print(f"{sum(outcomes.values()):,} so far, {len(bad)} bad", flush=True)
        for turn in late:  # again, alone: a busy machine is slow with any file
            with open(run(turn, 1, made, options.seed, folder), encoding="utf-8") as lines:
                last = [line.strip() for line in lines][-1]
            os.wait()
            if not last.startswith("end") or float(last.split()[2]) > SECONDS:
                bad.append(f"slow, also alone: {last}")
    print(f"{sum(outcomes.values()):,} mutants: {dict(outcomes.most_common())}; slowest {slowest:.2f} s, "
          f"most memory {most / 2**20:.0f} MiB; {len(late)} tried again alone; {len(bad)} bad", *bad[:20], sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
