"""A loader as a ``keras.utils.PyDataset``. Keras asks for batches by number; the order stays the loader's.

What Keras 3 does, read in its source (3.10 to 3.15), and what follows:

- `fit` shuffles the numbers of the batches with the global `random`. The order is ours already, so the
  adapter that Keras makes is told not to.
- With `steps_per_epoch`, one iterator runs through all epochs, and training is cut short when it has given as many
  batches as the dataset is long. Such an iterator is given a dataset without an end, which goes on with the next epoch.
- Batches 0 and 1 are read once before training (TensorFlow) or an epoch is begun for one batch and given up (JAX,
  torch); `on_epoch_end` is called once too often. So epochs are told apart by what was read, not by calls alone.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from h5store.adapters.stream import Stream
from h5store.adapters.transform import caller
from h5store.adapters.workers import Workers, close_all, process_method, when_gone
from h5store.errors import OptionError, require
from h5store.loader import Loader
from h5store.schema import Role, Schema

if TYPE_CHECKING:
    from keras.utils import PyDataset


def keras_batches(loader: Loader, transform: Callable[..., Any] | None = None, workers: int = 1,
                  use_multiprocessing: bool | str = False) -> PyDataset:
    """Batches of a loader for Keras. See ``Reader.to_keras``.

    Raises
    ------
    MissingExtraError, SchemaError
    """
    loader.need_batches()
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise OptionError(f"to_keras: workers={workers!r}, expected an int of at least 1")
    made: PyDataset = _batches_class()(loader, transform, workers, use_multiprocessing)
    return made


@lru_cache(maxsize=1)
def _batches_class() -> type:
    keras = require("keras", "tensorflow", "to_keras")

    class KerasBatches(keras.utils.PyDataset):  # type: ignore[misc,name-defined]
        """Batches of a store, in the order that its loader decides. ``len`` is the steps of an epoch.

        Attributes
        ----------
        epoch : int
            The epoch that is being served, or will be next.
        """

        def __init__(self, loader: Loader, transform: Callable[..., Any] | None, workers: int,
                     use_multiprocessing: bool | str) -> None:
            # Keras' own workers are left at one: with more, batches drained from an epoch come back in the next.
            super().__init__(workers=1, use_multiprocessing=False)
            self.loader, self.transform = loader, transform
            self._apply = caller(transform)
            self._how = workers, use_multiprocessing
            self.epoch = loader.epoch_number
            self._first = loader.step  # of the current pass: later ones begin at 0
            self._stream = Stream(loader)
            method = process_method(use_multiprocessing)
            self._workers = (Workers(self._stream, len(loader), transform, workers, method)
                             if transform is not None and (workers > 1 or method) else None)
            self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
            self._within = False
            self._served = 0   # batches asked for since the current pass began
            self._begun = 0    # epochs begun in this pass: more than one only when it has no end
            self._steps: weakref.WeakKeyDictionary[Any, int | None] = weakref.WeakKeyDictionary()
            self._current: int | None = None
            self._class_weight = False

        @property
        def workers(self) -> int:
            """Keras' own threads: one, always."""
            return 1

        @workers.setter
        def workers(self, value: int) -> None:
            _stays("workers", value > 1)

        @property
        def use_multiprocessing(self) -> bool:
            """Keras' own processes: none, always."""
            return False

        @use_multiprocessing.setter
        def use_multiprocessing(self, value: bool) -> None:
            _stays("use_multiprocessing", value)

        def __len__(self) -> int:
            return len(self.loader)

        @property
        def num_batches(self) -> int | None:
            """Batches of an epoch; None, for no end, to an iterator that was given `steps_per_epoch`."""
            adapter, owner, steps = _keras_adapter(sys._getframe(1))
            known = owner is not None
            if adapter is None:
                return len(self)
            adapter.shuffle = False
            self._class_weight = adapter.class_weight is not None
            if known:
                self._steps[adapter] = self._current = steps
            if owner is not None:
                if owner not in self._iterators:
                    when_gone(owner, self._left)
                self._iterators.add(owner)
            if self._workers is not None and adapter not in self._ending:
                self._ending[adapter] = weakref.finalize(adapter, close_all)
            return None if self._steps.get(adapter) else self._pass_length()

        def __getitem__(self, index: int) -> Any:
            if index < 0:
                index += len(self)
            if self._within:
                if index == 0:
                    self._begin_pass()
                self._served = max(self._served, index + 1)
            epoch, step = divmod(self._first + index, len(self))
            if not self._within:
                batch = self._apply(self.loader.batch(self.epoch + epoch, step))
            elif self._workers is not None:
                batch = self._workers.get(self.epoch + epoch, step)
            else:
                batch = self._apply(self._stream.get(self.epoch + epoch, step))
            if self._class_weight:
                _check_class_weight(batch, self.loader.reader.schema)
            return batch

        def _over(self) -> bool:
            """Whether the last pass was one: one batch of several is a trainer's look at the shapes."""
            return bool(self._served > min(1, len(self) - self._first - 1))

        def _pass_length(self) -> int:
            """Batches of the pass that is to come: fewer where it goes on within an epoch."""
            return len(self) - (0 if self._over() else self._first)

        def _begin_pass(self) -> None:
            if self._over():
                earlier = max(1, self._begun - 1)
                self.epoch += -(-(self._first + earlier * self._length) // len(self))
                self._first = 0
            self._served, self._begun = 0, 1
            self._length = self._current or len(self) - self._first

        def on_epoch_begin(self) -> None:
            self._within = True
            self._begun += 1
            for iterator in self._iterators:
                # Keras asks once for the batches of all its epochs; the one that is gone on with has fewer.
                if iterator.steps_per_epoch is None and isinstance(iterator._num_batches, int):
                    iterator._num_batches = self._pass_length()

        def on_epoch_end(self) -> None:
            self._within = False
            if self._workers is not None:
                self._workers.close()

        def _left(self) -> None:
            """End the processes of a fit that was interrupted: Keras tells nobody, and TensorFlow keeps the adapter."""
            if not self._iterators and self._workers is not None:
                self.on_epoch_end()

        def go_to(self, epoch: int, step: int = 0) -> None:
            """Begin the next pass at `step` of `epoch`."""
            self.epoch, self._first = epoch, step
            self._served = self._begun = 0

        def next_position(self) -> tuple[int, int]:
            """(epoch, step) at which the next pass begins."""
            if self._over():
                earlier = max(1, self._begun)
                return self.epoch + -(-(self._first + earlier * self._length) // len(self)), 0
            return self.epoch, self._first

        def state_at(self, epoch: int, step: int) -> dict[str, Any]:
            """The loader's state when `step` of `epoch` is the next batch to be trained on."""
            return {**self.loader.state_dict(), "epoch": epoch, "step": step}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Go on where the state was taken; see ``Loader.load_state_dict``."""
            self.loader.load_state_dict(state)
            if self.loader.current is not self.loader.plan:
                raise OptionError("to_keras: the state is of another batch_size or world_size, and Keras, whose epochs "
                                  "are all of one length, cannot go on with it; make the batches as they were")
            self.go_to(self.loader.epoch_number, self.loader.step)

        def resume(self, folder: str | os.PathLike[str], every: int | str = "epoch") -> Any:
            """A callback that saves and restores the position together with the model.

            Parameters
            ----------
            folder : str or path-like
                Where both are kept. A `fit` that finds them there goes on from them, within an epoch if need be.
            every : int or "epoch"
                Batches between two saves.
            """
            from h5store.adapters.keras_resume import resume_callback

            return resume_callback(self, folder, every)

        def __reduce__(self) -> tuple[Any, ...]:
            return keras_batches, (self.loader, self.transform, *self._how)

        def __repr__(self) -> str:
            return f"<h5store.KerasBatches of {self.loader!r}>"

        _length = 0
        _ending: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    return KerasBatches


def _stays(option: str, asked: bool) -> None:
    if asked:
        warnings.warn(f"{option}: h5store reads ahead in threads of its own, so Keras' stay off; choose how many with "
                      "h5store.Reader(path, threads=...)", stacklevel=3)


def _check_class_weight(batch: Any, schema: Schema) -> None:
    """Say what to do where Keras cannot weigh classes, and says so badly.

    Raises
    ------
    OptionError
    """
    names = {role: ", ".join(repr(f.name) for f in schema.of(role)) for role in (Role.LABELS, Role.WEIGHTS)}
    if len(batch) == 3:
        raise OptionError(f"fit: class_weight beside weights ({names[Role.WEIGHTS] or 'of the transform'}): Keras "
                          "takes one of them; leave class_weight out and multiply it into the weights, or leave these "
                          "out with to_keras(transform=lambda inputs, labels, weights: (inputs, labels))")
    if len(batch) == 2 and isinstance(batch[1], dict):
        raise OptionError(f"fit: class_weight with several labels ({names[Role.LABELS]}): Keras weighs the classes of "
                          "one; give every sample its own instead, as weights={...} when packing or from a transform")


def _keras_adapter(frame: FrameType) -> tuple[Any, Any, int | None]:
    """(Keras' adapter, its iterator or None, that iterator's steps_per_epoch), by who is asking.

    Keras tells a PyDataset neither that it is to be shuffled nor that an epoch has its own number of steps.
    """
    adapter = frame.f_locals.get("self")
    if type(adapter).__name__ != "PyDatasetAdapter":
        return None, None, None
    owner = frame.f_back.f_locals.get("self") if frame.f_back else None
    known = frame.f_code.co_name == "num_batches" and hasattr(owner, "steps_per_epoch")
    if not known or owner is None:
        return adapter, None, None
    return adapter, owner, owner.steps_per_epoch
