"""The rooms of the engine import each other in one direction only.

No file outside a toolchain's folder names a toolchain: whatever differs, the toolchain says.

What counts as naming one: a string in the code (not a docstring) that equals, without regard to
case, a toolchain's name or its title, or that is an environment variable which only a toolchain
wants (``ToolchainAbout.environment``; OpenMP's variables belong to nobody); a function or a class
of a toolchain's name; and an import from a toolchain's folder. Excepted are the
registry, which lists toolchains, ``lowering/virtual_machine.py`` and the loader of artifacts,
since TVM is also the virtual machine that runs every placement, and ``patch.py``, which changes
sessions of ONNX Runtime.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from collage_engine.toolchains import registry
from tests.support.command import python

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "collage_engine"

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "support": (),
    "records": ("support",),
    "wording": ("records",),
    "machine": ("records",),
    "search": ("wording",),
    "model": ("machine",),
    "store": ("model", "search"),
    "drawing": ("store", "wording"),
    "partition": ("model",),
    "kernels": ("partition",),
    "toolchains": ("kernels", "wording"),
    "lowering": ("toolchains",),
    "artifact": ("lowering",),
    "candidates": ("store", "lowering"),
    "planning": ("store",),
    "timing": ("candidates", "planning"),
    "trials": ("timing", "artifact"),
    "run": ("trials",),
    "service": ("drawing", "planning", "toolchains"),
    "farm": ("service", "artifact"),
    "api": ("farm",),
    "cli": ("api", "run"),
}
"""The rooms that a room may import, and with each of them all that it may import itself.

The table is acyclic. Imports for type checkers and imports inside functions obey it too.
"""
HEAVY = {"tvm", "tvm_ffi", "onnxruntime", "openvino", "onnx"}
ROOMS = set(MAY_IMPORT)
NOT_IN: dict[str, tuple[set[str], set[str]]] = {
    "plain rooms load no toolchain": (
        HEAVY,
        {"support", "records", "search", "drawing", "partition"},
    ),
    "the engine has no windows": ({"PySide6", "pyqtgraph", "collage_gui"}, ROOMS),
    "only the store speaks SQL": ({"sqlite3", "sqlite_utils"}, ROOMS - {"store"}),
}
"""Packages that files of some rooms do not import."""
GUI_MAY_USE = {
    "collage_engine.support",
    "collage_engine.records",
    "collage_engine.drawing",
    "collage_engine.wording",
}


@cache
def imports(path: Path, for_checkers: bool = True) -> set[str]:
    """Every module, or name of a module, that a file imports, also inside functions.

    ``for_checkers``: with what only type checkers read.
    """
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            if not for_checkers:
                return
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def may_import(room: str) -> set[str]:
    """A room's direct allowance and all that follows from it."""
    return nx.descendants(nx.DiGraph(MAY_IMPORT), room)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "collage_engine" and len(parts) > 1 else None


def wrong_imports(paths: Iterable[Path], wrong: Callable[[str], bool]) -> str:
    """One line for each import of these files that is wrong; what only type checkers read counts.

    So do imports inside functions.
    """
    return "\n".join(
        f"{path.relative_to(ROOT)} imports {module}"
        for path in paths
        for module in sorted(imports(path))
        if wrong(module)
    )


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_rooms_below_it(room):
    allowed = may_import(room) | {room, "__version__", None}
    paths = [*(ENGINE / room).rglob("*.py"), *ENGINE.glob(f"{room}.py")]
    assert paths
    assert not wrong_imports(paths, lambda module: room_of(module) not in allowed)


def test_the_table_has_no_circle_and_no_gap():
    assert not [room for room in MAY_IMPORT if room in may_import(room)]
    rooms = {p.name for p in ENGINE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms - {"_resources"} == MAY_IMPORT.keys() - {"api"}


def module_imports() -> nx.DiGraph[str]:
    """Which module of the product imports which, inside functions and for type checkers too."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in ("collage_engine", "collage_gui")
        for path in (ROOT / package).rglob("*.py")
    }
    return nx.DiGraph({m: imports(path) & paths.keys() - {m} for m, path in paths.items()})


def test_no_modules_import_each_other_in_a_circle():
    found = [c for c in nx.strongly_connected_components(module_imports()) if len(c) > 1]
    assert not found, f"these modules import each other in a circle: {list(map(sorted, found))}"


@pytest.mark.parametrize("rule", NOT_IN)
def test_some_rooms_do_without_some_packages(rule):
    packages, rooms = NOT_IN[rule]
    paths = [path for room in sorted(rooms) for path in (ENGINE / room).rglob("*.py")]
    assert not wrong_imports(paths, lambda module: module.split(".")[0] in packages)


def test_the_desktop_imports_only_records_drawing_and_the_protocol():
    allowed = {"collage_engine", "collage_engine.__version__", "collage_engine.service"}

    def wrong(module: str) -> bool:
        if module in allowed or module.startswith(tuple(f"{ok}." for ok in GUI_MAY_USE)):
            return False
        return module.split(".")[0] in {*HEAVY, "collage_engine"} and module not in GUI_MAY_USE

    assert not wrong_imports((ROOT / "collage_gui").rglob("*.py"), wrong)


def test_a_toolchain_knows_no_other_toolchain():
    contract = {"base", "capabilities", "registry", "sources"}
    shared = contract | {"runtime"}
    folders = [p for p in (ENGINE / "toolchains").iterdir() if (p / "__init__.py").exists()]
    wrong = []
    for folder in folders:
        for path in folder.rglob("*.py"):
            for module in imports(path):
                parts = module.split(".")
                if parts[:2] == ["collage_engine", "toolchains"] and len(parts) > 2:
                    known = {folder.name} | (shared if folder.name != "runtime" else contract)
                    if parts[2] not in known:
                        wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_every_init_imports_next_to_nothing():
    light = ("__future__", "importlib", "typing", "collage_engine.records.versions")
    wrong = [
        str(path.relative_to(ROOT))
        for path in ENGINE.rglob("__init__.py")
        if any(not m.startswith(light) for m in imports(path, for_checkers=False))
    ]
    assert not wrong


def test_the_process_that_answers_requests_loads_no_tvm():
    code = (
        "import sys; import collage_engine.api, collage_engine.cli.commands;"
        "import collage_engine.service.server;"
        "from collage_engine.toolchains import registry;"
        "[registry.about(name) for name in registry.all_names()];"  # as for a list of them
        "print([m for m in ('tvm', 'tvm_ffi', 'onnx', 'onnxruntime') if m in sys.modules])"
    )
    done = python(code, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


EXCEPTED = {
    "collage_engine/machine/loader/run_artifact.py",
    "collage_engine/patch.py",
    "collage_engine/toolchains/registry.py",
    "collage_engine/lowering/virtual_machine.py",
}
NAMES = set(registry.TOOLCHAINS)
OPENMP = ("OMP_", "GOMP_")


def own_variables() -> set[str]:
    """Environment variables that some toolchain wants and that no standard defines."""
    abouts = [registry.about(name) for name in registry.TOOLCHAINS]
    found = {v for about in abouts for v in (*about.environment, *about.passive_environment)}
    return {variable for variable in found if not variable.startswith(OPENMP)}


def forbidden() -> set[str]:
    """Strings that name a toolchain, in lower case."""
    titles = {registry.about(name).title for name in registry.TOOLCHAINS}
    return {text.lower() for text in (*NAMES, *titles, *own_variables())}


def docstrings(tree: ast.AST) -> set[int]:
    """Identities of the constants that stand as statements: docstrings."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def named(tree: ast.AST, words: set[str]) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that names a toolchain in a module."""
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in skipped and node.value.lower() in words:
                yield node.lineno, repr(node.value)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name.lower() in NAMES:
                yield node.lineno, node.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[:2] == ["collage_engine", "toolchains"] and {*parts[2:3]} & NAMES:
                yield node.lineno, f"import from {node.module}"


def files() -> Iterator[Path]:
    """The modules that may name no toolchain."""
    for package in ("collage_engine", "collage_gui"):
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            in_folder = parts[1] == "toolchains" and len(parts) > 3 and parts[2] != "runtime"
            if not in_folder and "/".join(parts) not in EXCEPTED:
                yield path


def test_no_file_outside_a_toolchains_folder_names_one() -> None:
    words = forbidden()
    wrong = [
        f"{path.relative_to(ROOT)}:{line} names {what}"
        for path in files()
        for line, what in named(ast.parse(path.read_text()), words)
    ]
    assert not wrong, "\n".join(wrong)
