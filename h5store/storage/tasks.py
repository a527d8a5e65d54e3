"""Bytes: a read as tasks for the pool, in at most two steps, and waiting for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from h5store.storage import pool

Task = Callable[[], None]


@dataclass
class Tasks:
    """What a read has to do: `work` in any order, and `then`, in any order, when all of that is done.

    `brief`: the work is many calls of a few microseconds, which threads only take from each other.
    """

    work: list[Task] = field(default_factory=list)
    then: list[Task] = field(default_factory=list)
    brief: bool = False


class Pending:
    """A read that is under way. `result` waits for it; an error leaves nothing writing behind it.

    The tasks are taken from one queue by as many runners as there are threads: a thread that was held up
    leaves the rest to the others.

    Parameters
    ----------
    parts : sequence of Tasks
    threads : int
    ahead : bool
        Begin in the pool at once. Otherwise a single task is left to the thread that waits: handing it over would
        take longer than most of them do.
    """

    def __init__(self, parts: Sequence[Tasks], threads: int, *, ahead: bool = False) -> None:
        self._threads = 1 if all(part.brief for part in parts) else threads
        self._todo = deque(task for part in parts for task in part.work)
        self._then = [task for part in parts for task in part.then]
        self._lock = threading.Lock()
        self._running = 0
        self._jobs: list[pool.Job] = []
        if not self._todo:
            self._todo, self._then = deque(self._then), []
        self._inline = not ahead and len(self._todo) <= 1 and not self._then
        if not self._inline:
            self._start(min(self._threads, len(self._todo)))

    def _start(self, runners: int) -> None:
        self._running += runners
        self._jobs += [pool.submit(self._run) for _ in range(runners)]

    def _run(self) -> None:
        while True:
            try:
                while True:
                    try:
                        task = self._todo.popleft()
                    except IndexError:
                        break
                    task()
            except BaseException:
                self._drop()
                raise
            with self._lock:
                self._running -= 1
                if self._running or not self._then:
                    return
                # The last of the first step begins the second, and takes part in it.
                self._todo.extend(self._then)
                self._then = []
                self._running += 1
                self._start(min(self._threads, len(self._todo)) - 1)

    def _drop(self) -> None:
        self._then = []
        self._todo.clear()

    def result(self) -> None:
        """Wait until all is read.

        Raises
        ------
        CorruptChunkError, StaleStoreError, OSError
            The first that a task raised.
        """
        if self._inline:
            while self._todo:
                self._todo.popleft()()
            return
        done = 0
        try:
            while done < len(self._jobs):  # the second step adds to them
                jobs = self._jobs[done:]
                pool.wait(jobs)
                done += len(jobs)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Give the read up; returns when no task writes any more."""
        self._drop()
        pool.stop(self._jobs)
