"""12. Automate: the desktop without a person, against the scripted engine and the real one."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("PySide6.QtWidgets")

ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = f"command:{sys.executable} {ROOT / 'tests' / 'gui' / 'scripted_engine.py'}"


def explorer(folder: Path, *arguments: str, limit_s: int = 120) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, QT_QPA_PLATFORM="offscreen", PYTHONPATH=str(ROOT),
                       COLLAGE_EXPLORER_RECOVERY=str(folder / "recovery"))  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "collage_gui", *arguments],
        env=environment, capture_output=True, text=True, timeout=limit_s, cwd=folder, check=False,
    )  # fmt: skip


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def test_run_screenshots_and_export_headless(tmp_path) -> None:
    model = tmp_path / "small.onnx"
    model.write_bytes(b"")
    shots, out = tmp_path / "shots", tmp_path / "out"
    done = explorer(
        tmp_path,
        str(model),
        "--engine",
        SCRIPTED,
        "--run",
        "--toolchains",
        "tvm,onednn",
        "--screenshot",
        str(shots),
        "--export",
        str(out),
        "--quit",
    )
    assert done.returncode == 0, done.stderr
    for name in ("overview", "candidates", "compare"):
        width, height = png_size(shots / f"{name}.png")
        assert width >= 1280 and height >= 800
    assert (out / "artifact" / "manifest.json").exists()
    assert (out / "report.html").read_bytes().startswith(b"<!doctype html>")
    assert (out / "graph.svg").read_text().startswith("<svg")
    assert (out / "tables" / "candidates.csv").exists()


@pytest.mark.parametrize(
    "options, engine, said",
    [
        (("--run",), "", "is not an ONNX file"),
        (("--run", "--toolchains", "cudnn"), "", "no such toolchain here: cudnn"),
        (("--run",), " --fail run.start", "run.start failed"),
        (("--run",), " --crash-after 5", "the engine crashed"),
        (("--run",), " --speaks 7", "version 7"),
    ],
)
def test_what_fails_ends_with_1_and_the_reason(tmp_path, options, engine, said) -> None:
    model = tmp_path / ("broken.onnx" if "ONNX" in said else "small.onnx")
    model.write_bytes(b"")
    done = explorer(tmp_path, str(model), "--engine", SCRIPTED + engine, *options, "--quit")
    assert done.returncode == 1
    assert said in done.stderr


def test_wrong_usage_ends_with_2(tmp_path) -> None:
    assert explorer(tmp_path, "--run", "--quit").returncode == 2
    assert explorer(tmp_path, "x.onnx", "--engine", "nonsense", "--quit").returncode == 2


def test_the_limit_ends_a_run_that_does_not_end(tmp_path) -> None:
    model = tmp_path / "small.onnx"
    model.write_bytes(b"")
    done = explorer(tmp_path, str(model), "--engine", SCRIPTED + " --hang run.start", "--run",
                    "--quit", "--limit", "2")  # fmt: skip
    assert done.returncode == 1 and "not done after 2 s" in done.stderr
