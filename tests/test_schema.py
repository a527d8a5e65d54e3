"""Fields and schemas: what may be stored, and what is said of the rest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from h5store.errors import FieldNotFound, FormatError, SchemaError
from h5store.schema import MAX_AXES, Field, Role, Schema, dumps


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", "c8",
                                   "c16", "G", bool, int, float, complex, np.float32, ">f4", ">i2"])
def test_every_number_dtype_is_stored_in_one_order(dtype: Any) -> None:
    field = Field("x", "features", dtype)
    assert field.dtype == np.dtype(dtype).newbyteorder("<") and not field.text
    assert Field.from_json(json.loads(dumps(field.to_json()))) == field


@pytest.mark.parametrize("dtype", [str, "U", "U10", "<U3", ">U3", np.str_])
def test_text_is_text_whatever_its_width(dtype: Any) -> None:
    field = Field("x", "labels", dtype, (2,))
    assert field.text and field.dtype == "<i4" and field.describe() == "text (2,)" and field.nbytes == 8
    sealed = Field("x", "labels", dtype, (2,), classes=("a", "猫"))
    assert Field.from_json(json.loads(dumps(sealed.to_json()))) == sealed


@pytest.mark.parametrize(("dtype", "way_out"), [
    ("M8[s]", "values.astype.'int64'. .and note the unit"), ("m8[ms]", "durations as numbers"),
    (object, "give text as str, ragged rows padded"), ("S5", "numpy.char.decode"), ("V8", "view it as a numeric dtype"),
    ([("a", "f4"), ("b", "i2")], r"each member as a field of its own, e.g. \{'a': X\['a'\]\}"),
    ("nonsense", "is not a dtype"), (3.5, "is not a dtype"),
])
def test_other_dtypes_are_refused_with_the_way_out(dtype: Any, way_out: str) -> None:
    with pytest.raises(SchemaError, match=f"field 'when': .*{way_out}"):
        Field("when", "features", dtype)


@pytest.mark.parametrize("name", ["", "a/b", "/", "a\0", ".", "..", "\ud800", None, 3, b"x"])
def test_names_that_hdf5_would_read_as_something_else(name: Any) -> None:
    with pytest.raises(SchemaError, match="name"):
        Field(name, "features", "f4")


@pytest.mark.parametrize(("shape", "told"), [
    ((1,) * (MAX_AXES + 1), "has 32 axes, HDF5 holds at most 31"), ((3, 0), "an axis of length below 1"),
    ((-1,), "an axis of length below 1"), (3, "is not a tuple of ints"), (("a",), "is not a tuple of ints"),
])
def test_shapes_that_are_none(shape: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        Field("x", "features", "f4", shape)


def test_roles_are_five() -> None:
    assert [str(r) for r in Role] == ["features", "aux", "labels", "weights", "meta"]
    with pytest.raises(SchemaError, match="field 'x': no role 'label'; roles: 'labels'"):
        Field("x", "label", "f4")


def test_only_text_has_classes() -> None:
    with pytest.raises(SchemaError, match="only text fields have classes"):
        Field("x", "labels", "i4", classes=("a",))


def test_a_schema_is_a_mapping_in_order() -> None:
    schema = Schema((Field("b", "features", "f4", (2, 3)), Field("a", "labels", str), Field("c", "aux", "u1")))
    assert schema.names == ("b", "a", "c") and len(schema) == 3 and [f.name for f in schema] == ["b", "a", "c"]
    assert "a" in schema and "z" not in schema and None not in schema
    assert schema["b"].nbytes == 24 and schema.of("aux", Role.FEATURES) == (schema["b"], schema["c"])
    assert repr(schema).splitlines()[0] == "b  features  float32 (2, 3)"
    for name in ("bb", None, []):
        with pytest.raises(FieldNotFound, match="no field .*; fields: 'b'"):
            schema[name]  # type: ignore[index]
    with pytest.raises(KeyError):
        schema["bb"]


def test_names_are_unique_over_all_roles() -> None:
    with pytest.raises(SchemaError, match="two fields are named 'x', in features and labels.*another name"):
        Schema((Field("x", "features", "f4"), Field("x", "labels", "f4")))
    with pytest.raises(SchemaError, match="at least one field"):
        Schema(())


def test_how_two_schemas_differ() -> None:
    x, y = Field("x", "features", "f4", (2,)), Field("y", "labels", str)
    assert Schema((x, y)).mismatch(Schema((y, x))) is None, "the order is the store's"
    assert Schema((x, y)).mismatch(Schema((x, Field("y", "labels", str, classes=("a",))))) is None
    for other, told in [((x,), "field 'y' is missing"),
                        ((x, y, Field("z", "aux", "f4")), "no field 'z'; fields: 'x', 'y'"),
                        ((Field("x", "features", "f8", (2,)), y), r"'x' is features float64 \(2,\), expected feat"),
                        ((Field("x", "aux", "f4", (2,)), y), "'x' is aux")]:
        found = Schema((x, y)).mismatch(Schema(other))
        assert found is not None
        with pytest.raises(ValueError, match=told):
            raise ValueError(found)


def test_a_longdouble_of_another_machine_is_refused() -> None:
    data = Field("x", "features", "g").to_json()
    assert data["mantissa"] == np.finfo("g").nmant
    with pytest.raises(FormatError, match="'x': its longdouble has 112 bits of mantissa.*read it where it was written"):
        Field.from_json({**data, "mantissa": 112})


def test_canonical_json_is_one_text() -> None:
    assert dumps({"b": [1, 2], "a": "猫"}) == '{"a":"猫","b":[1,2]}'.encode()
