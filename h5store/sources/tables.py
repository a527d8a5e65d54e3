"""Sources: CSV and Parquet tables, streamed by pyarrow: columns to fields, several columns to one vector field."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from h5store.errors import SourceError, nearest, require
from h5store.schema import Schema, is_text
from h5store.sources.base import BLOCK_BYTES
from h5store.sources.listing import find
from h5store.sources.samples import named_keys

_PARQUET = (".parquet", ".pq")
#: Text of a CSV file that becomes one block.
_CSV_BYTES = 4 << 20
_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def table(path: Any, *, features: Any = None, aux: Any = None, labels: Any = None, weights: Any = None,
          meta: Any = None, dtype: Mapping[str, Any] | None = None) -> Table:
    """Columns of CSV or Parquet files, one sample a row.

    Parameters
    ----------
    path : path-like, folder, glob, or list of paths
        Several files are read one after the other, in natural order.
    features, aux, labels, weights, meta : str, list of str, or mapping of field name to column or list of columns
        A column is a field of its own; a list of columns under one name is one field, a vector. Lists of one length in
        a Parquet column are vectors too.
    dtype : mapping of column to dtype_like, optional
        As what to read a column, e.g. ``{"flux": "float32", "zip": str}``. By default CSV columns are int64, float64,
        bool or text, as their beginning tells.

    Raises
    ------
    FileNotFoundError, SourceError
    MissingExtraError
        pyarrow is not installed.

    Notes
    -----
    An empty cell of a float column is NaN; of any other column, it is an error.

    Examples
    --------
    >>> import h5store
    >>> with open("stars.csv", "w") as file:
    ...     _ = file.write("g,r,kind\\n17.5,16.9,K\\n12.1,12.3,A\\n")
    >>> source = h5store.sources.table("stars.csv", features={"colours": ["g", "r"]}, labels="kind")
    >>> h5store.pack("stars.h5", source, progress=False)
    >>> with h5store.Reader("stars.h5") as reader:
    ...     reader["colours"][0].tolist()
    [17.5, 16.9]
    """
    require("pyarrow", "table", "reading tables")
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "tables"
    return Table(name, find(path, _PARQUET + _CSV, "tables"), named_keys(
        {"features": features, "aux": aux, "labels": labels, "weights": weights, "meta": meta}), dtype or {})


class Table:
    """Rows of tables of the same columns."""

    def __init__(self, name: str, files: Sequence[str], fields: Sequence[tuple[str, str, Any]],
                 dtypes: Mapping[str, Any]) -> None:
        self.name, self._files = name, list(files)
        self._fields = [(role, field, [cols] if isinstance(cols, str) else list(cols), isinstance(cols, str))
                        for role, field, cols in fields]
        wanted = list(dict.fromkeys(c for _, _, columns, _ in self._fields for c in columns))
        self._types = {c: _arrow_type(self.name, c, t) for c, t in dtypes.items()}
        rows: list[int | None] = []
        for file in self._files:
            reader = _Parquet(file) if file.endswith(_PARQUET) else _Csv(file)
            for column in [*wanted, *dtypes] or [""]:
                if column not in reader.columns:
                    raise SourceError(f"{file}: no column {column!r}; {nearest(column, reader.columns, 'columns')}"
                                      if column else f"{file}: no fields named; say which columns are what, e.g. "
                                      f"features={reader.columns[0]!r}; {nearest('', reader.columns, 'columns')}")
            rows.append(reader.rows)
        self._rows, self._wanted = rows, wanted
        self.schema: Schema | None = None
        self.length = None if None in rows else sum(r for r in rows if r is not None)

    def blocks(self, start: int = 0) -> Iterator[dict[str, dict[str, Any]]]:
        import pyarrow

        at = 0
        types = dict(self._types)
        for file, rows in zip(self._files, self._rows):
            if rows is not None and at + rows <= start:
                at += rows
                continue
            reader = _Parquet(file) if file.endswith(_PARQUET) else _Csv(file)
            first = at
            try:
                for skipped, batch in reader.batches(self._wanted, types, max(0, start - at)):
                    at += skipped
                    if at + batch.num_rows > start:
                        yield self._roles(batch.slice(max(0, start - at)), file, max(start, at) - first)
                    at += batch.num_rows
                    types |= {f.name: f.type for f in batch.schema}
            except pyarrow.ArrowInvalid as error:
                raise SourceError(f"{file}: {error}; types are told by a file's beginning: if a column is of another "
                                  "type further down, give it, e.g. dtype={'column': 'float64'} "
                                  "(--dtype column=float64)") from error

    def _roles(self, batch: Any, file: str, first: int) -> dict[str, dict[str, Any]]:
        arrays = {name: _values(batch.column(name), f"{file}: column {name!r}", first)
                  for name in self._wanted}
        out: dict[str, dict[str, Any]] = {}
        for role, field, columns, alone in self._fields:
            out.setdefault(role, {})[field] = (arrays[columns[0]] if alone
                                               else _vector([arrays[c] for c in columns], columns, file))
        return out


class _Parquet:
    def __init__(self, path: str) -> None:
        from pyarrow import ArrowInvalid, parquet

        self.path = path
        try:
            self._file = parquet.ParquetFile(path)
        except ArrowInvalid as error:
            raise SourceError(f"{path}: not a whole Parquet file ({error})") from error
        self.columns, self.rows = list(self._file.schema_arrow.names), self._file.metadata.num_rows

    def batches(self, columns: Sequence[str], types: Mapping[str, Any], start: int) -> Iterator[tuple[int, Any]]:
        """(rows skipped before it, batch), from the row group on that holds row `start`."""
        meta = self._file.metadata
        group, skipped = 0, 0
        while group < meta.num_row_groups and skipped + meta.row_group(group).num_rows <= start:
            skipped += meta.row_group(group).num_rows
            group += 1
        per = sum(meta.row_group(g).total_byte_size for g in range(meta.num_row_groups)) // max(1, self.rows)
        for batch in self._file.iter_batches(max(1, BLOCK_BYTES // max(8, per)), range(group, meta.num_row_groups),
                                             columns):
            yield skipped, _cast(batch, types)
            skipped = 0


class _Csv:
    rows = None

    def __init__(self, path: str) -> None:
        import pyarrow

        self.path = path
        with pyarrow.input_stream(path, compression="detect") as file:
            head = file.read(1 << 20)
        first = head.partition(b"\n")[0].decode("utf-8-sig", "replace").rstrip("\r")
        self._delimiter = max("\t;,", key=first.count) if any(d in first for d in "\t;,") else ","
        names = next(csv.reader(io.StringIO(first), delimiter=self._delimiter), [])
        self.columns = [name.strip() for name in names]
        again = sorted({name for name in self.columns if self.columns.count(name) > 1})
        if not names or again:
            raise SourceError(f"{path}: two columns are named {again[0]!r}; rename one" if again
                              else f"{path}: no samples: it is empty")

    def batches(self, columns: Sequence[str], types: Mapping[str, Any], start: int) -> Iterator[tuple[int, Any]]:
        from pyarrow import csv as arrow_csv

        with arrow_csv.open_csv(
            self.path,
            arrow_csv.ReadOptions(column_names=self.columns, skip_rows=1, block_size=_CSV_BYTES),
            arrow_csv.ParseOptions(delimiter=self._delimiter),
            arrow_csv.ConvertOptions(include_columns=list(columns), column_types=dict(types)),
        ) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield 0, batch


def _arrow_type(where: str, column: str, dtype: Any) -> Any:
    import pyarrow

    try:
        return pyarrow.string() if dtype == "text" or is_text(dtype) else pyarrow.from_numpy_dtype(np.dtype(dtype))
    except (TypeError, pyarrow.ArrowNotImplementedError) as error:
        raise SourceError(f"{where}: dtype of column {column!r}: {dtype!r} is none that a table has ({error}); e.g. "
                          "'float32', 'int64', 'text'") from error


def _cast(batch: Any, types: Mapping[str, Any]) -> Any:
    import pyarrow

    arrays = [batch.column(i).cast(types[name]) if name in types and batch.column(i).type != types[name]
              else batch.column(i) for i, name in enumerate(batch.schema.names)]
    return pyarrow.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _values(column: Any, where: str, first: int) -> np.ndarray:
    """A column as an array of numbers or of text."""
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        return _lists(column, where, first)
    if types.is_null(column.type):
        raise SourceError(f"{where} is empty as far as it was read, so nothing tells its type; give it, e.g. "
                          "dtype={'column': 'float64'} (--dtype column=float64)")
    if column.null_count and not types.is_floating(column.type):
        row = first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise SourceError(f"{where} has no value in sample {row}, and {column.type} has none that means missing; fill "
                          "it, leave the row out, or read the column as float64: dtype={'column': 'float64'}")
    return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _lists(column: Any, where: str, first: int) -> np.ndarray:
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if column.null_count or (len(lengths) and (lengths != lengths[0]).any()):
        odd = first + int(np.flatnonzero((lengths != lengths[0]) | (lengths != lengths))[0])
        raise SourceError(f"{where}: its lists have different lengths, e.g. {lengths[0]:.0f} and "
                          f"{lengths[odd - first]} in sample {odd}; pad them to one length")
    return _values(column.flatten(), where, first).reshape(len(lengths), -1)


def _vector(arrays: Sequence[np.ndarray], columns: Sequence[str], file: str) -> np.ndarray:
    """Several columns side by side, in the one dtype that holds them all exactly."""
    kinds = {a.dtype for a in arrays}
    if len(kinds) == 1:
        return np.stack(arrays, axis=1)
    if any(k.kind not in "iuf" for k in kinds):
        told = ", ".join(f"{c!r} {'text' if a.dtype == object else a.dtype}" for c, a in zip(columns, arrays))
        raise SourceError(f"{file}: columns of different kinds make no vector: {told}; make them fields of their own")
    out = np.stack([a.astype(np.result_type(*kinds)) for a in arrays], axis=1)
    for i, array in enumerate(arrays):
        if array.dtype.kind in "iu" and (np.abs(out[:, i]) >= 2**53).any():
            raise SourceError(f"{file}: column {columns[i]!r} holds whole numbers that {out.dtype} does not hold "
                              "exactly; make it a field of its own")
    return out
