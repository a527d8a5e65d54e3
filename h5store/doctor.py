"""This file on this machine: what is installed, what the file system can do, how fast it reads, what to change."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import h5py

from h5store._version import __version__
from h5store.errors import H5StoreError
from h5store.storage import handles, native, pool
from h5store.storage.codecs import NAMES
from h5store.storage.opening import journal_path, open_store
from h5store.storage.validate import plugins_off

# Kinds of file systems, as the kernel lists them, that other machines serve.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "fuse.sshfs",
                      "glusterfs", "fuse.glusterfs", "fuse.gcsfuse", "fuse.s3fs", "orangefs", "panfs"})
#: Read at most this much for the throughput.
_PROBE = 256 << 20


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and what to do about it, if anything."""

    what: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.what:<12} {self.found}" + (f"\n{'':<12} -> {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found.

    Attributes
    ----------
    path : str or None
    findings : tuple of Finding
    """

    path: str | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is nothing to change."""
        return not any(f.advice for f in self.findings)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings)])


def doctor(path: str | os.PathLike[str] | None = None) -> Diagnosis:
    """Look at this machine and, if a path is given, at that store on it. Nothing is changed.

    Parameters
    ----------
    path : str or path-like, optional
        A store, also one that is broken or unfinished.

    Returns
    -------
    Diagnosis
        ``print`` it; its findings say what to change.
    """
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("versions", _versions), ("filters", _filters), ("kernel", _kernel), ("cores", _cores),
        ("descriptors", _descriptors), ("HDF5 locks", _lock_setting)]
    where = None if path is None else os.path.abspath(os.fsdecode(path))
    if where is not None:
        looks += [(name, partial(look, where)) for name, look in _LOOKS]
    found = []
    for name, look in looks:
        try:
            found.append(look())
        except OSError as error:  # one look that fails must not hide the others
            found.append(Finding(name, f"cannot be told: {error.strerror}"))
    return Diagnosis(where, tuple(found))


def _versions() -> Finding:
    from importlib import metadata

    parts = [f"h5store {__version__}", f"h5py {h5py.__version__}", f"HDF5 {h5py.version.hdf5_version}"]
    parts += [f"{name} {metadata.version(name)}" for name in ("numpy", "hdf5plugin", "numcodecs")]
    return Finding("versions", ", ".join([f"Python {platform.python_version()}", *parts, sys.platform]))


def _filters() -> Finding:
    with plugins_off():
        import hdf5plugin  # noqa: F401  registers them

        missing = [NAMES[n] for n in (1, 2, 32001, 32015) if not h5py.h5z.filter_avail(n)]
    if missing:
        return Finding("filters", f"HDF5 here lacks {', '.join(missing)}",
                       "reinstall with: pip install --force-reinstall hdf5plugin")
    path = os.environ.get("HDF5_PLUGIN_PATH")
    told = f"; HDF5_PLUGIN_PATH={path!r} is not used for stores" if path else ""
    return Finding("filters", f"gzip, shuffle, blosc (lz4), zstd are there{told}")


def _kernel() -> Finding:
    if native.present():
        return Finding("kernel", "chunks are read by machine code")
    # No advice: nothing is wrong.
    return Finding("kernel", "chunks are read by Python; where a C compiler (cc) is there when h5store is installed, "
                   "batches are read up to four times as fast")


def _cores() -> Finding:
    usable, all_ = pool.thread_count(None), os.cpu_count() or 1
    return Finding("cores", f"{usable} of {all_} may be used by this process",
                   "" if usable > 1 or all_ == 1 else "the process is bound to one core, which then decodes alone; "
                   "give it more (taskset, cgroup, --cpus)")


def _descriptors() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 2 * handles.CAP
    return Finding("descriptors", f"{soft:,} files may be open (at most {hard:,}); h5store keeps up to {handles.CAP}",
                   "" if soft < 0 or soft >= need else f"raise the limit to {need}: ulimit -n {need}")


def _lock_setting() -> Finding:
    value = os.environ.get("HDF5_USE_FILE_LOCKING")
    told = "not set" if value is None else repr(value)
    return Finding("HDF5 locks", f"HDF5_USE_FILE_LOCKING is {told}; readers lock nothing, the writer has its own lock")


def _store(path: str) -> Finding:
    try:
        file = open_store(path)
    except (H5StoreError, OSError) as error:
        return Finding("store", str(error), "see what can be saved: h5store verify PATH --repair OUT"
                       if os.path.exists(path) else "")
    layout = file.layout
    stored = sum(int(t.sizes.sum()) for t in file.tables.values())
    most = max((layout.chunks[c.name] * c.nbytes for c in layout.columns), default=0)
    advice = ""
    if most > 8 << 20:
        advice = "such large chunks make random reads slow; pack it again with chunk='128KiB'"
    return Finding("store", f"{layout.length:,} samples, {len(layout.schema)} fields, codec {layout.codec}, "
                   f"{stored / 2**20:,.1f} MiB in chunks of up to {most / 1024:,.0f} KiB", advice)


def _writing(path: str) -> Finding:
    journal, lock = journal_path(path), f"{path}.lock"
    if not os.path.exists(journal):
        return Finding("writer", "none is at work, and none was interrupted")
    held = False
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            held = True
        finally:
            os.close(fd)
    if held:
        return Finding("writer", f"one is at work: {journal}")
    return Finding("writer", f"one was interrupted: {journal}, {os.path.getsize(journal):,} bytes",
                   "go on with Writer(..., resume=True), or remove the journal to give its samples up")


def _file_system(path: str) -> Finding:
    kind, mount = _mount_of(path)
    if kind in _NETWORK:
        return Finding("file system", f"{kind} at {mount}, served by another machine",
                       "copy the store to a local disk for training; write stores locally and move them")
    return Finding("file system", f"{kind} at {mount}")


def _mount_of(path: str) -> tuple[str, str]:
    """(kind, mount point) as the kernel tells; the longest mount point that the path is under."""
    best = ("of unknown kind", "/")
    if not os.path.exists("/proc/self/mounts"):
        return best
    length, real = 0, os.path.realpath(path)
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, mount, kind = line.split()[:3]
            mount = mount.replace("\\040", " ")
            under = real == mount or real.startswith(mount.rstrip("/") + "/")
            if under and len(mount) >= length:
                best, length = (kind, mount), len(mount)
    return best


def _locks(path: str) -> Finding:
    """Whether flock works where a writer would need it: tried on a file of our own beside the store."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return Finding("locks", f"there is no folder {folder}", "make it first")
    if not os.access(folder, os.W_OK):
        return Finding("locks", f"{folder} is read-only: stores there can be read, not written")
    import tempfile

    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return Finding("locks", f"flock does not work here: {error.strerror}", "write stores on a local disk")
    return Finding("locks", "flock works here")


def _room(path: str) -> Finding:
    free = shutil.disk_usage(os.path.dirname(path)).free
    size = os.path.getsize(path) if os.path.exists(path) else 0
    enough = free > size + (1 << 20)
    return Finding("room", f"{free / 2**30:,.1f} GiB free",
                   "" if enough else "adding to the store rewrites it beside itself: make room for that")


def _throughput(path: str) -> Finding:
    """Sequential reads of the file, past the page cache where the system lets us drop it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = min(os.fstat(fd).st_size, _PROBE)
        cold = hasattr(os, "posix_fadvise")
        if cold:
            os.posix_fadvise(fd, 0, size, os.POSIX_FADV_DONTNEED)
        start, done, buffer = time.perf_counter(), 0, bytearray(1 << 20)
        while done < size and (got := os.preadv(fd, [buffer], done)):
            done += got
        rate = done / max(1e-9, time.perf_counter() - start)
    finally:
        os.close(fd)
    slow = rate < 50e6 and done > 8 << 20
    told = ", not from memory" if cold else ""
    return Finding("disk", f"{rate / 1e6:,.0f} MB/s over {done / 2**20:,.1f} MiB{told}",
                   "slower than decoding: copy it to a faster disk, or pack it with codec='zstd'" if slow else "")


_LOOKS = (("store", _store), ("writer", _writing), ("file system", _file_system), ("locks", _locks), ("room", _room),
          ("disk", _throughput))
