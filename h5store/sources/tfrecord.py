"""Sources: TFRecord files of tf.train.Example."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from h5store.errors import SourceError, nearest, require
from h5store.schema import Schema
from h5store.sources.base import BLOCK_BYTES
from h5store.sources.listing import find
from h5store.sources.npy import Unreadable
from h5store.sources.pictures import Picture
from h5store.sources.samples import named_keys

#: What JPEG and PNG data begin with.
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


def tfrecord(path: Any, *, features: Any = None, aux: Any = None, labels: Any = None, weights: Any = None,
             meta: Any = None, dtype: Mapping[str, Any] | None = None,
             shape: Mapping[str, Sequence[int]] | None = None, resize: Any = None, crop: Any = None,
             mode: str | None = None) -> TFRecords:
    """Keys of ``tf.train.Example`` records.

    Parameters
    ----------
    path : path-like, folder, glob, or list of paths
        Files whose name ends in ``.gz`` are read as gzip.
    features, aux, labels, weights, meta : str, list of str, or mapping of field name to key
    dtype : mapping of key to dtype_like, optional
        For bytes that are the raw values of an array. Other bytes are JPEG or PNG images, which are decoded, or text.
    shape : mapping of key to tuple of int, optional
        Shape of one sample; lists are vectors by default, lists of one value scalars.
    resize, crop, mode
        For images, as for `h5store.sources.images`.

    Raises
    ------
    FileNotFoundError, SourceError
    MissingExtraError
        TensorFlow is not installed.
    """
    require("tensorflow", "tensorflow", "reading TFRecord files")
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "records"
    fields = named_keys({"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta})
    return TFRecords(name, find(path, (".tfrecord", ".tfrecords", ".tfrec", ".gz"), "TFRecord files"), fields,
                     dtype or {}, shape or {}, Picture(resize, crop, mode))


class TFRecords:
    """Records of the same keys."""

    schema: Schema | None = None
    length: int | None = None

    def __init__(self, name: str, files: Sequence[str], fields: Sequence[tuple[str, str, str]],
                 dtypes: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], picture: Picture) -> None:
        self.name, self._files, self._fields = name, files, list(fields)
        self._dtypes, self._shapes, self._picture = dtypes, shapes, picture
        self._spec, self._step = self._told(self._first())

    def _first(self) -> Any:
        import tensorflow as tf

        try:
            for record in self._records().take(1):
                return tf.train.Example.FromString(record.numpy())
        except tf.errors.OpError as error:
            raise SourceError(f"{self.name}: not a TFRecord file ({error.message})") from error
        except Exception as error:  # protobuf's own, whose class depends on how it was built
            raise SourceError(f"{self.name}: its records are no tf.train.Example ({error})") from error
        raise SourceError(f"{self.name}: no samples: the files hold no records")

    def _records(self) -> Any:
        import tensorflow as tf

        files = [(f, "GZIP" if f.endswith(".gz") else "") for f in self._files]
        sets = [tf.data.TFRecordDataset(f, compression) for f, compression in files]
        out = sets[0]
        for more in sets[1:]:
            out = out.concatenate(more)
        return out

    def _told(self, example: Any) -> tuple[dict[str, Any], int]:
        """How TensorFlow is to read the keys, as the first record tells, and records a block."""
        import tensorflow as tf

        there = example.features.feature
        if not self._fields:
            raise SourceError(f"{self.name}: no fields named; say which keys are what: features=..., labels=...; "
                              f"{nearest('', sorted(there), 'its keys')}")
        kinds = {"int64_list": tf.int64, "float_list": tf.float32, "bytes_list": tf.string}
        spec, size = {}, 0
        for _, _, key in self._fields:
            if key not in there:
                raise SourceError(f"{self.name}: no key {key!r}; {nearest(key, sorted(there), 'its keys')}")
            kind = there[key].WhichOneof("kind")
            values = getattr(there[key], kind or "", None)
            if values is None or not len(values.value):
                raise SourceError(f"{self.name}: key {key!r} is empty in the first record; leave it out, or give "
                                  "every record a value")
            spec[key] = tf.io.FixedLenFeature([len(values.value)], kinds[str(kind)])
            size += values.ByteSize()
        return spec, max(1, min(1024, BLOCK_BYTES // max(1, size)))

    def blocks(self, start: int = 0) -> Iterator[dict[str, dict[str, Any]]]:
        import tensorflow as tf

        at = start
        try:
            for records in self._records().skip(start).batch(self._step):
                parsed = tf.io.parse_example(records, self._spec)
                out: dict[str, dict[str, Any]] = {}
                for role, name, key in self._fields:
                    out.setdefault(role, {})[name] = self._array(key, parsed[key].numpy(), at)
                yield out
                at += int(records.shape[0])
        except tf.errors.OpError as error:
            raise SourceError(f"{self.name}: records from {at} on: {error.message}; every record needs the same keys, "
                              "with as many values as the first") from error

    def _array(self, key: str, values: np.ndarray, at: int) -> np.ndarray:
        shape = self._shapes.get(key)
        if values.dtype == object:
            rows = [[self._value(key, one, at + i) for one in row] for i, row in enumerate(values)]
            numeric = isinstance(rows[0][0], np.ndarray)
            try:
                values = np.array(rows, None if numeric else object)
            except ValueError as error:
                raise SourceError(f"{self.name}: {key!r} has different shapes in records from {at} on ({error}); give "
                                  "resize=, or pad it") from error
        if shape is not None:
            try:
                return values.reshape(len(values), *shape)
            except ValueError as error:
                raise SourceError(f"{self.name}: {key!r} has {values[0].size} values, shape {tuple(shape)} takes "
                                  f"{int(np.prod(shape))}; check shape=") from error
        return values[:, 0] if values.shape[1] == 1 else values

    def _value(self, key: str, data: bytes, record: int) -> Any:
        """What one bytes value holds."""
        try:
            if key in self._dtypes:
                return np.frombuffer(data, np.dtype(self._dtypes[key]))
            if data.startswith(_IMAGES):
                return self._picture.decode(io.BytesIO(data))
            return data.decode("utf-8")
        except (Unreadable, ValueError, TypeError) as error:
            raise SourceError(f"{self.name}: record {record}: {key!r}: {error}; for raw values give their dtype: "
                              f"dtype={{{key!r}: 'uint8'}}") from error
