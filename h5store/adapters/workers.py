"""Heavy transforms ahead of the trainer, in threads or processes. Batches are read by this process, in order."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from h5store.adapters.stream import Stream
from h5store.adapters.transform import caller
from h5store.errors import OptionError
from h5store.storage import pool

_apply: Callable[[Any], Any] = caller(None)
_open: weakref.WeakSet[Workers] = weakref.WeakSet()


class Workers:
    """Transformed batches by (epoch, step), quick when asked for one after the other.

    Parameters
    ----------
    stream : Stream
    steps : int
        Of an epoch. Nothing is made beyond the end of one, so that none is made in vain.
    transform : callable
    count : int
        Batches that are transformed at a time.
    processes : {"spawn", "fork", "forkserver", None}
        How processes are started; None: threads.

    Raises
    ------
    OptionError
        The transform does not go into another process.
    """

    def __init__(self, stream: Stream, steps: int, transform: Callable[..., Any], count: int,
                 processes: str | None) -> None:
        self._stream, self._steps, self._transform = stream, steps, transform
        self._count, self._processes = count, processes
        self._queue: deque[tuple[tuple[int, int], Future[Any] | pool.Job]] = deque()
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()
        if processes not in (None, "fork"):
            try:
                pickle.dumps(transform)
            except Exception as error:
                raise OptionError(f"to_keras: transform {transform!r} does not go into another process ({error}); make "
                                  "it a function of a module, or use_multiprocessing='fork', or threads: "
                                  "use_multiprocessing=False") from error

    def get(self, epoch: int, step: int) -> Any:
        """
        Raises
        ------
        RuntimeError
            A process ended before its work was done.
        """
        with self._lock:
            future = self._next((epoch, step))
        try:
            return future.result()
        except BrokenProcessPool as error:
            self.close()
            raise RuntimeError("to_keras: a worker process ended before its work was done; a script that starts "
                               "processes keeps what it does under: if __name__ == '__main__'") from error
        except BaseException:
            self.close()
            raise

    def _next(self, place: tuple[int, int]) -> Future[Any] | pool.Job:
        """The batch at a place, and those after it on their way."""
        if not self._queue or self._queue[0][0] != place:
            self._drop()
            self._put(place)
        while len(self._queue) <= self._count and self._queue[-1][0][1] + 1 < self._steps:
            last = self._queue[-1][0]
            self._put((last[0], last[1] + 1))
        return self._queue.popleft()[1]

    def _put(self, place: tuple[int, int]) -> None:
        batch = self._stream.get(*place)
        if self._processes is None:
            self._queue.append((place, pool.submit(caller(self._transform), batch)))
            return
        if self._pool is None:
            _open.add(self)
            self._pool = ProcessPoolExecutor(self._count, multiprocessing.get_context(self._processes),
                                             _enter, (self._transform,))
        self._queue.append((place, self._pool.submit(_work, batch)))

    def _drop(self) -> None:
        for _, future in self._queue:
            future.cancel()
        self._queue.clear()

    def close(self) -> None:
        """End the processes. The next `get` starts others."""
        with self._lock:
            self._drop()
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None
            _open.discard(self)


def close_all() -> None:
    """End the processes of all workers, soon: a trainer has ended, and those it validated with are not told.

    Called while garbage is collected, maybe by a thread that holds the lock of a pool: another thread does it.
    """
    if _open:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and ends them
            pool.submit(_close, list(_open))


def when_gone(owner: Any, close: Callable[[], None]) -> None:
    """Call the method `close` soon after `owner` was collected, by another thread for the same reason."""
    weakref.finalize(owner, _soon, weakref.WeakMethod(close)).atexit = False


def _soon(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    with contextlib.suppress(RuntimeError):
        pool.submit(_call, method)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    close = method()
    if close is not None:
        close()


def _close(some: list[Workers]) -> None:
    for workers in some:
        workers.close()


def process_method(use_multiprocessing: Any) -> str | None:
    """How to start processes, by what a user gives.

    Raises
    ------
    OptionError
    """
    if use_multiprocessing in (False, None):
        return None
    # A process that has threads, as every trainer's has, may hang when forked: "fork" is for those who ask for it.
    method = "spawn" if use_multiprocessing is True else use_multiprocessing
    if method not in ("spawn", "fork", "forkserver"):
        raise OptionError(f"to_keras: use_multiprocessing={use_multiprocessing!r}, expected True, False, 'spawn', "
                          "'fork' or 'forkserver'")
    return str(method)


def _enter(transform: Callable[..., Any]) -> None:
    global _apply
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains; it ends these
    _apply = caller(transform)


def _work(batch: Any) -> Any:
    return _apply(batch)
