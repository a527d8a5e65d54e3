"""A Keras callback that keeps the position in the data together with the model, and goes on from both."""

from __future__ import annotations

import contextlib
import json
import os
from functools import lru_cache
from typing import Any

from h5store.errors import OptionError, require

_STATE = "position.json"


def resume_callback(batches: Any, folder: str | os.PathLike[str], every: int | str) -> Any:
    """See ``KerasBatches.resume``.

    Raises
    ------
    OptionError
    """
    if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise OptionError(f"resume: every={every!r}, expected a number of batches, or 'epoch'")
    return _callback_class()(batches, os.path.abspath(os.fspath(folder)), every)


@lru_cache(maxsize=1)
def _callback_class() -> type:
    keras = require("keras", "tensorflow", "resume")

    class Resume(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        """Saves weights, optimizer and position; restores them when training begins."""

        def __init__(self, batches: Any, folder: str, every: int | str) -> None:
            super().__init__()
            self._batches, self._folder, self._every = batches, folder, every
            self._since = 0

        def on_train_begin(self, logs: Any = None) -> None:
            path = os.path.join(self._folder, _STATE)
            if os.path.exists(path):
                self._restore(path)
            epoch, step = self._batches.next_position()
            self._at = self._start = epoch * len(self._batches) + step

        def _restore(self, path: str) -> None:
            with open(path, encoding="utf-8") as file:
                kept = json.load(file)
            model = self.model
            if not model.built:
                raise OptionError("resume: the model is not built, so its weights have no place to go; give it an "
                                  "Input, or call it on a batch before fit")
            if model.optimizer is not None and not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            model.load_weights(os.path.join(self._folder, kept["weights"]))
            self._batches.load_state_dict(kept["state"])
            model._initial_epoch = kept["epoch"]  # as BackupAndRestore does: fit reads it when this returns

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._epoch, self._start = epoch, self._at

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            trained = self._start + batch + 1
            self._since += trained - self._at
            self._at = trained
            if isinstance(self._every, int) and self._since >= self._every:
                self._since = 0
                self._save(self._epoch + (self._at % len(self._batches) == 0))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if self._every == "epoch":
                self._save(epoch + 1)

        def _save(self, epoch: int) -> None:
            os.makedirs(self._folder, exist_ok=True)
            weights = f"batch-{self._at}.weights.h5"
            self.model.save_weights(os.path.join(self._folder, weights), overwrite=True)
            state = self._batches.state_at(*divmod(self._at, len(self._batches)))
            path = os.path.join(self._folder, _STATE)
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump({"weights": weights, "epoch": epoch, "state": state}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)
            for name in os.listdir(self._folder):
                if name.endswith(".weights.h5") and name != weights:
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(self._folder, name))

    return Resume
