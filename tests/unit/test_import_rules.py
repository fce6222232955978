"""The rooms depend on each other in one direction only (DESIGN section 3)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "collage_engine"

MAY_USE: dict[str, set[str]] = {
    "records": set(),
    "search": {"records"},
    "session": {"records"},
    "drawing": {"records"},
    "model": {"records"},
    "partition": {"records", "model"},
    "toolchains": {"records", "model", "partition", "machine"},
    "machine": {"records"},
    "lowering": {"records", "model", "partition", "toolchains", "machine"},
    "measure": {"records", "model", "partition", "toolchains", "lowering", "machine"},
    "placement": {
        "records", "model", "partition", "toolchains", "lowering", "measure", "machine",
    },
    "report": {"records", "session", "drawing", "resources"},
    "pipeline": {
        "records", "model", "partition", "toolchains", "lowering", "measure", "placement",
        "machine", "search", "session",
    },
    "service": {
        "records", "machine", "toolchains", "pipeline", "session", "report", "model", "search",
    },
    "cli": {
        "records", "service", "session", "report", "drawing", "toolchains", "placement", "measure",
        "search", "model",
    },
}  # fmt: skip
HEAVY = {"tvm", "tvm_ffi", "onnxruntime", "openvino", "onnx"}
NO_HEAVY = {"records", "search", "session", "drawing", "partition", "report"}
GUI_MAY_USE = {
    "collage_engine.records",
    "collage_engine.drawing",
    "collage_engine.service.protocol",
}


def imports(path: Path) -> set[str]:
    """Every module a file imports, inside functions too, but not for type checkers only."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module.startswith("collage_engine"):
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "collage_engine" and len(parts) > 1 else None


@pytest.mark.parametrize("room", sorted(MAY_USE))
def test_a_room_uses_only_rooms_before_it(room):
    allowed = MAY_USE[room] | {room, "__version__"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ENGINE / room).rglob("*.py")
        for module in sorted(imports(path))
        if (used := room_of(module)) and used not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_every_room_has_its_rule():
    rooms = {p.name for p in ENGINE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert rooms - {"_resources"} <= MAY_USE.keys()


@pytest.mark.parametrize("room", sorted(NO_HEAVY))
def test_plain_rooms_import_no_toolchain(room):
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ENGINE / room).rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_the_engine_imports_no_qt():
    wrong = [
        str(path.relative_to(ROOT))
        for path in ENGINE.rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in ("PySide6", "pyqtgraph", "collage_gui")
    ]
    assert not wrong


def test_the_desktop_imports_only_records_drawing_and_the_protocol():
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in (ROOT / "collage_gui").rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in HEAVY
        or (
            module.startswith("collage_engine.")
            and module != "collage_engine.__version__"
            and not any(module == ok or module.startswith(ok + ".") for ok in GUI_MAY_USE)
            and module != "collage_engine.service"
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_a_toolchain_knows_no_other_toolchain():
    shared = {"base", "registry", "native", "blas"}
    folders = [p for p in (ENGINE / "toolchains").iterdir() if (p / "__init__.py").exists()]
    wrong = []
    for folder in folders:
        for path in folder.rglob("*.py"):
            for module in imports(path):
                parts = module.split(".")
                if parts[:2] == ["collage_engine", "toolchains"] and len(parts) > 2:
                    known = {folder.name} | (shared if folder.name != "native" else
                                             {"base", "registry"})  # fmt: skip
                    if parts[2] not in known:
                        wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_every_init_imports_next_to_nothing():
    wrong = [
        str(path.relative_to(ROOT))
        for path in ENGINE.rglob("__init__.py")
        if any(m for m in imports(path) if m != "__future__")
    ]
    assert not wrong


def test_only_store_and_session_speak_sql():
    wrong = [
        str(path.relative_to(ROOT))
        for path in ENGINE.rglob("*.py")
        for module in imports(path)
        if module.split(".")[0] in ("sqlite3", "sqlite_utils")
        and path.relative_to(ENGINE).parts[0] != "session"
        and path.relative_to(ENGINE).parts != ("measure", "store.py")
    ]
    assert not wrong


def test_the_process_that_answers_requests_loads_no_tvm():
    code = (
        "import sys; import collage_engine.service.server, collage_engine.cli.commands;"
        "print([m for m in ('tvm', 'tvm_ffi', 'onnx', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"
