"""Bytes: the one pool of threads of a process. Started on first use, never inherited by a fork.

Ctrl-C may end any line of the thread that asks, and leave a lock of `concurrent.futures` held for ever. Here all
that it does is calls of C that happen or do not; whatever takes more is done by the pool's own threads, which no
signal reaches.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any

from h5store.errors import OptionError

#: Only a ceiling: a thread is started when work waits and none is idle.
_MOST = 64


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


class Cancelled(Exception):
    """The task was given up before it began."""


class Job:
    """One task in the pool. Waiting for it may be interrupted at any moment, and begun again."""

    def __init__(self, task: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._task: Callable[..., Any] | None = task
        self._args = args
        self._value: Any = None
        self._error: BaseException | None = None
        self._runner = 0  # thread
        self._ended = self._unwanted = False
        self._gate = threading.Lock()  # held until the end
        self._gate.acquire()

    def run(self) -> None:
        """Once, by whoever took it from the queue."""
        task, args = self._task, self._args
        self._task, self._args = None, ()
        self._runner = threading.get_ident()
        if self._unwanted or task is None:  # looked at after the runner is known, as `cancel` does the other way round
            self._error = Cancelled()
        else:
            try:
                self._value = task(*args)
            except BaseException as error:
                self._error = error
        self._ended = True
        self._gate.release()
        del self, task, args  # the error's traceback refers to this frame

    def join(self) -> None:
        """Wait for the end, whatever it was."""
        # The thread that runs it may come here while it collects garbage.
        if not self._ended and self._runner != threading.get_ident():
            self._gate.acquire()
            self._gate.release()

    def result(self) -> Any:
        """
        Raises
        ------
        Cancelled
        BaseException
            What the task raised.
        """
        self.join()
        if self._error is not None:
            raise self._error
        return self._value

    def cancel(self) -> bool:
        """Do without it, unless it has begun; whether that is so, and nothing of it will run."""
        self._unwanted = True
        return not self._runner


class _Pool:
    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle: deque[None] = deque()  # one for each thread that is not at work
        self._threads: deque[threading.Thread] = deque()
        self._open = True

    def put(self, job: Job) -> None:
        self._jobs.put(job)
        if self._open and self._jobs.qsize() > len(self._idle) and len(self._threads) < _MOST:
            try:
                _thread.start_new_thread(self._grow, ())
                self._idle.append(None)
            except RuntimeError:  # no more threads, or the interpreter is ending
                self._drain()
        elif not self._open:
            self._drain()

    def _grow(self) -> None:
        thread = threading.Thread(target=self._work, name=f"h5store_{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.remove(thread)
            self._work()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            with contextlib.suppress(IndexError):
                self._idle.pop()
            job.run()
            del job  # while waiting for the next one, nothing of this one is kept
            self._idle.append(None)

    def _drain(self) -> None:
        try:
            while True:
                job = self._jobs.get_nowait()
                if job is not None:
                    job.run()
        except Empty:
            return

    def close(self) -> None:
        """End the threads, after all that waits: at the interpreter's end their arrays must not go from under them."""
        self._open = False
        threads = list(self._threads)
        for _ in range(_MOST + 1):
            self._jobs.put(None)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        self._drain()


_pools: dict[int, _Pool] = {}


def _close() -> None:
    pool = _pools.get(os.getpid())
    if pool is not None:
        pool.close()


# What else is to run at the end and came later runs before; what came earlier reads in its own thread.
atexit.register(_close)


def submit(task: Callable[..., Any], *args: Any) -> Job:
    """Run a task on the pool of this process.

    Tasks never wait for other tasks, so the pool cannot lock up however many readers share it.
    """
    pid = os.getpid()
    pool = _pools.get(pid)
    if pool is None:
        # Threads do not survive a fork: a child makes a pool of its own and forgets its parent's.
        pool = _pools.setdefault(pid, _Pool())
    job = Job(task, args)
    pool.put(job)
    return job


def wait(jobs: Iterable[Job]) -> list[Any]:
    """Results in order. No task runs any more when it returns or raises: they write into the caller's arrays."""
    pending = list(jobs)
    try:
        return [job.result() for job in pending]
    except BaseException:  # also Ctrl-C in the waiting thread: first let the writers end
        stop(pending)
        raise


def stop(jobs: Iterable[Job]) -> None:
    """Give jobs up; returns when none of them runs any more."""
    for job in [job for job in list(jobs) if not job.cancel()]:
        job.join()
