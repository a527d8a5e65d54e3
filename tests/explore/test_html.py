"""The card and the repr: true, escaped, bounded in size and in what they read, on whatever store."""

from __future__ import annotations

import html.parser
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import h5store
from h5store.explore import pictures
from h5store.explore.facts import kind_of, shape_text
from h5store.explore.preview import BUDGET
from h5store.explore.text import clean, cut, width
from h5store.schema import Field, Schema
from h5store.storage.store import Store

MARKUP = "<script>alert('x')</script> & \"q\" 🪐"
opened: list[h5store.Reader] = []


@pytest.fixture(autouse=True)
def closed(no_file_left_open: None) -> Iterator[None]:
    yield
    while opened:
        opened.pop().close()


def packed(path: Path, **how: Any) -> h5store.Reader:
    h5store.pack(path, progress=False, overwrite=True, **how)
    opened.append(h5store.Reader(path))
    return opened[-1]


class Tags(html.parser.HTMLParser):
    """Tags that open and close, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in ("img", "path", "rect"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack[-1] == tag, f"</{tag}> closes {self.stack[-3:]}"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.stack:
            self.text += data + " "


def parsed(card: str) -> Tags:
    """The card, checked: balanced, without scripts, handlers and addresses elsewhere, and small."""
    tags = Tags()
    tags.feed(card)
    assert not tags.stack
    assert not {"script", "iframe", "object", "link", "meta", "form"} & set(tags.seen)
    assert not re.search(r"<[^>]* on\w+=|javascript:|https?://|@import|url\(", card)
    assert len(card) < 300_000
    return tags


def pixels(data: bytes) -> np.ndarray:
    """What a PNG shows, by its specification: only what the writer makes."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, found = 8, {}
    while at < len(data):
        (length,), name = struct.unpack(">I", data[at:at + 4]), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0] == zlib.crc32(name + body)
        found[name], at = body, at + 12 + length
    wide, high, depth, colour = struct.unpack(">IIBB", found[b"IHDR"][:10])
    assert depth == 8
    channels = {0: 1, 2: 3, 6: 4}[colour]
    lines = np.frombuffer(zlib.decompress(found[b"IDAT"]), np.uint8).reshape(high, 1 + wide * channels)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape((high, wide) if channels == 1 else (high, wide, channels))


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 4), (4, 4), (1, 1), (3, 4)])
def test_a_png_holds_the_pixels(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype="uint8")
    assert (pixels(pictures.png(image)) == image).all()


@pytest.mark.parametrize(("shape", "kind"), [
    ((), "scalar"), ((6,), "vector"), ((100,), "series"), ((100, 6), "series"), ((6, 100), "series"), ((8, 8), "image"),
    ((64, 64, 3), "image"), ((3, 64, 64), "image"), ((28, 28, 1), "image"), ((9, 8, 7), "other"), ((2,) * 31, "other"),
])
def test_a_shape_tells_what_a_sample_looks_like(shape: tuple[int, ...], kind: str) -> None:
    assert kind_of(shape) == kind


def test_the_card_tells_what_is_there(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    reader = packed(
        tmp_path / "train.h5",
        features={"image": rng.integers(0, 9, (300, 8, 8), dtype="u1"), "curve": rng.random((300, 50))},
        aux={"host": rng.random((300, 5))}, labels={"kind": np.array(["bee", "cat"])[np.arange(300) % 3 // 2]})
    reader.split({"train": 0.8, "val": 0.2}, seed=0, save=True)
    tags = parsed(reader._repr_html_())
    for text in ("train.h5", "300 samples", "lz4", "image", "8 × 8", "uint8", "curve", "features", "bee", "cat",
                 "66.7%", "33.3%", "240", "60", "train", "val", "of raw"):
        assert text in tags.text, text
    assert tags.seen.count("img") == 8
    assert tags.seen.count("svg") == 8


def test_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    label = np.array([MARKUP, "b\nc"])[np.arange(20) % 2]
    reader = packed(tmp_path / "a&<b>.h5", features={MARKUP.replace("/", "|"): np.zeros((20, 3))},
                    labels={"<i>": label})
    for shown in (reader, reader["<i>"], reader.loader(batch_size=2), h5store.verify(reader.path),
                  reader.stats(progress=False)):
        tags = parsed(shown._repr_html_())
        assert "i" not in tags.seen and "b>" not in tags.seen
    assert "<script>alert('x')<|script> & \"q\" 🪐" in parsed(reader._repr_html_()).text
    assert "\n" not in cut("b\nc", 80)


@pytest.mark.parametrize("values", [
    np.full((10, 9, 9), np.nan), np.full((10, 40), np.inf), np.zeros((10, 5)), np.full((10, 9, 9), 1e308),
    np.array([[1e308, -1e308] * 20] * 10), np.full(10, np.nan), np.arange(10) * 1e307, np.zeros((10,) + (1,) * 31),
    np.ones((10, 40), "c8"), np.ones((10, 5), "?"), np.zeros((10, 8, 8), "f2"), np.zeros((10, 8, 8, 3), "i8"),
    np.array([1.0, np.nan] * 5),
], ids=str)
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_odd_values_make_a_card(values: np.ndarray, tmp_path: Path) -> None:
    reader = packed(tmp_path / "s.h5", features={"x": values}, labels={"y": values.reshape(10, -1)[:, 0].real})
    parsed(reader._repr_html_())
    parsed(reader["x"]._repr_html_())
    parsed(reader.stats(progress=False)._repr_html_())
    assert max(map(width, repr(reader).splitlines())) <= 100


def test_samples_of_different_lengths_are_drawn_each_for_itself(tmp_path: Path) -> None:
    series = [np.arange(float(n)) for n in range(1, 80)]
    reader = packed(tmp_path / "s.h5", features={"s": series, "p": [np.ones((n, 2)) for n in range(1, 80)]})
    tags = parsed(reader._repr_html_())
    assert "any × 2" in tags.text and tags.seen.count("svg") == 8
    assert "any × 2" in repr(reader)
    parsed(reader["s"]._repr_html_())


def test_a_store_without_samples_and_one_of_one_class(tmp_path: Path) -> None:
    empty = packed(tmp_path / "e.h5", features={"x": np.zeros((0, 8, 8))}, labels={"y": np.zeros(0, int)})
    assert "0 samples" in parsed(empty._repr_html_()).text
    assert "0 samples" in repr(empty)
    one = packed(tmp_path / "o.h5", features={"x": np.zeros((5, 2))}, labels={"y": np.array(["only"] * 5)})
    assert "1 class" in parsed(one._repr_html_()).text


def test_ten_thousand_fields_and_a_million_classes_make_a_small_card(tmp_path: Path) -> None:
    many = packed(tmp_path / "m.h5", features={f"f{i}": np.zeros(3) for i in range(2000)})
    tags = parsed(many._repr_html_())
    assert "and 1,976 more fields" in tags.text
    assert len(repr(many).splitlines()) < 40
    classes = packed(tmp_path / "c.h5", features={"x": np.zeros(50_000)}, labels={"id": np.arange(50_000)})
    assert "50,000 classes" in parsed(classes._repr_html_()).text


def test_what_a_card_decodes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = packed(tmp_path / "big.h5", features={f"x{i}": np.zeros((12, 1200, 1200), "u1") for i in range(5)},
                 labels={"y": np.arange(12)}, chunk=1, codec="lz4")
    decoded = []
    real = Store.empty

    def empty(store: Store, names: Any, samples: int) -> Any:
        decoded.extend(samples * (store.chunk_bytes(name) or 0) for name in names if name.startswith("x"))
        return real(store, names, samples)

    monkeypatch.setattr(Store, "empty", empty)
    tags = parsed(big._repr_html_())
    assert 0 < sum(decoded) <= BUDGET
    assert tags.seen.count("img") > 0
    huge = packed(tmp_path / "huge.h5", features={"x": np.zeros((2, 9 * 2**20), "u1")})
    decoded.clear()
    assert "no preview: a chunk is 9.0 MiB" in parsed(huge._repr_html_()).text
    assert sum(decoded) == 0


def test_only_a_part_is_counted_where_all_would_take_long_and_the_card_says_so(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from h5store.explore import preview

    monkeypatch.setattr(preview, "_COUNTED", 4096)
    halves = np.arange(60_000) // 30_000
    reader = packed(tmp_path / "s.h5", features={"x": np.zeros(60_000, "u1")}, labels={"y": halves}, chunk="4KiB")
    text = parsed(reader._repr_html_()).text
    assert re.search(r"in [34],\d{3} of 60,000 samples, spread evenly", text)
    assert "50.0%" in text


def test_damage_is_said_in_its_place(tmp_path: Path) -> None:
    reader = packed(tmp_path / "s.h5", features={"x": np.random.default_rng(0).random((50, 40))},
                    labels={"y": np.arange(50)})
    data = bytearray(Path(reader.path).read_bytes())
    offset = int(reader._store.table("x").offsets[0])
    reader.close()
    data[offset + 50] ^= 1
    (tmp_path / "d.h5").write_bytes(data)
    opened.append(h5store.Reader(tmp_path / "d.h5"))
    text = parsed(opened[-1]._repr_html_()).text
    assert "cannot be read" in text and "checksum differs" in text
    assert "50 classes" in text


def test_files_of_others_have_a_card_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["X"], file["y"] = np.random.default_rng(0).random((30, 40)), np.arange(30) % 3
    reader = h5store.Reader.from_hdf5(tmp_path / "f.h5", features="X", labels="y")
    opened.append(reader)
    assert "30 samples" in parsed(reader._repr_html_()).text
    assert max(map(width, repr(reader).splitlines())) <= 100


def test_a_view_a_loader_and_a_report_show_themselves(tmp_path: Path) -> None:
    reader = packed(tmp_path / "s.h5", features={"x": np.full((64, 3), np.nan)}, labels={"y": np.arange(64) % 4})
    assert "16 of 64 samples" in parsed(reader.select(range(16))._repr_html_()).text
    text = parsed(reader.loader(batch_size=8, seed=3, drop_last=True)._repr_html_()).text
    assert "steps an epoch" in text and "8 × 3" in text and "left out if not full" in text
    text = parsed(h5store.verify(reader.path)._repr_html_()).text
    assert "whole" in text and "192" in text


def test_long_and_wide_names_stay_within_100_columns() -> None:
    assert width("🪐日本") == 6
    assert width(cut("日" * 80, 40)) <= 40
    assert clean("a\x1b[31m\tb") == "a\\x1b[31m\\tb"
    assert shape_text((2,) * 31) == "2 × 2 × … × 2 (31 axes)"


def test_the_repr_fits_whatever_the_names(tmp_path: Path) -> None:
    fields = [Field("日本" * 60, "features", np.dtype("f4"), (2,) * 12), Field("y", "labels", str)]
    with h5store.Writer(tmp_path / ("n" * 200 + ".h5"), schema=Schema(fields)):
        pass
    opened.append(h5store.Reader(tmp_path / ("n" * 200 + ".h5")))
    lines = repr(opened[-1]).splitlines()
    assert len(lines) == 3
    assert max(map(width, lines)) <= 100


def test_an_empty_store_has_no_ratio(tmp_path: Path) -> None:
    h5store.pack(tmp_path / "none.h5", features=np.empty((0, 4), "f4"), progress=False)
    opened.append(h5store.Reader(tmp_path / "none.h5"))
    assert "0 samples" in repr(opened[-1]) and "of raw" not in repr(opened[-1]).splitlines()[0]
