"""The fault bench: run a writer under the shim, then look at every state that a fault could have left.

    python tests/faults/bench.py cuts|power|calls|kills|full [--codec lz4] [--count N] [--seed 0] [--folder DIR]

Starts itself again with the shim loaded. Prints one line a kind of writer; the exit code tells whether all held.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FAIL, SHORT, DIE, DIE_TORN = 1, 2, 3, 4
ERRORS = (errno.ENOSPC, errno.EIO, errno.EINTR, errno.EDQUOT)
PATIENCE = 60  # seconds after which a child is said to hang


def shim() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["H5STORE_SHIM"])


def build(folder: Path) -> Path:
    """Compile the shim."""
    out = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(out), str(HERE / "shim.c"), "-ldl", "-lpthread"],
                   check=True)
    return out


def start_again(arguments: list[str]) -> int:
    """This program with the shim between it and the kernel."""
    with tempfile.TemporaryDirectory() as folder:
        library = str(build(Path(folder)))
        environment = {**os.environ, "LD_PRELOAD": library, "H5STORE_SHIM": library}
        return subprocess.run([sys.executable, str(HERE / "bench.py"), *arguments], env=environment).returncode


class Child:
    """A forked process that runs `task` and tells what became of it."""

    def __init__(self, task: Callable[[Callable[[Any], None]], None]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            signal.alarm(PATIENCE)
            code = 1
            try:
                task(lambda value: void(os.write(write, json.dumps(value).encode() + b"\n")))
                code = 0
            except BaseException as error:
                number = getattr(error, "errno", None)
                os.write(write, json.dumps({"error": type(error).__name__, "errno": number, "text": str(error)[:300]}
                                           ).encode() + b"\n")
            finally:
                os._exit(code)
        os.close(write)

    def wait(self) -> tuple[int, list[Any]]:
        """(signal that ended it or 0, what it told)."""
        told = b""
        while piece := os.read(self._read, 1 << 16):
            told += piece
        os.close(self._read)
        status = os.waitpid(self.pid, 0)[1]
        lines = [json.loads(line) for line in told.splitlines()]
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, lines


def void(_: Any) -> None:
    """Take a result that says nothing."""


class Case:
    """One kind of writer in one folder, with what it makes undisturbed."""

    def __init__(self, folder: Path, kind: str, codec: str) -> None:
        import workload

        self.work, self.folder, self.kind, self.codec = workload, folder, kind, codec
        self.fresh()
        workload.run(folder, kind, codec, void)
        self.wanted = workload.digest(folder)

    def fresh(self) -> None:
        """The folder as it is before the writer."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.work.prepare(self.folder, self.kind, self.codec)

    def run(self, tell: Callable[[Any], None]) -> None:
        self.work.run(self.folder, self.kind, self.codec, tell)

    def check(self, acknowledged: int, attempted: int | None = None) -> None:
        whole = self.work.base_length(self.kind) + self.work.TOTAL
        self.work.check(self.folder, self.kind, self.codec, acknowledged, attempted or whole, self.wanted)

    def state(self, files: dict[str, bytes]) -> None:
        """Lay out files as a fault left them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name, content in files.items():
            (self.folder / name).write_bytes(content)

    def record(self, log: Path) -> tuple[dict[str, tuple[int, bytes]], list[Any], list[int]]:
        """Files before, every call of an undisturbed run, and how many calls came before each acknowledgement."""
        import disk

        self.fresh()
        before = {p.name: (p.stat().st_ino, p.read_bytes()) for p in self.folder.iterdir()}
        library, marks = shim(), list[int]()
        library.fault_watch(str(self.folder).encode(), str(log).encode())
        self.run(lambda _: marks.append(len(disk.read_log(log))))
        library.fault_watch(b"", b"")
        calls = disk.read_log(log)
        replayed = disk.Disk(before)
        for call in calls:
            replayed.do(call)
        seen = {p.name: p.read_bytes() for p in self.folder.iterdir()}
        assert replayed.now() == seen, "the log does not tell all that was done: the bench is at fault"
        return before, calls, marks


def promised(case: Case, marks: list[int], at: int) -> tuple[int, int]:
    """Samples acknowledged before call `at`, and asked to be committed by then."""
    base, stops = case.work.base_length(case.kind), case.work.STOPS
    done = sum(mark <= at for mark in marks)
    return (base + stops[done - 1] if done else base), base + stops[min(done, len(stops) - 1)]


def cuts(case: Case, options: argparse.Namespace) -> dict[str, int]:
    """The process dies between any two calls, or within a write, at sector and page borders and in between."""
    import disk

    before, calls, marks = case.record(options.log)
    dice, states, torn = random.Random(options.seed), 0, 0
    disk_now = disk.Disk(before)
    for at in range(len(calls) + 1):
        case.state(disk_now.now())
        case.check(*promised(case, marks, at))
        states += 1
        if at == len(calls):
            break
        call = calls[at]
        if call.op == disk.WRITE and len(call.data) > 1:
            borders = {hi - call.offset for _, hi in disk.pieces(call.offset, len(call.data), disk.SECTOR)}
            borders |= {1, len(call.data) - 1, dice.randrange(1, len(call.data))}
            borders -= {len(call.data)}
            for upto in sorted(dice.sample(sorted(borders), min(len(borders), options.count or len(borders)))):
                part = disk.Disk(before)
                for earlier in calls[:at]:
                    part.do(earlier)
                part.do(call, upto)
                case.state(part.now())
                case.check(*promised(case, marks, at))
                torn += 1
        disk_now.do(call)
    return {"cut": states, "torn": torn}


def power(case: Case, options: argparse.Namespace) -> dict[str, int]:
    """The machine stops: what was not fsynced is there in part, and the folder is as it was at some moment."""
    import disk

    before, calls, marks = case.record(options.log)
    dice = random.Random(options.seed)
    for _ in range(options.count):
        at = dice.randint(0, len(calls))
        state = disk.Disk(before)
        for call in calls[:at]:
            state.do(call)
        case.state(state.after_power_loss(dice))
        case.check(*promised(case, marks, at))
    return {"states": options.count}


def calls(case: Case, options: argparse.Namespace) -> dict[str, int]:
    """Every call fails in every way, once or from then on; or it is the last thing the process does."""
    library, counted = shim(), {"calls": 0, "raised": 0, "unnoticed": 0, "killed": 0}
    case.fresh()
    library.fault_watch(str(case.folder).encode(), b"")
    case.run(void)
    total = library.fault_calls()
    ways = [(FAIL, number, goes_on) for number in ERRORS for goes_on in (0, 1)
            if not (number == errno.EINTR and goes_on)]
    ways += [(SHORT, 0, 0), (SHORT, 0, 1), (DIE, 0, 0), (DIE_TORN, 0, 0)]
    turns = [(at, *way) for at in range(total) for way in ways]
    if options.count:
        turns = random.Random(options.seed).sample(turns, min(options.count, len(turns)))
    for at, act, number, goes_on in turns:
        case.fresh()

        def task(tell: Callable[[Any], None], plan: tuple[int, ...] = (at, act, number, goes_on)) -> None:
            library.fault_watch(str(case.folder).encode(), b"")
            library.fault_arm(*plan)
            case.run(tell)

        ended, told = Child(task).wait()
        counted["calls"] += 1
        where = f"call {at} of {total}, act {act}, errno {number}, lasting {goes_on}: {told}"
        raised = told.pop() if told and isinstance(told[-1], dict) else None
        if act in (DIE, DIE_TORN):
            assert ended in (signal.SIGKILL, 0), f"signal {ended}: {where}"
            counted["killed"] += 1
        else:
            assert not ended, f"signal {ended}: {where}"
            assert raised is None or raised["errno"] == number, where
            counted["raised" if raised else "unnoticed"] += 1
        try:
            case.check(told[-1] if told else case.work.base_length(case.kind))
        except Exception as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    return counted


def kills(case: Case, options: argparse.Namespace) -> dict[str, int]:
    """SIGKILL and SIGTERM at a random moment."""
    dice, counted = random.Random(options.seed), {"killed": 0, "done before": 0}
    start = time.monotonic()
    case.fresh()
    Child(case.run).wait()
    usual = time.monotonic() - start
    for turn in range(options.count):
        case.fresh()
        child = Child(case.run)
        time.sleep(dice.random() * usual)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, (signal.SIGKILL, signal.SIGTERM)[turn % 2])
        ended, told = child.wait()
        counted["killed" if ended else "done before"] += 1
        numbers = [n for n in told if isinstance(n, int)]
        case.check(numbers[-1] if numbers else case.work.base_length(case.kind))
    return counted


def full(case: Case, options: argparse.Namespace) -> dict[str, int]:
    """A real file system that fills up: the folder is on one, and something else takes most of the room."""
    counted = {"runs": 0, "refused": 0}
    root = case.folder.parent
    room = shutil.disk_usage(root).free
    step = options.count or 4096
    for left in [*range(0, min(room, 160 << 10), step), *range(160 << 10, room, 8 * step)]:
        case.fresh()
        filler = root / "filler"
        with open(filler, "wb") as taken, contextlib.suppress(OSError):
            os.posix_fallocate(taken.fileno(), 0, max(1, shutil.disk_usage(root).free - left))
        ended, told = Child(case.run).wait()
        assert not ended, f"signal {ended} with {left} bytes left"
        raised = told.pop() if told and isinstance(told[-1], dict) else None
        assert raised is None or raised["errno"] == errno.ENOSPC, raised
        filler.unlink()
        counted["runs"] += 1
        counted["refused"] += raised is not None
        case.check(told[-1] if told else case.work.base_length(case.kind))
    return counted


CAMPAIGNS = {f.__name__: f for f in (cuts, power, calls, kills, full)}


@contextlib.contextmanager
def place(options: argparse.Namespace) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        yield Path(folder).resolve()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--kind", action="append", help="new, append, overwrite; all by default")
    parser.add_argument("--codec", default="lz4")
    parser.add_argument("--count", type=int, default=0, help="states, kills or turns; 0: all there are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--no-fsync", action="store_true", help="a writer that forgets fsync: the bench must see it")
    options = parser.parse_args(arguments)
    if "H5STORE_SHIM" not in os.environ:
        return start_again(arguments)
    sys.path.insert(0, str(HERE))
    import workload

    if options.no_fsync:
        os.fsync = void
    for kind in options.kind or workload.KINDS:
        start = time.monotonic()
        with place(options) as folder:
            options.log = folder / "log"
            case = Case(folder / "in", kind, options.codec)
            counted = CAMPAIGNS[options.campaign](case, options)
        told = ", ".join(f"{n:,} {what}" for what, n in counted.items())
        took = time.monotonic() - start
        print(f"{options.campaign} {kind} {options.codec}: {told}; 0 lost, 0 phantom ({took:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
