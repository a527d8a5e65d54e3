"""Batches of a loader by number, for trainers that ask by number."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

from h5store.loader import Loader


class Stream:
    """Batches by (epoch, step), quick when they are asked for one after the other. Safe in threads."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._reset()

    def _reset(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._at: tuple[int, int] | None = None  # what the iterator gives next
        self._single: tuple[int, int] | None = None  # what would follow the batch that was read on its own
        self._batches: Iterator[Any] = iter(())

    def get(self, epoch: int, step: int) -> Any:
        if self._pid != os.getpid():
            self._reset()  # forked: neither the iterator nor who holds the lock came along
        with self._lock:
            place = epoch, step
            if place != self._at:
                if step and place != self._single:
                    # Somebody jumps about: windows would be read for one batch each.
                    self._single = epoch, step + 1
                    return self._loader.batch(epoch, step)
                self._batches = self._loader.epoch(epoch, step)
            self._at = self._single = None  # an error leaves nothing to go on from
            batch = next(self._batches)
            last = step + 1 == len(self._loader)
            self._at = (epoch + 1, 0) if last else (epoch, step + 1)
            if last:
                self._batches = self._loader.epoch(epoch + 1)  # its first window is read while the trainer validates
            return batch

    def close(self) -> None:
        with self._lock:
            self._at, self._single, self._batches = None, None, iter(())
