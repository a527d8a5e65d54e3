"""Bytes: the one pool of threads of a process. Started on first use, never inherited by a fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from h5store.errors import OptionError

#: Only a ceiling: the executor starts a thread when work waits and none is idle.
_MOST = 64
_pools: dict[int, ThreadPoolExecutor] = {}


def thread_count(threads: int | None) -> int:
    """Threads to use: as asked, or every core that this process may run on.

    Raises
    ------
    OptionError
    """
    if threads is None:
        if hasattr(os, "sched_getaffinity"):
            return min(_MOST, len(os.sched_getaffinity(0)))
        return min(_MOST, os.cpu_count() or 1)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= _MOST:
        raise OptionError(f"threads: expected an int from 1 to {_MOST}, or None for all cores; got {threads!r}")
    return threads


def submit(task: Callable[..., Any], *args: Any) -> Future[Any]:
    """Run a task on the pool of this process.

    Tasks never wait for other tasks, so the pool cannot lock up however many readers share it.
    """
    pid = os.getpid()
    pool = _pools.get(pid)
    if pool is None:
        # Threads do not survive a fork: a child makes a pool of its own and forgets its parent's.
        pool = _pools.setdefault(pid, ThreadPoolExecutor(_MOST, thread_name_prefix="h5store"))
    return pool.submit(task, *args)


def wait(futures: Iterable[Future[Any]]) -> list[Any]:
    """Results in order. All tasks have ended when it returns or raises: they write into the caller's arrays."""
    pending = list(futures)
    error: BaseException | None = None
    results: list[Any] = []
    for future in pending:
        try:
            results.append(future.result())
        except BaseException as raised:  # also Ctrl-C in the waiting thread: first let the writers end
            error = error or raised
            future.cancel()
    if error is not None:
        for future in pending:
            if not future.cancelled():
                future.exception()
        raise error
    return results
