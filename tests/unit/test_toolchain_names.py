"""No file outside a toolchain's folder names a toolchain: whatever differs, the toolchain says.

What counts as naming one: a string in the code (not a docstring) that equals, without regard to
case, a toolchain's name or its title, or that is an environment variable which only a toolchain
wants (``ToolchainAbout.environment``; OpenMP's variables belong to nobody); an identifier that is
a toolchain's name (a variable, a function, an argument; not an imported package); and an import
from a toolchain's folder. Two places are excepted: the registry, which lists toolchains, and
``lowering/virtual_machine.py``, since TVM is also the virtual machine that runs every placement.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from collage_engine.toolchains import registry

ROOT = Path(__file__).resolve().parents[2]
EXCEPTED = {
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
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                imported.add((alias.asname or alias.name).split(".")[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in skipped and node.value.lower() in words:
                yield node.lineno, repr(node.value)
        elif isinstance(node, ast.Name) and node.id not in imported:
            if node.id.lower() in NAMES:
                yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name.lower() in NAMES:
                yield node.lineno, node.name
        elif isinstance(node, ast.arg) and node.arg.lower() in NAMES:
            yield node.lineno, node.arg
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


def test_the_search_finds_what_it_looks_for() -> None:
    code = (
        '"""onednn"""\n'
        "import onnxruntime\n"
        "from collage_engine.toolchains.tvm.conversion import conversion\n"
        'if toolchain == "OpenVINO": onnxruntime.run()\n'
        'environ["OPENBLAS_NUM_THREADS"] = "1"\n'
        "def cudnn(mkl): return mkl\n"
    )
    found = {what for _, what in named(ast.parse(code), forbidden())}
    assert found == {
        "import from collage_engine.toolchains.tvm.conversion",
        "'OpenVINO'",
        "'OPENBLAS_NUM_THREADS'",
        "cudnn",
        "mkl",
    }
