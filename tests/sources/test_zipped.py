"""Members of .npz files: streamed or at once, equal to what numpy reads, refused where damaged or pickled."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5store.errors import SourceError
from h5store.sources.npy import Unreadable
from h5store.sources.zipped import Archive, NpzMember

SAVES = {"stored": np.savez, "deflated": np.savez_compressed}


@pytest.fixture(params=SAVES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    SAVES[request.param](where, x=rng.normal(size=(1000, 7)).astype("f4"), y=np.arange(1000), one=np.float32(3),
                         fortran=np.asfortranarray(rng.normal(size=(50, 6))), big=np.arange(9, dtype=">u4"),
                         text=np.array(["a", "bcd"]), none=np.empty((0, 4)))
    return str(where)


def test_slices_of_a_stream_are_numpys(path: str) -> None:
    with np.load(path) as expected:
        for key in ("x", "y", "fortran", "big", "text", "none"):
            member = NpzMember(path, key)
            assert (member.shape, member.dtype) == (expected[key].shape, expected[key].dtype)
            for index in (slice(0, 3), slice(3, 40), slice(2, 5), slice(None), slice(None, None, 2), 0 if len(member)
                          else slice(0, 0), slice(5, 2)):
                np.testing.assert_array_equal(member[index], expected[key][index])
            member.close()


@given(cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_forward_pieces_join_to_the_whole(cuts: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    where = tmp_path_factory.mktemp("pieces") / "x.npz"
    x = np.random.default_rng(1).integers(0, 9, (1000, 3))
    np.savez_compressed(where, x)
    edges = [0, *sorted(cuts), 1000]
    member = NpzMember(str(where))
    np.testing.assert_array_equal(np.concatenate([member[a:b] for a, b in zip(edges, edges[1:])]), x)


def test_a_stream_never_holds_the_member_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", np.zeros((1 << 20, 8)))
    member = NpzMember(str(tmp_path / "x.npz"))
    stream = member._rewound()
    most = max(len(stream._more()) for _ in range(60))
    assert 0 < most <= 1 << 20
    member.close()


def test_zip64_members_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As beyond 4 GB, or 65,535 members, without writing as many.
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    where = tmp_path / "large.npz"
    np.savez_compressed(where, a=np.arange(500), x=np.arange(5))
    assert b"PK\6\6" in where.read_bytes(), "it has a ZIP64 directory"
    assert NpzMember(str(where), "x")[:].tolist() == [0, 1, 2, 3, 4]
    assert NpzMember(str(where), "a")[498:].tolist() == [498, 499]
    assert Archive(where.read_bytes()).array("x").tolist() == [0, 1, 2, 3, 4]


def test_small_archives_read_at_once_are_numpys(path: str) -> None:
    archive = Archive(Path(path).read_bytes())
    with np.load(path) as expected:
        assert set(archive.members) == set(expected.files)
        for key in expected.files:
            np.testing.assert_array_equal(archive.array(key), expected[key])
            assert archive.header(key).shape == expected[key].shape


@given(data=st.data())
def test_no_flipped_byte_gives_other_values(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    buffer = io.BytesIO()
    save = data.draw(st.sampled_from(list(SAVES.values())))
    x = np.arange(40)
    save(buffer, x=x)
    raw = bytearray(buffer.getvalue())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        archive = Archive(bytes(raw))
        found = archive.array("x")
    except (Unreadable, KeyError):
        return
    np.testing.assert_array_equal(found, x)


def test_damage_in_a_stream_is_told(path: str) -> None:
    raw = bytearray(Path(path).read_bytes())
    raw[2000] ^= 255
    Path(path).write_bytes(raw)
    with pytest.raises(SourceError, match=r"data\.npz: array 'x': it is (damaged|cut short)"):
        NpzMember(path, "x")[:]


@pytest.mark.parametrize("size", [0, 10, 3000])
def test_a_cut_archive_is_told(path: str, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(SourceError, match="not a .npz archive, or cut short|empty"):
        NpzMember(path, "x")
    with pytest.raises(Unreadable):
        Archive(Path(path).read_bytes())


def test_objects_are_refused_with_file_member_and_way_out(tmp_path: Path) -> None:
    ragged = np.empty(2, object)
    ragged[:] = [np.arange(2), np.arange(3)]
    np.savez(tmp_path / "ragged.npz", x=ragged)
    with pytest.raises(SourceError, match=r"ragged\.npz: array 'x': it has dtype object.*pad"):
        NpzMember(str(tmp_path / "ragged.npz"), "x")
    with pytest.raises(Unreadable, match="member 'x': it has dtype object"):
        Archive((tmp_path / "ragged.npz").read_bytes()).header("x")


def test_names_that_are_not_there_get_the_nearest(path: str) -> None:
    with pytest.raises(SourceError, match="no array 'txt'; arrays: 'text'"):
        NpzMember(path, "txt")
    with pytest.raises(SourceError, match="holds 7 arrays, say which"):
        NpzMember(path)
    with pytest.raises(SourceError, match="'one' is a scalar"):
        NpzMember(path, "one")


def test_methods_that_numpy_does_not_write_are_told(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(5))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", buffer.getvalue())
    with pytest.raises(SourceError, match="compression method 12"):
        NpzMember(str(tmp_path / "x.npz"), "x")
    with pytest.raises(Unreadable, match="compression method 12"):
        Archive((tmp_path / "x.npz").read_bytes()).array("x")
