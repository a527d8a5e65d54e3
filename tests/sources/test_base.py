"""Sources that need no files: arrays and iterables, cut into blocks from any sample on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h5store.errors import SchemaError, SourceError
from h5store.packing import pack
from h5store.reader import Reader
from h5store.sources import base
from h5store.sources.base import ArraySource, StreamSource, as_source


def flat(blocks: Iterator[Mapping[str, Mapping[str, Any]]], role: str, name: str) -> list[Any]:
    return [v for block in blocks for v in np.asarray(block[role][name]).tolist()]


def samples(n: int) -> Iterator[dict[str, Any]]:
    for i in range(n):
        yield {"x": np.full(3, i, "f4"), "y": i, "word": "ab"[i % 2], "more": None}


def blocks(*sizes: int) -> Iterator[dict[str, Any]]:
    at = 0
    for size in sizes:
        yield {"x": np.arange(at, at + size), "y": np.arange(at, at + size) * 2}
        at += size


@pytest.mark.parametrize("start", [0, 1, 49, 50])
def test_blocks_begin_at_any_sample(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BLOCK_BYTES", 100)
    x, words = np.arange(50), [str(i) for i in range(50)]
    source = ArraySource({"features": {"x": x}, "labels": words})
    assert source.length == 50 and source.schema is not None and source.schema.names == ("x", "labels")
    assert flat(source.blocks(start), "features", "x") == list(range(start, 50))
    assert flat(source.blocks(start), "labels", "labels") == words[start:]
    made = StreamSource(samples(50), {"features": "x", "labels": ["y", "word"], "aux": None})
    assert flat(made.blocks(start), "labels", "y") == list(range(start, 50))
    made = StreamSource(blocks(0, 7, 0, 30, 13), {"features": "x", "labels": "y"}, each="block")
    assert flat(made.blocks(start), "labels", "y") == list(range(2 * start, 100, 2))


def test_blocks_are_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BLOCK_BYTES", 1000)
    for source in (ArraySource({"features": np.zeros((500, 10))}),
                   StreamSource(({"features": np.zeros(10)} for _ in range(500)), {"features": "features"}, "sample")):
        sizes = [np.asarray(b["features"]["features"]).nbytes for b in source.blocks()]
        assert sum(sizes) == 40_000 and max(sizes) <= 1080


def test_an_item_is_a_sample_where_a_value_is_a_scalar_or_lengths_differ() -> None:
    for item in ({"x": np.zeros(3), "y": 1}, {"x": np.zeros(3), "y": np.zeros(2)}, {"x": 1.0, "y": "word"}):
        (block,) = StreamSource([item, item], {"features": ["x", "y"]}).blocks()
        assert len(block["features"]["x"]) == 2
    with pytest.raises(SourceError, match="one sample or a block of 3; say which:.*each='sample'"):
        next(StreamSource([{"x": np.zeros(3), "y": np.zeros(3)}], {"features": ["x", "y"]}).blocks())


def test_samples_that_differ_are_named() -> None:
    def odd(key: str, value: Any) -> Iterator[dict[str, Any]]:
        for i in range(10):
            yield {"x": np.zeros(3), "y": 1, **({key: value} if i == 7 else {})}

    for key, value, told in [("x", np.zeros(4), r"sample 7: 'x' has shape \(4,\).*expected \(3,\) and float64"),
                             ("x", np.zeros(3, "f4"), "sample 7: 'x' has .*float32"), ("y", 1.5, "sample 7: 'y'"),
                             ("y", "a", "sample 7: 'y'"), ("y", None, "sample 7: 'y'")]:
        with pytest.raises(SourceError, match=f"here: {told}"):
            list(StreamSource(odd(key, value), {"features": "x", "labels": "y"}, "sample", "here").blocks())


@pytest.mark.parametrize(("item", "told"), [
    ((1, 2), "item 2 is tuple, expected a dict of field name to values"),
    ({"x": 1}, "item 2 has no 'y'; its keys: 'x'"),
])
def test_items_that_are_none(item: Any, told: str) -> None:
    items = [{"x": 1, "y": 2}, {"x": 1, "y": 2}, item]
    with pytest.raises(SourceError, match=told):
        list(StreamSource(items, {"features": "x", "labels": "y"}, "sample").blocks())


def test_what_came_before_an_error_is_given_first() -> None:
    def breaking() -> Iterator[dict[str, Any]]:
        yield from samples(5)
        raise KeyError("gone")

    found = []
    with pytest.raises(KeyError, match="gone"):
        for block in StreamSource(breaking(), {"labels": "y"}, "sample").blocks():
            found += block["labels"]["y"].tolist()
    assert found == list(range(5))


def test_a_source_that_ends_before_where_it_is_to_begin() -> None:
    for source in (StreamSource(samples(5), {"labels": "y"}, "sample"),
                   StreamSource(blocks(5), {"features": "x"}, "block")):
        with pytest.raises(SourceError, match="has 5 samples, but 6 are packed already"):
            list(source.blocks(6))


@pytest.mark.parametrize(("source", "roles", "error", "told"), [
    (None, {"features": "x.npy"}, SourceError, "features='x.npy' is text, expected an array; load it first"),
    (3, {"features": "x"}, SourceError, "int is no source; expected arrays by role"),
    ("folder", {"features": "x"}, SourceError, "'folder' is a path, and a path does not say"),
    ({"x": np.zeros(3)}, {"features": "z"}, SourceError, "no array 'z'; arrays: 'x'"),
    ([], {}, SourceError, "no fields named; say which keys are what"),
    (ArraySource({"features": np.zeros(3)}), {"labels": "x"}, SourceError, "labels= is given beside a source"),
    (None, {}, SchemaError, "at least one field"),
])
def test_what_is_no_source(source: Any, roles: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        as_source(source, roles)


def test_each_is_one_of_two() -> None:
    with pytest.raises(SourceError, match="each='row', expected 'sample' or 'block'"):
        StreamSource([], {"features": "x"}, each="row")


@pytest.mark.parametrize(("values", "error", "told"), [
    (["a\0", "b"], SchemaError, "text with a NUL"),
    ([np.ma.masked_array([1.0, 2.0], [False, True])], SchemaError, "'v' is a masked array"),
    ([[2**53 + 1, 0.5]], SchemaError, "no one dtype holds exactly"),
    ([[1, "a"]], SchemaError, "'v' holds Python objects"),
    ([np.uint8(255), np.int64(256)], SourceError, r"sample 1: 'v' has shape \(\) and dtype int64 \(256\), .*uint8"),
])
def test_samples_that_numpy_would_change_are_refused(tmp_path: Path, values: Any, error: type[Exception],
                                                     told: str) -> None:
    items = [{"x": 0.0, "v": value} for value in values]
    with pytest.raises(error, match=told):
        pack(tmp_path / "a.h5", items, features="x", labels="v", progress=False)
    assert not (tmp_path / "a.h5").exists()


def test_samples_as_lists_and_text_are_kept(tmp_path: Path) -> None:
    items = [{"x": [i, i + 0.5], "words": ["b", "c" * i], "word": np.str_("é" * i)} for i in range(1, 4)]
    pack(tmp_path / "a.h5", items, features="x", labels="word", meta="words", progress=False)
    with Reader(tmp_path / "a.h5") as reader:
        taken = reader.take(slice(None))
    for name, values in taken.items():
        assert values.tolist() == [item[name] for item in items]
