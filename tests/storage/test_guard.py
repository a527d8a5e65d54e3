"""Chunks that libhdf5 is to decode are tried first: what decodes to another length is told, and never seen by it."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import h5store
from h5store.errors import CorruptChunkError
from h5store.storage import guard

pytestmark = pytest.mark.filterwarnings("ignore::h5store.errors.SlowPathWarning")
OPTIONS = {
    "lzf": {"compression": "lzf"}, "shuffled": {"compression": "lzf", "shuffle": True},
    "summed": {"compression": "lzf", "shuffle": True, "fletcher32": True}, "gzip": {"compression": "gzip"}, "plain": {},
}


def _bricks(path, data, **options):
    """Chunks across a sample, which only libhdf5 reads."""
    with h5py.File(path, "w") as f:
        f.create_dataset("x", data=data, chunks=(8, data.shape[1] // 2), **options)
        return [f["x"].id.get_chunk_info(i) for i in range(f["x"].id.get_num_chunks())]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), values=st.integers(1, 300), width=st.integers(1, 40),
       kind=st.sampled_from(sorted(OPTIONS)))
def test_whole_chunks_are_read(tmp_path_factory, seed, values, width, kind):
    data = np.random.default_rng(seed).integers(0, values, (21, 2 * width)).astype("i4")
    path = tmp_path_factory.mktemp("guard") / "a.h5"
    _bricks(path, data, **OPTIONS[kind])
    with h5store.Reader.from_hdf5(path, features="x", cache=0) as r:
        np.testing.assert_array_equal(r["x"][:], data)


@pytest.mark.parametrize("kind", ["lzf", "shuffled", "gzip"])
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_a_damaged_stream_is_told_or_decodes_to_its_length(tmp_path_factory, kind, data):
    x = (np.arange(24 * 30) // 7).reshape(24, 30).astype("i4")
    path = tmp_path_factory.mktemp("guard") / "a.h5"
    places = _bricks(path, x, **OPTIONS[kind])
    place = data.draw(st.sampled_from(places))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[place.byte_offset + data.draw(st.integers(0, place.size - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with h5store.Reader.from_hdf5(path, features="x", cache=0) as r:
        try:
            found = r["x"][:]
        except CorruptChunkError as error:
            assert "['/x']" in str(error) and "samples" in str(error)
        else:
            with h5py.File(path) as f:
                for at in range(0, 24, 8):
                    for half in (0, 15):
                        mask, stream = f["x"].id.read_direct_chunk((at, half))
                        if kind != "gzip" and not mask:
                            assert guard._lzf_length(stream, 480) == 480
            assert found.shape == x.shape


@pytest.mark.parametrize("stream, length", [
    (b"", 0), (b"\x02abc", 3), (b"\x00a\x20\x00", 4), (b"\x00a\xe0\x05\x00", 15), (b"\x02abc\x40\x02", 7),
])
def test_the_length_of_an_lzf_stream(stream, length):
    assert guard._lzf_length(stream, 100) == length


@pytest.mark.parametrize("stream", [b"\x05ab", b"\x20\x00", b"\x00a\x20\x01", b"\x00a\xe0", b"\x00a\xe0\x05",
                                    b"\x00a\x20"])
def test_a_malformed_lzf_stream_has_no_length_of_a_chunk(stream):
    whole = {b"\x05ab": 6, b"\x20\x00": 3, b"\x00a\x20\x01": 4, b"\x00a\xe0": 10, b"\x00a\xe0\x05": 15, b"\x00a\x20": 4}
    assert guard._lzf_length(stream, 100) != whole[stream]


def test_a_plain_chunk_that_says_another_size_is_told(tmp_path):
    """libhdf5 would copy a whole chunk out of what it has read of it."""
    x = np.arange(24 * 30, dtype="i4").reshape(24, 30)
    places = _bricks(tmp_path / "a.h5", x)
    raw = (tmp_path / "a.h5").read_bytes()
    size = int(places[0].size).to_bytes(4, "little") + bytes(4)  # of a key in the index: size, filter mask
    assert raw.count(size) >= len(places)
    (tmp_path / "a.h5").write_bytes(raw.replace(size, (400).to_bytes(4, "little") + bytes(4)))
    with pytest.raises(h5store.errors.H5StoreError, match="'/x'"):
        with h5store.Reader.from_hdf5(tmp_path / "a.h5", features="x", cache=0) as r:
            r["x"][:]
