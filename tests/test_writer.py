"""The writer: what is appended is what is read, once, whatever happens in between."""

from __future__ import annotations

import hashlib
import os
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h5store import Reader, Writer
from h5store.errors import (
    FormatError, JournalError, OptionError, SchemaError, StoreExistsError, StoreLockedError,
)
from h5store.schema import Field, Schema
from h5store.storage.journal import Journal
from h5store.storage.pool import submit

WORDS = np.array(["dog", "cat", "猫", ""])


def block(lo: int, hi: int) -> dict[str, Any]:
    """Samples [lo, hi) of an endless store, of every role."""
    i = np.arange(lo, hi)
    return {
        "features": {"x": (i[:, None] * 7 % 251 + np.arange(300)).astype("f4")},
        "aux": {"z": i.astype("i2")},
        "labels": {"y": WORDS[np.where(i < 50, i % 3, i % 4)]},
        "weights": i / 7,
        "meta": {"name": np.stack([WORDS[i % 2], WORDS[i % 3]], axis=1)},
    }


def write(path: Path, cuts: list[int], **options: Any) -> Path:
    with Writer(path, **options) as writer:
        for lo, hi in zip(cuts, cuts[1:]):
            writer.append(**block(lo, hi))
    return path


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(path: Path, n: int) -> None:
    """All fields of samples [0, n) are there."""
    with Reader(path) as reader:
        assert len(reader) == n
        expected = block(0, n)
        assert np.array_equal(reader["x"][:], expected["features"]["x"])
        assert np.array_equal(reader["z"][:], expected["aux"]["z"])
        assert np.array_equal(reader["weights"][:], expected["weights"])


def lose(writer: Writer) -> None:
    """What a crash leaves: the journal, and a lock that nobody holds."""
    writer._release()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.h5"


def only(path: Path) -> bool:
    """Whether nothing lies beside the store."""
    return [p.name for p in path.parent.iterdir()] == [path.name]


# ---- the common ways


def test_every_role_comes_back(path: Path) -> None:
    write(path, [0, 200])
    check(path, 200)
    assert only(path)


def test_the_cut_into_appends_leaves_no_trace(path: Path) -> None:
    whole = sha(write(path, [0, 333]))
    ones = write(path, list(range(334)), overwrite=True)
    assert sha(ones) == whole
    assert sha(write(path, [0, 0, 5, 5, 331, 332, 333, 333], overwrite=True)) == whole


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_leaves_no_trace(path: Path, threads: int) -> None:
    assert sha(write(path, [0, 333], threads=threads)) == sha(write(path, [0, 333], overwrite=True))


def test_commits_and_breaks_leave_no_trace(path: Path) -> None:
    whole = sha(write(path, [0, 333]))
    path.unlink()
    at = 0
    for step in [1, 0, 50, 7, 200, 75, 0]:
        writer = Writer(path, resume=True)
        assert len(writer) == at
        writer.append(**block(at, at + step))
        writer.commit()
        assert len(writer) == at + step
        at += step
        lose(writer)
    with Writer(path, resume=True) as writer:
        assert len(writer) == 333
    assert sha(path) == whole and only(path)


@pytest.mark.parametrize("codec", ["lz4", "gzip:1", "zstd", None])
@pytest.mark.parametrize("chunk", ["4KiB", 7, "random"])
def test_adding_to_a_sealed_store_gives_the_file_of_one_go(path: Path, codec: Any, chunk: Any) -> None:
    whole = sha(write(path, [0, 333], codec=codec, chunk=chunk))
    write(path, [0, 21], codec=codec, chunk=chunk, overwrite=True)
    for lo, hi in [(21, 22), (22, 22), (22, 300), (300, 333)]:
        # The store's own settings hold, whatever is asked.
        write(path, [lo, hi], append=True, codec="zstd")
    assert sha(path) == whole


def test_classes_are_sorted_and_old_samples_keep_their_text_when_new_ones_come(path: Path) -> None:
    write(path, [0, 40])
    with Reader(path) as reader:
        assert reader.schema["y"].classes == ("cat", "dog", "猫")
    write(path, [40, 120], append=True)
    with Reader(path) as reader:
        assert reader.schema["y"].classes == ("", "cat", "dog", "猫")
        assert reader["y"][:].tolist() == block(0, 120)["labels"]["y"].tolist()


def test_a_resumed_addition_goes_on_and_ends_in_the_same_file(path: Path) -> None:
    whole = sha(write(path, [0, 333]))
    write(path, [0, 100], overwrite=True)
    for lo, hi in [(100, 101), (101, 250), (250, 320)]:
        writer = Writer(path, append=True, resume=True)
        assert len(writer) == lo and writer.base_length == 100
        writer.append(**block(lo, hi))
        writer.commit()
        lose(writer)
        check(path, 100)
    write(path, [320, 333], resume=True)
    assert sha(path) == whole and only(path)


def test_append_begins_a_store_where_there_is_none(path: Path) -> None:
    write(path, [0, 10], append=True)
    check(path, 10)


def test_resume_begins_a_store_and_leaves_a_finished_one_alone(path: Path) -> None:
    write(path, [0, 10], resume=True)
    before = sha(path), path.stat().st_mtime_ns
    with Writer(path, resume=True) as writer:
        assert len(writer) == 10 and writer.base_length == 0
    assert (sha(path), path.stat().st_mtime_ns) == before
    write(path, [10, 20], resume=True)
    check(path, 20)


def test_overwriting_and_resuming_together_begin_anew_only_without_a_journal(path: Path) -> None:
    write(path, [0, 10])
    writer = Writer(path, overwrite=True, resume=True)
    assert len(writer) == 0
    writer.append(**block(0, 30))
    writer.commit()
    lose(writer)
    check(path, 10)
    with Writer(path, overwrite=True, resume=True) as writer:
        assert len(writer) == 30
    check(path, 30)


def test_len_counts_what_is_on_disk(path: Path) -> None:
    with Writer(path) as writer:
        writer._last_commit = float("inf")  # the clock does not commit in this test
        writer.append(**block(0, 5))
        assert len(writer) == 0
        writer.commit()
        assert len(writer) == 5
        journal = Journal.open(f"{path}.journal", look=True)
        assert journal is not None and journal.length == 5
        journal.close()


def test_appends_are_committed_in_time_without_being_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h5store.writer._COMMIT_BYTES", 100_000)
    with Writer(path, codec=None) as writer:
        for lo in range(0, 300, 10):
            writer.append(**block(lo, lo + 10))
            assert lo + 10 - len(writer) <= 100
        writer._last_commit -= 2  # seconds ago
        writer.append(**block(300, 301))
        assert len(writer) == 301


def test_small_appends_share_their_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(fd), real(fd))[1])
    with Writer(path) as writer:
        writer._last_commit = float("inf")
        for i in range(500):
            writer.append(features=np.zeros((1, 4), "f4"))
        assert not calls
    assert len(calls) <= 6


def test_the_array_may_change_once_append_has_returned(path: Path) -> None:
    x = np.zeros((1000, 300), "f4")
    with Writer(path) as writer:
        for i in range(5):
            x[:] = i
            writer.append(features=x)
    with Reader(path) as reader:
        assert (reader["features"][:].reshape(5, -1) == np.arange(5)[:, None]).all()


# ---- what is refused leaves everything as it was


REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "lengths": (lambda: {**block(0, 5), "weights": np.zeros(4)}, "different lengths: 'x' 5.*'weights' 4"),
    "shape": (lambda: {**block(0, 5), "features": {"x": np.zeros((5, 299), "f4")}},
              r"'x' has shape \(5, 299\), expected \(n, 300\)"),
    "axes": (lambda: {**block(0, 5), "aux": {"z": np.zeros((5, 1), "i2")}}, r"'z' has shape \(5, 1\), expected \(n,\)"),
    "dtype": (lambda: {**block(0, 5), "aux": {"z": np.arange(5)}}, "'z' has dtype int64, expected int16"),
    "unknown": (lambda: {**block(0, 5), "aux": {"zz": np.zeros(5, "i2")}}, "no field 'zz'; fields: 'z'"),
    "role": (lambda: {**block(0, 5), "aux": None, "meta": {**block(0, 5)["meta"], "z": np.zeros(5, "i2")}},
             "field 'z' is in aux, got it in meta"),
    "missing": (lambda: {k: v for k, v in block(0, 5).items() if k != "weights"}, "field 'weights' is missing"),
    "nothing": (dict, "field 'x' is missing"),
    "twice": (lambda: {**block(0, 5), "labels": {"y": WORDS[[0] * 5], "x": np.zeros(5)}}, "two fields are named 'x'"),
    "none": (lambda: {**block(0, 5), "labels": {"y": ["a", "b", None, "c", "d"]}}, r"'y' sample 12 is None \(NoneType"),
    "number": (lambda: {**block(0, 5), "labels": {"y": np.arange(5)}}, "'y' has dtype int64, expected text"),
    "text": (lambda: {**block(0, 5), "aux": {"z": list("abcde")}}, "'z' .*text|'z' .*Python objects"),
    "scalar": (lambda: {**block(0, 5), "weights": np.float64(3)}, r"'weights' is a scalar.*values\[None\]"),
    "broadcast": (lambda: {**block(0, 5), "weights": np.zeros(1)}, "different lengths"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_block_leaves_no_trace(path: Path, case: str) -> None:
    make, told = REFUSED[case]
    whole = sha(write(path, [0, 30]))
    with Writer(path, overwrite=True) as writer:
        writer.append(**block(0, 10))
        with pytest.raises(SchemaError, match=told):
            writer.append(**make())
        writer.append(**block(10, 30))
    assert sha(path) == whole


def test_a_refused_first_block_decides_no_fields(path: Path) -> None:
    class Liar:
        """Says one shape and gives another."""

        shape, dtype = (5, 2), np.dtype("f4")

        def __len__(self) -> int:
            return 5

        def __getitem__(self, key: Any) -> np.ndarray:
            return np.zeros((5, 3), "f4")[key]

    with Writer(path) as writer:
        for bad in ({"labels": {"q": np.array(["a", None], object)}}, {"features": Liar()}, {"features": {}}, {},
                    {"features": []}, {"features": np.array([{}])}):
            with pytest.raises(SchemaError):
                writer.append(**bad)
            assert writer.schema is None
        writer.append(**block(0, 10))
    check(path, 10)


def test_a_block_that_breaks_off_is_not_committed_in_part(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaking:
        shape, dtype = (1000, 300), np.dtype("f4")

        def __len__(self) -> int:
            return 1000

        def __getitem__(self, key: slice) -> np.ndarray:
            if key.start >= 500:
                raise OSError(5, "the disk of the input broke")
            return np.zeros((key.stop - key.start, 300), "f4")

    monkeypatch.setattr("h5store.writer._PIECE_BYTES", 1 << 17)
    writer = Writer(path)
    writer.append(features=np.ones((100, 300), "f4"))
    writer.commit()
    with pytest.raises(OSError, match="the disk of the input broke"):
        writer.append(features=Breaking())
    for call in (lambda: writer.append(features=np.ones((1, 300), "f4")), writer.commit, writer.close):
        with pytest.raises(JournalError, match="interrupted half-way.*resume=True: 100 samples"):
            call()
    with Writer(path, resume=True) as again:
        assert len(again) == 100
        again.append(features=np.ones((1, 300), "f4"))
    with Reader(path) as reader:
        assert len(reader) == 101 and (reader["features"][:] == 1).all()


@pytest.mark.parametrize("when", ["read", "encode", "journal", "committed"])
def test_ctrl_c_anywhere_in_an_append_loses_no_committed_sample(
    path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    target = {"read": "h5store.sources.block.Block.part", "encode": "h5store.storage.tail.Tail._encode",
              "journal": "h5store.storage.journal._write_all", "committed": "h5store.storage.tail.Tail.committed"}[when]
    whole = sha(write(path, [0, 333], chunk="32KiB"))
    path.unlink()
    with pytest.raises(KeyboardInterrupt):
        with Writer(path, chunk="32KiB") as writer:
            writer.append(**block(0, 100))
            writer.commit()
            writer._last_commit -= 2
            monkeypatch.setattr(target, interrupt)
            writer.append(**block(100, 200))
    monkeypatch.undo()
    assert not path.exists()
    with Writer(path, resume=True) as writer:
        assert len(writer) >= 100
        writer.append(**block(len(writer), 333))
    assert sha(path) == whole and only(path)


def test_an_exception_inside_with_seals_nothing_and_keeps_what_was_appended(path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with Writer(path) as writer:
            writer.append(**block(0, 10))
            1 / 0
    with pytest.raises(FormatError, match="not finished.*resume=True"):
        Reader(path)
    with Writer(path, resume=True) as writer:
        assert len(writer) == 10
    check(path, 10)


def test_an_exception_before_any_append_leaves_nothing(path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        with Writer(path):
            1 / 0
    assert list(path.parent.iterdir()) == []


def test_an_empty_store_needs_its_fields(path: Path) -> None:
    with pytest.raises(SchemaError, match="no samples were appended.*schema="):
        with Writer(path):
            pass
    assert list(path.parent.iterdir()) == []
    with Writer(path, schema=Schema((Field("x", "features", "f4", (4,)), Field("y", "labels", str)))):
        pass
    with Reader(path) as reader:
        assert len(reader) == 0 and reader["x"][:].shape == (0, 4) and reader["x"][:].dtype == "f4"
        assert reader["y"][:].tolist() == [] and reader.schema["y"].classes == ()
    with Writer(path, append=True) as writer:
        writer.append(features={"x": np.ones((2, 4), "f4")}, labels={"y": ["b", "a"]})
    with Reader(path) as reader:
        assert reader["y"][:].tolist() == ["b", "a"]


def test_zero_samples_are_samples_too(path: Path) -> None:
    with Writer(path) as writer:
        writer.append(features=np.empty((0, 4), "f4"), labels=np.empty(0, "U1"))
        writer.append(features=[], labels=[])
        writer.append(features=np.ones((1, 4), "f4"), labels=["a"])
        writer.append(features=[], labels=[])
    with Reader(path) as reader:
        assert reader["features"][:].tolist() == [[1, 1, 1, 1]] and reader["labels"][:].tolist() == ["a"]


def test_an_existing_store_is_safe_from_a_writer_without_a_word(path: Path) -> None:
    before = sha(write(path, [0, 10]))
    with pytest.raises(StoreExistsError, match="overwrite=True.*append=True"):
        Writer(path)
    with pytest.raises(SchemaError):
        with Writer(path, overwrite=True):
            pass
    with pytest.raises(OptionError, match="exclude each other"):
        Writer(path, overwrite=True, append=True)
    assert sha(path) == before and only(path)


def test_the_old_store_stays_until_the_new_one_is_whole(path: Path) -> None:
    write(path, [0, 10])
    with Writer(path, overwrite=True) as writer:
        writer.append(**block(0, 20))
        writer.commit()
        check(path, 10)
    check(path, 20)


def test_an_unfinished_store_is_safe_too(path: Path) -> None:
    writer = Writer(path)
    writer.append(**block(0, 10))
    writer.commit()
    lose(writer)
    for options in ({}, {"append": True}):
        with pytest.raises(StoreExistsError, match="unfinished store.*resume=True, or begin anew with overwrite=True"):
            Writer(path, **options)
    with Writer(path, overwrite=True) as writer:
        assert len(writer) == 0
        writer.append(**block(0, 3))
    check(path, 3)


def test_an_unfinished_addition_is_not_answered_with_overwriting_the_store(path: Path) -> None:
    write(path, [0, 10])
    writer = Writer(path, append=True)
    writer.append(**block(10, 20))
    writer.commit()
    lose(writer)
    with pytest.raises(StoreExistsError, match="append=True, resume=True, or remove the journal"):
        Writer(path, append=True)


def test_a_closed_writer_says_so(path: Path) -> None:
    with Writer(path) as writer:
        writer.append(**block(0, 3))
    writer.close()
    for call in (lambda: writer.append(**block(3, 4)), writer.commit):
        with pytest.raises(ValueError, match="the writer is closed; open it again with append=True"):
            call()
    assert repr(writer) == f"<h5store.Writer {str(path)!r}, closed>"


def test_a_schema_that_differs_from_the_stores_is_refused(path: Path) -> None:
    write(path, [0, 3])
    with Reader(path) as reader:
        schema = reader.schema
    with Writer(path, append=True, schema=schema) as writer:
        writer.append(**block(3, 5))
    check(path, 5)
    other = Schema((*tuple(schema)[:-1], Field("name", "meta", str, (3,))))
    for options in ({"append": True}, {"resume": True}):
        with pytest.raises(SchemaError, match=r"the fields differ.*'name' is meta text \(3,\), expected meta text"):
            Writer(path, schema=other, **options)
    writer = Writer(path, overwrite=True, schema=other)
    with pytest.raises(SchemaError, match=r"'name' has shape \(3, 2\), expected \(n, 3\)"):
        writer.append(**block(0, 3))
    lose(writer)
    check(path, 5)


# ---- one writer


def test_a_second_writer_is_refused_whatever_its_wishes(path: Path) -> None:
    with Writer(path) as writer:
        writer.append(**block(0, 3))
        for options in ({}, {"overwrite": True}, {"resume": True}, {"append": True}):
            with pytest.raises(StoreLockedError, match="of this process holds the store; close"):
                Writer(path, **options)
    check(path, 3)


HOLD = """
import sys, numpy as np, h5py, h5store
other = h5py.File(sys.argv[2])  # a file that libhdf5 has open, with the lock it has by this setting
writer = h5store.Writer(sys.argv[1], overwrite=True)
writer.append(features=np.arange(5))
print("held", flush=True)
input()
writer.close()
"""
TRY = """
import sys, h5py, numpy as np, h5store
other = h5py.File(sys.argv[2])
for options in ({}, {"overwrite": True}, {"resume": True}, {"append": True}):
    try:
        h5store.Writer(sys.argv[1], **options)
    except h5store.errors.StoreLockedError as error:
        assert "another writer holds the store (process " in str(error), error
        print("refused")
"""


@pytest.mark.parametrize("setting", [None, "TRUE", "FALSE", "BEST_EFFORT"])
def test_a_second_process_is_refused_whatever_hdf5_says_of_locks(
        path: Path, monkeypatch: pytest.MonkeyPatch, start_python: Callable[..., subprocess.Popen[str]],
        run_python: Callable[..., str], setting: str | None) -> None:
    with Writer(path) as writer:
        writer.append(features=np.arange(3))
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    if setting is not None:
        monkeypatch.setenv("HDF5_USE_FILE_LOCKING", setting)
    holder = start_python(HOLD, str(path), str(path))
    assert holder.stdout is not None and holder.stdout.readline() == "held\n", holder.communicate(timeout=60)
    assert run_python(TRY, str(path), str(path)).split() == ["refused"] * 4
    _, err = holder.communicate("\n", timeout=60)
    assert holder.returncode == 0, err
    with Reader(path) as reader:
        assert reader["features"][:].tolist() == [0, 1, 2, 3, 4]


def test_a_writer_that_is_lost_frees_the_store(path: Path) -> None:
    writer = Writer(path)
    writer.append(**block(0, 3))
    writer.commit()
    writer.append(**block(3, 5))
    with pytest.warns(UserWarning, match="lost without close.., so nothing was sealed; 3 of 5 samples are kept"):
        del writer
    with Writer(path, resume=True) as writer:
        assert len(writer) == 3
    assert only(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer = Writer(path, append=True)  # nothing appended, nothing lost
        del writer


def test_a_forked_child_neither_writes_nor_holds_the_lock(path: Path) -> None:
    writer = Writer(path)
    writer.append(**block(0, 3))
    submit(int).result()
    told, say = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go)
            for call in (lambda: writer.append(**block(3, 4)), writer.commit, writer.close):
                with pytest.raises(StoreLockedError, match="a forked child cannot write"):
                    call()
            try:
                with writer:
                    raise KeyError
            except KeyError:
                pass
            os.write(say, b"well")
            os.read(wait, 1)
        finally:
            os._exit(0)
    os.close(wait)
    os.close(say)
    assert os.read(told, 10) == b"well"
    os.close(told)
    lose(writer)
    with Writer(path, overwrite=True) as again:  # the child lives, and has no part of the lock
        again.append(**block(0, 5))
    os.close(go)
    os.waitpid(child, 0)
    check(path, 5)


def test_leftovers_of_a_crash_are_no_obstacle(path: Path) -> None:
    Path(f"{path}.lock").write_text("process 1 on elsewhere")
    Path(f"{path}.sealing").write_bytes(b"half a store" * 1000)
    write(path, [0, 10])
    check(path, 10)
    assert only(path)


def test_the_store_sealed_but_its_journal_left(path: Path) -> None:
    # Killed between the renaming and the removal of the journal.
    def sealed_again(cuts: list[int], **options: Any) -> None:
        writer = Writer(path, **options)
        writer.append(**block(*cuts))
        writer.commit()
        journal = Path(f"{path}.journal").read_bytes()
        writer.close()
        before = sha(path)
        Path(f"{path}.journal").write_bytes(journal)
        with Writer(path, resume=True) as writer:
            assert len(writer) == cuts[1]
        assert sha(path) == before and only(path)

    sealed_again([0, 30])
    sealed_again([30, 333], append=True)


def test_a_journal_is_not_taken_for_that_of_another_store(path: Path) -> None:
    write(path, [0, 10])
    writer = Writer(path, append=True)
    writer.append(**block(10, 200))
    writer.commit()
    lose(writer)
    journal = Path(f"{path}.journal").read_bytes()
    path.unlink()
    Path(f"{path}.journal").unlink()
    changed = block(0, 200)
    changed["features"]["x"][150] = -1
    with Writer(path) as writer:
        writer.append(**changed)
    Path(f"{path}.journal").write_bytes(journal)
    with pytest.raises(JournalError, match="is not the store that its journal was adding to"):
        Writer(path, resume=True)
    assert Path(f"{path}.journal").read_bytes() == journal


@pytest.mark.parametrize("codes", [False, True])
def test_a_journal_with_nothing_but_its_header_adds_nothing(path: Path, codes: bool) -> None:
    # Killed between the header and the first frame.
    write(path, [0, 100])
    before = sha(path)
    whole = sha(write(path.with_name("whole.h5"), [0, 120]))
    writer = Writer(path, append=True)
    Journal.close(writer._start_journal())
    lose(writer)
    if codes:
        with Writer(path, resume=True) as writer:
            assert len(writer) == 100
            writer.append(**block(100, 120))
        assert sha(path) == whole
    else:
        with Writer(path, resume=True) as writer:
            assert len(writer) == 100
        assert sha(path) == before
