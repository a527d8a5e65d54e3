"""TFRecord files of tf.train.Example: kinds of values, images, raw bytes, and resuming."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import h5store
from h5store import sources
from h5store.errors import SourceError

tf = pytest.importorskip("tensorflow")
N = 30


def example(i: int, **more: object) -> bytes:
    values = {"x": [float(i), i + 0.5], "y": [i % 3], "name": [f"n{i % 2}".encode()],
              "raw": [np.full((2, 3), i, "<u2").tobytes()], **more}
    feature = {}
    for key, value in values.items():
        if isinstance(value[0], bytes):
            feature[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        elif isinstance(value[0], int):
            feature[key] = tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        else:
            feature[key] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write(path: str, records: list[bytes], compression: str = "") -> None:
    with tf.io.TFRecordWriter(path, compression) as file:
        for record in records:
            file.write(record)


@pytest.fixture(autouse=True)
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("2.tfrecord", [example(i) for i in range(12)])
    write("10.tfrecord.gz", [example(i) for i in range(12, N)], "GZIP")


def packed(source: object) -> dict[str, np.ndarray]:
    h5store.pack("out.h5", source, progress=False, overwrite=True)
    with h5store.Reader("out.h5") as reader:
        return reader.take(slice(None))


def test_keys_are_fields_of_their_own_kind() -> None:
    found = packed(sources.tfrecord("*.tfrecord*", features={"flux": "x", "raw": "raw"}, labels="y", meta="name",
                                    dtype={"raw": "<u2"}, shape={"raw": (2, 3)}))
    assert found["flux"].dtype == np.float32 and found["flux"].tolist() == [[i, i + 0.5] for i in range(N)]
    assert found["y"].dtype == np.int64 and found["y"].tolist() == [i % 3 for i in range(N)]
    assert found["name"].tolist() == [f"n{i % 2}" for i in range(N)]
    assert found["raw"].dtype == np.uint16 and (found["raw"] == np.arange(N)[:, None, None]).all()


def test_encoded_images_are_decoded() -> None:
    Image = pytest.importorskip("PIL.Image")
    records = []
    for i in range(3):
        buffer = io.BytesIO()
        Image.fromarray(np.full((6, 5, 3), i, "u1")).save(buffer, "PNG")
        records.append(example(i, image=[buffer.getvalue()]))
    write("images.tfrecord", records)
    assert packed(sources.tfrecord("images.tfrecord", features="image"))["image"].shape == (3, 6, 5, 3)
    assert packed(sources.tfrecord("images.tfrecord", features="image", resize=(3, 4)))["image"].shape == (3, 3, 4, 3)


def test_an_interrupted_pack_resumes_to_the_same_file(resumes: object) -> None:
    resumes(lambda: sources.tfrecord("*.tfrecord*", features="x", labels="y"))


@pytest.mark.parametrize(("path", "arguments", "told"), [
    ("2.tfrecord", {"features": "X"}, "no key 'X'; its keys: 'x'|no key 'X'; its keys:"),
    ("2.tfrecord", {}, "no fields named; say which keys are what.*its keys: 'name'"),
    ("odd.tfrecord", {"features": "x"}, "records from 0 on: .*every record needs the same keys"),
    ("junk.tfrecord", {"features": "x"}, "not a TFRecord file|no tf.train.Example"),
    ("none.tfrecord", {"features": "x"}, "no samples"),
    ("2.tfrecord", {"features": "raw", "dtype": {"raw": "<u2"}, "shape": {"raw": (7,)}}, "'raw' has 6 values, shape"),
    ("bytes.tfrecord", {"features": "raw"}, "record 0: 'raw': .*give their dtype"),
])
def test_mistakes_are_told(path: str, arguments: dict[str, object], told: str) -> None:
    write("odd.tfrecord", [example(0), example(1, x=[1.0])])
    Path("junk.tfrecord").write_bytes(b"junk" * 10)
    write("none.tfrecord", [])
    write("bytes.tfrecord", [example(0, raw=[b"\xff\xfe\xfd"])])
    with pytest.raises(SourceError, match=told):
        packed(sources.tfrecord(path, **arguments))
