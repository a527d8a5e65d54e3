"""The house keeps its floors: what each module may import, and how long files and functions may be.

Reads the sources with `ast`; nothing is imported. Every check takes the package's folder, so that each can be
tried on a small house with the fault in it, too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "h5store"

# Bottom to top; a module imports from its own floor and from those below. A folder is on one floor.
FLOORS = (
    ("_version", "errors"),
    ("ragged", "schema"),
    ("moments", "sampling"),
    ("storage",),
    ("sources",),
    ("batching", "choosing", "doctor", "encoded", "export", "feeding", "fieldview", "hdf5view", "identity",
     "joining", "loader", "looking", "normalization", "packing", "position", "reader", "repair", "speed", "splits",
     "stream", "verify", "windows", "writer"),
    ("adapters", "explore"),
    ("cli",),
    ("__init__", "__main__"),
)
# Doors: methods of Reader that lead upstairs, so that users need one noun only. Opened inside a function.
DOORS = {"looking": ("explore",), "fieldview": ("explore",), "loader": ("explore",), "verify": ("explore",),
         "feeding": ("adapters",)}
# Sampling is arithmetic: beside numpy it knows only what a field is and how to complain.
NARROW = {"sampling": ("errors", "schema", "sampling")}
# Rooms that may talk to HDF5.
H5PY_ROOMS = ("storage/layout.py", "storage/opening.py", "storage/foreign.py", "storage/notes.py",
              "storage/guard.py", "storage/heap.py", "storage/origin.py", "storage/validate.py", "doctor.py",
              "export.py", "sources/hdf5.py", "hdf5view.py")
# Imported inside their door only, and by nobody at import.
EXTRAS = {
    "tensorflow", "keras", "torch", "jax", "grain",
    "matplotlib", "PIL", "pandas", "pyarrow", "sklearn", "IPython",
}
FILE_LINES = 400
FUNCTION_LINES = 40


@dataclass(frozen=True)
class Import:
    """One imported module, as its dotted name, and where."""

    room: str  # "storage/chunks.py"
    line: int
    target: str  # "h5store.errors"
    inside: bool  # within a function: runs when called, not when imported

    def __str__(self) -> str:
        return f"{self.room}:{self.line} imports {self.target}"


def rooms(package: Path) -> dict[str, ast.Module]:
    """Every source file of the package, parsed, by its path within it."""
    files = sorted(package.rglob("*.py"))
    return {file.relative_to(package).as_posix(): ast.parse(file.read_text("utf-8")) for file in files}


def module_of(room: str) -> str:
    """Dotted name of a source file: 'storage/__init__.py' is h5store.storage."""
    parts = ["h5store", *room.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:`, which no interpreter enters."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(node: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes below, each with whether a function holds it; leaves out what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            continue
        yield child, inside
        yield from statements(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def from_targets(node: ast.ImportFrom, room: str, modules: set[str]) -> list[str]:
    """What `from x import a, b` imports: x.a where that is a module of ours, else x."""
    base = node.module or ""
    if node.level:
        above = module_of(room).split(".")
        drop = node.level - room.endswith("__init__.py")
        base = ".".join([*above[: len(above) - drop], *filter(None, [node.module])])
    return [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base for alias in node.names]


def imports(package: Path) -> list[Import]:
    """Every import that can run, in the order of the files."""
    trees = rooms(package)
    modules = {module_of(room) for room in trees}
    found = []
    for room, tree in trees.items():
        for node, inside in statements(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets = from_targets(node, room, modules)
            else:
                continue
            found += [Import(room, node.lineno, target, inside) for target in dict.fromkeys(targets)]
    return found


def wing(room_or_module: str) -> str:
    """The name by which FLOORS knows it: 'storage/chunks.py' and 'h5store.storage.chunks' are storage."""
    if room_or_module.endswith(".py"):
        return room_or_module.removesuffix(".py").split("/")[0]
    return [*room_or_module.split("."), "__init__"][1]


def floor(name: str) -> int:
    """Height of a wing; a wing that FLOORS does not list is a fault of its own."""
    return next((height for height, names in enumerate(FLOORS) if name in names), -1)


def ours(package: Path) -> list[Import]:
    """Imports of the package's own modules, without the doors."""
    return [
        step for step in imports(package)
        if step.target.split(".")[0] == "h5store"
        and not (step.inside and wing(step.target) in DOORS.get(wing(step.room), ()))
    ]


def unknown_wings(package: Path) -> list[str]:
    """Modules that stand on no floor."""
    return [room for room in rooms(package) if floor(wing(room)) < 0]


def upward(package: Path) -> list[str]:
    """Imports from a higher floor; the package root is the highest, so leaf modules only."""
    return [
        str(step) for step in ours(package)
        if floor(wing(step.target)) > floor(wing(step.room)) or wing(step.target) == "__init__"
    ]


def too_wide(package: Path) -> list[str]:
    """Imports by the pure wings of anything but what they may know."""
    return [
        str(step) for step in ours(package)
        if wing(step.room) in NARROW and wing(step.target) not in NARROW[wing(step.room)]
    ]


def cycles(package: Path) -> list[str]:
    """Rings of modules that import each other, told from their first module on; at least one of each knot."""
    below: dict[str, set[str]] = {module_of(room): set() for room in rooms(package)}
    for step in ours(package):
        if step.target in below:
            below[module_of(step.room)].add(step.target)
    found = set()
    done = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            ring = path[path.index(module):]
            first = ring.index(min(ring))
            found.add(" -> ".join([*ring[first:], *ring[:first], min(ring)]))
        elif module not in done:
            for target in sorted(below[module]):
                walk(target, (*path, module))
            done.add(module)

    for module in below:
        walk(module, ())
    return sorted(found)


def stray_h5py(package: Path) -> list[str]:
    """Imports of h5py outside the rooms that may talk to HDF5."""
    return [
        str(step) for step in imports(package)
        if step.target.split(".")[0] == "h5py" and step.room not in H5PY_ROOMS
    ]


def eager_extras(package: Path) -> list[str]:
    """Imports of optional packages that run when the module is imported."""
    return [str(step) for step in imports(package) if step.target.split(".")[0] in EXTRAS and not step.inside]


def long_files(package: Path) -> list[str]:
    """Files of more than FILE_LINES lines."""
    counts = {room: (package / room).read_text("utf-8").count("\n") for room in rooms(package)}
    return [f"{room}: {lines} lines" for room, lines in counts.items() if lines > FILE_LINES]


def span(node: ast.stmt) -> int:
    """Lines of a statement, from its keyword to its end."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, nor a class in it: that one's methods count for themselves.

    A subclass of an optional package's class can only be written inside a function.
    """
    apart: list[ast.stmt] = [part for part in node.body if isinstance(part, ast.ClassDef)]
    if ast.get_docstring(node, clean=False) is not None:
        apart.append(node.body[0])
    return span(node) - sum(map(span, apart))


def long_functions(package: Path) -> list[str]:
    """Functions of more than FUNCTION_LINES lines."""
    return [
        f"{room}:{node.lineno} {node.name}: {length(node)} lines"
        for room, tree in rooms(package).items() for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and length(node) > FUNCTION_LINES
    ]


CHECKS = (
    unknown_wings, upward, too_wide, cycles, stray_h5py, eager_extras, long_files, long_functions,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_house_keeps_its_floors(check: Callable[[Path], list[str]]) -> None:
    found = check(PACKAGE)
    assert not found, "\n".join(found)


def test_every_exception_names_a_wing_that_has_a_floor() -> None:
    known = {name for names in FLOORS for name in names}
    assert {*DOORS, *NARROW, *(wing(room) for room in H5PY_ROOMS)} <= known


FAULTS = {
    unknown_wings: {"utils.py": "x = 1\n"},
    upward: {"schema.py": "def f():\n    from h5store.reader import Reader\n"},
    too_wide: {"sampling/plan.py": "import numpy\nfrom .. import storage\n", "storage/__init__.py": ""},
    cycles: {"reader.py": "from h5store import loader\n", "loader.py": "import h5store.reader\n"},
    stray_h5py: {"reader.py": "def f():\n    import h5py\n"},
    eager_extras: {"adapters/keras.py": "try:\n    import keras\nexcept ImportError:\n    keras = None\n"},
    long_files: {"schema.py": "x = 1\n" * (FILE_LINES + 1)},
    long_functions: {"schema.py": 'def f():\n    """Two\n    lines."""\n' + "    x = 1\n" * FUNCTION_LINES},
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_each_check_sees_its_fault_and_no_other_sees_it(
    check: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    for room, text in FAULTS[check].items():
        (tmp_path / room).parent.mkdir(exist_ok=True)
        (tmp_path / room).write_text(text, "utf-8")
    seen = {other.__name__: other(tmp_path) for other in CHECKS}
    assert len(seen.pop(check.__name__)) == 1
    # What sampling may not know is mostly upstairs, so that both complain.
    if check is too_wide:
        assert len(seen.pop("upward")) == 1
    assert seen == {name: [] for name in seen}


def test_what_is_allowed_raises_no_complaint(tmp_path: Path) -> None:
    house = {
        "__init__.py": "from h5store.reader import Reader\n",
        "errors.py": "import difflib\n",
        "storage/__init__.py": "",
        "storage/layout.py": "import h5py\nfrom h5store import errors\nfrom ..schema import Field\n",
        "schema.py": "if TYPE_CHECKING:\n    from h5store.reader import Reader\n",
        "looking.py": "from h5store.storage import layout\ndef f():\n    from h5store.explore import stats\n",
        "adapters/keras.py": "from h5store.reader import Reader\ndef f():\n    import keras\n",
    }
    for room, text in house.items():
        (tmp_path / room).parent.mkdir(exist_ok=True)
        (tmp_path / room).write_text(text, "utf-8")
    assert {check.__name__: check(tmp_path) for check in CHECKS} == {check.__name__: [] for check in CHECKS}
