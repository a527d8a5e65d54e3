"""Sources: samples that are files, one each: looked at first, then read in parallel."""

from __future__ import annotations

import csv
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5store.errors import OptionError, SourceError
from h5store.schema import Field, Role, Schema
from h5store.sources.base import BLOCK_BYTES
from h5store.sources.npy import Unreadable
from h5store.storage import pool

#: Files of one task while they are only looked at.
_LOOK = 256
#: Samples a block has at most: the look-ahead holds a few blocks, and failures are told block by block.
_MOST_SAMPLES = 2048
#: Offending files that an error names.
_NAMED = 100


@dataclass(frozen=True)
class Skipped:
    """A file that was not packed, and why."""

    file: str
    reason: str


def checked_on_error(on_error: str) -> str:
    if on_error not in ("stop", "skip"):
        raise OptionError(f"on_error: expected 'stop' or 'skip', got {on_error!r}")
    return on_error


def told(name: str, skipped: Sequence[Skipped], what: str) -> str:
    """One message for all files at fault."""
    lines = [f"\n  {s.file}: {s.reason}" for s in skipped[:_NAMED]]
    more = f"\n  and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
    return (f"{name}: {what}; mend or remove them, or leave them out with on_error='skip' (--on-error skip):"
            f"{''.join(lines)}{more}")


def write_skipped(path: str, skipped: Sequence[Skipped]) -> None:
    """Write the list of files that were left out."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "reason"])
        writer.writerows((s.file, s.reason) for s in skipped)


#: Dtype (None for text) and shape of each field of one sample.
Signature = tuple[tuple[Any, tuple[int, ...]], ...]


class FileSource:
    """Samples that are files. A subclass says how one is looked at and how it is read.

    Parameters
    ----------
    name : str
    files : list of str
    fields : list of (role, field name)
        What each file gives, in the order of `look` and `load`.
    columns : mapping of field name to (role, array), optional
        Values that are known beside the files, one a file.
    on_error : {"stop", "skip"}
        What a file gets that cannot be read, or differs from most.
    """

    def __init__(self, name: str, files: Sequence[str], fields: Sequence[tuple[str, str]],
                 columns: Mapping[str, tuple[str, np.ndarray]] | None = None, on_error: str = "stop",
                 threads: int | None = None) -> None:
        self.name, self.files, self._fields = name, list(files), list(fields)
        self._columns = dict(columns or {})
        self._skip = checked_on_error(on_error) == "skip"
        self._threads = pool.thread_count(threads)
        self._schema: Schema | None = None
        self._found: dict[int, Skipped] = {}
        #: Files left out before they were looked at, e.g. without a label.
        self.left_out: list[Skipped] = []

    def look(self, path: str) -> Signature:
        """Dtype and shape of each field of a file, cheaply.

        Raises
        ------
        Unreadable
        """
        raise NotImplementedError

    def field(self, name: str, role: str, dtype: Any, shape: tuple[int, ...]) -> Field:
        """The field that what `look` found makes."""
        return Field(name, Role(role), np.dtype(str) if dtype is None else dtype, shape)

    def load(self, path: str) -> Sequence[Any]:
        """Values of each field of a file.

        Raises
        ------
        Unreadable
        """
        raise NotImplementedError

    @property
    def schema(self) -> Schema:
        self.prepare()
        assert self._schema is not None
        return self._schema

    @property
    def length(self) -> int | None:
        """Files; fewer samples may come of them if unreadable ones are skipped."""
        self.prepare()
        return len(self.files)

    @property
    def skipped(self) -> list[Skipped]:
        """Files that were left out so far."""
        return self.left_out + [self._found[i] for i in sorted(self._found)]

    def prepare(self, progress: bool = False) -> None:
        """Look at every file, once: what can be found wrong cheaply is found before anything is written.

        Raises
        ------
        SourceError
            Names all files at fault.
        """
        if self._schema is not None:
            return
        signatures, bad = self._looked(progress)
        counts = Counter(s for s in signatures if s is not None)
        if not counts:
            raise SourceError(told(self.name, list(bad.values()), "none of the files can be read"))
        # Most files decide, so that one odd file at the beginning is the one that is named.
        usual = max(counts, key=lambda s: (counts[s], -signatures.index(s)))
        names = [name for _, name in self._fields]
        for i, signature in enumerate(signatures):
            if signature is not None and signature != usual:
                bad[i] = Skipped(self.files[i], _difference(names, signature, usual))
        if bad and not self._skip:
            raise SourceError(told(self.name, [bad[i] for i in sorted(bad)],
                                   f"{len(bad):,} of {len(signatures):,} files cannot be packed"))
        self.left_out += [bad[i] for i in sorted(bad)]
        keep = np.array([i for i in range(len(self.files)) if i not in bad])
        self.files = [self.files[i] for i in keep]
        self._columns = {name: (role, values[keep]) for name, (role, values) in self._columns.items()}
        self._schema = Schema((
            *(self.field(name, role, dtype, shape) for (role, name), (dtype, shape) in zip(self._fields, usual)),
            *(Field(name, Role(role), np.dtype(str) if values.dtype == object else values.dtype, values.shape[1:])
              for name, (role, values) in self._columns.items())))

    def _looked(self, progress: bool) -> tuple[list[Signature | None], dict[int, Skipped]]:
        from tqdm.auto import tqdm

        bad: dict[int, Skipped] = {}
        signatures: list[Signature | None] = [None] * len(self.files)
        same: dict[Signature, Signature] = {}

        def some(start: int) -> int:
            for i in range(start, min(start + _LOOK, len(self.files))):
                try:
                    found = self.look(self.files[i])
                    signatures[i] = same.setdefault(found, found)
                except (Unreadable, OSError, ValueError) as error:
                    bad[i] = Skipped(self.files[i], _reason(error))
            return min(_LOOK, len(self.files) - start)

        with tqdm(total=len(self.files), unit=" files", desc="looking", disable=not progress, leave=False) as bar:
            for done in _ahead((lambda s=s: pool.submit(some, s) for s in range(0, len(self.files), _LOOK)),
                               2 * self._threads):
                bar.update(done.result())
        return signatures, bad

    def cut(self, most: int) -> None:
        """Leave all but the first files out, before any was looked at."""
        self.files = self.files[:most]
        self._columns = {name: (role, values[:most]) for name, (role, values) in self._columns.items()}

    def blocks(self, start: int = 0) -> Iterator[dict[str, dict[str, Any]]]:
        self.prepare()
        step = self.step
        return self.ordered(start, (np.arange(at, min(at + step, len(self.files)))
                                    for at in range(0, len(self.files), step)))

    def ordered(self, start: int, parts: Iterable[np.ndarray],
                index: str | None = None) -> Iterator[dict[str, dict[str, Any]]]:
        """Blocks of samples in the order of `parts`, without the first `start`; their ids as meta field `index`."""
        # Which of the first files were left out shows only by reading them again.
        left = start if self._skip else 0
        for ids, roles in self.read(parts if self._skip else _without(parts, start)):
            if index is not None:
                roles.setdefault("meta", {})[index] = ids
            if len(ids) > left:
                yield {role: {n: v[left:] for n, v in fields.items()} for role, fields in roles.items()}
            left = max(0, left - len(ids))

    @property
    def step(self) -> int:
        """Samples of a block."""
        return int(min(_MOST_SAMPLES, max(1, BLOCK_BYTES // max(1, sum(f.nbytes for f in self.schema)))))

    def read(self, parts: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, dict[str, dict[str, Any]]]]:
        """Blocks of samples by position, in the order asked for, read ahead in threads.

        Yields
        ------
        (ids, block)
            The ids that could be read.

        Raises
        ------
        SourceError
            Names the files of a block that cannot be read; what comes before them is given first.
        """
        self.prepare()
        for future in _ahead((lambda p=p: self._begin(p) for p in parts), 1):
            ids, arrays, bad = future.result()
            if bad and not self._skip:
                first = min(bad)
                if first:
                    yield ids[:first], self._roles(ids[:first], {n: v[:first] for n, v in arrays.items()})
                raise SourceError(told(self.name, [bad[i] for i in sorted(bad)], "files cannot be read"))
            if bad:
                self._found.update((int(ids[i]), s) for i, s in bad.items())
                keep = np.array([i for i in range(len(ids)) if i not in bad], np.intp)
                ids, arrays = ids[keep], {n: v[keep] for n, v in arrays.items()}
            if len(ids):
                yield ids, self._roles(ids, arrays)

    def _begin(self, ids: np.ndarray) -> _Parts:
        schema = self.schema
        fields = [schema[name] for _, name in self._fields]
        arrays = [np.empty(len(ids), object) if f.ragged else
                  np.empty((len(ids), *f.shape), object if f.text else f.dtype.newbyteorder("=")) for f in fields]
        bad: dict[int, Skipped] = {}

        def some(places: range) -> None:
            for i in places:
                path = self.files[ids[i]]
                try:
                    for f, rows, value in zip(fields, arrays, self.load(path)):
                        rows[i] = _fitting(f, value)
                except (Unreadable, OSError, ValueError) as error:
                    bad[i] = Skipped(path, _reason(error))

        tasks = [pool.submit(some, range(k, len(ids), self._threads)) for k in range(min(self._threads, len(ids)))]
        return _Parts(tasks, (ids, {f.name: a for f, a in zip(fields, arrays)}, bad))

    def _roles(self, ids: np.ndarray, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
        out: dict[str, dict[str, Any]] = {}
        for role, name in self._fields:
            out.setdefault(role, {})[name] = arrays[name]
        for name, (role, values) in self._columns.items():
            out.setdefault(role, {})[name] = values[ids]
        return out


def _without(parts: Iterable[np.ndarray], start: int) -> Iterator[np.ndarray]:
    """Ids after the first `start`."""
    for ids in parts:
        if len(ids) > start:
            yield ids[start:]
        start = max(0, start - len(ids))


class _Parts:
    """Tasks that fill arrays together."""

    def __init__(self, tasks: Sequence[pool.Job], result: Any) -> None:
        self._tasks, self._result = tasks, result

    def result(self) -> Any:
        pool.wait(self._tasks)
        return self._result

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _ahead(begin: Iterable[Any], most: int) -> Iterator[Any]:
    """What the callables of `begin` start, in order, with `most` started beyond the one that is given out."""
    pending: deque[Any] = deque()
    try:
        for start in begin:
            pending.append(start())
            if len(pending) > most:
                yield pending.popleft()
        while pending:
            yield pending.popleft()
    finally:
        for left in pending:
            left.cancel()


def _fitting(field: Field, value: Any) -> Any:
    array = np.asarray(value)
    if field.ragged:
        return array
    if array.shape != field.shape or (not field.text and array.dtype.newbyteorder("<") != field.dtype):
        # It was looked at before, so somebody is writing it.
        raise Unreadable(f"{field.name!r} is {array.dtype} {array.shape}, expected {field.describe()}; the file "
                         "changed while it was packed")
    if not field.text:
        return array
    return array.astype(object) if array.ndim else array.item()


def _difference(names: Sequence[str], found: Signature, usual: Signature) -> str:
    told = [f"{name!r} is {_words(one)}, most others are {_words(other)}"
            for name, one, other in zip(names, found, usual) if one != other]
    return "; ".join(told)


def _words(one: tuple[Any, tuple[int, ...]]) -> str:
    return f"{'text' if one[0] is None else one[0]} {one[1]}"


def _reason(error: Exception) -> str:
    return f"cannot be read: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)
