"""The command line: every example of its help runs, results and exit codes fit for scripts, mistakes in one line."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import h5py
import numpy as np
import pytest

import h5store
from h5store.cli.main import h5store as group
from h5store.cli.main import main

X = np.random.default_rng(0).normal(size=(60, 5, 2)).astype("f4")
Y = np.arange(60) % 3


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in this process; gives its exit code, output and errors."""

    def call(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            main(shlex.split(line))
        out, err = capsys.readouterr()
        return int(done.value.code or 0), out, err

    return call


@pytest.fixture
def store() -> str:
    h5store.pack("train.h5", features={"flux": X}, aux={"host": X[:, 0]}, labels={"class": Y}, progress=False)
    return "train.h5"


def commands(at: click.Command = group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """(words, command) of every command that is not a group, and of the groups."""
    yield " ".join(words), at
    if isinstance(at, click.Group):
        context = click.Context(at)
        for name in at.list_commands(context):
            below = at.get_command(context, name)
            assert below is not None
            yield from commands(below, (*words, name))


def examples() -> list[str]:
    """Every line of help that is an example, each once."""
    found = [line.strip() for _, command in commands() for line in (command.help or "").splitlines()
             if line.strip().startswith("h5store ")]
    return list(dict.fromkeys(found))


def inputs(line: str) -> None:
    """Make what the examples of the help name."""
    np.save("X.npy", X)
    np.save("Z.npy", X[:, 0])
    np.save("y.npy", Y)
    np.savez("y.npz", Y)
    os.mkdir("parts")
    for i in range(12):
        np.savez(f"parts/{i}.npz", img=np.full((4, 4), i), label=i % 3)
    if " images " in line:
        image = pytest.importorskip("PIL.Image")
        os.mkdir("photos")
        for i in range(6):
            image.fromarray(np.full((9, 8, 3), i, "u1")).save(f"photos/{i}.png")
        Path("labels.txt").write_text("".join(f"{i}.png {i % 2}\n" for i in range(6)))
    if " table " in line:
        pytest.importorskip("pyarrow")
        Path("data.csv").write_text("a,b,c,y\n" + "1.5,2.5,3.5,0\n" * 5)
    if " hdf5 " in line:
        reader = h5store.Reader("train.h5")
        export_plain(reader)
        reader.close()
    if " tfrecord " in line:
        tf = pytest.importorskip("tensorflow")
        os.mkdir("shards")
        feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0])),
                   "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))}
        with tf.io.TFRecordWriter("shards/0.tfrecord") as file:
            file.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def export_plain(reader: h5store.Reader) -> None:
    import h5py

    with h5py.File("theirs.h5", "w") as file:
        file["X"], file["y"] = reader["flux"][:], reader["class"][:]


@pytest.mark.parametrize("line", examples())
def test_every_example_of_the_help_runs(line: str, run: Callable[..., tuple[int, str, str]], store: str) -> None:
    inputs(line)
    if line.startswith("h5store pack"):
        Path("train.h5").unlink()
    code, out, err = run(line.removeprefix("h5store "))
    assert code == 0, err
    assert out
    assert "Traceback" not in err


def test_every_command_has_help_with_an_example() -> None:
    lacking = [words for words, command in commands() if not re.search(r"^ *h5store ", command.help or "", re.M)]
    assert lacking == []


def test_every_command_prints_its_help(run: Callable[..., tuple[int, str, str]]) -> None:
    for words, command in commands():
        code, out, _ = run(f"{words} --help")
        assert code == 0 and out.startswith("Usage:")
        assert f"{words or 'h5store'}" in out


def test_pack_says_what_it_made(run: Callable[..., tuple[int, str, str]]) -> None:
    np.save("X.npy", X)
    np.savez("y.npz", Y)
    code, out, err = run("pack arrays t.h5 --features flux=X.npy --labels y.npz:arr_0 --json --codec gzip:9 --chunk 16")
    assert code == 0 and "60" in err, "the progress bar is on standard error"
    made = json.loads(out)
    assert (made["samples"], made["path"], made["skipped"]) == (60, "t.h5", 0)
    assert [f["name"] for f in made["fields"]] == ["flux", "labels"]
    found = json.loads(run("info t.h5 --json")[1])
    assert (found["codec"], found["block"], found["samples"]) == ("gzip:9", 16, 60)


def test_a_dry_run_tells_and_writes_nothing(run: Callable[..., tuple[int, str, str]]) -> None:
    np.save("X.npy", X)
    code, out, _ = run("pack arrays t.h5 --features flux=X.npy --dry-run --json --chunk 7 --codec none --limit 20")
    told = json.loads(out)
    assert code == 0 and (told["samples"], told["raw_bytes"], told["block"]) == (20, 20 * 40, 7)
    assert told["fields"][0]["chunk"] % 7 == 0
    assert run("pack arrays t.h5 --features flux=X.npy --dry-run")[1].endswith("Nothing was written.\n")
    assert sorted(os.listdir()) == ["X.npy"]


def test_info_tells_roles_sizes_and_counts(run: Callable[..., tuple[int, str, str]], store: str) -> None:
    found = json.loads(run("info train.h5 --json")[1])
    assert [f["role"] for f in found["fields"]] == ["features", "aux", "labels"]
    assert found["fields"][2]["counts"] == {"0": 20, "1": 20, "2": 20}
    assert found["bytes"] == os.path.getsize(store) and found["raw_bytes"] == 60 * (40 + 8 + 8)
    code, out, _ = run("info train.h5")
    assert code == 0 and "class: 3 classes: '0': 20" in out and "float32 (5, 2)" in out


def test_show_prints_samples(run: Callable[..., tuple[int, str, str]], store: str) -> None:
    found = json.loads(run("show train.h5 --json --fields class,host -- 5 -1")[1])
    assert [s["id"] for s in found] == [5, -1] and [s["class"] for s in found] == [2, 2]
    assert found[0]["host"] == X[5, 0].tolist()
    assert "sample 2" in run("show train.h5")[1]


def test_stats_are_plain_numbers(run: Callable[..., tuple[int, str, str]], store: str) -> None:
    code, out, _ = run("stats train.h5 --json --quiet")
    found = json.loads(out)["fields"]
    assert code == 0 and len(found["flux"]) == 2, "one row a channel"
    assert found["flux"][0]["mean"] == pytest.approx(float(X[..., 0].mean()), rel=1e-5)
    assert "flux" in run("stats train.h5 --quiet")[1]


def test_split_is_found_again(run: Callable[..., tuple[int, str, str]], store: str) -> None:
    code, out, _ = run("split train.h5 --by class --parts train=0.8,val=0.2 --seed 3 --json")
    assert code == 0 and json.loads(out)["parts"] == {"train": 48, "val": 12}
    with h5store.Reader(store) as reader:
        part = reader.split("val")
        assert len(part) == 12 and np.bincount(part["class"][:]).tolist() == [4, 4, 4]


@pytest.mark.parametrize("to", ["npy", "npz", "hdf5"])
def test_export_gives_the_samples_back(to: str, run: Callable[..., tuple[int, str, str]], store: str) -> None:
    run("split train.h5 --parts train=50,val=10")
    code, out, _ = run(f"export train.h5 --to {to} --json")
    where = json.loads(out)["path"]
    assert code == 0 and run(f"export train.h5 --to {to}")[0] == 1, "what is there is not replaced"
    assert run(f"export train.h5 --to {to} --overwrite")[0] == 0
    if to == "npy":
        found = {name: np.load(f"{where}/{name}.npy") for name in ("flux", "class")}
    elif to == "npz":
        found = dict(np.load(where))
    else:
        import h5py

        with h5py.File(where) as file:
            found = {name: file[name][...] for name in file}
    np.testing.assert_array_equal(found["flux"], X)
    np.testing.assert_array_equal(found["class"], Y)
    assert json.loads(run(f"export train.h5 --to {to} --split val --fields class --json")[1])["samples"] == 10


@pytest.mark.parametrize("to", ["npz", "hdf5"])
def test_samples_of_different_lengths_come_out_as_values_and_offsets(
    to: str, run: Callable[..., tuple[int, str, str]]
) -> None:
    samples = [np.arange(n, dtype="f4") for n in (3, 0, 2)]
    h5store.pack("t.h5", features={"x": samples}, progress=False)
    found = json.loads(run("info t.h5 --json")[1])
    assert (found["samples"], found["raw_bytes"]) == (3, 5 * 4 + 3 * 8)
    assert "float32 (None,)" in run("info t.h5")[1]
    assert json.loads(run("show t.h5 2 --json")[1]) == [{"id": 2, "x": [0.0, 1.0]}]
    where = json.loads(run(f"export t.h5 --to {to} --json")[1])["path"]
    if to == "npz":
        arrays = dict(np.load(where))
    else:
        import h5py

        with h5py.File(where) as file:
            arrays = {name: file[name][...] for name in file}
    assert arrays["x"].tolist() == [0, 1, 2, 0, 1] and arrays["x_offsets"].tolist() == [0, 3, 3, 5]


def test_text_comes_out_as_text(run: Callable[..., tuple[int, str, str]]) -> None:
    h5store.pack("t.h5", features=X[:3], labels=["cat", "猫", ""], progress=False)
    run("export t.h5 --to npz")
    assert np.load("t.npz")["labels"].tolist() == ["cat", "猫", ""]
    run("export t.h5 --to hdf5")
    import h5py

    with h5py.File("t.plain.h5") as file:
        assert file["labels"].asstr()[...].tolist() == ["cat", "猫", ""]
    assert json.loads(run("info t.h5 --json")[1])["fields"][1]["counts"] == {"": 1, "cat": 1, "猫": 1}


def test_verify_has_an_exit_code_for_damage(run: Callable[..., tuple[int, str, str]], store: str) -> None:
    assert run("verify train.h5")[0] == 0
    raw = bytearray(Path(store).read_bytes())
    with h5store.Reader(store) as reader:
        at = int(reader._store.table("flux").offsets[0]) + 20
    raw[at] ^= 255
    Path(store).write_bytes(raw)
    code, out, err = run("verify train.h5 --json")
    assert code == 1 and not json.loads(out)["ok"] and "Traceback" not in err


@pytest.mark.parametrize(("line", "code", "told"), [
    ("pck arrays t.h5", 2, "no command 'pck'; commands: 'pack'"),
    ("pack arays t.h5", 2, "no command 'arays'; commands: 'arrays'"),
    ("pack arrays t.h5 --feature X.npy", 2, "--features"),
    ("pack arrays t.h5 --features X.npt", 1, "X.npt: no such file; beside it: 'X.npy'"),
    ("pack arrays t.h5 --features X.npy --features y.npy", 2, "two fields are named 'features'; name them"),
    ("pack arrays t.h5", 1, "a store needs at least one field"),
    ("pack arrays train.h5 --features X.npy", 1, "replace it with --overwrite, add to it with --append"),
    ("pack arrays t.h5 --features X.npy --codec gziip", 1, "gziip"),
    ("pack arrays t.h5 --features X.npy --codec gzip:10", 1, "gzip"),
    ("pack arrays t.h5 --features X.npy --codec lzf:4", 1, "lzf"),
    ("pack arrays t.h5 --features X.npy --chunk 0", 1, "chunk: expected at least 1 sample"),
    ("pack arrays t.h5 --features X.npy --shuffle -1", 2, "--shuffle"),
    ("pack samples t.h5 parts --features img=a,b", 2, "expected NAME=KEY"),
    ("pack hdf5 t.h5 train.h5 --features flux", 1, "no dataset 'flux'; datasets: 'features/flux'"),
    ("info trian.h5", 1, "trian.h5: no such file; files beside it: 'train.h5'"),
    ("info X.npy", 1, "it looks like a .npy array"),
    ("show train.h5 60", 1, "60"),
    ("show train.h5 --fields clas", 1, "no field 'clas'; fields: 'class'"),
    ("split train.h5 --by clas --parts a=0.5", 1, "no field 'clas'; fields: 'class'"),
    ("split train.h5 --parts a", 2, "expected NAME=VALUE"),
    ("split train.h5 --parts a=lots", 2, "'lots' is no share"),
    ("split train.h5 --parts a=0.9,b=0.2", 1, "1.1|sum"),
    ("export train.h5 --to csv", 2, "csv"),
    ("export train.h5 --to npz --split vall", 1, "no saved part 'vall'"),
])
def test_mistakes_are_one_line_and_an_exit_code(
    line: str, code: int, told: str, run: Callable[..., tuple[int, str, str]], store: str
) -> None:
    np.save("X.npy", X)
    np.save("y.npy", Y)
    before = sorted(os.listdir())
    found, out, err = run(line)
    assert found == code
    assert re.search(told, err), err
    assert "Traceback" not in err and not out
    assert sorted(os.listdir()) == before


def test_what_does_not_fit_a_store_is_told_with_its_value(run: Callable[..., tuple[int, str, str]]) -> None:
    np.savez("part0.npz", y=np.array([0, 1, 255], "u1"))
    np.savez("part1.npz", y=np.array([3, 256, -1]))
    assert run("pack arrays t.h5 --features y=part0.npz")[0] == 0
    before = Path("t.h5").read_bytes()
    code, _, err = run("pack arrays t.h5 --features y=part1.npz --append")
    assert code == 1 and "part1.npz: 'y' has dtype int64, expected uint8, and sample 1 holds 256" in err
    assert Path("t.h5").read_bytes() == before
    code, _, err = run("pack arrays t.h5 --features z=part1.npz --append")
    assert code == 1 and "no field 'z'; fields: 'y'" in err


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(FileNotFoundError):
        main(["info", "gone.h5", "--debug"])


def test_a_sample_of_five_gibibytes_is_refused_before_any_is_read(run: Callable[..., tuple[int, str, str]]) -> None:
    with open("X.dat", "wb") as file:
        file.truncate(5 << 30)  # a hole: takes no room
    code, _, err = run("pack arrays t.h5 --features X.dat:uint8:1x5368709120")
    assert code == 1 and "one sample of shape (5368709120,) takes 5.0 GiB" in err
    assert os.listdir() == ["X.dat"]


def test_skipped_files_are_told(run: Callable[..., tuple[int, str, str]]) -> None:
    os.mkdir("parts")
    for i in range(5):
        np.savez(f"parts/{i}.npz", img=np.zeros(3))
    np.savez("parts/2.npz", other=np.zeros(3))
    code, _, err = run("pack samples t.h5 parts --features img")
    assert code == 1 and "parts/2.npz: no 'img'; its keys: 'other'" in err and "--on-error skip" in err
    code, out, _ = run("pack samples t.h5 parts --features img --on-error skip")
    assert code == 0 and "1 files were left out, listed in t.h5.skipped.csv" in out


def test_packing_anew_over_an_unfinished_pack_says_so(run: Callable[..., tuple[int, str, str]]) -> None:
    np.save("X.npy", X)
    writer = h5store.Writer("t.h5")
    writer.origin = "pack"
    writer.append(features=X[:10])
    writer.commit()
    writer._release()
    code, _, err = run("pack arrays t.h5 --features X.npy")
    assert code == 0 and "With --resume it goes on from them" in err


SLOW = """
import os, signal, sys, time
import h5store.writer as writer
from h5store.cli.main import main

write = writer.Writer.write

def slow(self, block):
    write(self, block)
    self.commit()
    print("block", flush=True)
    time.sleep(0.05)

writer.Writer.write = slow
# A few blocks of one sample each.
import h5store.sources.files as files
files._MOST_SAMPLES = 1
main(sys.argv[1:])
"""


def test_ctrl_c_leaves_a_journal_and_says_how_to_go_on(
    run: Callable[..., tuple[int, str, str]], start_python: Callable[..., subprocess.Popen[str]]
) -> None:
    os.mkdir("parts")
    for i in range(200):
        np.savez(f"parts/{i}.npz", img=np.full(3, i))
    line = "pack samples t.h5 parts --features img --quiet"
    process = start_python(SLOW, *shlex.split(line))
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline() == "block\n", process.communicate(timeout=60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "t.h5.journal" in err and not os.path.exists("t.h5")
    again = next(text.strip() for text in err.splitlines() if text.strip().startswith("h5store pack"))
    assert again == f"h5store {line} --resume"
    assert run(again.removeprefix("h5store "))[0] == 0
    assert run("pack samples whole.h5 parts --features img")[0] == 0
    assert Path("t.h5").read_bytes() == Path("whole.h5").read_bytes()


def test_ctrl_c_before_a_shuffle_says_how_to_go_on_too(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed("X.npz", X)
    line = "pack arrays t.h5 --features X.npz --shuffle 1"
    seal = h5store.Writer.close

    def interrupted(self: h5store.Writer) -> None:
        self.commit()
        self._release()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(h5store.Writer, "close", interrupted)
        code, _, err = run(line)
    assert code == 130 and "t.h5.unshuffled.journal" in err and f"h5store {line} --resume" in err
    assert h5store.Writer.close is seal and run(f"{line} --resume")[0] == 0
    assert sorted(os.listdir()) == ["X.npz", "t.h5"]


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "h5store", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"h5store, version {h5store.__version__}\n"


def test_the_command_starts_without_any_extra() -> None:
    code = ("import sys, runpy; sys.argv = ['h5store', '--help']\n"
            "try:\n    runpy.run_module('h5store', run_name='__main__')\n"
            "except SystemExit:\n    pass\n"
            "print([m for m in ('PIL', 'pyarrow', 'tensorflow', 'keras', 'torch') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("line, sources", [
    ("arrays {} --features flux=X.npy --labels y.npy --codec gzip", ["X.npy", "y.npy"]),
    ("samples {} parts --features img", ["parts"]),
    ("hdf5 {} theirs.h5 --features X --shuffle 3 --limit 7", ["theirs.h5"]),
    ("table {} 'my rows.csv' --features x=a,b --labels y", ["my rows.csv"]),
], ids=lambda value: value.split()[0] if isinstance(value, str) else "")
def test_a_packed_store_says_what_of_and_how_and_the_same_is_the_same_file(
        run: Callable[..., tuple[int, str, str]], line: str, sources: list[str]) -> None:
    if line.startswith("table"):
        pytest.importorskip("pyarrow")
    np.save("X.npy", X)
    np.save("y.npy", Y)
    os.mkdir("parts")
    for i in range(20):
        np.savez(f"parts/{i}.npz", img=np.full(3, i))
    with h5py.File("theirs.h5", "w") as file:
        file["X"] = X
    Path("my rows.csv").write_text("a,b,y\n" + "1,2,3\n" * 9)
    assert run("pack " + line.format("t.h5"))[0] == 0
    told = h5store.provenance("t.h5")
    assert told["sources"] == sources and told["versions"]["h5store"] == h5store.__version__
    assert told["command"] == "h5store pack " + line.replace("{} ", "", 1)
    os.mkdir("elsewhere")
    before = Path("t.h5").read_bytes()
    for options in ("--threads 1 --quiet", "--json", "--resume"):  # none of which makes other samples
        assert run(f"pack {line.format('elsewhere/u.h5')} {options} --overwrite")[0] == 0
        assert Path("elsewhere/u.h5").read_bytes() == before
