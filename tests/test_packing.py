"""One call packs: arrays, mappings and iterables; again after a failure, in the same process; never half."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h5store
from h5store import Reader, Writer, pack
from h5store.errors import (
    FormatError, H5StoreError, OptionError, SchemaError, SourceError, StoreExistsError, StoreLockedError,
)
from h5store.schema import Field, Schema


# Crashes are played by losing a writer.
pytestmark = pytest.mark.filterwarnings("ignore:.*a Writer was lost without close")


def rows(n: int, first: int = 0, width: int = 3) -> np.ndarray:
    """Sample i holds i * 1000 + column: any that is misplaced, repeated or damaged is seen."""
    return ((np.arange(n) + first)[:, None] * 1000 + np.arange(width)).astype("f4")


def samples(fail_at: int | None = None, n: int = 50) -> Iterator[dict[str, Any]]:
    for i in range(n):
        if i == fail_at:
            raise RuntimeError(f"source broke at {i}")
        yield {"x": np.full(4, i, "f4"), "y": np.int64(i)}


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.h5"


# ---- what can be packed


def test_arrays_a_mapping_and_iterables_make_one_file(path: Path) -> None:
    x, y = np.stack([s["x"] for s in samples()]), np.arange(50)
    pack(path, features={"x": x}, labels={"y": y}, progress=False)
    ways: list[Callable[[Path], None]] = [
        lambda p: pack(p, {"x": x, "y": y, "more": y}, features="x", labels=["y"], progress=False),
        lambda p: pack(p, samples(), features="x", labels="y", progress=False),
        lambda p: pack(p, list(samples()), features=["x"], labels="y", progress=False),
    ]
    for i, way in enumerate(ways):
        way(path.with_name(str(i)))
        assert sha(path.with_name(str(i))) == sha(path)


def test_a_bare_array_is_named_after_its_role(path: Path) -> None:
    pack(path, features=rows(5), aux=rows(5), labels=np.arange(5), weights=np.ones(5), progress=False)
    with Reader(path) as reader:
        assert reader.schema.names == ("features", "aux", "labels", "weights")


def test_a_list_of_arrays_that_were_meant_as_fields_is_told(path: Path) -> None:
    x, y = np.zeros((2000, 3), "f4"), np.arange(2000)
    with pytest.warns(UserWarning, match=r"list of 2 arrays, and each is stored as a sample.*dict by name"):
        pack(path, features=[x, x], progress=False)
    with pytest.warns(UserWarning), pytest.raises(SchemaError, match=r"'features' 2, 'labels' 2000.*dict by name"):
        pack(path, features=[x, x], labels=y, progress=False, overwrite=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pack(path, features=[x[0], x[1]], labels=[0, 1], progress=False, overwrite=True)
        pack(path, features={"a": x, "b": x}, labels=y, progress=False, overwrite=True)


@pytest.mark.parametrize(("source", "door"), [
    ("x.npz", "npz"), (Path("X.npy"), "arrays"), ("t.csv", "table"), ("t.parquet", "table"), ("old.h5", "hdf5"),
    ("a.tfrecord", "tfrecord"), ("photos", "images"), (b"x.npz", "npz"),
])
def test_a_path_alone_is_told_which_source_reads_it(path: Path, source: Any, door: str) -> None:
    with pytest.raises(SourceError, match=rf"is a path.*h5store\.sources\.{door}\("):
        pack(path, source, features="x")
    assert hasattr(h5store.sources, door) and names(path.parent) == []


def test_numbers_that_numpy_has_no_dtype_for(path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(6, dtype="f4").reshape(3, 2).astype(ml_dtypes.bfloat16)
    with pytest.raises(SchemaError, match=r"bfloat16 is not stored.*astype\('float32'\).*view\('uint16'\)"):
        pack(path, features=values, progress=False)
    pack(path, features=values.view("uint16"), progress=False)
    with Reader(path) as reader:
        assert (reader["features"][:].view(ml_dtypes.bfloat16) == values).all()


def test_a_tensor_that_numpy_cannot_take(path: Path) -> None:
    class Tensor:
        shape, dtype = (3, 2), "torch.bfloat16"

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            raise TypeError("Got unsupported ScalarType BFloat16")

    with pytest.raises(SchemaError, match="'features' is Tensor of torch.bfloat16.*convert it first"):
        pack(path, features=Tensor(), progress=False)


def test_the_bar_is_on_standard_error_and_can_be_off(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(path, features=rows(5))
    shown = capsys.readouterr()
    assert "train.h5" in shown.err and "5.00" in shown.err and not shown.out
    pack(path, features=rows(5), progress=False, overwrite=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not tell")
@pytest.mark.parametrize("how", ["pack", "append"])
def test_packing_more_takes_no_more_memory(tmp_path: Path, run_python: Callable[..., str], how: str) -> None:
    code = """if True:
        import sys
        import numpy as np
        import h5store
        folder, how = sys.argv[1:]
        arrays = {role: np.load(f"{folder}/{role}.npy", mmap_mode="r") for role in ("features", "aux", "labels")}
        if how == "pack":
            h5store.pack("a.h5", **arrays, progress=False, overwrite=True)
        else:
            with h5store.Writer("a.h5", overwrite=True) as writer:
                writer.append(**arrays)
        # Of this program alone: ru_maxrss begins with what the process that started it held.
        print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
    """
    peak = {}
    for n in (20_000, 80_000):
        for role, shape in {"features": (100, 6), "aux": (2,), "labels": (15,)}.items():
            array = np.lib.format.open_memmap(tmp_path / f"{role}.npy", "w+", "<f4", (n, *shape))
            for at in range(0, n, 1000):
                array[at:at + 1000] = np.random.default_rng(at).integers(0, 50, (1000, *shape)) / 32
            array._mmap.close()
        peak[n] = int(run_python(code, str(tmp_path), how)) / 1024
    # 138 MiB more to pack: they go through in pieces, and pages that were read are let go of.
    assert peak[80_000] - peak[20_000] < 60, peak
    with Reader(tmp_path / "a.h5") as reader:
        flux = np.load(tmp_path / "features.npy", mmap_mode="r")[::4001].copy()
        assert len(reader) == 80_000 and np.array_equal(reader["features"][::4001], flux)
    assert (tmp_path / "a.h5").stat().st_size < 0.5 * 80_000 * (600 + 2 + 15) * 4


# ---- again, after a failure, in the same process


def test_a_notebook_cell_that_failed_runs_again(path: Path) -> None:
    with pytest.raises(RuntimeError, match="source broke at 30"):
        pack(path, samples(fail_at=30), features="x", labels="y", progress=False)
    with pytest.raises(FormatError, match="not finished"):
        Reader(path)
    with pytest.warns(UserWarning, match="packing anew; 30 samples.*resume=True"):
        pack(path, samples(), features="x", labels="y", progress=False)
    kept = Reader(path)
    assert kept["y"][:].tolist() == list(range(50))
    with pytest.raises(StoreExistsError, match="overwrite=True"):
        pack(path, samples(), features="x", labels="y", progress=False)
    pack(path, samples(n=60), features="x", labels="y", progress=False, overwrite=True)
    with Reader(path) as fresh:
        assert fresh["y"][:].tolist() == list(range(60)) and (fresh["x"][:, 3] == np.arange(60)).all()
    assert kept["x"][:, 0].tolist() == list(range(50)), "a reader that was open stays on the store that it opened"
    kept.close()
    assert names(path.parent) == ["train.h5"]


@pytest.mark.parametrize("fail_at", [0, 1, 30])
@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
@pytest.mark.filterwarnings("ignore:.*packing anew")
def test_it_may_fail_any_number_of_times_and_then_succeeds(path: Path, fail_at: int, options: Any) -> None:
    for _ in range(3):
        with pytest.raises(RuntimeError, match=f"source broke at {fail_at}"):
            pack(path, samples(fail_at), features="x", labels="y", progress=False, **options)
        assert not path.exists()
    pack(path, samples(), features="x", labels="y", progress=False, **options)
    with Reader(path) as reader:
        assert reader["y"][:].tolist() == list(range(50))
    assert names(path.parent) == ["train.h5"]


def test_a_writer_in_a_cell_of_its_own_does_not_lock_the_kernel_up(path: Path) -> None:
    def cell() -> None:
        # Not in a with statement, and the traceback keeps its frame alive, as in a notebook.
        writer = Writer(path, overwrite=True)
        writer.append(features=rows(5))
        raise RuntimeError

    try:
        cell()
    except RuntimeError as caught:
        error = caught
        with pytest.raises(StoreLockedError, match="a Writer of this process holds the store; close.. it"):
            pack(path, features=rows(5), progress=False)
        del error, caught
    pack(path, features=rows(6), progress=False)
    with Reader(path) as reader:
        assert len(reader) == 6


def test_ctrl_c_in_a_pack_and_then_again(path: Path) -> None:
    def interrupted() -> Iterator[dict[str, Any]]:
        yield from samples(n=20)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(path, interrupted(), features="x", labels="y", progress=False)
    pack(path, samples(), features="x", labels="y", progress=False, resume=True)
    with Reader(path) as reader:
        assert reader["y"][:].tolist() == list(range(50))


def test_resuming_takes_from_the_source_what_is_not_there_yet(path: Path) -> None:
    taken = []

    class Recording:
        shape, dtype = (5000, 3), np.dtype("f4")

        def __len__(self) -> int:
            return 5000

        def __getitem__(self, key: slice) -> np.ndarray:
            taken.append(key.start)
            return rows(5000)[key]

    pack(path, features=Recording(), progress=False)
    whole = sha(path)
    path.unlink()
    writer = Writer(path)
    writer.append(features=rows(1234))
    writer.commit()
    del writer, taken[:]
    pack(path, features=Recording(), progress=False, resume=True)
    assert sha(path) == whole and min(taken) == 1234
    before = path.stat().st_mtime_ns
    pack(path, features=Recording(), progress=False, resume=True)
    assert path.stat().st_mtime_ns == before, "a finished pack is left as it is"
    pack(path, features=rows(5010), progress=False, resume=True)
    with Reader(path) as reader:
        assert np.array_equal(reader["features"][:], rows(5010))


@pytest.mark.parametrize("again", [{"resume": True}, {"resume": True, "append": True}])
@pytest.mark.parametrize("crash", ["header", "frame", "sealed"])
def test_an_addition_that_was_interrupted_adds_each_sample_once(
    path: Path, again: dict[str, bool], crash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(**options: bool) -> None:
        pack(path, (s for s in samples(n=90)), features="x", labels="y", progress=False, **options)

    pack(path, samples(n=40), features="x", labels="y", progress=False)
    base = path.read_bytes()
    add(append=True)
    whole = sha(path)
    path.write_bytes(base)
    with monkeypatch.context() as patch:
        def stop(*args: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr({"header": "h5store.storage.journal.Journal.commit", "frame": "h5store.writer.Writer._seal",
                       "sealed": "h5store.storage.sealing.fsync"}[crash], stop)
        with pytest.raises(KeyboardInterrupt):
            add(append=True)
    assert Path(f"{path}.journal").exists()
    add(**again)
    assert sha(path) == whole and names(path.parent) == ["train.h5"]
    with Reader(path) as reader:
        assert reader["y"][:].tolist() == [*range(40), *range(90)]


def test_a_source_that_is_not_the_one_that_was_being_packed(path: Path) -> None:
    def begun() -> None:
        Path(f"{path}.journal").unlink(missing_ok=True)
        with pytest.raises(RuntimeError):
            pack(path, samples(fail_at=30), features="x", labels="y", progress=False)

    begun()
    with pytest.raises(SourceError, match="has 20 samples, but 30 are packed already"):
        pack(path, {"x": np.zeros((20, 4), "f4"), "y": np.arange(20)}, features="x", labels="y", progress=False,
             resume=True)
    begun()
    with pytest.raises(SourceError, match="has 20 samples, but 30 are packed already"):
        pack(path, samples(n=20), features="x", labels="y", progress=False, resume=True)
    begun()
    with pytest.raises(SchemaError, match="'x' (is features|has dtype) float64"):
        pack(path, {"x": np.zeros((50, 4)), "y": np.arange(50)}, features="x", labels="y", progress=False, resume=True)
    pack(path, samples(), features="x", labels="y", progress=False, resume=True)


# ---- two at once


def test_a_second_pack_leaves_the_first_ones_journal_alone(path: Path) -> None:
    def second() -> Iterator[dict[str, Any]]:
        for i, sample in enumerate(samples()):
            if i == 30:
                journal = Path(f"{path}.journal")
                with open(journal, "ab") as file:  # as if the first were in the middle of a commit
                    file.write(b"HSJF half a frame")
                before = journal.read_bytes()
                for options in ({}, {"resume": True}, {"overwrite": True}, {"append": True}):
                    with pytest.raises((StoreLockedError, StoreExistsError)), warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        pack(path, samples(), features="x", labels="y", progress=False, **options)
                assert journal.read_bytes() == before
            yield sample

    writer = Writer(path)
    writer.origin = "pack"
    for sample in second():
        writer.append(features={"x": sample["x"][None]}, labels={"y": sample["y"][None]})
        writer.commit()
    writer.close()
    with Reader(path) as reader:
        assert reader["y"][:].tolist() == list(range(50))


def test_repacking_while_another_process_reads(path: Path, start_python: Callable[..., Any]) -> None:
    """The reader sees old samples to the end, whatever it keeps in memory; new readers see new ones only."""
    old = {"x": rows(1500), "y": np.zeros(1500, "i8")}
    new = {"x": rows(1500) + 500, "y": np.ones(1500, "i8")}
    pack(path, old, features="x", labels="y", progress=False, chunk="1KiB")
    code = """if True:
        import sys
        import numpy as np
        import h5store
        reader = h5store.Reader(sys.argv[1], cache=0)
        print("open", flush=True)
        sys.stdin.readline()
        for i in range(len(reader)):
            got = reader.take([i])
            assert got["x"][0, 0] == i * 1000 and got["y"][0] == 0, (i, got)
        reader.close()
        try:
            reader.take([0])
        except h5store.errors.StaleStoreError:
            print("stale")
    """
    process = start_python(code, str(path))
    assert process.stdout and process.stdout.readline() == "open\n"
    for _ in range(2):  # twice: numbers of inodes are used again
        pack(path, new, features="x", labels="y", progress=False, chunk="1KiB", overwrite=True)
    out, error = process.communicate("go\n", timeout=60)
    assert process.returncode == 0, error
    assert out == "stale\n", "what was closed is not opened again on other data"
    with Reader(path) as reader:
        assert (reader["y"][:] == 1).all() and np.array_equal(reader["x"][:], new["x"])


def test_opening_while_stores_are_put_one_after_the_other(
    path: Path, start_python: Callable[..., Any]
) -> None:
    code = """if True:
        import select, sys
        import numpy as np
        import h5store
        n = 0
        while not select.select([sys.stdin], [], [], 0)[0]:
            n += 1
            h5store.pack(sys.argv[1], features=np.full((100, 10), n), progress=False, overwrite=True, codec=None)
    """
    pack(path, features=np.full((100, 10), 0), progress=False, codec=None)
    process = start_python(code, str(path))
    opened, seen = 0, set()
    while process.poll() is None and (opened < 100 or len(seen) < 10):
        with Reader(path) as reader:
            values = reader["features"][:]
        assert (values == values[0, 0]).all()
        seen.add(int(values[0, 0]))
        opened += 1
    _, error = process.communicate("stop\n", timeout=60)
    assert process.returncode == 0, error


# ---- nothing to store


def test_no_samples_but_fields_are_an_empty_store(path: Path) -> None:
    pack(path, features={"x": np.empty((0, 4), "f4")}, labels={"y": np.empty(0, "i8"), "z": np.empty(0, "U3")},
         progress=False)
    with Reader(path) as reader:
        assert len(reader) == 0 and reader["x"][:].shape == (0, 4) and reader["x"].dtype == "f4"
        assert reader["z"][:].tolist() == [] and reader["z"][:].dtype.kind == "U"
        assert reader.take([])["y"].shape == (0,) and h5store.verify(path).ok
    pack(path, features={"x": np.ones((1, 4), "f4")}, labels={"y": np.ones(1, "i8"), "z": np.array(["a"])},
         progress=False, append=True)
    with Reader(path) as reader:
        assert len(reader) == 1


@pytest.mark.parametrize("codec", ["lz4", "gzip", "zstd", None])
@pytest.mark.parametrize("chunk", [1, "random", "128KiB"])
def test_an_empty_store_in_any_settings(path: Path, codec: Any, chunk: Any) -> None:
    pack(path, features=np.empty((0, 4)), codec=codec, chunk=chunk, progress=False)
    with Reader(path) as reader:
        assert len(reader) == 0


NOTHING: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "generator": lambda: ((iter(()),), {"features": "x"}),
    "list": lambda: (([],), {"features": "x"}),
    "no arguments": lambda: ((), {}),
    "empty mapping": lambda: ((), {"features": {}}),
    "empty list": lambda: ((), {"features": []}),
    "object array": lambda: ((), {"features": np.empty(0, object)}),
}


@pytest.mark.parametrize("case", NOTHING)
def test_nothing_at_all_is_a_clear_error_and_leaves_no_file(path: Path, case: str) -> None:
    args, options = NOTHING[case]()
    with pytest.raises((SourceError, SchemaError), match="no samples|at least one field|no fields"):
        pack(path, *args, **options, progress=False)
    assert names(path.parent) == []


# ---- settings


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"codec": "gziip"}, "codec: no codec 'gziip'; codecs: 'gzip'.*None"),
    ({"codec": "gzip:10"}, "'gzip' takes a level from 1 to 9, got '10'"),
    ({"codec": ("gzip", 10)}, "'gzip' takes a level from 1 to 9, got 10"),
    ({"codec": "gzip:0"}, "from 1 to 9"), ({"codec": "gzip:-1"}, "from 1 to 9"), ({"codec": "gzip:"}, "from 1 to 9"),
    ({"codec": ("gzip", 4.7)}, "from 1 to 9, got 4.7"), ({"codec": ("gzip", True)}, "from 1 to 9, got True"),
    ({"codec": "zstd:23"}, "'zstd' takes a level from 1 to 22, got '23'"),
    ({"codec": "lz4:4"}, "'lz4' has no levels, got '4'"), ({"codec": ("lz4", 4)}, "'lz4' has no levels"),
    ({"codec": "lzf"}, "no codec 'lzf'"), ({"codec": 4}, "no codec 4"), ({"codec": ("gzip",)}, "no codec"),
    ({"codec": ("gzip", 4, 5)}, "no codec"), ({"codec": True}, "no codec True"), ({"codec": ""}, "no codec ''"),
    ({"chunk": 0}, "chunk: expected at least 1 sample, got 0"), ({"chunk": -5}, "at least 1 sample, got -5"),
    ({"chunk": "0"}, "chunk: expected a size from 1KiB to 64MiB"), ({"chunk": "5GiB"}, "from 1KiB to 64MiB"),
    ({"chunk": "big"}, "chunk: expected a size such as"), ({"chunk": None}, "chunk: expected a size such as"),
    ({"chunk": True}, "chunk: expected"), ({"chunk": 1.5}, "chunk: expected"),
    ({"chunk": (10, 4)}, "chunk: expected a size such as"),
    ({"threads": 0}, "threads: expected an int from 1"), ({"threads": "2"}, "threads: expected an int"),
    ({"threads": 10**6}, "threads: expected an int from 1 to"),
    ({"overwrite": True, "append": True}, "exclude each other"),
]


@pytest.mark.parametrize(("options", "told"), IMPOSSIBLE, ids=[str(o) for o, _ in IMPOSSIBLE])
def test_impossible_settings_are_refused_before_a_sample_is_read(path: Path, options: Any, told: str) -> None:
    def never() -> Iterator[dict[str, Any]]:
        raise AssertionError("a sample was read")
        yield

    with pytest.raises(OptionError, match=told):
        pack(path, never(), features="x", progress=False, **options)
    with pytest.raises(OptionError, match=told):
        Writer(path, **options)
    assert names(path.parent) == []


def test_a_setting_that_does_not_exist_is_not_ignored(path: Path) -> None:
    for call in (pack, Writer):
        with pytest.raises(TypeError, match="compression"):
            call(path, compression="gzip")


@pytest.mark.parametrize("chunk", [1, 3, 1000, 10**6, "32MiB", "random", 2048])
def test_chunks_larger_than_the_data_just_work(path: Path, chunk: Any) -> None:
    pack(path, features=rows(3), labels=np.arange(3), chunk=chunk, progress=False)
    with Reader(path) as reader:
        assert np.array_equal(reader["features"][:], rows(3))
    assert path.stat().st_size < 2**20


def test_samples_and_chunks_beyond_what_hdf5_holds(path: Path) -> None:
    giant = Schema((Field("x", "features", "f4", (5 * 2**28,)),))
    with pytest.raises(SchemaError, match=r"'x': one sample of shape .* takes 5.0 GiB;.*at most 2.0 GiB"):
        Writer(path, schema=giant)

    class Declared:
        shape, dtype = (3, 5 * 2**28), np.dtype("f4")

        def __len__(self) -> int:
            return 3

        def __getitem__(self, key: Any) -> np.ndarray:
            raise AssertionError("a sample was read")

    with pytest.raises(SchemaError, match="takes 5.0 GiB"):
        pack(path, features=Declared(), progress=False)
    with pytest.raises(OptionError, match="chunk: 1000000000 samples of 'features' take .* MiB, .* at most [0-9]+ "):
        pack(path, features=rows(3), chunk=10**9, progress=False)
    assert names(path.parent) == []


# ---- paths


def test_paths_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Writer("a 猫.h5") as writer:
        writer.append(features=rows(5))
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        writer.commit()
    assert names(tmp_path) == ["a 猫.h5", "elsewhere"]
    os.chdir(tmp_path)
    pack(os.fsencode("b.h5"), features=rows(5), progress=False)
    pack(Path("elsewhere") / ".." / "c.h5", features=rows(5), progress=False)
    for made in ("a 猫.h5", b"b.h5", Path("c.h5")):
        with Reader(made) as reader:
            assert len(reader) == 5


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    real, link = tmp_path / "disk" / "real.h5", tmp_path / "link.h5"
    link.symlink_to(real)
    with Writer(link) as writer:  # the target need not be there yet
        writer.append(features=rows(5))
        writer.commit()
        with pytest.raises(StoreLockedError):
            Writer(real)
        with pytest.raises(FormatError, match="not finished"):
            Reader(link)
    pack(link, features=rows(5, 5), progress=False, append=True)
    assert link.is_symlink() and not real.is_symlink()
    with Reader(real) as reader:
        assert np.array_equal(reader["features"][:], rows(10))
    assert names(tmp_path / "disk") == ["real.h5"]


def test_a_folder_that_is_missing_or_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder.*make it first.*nowhere"):
        pack(tmp_path / "nowhere" / "a.h5", features=rows(5), progress=False)
    (tmp_path / "folder").mkdir()
    for options in ({}, {"overwrite": True}, {"append": True}, {"resume": True}):
        with pytest.raises((StoreExistsError, H5StoreError), match="a folder is here|not a regular file|is a folder"):
            pack(tmp_path / "folder", features=rows(5), progress=False, **options)
    assert names(tmp_path) == ["folder"]


def test_a_file_that_is_no_store_is_not_added_to(path: Path) -> None:
    path.write_text("my diary")
    for options in ({"append": True}, {"resume": True}):
        with pytest.raises(FormatError, match="not an HDF5 file"):
            pack(path, features=rows(5), progress=False, **options)
    assert path.read_text() == "my diary" and names(path.parent) == ["train.h5"]


def test_the_new_store_has_the_old_ones_permissions(path: Path) -> None:
    pack(path, features=rows(5), progress=False)
    path.chmod(0o640)
    pack(path, features=rows(5), progress=False, append=True)
    pack(path, features=rows(5), progress=False, overwrite=True)
    assert path.stat().st_mode & 0o777 == 0o640
