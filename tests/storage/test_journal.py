"""A journal gives back what its commits were told is safe, and nothing else."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from h5store.errors import JournalError
from h5store.storage.journal import MAGIC, VERSION, Entry, Journal

HEADER = {"fields": ["x", "y"], "layout": {}, "base": None, "before": 0, "origin": "test"}
HEAD = struct.Struct("<4sIQQQ")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "train.h5.journal")


def commit(journal: Journal, length: int, x: list[bytes] = [], rows: bytes = b"", classes: list[str] = []) -> None:
    journal.commit(length, {"x": Entry(x, rows), "y": Entry([], b"")}, {"y": classes})


def written(path: str) -> bytes:
    """Three commits; returns the file."""
    journal = Journal.create(path, HEADER)
    commit(journal, 3, rows=b"abc", classes=["cat"])
    commit(journal, 9, [b"CHUNK-0" * 3, b"CHUNK-1"], b"r", ["dog", "猫"])
    commit(journal, 10, rows=b"s")
    journal.close()
    return Path(path).read_bytes()


def frames(data: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of each frame, told by the headers alone."""
    at = 0
    while at < len(data):
        length = HEAD.unpack_from(data, at)[3]
        yield at, at + HEAD.size + length
        at += HEAD.size + length


def opened(path: str) -> Journal:
    journal = Journal.open(path)
    assert journal is not None
    return journal


def test_what_was_committed_comes_back(path: str) -> None:
    written(path)
    journal = opened(path)
    assert journal.header == HEADER
    assert journal.length == 10
    assert [journal.chunk("x", i) for i in range(2)] == [b"CHUNK-0" * 3, b"CHUNK-1"]
    assert journal.rows("x") == b"rs", "rows before a whole chunk are part of it"
    assert journal.rows("y") == b""
    assert journal.classes == {"y": ["cat", "dog", "猫"]}
    journal.close()


def test_commits_go_on_after_opening_as_if_there_had_been_no_break(path: str, tmp_path: Path) -> None:
    whole = written(path)
    cut = list(frames(whole))[2][1]
    Path(path).write_bytes(whole[:cut])
    journal = opened(path)
    commit(journal, 10, rows=b"s")
    journal.close()
    assert Path(path).read_bytes() == whole


def test_a_file_cut_anywhere_keeps_every_frame_that_is_whole(path: str) -> None:
    whole = written(path)
    ends = [end for _, end in frames(whole)]
    lengths = dict(zip(ends, [0, 3, 9, 10]))
    for size in range(len(whole) + 1):
        Path(path).write_bytes(whole[:size])
        journal = Journal.open(path)
        kept = max([end for end in ends if end <= size], default=None)
        if kept is None:
            assert journal is None, size
            continue
        assert journal is not None and journal.length == lengths[kept], size
        assert os.path.getsize(path) == kept, "the torn frame is gone"
        journal.close()


@pytest.mark.parametrize("fill", [b"\0", b"\xff", MAGIC])
def test_a_last_frame_that_the_disk_has_not_written_is_torn_not_damage(path: str, fill: bytes) -> None:
    # After a power loss a file may have its length but not its bytes, in units of whatever the disk writes.
    whole = written(path)
    start, end = list(frames(whole))[-1]
    for at in range(start, end, 3):
        Path(path).write_bytes(whole[:at] + (fill * (end - at))[:end - at])
        journal = opened(path)
        assert journal.length == 9, at
        journal.close()


def test_a_header_that_the_disk_has_not_written_promised_nothing(path: str) -> None:
    Path(path).write_bytes(bytes(500))
    assert Journal.open(path) is None


def test_one_bit_anywhere_in_committed_frames_is_noticed(path: str) -> None:
    whole = bytearray(written(path))
    last = list(frames(whole))[-1][0]
    for at in range(0, last):
        whole[at] ^= 0x10
        Path(path).write_bytes(whole)
        # Also where a damaged length or version makes it look like another frame.
        with pytest.raises(JournalError, match="damaged|version|not a journal"):
            Journal.open(path)
        whole[at] ^= 0x10
    assert Path(path).stat().st_size == len(whole), "a damaged journal is not touched"


def test_damage_names_the_frame_and_the_way_out(path: str) -> None:
    whole = bytearray(written(path))
    start = list(frames(whole))[1][0]
    whole[start + HEAD.size + 5] ^= 1
    Path(path).write_bytes(whole)
    with pytest.raises(JournalError, match=r"frame 1 at byte \d+ is damaged.*overwrite=True"):
        Journal.open(path)


def test_a_journal_of_a_newer_version_is_refused_whole(path: str) -> None:
    whole = bytearray(written(path))
    struct.pack_into("<I", whole, 4, VERSION + 1)
    Path(path).write_bytes(whole)
    with pytest.raises(JournalError, match=f"journal version {VERSION + 1}.*reads {VERSION}"):
        Journal.open(path)
    assert Path(path).read_bytes() == whole


@pytest.mark.parametrize("content", [b"my diary", b"x", b"HSJ of another kind" * 50, b"\x89HDF\r\n" + bytes(2000)])
def test_somebody_elses_file_is_neither_taken_nor_removed(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)
    with pytest.raises(JournalError, match="is not a journal.*move it away"):
        Journal.open(path)
    with pytest.raises(JournalError, match="is not a journal"):
        Journal.discard(path)
    assert Path(path).read_bytes() == content


def test_discarding_takes_any_journal_whatever_its_state(path: str) -> None:
    whole = written(path)
    for state in (whole, whole[:50], whole[:-3], b"", whole[:2], bytes(99)):
        Path(path).write_bytes(state)
        Journal.discard(path)
        assert not os.path.exists(path)


def test_looking_changes_nothing(path: str) -> None:
    torn = written(path)[:-2]
    Path(path).write_bytes(torn)
    journal = Journal.open(path, look=True)
    assert journal is not None and journal.length == 9
    journal.close()
    assert Path(path).read_bytes() == torn


def test_short_writes_are_gone_on_from(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = written(path)
    os.unlink(path)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, offset: real(fd, [views[0][:3]], offset))
    assert written(path) == expected


def test_a_failed_commit_leaves_the_journal_as_it_was(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(path, HEADER)
    commit(journal, 3, rows=b"abc")
    before = Path(path).read_bytes()
    real = os.pwritev
    left = [40]

    def full(fd: int, views: list[memoryview], offset: int) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 20
        return real(fd, [views[0][:20]], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(OSError, match="make room and commit again") as caught:
            commit(journal, 5, [b"chunk"], b"de", ["new"])
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == path
    assert Path(path).read_bytes() == before
    assert journal.length == 3 and journal.rows("x") == b"abc"
    commit(journal, 5, [b"chunk"], b"de", ["new"])
    journal.close()
    again = opened(path)
    assert again.length == 5 and again.chunk("x", 0) == b"chunk" and again.rows("x") == b"de"
    again.close()


def test_a_journal_that_cannot_be_begun_leaves_no_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        Journal.create(path, HEADER)
    assert not os.path.exists(path)


def test_bytes_that_change_after_opening_are_noticed_on_sealing(path: str) -> None:
    written(path)
    journal = opened(path)
    with open(path, "r+b") as file:
        file.seek(journal.fields["x"].offsets[1])
        file.write(b"?")
    with pytest.raises(JournalError, match="chunk 1 of field 'x' is damaged"):
        journal.chunk("x", 1)
    os.truncate(path, journal.fields["x"].offsets[1] + 2)
    with pytest.raises(JournalError, match="it was cut while it was in use"):
        journal.chunk("x", 1)
    journal.close()


def test_the_frame_is_what_the_format_says(path: str) -> None:
    data = written(path)
    for number, (start, end) in enumerate(frames(data)):
        magic, version, found, length, digest = HEAD.unpack_from(data, start)
        assert (magic, version, found) == (MAGIC, VERSION, number)
        payload = data[start + HEAD.size:end]
        assert digest == xxhash.xxh3_64_intdigest(struct.pack("<QQ", number, length) + payload)


def test_losing_a_journal_closes_its_file(path: str) -> None:
    Journal.create(path, HEADER)
    assert path not in {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
