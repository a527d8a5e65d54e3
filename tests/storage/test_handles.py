"""File handles: opened on demand, shared, capped, never inherited, and always of the file that was meant."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from h5store.errors import CorruptChunkError, StaleStoreError
from h5store.storage import handles
from h5store.storage.handles import CAP, FileSource, Identity


def source(path: Path, content: bytes = b"0123456789") -> FileSource:
    if not path.exists():
        path.write_bytes(content)
    return FileSource(str(path), Identity.of(os.stat(path)))


def read(source: FileSource, offset: int = 0, size: int = 4) -> bytes:
    buffer = bytearray(size)
    with source.lease() as fd:
        source.read_into(fd, offset, memoryview(buffer))
    return bytes(buffer)


def open_in(folder: Path) -> list[str]:
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(
        f"/proc/self/fd/{fd}") or os.path.islink(f"/proc/self/fd/{fd}")]
    return [link for link in links if link.startswith(str(folder))]


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not tell")


@needs_proc
def test_one_handle_serves_all(tmp_path: Path) -> None:
    one = source(tmp_path / "a")
    assert [read(one, 2), read(source(tmp_path / "a"), 6), read(one)] == [b"2345", b"6789", b"0123"]
    assert len(open_in(tmp_path)) == 1
    handles.drop(one)
    assert open_in(tmp_path) == []
    assert read(one) == b"0123", "it opens again"
    handles.drop(one)
    handles.drop(one)


@needs_proc
def test_the_number_of_open_files_is_capped(tmp_path: Path) -> None:
    sources = [source(tmp_path / str(i)) for i in range(CAP + 30)]
    for one in sources:
        read(one)
    assert len(open_in(tmp_path)) <= CAP
    with sources[0].lease() as fd:  # what is in use is not closed
        for one in sources[1:]:
            read(one)
        buffer = bytearray(4)
        sources[0].read_into(fd, 0, memoryview(buffer))
        assert buffer == b"0123"
    for one in sources:
        handles.drop(one)
    assert open_in(tmp_path) == []


def test_dropping_waits_for_the_readers(tmp_path: Path) -> None:
    one = source(tmp_path / "a")
    with one.lease() as fd:
        handles.drop(one)
        buffer = bytearray(4)
        one.read_into(fd, 0, memoryview(buffer))
        assert buffer == b"0123"
    if os.path.isdir("/proc/self/fd"):
        assert open_in(tmp_path) == []


def test_an_open_handle_stays_on_its_file_and_another_file_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    one = source(path)
    one.hold()
    (tmp_path / "b").write_bytes(b"9876543210")
    os.replace(tmp_path / "b", path)
    assert read(one) == b"0123"
    handles.drop(one)
    with pytest.raises(StaleStoreError, match="another file is at this path"):
        read(one)
    path.unlink()
    with pytest.raises(StaleStoreError, match="cannot be opened again .No such file"):
        read(one)


def test_a_file_that_took_over_number_and_length_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    one = source(path)
    path.write_bytes(b"9876543210")  # in place: the same inode, the same length
    os.utime(path, ns=(1, 1))
    with pytest.raises(StaleStoreError):
        read(one)


def test_a_file_cut_under_an_open_handle_is_an_error_not_zeros(tmp_path: Path) -> None:
    one = source(tmp_path / "a")
    one.hold()
    os.truncate(tmp_path / "a", 5)
    assert read(one, 1) == b"1234"
    with pytest.raises(CorruptChunkError, match="ends at byte 5, expected 7; it was cut short"):
        read(one, 3)
    handles.drop(one)


def test_a_forked_child_opens_for_itself(tmp_path: Path) -> None:
    one = source(tmp_path / "a")
    one.hold()
    told, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            inherited = len(open_in(tmp_path)) if os.path.isdir("/proc/self/fd") else 0
            os.write(say, b"%d " % inherited + read(one))
        finally:
            os._exit(0)
    os.close(say)
    os.waitpid(child, 0)
    assert os.read(told, 100) == b"0 0123"
    os.close(told)
    assert read(one) == b"0123"
    handles.drop(one)


def test_many_threads_and_files(tmp_path: Path) -> None:
    sources = [source(tmp_path / str(i), b"%04d" % i * 3) for i in range(20)]
    wrong = []

    def work(k: int) -> None:
        for i in range(200):
            one = sources[(i * 7 + k) % 20]
            if read(one, 4) != b"%04d" % sources.index(one):
                wrong.append(one)
            if i % 10 == k:
                handles.drop(one)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for one in sources:
        handles.drop(one)
