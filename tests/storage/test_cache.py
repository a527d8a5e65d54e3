"""Decoded samples under one budget of bytes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from h5store.errors import OptionError
from h5store.storage.cache import SampleCache, parse_bytes


@pytest.mark.parametrize(("text", "size"), [
    ("256MiB", 256 << 20), ("1.5GB", 1_500_000_000), ("0", 0), (0, 0), (4096, 4096), ("10 kb", 10_000), ("7B", 7),
    ("1gib", 1 << 30), (np.int64(5), 5), ("2.5", 2),
])
def test_sizes_as_people_write_them(text: Any, size: int) -> None:
    assert parse_bytes(text, "cache") == size


@pytest.mark.parametrize("text", ["", "big", "-1", -1, "1 TB", "1e3", None, True, "MiB", "1..5MB", [1], float("nan")])
def test_what_is_no_size_is_refused_with_the_name_of_the_setting(text: Any) -> None:
    with pytest.raises(OptionError, match="cache: expected a size such as '256MiB' or a number of bytes, got "):
        parse_bytes(text, "cache")


def test_the_smallest_fields_are_kept_whole_first() -> None:
    cache = SampleCache(1000, {"image": 5000, "label": 8, "aux": 900, "name": 200})
    assert [cache.whole(name) for name in ("label", "name", "aux", "image")] == [True, True, False, False]
    assert cache.holds_chunks_of(792) and not cache.holds_chunks_of(793) and not cache.holds_chunks_of(0)


def test_no_budget_keeps_nothing() -> None:
    cache = SampleCache(0, {"x": 10})
    assert not cache.whole("x") and not cache.holds_chunks_of(1)
    cache.put("x", 0, np.zeros(1, "u1"))
    assert cache.get("x", 0) is None


def test_chunks_used_last_are_kept_within_the_budget() -> None:
    cache = SampleCache(100, {"x": 10_000})
    for i in range(5):
        cache.put("x", i, np.full(20, i, "u1"))
    assert cache.get("x", 0) is not None  # used again
    cache.put("x", 5, np.full(20, 5, "u1"))
    kept = [i for i in range(6) if cache.get("x", i) is not None]
    assert kept == [0, 2, 3, 4, 5]
    cache.put("x", 6, np.zeros(101, "u1"))
    assert cache.get("x", 6) is None and cache.get("x", 5) is not None, "one too large displaces nothing"
    cache.put("x", 5, np.zeros(20, "u1"))
    found = cache.get("x", 5)
    assert found is not None and found[0] == 5, "the first stays: others may be reading it"


def test_a_whole_field_is_one_array_that_remembers_what_is_filled() -> None:
    cache = SampleCache(100, {"x": 40})
    values, filled = cache.array("x", (10,), np.dtype("f4"), 3)
    filled[1] = True
    again, state = cache.array("x", (10,), np.dtype("f4"), 3)
    assert again is values and state.tolist() == [False, True, False]
    cache.clear()
    assert cache.array("x", (10,), np.dtype("f4"), 3)[1].tolist() == [False] * 3


def test_a_forked_child_begins_empty() -> None:
    cache = SampleCache(100, {"x": 10_000, "y": 8})
    cache.put("x", 0, np.zeros(20, "u1"))
    cache.array("y", (1,), np.dtype("f8"), 1)[1][:] = True
    told, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            empty = cache.get("x", 0) is None and not cache.array("y", (1,), np.dtype("f8"), 1)[1].any()
            os.write(say, b"empty" if empty else b"full")
        finally:
            os._exit(0)
    os.close(say)
    os.waitpid(child, 0)
    assert os.read(told, 10) == b"empty"
    os.close(told)
    assert cache.get("x", 0) is not None
