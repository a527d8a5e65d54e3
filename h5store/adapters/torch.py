"""Batches as torch tensors: a ``DataLoader`` that goes by a loader's plan, and a map-style dataset.

A ``DataLoader`` hands work to its processes item by item, in turn. An item here is all steps of one window of the
plan, so that each block is decoded by one process, and the order is the plan's whatever their number. A process
decodes straight into memory that it shares with the one that trains; batches are views of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from h5store.adapters.transform import caller
from h5store.errors import OptionError, require
from h5store.loader import Loader
from h5store.position import step_ranges
from h5store.sampling.plan import EpochPlan

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset

    from h5store.reader import Reader

#: Arrays in shared memory begin at multiples of a cache line, which every dtype may be viewed at.
_LINE = 64


class Steps(NamedTuple):
    """An item for a worker: steps [start, stop) of an epoch, by the loader's plan or by another."""

    epoch: int
    start: int
    stop: int
    plan: EpochPlan | None


class Leaf(NamedTuple):
    """Where an array of a batch lies: in which buffer, from which byte on."""

    buffer: int
    offset: int
    dtype: str
    shape: tuple[int, ...]


def torch_batches(loader: Loader, transform: Callable[..., Any] | None, options: Mapping[str, Any]) -> DataLoader:
    """A ``DataLoader`` over a loader's batches. See ``Reader.to_torch``.

    Raises
    ------
    MissingExtraError, SchemaError, OptionError
    """
    loader.need_batches()
    ours = {"shuffle", "sampler", "batch_sampler", "batch_size", "drop_last", "collate_fn", "dataset"} & set(options)
    if ours:
        raise OptionError(f"to_torch: {sorted(ours)[0]!r} is decided by the plan; for a DataLoader of your own take "
                          "to_torch_dataset()")
    made: DataLoader = _classes()[0](loader, transform, options)
    _check_ranks(loader)
    return made


def _check_ranks(loader: Loader) -> None:
    """Where ranks can talk to each other, make sure that they have one plan, once.

    Raises
    ------
    OptionError
        On every rank, if one has another plan.
    """
    import torch.distributed as dist

    plan = loader.plan
    if plan.world_size == 1 or not (dist.is_available() and dist.is_initialized()):
        return
    if dist.get_world_size() != plan.world_size or dist.get_rank() != plan.rank:
        raise OptionError(f"to_torch: rank={plan.rank}, world_size={plan.world_size}, but torch.distributed says rank "
                          f"{dist.get_rank()} of {dist.get_world_size()}; give these")
    states: list[Any] = [None] * plan.world_size
    dist.all_gather_object(states, loader.state_dict())
    for rank, state in enumerate(states):
        for key, value in states[0].items():
            if state[key] != value:
                raise OptionError(f"to_torch: rank {rank} has {key} {state[key]!r}, rank 0 has {value!r}: samples "
                                  f"would be repeated and missed; give every rank the same {key}")


def torch_dataset(reader: Reader, transform: Callable[..., Any] | None) -> Dataset:
    """A map-style dataset of single samples. See ``Reader.to_torch_dataset``."""
    made: Dataset = _classes()[1](reader, transform)
    return made


def tensors(batch: Any) -> Any:
    """The arrays of a batch as tensors on the same memory."""
    torch = require("torch", "torch", "to_torch")
    return map_leaves(batch, lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf)


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to every member of nested tuples, lists and dicts."""
    if isinstance(batch, Mapping):
        return {name: map_leaves(member, change) for name, member in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields") and not isinstance(batch, Leaf):
        return type(batch)(*(map_leaves(member, change) for member in batch))
    if isinstance(batch, (tuple, list)) and not isinstance(batch, Leaf):
        return type(batch)(map_leaves(member, change) for member in batch)
    return change(batch)


class StepRanges:
    """What a ``DataLoader`` of torch sees as its dataset: the batches of a range of steps, by `Steps`.

    Runs in worker processes. Gives ``(buffers, batches)``: uint8 tensors in shared memory, and the batches with a
    `Leaf` in the place of each array.
    """

    def __init__(self, loader: Loader, transform: Callable[..., Any] | None) -> None:
        self.loader, self._transform = loader, transform

    def __getitem__(self, steps: Steps) -> tuple[list[Any], list[Any]]:
        loader, apply = self.loader, caller(self._transform)
        parts = [loader.ids(steps.plan or loader.plan, steps.epoch, step) for step in range(steps.start, steps.stop)]
        ids = np.concatenate(parts)
        shapes = loader.shapes(len(ids))
        first = _Shared(sum(_up(_nbytes(*shape)) for shape in shapes.values()))
        out: dict[str, Any] = {name: first.array(*shape) for name, shape in shapes.items()}
        loader.read(ids, out)
        out |= loader.ragged_values(ids)
        batches, at = [], 0
        for part in parts:
            batch = loader.reader.pack_batch({name: a[at:at + len(part)] for name, a in out.items()})
            batches.append(apply(batch) if self._transform is None else apply(tensors(batch)))
            at += len(part)
        return _shared(first, batches)


def _nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _up(size: int) -> int:
    return -(-size // _LINE) * _LINE


class _Shared:
    """Memory that is shared between processes, given out piece by piece."""

    def __init__(self, size: int) -> None:
        import torch

        make = getattr(torch.UntypedStorage, "_new_shared", torch.UntypedStorage)
        storage = make(max(_LINE, size))
        self.tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.bytes = self.tensor.numpy()
        self.base = self.bytes.__array_interface__["data"][0]
        self._used = 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The next piece, as an array."""
        size = _nbytes(shape, dtype)
        piece = self.bytes[self._used:self._used + size]
        self._used += _up(size)
        return piece.view(dtype).reshape(shape)

    def place(self, array: np.ndarray) -> int | None:
        """First byte of an array that lies in here."""
        at = int(array.__array_interface__["data"][0]) - self.base
        inside = 0 <= at and at + array.nbytes <= len(self.bytes)
        return at if inside and array.flags.c_contiguous else None


def _shared(first: _Shared, batches: list[Any]) -> tuple[list[Any], list[Any]]:
    """Bring what is not in shared memory yet into it, all in one piece."""
    import torch

    rest: list[np.ndarray] = []
    ends = [0]

    def leaf(member: Any) -> Any:
        array = member.numpy() if isinstance(member, torch.Tensor) else member
        if not isinstance(array, np.ndarray):
            return member
        at = first.place(array)
        if at is not None:
            return Leaf(0, at, array.dtype.str, array.shape)
        rest.append(np.ascontiguousarray(array))
        ends.append(ends[-1] + _up(array.nbytes))
        return Leaf(1, ends[-2], array.dtype.str, array.shape)

    told = [map_leaves(batch, leaf) for batch in batches]
    if not rest:
        return [first.tensor], told
    second = _Shared(ends[-1])
    for array, at in zip(rest, ends):
        second.bytes[at:at + array.nbytes] = array.reshape(-1).view(np.uint8)
    return [first.tensor, second.tensor], told


@lru_cache(maxsize=1)
def _classes() -> tuple[type, type]:
    torch = require("torch", "torch", "to_torch")
    from torch.utils.data import DataLoader, Dataset
    from torch.utils.data._utils.collate import default_collate_fn_map

    class StoreLoader(DataLoader):  # type: ignore[misc]
        """Batches of a store, each a tuple of tensors or dicts of them; every pass over it is an epoch.

        Attributes
        ----------
        loader : h5store.loader.Loader
            Decides the order, and holds the position: see `state_dict`.

        Notes
        -----
        A pass that is given up after one batch, such as a look at the shapes, is begun again by the next one.
        """

        def __init__(self, loader: Loader, transform: Callable[..., Any] | None, options: Mapping[str, Any]) -> None:
            self.loader = loader
            self._apply = caller(transform)
            self._served = 0
            self._begun = loader.step
            self._items = _Items()
            super().__init__(StepRanges(loader, transform), batch_size=None, sampler=self._items, collate_fn=_same,
                             **options)

        def __len__(self) -> int:
            return len(self.loader)

        def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
            self._begin()
            if self.num_workers == 0:
                batches = (self._apply(tensors(batch)) for batch in self.loader)
                return self._counted(map(self._pinned, batches) if self.pin_memory else batches)
            return self._counted(self._from_workers())

        def _begin(self) -> None:
            """Choose the epoch: the one that was looked at only, or the one after that which was given up."""
            loader = self.loader
            if self._served == 1:
                loader.step = self._begun
            elif self._served and loader.step:
                loader.go_to(loader.epoch_number + 1)
            self._served, self._begun = 0, loader.step

        def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                self._served += 1
                yield batch
            self._served = 0

        def _from_workers(self) -> Iterator[Any]:
            loader = self.loader
            other = None if loader.current is loader.plan else loader.current
            items = [Steps(loader.epoch_number, start, stop, other)
                     for start, stop in step_ranges(loader.current, loader.epoch_number, loader.step)]
            self._items.steps = items
            for (buffers, batches), item in zip(super().__iter__(), items):
                for step, batch in enumerate(batches, item.start + 1):
                    self.loader.advance(step)
                    yield map_leaves(batch, lambda leaf: _tensor(torch, buffers, leaf))

        def _pinned(self, batch: Any) -> Any:
            return map_leaves(batch, lambda t: t.pin_memory() if isinstance(t, torch.Tensor) else t)

        def set_epoch(self, epoch: int) -> None:
            """Begin the next pass with this epoch."""
            self.loader.go_to(epoch)
            self._served = 0

        def state_dict(self) -> dict[str, Any]:
            """Position after the last batch that was given out; see ``Loader.state_dict``."""
            return self.loader.state_dict()

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.loader.load_state_dict(state)
            self._served = 0

    class StoreDataset(Dataset):  # type: ignore[misc]
        """Samples of a store by position, for a ``DataLoader``, sampler or ``Subset`` of torch's own."""

        def __init__(self, reader: Reader, transform: Callable[..., Any] | None) -> None:
            self.reader, self._transform = reader, transform
            reader.model_fields()

        def __len__(self) -> int:
            return len(self.reader)

        def __getitem__(self, index: int) -> Any:
            batch = tensors(self.reader.batch([index]))
            return caller(self._transform)(map_leaves(batch, lambda t: t[0] if isinstance(t, torch.Tensor) else t))

        def __getitems__(self, ids: list[int]) -> Any:
            """All samples of a batch, read at once and collated already where there is no transform."""
            if self._transform is not None:
                whole = tensors(self.reader.batch(ids))
                return [caller(self._transform)(map_leaves(whole, lambda t: t[i])) for i in range(len(ids))]
            return Collated(tensors(self.reader.batch(ids)), len(ids))

    default_collate_fn_map[Sample] = _uncollate
    return StoreLoader, StoreDataset


class _Items:
    """The sampler: what the workers are given, in turn."""

    def __init__(self) -> None:
        self.steps: list[Steps] = []

    def __iter__(self) -> Iterator[Steps]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


class Collated:
    """A whole batch that passes for the list of its samples."""

    def __init__(self, batch: Any, length: int) -> None:
        self.batch, self._length = batch, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Sample:
        if not 0 <= i < self._length:
            raise IndexError(i)
        return Sample(map_leaves(self.batch, lambda t: t[i]))


class Sample(tuple):  # type: ignore[type-arg]
    """One sample of a `Collated` batch, by whose type ``default_collate`` knows that the work is done."""


def _uncollate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, Collated):
        return batch.batch
    from torch.utils.data import default_collate

    return default_collate([tuple(sample) for sample in batch])


def _same(item: Any) -> Any:
    return item


def _tensor(torch: Any, buffers: list[Any], leaf: Any) -> Any:
    if not isinstance(leaf, Leaf):
        return leaf
    dtype = np.dtype(leaf.dtype)
    raw = buffers[leaf.buffer][leaf.offset:leaf.offset + _nbytes(leaf.shape, dtype)]
    return raw.view(torch.from_numpy(np.empty(0, dtype)).dtype).view(leaf.shape)
