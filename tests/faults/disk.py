"""A disk as the log of system calls tells it: what lies on it after any of them, cut, torn, or without power."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CREATE, WRITE, FSYNC, FSYNC_FOLDER, TRUNCATE, RENAME, UNLINK = range(1, 8)
_HEAD = struct.Struct("<IIQQQ")
SECTOR, PAGE = 512, 4096


@dataclass(frozen=True)
class Call:
    """One system call that succeeded: what, on which path or inode, where, with what."""

    op: int
    name: str
    inode: int
    offset: int
    data: bytes


def read_log(path: Path) -> list[Call]:
    raw, at, out = path.read_bytes(), 0, []
    while at < len(raw):
        op, name, inode, offset, size = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        out.append(Call(op, raw[at:at + name].decode(), inode, offset, raw[at + name:at + name + size]))
        at += name + size
    return out


@dataclass
class File:
    """One file: what its writers see, what is safe, and what was done to it since it was safe."""

    content: bytearray = field(default_factory=bytearray)
    safe: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, data), or (size, None)

    def change(self, offset: int, data: bytes | None) -> None:
        apply(self.content, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        self.safe, self.pending = bytes(self.content), []

    def after_power_loss(self, dice: random.Random) -> bytes:
        """Each page that was written since the last fsync got to the disk, or did not."""
        out = bytearray(self.safe)
        for offset, data in self.pending:
            if data is None:
                if dice.random() < 0.5:
                    apply(out, offset, None)
                continue
            # The length may be on the disk without the bytes: they are zeros then.
            if dice.random() < 0.5 and len(out) < offset + len(data):
                out.extend(bytes(offset + len(data) - len(out)))
            for lo, hi in pieces(offset, len(data), PAGE):
                if dice.random() < 0.5:
                    apply(out, lo, data[lo - offset:hi - offset])
        return bytes(out)


def apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset:offset + len(data)] = data


def pieces(offset: int, size: int, step: int) -> Iterator[tuple[int, int]]:
    """[lo, hi) of a write, cut where pages or sectors of the file begin."""
    lo = offset
    while lo < offset + size:
        hi = min(offset + size, (lo // step + 1) * step)
        yield lo, hi
        lo = hi


class Disk:
    """One folder, moved on call by call.

    Parameters
    ----------
    before : dict of str to (int, bytes)
        Inode and content of the files that were there, and safe.
    """

    def __init__(self, before: dict[str, tuple[int, bytes]]) -> None:
        self.files = {inode: File(bytearray(content), content) for inode, content in before.values()}
        self.names = {name: self.files[inode] for name, (inode, _) in before.items()}
        self.safe_names = dict(self.names)
        self.pending: list[Call] = []  # of the folder, since its fsync
        self._made: dict[int, File] = {}

    def do(self, call: Call, upto: int | None = None) -> None:
        """One more call; of a write, only its first `upto` bytes."""
        if call.op in (CREATE, RENAME, UNLINK):
            if call.op == CREATE:
                self.files[call.inode] = File()
                self._made[id(call)] = self.files[call.inode]
            self._enter(self.names, call)
            self.pending.append(call)
        elif call.op == WRITE:
            self.files[call.inode].change(call.offset, call.data[:upto])
        elif call.op == TRUNCATE:
            self.files[call.inode].change(call.offset, None)
        elif call.op == FSYNC:
            self.files[call.inode].sync()
        elif call.op == FSYNC_FOLDER:
            self.safe_names, self.pending = dict(self.names), []

    def _enter(self, names: dict[str, File], call: Call) -> None:
        if call.op == CREATE:
            names[call.name] = self._made[id(call)]
        elif call.op == UNLINK:
            names.pop(call.name, None)
        elif call.name in names:
            names[call.data.decode()] = names.pop(call.name)

    def now(self) -> dict[str, bytes]:
        """What a process that goes on sees: everything that was done."""
        return {name: bytes(file.content) for name, file in self.names.items()}

    def after_power_loss(self, dice: random.Random) -> dict[str, bytes]:
        """What may be there when the machine comes back: changes of the folder up to some point, pages at random."""
        names = dict(self.safe_names)
        for call in self.pending[:dice.randint(0, len(self.pending))]:
            self._enter(names, call)
        return {name: file.after_power_loss(dice) for name, file in names.items()}
