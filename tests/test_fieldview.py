"""One field indexed as numpy would index an array of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h5store.errors import SelectionError
from h5store.fieldview import FieldView
from h5store.schema import Field

VALUES = np.arange(7 * 4 * 3, dtype="i4").reshape(7, 4, 3)


def view(values=VALUES):
    """A field view over an array in memory; what it read is in `view.calls`."""
    calls = []

    def read(ids):
        calls.append(ids)
        return values[ids]

    made = FieldView(Field("x", "features", values.dtype, values.shape[1:]), len(values), "a.h5['x']", read)
    made.calls = calls
    return made


@pytest.mark.parametrize("key", [
    0, -1, np.int64(3), np.uint8(3), np.array(2),
    slice(None), slice(2, 5), slice(5, 2, -1), slice(None, None, -2), slice(3, 3), slice(-100, 100),
    [3, 1, 3], [-1, 0], (3,), np.array([1, 2], "u1"), np.array([[1, 2], [-1, 2]]), range(2, 6), [],
    VALUES[:, 0, 0] % 2 == 0, list(VALUES[:, 0, 0] % 2 == 0), np.zeros(7, bool),
    (), Ellipsis, (Ellipsis,), (2, Ellipsis), (Ellipsis, 2), (Ellipsis, 1, 2), (1, 2, 2), (1, 2, 2, Ellipsis),
    (Ellipsis, 1, 2, 2), (slice(1, 5), 2), (slice(None), slice(None, None, -1), [0, 2]), (2, slice(None), [0, 2]),
    ([0, 3], [1, 2]), ([0, 3], slice(None), [1, 2]), ([[0], [3]], [1, 2]), (VALUES[:, 0, 0] > 30, 1),
    (slice(None), None), (Ellipsis, None), (2, None, 1), ([1, 2], None, Ellipsis, 0), (Ellipsis, VALUES[0] % 2 == 0),
    (slice(2, 4), VALUES[0] % 2 == 0), ([], 1), (np.array([[0, 1]]), Ellipsis, 0),
], ids=repr)
def test_selects_what_numpy_selects(key):
    found, wanted = view()[key], VALUES[key]
    assert type(found) is type(wanted)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("key", [0, (0, Ellipsis), (Ellipsis, 0), Ellipsis, [2, 2], (slice(2), None)], ids=repr)
def test_scalar_samples(key):
    values = np.arange(5.0)
    found, wanted = view(values)[key], values[key]
    assert type(found) is type(wanted)
    np.testing.assert_array_equal(found, wanted)


_slices = st.slices(7)
_lists = st.lists(st.integers(-7, 6), max_size=9)
_firsts = st.one_of(st.integers(-7, 6), _slices, _lists, st.lists(st.booleans(), min_size=7, max_size=7),
                    st.lists(st.lists(st.integers(-7, 6), min_size=2, max_size=2), min_size=1, max_size=3))
_inner = st.one_of(st.integers(-3, 2), st.slices(3), st.just(Ellipsis), st.none(), st.just([0, -1]))


@settings(max_examples=300)
@given(st.one_of(_firsts, st.tuples(_firsts, _inner), st.tuples(_firsts, _inner, _inner),
                 st.tuples(st.just(Ellipsis), _inner)))
def test_any_index_selects_what_numpy_selects(key):
    try:
        wanted = VALUES[key]
    except IndexError:
        with pytest.raises(IndexError):
            view()[key]
        return
    found = view()[key]
    assert np.shape(found) == np.shape(wanted)
    np.testing.assert_array_equal(found, wanted)


def test_an_empty_list_of_any_dtype_is_empty():
    # numpy.array([]) is float64: an empty list of ids that was made an array.
    for key in ([], np.array([]), np.array([], "i8"), np.array([], str)):
        found = view()[key]
        assert found.shape == (0, 4, 3) and found.dtype == np.int32


@pytest.mark.parametrize("key, text", [
    (7, "7 is out of range, there are 7 samples"), (-8, "-8 is out of range"), ([0, 9], "9 is out of range"),
    (1.0, "float64, expected ints"), ([0.5], "float64"), (np.array(["a"]), "expected ints"), ("a", "expected ints"),
    ([True] * 5, r"shape \(5,\), expected \(7,\)"), (np.zeros((7, 4), bool), r"shape \(7, 4\), expected \(7,\)"),
    (True, "mask"), ([[1], [2, 3]], "do not make one array"), (None, "new axis before the samples"),
    (np.array([2**63], "u8"), "out of range"), (object(), "expected ints"),
], ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", repr(value)))
def test_what_selects_no_samples_is_refused(key, text):
    with pytest.raises(SelectionError, match=text):
        view()[key]
    with pytest.raises(IndexError):
        view()[key]


@pytest.mark.parametrize("key", [(Ellipsis, Ellipsis), (0, 0, 0, 0), (0, 4), (slice(None), 0, 5)], ids=repr)
def test_bad_indices_into_the_sample_are_index_errors_too(key):
    with pytest.raises(IndexError):
        view()[key]


def test_out_of_range_says_where():
    with pytest.raises(SelectionError, match=r"^a\.h5\['x'\]: "):
        view()[99]


def test_reads_only_what_is_asked_for():
    x = view()
    x[[5, 2], 1]
    x[3]
    x[2:4]
    assert [ids.tolist() for ids in x.calls] == [[5, 2], [3], [2, 3]]
    assert all(ids.dtype == np.int64 for ids in x.calls)


def test_it_has_the_attributes_of_an_array():
    x = view()
    assert (x.shape, x.ndim, x.size, x.nbytes, len(x)) == ((7, 4, 3), 3, 84, 336, 7)
    assert x.dtype == np.int32
    assert "'x'" in repr(x) and "features" in repr(x) and len(repr(x)) <= 100


def test_it_becomes_an_array():
    np.testing.assert_array_equal(np.asarray(view()), VALUES)
    assert np.asarray(view(), dtype="f8").dtype == np.float64


def test_an_array_without_a_copy_is_refused():
    with pytest.raises(ValueError):
        view().__array__(copy=False)


def test_iterates_sample_by_sample_in_few_reads():
    values = np.arange(2500)
    x = view(values)
    np.testing.assert_array_equal(list(x), values)
    assert len(x.calls) < 10


def test_text_has_the_dtype_of_its_classes():
    field = Field("y", "labels", str, (), ("ant", "café"))
    assert FieldView(field, 3, "", lambda ids: ids).dtype == np.dtype("<U4")
    none = Field("y", "labels", str, (), ())
    assert FieldView(none, 0, "", lambda ids: ids).dtype.kind == "U"


def test_big_endian_fields_are_native():
    field = Field("y", "labels", ">i4", ())
    assert FieldView(field, 3, "", lambda ids: ids).dtype.isnative
