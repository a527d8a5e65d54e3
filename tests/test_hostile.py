"""Files that mean harm: a clear error, in little time and memory, and no file opened but the one that was named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "hostile"

#: Builds every case in a child, opens it in another, and tells its name, what came of it, time, memory.
OPEN = """
import json, os, pathlib, resource, sys, tempfile, time
sys.path.insert(0, sys.argv[1])
import corpus, exercise

def child(task):
    if os.fork() == 0:
        try:
            task()
        finally:
            os._exit(0)
    return os.wait()[1]

def look(case, path):
    door = exercise.as_store if case.store else exercise.as_foreign
    door(str(path.with_name("nothing-there")))
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        told = door(str(path))
    except BaseException as error:
        told = f"not a clear error: {error!r}"
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(json.dumps([case.name, case.store, told, time.process_time() - start, memory]), flush=True)

for case in corpus.CORPUS:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "hostile.h5"
        child(lambda: case.build(path.parent, path))
        assert path.exists(), case.name
        assert child(lambda: look(case, path)) == 0, case.name
"""


@pytest.mark.skipif(sys.platform != "linux", reason="children are watched as Linux does")
def test_every_hostile_file_gives_a_clear_error() -> None:
    done = subprocess.run([sys.executable, "-c", OPEN, str(HERE)], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(seen) >= 28
    wrong = [one for one in seen if one[2].startswith("not a clear error") or one[3] > 2 or one[4] > 64 << 20]
    assert not wrong
    # A giant attribute is no obstacle to reading the data beside it; all else is refused.
    assert {name for name, store, told, *_ in seen if told == "read"} == {"giant_attribute"}


@pytest.mark.skipif(sys.platform != "linux", reason="children are watched as Linux does")
def test_mutants_neither_crash_nor_hang_nor_grow() -> None:
    done = subprocess.run([sys.executable, str(HERE / "fuzz.py"), "--count", "400", "--seed", "7"],
                          capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    # All kinds of ends are reached, or the mutants were too tame or too wild.
    for outcome in ("'read'", "'FormatError'", "'CorruptChunkError'"):
        assert outcome in done.stdout


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("case", ["external_link", "external_link_behind_a_soft_link", "external_storage",
                                  "virtual_dataset"])
def test_no_other_file_is_opened(case: str, tmp_path: Path) -> None:
    code = (f"import sys; sys.path.insert(0, {str(HERE)!r}); import corpus, exercise, pathlib\n"
            f"folder = pathlib.Path({str(tmp_path)!r}); path = folder / 'hostile.h5'\n"
            f"corpus.{case}(folder, path); exercise.as_foreign(str(path)); exercise.as_store(str(path))\n"
            "import os; os.close(os.open(folder / 'begin', os.O_CREAT))\n"
            "exercise.as_foreign(str(path)); exercise.as_store(str(path))\n")
    log = tmp_path / "log"
    watch = ["strace", "-f", "-qq", "-e", "trace=open,openat", "-o", str(log)]
    done = subprocess.run([*watch, sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    opened = re.findall(r'open(?:at)?\([^"]*"([^"]+)"', log.read_text("utf-8").split("begin", 1)[1])
    inside = [name for name in opened if name.startswith(str(tmp_path))]
    assert inside and set(inside) == {str(tmp_path / "hostile.h5")}


PLUGIN = """
import sys, pathlib, h5store
path = pathlib.Path(sys.argv[1]) / "f.h5"
try:
    h5store.Reader.from_hdf5(path, features="X")
except h5store.errors.FormatError as error:
    print("refused", "trust_plugins" in str(error))
print("loaded", (path.parent / "canary").exists())
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the plugin is compiled by gcc")
def test_no_code_is_loaded_from_the_plugin_path(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    source = tmp_path / "plugin.c"
    source.write_text('#include <fcntl.h>\n__attribute__((constructor)) static void loaded(void) '
                      f'{{ creat("{tmp_path}/canary", 0666); }}\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libcanary.so"), str(source)], check=True)
    build = "import sys; sys.path.insert(0, sys.argv[1]); import corpus; corpus.unknown_filter(None, sys.argv[2])"
    subprocess.run([sys.executable, "-c", build, str(HERE), str(tmp_path / "f.h5")], check=True)
    done = subprocess.run([sys.executable, "-c", PLUGIN, str(tmp_path)], capture_output=True, text=True,
                          env={**os.environ, "HDF5_PLUGIN_PATH": str(folder)}, timeout=100)
    assert done.stdout.split() == ["refused", "True", "loaded", "False"], done.stdout + done.stderr


def test_the_canary_would_be_seen(tmp_path: Path) -> None:
    """With trust, libhdf5 does look into the folder: what the test above sees is the guard, not an idle canary."""
    if shutil.which("gcc") is None:
        pytest.skip("the plugin is compiled by gcc")
    folder = tmp_path / "plugins"
    folder.mkdir()
    source = tmp_path / "plugin.c"
    source.write_text('#include <fcntl.h>\n__attribute__((constructor)) static void loaded(void) '
                      f'{{ creat("{tmp_path}/canary", 0666); }}\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "libcanary.so"), str(source)], check=True)
    code = ("import sys, h5py; h5py.h5z.filter_avail(31999)\n"
            f"import pathlib; print(pathlib.Path({str(tmp_path / 'canary')!r}).exists())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100,
                          env={**os.environ, "HDF5_PLUGIN_PATH": str(folder)})
    assert done.stdout.strip() == "True", done.stdout + done.stderr
